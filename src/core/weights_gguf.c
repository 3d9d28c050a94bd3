/* weights_gguf.c - config and tensor directory of a GGUF model.
 *
 * Keys: the GGUF specification, general.*, ARCH.*, tokenizer.*. */
#include <limits.h>
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "core/weights_internal.h"

enum { CONTROL_TOKEN = 3 }; /* of tokenizer.ggml.token_type */

/* Tokens that end a turn or a text, whichever family's; they count where the file calls them
 * control tokens. */
static const char *const enders[] = {
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>",    "<|end_of_text|>",
    "<|eom_id|>", "<|end|>",       "<end_of_turn>", "<|end_of_turn|>",
};

/* ARCH.KEY */
typedef struct full_key {
    char text[128];
} full_key;
static full_key key_of(const rk_weights *w, const char *key) {
    full_key k;
    snprintf(k.text, sizeof k.text, "%s.%s", w->config.arch, key);
    return k;
}

static const int64_t NO_DEFAULT = INT64_MIN;

static rk_status take_int(const rk_weights *w, const char *key, int64_t dflt, int64_t *out) {
    full_key k = key_of(w, key);
    *out = rk_gguf_int(w->gguf, k.text, dflt);
    if (*out == NO_DEFAULT && !rk_gguf_has(w->gguf, k.text))
        return RK_FAIL(RK_E_INPUT, "%s: key %s is missing", w->path, k.text);
    if (rk_gguf_has(w->gguf, k.text) && rk_gguf_int(w->gguf, k.text, -1) < 0)
        return RK_FAIL(RK_E_INPUT, "%s: key %s is no integer from 0", w->path, k.text);
    return RK_OK;
}

static rk_status take_int32(const rk_weights *w, const char *key, int64_t dflt, int *out) {
    int64_t v = 0;
    *out = 0;
    RK_TRY(take_int(w, key, dflt, &v));
    if (v > INT_MAX)
        return RK_FAIL(RK_E_INPUT, "%s: key %s is %lld, which is absurd", w->path,
                       key_of(w, key).text, (long long)v);
    *out = (int)v;
    return RK_OK;
}

/* dflt NaN: the key must be there. */
static rk_status take_num(const rk_weights *w, const char *key, double dflt, double *out) {
    full_key k = key_of(w, key);
    *out = rk_gguf_num(w->gguf, k.text, NAN);
    if (!rk_gguf_has(w->gguf, k.text)) *out = dflt;
    if (!isfinite(*out))
        return RK_FAIL(RK_E_INPUT, "%s: key %s is %s", w->path, k.text,
                       rk_gguf_has(w->gguf, k.text) ? "no number" : "missing");
    return RK_OK;
}

static rk_status take_arch(rk_weights *w) {
    static const char *const known[] = {"llama", "qwen2", "qwen3"};
    const char              *arch = rk_gguf_str(w->gguf, "general.architecture", NULL);
    char                     shown[RK_SHOWN];
    if (!arch) return RK_FAIL(RK_E_INPUT, "%s: key general.architecture is missing", w->path);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(arch, known[i]) == 0) {
            snprintf(w->config.arch, sizeof w->config.arch, "%s", arch);
            return RK_OK;
        }
    return RK_FAIL(RK_E_INPUT, "%s: architecture %s is not known; llama, qwen2 and qwen3 are",
                   w->path, rk_infile_shown(arch, shown));
}

static rk_status take_sizes(rk_weights *w) {
    rk_config *c = &w->config;
    int        key_length, value_length, rope_dims, experts;
    RK_TRY(take_int32(w, "block_count", NO_DEFAULT, &c->n_layers));
    RK_TRY(take_int32(w, "embedding_length", NO_DEFAULT, &c->d_model));
    RK_TRY(take_int32(w, "feed_forward_length", NO_DEFAULT, &c->d_ffn));
    RK_TRY(take_int32(w, "attention.head_count", NO_DEFAULT, &c->n_heads));
    RK_TRY(take_int32(w, "attention.head_count_kv", c->n_heads, &c->n_kv_heads));
    RK_TRY(take_int(w, "context_length", NO_DEFAULT, &c->max_positions));
    RK_TRY(take_int32(w, "attention.key_length", c->n_heads > 0 ? c->d_model / c->n_heads : 0,
                      &key_length));
    RK_TRY(take_int32(w, "attention.value_length", key_length, &value_length));
    RK_TRY(take_int32(w, "rope.dimension_count", key_length, &rope_dims));
    RK_TRY(take_int32(w, "expert_count", 0, &experts));
    if (value_length != key_length || rope_dims != key_length)
        return RK_FAIL(RK_E_INPUT,
                       "%s: keys of %d values, values of %d, rotation of %d: three equal sizes are "
                       "computed",
                       w->path, key_length, value_length, rope_dims);
    if (experts > 0)
        return RK_FAIL(RK_E_INPUT, "%s: a mixture of %d experts is not computed", w->path, experts);
    c->head_dim = key_length;
    RK_TRY(take_num(w, "attention.layer_norm_rms_epsilon", NAN, &c->rms_eps));
    return take_num(w, "rope.freq_base", 10000.0, &c->rope_theta);
}

static rk_status check_window(const rk_weights *w) {
    int64_t window;
    RK_TRY(take_int(w, "attention.sliding_window", 0, &window));
    if (window > 0 && window < w->config.max_positions)
        return RK_FAIL(RK_E_INPUT,
                       "%s: a sliding window of %lld within %lld positions is active, which is not "
                       "computed",
                       w->path, (long long)window, (long long)w->config.max_positions);
    return RK_OK;
}

/* Scaling of the rotation: linear by keys, llama3 by its table of factors. */
static rk_status take_rope_scaling(rk_weights *w) {
    rk_config            *c = &w->config;
    full_key              k = key_of(w, "rope.scaling.type");
    const char           *type = rk_gguf_str(w->gguf, k.text, "none");
    const rk_gguf_tensor *table = rk_gguf_find(w->gguf, "rope_freqs.weight");
    char                  shown[RK_SHOWN];
    double                old_linear;
    RK_TRY(take_num(w, "rope.scale_linear", 1.0, &old_linear));
    if (strcmp(type, "linear") == 0) {
        RK_TRY(take_num(w, "rope.scaling.factor", NAN, &c->rope_factor));
        c->rope_scaling = RK_ROPE_LINEAR;
    } else if (strcmp(type, "none") != 0) {
        return RK_FAIL(RK_E_INPUT, "%s: %s \"%s\" is not computed; linear and llama3 are", w->path,
                       k.text, rk_infile_shown(type, shown));
    } else if (old_linear != 1.0) {
        c->rope_factor = old_linear;
        c->rope_scaling = RK_ROPE_LINEAR;
    }
    if (!table) return RK_OK;
    if (c->rope_scaling != RK_ROPE_PLAIN)
        return RK_FAIL(RK_E_INPUT,
                       "%s: rope_freqs.weight and linear scaling together are not "
                       "computed",
                       w->path);
    if (table->type != RK_GGML_F32 || table->rank != 1 || table->dim[0] != c->head_dim / 2)
        return RK_FAIL(RK_E_INPUT, "%s: tensor rope_freqs.weight is not F32 of shape [%d]", w->path,
                       c->head_dim / 2);
    if (c->head_dim < 2 || !(c->rope_theta > 1.0)) return RK_OK; /* rk_config_check names it */
    void *copy;
    RK_TRY(rk_mem_alloc(table->dim[0], sizeof(float), "rope factors", &copy));
    memcpy(copy, table->data, (size_t)table->bytes);
    rk_status st = rk_config_fit_rope(c, copy, w->path);
    rk_mem_free(copy);
    return st;
}

static rk_status take_stops(rk_weights *w) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    const rk_gguf           *g = w->gguf;
    const char              *tokens = "tokenizer.ggml.tokens", *types = "tokenizer.ggml.token_type";
    int64_t                  bos = rk_gguf_int(g, "tokenizer.ggml.bos_token_id", -1);
    w->config.bos = bos > INT32_MAX ? INT32_MAX : (int32_t)(bos < 0 ? -1 : bos);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (rk_gguf_has(g, keys[i]))
            RK_TRY(rk_config_add_stop(&w->config, rk_gguf_int(g, keys[i], -1), w->path));
    for (int64_t i = 0; i < rk_gguf_arr_len(g, tokens); i++) {
        const char *t = rk_gguf_arr_str(g, tokens, i, NULL);
        if (!t || t[0] != '<' || rk_gguf_arr_int(g, types, i, 0) != CONTROL_TOKEN) continue;
        for (size_t j = 0; j < sizeof enders / sizeof enders[0]; j++)
            if (strcmp(t, enders[j]) == 0) RK_TRY(rk_config_add_stop(&w->config, i, w->path));
    }
    return RK_OK;
}

/* general.name, else the file's name without its ending; cut at a character's border. */
static void take_name(rk_weights *w) {
    const char *slash = strrchr(w->path, '/'), *stem = slash ? slash + 1 : w->path;
    const char *given = rk_gguf_str(w->gguf, "general.name", NULL), *name = given ? given : stem;
    const char *dot = given ? NULL : strrchr(name, '.');
    size_t      n = dot ? (size_t)(dot - name) : strlen(name);
    if (n >= RK_NAME_LEN)
        for (n = RK_NAME_LEN - 1; n > 0 && (name[n] & 0xc0) == 0x80;) n--;
    for (size_t i = 0; i < n; i++)
        w->config.name[i] = name[i] >= 0 && name[i] < 0x20 ? ' ' : name[i]; /* one line to print */
    w->config.name[n] = 0;
}

static rk_status add_tensors(rk_weights *w) {
    for (int i = 0; i < rk_gguf_n_tensors(w->gguf); i++) {
        const rk_gguf_tensor *t = rk_gguf_tensor_at(w->gguf, i);
        rk_stored             s = {.type = t->type, .data = t->data};
        s.entry = (rk_weights_entry){.name = t->name,
                                     .dtype = rk_ggml_type_name(t->type),
                                     .role = RK_W_ROLES,
                                     .layer = -1,
                                     .rank = t->rank,
                                     .bytes = t->bytes};
        if (strcmp(t->name, "rope_freqs.weight") == 0) continue; /* part of the config */
        memcpy(s.entry.dim, t->dim, sizeof s.entry.dim);
        RK_TRY(rk_weights_add_stored(w, &s));
    }
    return RK_OK;
}

rk_status rk_weights_load_gguf(rk_weights *w) {
    rk_config *c = &w->config;
    RK_TRY(rk_gguf_open(w->path, &w->gguf));
    RK_TRY(take_arch(w));
    RK_TRY(take_sizes(w));
    RK_TRY(check_window(w));
    RK_TRY(take_rope_scaling(w));
    RK_TRY(take_stops(w));
    take_name(w);
    c->tied = !rk_gguf_find(w->gguf, "output.weight");
    c->qkv_bias = strcmp(c->arch, "qwen2") == 0;
    c->qk_norm = strcmp(c->arch, "qwen3") == 0;
    w->interleaved = strcmp(c->arch, "llama") == 0;
    const char *text = rk_gguf_str(w->gguf, "tokenizer.chat_template", NULL);
    if (text) RK_TRY(rk_mem_strdup(text, &w->chat_template));
    return add_tensors(w);
}
