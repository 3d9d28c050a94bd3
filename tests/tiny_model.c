/* tiny_model.c - see tiny_model.h. Names, shapes and row orders stand here a second time on
 * purpose: the readers are tested against them. */
#include "tests/tiny_model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/mem.h"

/* ---- growing bytes --------------------------------------------------------------------------- */

typedef struct blob {
    uint8_t *p;
    int64_t  n, cap;
} blob;

static void put(blob *b, const void *src, size_t n) {
    if (b->n + (int64_t)n > b->cap) {
        void *p = b->p;
        b->cap = 2 * b->cap + (int64_t)n + 256;
        rk_status st = rk_mem_resize(&p, b->cap, 1, "tiny model");
        RK_ASSERT(st == RK_OK);
        b->p = p;
    }
    memcpy(b->p + b->n, src, n);
    b->n += (int64_t)n;
}

static void put_u32(blob *b, uint32_t v) {
    put(b, &v, sizeof v);
}
static void put_u64(blob *b, uint64_t v) {
    put(b, &v, sizeof v);
}
static void put_u16(blob *b, uint16_t v) {
    put(b, &v, sizeof v);
}
static void put_str(blob *b, const char *s) {
    put_u64(b, strlen(s));
    put(b, s, strlen(s));
}
static void align(blob *b, int64_t to) {
    static const uint8_t zero[64];
    while (b->n % to != 0) put(b, zero, 1);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Sizes by letter: V vocabulary, D width, Q query rows, K stored rows, F ffn, d head, 1 a vector.
 */
static const struct {
    const char *gguf, *hf;
    char        rows, cols;
} roles[RK_W_ROLES] = {
    [RK_W_EMBED] = {"token_embd.weight", "model.embed_tokens.weight", 'V', 'D'},
    [RK_W_OUT_NORM] = {"output_norm.weight", "model.norm.weight", '1', 'D'},
    [RK_W_HEAD] = {"output.weight", "lm_head.weight", 'V', 'D'},
    [RK_W_ATTN_NORM] = {"attn_norm.weight", "input_layernorm.weight", '1', 'D'},
    [RK_W_Q] = {"attn_q.weight", "self_attn.q_proj.weight", 'Q', 'D'},
    [RK_W_K] = {"attn_k.weight", "self_attn.k_proj.weight", 'K', 'D'},
    [RK_W_V] = {"attn_v.weight", "self_attn.v_proj.weight", 'K', 'D'},
    [RK_W_O] = {"attn_output.weight", "self_attn.o_proj.weight", 'D', 'Q'},
    [RK_W_FFN_NORM] = {"ffn_norm.weight", "post_attention_layernorm.weight", '1', 'D'},
    [RK_W_GATE] = {"ffn_gate.weight", "mlp.gate_proj.weight", 'F', 'D'},
    [RK_W_UP] = {"ffn_up.weight", "mlp.up_proj.weight", 'F', 'D'},
    [RK_W_DOWN] = {"ffn_down.weight", "mlp.down_proj.weight", 'D', 'F'},
    [RK_W_Q_BIAS] = {"attn_q.bias", "self_attn.q_proj.bias", '1', 'Q'},
    [RK_W_K_BIAS] = {"attn_k.bias", "self_attn.k_proj.bias", '1', 'K'},
    [RK_W_V_BIAS] = {"attn_v.bias", "self_attn.v_proj.bias", '1', 'K'},
    [RK_W_Q_NORM] = {"attn_q_norm.weight", "self_attn.q_norm.weight", '1', 'd'},
    [RK_W_K_NORM] = {"attn_k_norm.weight", "self_attn.k_norm.weight", '1', 'd'},
};

static int size_of(const rk_tiny_spec *s, char letter) {
    switch (letter) {
    case 'V':
        return RK_TINY_VOCAB;
    case 'D':
        return s->d_model;
    case 'Q':
        return s->n_heads * s->head_dim;
    case 'K':
        return s->n_kv_heads * s->head_dim;
    case 'F':
        return s->d_ffn;
    case 'd':
        return s->head_dim;
    default:
        return 1;
    }
}

static bool has(const rk_tiny_spec *s, rk_role r) {
    if (r == RK_W_HEAD) return !s->tied;
    if (r >= RK_W_Q_NORM) return strcmp(s->arch, "qwen3") == 0;
    if (r >= RK_W_Q_BIAS) return strcmp(s->arch, "qwen2") == 0;
    return true;
}

rk_tiny_spec rk_tiny_default(void) {
    return (rk_tiny_spec){.arch = "llama",
                          .n_layers = 4,
                          .d_model = 64,
                          .n_heads = 4,
                          .n_kv_heads = 2,
                          .head_dim = 32,
                          .d_ffn = 96,
                          .type = RK_GGML_F32,
                          .tied = true,
                          .seed = 1};
}

int64_t rk_tiny_count(const rk_tiny_spec *s, rk_role role) {
    return has(s, role) ? (int64_t)size_of(s, roles[role].rows) * size_of(s, roles[role].cols) : 0;
}

static uint64_t mix(uint64_t *state) { /* SplitMix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* Matrices: near normal with variance 1 / inputs; norms around 1; biases around 0. The last norm is
 * small where the head is the embedding, so that logits stay within a few units. */
void rk_tiny_values(const rk_tiny_spec *s, rk_role role, int layer, float *out) {
    int      rows = size_of(s, roles[role].rows), cols = size_of(s, roles[role].cols);
    bool     norm = rows == 1 && strstr(roles[role].hf, "norm");
    double   scale = norm ? 0.1 : rows == 1 ? 0.3 : 1.0 / sqrt((double)cols);
    double   base = !norm ? 0.0 : role == RK_W_OUT_NORM && s->tied ? 0.5 : 1.0;
    uint64_t state = s->seed * UINT64_C(0x100000001b3);
    state += ((uint64_t)role << 16) + (uint64_t)(layer + 1);
    if (role == RK_W_EMBED || role == RK_W_HEAD) scale = 0.3;
    for (int64_t i = 0; i < (int64_t)rows * cols; i++) {
        double sum = 0; /* of four uniforms: variance 1/3 */
        for (int k = 0; k < 4; k++) sum += (double)(mix(&state) >> 11) * 0x1p-53 - 0.5;
        out[i] = (float)(base + scale * sum * 1.7320508075688772);
    }
}

/* ---- types ----------------------------------------------------------------------------------- */

enum { BLOCK = 32 };

static uint8_t level(float x, int top) {
    float r = x < 0 ? 0 : x > (float)top ? (float)top : x;
    return (uint8_t)lrintf(r);
}

static void put_nibbles(blob *b, const uint8_t q[BLOCK]) {
    for (int i = 0; i < BLOCK / 2; i++) {
        uint8_t byte = (uint8_t)(q[i] | (q[i + BLOCK / 2] << 4));
        put(b, &byte, 1);
    }
}

static void put_block(blob *b, int type, const float *x) {
    float   lo = x[0], hi = x[0], far = 0;
    uint8_t q[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
        if (fabsf(x[i]) > fabsf(far)) far = x[i];
    }
    float span = type == RK_GGML_Q8_0 ? fabsf(far) / 127 : far / -8;
    if (type == RK_GGML_Q4_1) span = (hi - lo) / 15;
    uint16_t d16 = rk_f32_to_f16(span), m16 = rk_f32_to_f16(lo);
    float    d = rk_f16_to_f32(d16), m = rk_f16_to_f32(m16), by = d != 0 ? 1 / d : 0;
    put_u16(b, d16);
    if (type == RK_GGML_Q4_1) put_u16(b, m16);
    for (int i = 0; i < BLOCK; i++) {
        if (type == RK_GGML_Q8_0)
            q[i] = (uint8_t)(level(x[i] * by + 127, 254) - 127);
        else
            q[i] = type == RK_GGML_Q4_0 ? level(x[i] * by + 8, 15) : level((x[i] - m) * by, 15);
    }
    if (type == RK_GGML_Q8_0)
        put(b, q, BLOCK);
    else
        put_nibbles(b, q);
}

static void put_values(blob *b, int type, const float *x, int64_t n) {
    if (type == RK_GGML_F32) {
        put(b, x, (size_t)n * sizeof *x);
    } else if (type == RK_GGML_F16) {
        for (int64_t i = 0; i < n; i++) put_u16(b, rk_f32_to_f16(x[i]));
    } else if (type == RK_GGML_BF16) {
        for (int64_t i = 0; i < n; i++) put_u16(b, rk_f32_to_bf16(x[i]));
    } else {
        for (int64_t i = 0; i < n; i += BLOCK) put_block(b, type, x + i);
    }
}

static float *values_of(const rk_tiny_spec *s, rk_role r, int layer) {
    void     *p;
    rk_status st = rk_mem_alloc(rk_tiny_count(s, r), sizeof(float), "tiny model", &p);
    RK_ASSERT(st == RK_OK);
    rk_tiny_values(s, r, layer, p);
    return p;
}

/* Rows of each head from (all first halves, all second halves) to pairs side by side. */
static void put_interleaved(blob *b, int type, const float *x, int rows, int cols, int d) {
    for (int r = 0; r < rows; r++) {
        int pair = r % d / 2, half = r % 2;
        put_values(b, type, x + (int64_t)(r - r % d + half * (d / 2) + pair) * cols, cols);
    }
}

/* ---- vocabulary ------------------------------------------------------------------------------ */

/* Parts separated by a blank; G stands for the alphabet's letter of the blank byte. */
static const char *const merges[RK_TINY_MERGES] = {
    "G t", "G a", "h e",  "i n", "r e", "o n",  "Gt he", "e r", "G s",   "a t",
    "G w", "G o", "e n",  "G c", "i t", "i s",  "a n",   "o r", "e s",   "G b",
    "e d", "G f", "in g", "G p", "o u", "Ga n", "a l",   "a r", "Gan d",
};
static const char CHATML[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}";

/* The letter of a byte in GPT-2's alphabet: itself where it is printable, else the next of U+0100
 * and on. */
static void byte_letter(int byte, char out[4]) {
    int code = byte, others = 0;
    for (int b = 0; b <= byte; b++) {
        bool own = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (!own) others++;
        if (b == byte && !own) code = 256 + others - 1;
    }
    if (code < 128) {
        snprintf(out, 4, "%c", code);
    } else {
        out[0] = (char)(0xc0 | (code >> 6));
        out[1] = (char)(0x80 | (code & 63));
        out[2] = 0;
    }
}

/* A merge's two parts with one blank between (joined: without). */
static void merge_text(int i, bool joined, char out[32]) {
    size_t n = 0;
    for (const char *p = merges[i]; *p; p++) {
        char letter[4] = {*p, 0};
        if (*p == ' ' && joined) continue;
        if (*p == 'G') byte_letter(' ', letter);
        n += (size_t)snprintf(out + n, 32 - n, "%s", letter);
    }
}

static void token_text(int id, char out[32]) {
    static const char *const special[] = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"};
    if (id < RK_TINY_BYTES)
        byte_letter(id, out);
    else if (id < RK_TINY_IM_START)
        merge_text(id - RK_TINY_BYTES, true, out);
    else
        snprintf(out, 32, "%s", special[id - RK_TINY_IM_START]);
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

enum { K_U32 = 4, K_I32 = 5, K_F32 = 6, K_BOOL = 7, K_STRING = 8, K_ARRAY = 9, ALIGNMENT = 32 };
enum { MAX_POSITIONS = 32768 };
static const float THETA = 10000.0f, EPS = 1e-5f;

typedef struct gguf_writer {
    blob        meta;
    uint64_t    n_keys;
    const char *arch;
} gguf_writer;

static void key(gguf_writer *w, const char *name, uint32_t kind) {
    char full[128];
    bool bare = strncmp(name, "general.", 8) == 0 || strncmp(name, "tokenizer.", 10) == 0;
    snprintf(full, sizeof full, "%s%s%s", bare ? "" : w->arch, bare ? "" : ".", name);
    put_str(&w->meta, full);
    put_u32(&w->meta, kind);
    w->n_keys++;
}
static void key_u32(gguf_writer *w, const char *name, int v) {
    key(w, name, K_U32);
    put_u32(&w->meta, (uint32_t)v);
}
static void key_f32(gguf_writer *w, const char *name, float v) {
    key(w, name, K_F32);
    put(&w->meta, &v, sizeof v);
}
static void key_str(gguf_writer *w, const char *name, const char *v) {
    key(w, name, K_STRING);
    put_str(&w->meta, v);
}
static void key_array(gguf_writer *w, const char *name, uint32_t kind, uint64_t n) {
    key(w, name, K_ARRAY);
    put_u32(&w->meta, kind);
    put_u64(&w->meta, n);
}

static void put_tokenizer(gguf_writer *w) {
    char text[32];
    key_str(w, "tokenizer.ggml.model", "gpt2");
    key_str(w, "tokenizer.ggml.pre", "smollm");
    key_array(w, "tokenizer.ggml.tokens", K_STRING, RK_TINY_VOCAB);
    for (int i = 0; i < RK_TINY_VOCAB; i++) {
        token_text(i, text);
        put_str(&w->meta, text);
    }
    key_array(w, "tokenizer.ggml.token_type", K_I32, RK_TINY_VOCAB);
    for (int i = 0; i < RK_TINY_VOCAB; i++) put_u32(&w->meta, i < RK_TINY_IM_START ? 1 : 3);
    key_array(w, "tokenizer.ggml.merges", K_STRING, RK_TINY_MERGES);
    for (int i = 0; i < RK_TINY_MERGES; i++) {
        merge_text(i, false, text);
        put_str(&w->meta, text);
    }
    key_u32(w, "tokenizer.ggml.bos_token_id", RK_TINY_IM_START);
    key_u32(w, "tokenizer.ggml.eos_token_id", RK_TINY_IM_END);
    key(w, "tokenizer.ggml.add_bos_token", K_BOOL);
    put(&w->meta, "", 1);
    key_str(w, "tokenizer.chat_template", CHATML);
}

static void put_keys(gguf_writer *w, const rk_tiny_spec *s) {
    key_str(w, "general.architecture", w->arch);
    key_str(w, "general.name", "tiny random");
    key_u32(w, "block_count", s->n_layers);
    key_u32(w, "context_length", MAX_POSITIONS);
    key_u32(w, "embedding_length", s->d_model);
    key_u32(w, "feed_forward_length", s->d_ffn);
    key_u32(w, "attention.head_count", s->n_heads);
    key_u32(w, "attention.head_count_kv", s->n_kv_heads);
    key_u32(w, "attention.key_length", s->head_dim);
    key_u32(w, "attention.value_length", s->head_dim);
    key_f32(w, "rope.freq_base", THETA);
    key_f32(w, "attention.layer_norm_rms_epsilon", EPS);
    put_tokenizer(w);
}

/* Info into info, data into data. */
static void put_tensor(const gguf_writer *w, const rk_tiny_spec *s, rk_role r, int layer,
                       blob *info, blob *data) {
    char name[64];
    int  rows = size_of(s, roles[r].rows), cols = size_of(s, roles[r].cols);
    int  type = rows == 1 ? RK_GGML_F32 : s->type;
    if (layer < 0)
        snprintf(name, sizeof name, "%s", roles[r].gguf);
    else
        snprintf(name, sizeof name, "blk.%d.%s", layer, roles[r].gguf);
    align(data, ALIGNMENT);
    put_str(info, name);
    put_u32(info, rows == 1 ? 1 : 2);
    put_u64(info, (uint64_t)cols);
    if (rows > 1) put_u64(info, (uint64_t)rows);
    put_u32(info, (uint32_t)type);
    put_u64(info, (uint64_t)data->n);
    float *x = values_of(s, r, layer);
    if (strcmp(w->arch, "llama") == 0 && (r == RK_W_Q || r == RK_W_K))
        put_interleaved(data, type, x, rows, cols, s->head_dim);
    else
        put_values(data, type, x, (int64_t)rows * cols);
    rk_mem_free(x);
}

rk_status rk_tiny_model_gguf_bytes(const rk_tiny_spec *s, uint8_t **bytes, int64_t *n) {
    gguf_writer w = {.arch = strcmp(s->arch, "mistral") == 0 ? "llama" : s->arch};
    blob        info = {0}, data = {0}, file = {0};
    uint64_t    n_tensors = 0;
    put_keys(&w, s);
    for (rk_role r = 0; r < RK_W_ROLES; r++) {
        bool per_layer = r >= RK_W_ATTN_NORM;
        for (int l = 0; has(s, r) && l < (per_layer ? s->n_layers : 1); l++, n_tensors++)
            put_tensor(&w, s, r, per_layer ? l : -1, &info, &data);
    }
    put(&file, "GGUF", 4);
    put_u32(&file, 3);
    put_u64(&file, n_tensors);
    put_u64(&file, w.n_keys);
    put(&file, w.meta.p, (size_t)w.meta.n);
    put(&file, info.p, (size_t)info.n);
    align(&file, ALIGNMENT);
    put(&file, data.p, (size_t)data.n);
    rk_mem_free(w.meta.p);
    rk_mem_free(info.p);
    rk_mem_free(data.p);
    *bytes = file.p;
    *n = file.n;
    return RK_OK;
}

rk_status rk_tiny_model_write_gguf(const char *path, const rk_tiny_spec *s) {
    uint8_t *bytes;
    int64_t  n;
    RK_TRY(rk_tiny_model_gguf_bytes(s, &bytes, &n));
    rk_status st = rk_tiny_write_file(path, bytes, n);
    rk_mem_free(bytes);
    return st;
}

rk_status rk_tiny_write_file(const char *path, const void *bytes, int64_t n) {
    FILE *f = fopen(path, "wb");
    if (!f) return RK_FAIL(RK_E_OUTPUT, "%s: cannot create: %m", path);
    size_t done = fwrite(bytes, 1, (size_t)n, f);
    if (fclose(f) != 0 || done != (size_t)n) return RK_FAIL(RK_E_OUTPUT, "%s: %m", path);
    return RK_OK;
}

/* ---- Hugging Face folder --------------------------------------------------------------------- */

rk_status rk_tiny_model_safetensors_bytes(const rk_tiny_spec *s, uint8_t **bytes, int64_t *n) {
    const char *dtype = s->type == RK_GGML_F32 ? "F32" : s->type == RK_GGML_F16 ? "F16" : "BF16";
    blob        data = {0}, file = {0};
    if (s->type != RK_GGML_F32 && s->type != RK_GGML_F16 && s->type != RK_GGML_BF16)
        return RK_FAIL(RK_E_USAGE, "a folder holds F32, F16 or BF16, not %s",
                       rk_ggml_type_name(s->type));
    rk_json *head = rk_json_object(), *meta = rk_json_object();
    rk_json_set_str(meta, "format", "pt");
    rk_json_set(head, "__metadata__", meta);
    for (rk_role r = 0; r < RK_W_ROLES; r++) {
        bool per_layer = r >= RK_W_ATTN_NORM;
        int  rows = size_of(s, roles[r].rows), cols = size_of(s, roles[r].cols);
        for (int l = 0; has(s, r) && l < (per_layer ? s->n_layers : 1); l++) {
            char     name[96];
            rk_json *t = rk_json_object(), *shape = rk_json_array(), *at = rk_json_array();
            snprintf(name, sizeof name, "%s", roles[r].hf);
            if (per_layer) snprintf(name, sizeof name, "model.layers.%d.%s", l, roles[r].hf);
            if (rows > 1) rk_json_add_int(shape, rows);
            rk_json_add_int(shape, cols);
            rk_json_add_int(at, data.n);
            float *x = values_of(s, r, per_layer ? l : -1);
            put_values(&data, rows == 1 ? RK_GGML_F32 : s->type, x, (int64_t)rows * cols);
            rk_mem_free(x);
            rk_json_add_int(at, data.n);
            rk_json_set_str(t, "dtype", rows == 1 ? "F32" : dtype);
            rk_json_set(t, "shape", shape);
            rk_json_set(t, "data_offsets", at);
            rk_json_set(head, name, t);
        }
    }
    char *text = rk_json_text(head, false);
    put_u64(&file, strlen(text));
    put(&file, text, strlen(text));
    put(&file, data.p, (size_t)data.n);
    rk_mem_free(text);
    rk_mem_free(data.p);
    rk_json_close(head);
    *bytes = file.p;
    *n = file.n;
    return RK_OK;
}

char *rk_tiny_model_config_text(const rk_tiny_spec *s) {
    rk_json *c = rk_json_object();
    rk_json_set_str(c, "model_type", s->arch);
    rk_json_set_int(c, "hidden_size", s->d_model);
    rk_json_set_int(c, "intermediate_size", s->d_ffn);
    rk_json_set_int(c, "num_hidden_layers", s->n_layers);
    rk_json_set_int(c, "num_attention_heads", s->n_heads);
    rk_json_set_int(c, "num_key_value_heads", s->n_kv_heads);
    rk_json_set_int(c, "head_dim", s->head_dim);
    rk_json_set_int(c, "vocab_size", RK_TINY_VOCAB);
    rk_json_set_int(c, "max_position_embeddings", MAX_POSITIONS);
    rk_json_set_num(c, "rms_norm_eps", 1e-5);
    rk_json_set_num(c, "rope_theta", (double)THETA);
    rk_json_set_str(c, "hidden_act", "silu");
    rk_json_set_bool(c, "tie_word_embeddings", s->tied);
    rk_json_set_int(c, "bos_token_id", RK_TINY_IM_START);
    rk_json_set_int(c, "eos_token_id", RK_TINY_IM_END);
    char *text = rk_json_text(c, true);
    rk_json_close(c);
    return text;
}

/* Splits text as GGUF's "smollm" does: digits singly, then GPT-2's rule. */
static rk_json *pre_tokenizer(void) {
    rk_json *seq = rk_json_object(), *list = rk_json_array();
    rk_json *digits = rk_json_object(), *bytes = rk_json_object();
    rk_json_set_str(digits, "type", "Digits");
    rk_json_set_bool(digits, "individual_digits", true);
    rk_json_set_str(bytes, "type", "ByteLevel");
    rk_json_set_bool(bytes, "add_prefix_space", false);
    rk_json_set_bool(bytes, "trim_offsets", true);
    rk_json_set_bool(bytes, "use_regex", true);
    rk_json_add(list, digits);
    rk_json_add(list, bytes);
    rk_json_set_str(seq, "type", "Sequence");
    rk_json_set(seq, "pretokenizers", list);
    return seq;
}

static rk_json *bpe(void) {
    rk_json *m = rk_json_object(), *vocab = rk_json_object(), *list = rk_json_array();
    char     text[32];
    for (int i = 0; i < RK_TINY_IM_START; i++) {
        token_text(i, text);
        rk_json_set_int(vocab, text, i);
    }
    for (int i = 0; i < RK_TINY_MERGES; i++) {
        merge_text(i, false, text);
        rk_json_add_str(list, text);
    }
    rk_json_set_str(m, "type", "BPE");
    rk_json_set_bool(m, "fuse_unk", false);
    rk_json_set_bool(m, "byte_fallback", false);
    rk_json_set_bool(m, "ignore_merges", false);
    rk_json_set(m, "vocab", vocab);
    rk_json_set(m, "merges", list);
    return m;
}

static rk_json *added_tokens(void) {
    rk_json *list = rk_json_array();
    for (int i = RK_TINY_IM_START; i < RK_TINY_VOCAB; i++) {
        rk_json *t = rk_json_object();
        char     text[32];
        token_text(i, text);
        rk_json_set_int(t, "id", i);
        rk_json_set_str(t, "content", text);
        rk_json_set_bool(t, "single_word", false);
        rk_json_set_bool(t, "lstrip", false);
        rk_json_set_bool(t, "rstrip", false);
        rk_json_set_bool(t, "normalized", false);
        rk_json_set_bool(t, "special", true);
        rk_json_add(list, t);
    }
    return list;
}

static rk_json *tokenizer_json(void) {
    rk_json *j = rk_json_object(), *decoder = rk_json_object();
    rk_json_set_str(j, "version", "1.0");
    rk_json_set(j, "added_tokens", added_tokens());
    rk_json_set(j, "pre_tokenizer", pre_tokenizer());
    rk_json_set_str(decoder, "type", "ByteLevel");
    rk_json_set_bool(decoder, "add_prefix_space", true);
    rk_json_set_bool(decoder, "trim_offsets", true);
    rk_json_set_bool(decoder, "use_regex", true);
    rk_json_set(j, "decoder", decoder);
    rk_json_set(j, "model", bpe());
    return j;
}

static rk_json *tokenizer_config(void) {
    rk_json *j = rk_json_object();
    rk_json_set_str(j, "tokenizer_class", "PreTrainedTokenizerFast");
    rk_json_set_str(j, "bos_token", "<|im_start|>");
    rk_json_set_str(j, "eos_token", "<|im_end|>");
    rk_json_set_bool(j, "add_bos_token", false);
    rk_json_set_str(j, "chat_template", CHATML);
    return j;
}

static rk_json *generation_config(void) {
    rk_json *j = rk_json_object(), *eos = rk_json_array();
    rk_json_set_int(j, "bos_token_id", RK_TINY_IM_START);
    rk_json_add_int(eos, RK_TINY_IM_END);
    rk_json_add_int(eos, RK_TINY_ENDOFTEXT);
    rk_json_set(j, "eos_token_id", eos);
    return j;
}

static rk_status write_in(const char *folder, const char *name, const void *bytes, int64_t n) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return rk_tiny_write_file(path, bytes, n);
}

/* Writes and frees. */
static rk_status write_json(const char *folder, const char *name, rk_json *j) {
    char     *text = rk_json_text(j, true);
    rk_status st = write_in(folder, name, text, (int64_t)strlen(text));
    rk_mem_free(text);
    rk_json_close(j);
    return st;
}

rk_status rk_tiny_model_write_folder(const char *folder, const rk_tiny_spec *s) {
    uint8_t *bytes = NULL;
    int64_t  n = 0;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return RK_FAIL(RK_E_OUTPUT, "%s: cannot create: %m", folder);
    RK_TRY(rk_tiny_model_safetensors_bytes(s, &bytes, &n));
    rk_status st = write_in(folder, "model.safetensors", bytes, n);
    rk_mem_free(bytes);
    RK_TRY(st);
    char *config = rk_tiny_model_config_text(s);
    st = write_in(folder, "config.json", config, (int64_t)strlen(config));
    rk_mem_free(config);
    RK_TRY(st);
    RK_TRY(write_json(folder, "generation_config.json", generation_config()));
    RK_TRY(write_json(folder, "tokenizer_config.json", tokenizer_config()));
    return write_json(folder, "tokenizer.json", tokenizer_json());
}
