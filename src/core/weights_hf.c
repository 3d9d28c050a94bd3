/* weights_hf.c - config.json, generation_config.json and chat template of a Hugging Face folder.
 *
 * Defaults for absent keys are those of the transformers configuration classes. A key that asks for
 * something that is not computed is refused, so that no model runs wrongly in silence. */
#define _GNU_SOURCE /* realpath */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "core/weights_internal.h"

/* A JSON object and the file it came from. */
typedef struct source {
    const rk_json *object;
    const char    *path;
} source;

enum { REQUIRED = -1 };
enum { QWEN3_HEAD_DIM = 128 };

static bool present(const source *s, const char *key) {
    return rk_json_kind_of(rk_json_get(s->object, key)) > RK_JSON_NULL;
}

static rk_status wrong_kind(const source *s, const char *key, const char *expected) {
    const rk_json *j = rk_json_get(s->object, key);
    if (rk_json_kind_of(j) == RK_JSON_NONE)
        return RK_FAIL(RK_E_INPUT, "%s: %s is missing, expected %s", s->path, key, expected);
    return RK_FAIL(RK_E_INPUT, "%s: %s is %s, expected %s", s->path, key, rk_json_kind_name(j),
                   expected);
}

/* An integer from 0; null counts as absent. */
static rk_status take_int(const source *s, const char *key, int64_t dflt, int64_t *out) {
    const rk_json *j = rk_json_get(s->object, key);
    *out = dflt;
    if (!present(s, key)) return dflt == REQUIRED ? wrong_kind(s, key, "an integer") : RK_OK;
    if (rk_json_kind_of(j) != RK_JSON_INT) return wrong_kind(s, key, "an integer");
    *out = rk_json_int(j, 0);
    if (*out < 0)
        return RK_FAIL(RK_E_INPUT, "%s: %s is %lld, expected an integer from 0", s->path, key,
                       (long long)*out);
    return RK_OK;
}

static rk_status take_int32(const source *s, const char *key, int64_t dflt, int *out) {
    int64_t v = 0;
    *out = 0;
    RK_TRY(take_int(s, key, dflt, &v));
    if (v > INT_MAX)
        return RK_FAIL(RK_E_INPUT, "%s: %s is %lld, which is absurd", s->path, key, (long long)v);
    *out = (int)v;
    return RK_OK;
}

/* dflt NaN: required. */
static rk_status take_num(const source *s, const char *key, double dflt, double *out) {
    const rk_json *j = rk_json_get(s->object, key);
    *out = dflt;
    if (!present(s, key)) return isnan(dflt) ? wrong_kind(s, key, "a number") : RK_OK;
    *out = rk_json_num(j, NAN);
    return isnan(*out) ? wrong_kind(s, key, "a number") : RK_OK;
}

static rk_status take_bool(const source *s, const char *key, bool dflt, bool *out) {
    const rk_json *j = rk_json_get(s->object, key);
    *out = rk_json_bool(j, dflt);
    if (present(s, key) && rk_json_kind_of(j) != RK_JSON_BOOL)
        return wrong_kind(s, key, "true or false");
    return RK_OK;
}

static rk_status take_arch(rk_config *c, const source *s) {
    static const char *const known[] = {"llama", "mistral", "qwen2", "qwen3"};
    const char              *type = rk_json_str(rk_json_get(s->object, "model_type"), NULL);
    char                     shown[RK_SHOWN];
    if (!type) return wrong_kind(s, "model_type", "a string");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(type, known[i]) == 0) {
            snprintf(c->arch, sizeof c->arch, "%s", type);
            c->qkv_bias = strcmp(type, "qwen2") == 0;
            c->qk_norm = strcmp(type, "qwen3") == 0;
            return RK_OK;
        }
    return RK_FAIL(RK_E_INPUT,
                   "%s: model_type %s is not known; llama, mistral, qwen2 and qwen3 are", s->path,
                   rk_infile_shown(type, shown));
}

static rk_status take_sizes(rk_config *c, const source *s) {
    bool llama = strcmp(c->arch, "llama") == 0;
    RK_TRY(take_int32(s, "num_hidden_layers", REQUIRED, &c->n_layers));
    RK_TRY(take_int32(s, "hidden_size", REQUIRED, &c->d_model));
    RK_TRY(take_int32(s, "intermediate_size", REQUIRED, &c->d_ffn));
    RK_TRY(take_int32(s, "num_attention_heads", REQUIRED, &c->n_heads));
    RK_TRY(take_int32(s, "num_key_value_heads", llama ? c->n_heads : REQUIRED, &c->n_kv_heads));
    int64_t usual = c->n_heads > 0 ? c->d_model / c->n_heads : 0;
    if (c->qk_norm) usual = QWEN3_HEAD_DIM;
    RK_TRY(take_int32(s, "head_dim", usual, &c->head_dim));
    RK_TRY(take_int32(s, "vocab_size", 0, &c->n_vocab));
    RK_TRY(take_int(s, "max_position_embeddings", REQUIRED, &c->max_positions));
    RK_TRY(take_num(s, "rms_norm_eps", NAN, &c->rms_eps));
    return take_bool(s, "tie_word_embeddings", false, &c->tied);
}

/* rope_scaling, or rope_parameters of newer writers, which also holds rope_theta. */
static rk_status take_rope(rk_config *c, const source *s) {
    const char    *key = present(s, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    const rk_json *j = rk_json_get(s->object, key);
    char           shown[RK_SHOWN];
    double         theta = 10000.0;
    source         r = {j, s->path};
    if (present(s, key) && rk_json_kind_of(j) != RK_JSON_OBJECT)
        return wrong_kind(s, key, "an object or null");
    if (!present(s, key)) return take_num(s, "rope_theta", theta, &c->rope_theta);
    RK_TRY(take_num(&r, "rope_theta", theta, &theta));
    RK_TRY(take_num(s, "rope_theta", theta, &c->rope_theta));
    double part;
    RK_TRY(take_num(&r, "partial_rotary_factor", 1.0, &part));
    if (part != 1.0)
        return RK_FAIL(RK_E_INPUT, "%s: partial_rotary_factor %g is not computed", s->path, part);
    const char *type = rk_json_str(rk_json_get(j, "rope_type"), NULL);
    if (!type) type = rk_json_str(rk_json_get(j, "type"), NULL);
    if (!type) return wrong_kind(&r, "rope_type", "a string");
    if (strcmp(type, "default") == 0) return RK_OK;
    bool llama3 = strcmp(type, "llama3") == 0;
    if (!llama3 && strcmp(type, "linear") != 0)
        return RK_FAIL(RK_E_INPUT, "%s: %s of type %s is not computed; linear and llama3 are",
                       s->path, key, rk_infile_shown(type, shown));
    c->rope_scaling = llama3 ? RK_ROPE_LLAMA3 : RK_ROPE_LINEAR;
    RK_TRY(take_num(&r, "factor", NAN, &c->rope_factor));
    if (!llama3) return RK_OK;
    RK_TRY(take_num(&r, "low_freq_factor", NAN, &c->rope_low_freq));
    RK_TRY(take_num(&r, "high_freq_factor", NAN, &c->rope_high_freq));
    return take_int(&r, "original_max_position_embeddings", REQUIRED, &c->rope_original_positions);
}

/* A window binds Mistral whenever it is given, the Qwen models where use_sliding_window is set. */
static rk_status check_window(const rk_config *c, const source *s) {
    int64_t window;
    bool    used;
    RK_TRY(take_int(s, "sliding_window", 0, &window));
    RK_TRY(take_bool(s, "use_sliding_window", strcmp(c->arch, "mistral") == 0, &used));
    if (used && window > 0 && window < c->max_positions)
        return RK_FAIL(RK_E_INPUT,
                       "%s: sliding_window %lld within %lld positions is active, which is not "
                       "computed; for texts up to %lld tokens set max_position_embeddings to that",
                       s->path, (long long)window, (long long)c->max_positions, (long long)window);
    return RK_OK;
}

static rk_status check_computed(const rk_config *c, const source *s) {
    static const char *const off[] = {"attention_bias", "mlp_bias"};
    char                     shown[RK_SHOWN];
    double                   part;
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) {
        bool on;
        RK_TRY(take_bool(s, off[i], false, &on));
        if (on) return RK_FAIL(RK_E_INPUT, "%s: %s true is not computed", s->path, off[i]);
    }
    const rk_json *act = rk_json_get(s->object, "hidden_act");
    const char    *name = rk_json_str(act, present(s, "hidden_act") ? "" : "silu");
    if (strcmp(name, "silu") != 0 && strcmp(name, "swish") != 0)
        return RK_FAIL(RK_E_INPUT, "%s: hidden_act \"%s\" is not computed; silu is", s->path,
                       rk_infile_shown(name, shown));
    RK_TRY(take_num(s, "partial_rotary_factor", 1.0, &part));
    if (part != 1.0)
        return RK_FAIL(RK_E_INPUT, "%s: partial_rotary_factor %g is not computed", s->path, part);
    if (present(s, "quantization_config"))
        return RK_FAIL(RK_E_INPUT,
                       "%s: quantization_config: quantised folders are not read; use the "
                       "unquantised model or a GGUF file",
                       s->path);
    return check_window(c, s);
}

/* One id, a list of ids, or null. */
static rk_status take_stops(rk_config *c, const source *s) {
    const rk_json *j = rk_json_get(s->object, "eos_token_id");
    rk_json_kind   kind = rk_json_kind_of(j);
    if (!present(s, "eos_token_id")) return RK_OK;
    if (kind == RK_JSON_INT) return rk_config_add_stop(c, rk_json_int(j, -1), s->path);
    if (kind != RK_JSON_ARRAY) return wrong_kind(s, "eos_token_id", "an integer or a list");
    for (size_t i = 0; i < rk_json_len(j); i++) {
        if (rk_json_kind_of(rk_json_at(j, i)) != RK_JSON_INT)
            return wrong_kind(s, "eos_token_id", "a list of integers");
        RK_TRY(rk_config_add_stop(c, rk_json_int(rk_json_at(j, i), -1), s->path));
    }
    return RK_OK;
}

static rk_status take_config(rk_weights *w, const source *s) {
    rk_config *c = &w->config;
    int64_t    bos;
    if (rk_json_kind_of(s->object) != RK_JSON_OBJECT)
        return RK_FAIL(RK_E_INPUT, "%s: the file holds %s, expected an object", s->path,
                       rk_json_kind_name(s->object));
    RK_TRY(take_arch(c, s));
    RK_TRY(take_sizes(c, s));
    RK_TRY(take_rope(c, s));
    RK_TRY(check_computed(c, s));
    c->bos = -1;
    if (present(s, "bos_token_id")) {
        RK_TRY(take_int(s, "bos_token_id", 0, &bos));
        c->bos = bos > INT32_MAX ? INT32_MAX : (int32_t)bos;
    }
    return take_stops(c, s);
}

static rk_status read_generation(rk_weights *w) {
    char     path[RK_PATH_LEN];
    rk_json *j = NULL;
    RK_TRY(rk_infile_join(w->path, "generation_config.json", path));
    if (!rk_infile_is_file(path)) return RK_OK;
    RK_TRY(rk_json_load(path, &j));
    source    s = {j, path};
    rk_status st = take_stops(&w->config, &s);
    rk_json_close(j);
    return st;
}

static rk_status read_template_file(rk_weights *w, const char *path) {
    rk_infile f = {0};
    rk_status st;
    void     *p;
    RK_TRY_OUT(st, rk_infile_open(path, &f));
    RK_TRY_OUT(st, rk_mem_alloc(f.bytes + 1, 1, "chat template", &p));
    w->chat_template = p;
    memcpy(p, f.data, (size_t)f.bytes);
out:
    rk_infile_close(&f);
    return st;
}

/* A template of its own file goes before the one in tokenizer_config.json, which may be one text or
 * a list of named ones. */
static rk_status read_template(rk_weights *w) {
    char     path[RK_PATH_LEN];
    rk_json *j = NULL;
    RK_TRY(rk_infile_join(w->path, "chat_template.jinja", path));
    if (rk_infile_is_file(path)) return read_template_file(w, path);
    RK_TRY(rk_infile_join(w->path, "tokenizer_config.json", path));
    if (!rk_infile_is_file(path)) return RK_OK;
    RK_TRY(rk_json_load(path, &j));
    const rk_json *t = rk_json_get(j, "chat_template");
    const char    *text = rk_json_str(t, NULL);
    for (size_t i = 0; rk_json_kind_of(t) == RK_JSON_ARRAY && i < rk_json_len(t); i++) {
        const rk_json *one = rk_json_at(t, i);
        if (strcmp(rk_json_str(rk_json_get(one, "name"), ""), "default") == 0)
            text = rk_json_str(rk_json_get(one, "template"), NULL);
    }
    rk_status st = text ? rk_mem_strdup(text, &w->chat_template) : RK_OK;
    rk_json_close(j);
    return st;
}

/* The folder's own name, also where the path ends in "." or "/"; cut at a character's border. */
static void take_name(rk_weights *w) {
    char       *whole = realpath(w->path, NULL);
    const char *path = whole ? whole : w->path, *slash = strrchr(path, '/');
    const char *name = slash && slash[1] ? slash + 1 : path;
    size_t      n = strlen(name);
    if (n >= RK_NAME_LEN)
        for (n = RK_NAME_LEN - 1; n > 0 && (name[n] & 0xc0) == 0x80;) n--;
    for (size_t i = 0; i < n; i++)
        w->config.name[i] = name[i] >= 0 && name[i] < 0x20 ? ' ' : name[i];
    w->config.name[n] = 0;
    free(whole);
}

rk_status rk_weights_read_hf_config(rk_weights *w) {
    char     path[RK_PATH_LEN];
    rk_json *j = NULL;
    RK_TRY(rk_infile_join(w->path, "config.json", path));
    if (!rk_infile_is_file(path))
        return RK_FAIL(RK_E_INPUT,
                       "%s: the folder has no config.json; a model is a folder with config.json "
                       "and safetensors, or a .gguf file",
                       w->path);
    RK_TRY(rk_json_load(path, &j));
    source    s = {j, path};
    rk_status st = take_config(w, &s);
    rk_json_close(j);
    RK_TRY(st);
    RK_TRY(read_generation(w));
    RK_TRY(read_template(w));
    take_name(w);
    return RK_OK;
}
