/* tokenizer.h - text to token ids and back, equal to the Hugging Face tokenizers library.
 *
 * Byte-level BPE with each family's split rule (Llama 3, Qwen, GPT-2, SmolLM2), from
 * tokenizer.json or from GGUF metadata. Other models are refused by name. Immutable after open and
 * safe to share between threads. */
#pragma once
#include "base/err.h"
#include "core/gguf.h"

typedef struct rk_tokenizer rk_tokenizer;

/* From a tokenizer.json file. Errors: RK_E_INPUT naming the unsupported component */
rk_status rk_tokenizer_open_json(const char *path, rk_tokenizer **out);
/* From tokenizer.ggml.* metadata; tokenizer.ggml.pre names the split rule. g is not kept. */
rk_status rk_tokenizer_open_gguf(const rk_gguf *g, rk_tokenizer **out);
/* From what lies beside a model: a .gguf's metadata, or PATH/tokenizer.json. */
rk_status rk_tokenizer_open_model(const char *model_path, const rk_gguf *g_or_null,
                                  rk_tokenizer **out);
void      rk_tokenizer_close(rk_tokenizer *t);

/* A stretch of the text to encode. In a literal part no added token is matched, so that user text
 * cannot forge control tokens; pre-tokenization still runs across parts as if they were one text. */
typedef struct rk_text_part {
    const char *text;
    size_t      n;
    bool        literal;
} rk_text_part;

/* Encode the concatenation of parts. add_special applies the post-processor (a BOS for models
 * that have one). Bytes that are not UTF-8 are read as U+FFFD.
 * Owner:  *ids from rk_mem, the caller frees
 * Cost:   O(n log n) in the worst case; 1 MB of English well under 1 s */
rk_status rk_tokenizer_encode(const rk_tokenizer *t, const rk_text_part *parts, int n_parts,
                              bool add_special, int32_t **ids, int64_t *n_ids);

/* Bytes of ids as valid UTF-8 (each maximal invalid part becomes U+FFFD), NUL-terminated.
 * skip_special drops tokens flagged special. Ids without a token decode to nothing. */
rk_status rk_tokenizer_decode(const rk_tokenizer *t, const int32_t *ids, int64_t n,
                              bool skip_special, char **text, size_t *n_bytes);

/* Incremental decoding: text comes out as soon as its characters are complete. */
typedef struct rk_decode_stream {
    const rk_tokenizer *t;
    bool                skip_special;
    unsigned char       held[8]; /* an unfinished UTF-8 sequence */
    int                 n_held;
} rk_decode_stream;
void rk_decode_begin(rk_decode_stream *s, const rk_tokenizer *t, bool skip_special);
/* Append what token id completes to buf (capacity cap >= 4 * longest token + 16, see
 * rk_tokenizer_max_bytes); returns the number of bytes. */
size_t rk_decode_push(rk_decode_stream *s, int32_t id, char *buf, size_t cap);
size_t rk_decode_end(rk_decode_stream *s, char *buf, size_t cap); /* flush: U+FFFD for a rest */

int         rk_tokenizer_size(const rk_tokenizer *t);      /* highest id + 1 */
size_t      rk_tokenizer_max_bytes(const rk_tokenizer *t); /* of any token */
int32_t     rk_tokenizer_find(const rk_tokenizer *t, const char *token); /* added token by content; -1 */
bool        rk_tokenizer_is_special(const rk_tokenizer *t, int32_t id);
/* Raw bytes of a token, not NUL-terminated; NULL where id has none. */
const char *rk_tokenizer_bytes(const rk_tokenizer *t, int32_t id, size_t *n);
int32_t     rk_tokenizer_bos(const rk_tokenizer *t);       /* the id that add_special puts first; -1 */
const char *rk_tokenizer_kind(const rk_tokenizer *t);      /* "byte-level BPE, smollm" for inspect */
