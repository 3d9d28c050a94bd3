#define _GNU_SOURCE /* memmem */
/* test_weights.c - models from GGUF files and folders: values, row reads, damaged models, goldens.
 */
#include <CUnit/CUnit.h>
#include <CUnit/TestDB.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "core/weights.h"
#include "tests/harness.h"
#include "tests/suites.h"
#include "tests/tiny_model.h"

enum { PATH_LEN = 4400 };

static const char *in_tmp(const char *name) {
    static char path[PATH_LEN];
    snprintf(path, sizeof path, "%s/%s", rk_test_tmpdir(), name);
    return path;
}

static float *read_all(rk_weights *w, rk_role r, int layer) {
    int   rows, cols;
    void *p;
    rk_weights_shape(w, r, &rows, &cols);
    CU_ASSERT_EQUAL_FATAL(rk_mem_alloc((int64_t)rows * cols, sizeof(float), "test", &p), RK_OK);
    CU_ASSERT_EQUAL(rk_weights_read(w, r, layer, 0, rows, p), RK_OK);
    return p;
}

static int layers_of(const rk_weights *w, rk_role r) {
    return r >= RK_W_ATTN_NORM ? rk_weights_config(w)->n_layers : 1;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* x as a file of the type holds it; the quantised types round by up to their step. */
static float stored(int type, float x) {
    if (type == RK_GGML_F16) return rk_f16_to_f32(rk_f32_to_f16(x));
    if (type == RK_GGML_BF16) return rk_bf16_to_f32(rk_f32_to_bf16(x));
    return x;
}

static double tolerance_of(int type, const float *x, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs((double)x[i]));
    if (type == RK_GGML_Q8_0) return most / 127 * 0.52;
    if (type == RK_GGML_Q4_0) return most / 8 * 1.02; /* the far end is cut off by one step */
    if (type == RK_GGML_Q4_1) return 2 * most / 15 * 0.52;
    return 0;
}

static void check_role(rk_weights *w, const rk_tiny_spec *s, rk_role r, int layer) {
    int64_t n = rk_tiny_count(s, r), bad = 0;
    int     rows, cols;
    void   *p;
    CU_ASSERT_EQUAL(rk_weights_has(w, r, layer), n > 0);
    if (n == 0) return;
    rk_weights_shape(w, r, &rows, &cols);
    CU_ASSERT_EQUAL_FATAL((int64_t)rows * cols, n);
    float *got = read_all(w, r, layer);
    CU_ASSERT_EQUAL_FATAL(rk_mem_alloc(n, sizeof(float), "test", &p), RK_OK);
    float *want = p;
    int    type = rows == 1 ? RK_GGML_F32 : s->type;
    rk_tiny_values(s, r, r >= RK_W_ATTN_NORM ? layer : -1, want);
    double tolerance = tolerance_of(type, want, n);
    for (int64_t i = 0; i < n; i++)
        bad += !(fabs((double)got[i] - (double)stored(type, want[i])) <= tolerance);
    CU_ASSERT_EQUAL(bad, 0);
    /* rows one by one, and no byte more than theirs */
    int64_t before = rk_weights_bytes_read(w);
    for (int row = 0; row < rows; row += 1 + rows / 5) {
        CU_ASSERT_EQUAL(rk_weights_read(w, r, layer, row, 1, want), RK_OK);
        CU_ASSERT(memcmp(want, got + (int64_t)row * cols, (size_t)cols * sizeof *want) == 0);
    }
    int64_t one = rk_weights_bytes_read(w) - before;
    CU_ASSERT_EQUAL(rk_weights_read(w, r, layer, 0, rows, want), RK_OK);
    CU_ASSERT(rows == 1 || one < rk_weights_bytes_read(w) - before - one);
    rk_mem_free(got);
    rk_mem_free(want);
}

static void check_model(const char *path, const rk_tiny_spec *s, const char *dtype) {
    rk_weights *w;
    rk_status   st = rk_weights_open(path, &w);
    if (st != RK_OK) fprintf(stderr, "%s\n", rk_err_last()->text);
    CU_ASSERT_EQUAL_FATAL(st, RK_OK);
    const rk_config *c = rk_weights_config(w);
    CU_ASSERT(c->n_layers == s->n_layers && c->d_model == s->d_model && c->d_ffn == s->d_ffn);
    CU_ASSERT(c->n_heads == s->n_heads && c->n_kv_heads == s->n_kv_heads);
    CU_ASSERT(c->head_dim == s->head_dim && c->n_vocab == RK_TINY_VOCAB && c->tied == s->tied);
    CU_ASSERT(c->bos == RK_TINY_IM_START && c->n_stop == 2 && c->stop[0] == RK_TINY_IM_END);
    CU_ASSERT_EQUAL(c->stop[1], RK_TINY_ENDOFTEXT);
    CU_ASSERT_STRING_EQUAL(rk_weights_dtype(w), dtype);
    CU_ASSERT_STRING_EQUAL(rk_weights_path(w), path);
    CU_ASSERT_PTR_NOT_NULL_FATAL(rk_weights_chat_template(w));
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_weights_chat_template(w), "<|im_start|>"));
    CU_ASSERT(c->max_positions == 32768 && c->rope_theta == 10000);
    for (rk_role r = 0; r < RK_W_ROLES; r++)
        for (int l = 0; l < layers_of(w, r); l++) check_role(w, s, r, l);
    CU_ASSERT(!rk_weights_has(w, RK_W_Q, -1) && !rk_weights_has(w, RK_W_Q, c->n_layers));
    rk_weights_close(w);
}

static void test_types(void) {
    static const int types[] = {RK_GGML_F32,  RK_GGML_F16,  RK_GGML_BF16,
                                RK_GGML_Q8_0, RK_GGML_Q4_0, RK_GGML_Q4_1};
    rk_tiny_spec     s = rk_tiny_default();
    int64_t          blocks = rk_mem_blocks();
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        s.type = types[i];
        s.tied = i % 2 == 0;
        CU_ASSERT_EQUAL_FATAL(rk_tiny_model_write_gguf(in_tmp("t.gguf"), &s), RK_OK);
        check_model(in_tmp("t.gguf"), &s, rk_ggml_type_name(s.type));
        rk_status st = rk_tiny_model_write_folder(in_tmp("t"), &s);
        CU_ASSERT_EQUAL(st, i < 3 ? RK_OK : RK_E_USAGE);
        if (i < 3) check_model(in_tmp("t"), &s, rk_ggml_type_name(s.type));
    }
    CU_ASSERT_EQUAL(rk_mem_blocks(), blocks);
}

static void test_families(void) {
    static const char *const archs[] = {"llama", "mistral", "qwen2", "qwen3"};
    uint64_t                 hash[4];
    for (size_t i = 0; i < 4; i++) {
        rk_tiny_spec s = {archs[i], 3, 96, 6, 3, 64, 32, RK_GGML_F32, i % 2 == 0, 9};
        rk_weights  *g, *f;
        CU_ASSERT_EQUAL_FATAL(rk_tiny_model_write_gguf(in_tmp("a.gguf"), &s), RK_OK);
        CU_ASSERT_EQUAL_FATAL(rk_tiny_model_write_folder(in_tmp("a"), &s), RK_OK);
        check_model(in_tmp("a.gguf"), &s, "F32");
        check_model(in_tmp("a"), &s, "F32");
        CU_ASSERT_EQUAL_FATAL(rk_weights_open(in_tmp("a.gguf"), &g), RK_OK);
        CU_ASSERT_EQUAL_FATAL(rk_weights_open(in_tmp("a"), &f), RK_OK);
        hash[i] = rk_config_shape_hash(rk_weights_config(g));
        CU_ASSERT_EQUAL(hash[i], rk_config_shape_hash(rk_weights_config(f)));
        CU_ASSERT_STRING_EQUAL(rk_weights_config(f)->arch, archs[i]);
        CU_ASSERT_STRING_EQUAL(rk_weights_config(f)->name, "a");
        CU_ASSERT_STRING_EQUAL(rk_weights_config(g)->name, "tiny random");
        CU_ASSERT(rk_weights_gguf(f) == NULL && rk_weights_gguf(g) != NULL);
        rk_weights_close(g);
        rk_weights_close(f);
    }
    CU_ASSERT(hash[2] != hash[0] && hash[3] != hash[1]);
}

static void test_directory(void) {
    rk_tiny_spec s = rk_tiny_default();
    rk_weights  *w;
    uint64_t     digest[64];
    CU_ASSERT_EQUAL_FATAL(rk_tiny_model_write_gguf(in_tmp("t.gguf"), &s), RK_OK);
    CU_ASSERT_EQUAL_FATAL(rk_weights_open(in_tmp("t.gguf"), &w), RK_OK);
    int n = rk_weights_count(w);
    CU_ASSERT_EQUAL_FATAL(n, 2 + 9 * s.n_layers);
    for (int i = 0; i < n; i++) {
        const rk_weights_entry *e = rk_weights_entry_at(w, i);
        if (i > 0) CU_ASSERT(strcmp(rk_weights_entry_at(w, i - 1)->name, e->name) < 0);
        CU_ASSERT_EQUAL(e->layer >= 0, e->role >= RK_W_ATTN_NORM);
        digest[i] = rk_weights_entry_hash(w, i);
        if (strcmp(e->name, "blk.2.ffn_up.weight") == 0) {
            CU_ASSERT(e->role == RK_W_UP && e->layer == 2 && e->rank == 2 && e->dim[0] == 96);
            float *x = read_all(w, RK_W_UP, 2); /* F32: stored as it is */
            CU_ASSERT_EQUAL(digest[i], rk_hash(x, (size_t)e->bytes));
            rk_mem_free(x);
        }
    }
    uint64_t all = rk_weights_combine(digest, n);
    CU_ASSERT_EQUAL(all, rk_hash(digest, (size_t)n * 8));
    digest[n - 1] ^= 1;
    CU_ASSERT_NOT_EQUAL(all, rk_weights_combine(digest, n));
    float x;
    CU_ASSERT_EQUAL(rk_weights_read(w, RK_W_HEAD, 0, 0, 1, &x), RK_E_BUG); /* tied: no head */
    CU_ASSERT_EQUAL(rk_weights_read(w, RK_W_Q, s.n_layers, 0, 1, &x), RK_E_BUG);
    CU_ASSERT_EQUAL(rk_weights_read(w, RK_W_Q, 0, 127, 2, &x), RK_E_BUG);
    CU_ASSERT_EQUAL(rk_weights_read(w, RK_W_Q, 0, -1, 1, &x), RK_E_BUG);
    CU_ASSERT_EQUAL(rk_weights_read(w, RK_W_Q, 0, 128, 0, &x), RK_OK);
    rk_weights_close(w);
}

/* ---- damaged models -------------------------------------------------------------------------- */

/* Refused as input in one line that holds the expected words; nothing kept. */
static void refused(const char *path, const char *expected) {
    rk_weights *w = NULL;
    int64_t     blocks = rk_mem_blocks();
    rk_status   st = rk_weights_open(path, &w);
    const char *text = rk_err_last()->text;
    CU_ASSERT_EQUAL(st, RK_E_INPUT);
    CU_ASSERT_EQUAL(rk_mem_blocks(), blocks);
    if (st != RK_E_INPUT || !strstr(text, expected) || strchr(text, '\n')) {
        fprintf(stderr, "expected \"%s\" in one line: %s\n", expected, text);
        CU_FAIL("message");
    }
    if (st == RK_OK) rk_weights_close(w);
}

/* What a patch does to the bytes after the first place of a name. */
typedef struct patch {
    const char *name;   /* a tensor or key as it stands in the file */
    const char *rename; /* of the same length; NULL */
    int         at;     /* bytes after the name's end */
    int         size;   /* of value; 0: none */
    uint64_t    value;
    const char *expected;
} patch;

static bool apply(uint8_t *p, int64_t n, const patch *x) {
    size_t   len = strlen(x->name);
    uint8_t *q = memmem(p, (size_t)n, x->name, len);
    if (!q) return false;
    if (x->rename) memcpy(q, x->rename, len);
    memcpy(q + len + x->at, &x->value, (size_t)x->size);
    return true;
}

/* After a key: u32 kind, value. After a tensor: u32 rank, u64 dims, u32 type, u64 offset. */
static const patch gguf_cases[] = {
    {"blk.1.ffn_up.weight", "blk.1.ffn_uq.weight", 0, 0, 0, "tensor blk.1.ffn_uq.weight is not"},
    {"blk.1.ffn_up.weight", "blk.9.ffn_up.weight", 0, 0, 0, "layer 9, but the model has 4"},
    {"blk.0.attn_norm.weight", "blk.00.ffn_down.weight", 0, 0, 0, "blk.00.ffn_down.weight is not"},
    {"blk.1.ffn_up.weight", "blk.0.ffn_up.weight", 0, 0, 0, "blk.0.ffn_up.weight stands twice"},
    {"token_embd.weight", "token_embx.weight", 0, 0, 0, "tensor token_embd.weight is missing"},
    {"output_norm.weight", "rope_freqs.weightx", 0, 0, 0, "rope_freqs.weightx is not part"},
    {"blk.2.attn_q.weight", NULL, 4, 8, 32, "blk.2.attn_q.weight has shape [128][32], expected"},
    {"blk.2.attn_q.weight", NULL, 12, 8, 64, "has shape [64][64], expected [128][64]"},
    {"token_embd.weight", NULL, 4, 8, 32, "token_embd.weight has shape [288][32]"},
    {"blk.0.ffn_norm.weight", NULL, 4, 8, 32, "ffn_norm.weight has shape [32], expected [64]"},
    {"blk.0.ffn_norm.weight", NULL, 12, 4, 10, "ffn_norm.weight is of type Q2_K"},
    {"general.architecture", "general.architecturf", 0, 0, 0, "general.architecture is missing"},
    {"llama.block_count", "llama.block_counu", 0, 0, 0, "key llama.block_count is missing"},
    {"llama.block_count", NULL, 4, 4, 0, "number of layers is 0"},
    {"llama.block_count", NULL, 4, 4, 5, "tensor blk.4.attn_norm.weight is missing"},
    {"llama.block_count", NULL, 4, 4, 3, "is of layer 3, but the model has 3"},
    {"llama.block_count", NULL, 4, 4, 4000000000u, "llama.block_count is 4000000000"},
    {"llama.block_count", NULL, 4, 4, 2000000000u, "number of layers is 2000000000"},
    {"llama.block_count", NULL, 0, 4, 5, ""},
    {"llama.block_count", NULL, 0, 4, 6, "llama.block_count is no integer"},
    {"llama.embedding_length", NULL, 4, 4, 48, "hidden size is 48, not a multiple of 32"},
    {"llama.embedding_length", NULL, 4, 4, 96, "has shape"},
    {"llama.attention.head_count_kv", NULL, 4, 4, 3, "no multiple of 3 key-value heads"},
    {"llama.attention.head_count_kv", NULL, 4, 4, 0, "key-value heads is 0"},
    {"llama.attention.key_length", NULL, 4, 4, 64, "keys of 64 values, values of 32"},
    {"llama.rope.freq_base", NULL, 0, 4, 4, ""}, /* an integer is a number */
    {"llama.rope.freq_base", NULL, 4, 4, 0x7fc00000u, "llama.rope.freq_base is no number"},
    {"llama.attention.layer_norm_rms_epsilon", NULL, 4, 4, 0, "RMS norm epsilon is 0"},
    {"tokenizer.ggml.eos_token_id", NULL, 4, 4, 288, "stop token id is 288"},
    {"tokenizer.ggml.eos_token_id", NULL, 4, 4, UINT32_MAX, "4294967295 is no token id"},
    {"tokenizer.ggml.bos_token_id", NULL, 4, 4, 288, "bos token id is 288"},
};

static void test_bad_gguf(void) {
    rk_tiny_spec s = rk_tiny_default();
    uint8_t     *p;
    int64_t      n;
    char         path[PATH_LEN];
    snprintf(path, sizeof path, "%s", in_tmp("bad.gguf"));
    for (size_t i = 0; i < sizeof gguf_cases / sizeof gguf_cases[0]; i++) {
        CU_ASSERT_EQUAL_FATAL(rk_tiny_model_gguf_bytes(&s, &p, &n), RK_OK);
        CU_ASSERT_FATAL(apply(p, n, &gguf_cases[i]));
        CU_ASSERT_EQUAL_FATAL(rk_tiny_write_file(path, p, n), RK_OK);
        rk_mem_free(p);
        if (gguf_cases[i].expected[0]) {
            refused(path, gguf_cases[i].expected);
            CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, path));
        } else {
            rk_weights *w;
            CU_ASSERT_EQUAL_FATAL(rk_weights_open(path, &w), RK_OK);
            rk_weights_close(w);
        }
    }
    s.arch = "phi3";
    CU_ASSERT_EQUAL_FATAL(rk_tiny_model_write_gguf(path, &s), RK_OK);
    refused(path, "architecture phi3 is not known; llama, qwen2 and qwen3 are");
    s.arch = "bad\narch";
    CU_ASSERT_EQUAL_FATAL(rk_tiny_model_write_gguf(path, &s), RK_OK);
    refused(path, "");
    refused(in_tmp("none.gguf"), "cannot open");
}

static void write_text(const char *folder, const char *name, const char *text) {
    char path[PATH_LEN];
    snprintf(path, sizeof path, "%.4000s/%s", folder, name);
    CU_ASSERT_EQUAL_FATAL(rk_tiny_write_file(path, text, (int64_t)strlen(text)), RK_OK);
}

static void remove_in(const char *folder, const char *name) {
    char path[PATH_LEN];
    snprintf(path, sizeof path, "%.4000s/%s", folder, name);
    CU_ASSERT_EQUAL(unlink(path), 0);
}

/* The tiny config with the line of key replaced (value NULL: removed), or added at the front. */
static void write_config(const char *folder, const rk_tiny_spec *s, const char *key,
                         const char *value) {
    char *text = rk_tiny_model_config_text(s), quoted[80], out[8192];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    char *line = strstr(text, quoted), *rest = line ? strchr(line, '\n') : text + 1;
    int   before = line ? (int)(line - text) : 1;
    CU_ASSERT_FATAL(rest != NULL && strlen(text) < 7000);
    const char *comma = line && rest[-1] != ',' ? "" : ","; /* none after the last */
    if (value)
        snprintf(out, sizeof out, "%.*s%s %s%s%s", before, text, quoted, value, comma, rest);
    else
        snprintf(out, sizeof out, "%.*s%s", before, text, rest);
    write_text(folder, "config.json", out);
    rk_mem_free(text);
}

/* A line of the tiny config changed; expected "": it opens. */
static const struct {
    const char *key, *value, *expected;
} config_cases[] = {
    {"model_type", NULL, "model_type is missing, expected a string"},
    {"model_type", "7", "model_type is an integer, expected a string"},
    {"model_type", "\"gpt_neox\"", "model_type gpt_neox is not known"},
    {"model_type", "\"bad\\nname\"", "model_type bad?name is not known"},
    {"hidden_size", NULL, "hidden_size is missing, expected an integer"},
    {"hidden_size", "\"64\"", "hidden_size is a string, expected an integer"},
    {"hidden_size", "64.5", "hidden_size is a number, expected an integer"},
    {"hidden_size", "48", "not a multiple of 32"},
    {"hidden_size", "-64", "hidden_size is -64"},
    {"hidden_size", "9000000000", "hidden_size is 9000000000, which is absurd"},
    {"hidden_size", "96", "has shape"},
    {"num_hidden_layers", NULL, "num_hidden_layers is missing"},
    {"num_hidden_layers", "[4]", "num_hidden_layers is an array"},
    {"num_hidden_layers", "5", "tensor model.layers.4.input_layernorm.weight is missing"},
    {"num_hidden_layers", "2", "but the model has 2 layers"},
    {"num_hidden_layers", "2000000000", "number of layers is 2000000000"},
    {"num_attention_heads", "0", "attention heads is 0"},
    {"num_key_value_heads", "3", "no multiple of 3 key-value heads"},
    {"num_key_value_heads", "4", "k_proj.weight has shape [64][64], expected [128][64]"},
    {"head_dim", "20", "head_dim is 20"},
    {"intermediate_size", "64", "has shape"},
    {"vocab_size", "300", "model.embed_tokens.weight has 288 rows, but vocab_size is 300"},
    {"vocab_size", NULL, ""},
    {"max_position_embeddings", "null", "max_position_embeddings is null"},
    {"rms_norm_eps", NULL, "rms_norm_eps is missing, expected a number"},
    {"rms_norm_eps", "true", "rms_norm_eps is a boolean"},
    {"rope_theta", "\"x\"", "rope_theta is a string"},
    {"rope_theta", NULL, ""},
    {"tie_word_embeddings", "1", "tie_word_embeddings is an integer, expected true or false"},
    {"tie_word_embeddings", "false", "tensor lm_head.weight is missing"},
    {"hidden_act", "\"gelu\"", "hidden_act \"gelu\" is not computed"},
    {"hidden_act", "3", "hidden_act \"\" is not computed"},
    {"attention_bias", "true", "attention_bias true is not computed"},
    {"mlp_bias", "true", "mlp_bias true is not computed"},
    {"mlp_bias", "false", ""},
    {"quantization_config", "{}", "quantised folders are not read"},
    {"partial_rotary_factor", "0.5", "partial_rotary_factor 0.5 is not computed"},
    {"eos_token_id", "\"x\"", "eos_token_id is a string"},
    {"eos_token_id", "[1, \"x\"]", "expected a list of integers"},
    {"bos_token_id", "288", "bos token id is 288"},
    {"rope_scaling", "4", "rope_scaling is an integer, expected an object"},
    {"rope_scaling", "{\"factor\": 4}", "rope_type is missing"},
    {"rope_scaling", "{\"type\": \"yarn\", \"factor\": 4}", "of type yarn is not computed"},
    {"rope_scaling", "{\"type\": \"dynamic\", \"factor\": 4}", "of type dynamic is not"},
    {"rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 8}", "low_freq_factor is missing"},
    {"rope_scaling", "{\"type\": \"linear\"}", "factor is missing"},
    {"rope_scaling", "{\"type\": \"linear\", \"factor\": 2}", ""},
    {"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 1e6}", ""},
    {"sliding_window", "4096", ""}, /* llama has none */
};

static void test_bad_config(void) {
    rk_tiny_spec s = rk_tiny_default();
    char         folder[PATH_LEN];
    snprintf(folder, sizeof folder, "%s", in_tmp("cfg"));
    CU_ASSERT_EQUAL_FATAL(rk_tiny_model_write_folder(folder, &s), RK_OK);
    for (size_t i = 0; i < sizeof config_cases / sizeof config_cases[0]; i++) {
        write_config(folder, &s, config_cases[i].key, config_cases[i].value);
        if (config_cases[i].expected[0]) {
            refused(folder, config_cases[i].expected);
        } else {
            rk_weights *w = NULL;
            rk_status   st = rk_weights_open(folder, &w);
            if (st != RK_OK) fprintf(stderr, "%s: %s\n", config_cases[i].key, rk_err_last()->text);
            CU_ASSERT_EQUAL(st, RK_OK);
            rk_weights_close(w);
        }
    }
    s.arch = "mistral";
    write_config(folder, &s, "sliding_window", "4096");
    refused(folder, "sliding_window 4096 within 32768 positions is active");
    s.arch = "qwen2";
    write_config(folder, &s, "num_key_value_heads", NULL);
    refused(folder, "num_key_value_heads is missing");
    write_config(folder, &s, "mlp_bias", "false");
    refused(folder, "self_attn.q_proj.bias is missing, expected with shape [128]");
    write_text(folder, "config.json", "{\"model_type\": ");
    refused(folder, "config.json: not valid JSON");
    write_text(folder, "config.json", "[]");
    refused(folder, "the file holds an array, expected an object");
    remove_in(folder, "config.json");
    refused(folder, "the folder has no config.json");
}

static void test_config_forms(void) {
    rk_tiny_spec s = rk_tiny_default();
    char         folder[PATH_LEN];
    rk_weights  *w;
    snprintf(folder, sizeof folder, "%s", in_tmp("forms"));
    CU_ASSERT_EQUAL_FATAL(rk_tiny_model_write_folder(folder, &s), RK_OK);
    write_config(folder, &s, "rope_scaling",
                 "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
                 "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}");
    write_text(folder, "generation_config.json", "{\"eos_token_id\": 7}");
    write_text(folder, "tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"tool\", \"template\": \"T\"}, "
               "{\"name\": \"default\", \"template\": \"D\"}]}");
    CU_ASSERT_EQUAL_FATAL(rk_weights_open(folder, &w), RK_OK);
    const rk_config *c = rk_weights_config(w);
    CU_ASSERT(c->rope_scaling == RK_ROPE_LLAMA3 && c->rope_factor == 8);
    CU_ASSERT(c->rope_low_freq == 1 && c->rope_high_freq == 4 &&
              c->rope_original_positions == 8192);
    CU_ASSERT(c->n_stop == 2 && c->stop[0] == RK_TINY_IM_END && c->stop[1] == 7);
    CU_ASSERT_STRING_EQUAL(rk_weights_chat_template(w), "D");
    rk_weights_close(w);
    write_text(folder, "chat_template.jinja", "J\n");
    remove_in(folder, "generation_config.json");
    CU_ASSERT_EQUAL_FATAL(rk_weights_open(folder, &w), RK_OK);
    CU_ASSERT_EQUAL(rk_weights_config(w)->n_stop, 1);
    CU_ASSERT_STRING_EQUAL(rk_weights_chat_template(w), "J\n");
    rk_weights_close(w);
    remove_in(folder, "chat_template.jinja");
    remove_in(folder, "tokenizer_config.json");
    CU_ASSERT_EQUAL_FATAL(rk_weights_open(folder, &w), RK_OK);
    CU_ASSERT_PTR_NULL(rk_weights_chat_template(w));
    rk_weights_close(w);
}

static const struct {
    const char *find, *put, *expected;
} safetensors_cases[] = {
    {"layers.1.mlp.up_proj", "layers.1.mlp.uq_proj", "layers.1.mlp.uq_proj.weight is not part"},
    {"layers.1.mlp.up_proj", "layers.9.mlp.up_proj", "is of layer 9, but"},
    {"layers.1.mlp.up_proj", "layers.1.mlp.do\\nwn", "is not a printable tensor name"},
    {"layers.1.mlp.up_proj", "layers.0.mlp.up_proj", "not valid JSON"},
    {"model.norm.weight", "model.nurm.weight", "model.nurm.weight is not part"},
    {"model.embed_tokens", "mOdel.embed_tokens", "model.embed_tokens.weight is missing"},
    {"\"shape\": [288, 64]", "\"shape\": [64, 288]", "has 64 rows, but vocab_size is 288"},
    {"\"shape\": [288, 64]", "\"shape\": [288, -4]", "absurd dimension"},
    {"\"shape\": [288, 64]", "\"shape\": \"288\"", "shape is no list"},
    {"\"shape\": [288, 64]", "\"shape\": [28,0.4]", "absurd dimension"},
    {"\"shape\": [288, 64]", "\"shape\": [289, 64]", "bytes do not hold its shape in F32"},
    {"\"dtype\": \"F32\"", "\"dtype\": \"I32\"", "is of dtype I32; F32, F16 and BF16"},
    {"\"dtype\": \"F32\"", "\"dtipe\": \"F32\"", "dtype is absent, expected a string"},
    {"\"data_offsets\": [0, 73728]", "\"data_offsets\": [0, 73729]", "bytes do not hold"},
    {"\"data_offsets\": [0, 73728]", "\"data_offsets\": [9,7372]", "bytes do not hold"},
    {"\"data_offsets\": [0, 73728]", "\"data_offsets\": [73728, 0]", "data_offsets is no [begin"},
    {"\"data_offsets\": [0, 73728]", "\"data_offsets\": [-9, 7372]", "data_offsets is no [begin"},
    {"\"data_offsets\": [0, 73728]", "\"data_offsets\": {\"0\": 7}", "data_offsets is no [begin"},
    {"\"data_offsets\": [0, 73728]", "\"data_offset_\": [0, 73728]", "data_offsets is no [begin"},
    {"{\"__metadata__\"", "x\"__metadata__\"", "not valid JSON"},
    {"{\"__metadata__\": {\"format\": \"pt\"}", "{\"__metadatb__\": {\"format\": \"pt\"}",
     "tensor __metadatb__: dtype is absent"},
};

/* A safetensors file of the tiny folder with the first place of find replaced, lengths equal. */
static void test_bad_safetensors(void) {
    rk_tiny_spec s = rk_tiny_default();
    char         folder[PATH_LEN], file[PATH_LEN];
    uint8_t     *p;
    int64_t      n;
    snprintf(folder, sizeof folder, "%s", in_tmp("st"));
    CU_ASSERT_EQUAL_FATAL(rk_tiny_model_write_folder(folder, &s), RK_OK);
    snprintf(file, sizeof file, "%.4000s/model.safetensors", folder);
    CU_ASSERT_EQUAL_FATAL(rk_tiny_model_safetensors_bytes(&s, &p, &n), RK_OK);
    for (size_t i = 0; i < sizeof safetensors_cases / sizeof safetensors_cases[0]; i++) {
        size_t   len = strlen(safetensors_cases[i].find);
        uint8_t *q = memmem(p, (size_t)n, safetensors_cases[i].find, len);
        CU_ASSERT_PTR_NOT_NULL_FATAL(q);
        size_t put = strlen(safetensors_cases[i].put);
        CU_ASSERT_FATAL(put <= len);
        memcpy(q, safetensors_cases[i].put, put);
        memset(q + put, ' ', len - put);
        CU_ASSERT_EQUAL_FATAL(rk_tiny_write_file(file, p, n), RK_OK);
        refused(folder, safetensors_cases[i].expected);
        memcpy(q, safetensors_cases[i].find, len);
    }
    rk_mem_free(p);
}

/* A header's length that is not the file's, and files cut anywhere. */
static void test_cut_safetensors(void) {
    static const uint64_t lengths[] = {UINT64_MAX, 1ull << 63, 1ull << 40, 200000000};
    rk_tiny_spec          s = rk_tiny_default();
    char                  folder[PATH_LEN], file[PATH_LEN];
    uint8_t              *p;
    int64_t               n;
    snprintf(folder, sizeof folder, "%s", in_tmp("cut"));
    CU_ASSERT_EQUAL_FATAL(rk_tiny_model_write_folder(folder, &s), RK_OK);
    snprintf(file, sizeof file, "%.4000s/model.safetensors", folder);
    CU_ASSERT_EQUAL_FATAL(rk_tiny_model_safetensors_bytes(&s, &p, &n), RK_OK);
    for (size_t i = 0; i < 4; i++) {
        uint64_t own;
        memcpy(&own, p, 8);
        memcpy(p, &lengths[i], 8);
        CU_ASSERT_EQUAL_FATAL(rk_tiny_write_file(file, p, n), RK_OK);
        refused(folder, "a header of");
        memcpy(p, &own, 8);
    }
    for (int64_t cut = 0; cut < n; cut += cut < 64 ? 1 : n / 61 + 1) {
        CU_ASSERT_EQUAL_FATAL(rk_tiny_write_file(file, p, cut), RK_OK);
        refused(folder, "model.safetensors");
    }
    CU_ASSERT_EQUAL_FATAL(rk_tiny_write_file(file, p, n - 1), RK_OK);
    refused(folder, "truncated");
    rk_mem_free(p);
    CU_ASSERT_EQUAL(unlink(file), 0);
    refused(folder, "neither model.safetensors nor its index");
    write_text(folder, "model.safetensors.index.json", "{\"weight_map\": {\"a\": \"../b\"}}");
    refused(folder, "a is not mapped to a file of the folder");
    write_text(folder, "model.safetensors.index.json", "{\"weight_map\": {\"a\": \"gone.st\"}}");
    refused(folder, "gone.st: cannot open");
    write_text(folder, "model.safetensors.index.json", "{\"weight_map\": 3}");
    refused(folder, "weight_map is an integer");
    write_text(folder, "model.safetensors.index.json", "{\"weight_map\": {}}");
    refused(folder, "holds no tensors");
}

/* A stray tensor table and a second copy of a tied head are what some folders hold too. */
static void test_redundant(void) {
    rk_tiny_spec tied = rk_tiny_default(), untied = tied;
    char         folder[PATH_LEN];
    rk_weights  *w;
    snprintf(folder, sizeof folder, "%s", in_tmp("twice"));
    untied.tied = false;
    CU_ASSERT_EQUAL_FATAL(rk_tiny_model_write_folder(folder, &untied), RK_OK);
    write_config(folder, &tied, "mlp_bias", "false");
    CU_ASSERT_EQUAL_FATAL(rk_weights_open(folder, &w), RK_OK);
    CU_ASSERT(rk_weights_config(w)->tied && !rk_weights_has(w, RK_W_HEAD, 0));
    CU_ASSERT_EQUAL(rk_weights_count(w), 2 + 9 * tied.n_layers);
    rk_weights_close(w);
}

static void test_truncated_gguf(void) {
    rk_tiny_spec s = rk_tiny_default();
    uint8_t     *p;
    int64_t      n;
    char         path[PATH_LEN];
    snprintf(path, sizeof path, "%s", in_tmp("cut.gguf"));
    s.type = RK_GGML_Q4_0;
    s.n_layers = 1;
    CU_ASSERT_EQUAL_FATAL(rk_tiny_model_gguf_bytes(&s, &p, &n), RK_OK);
    for (int64_t cut = 0; cut < n; cut += cut < 64 ? 1 : 97) {
        CU_ASSERT_EQUAL_FATAL(rk_tiny_write_file(path, p, cut), RK_OK);
        refused(path, path);
    }
    CU_ASSERT_EQUAL_FATAL(rk_tiny_write_file(path, p, n - 1), RK_OK);
    refused(path, "truncated");
    rk_mem_free(p);
}

/* Change bytes of a model's head in place, open, put them back. */
static void fuzz(const char *model, const char *file, int64_t head, int rounds) {
    uint32_t seed = 99;
    int      fd = open(file, O_RDWR), failed = 0;
    int64_t  blocks = rk_mem_blocks();
    CU_ASSERT_FATAL(fd >= 0);
    for (int i = 0; i < rounds; i++) {
        uint8_t     old[3], one;
        off_t       at[3];
        int         n = 1 + i % 3;
        rk_weights *w = NULL;
        for (int k = 0; k < n; k++) {
            seed = seed * 1664525u + 1013904223u;
            at[k] = (seed >> 4) % (uint32_t)head;
            CU_ASSERT_EQUAL_FATAL(pread(fd, &old[k], 1, at[k]), 1);
            one = (uint8_t)(i & 1 ? old[k] ^ (1u << (seed >> 29)) : seed >> 24);
            CU_ASSERT_EQUAL_FATAL(pwrite(fd, &one, 1, at[k]), 1);
        }
        rk_status st = rk_weights_open(model, &w);
        if (st == RK_OK) {
            float *x = read_all(w, RK_W_Q, 0);
            rk_mem_free(x);
            rk_weights_close(w);
        } else {
            failed++;
            CU_ASSERT_EQUAL(st, RK_E_INPUT);
            if (strchr(rk_err_last()->text, '\n')) CU_FAIL("more than a line");
        }
        for (int k = n - 1; k >= 0; k--) CU_ASSERT_EQUAL_FATAL(pwrite(fd, &old[k], 1, at[k]), 1);
    }
    close(fd);
    CU_ASSERT(failed > rounds / 10);
    CU_ASSERT_EQUAL(rk_mem_blocks(), blocks);
}

static void test_fuzz(void) {
    rk_tiny_spec s = {"llama", 1, 32, 2, 1, 32, 32, RK_GGML_F16, true, 5};
    char         folder[PATH_LEN], file[PATH_LEN];
    uint8_t     *p;
    int64_t      n;
    CU_ASSERT_EQUAL_FATAL(rk_tiny_model_gguf_bytes(&s, &p, &n), RK_OK);
    const uint8_t *last = memmem(p, (size_t)n, "blk.0.ffn_down.weight", 21);
    CU_ASSERT_PTR_NOT_NULL_FATAL(last);
    int64_t head = last - p + 64;
    snprintf(file, sizeof file, "%s", in_tmp("fuzz.gguf"));
    CU_ASSERT_EQUAL_FATAL(rk_tiny_write_file(file, p, n), RK_OK);
    rk_mem_free(p);
    fuzz(file, file, head, 2000);
    snprintf(folder, sizeof folder, "%s", in_tmp("fuzz"));
    CU_ASSERT_EQUAL_FATAL(rk_tiny_model_write_folder(folder, &s), RK_OK);
    snprintf(file, sizeof file, "%.4000s/model.safetensors", folder);
    fuzz(folder, file, 900, 1500);
    snprintf(file, sizeof file, "%.4000s/config.json", folder);
    fuzz(folder, file, 300, 1000);
}

static void test_out_of_memory(void) {
    static const char *const names[] = {"m.gguf", "m"};
    rk_tiny_spec             s = {"llama", 1, 32, 2, 1, 32, 32, RK_GGML_F16, true, 5};
    rk_weights              *w;
    CU_ASSERT_EQUAL_FATAL(rk_tiny_model_write_gguf(in_tmp(names[0]), &s), RK_OK);
    CU_ASSERT_EQUAL_FATAL(rk_tiny_model_write_folder(in_tmp(names[1]), &s), RK_OK);
    int64_t blocks = rk_mem_blocks();
    for (int i = 0; i < 2; i++) {
        rk_status st = RK_E_MEM;
        for (int64_t n = 1; st != RK_OK && n < 1000; n++) {
            rk_mem_fail_at(n);
            st = rk_weights_open(in_tmp(names[i]), &w);
            rk_mem_fail_at(0);
            if (st != RK_OK) CU_ASSERT_EQUAL(st, RK_E_MEM);
            if (st == RK_OK) rk_weights_close(w);
            CU_ASSERT_EQUAL(rk_mem_blocks(), blocks);
        }
        CU_ASSERT_EQUAL(st, RK_OK);
    }
}

/* ---- goldens --------------------------------------------------------------------------------- */

/* Every tensor of both models, bit for bit. */
static void compare(rk_weights *a, rk_weights *b) {
    for (rk_role r = 0; r < RK_W_ROLES; r++)
        for (int l = 0; l < layers_of(a, r); l++) {
            int rows, cols;
            CU_ASSERT_EQUAL(rk_weights_has(a, r, l), rk_weights_has(b, r, l));
            if (!rk_weights_has(a, r, l) || !rk_weights_has(b, r, l)) continue;
            rk_weights_shape(a, r, &rows, &cols);
            float *x = read_all(a, r, l), *y = read_all(b, r, l);
            CU_ASSERT(memcmp(x, y, (size_t)rows * (size_t)cols * sizeof *x) == 0);
            rk_mem_free(x);
            rk_mem_free(y);
        }
}

/* Folder against every .gguf in it, and the shards. Returns the number of comparisons. */
static int check_family(const char *folder) {
    char           path[2 * PATH_LEN];
    rk_weights    *f, *g;
    struct dirent *e;
    int            n = 0;
    snprintf(path, sizeof path, "%s/config.json", folder);
    if (access(path, R_OK) != 0) return 0;
    CU_ASSERT_EQUAL_FATAL(rk_weights_open(folder, &f), RK_OK);
    uint64_t hash = rk_config_shape_hash(rk_weights_config(f));
    DIR     *d = opendir(folder);
    while (d && (e = readdir(d))) {
        size_t len = strlen(e->d_name);
        bool   shards = strcmp(e->d_name, "sharded") == 0;
        if (!shards && (len < 5 || strcmp(e->d_name + len - 5, ".gguf") != 0)) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        rk_status st = rk_weights_open(path, &g);
        if (st != RK_OK) fprintf(stderr, "%s\n", rk_err_last()->text);
        CU_ASSERT_EQUAL_FATAL(st, RK_OK);
        CU_ASSERT_EQUAL(rk_config_shape_hash(rk_weights_config(g)), hash);
        CU_ASSERT_EQUAL(rk_weights_config(g)->stop[0], rk_weights_config(f)->stop[0]);
        CU_ASSERT_EQUAL(rk_weights_config(g)->bos, rk_weights_config(f)->bos);
        if (!shards) compare(f, g); /* the shards are rounded to bf16 */
        rk_weights_close(g);
        n++;
    }
    closedir(d);
    rk_weights_close(f);
    return n;
}

static void test_goldens(void) {
    const char    *root = rk_test_goldens();
    char           path[PATH_LEN];
    struct dirent *e;
    int            n = 0;
    if (!root) {
        rk_test_skip("no goldens");
        return;
    }
    DIR *d = opendir(root);
    CU_ASSERT_PTR_NOT_NULL_FATAL(d);
    while ((e = readdir(d))) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%.4000s/%s", root, e->d_name);
        n += check_family(path);
    }
    closedir(d);
    if (n == 0) rk_test_skip("no model families among the goldens");
}

/* The model of RIPPLEKV_MODEL opens, and its values are finite. */
static void test_real_model(void) {
    const char *path = rk_test_model();
    rk_weights *w;
    int64_t     bad = 0;
    if (!path) {
        rk_test_skip("RIPPLEKV_MODEL is not set");
        return;
    }
    CU_ASSERT_EQUAL_FATAL(rk_weights_open(path, &w), RK_OK);
    int last = rk_weights_config(w)->n_layers - 1;
    for (rk_role r = 0; r < RK_W_ROLES; r++) {
        int rows, cols;
        if (!rk_weights_has(w, r, last)) continue;
        rk_weights_shape(w, r, &rows, &cols);
        float *x = read_all(w, r, last);
        for (int64_t i = 0; i < (int64_t)rows * cols; i++) bad += !isfinite(x[i]);
        rk_mem_free(x);
    }
    CU_ASSERT_EQUAL(bad, 0);
    rk_weights_close(w);
}

int rk_suite_weights(void) {
    CU_pSuite s = CU_add_suite("weights", NULL, NULL);
    if (s == NULL) return 1;
    CU_ADD_TEST(s, test_types);
    CU_ADD_TEST(s, test_families);
    CU_ADD_TEST(s, test_directory);
    CU_ADD_TEST(s, test_bad_gguf);
    CU_ADD_TEST(s, test_bad_config);
    CU_ADD_TEST(s, test_config_forms);
    CU_ADD_TEST(s, test_bad_safetensors);
    CU_ADD_TEST(s, test_cut_safetensors);
    CU_ADD_TEST(s, test_redundant);
    CU_ADD_TEST(s, test_truncated_gguf);
    CU_ADD_TEST(s, test_fuzz);
    CU_ADD_TEST(s, test_out_of_memory);
    CU_ADD_TEST(s, test_goldens);
    CU_ADD_TEST(s, test_real_model);
    return 0;
}
