/* tokenizer_impl.h - what the tokenizer's files share; no other module includes it.
 *
 * The encode pipeline, in the order of the Hugging Face library:
 *   tokenizer.c       join parts, cut added tokens, normalize gaps, post-process; decode
 *   tokenizer_added.c added tokens in text (leftmost, then longest match)
 *   tokenizer_split.c NFC and the split into pieces (owner of PCRE2 and utf8proc)
 *   tokenizer_bpe.c   vocabulary and merges: one piece to ids
 *   tokenizer_json.c, tokenizer_load.c  files to an rk_tokenizer
 * A family with another step (SentencePiece) differs in split and bpe only. */
#pragma once
#include "base/err.h"
#include "core/tokenizer.h"

/* ---- bytes as UTF-8 ---- */

typedef enum rk_utf8_kind { RK_UTF8_VALID, RK_UTF8_INVALID, RK_UTF8_CUT } rk_utf8_kind;
/* Look at the sequence that starts at p (n > 0). VALID: *len bytes form a character; INVALID: *len
 * bytes are a maximal invalid part, to become one U+FFFD; CUT: all n bytes begin a character. */
rk_utf8_kind rk_utf8_scan(const char *p, size_t n, size_t *len);
uint32_t     rk_utf8_code(const char *p, size_t len); /* of a valid sequence */
bool         rk_is_space(uint32_t code);              /* Unicode's White_Space */
#define RK_UTF8_BAD "\xef\xbf\xbd"                    /* U+FFFD */

/* ---- growing arrays ---- */

typedef struct rk_ids {
    int32_t *at;
    int64_t  n, cap;
} rk_ids;
rk_status rk_ids_reserve(rk_ids *v, int64_t more);

/* ---- vocabulary and merges (tokenizer_bpe.c) ---- */

enum {
    RK_TOK_NONE = -1,       /* no id */
    RK_TOK_ID_MAX = 1 << 24 /* ids above are taken for damage */
};

typedef struct rk_vocab {
    char     *bytes; /* of all tokens, in a row; room bytes_cap */
    int64_t   n_bytes, bytes_cap;
    uint32_t *at;  /* [n_ids] where a token's bytes begin */
    int32_t  *len; /* [n_ids], -1: the id has no token */
    int32_t   n_ids;
    int32_t  *slot; /* hash of the model's own tokens by bytes: id + 1, 0 empty */
    uint32_t  mask;
    int32_t   max_len;
} rk_vocab;

typedef struct rk_merge {
    int32_t left, right; /* ids; left -1: empty slot */
    int32_t rank, merged;
} rk_merge;

typedef struct rk_bpe {
    rk_vocab  vocab;
    rk_merge *merge; /* hash by (left, right) */
    uint32_t  merge_mask;
    int32_t   byte_id[256];  /* RK_TOK_NONE: the byte has no token and is dropped, as there */
    int32_t   unk;           /* what such a byte becomes instead, or RK_TOK_NONE */
    bool      fuse_unk;      /* a run of them becomes one */
    bool      ignore_merges; /* a piece that is a token as a whole is that token */
} rk_bpe;

rk_status rk_vocab_open(rk_vocab *v, int64_t n_ids, int64_t n_tokens, int64_t bytes_cap);
/* Store a token; of_model puts it into the lookup by bytes. The id must be free and in range. */
void      rk_vocab_put(rk_vocab *v, int32_t id, const char *bytes, size_t n, bool of_model);
int32_t   rk_vocab_find(const rk_vocab *v, const char *bytes, size_t n); /* RK_TOK_NONE */
rk_status rk_bpe_open_merges(rk_bpe *b, int64_t n_merges);
void      rk_bpe_put_merge(rk_bpe *b, int32_t left, int32_t right, int32_t rank, int32_t merged);
void      rk_bpe_index_bytes(rk_bpe *b); /* fill byte_id from the vocabulary */
void      rk_bpe_close(rk_bpe *b);

/* Working memory of one encode call. */
typedef struct rk_bpe_scratch {
    void   *block; /* symbols, links and heap of a long piece */
    int64_t cap;   /* pieces of so many bytes fit */
} rk_bpe_scratch;
rk_status rk_bpe_piece(const rk_bpe *b, rk_bpe_scratch *s, const char *piece, size_t n,
                       rk_ids *out);

/* ---- NFC and split (tokenizer_split.c) ---- */

enum { RK_SPLIT_STEPS = 8 };
/* Steps run one after the other, each on the pieces of the one before. A match is a piece, so is
 * what lies between matches. NULL as a step's regex: put a space before a piece without one. */
typedef struct rk_splitter  rk_splitter;
typedef struct rk_split_run rk_split_run; /* one encode call's working memory */
typedef rk_status (*rk_piece_fn)(void *arg, const char *piece, size_t n);

rk_status rk_splitter_open(const char *const *regex, int n_steps, const char *origin,
                           rk_splitter **out);
void      rk_splitter_close(rk_splitter *s);
rk_status rk_split_begin(const rk_splitter *s, rk_split_run **out);
/* text must be valid UTF-8. */
rk_status rk_split_text(rk_split_run *r, const char *text, size_t n, rk_piece_fn fn, void *arg);
void      rk_split_end(rk_split_run *r);

/* Canonical composition of valid UTF-8. *out is NULL where the text is unchanged, else from
 * rk_mem. */
rk_status rk_nfc(const char *text, size_t n, char **out, size_t *n_out);
bool      rk_is_word(uint32_t code); /* a letter, mark, decimal digit or connector */

/* ---- added tokens (tokenizer_added.c) ---- */

typedef struct rk_added {
    int32_t id;
    bool    special, normalized, lstrip, rstrip, single_word;
} rk_added;

typedef struct rk_trie_node {
    int32_t child, next; /* index of the first child and of the next sibling; 0: none */
    int32_t added;       /* index of the token that ends here, or -1 */
    uint8_t byte;
} rk_trie_node;

typedef struct rk_trie {
    rk_trie_node *node; /* node 0 is the root */
    int32_t       n, cap;
    int32_t       first[256]; /* the root's children by byte */
} rk_trie;
rk_status rk_trie_add(rk_trie *t, const char *bytes, size_t n, int32_t added);

typedef struct rk_range {
    size_t begin, end;
} rk_range;
/* Text with the stretches (ascending, disjoint) in which no added token is matched. */
typedef struct rk_marked {
    char     *p;
    size_t    n;
    rk_range *literal;
    int64_t   n_literal;
} rk_marked;

/* Walk the added tokens of trie in text[lo, hi): each call gives the next one as [begin, end),
 * stripped whitespace included. */
typedef struct rk_cutter {
    const rk_trie   *trie;
    const rk_added  *added;
    const rk_marked *text;
    size_t           lo, hi;
    size_t           scan; /* where the search goes on */
    size_t           done; /* end of the last token given */
    int64_t          lit;  /* first literal stretch that ends after scan */
} rk_cutter;
void rk_cutter_begin(rk_cutter *c, const rk_trie *trie, const rk_added *added,
                     const rk_marked *text, size_t lo, size_t hi);
bool rk_cutter_next(rk_cutter *c, rk_range *found, int32_t *id);

/* ---- the whole ---- */

enum { RK_TOK_TEMPLATE = 8 };
struct rk_tokenizer {
    rk_bpe       bpe;
    rk_splitter *split;
    bool         nfc;
    rk_added    *added;
    int32_t      n_added;
    rk_trie      raw, normalized; /* tokens matched before and after normalization */
    bool        *special;         /* [n_ids] */
    int32_t      before[RK_TOK_TEMPLATE], after[RK_TOK_TEMPLATE]; /* the post-processor's ids */
    int          n_before, n_after;
    char         kind[64];
};

/* Split rules that have a name (tokenizer_load.c). */
typedef struct rk_split_rule {
    const char *pre; /* tokenizer.ggml.pre */
    const char *regex[2];
    bool        nfc, ignore_merges, add_bos;
} rk_split_rule;
extern const char    rk_regex_gpt2[];
extern const char    rk_regex_digit[], rk_regex_digits[];
/* The first rule with these steps, NULL if there is none. */
const rk_split_rule *rk_split_rule_like(const char *const *regex, int n_steps);

/* Alphabet string to bytes (at most as many), into buf of n; -1 if a character is outside. */
int64_t   rk_alphabet_bytes(const char *s, size_t n, char *buf);
/* Merge "left right" number rank, both in the alphabet. */
rk_status rk_load_merge(rk_bpe *b, const char *origin, int32_t rank, const char *left,
                        size_t n_left, const char *right, size_t n_right);
/* Register an added token by its text; its id has a token, and room for it was allocated. */
rk_status rk_load_added(rk_tokenizer *t, const rk_added *a, const char *content, size_t n);
/* Allocate what depends on the numbers of ids and added tokens. */
rk_status rk_load_room(rk_tokenizer *t, int64_t n_ids, int64_t n_tokens, int64_t n_bytes,
                       int64_t n_added);
