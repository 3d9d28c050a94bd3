/* tokenizer_load.c - what both file forms need, and tokenizers from GGUF metadata. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "core/tokenizer_impl.h"

/* ---- split rules ---- */

const char rk_regex_gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                             "\\s+(?!\\S)|\\s+";
const char rk_regex_digit[] = "\\p{N}";
const char rk_regex_digits[] = "\\p{N}+";

#define LLAMA3_LIKE(digits)                                                                        \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                           \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Names: tokenizer.ggml.pre of the files that llama.cpp's converter writes. The first of equal
 * rules names it in rk_tokenizer_kind. */
static const rk_split_rule rules[] = {
    {.pre = "llama-bpe",
     .regex = {LLAMA3_LIKE("\\p{N}{1,3}")},
     .ignore_merges = true,
     .add_bos = true},
    {.pre = "llama3",
     .regex = {LLAMA3_LIKE("\\p{N}{1,3}")},
     .ignore_merges = true,
     .add_bos = true},
    {.pre = "llama-v3",
     .regex = {LLAMA3_LIKE("\\p{N}{1,3}")},
     .ignore_merges = true,
     .add_bos = true},
    {.pre = "qwen2", .regex = {LLAMA3_LIKE("\\p{N}")}, .nfc = true},
    {.pre = "gpt-2", .regex = {rk_regex_gpt2}},
    {.pre = "default", .regex = {rk_regex_gpt2}},
    {.pre = "smollm", .regex = {rk_regex_digit, rk_regex_gpt2}},
};
enum { N_RULES = sizeof rules / sizeof *rules };

const rk_split_rule *rk_split_rule_like(const char *const *regex, int n_steps) {
    for (int i = 0; i < N_RULES; i++) {
        int n = rules[i].regex[1] ? 2 : 1;
        if (n != n_steps) continue;
        bool like = true;
        for (int k = 0; k < n; k++)
            like = like && regex[k] && strcmp(regex[k], rules[i].regex[k]) == 0;
        if (like) return &rules[i];
    }
    return NULL;
}

/* ---- shared steps ---- */

/* The alphabet gives every byte a printable character: itself where it is one in Latin-1, else
 * U+0100 and up, in the order of the bytes left over (0..20, 7F..A0, AD). */
static int byte_of(uint32_t c) {
    if ((c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff))
        return (int)c;
    if (c < 0x100 || c > 0x143) return -1;
    uint32_t k = c - 0x100;
    return (int)(k < 0x21 ? k : k < 0x43 ? 0x7f + (k - 0x21) : 0xad);
}

int64_t rk_alphabet_bytes(const char *s, size_t n, char *buf) {
    int64_t k = 0;
    for (size_t i = 0, len; i < n; i += len) {
        if (rk_utf8_scan(s + i, n - i, &len) != RK_UTF8_VALID) return -1;
        int b = byte_of(rk_utf8_code(s + i, len));
        if (b < 0) return -1;
        buf[k++] = (char)b;
    }
    return k;
}

rk_status rk_load_room(rk_tokenizer *t, int64_t n_ids, int64_t n_tokens, int64_t n_bytes,
                       int64_t n_added) {
    void *p;
    RK_TRY(rk_vocab_open(&t->bpe.vocab, n_ids, n_tokens, n_bytes));
    RK_TRY(rk_mem_alloc(n_ids, sizeof *t->special, "token flags", &p));
    t->special = p;
    RK_TRY(rk_mem_alloc(n_added, sizeof *t->added, "added tokens", &p));
    t->added = p;
    t->bpe.unk = RK_TOK_NONE;
    return RK_OK;
}

rk_status rk_load_added(rk_tokenizer *t, const rk_added *a, const char *content, size_t n) {
    size_t n_norm;
    char  *norm = NULL;
    t->special[a->id] = a->special;
    t->added[t->n_added] = *a;
    if (a->normalized && t->nfc) RK_TRY(rk_nfc(content, n, &norm, &n_norm));
    rk_status st = rk_trie_add(a->normalized ? &t->normalized : &t->raw, norm ? norm : content,
                               norm ? n_norm : n, t->n_added);
    rk_mem_free(norm);
    RK_TRY(st);
    t->n_added++;
    return RK_OK;
}

rk_status rk_load_merge(rk_bpe *b, const char *origin, int32_t rank, const char *left,
                        size_t n_left, const char *right, size_t n_right) {
    enum { LONGEST = 4096 };
    char    buf[LONGEST];
    int64_t k = -1, m = -1;
    int32_t l = RK_TOK_NONE, r = RK_TOK_NONE, both = RK_TOK_NONE;
    if (n_left + n_right <= LONGEST) {
        k = rk_alphabet_bytes(left, n_left, buf);
        if (k > 0) m = rk_alphabet_bytes(right, n_right, buf + k);
    }
    if (k > 0 && m > 0) {
        l = rk_vocab_find(&b->vocab, buf, (size_t)k);
        r = rk_vocab_find(&b->vocab, buf + k, (size_t)m);
        both = rk_vocab_find(&b->vocab, buf, (size_t)(k + m));
    }
    if (l == RK_TOK_NONE || r == RK_TOK_NONE || both == RK_TOK_NONE)
        return RK_FAIL(RK_E_INPUT,
                       "%s: merge %d (\"%.*s\" + \"%.*s\") does not join two tokens of the "
                       "vocabulary to a third; the file is damaged",
                       origin, rank, (int)(n_left < 60 ? n_left : 60), left,
                       (int)(n_right < 60 ? n_right : 60), right);
    rk_bpe_put_merge(b, l, r, rank, both);
    return RK_OK;
}

/* ---- GGUF ---- */

#define K_TOKENS "tokenizer.ggml.tokens"
#define K_TYPES  "tokenizer.ggml.token_type"
#define K_MERGES "tokenizer.ggml.merges"

/* Numbers of token_type. */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_UNUSED = 5 };

static rk_status check_model(const rk_gguf *g, const rk_split_rule **rule) {
    const char *path = rk_gguf_path(g), *model = rk_gguf_str(g, "tokenizer.ggml.model", NULL);
    if (!model)
        return RK_FAIL(RK_E_INPUT, "%s: no tokenizer in the file (tokenizer.ggml.model is absent)",
                       path);
    if (strcmp(model, "gpt2") != 0)
        return RK_FAIL(RK_E_INPUT,
                       "%s: tokenizer.ggml.model is \"%s\"%s; only byte-level BPE (\"gpt2\") is "
                       "supported: use a Llama 3, Qwen or SmolLM2 model",
                       path, model, strcmp(model, "llama") == 0 ? " (SentencePiece-style)" : "");
    const char *pre = rk_gguf_str(g, "tokenizer.ggml.pre", NULL);
    if (!pre) {
        RK_LOG(RK_LOG_WARN, "tokenizer",
               "%s: tokenizer.ggml.pre is absent, splitting as GPT-2 does", path);
        pre = "default";
    }
    for (int i = 0; i < N_RULES; i++)
        if (strcmp(rules[i].pre, pre) == 0) {
            *rule = &rules[i];
            return RK_OK;
        }
    return RK_FAIL(RK_E_INPUT,
                   "%s: tokenizer.ggml.pre is \"%s\", which is not supported (llama-bpe, qwen2, "
                   "gpt-2, smollm are); use a model of one of these families",
                   path, pre);
}

static rk_status gguf_token(rk_tokenizer *t, const rk_gguf *g, int32_t id, char *buf) {
    size_t      n = 0;
    const char *s = rk_gguf_arr_str(g, K_TOKENS, id, &n);
    int64_t     type = rk_gguf_arr_int(g, K_TYPES, id, TYPE_NORMAL);
    rk_vocab   *v = &t->bpe.vocab;
    if (type == TYPE_UNUSED) return RK_OK;
    if (type == TYPE_NORMAL) {
        int64_t k = rk_alphabet_bytes(s, n, buf);
        if (k < 0 || rk_vocab_find(v, buf, (size_t)k) != RK_TOK_NONE)
            /* plain text, or the same once more: it can be decoded, never produced */
            rk_vocab_put(v, id, k < 0 ? s : buf, k < 0 ? n : (size_t)k, false);
        else
            rk_vocab_put(v, id, buf, (size_t)k, true);
        return RK_OK;
    }
    if (type != TYPE_UNKNOWN && type != TYPE_CONTROL && type != TYPE_USER)
        return RK_FAIL(RK_E_INPUT,
                       "%s: token %d has the type %lld in " K_TYPES
                       ", which a byte-level tokenizer does not have",
                       rk_gguf_path(g), id, (long long)type);
    rk_vocab_put(v, id, s, n, false);
    rk_added a = {.id = id, .special = type != TYPE_USER};
    RK_TRY(rk_load_added(t, &a, s, n));
    return RK_OK;
}

static rk_status gguf_tokens(rk_tokenizer *t, const rk_gguf *g) {
    const char *path = rk_gguf_path(g);
    int64_t     n = rk_gguf_arr_len(g, K_TOKENS), n_types = rk_gguf_arr_len(g, K_TYPES);
    int64_t     total = 0, n_added = 0;
    size_t      longest = 0;
    if (n <= 0 || n > RK_TOK_ID_MAX)
        return RK_FAIL(RK_E_INPUT, "%s: " K_TOKENS " is absent or has an impossible length", path);
    if (n_types >= 0 && n_types != n)
        return RK_FAIL(RK_E_INPUT, "%s: " K_TYPES " has %lld entries for %lld tokens", path,
                       (long long)n_types, (long long)n);
    for (int64_t i = 0; i < n; i++) {
        size_t len = 0;
        if (!rk_gguf_arr_str(g, K_TOKENS, i, &len))
            return RK_FAIL(RK_E_INPUT, "%s: " K_TOKENS " is not an array of strings", path);
        total += (int64_t)len;
        if (len > longest) longest = len;
        n_added += rk_gguf_arr_int(g, K_TYPES, i, TYPE_NORMAL) != TYPE_NORMAL;
    }
    if (total > UINT32_MAX)
        return RK_FAIL(RK_E_INPUT, "%s: the tokens have more than 4 GiB of text", path);
    RK_TRY(rk_load_room(t, n, n, total, n_added));
    void *buf;
    RK_TRY(rk_mem_alloc((int64_t)longest + 1, 1, "token text", &buf));
    rk_status st = RK_OK;
    for (int32_t i = 0; i < n && st == RK_OK; i++) st = gguf_token(t, g, i, buf);
    rk_mem_free(buf);
    RK_TRY(st);
    return RK_OK;
}

static rk_status gguf_merges(rk_bpe *b, const rk_gguf *g) {
    const char *path = rk_gguf_path(g);
    int64_t     n = rk_gguf_arr_len(g, K_MERGES);
    if (n < 0 || n > RK_TOK_ID_MAX)
        return RK_FAIL(RK_E_INPUT, "%s: " K_MERGES " is absent or has an impossible length", path);
    RK_TRY(rk_bpe_open_merges(b, n));
    for (int32_t i = 0; i < n; i++) {
        size_t      len = 0;
        const char *s = rk_gguf_arr_str(g, K_MERGES, i, &len);
        const char *gap = s ? memchr(s, ' ', len) : NULL;
        if (!gap)
            return RK_FAIL(RK_E_INPUT,
                           "%s: entry %d of " K_MERGES " is not two strings with a "
                           "space between",
                           path, i);
        size_t n_left = (size_t)(gap - s);
        RK_TRY(rk_load_merge(b, path, i, s, n_left, gap + 1, len - n_left - 1));
    }
    return RK_OK;
}

/* Ids that the post-processor adds: flag says whether, key which. */
static rk_status gguf_template(const rk_tokenizer *t, const rk_gguf *g, const char *flag, bool dflt,
                               const char *key, int32_t *to, int *n) {
    if (!rk_gguf_bool(g, flag, dflt)) return RK_OK;
    int64_t id = rk_gguf_int(g, key, -1);
    size_t  unused;
    if (id < 0 || id > INT32_MAX || !rk_tokenizer_bytes(t, (int32_t)id, &unused))
        return RK_FAIL(RK_E_INPUT, "%s: %s asks for a token that %s does not name", rk_gguf_path(g),
                       flag, key);
    to[(*n)++] = (int32_t)id;
    return RK_OK;
}

rk_status rk_tokenizer_open_gguf(const rk_gguf *g, rk_tokenizer **out) {
    *out = NULL;
    const rk_split_rule *rule = NULL;
    RK_TRY(check_model(g, &rule));
    void *p;
    RK_TRY(rk_mem_alloc(1, sizeof(rk_tokenizer), "tokenizer", &p));
    rk_tokenizer *t = p;
    rk_status     st;
    t->nfc = rule->nfc;
    RK_TRY_OUT(st, gguf_tokens(t, g));
    rk_bpe_index_bytes(&t->bpe);
    t->bpe.ignore_merges = rule->ignore_merges;
    RK_TRY_OUT(st, gguf_merges(&t->bpe, g));
    RK_TRY_OUT(st,
               rk_splitter_open(rule->regex, rule->regex[1] ? 2 : 1, rk_gguf_path(g), &t->split));
    RK_TRY_OUT(st, gguf_template(t, g, "tokenizer.ggml.add_bos_token", rule->add_bos,
                                 "tokenizer.ggml.bos_token_id", t->before, &t->n_before));
    RK_TRY_OUT(st, gguf_template(t, g, "tokenizer.ggml.add_eos_token", false,
                                 "tokenizer.ggml.eos_token_id", t->after, &t->n_after));
    snprintf(t->kind, sizeof t->kind, "byte-level BPE, %s", rule->pre);
    *out = t;
    return RK_OK;
out:
    rk_tokenizer_close(t);
    return st;
}
