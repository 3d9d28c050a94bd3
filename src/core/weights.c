/* weights.c - roles, shapes and reading of weights.h; weights_gguf.c and weights_hf.c find what a
 * model's files hold. */
#include "core/weights.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "core/dequant.h"
#include "core/weights_internal.h"

/* What each form of file calls a role; for roles of a layer, what follows the layer's number. */
static const struct {
    const char *gguf, *hf;
} names[RK_W_ROLES] = {
    [RK_W_EMBED] = {"token_embd.weight", "model.embed_tokens.weight"},
    [RK_W_OUT_NORM] = {"output_norm.weight", "model.norm.weight"},
    [RK_W_HEAD] = {"output.weight", "lm_head.weight"},
    [RK_W_ATTN_NORM] = {"attn_norm.weight", "input_layernorm.weight"},
    [RK_W_Q] = {"attn_q.weight", "self_attn.q_proj.weight"},
    [RK_W_K] = {"attn_k.weight", "self_attn.k_proj.weight"},
    [RK_W_V] = {"attn_v.weight", "self_attn.v_proj.weight"},
    [RK_W_O] = {"attn_output.weight", "self_attn.o_proj.weight"},
    [RK_W_FFN_NORM] = {"ffn_norm.weight", "post_attention_layernorm.weight"},
    [RK_W_GATE] = {"ffn_gate.weight", "mlp.gate_proj.weight"},
    [RK_W_UP] = {"ffn_up.weight", "mlp.up_proj.weight"},
    [RK_W_DOWN] = {"ffn_down.weight", "mlp.down_proj.weight"},
    [RK_W_Q_BIAS] = {"attn_q.bias", "self_attn.q_proj.bias"},
    [RK_W_K_BIAS] = {"attn_k.bias", "self_attn.k_proj.bias"},
    [RK_W_V_BIAS] = {"attn_v.bias", "self_attn.v_proj.bias"},
    [RK_W_Q_NORM] = {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    [RK_W_K_NORM] = {"attn_k_norm.weight", "self_attn.k_norm.weight"},
};

static const char *name_of(const rk_weights *w, rk_role role) {
    return w->gguf ? names[role].gguf : names[role].hf;
}

static const char *layer_prefix(const rk_weights *w) {
    return w->gguf ? "blk." : "model.layers.";
}

/* The layer's number as writers write it: digits without leading zeros, then a dot. */
static const char *parse_layer(const char *s, int *layer) {
    int n = 0, digits = 0;
    for (; s[digits] >= '0' && s[digits] <= '9'; digits++) {
        if (digits == 6) return NULL;
        n = n * 10 + (s[digits] - '0');
    }
    if (digits == 0 || s[digits] != '.' || (s[0] == '0' && digits > 1)) return NULL;
    *layer = n;
    return s + digits + 1;
}

static bool find_role(const rk_weights *w, const char *name, rk_role *role, int *layer) {
    const char *prefix = layer_prefix(w), *rest = name;
    bool        of_layer = strncmp(name, prefix, strlen(prefix)) == 0;
    *layer = -1;
    if (of_layer && !(rest = parse_layer(name + strlen(prefix), layer))) return false;
    for (rk_role r = 0; r < RK_W_ROLES; r++) {
        if (rk_role_per_layer(r) != of_layer || strcmp(name_of(w, r), rest) != 0) continue;
        *role = r;
        return true;
    }
    return false;
}

rk_status rk_weights_add_stored(rk_weights *w, const rk_stored *s) {
    if (w->n_stored == w->cap_stored) {
        void *p = w->stored;
        int   cap = w->cap_stored ? 2 * w->cap_stored : 64;
        RK_TRY(rk_mem_resize(&p, cap, sizeof *w->stored, "tensor directory"));
        w->stored = p;
        w->cap_stored = cap;
    }
    w->stored[w->n_stored++] = *s;
    return RK_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const rk_stored *)a)->entry.name, ((const rk_stored *)b)->entry.name);
}

static rk_status sort_stored(rk_weights *w) {
    if (w->n_stored == 0) return RK_FAIL(RK_E_INPUT, "%s: the model holds no tensors", w->path);
    qsort(w->stored, (size_t)w->n_stored, sizeof *w->stored, by_name);
    for (int i = 1; i < w->n_stored; i++) {
        const char *a = w->stored[i].entry.name;
        if (strcmp(a, w->stored[i - 1].entry.name) == 0)
            return RK_FAIL(RK_E_INPUT, "%s: tensor %s stands twice", w->path, a);
    }
    return RK_OK;
}

static rk_status take_vocab(rk_weights *w) {
    const char *name = name_of(w, RK_W_EMBED);
    for (int i = 0; i < w->n_stored; i++) {
        const rk_weights_entry *e = &w->stored[i].entry;
        if (strcmp(e->name, name) != 0) continue;
        if (e->rank != 2 || e->dim[0] > INT32_MAX)
            return RK_FAIL(RK_E_INPUT,
                           "%s: tensor %s has %d dimensions, expected 2: vocabulary rows of %d "
                           "values",
                           w->path, name, e->rank, w->config.d_model);
        if (w->config.n_vocab != 0 && w->config.n_vocab != e->dim[0])
            return RK_FAIL(RK_E_INPUT, "%s: tensor %s has %lld rows, but vocab_size is %d", w->path,
                           name, (long long)e->dim[0], w->config.n_vocab);
        w->config.n_vocab = (int)e->dim[0];
        return RK_OK;
    }
    return RK_FAIL(RK_E_INPUT, "%s: tensor %s is missing", w->path, name);
}

/* "[64][128]" */
static const char *dims_text(int rank, const int64_t *dim, char buf[RK_SHOWN]) {
    size_t n = 0;
    buf[0] = 0;
    for (int i = 0; i < rank && n < RK_SHOWN; i++)
        n += (size_t)snprintf(buf + n, RK_SHOWN - n, "[%lld]", (long long)dim[i]);
    return buf;
}

/* Rank and dims that a role's tensor must have. */
static int expected_dims(const rk_config *c, rk_role role, int64_t dim[2]) {
    int rows, cols;
    rk_role_shape(c, role, &rows, &cols);
    if (rk_role_is_matrix(role)) {
        dim[0] = rows;
        dim[1] = cols;
        return 2;
    }
    dim[0] = cols;
    return 1;
}

static rk_status check_dims(const rk_weights *w, const rk_weights_entry *e) {
    char    found[RK_SHOWN], want[RK_SHOWN];
    int64_t dim[2];
    int     rank = expected_dims(&w->config, e->role, dim);
    bool    same = rank == e->rank;
    for (int i = 0; same && i < rank; i++) same = dim[i] == e->dim[i];
    if (!same)
        return RK_FAIL(RK_E_INPUT,
                       "%s: tensor %s has shape %s, expected %s by the model's "
                       "configuration",
                       w->path, e->name, dims_text(e->rank, e->dim, found),
                       dims_text(rank, dim, want));
    return RK_OK;
}

static int *slot_of(const rk_weights *w, rk_role role, int layer) {
    int l = rk_role_per_layer(role) ? layer : 0;
    return &w->at[(int)role * w->config.n_layers + l];
}

static rk_status give_role(rk_weights *w, int i) {
    rk_weights_entry *e = &w->stored[i].entry;
    const rk_config  *c = &w->config;
    if (!find_role(w, e->name, &e->role, &e->layer) || !rk_role_wanted(c, e->role))
        return RK_FAIL(RK_E_INPUT, "%s: tensor %s is not part of a %s model as it is computed here",
                       w->path, e->name, c->arch);
    if (e->layer >= c->n_layers)
        return RK_FAIL(RK_E_INPUT, "%s: tensor %s is of layer %d, but the model has %d layers",
                       w->path, e->name, e->layer, c->n_layers);
    RK_TRY(check_dims(w, e));
    *slot_of(w, e->role, e->layer) = i;
    return RK_OK;
}

static rk_status check_complete(const rk_weights *w) {
    for (rk_role r = 0; r < RK_W_ROLES; r++) {
        if (!rk_role_wanted(&w->config, r)) continue;
        int n = rk_role_per_layer(r) ? w->config.n_layers : 1;
        for (int l = 0; l < n; l++) {
            if (*slot_of(w, r, l) >= 0) continue;
            char    want[RK_SHOWN], number[16] = "";
            int64_t dim[2];
            int     rank = expected_dims(&w->config, r, dim);
            if (rk_role_per_layer(r)) snprintf(number, sizeof number, "%d.", l);
            return RK_FAIL(RK_E_INPUT, "%s: tensor %s%s%s is missing, expected with shape %s",
                           w->path, number[0] ? layer_prefix(w) : "", number, name_of(w, r),
                           dims_text(rank, dim, want));
        }
    }
    return RK_OK;
}

static rk_status load(rk_weights *w) {
    void *p;
    if (rk_infile_is_folder(w->path))
        RK_TRY(rk_weights_load_folder(w));
    else
        RK_TRY(rk_weights_load_gguf(w));
    RK_TRY(sort_stored(w));
    RK_TRY(take_vocab(w));
    RK_TRY(rk_config_check(&w->config, w->path));
    int64_t n = (int64_t)RK_W_ROLES * w->config.n_layers;
    RK_TRY(rk_mem_alloc(n, sizeof *w->at, "tensor index", &p));
    w->at = p;
    memset(w->at, 0xff, (size_t)n * sizeof *w->at);
    for (int i = 0; i < w->n_stored; i++) RK_TRY(give_role(w, i));
    return check_complete(w);
}

rk_status rk_weights_open(const char *path, rk_weights **out) {
    *out = NULL;
    void     *p;
    rk_status st;
    RK_TRY(rk_mem_alloc(1, sizeof(rk_weights), "model", &p));
    rk_weights *w = p;
    RK_TRY_OUT(st, rk_mem_strdup(path, &w->path));
    RK_TRY_OUT(st, rk_mem_alloc(1, sizeof *w->bytes_read, "model", &p));
    w->bytes_read = p;
    RK_TRY_OUT(st, load(w));
    RK_LOG(RK_LOG_DEBUG, "weights", "%s: %s, %d tensors, mostly %s", path, w->config.arch,
           w->n_stored, rk_weights_dtype(w));
    *out = w;
out:
    if (st != RK_OK) rk_weights_close(w);
    return st;
}

void rk_weights_close(rk_weights *w) {
    if (!w) return;
    for (int i = 0; i < w->n_shards; i++) {
        rk_json_close(w->shards[i].head);
        rk_infile_close(&w->shards[i].file);
    }
    rk_gguf_close(w->gguf);
    rk_mem_free(w->shards);
    rk_mem_free(w->stored);
    rk_mem_free(w->at);
    rk_mem_free(w->chat_template);
    rk_mem_free(w->bytes_read);
    rk_mem_free(w->path);
    rk_mem_free(w);
}

const rk_config *rk_weights_config(const rk_weights *w) {
    return &w->config;
}
const rk_gguf *rk_weights_gguf(const rk_weights *w) {
    return w->gguf;
}
const char *rk_weights_path(const rk_weights *w) {
    return w->path;
}
const char *rk_weights_chat_template(const rk_weights *w) {
    return w->chat_template;
}

const char *rk_weights_dtype(const rk_weights *w) {
    enum { TYPES = 64 }; /* above every type number that is read */
    int64_t     sum[TYPES] = {0}, most = -1;
    const char *best = "";
    for (int i = 0; i < w->n_stored; i++) {
        const rk_stored *s = &w->stored[i];
        RK_ASSERT(s->type >= 0 && s->type < TYPES);
        sum[s->type] += s->entry.bytes;
    }
    for (int i = 0; i < w->n_stored; i++) {
        if (sum[w->stored[i].type] <= most) continue;
        most = sum[w->stored[i].type];
        best = w->stored[i].entry.dtype;
    }
    return best;
}

bool rk_weights_has(const rk_weights *w, rk_role role, int layer) {
    if (rk_role_per_layer(role) && (layer < 0 || layer >= w->config.n_layers)) return false;
    return *slot_of(w, role, layer) >= 0;
}

void rk_weights_shape(const rk_weights *w, rk_role role, int *rows, int *cols) {
    rk_role_shape(&w->config, role, rows, cols);
}

static void count_bytes(const rk_weights *w, int64_t n) {
    __atomic_fetch_add(w->bytes_read, n, __ATOMIC_RELAXED);
}

/* Where row r of Q or K in half-split order lies in a file of interleaved order: within a head,
 * pair i of rows (i, i + d/2) is stored as rows (2i, 2i + 1). */
static int64_t interleaved_row(int64_t r, int d) {
    int64_t in_head = r % d;
    return r - in_head + (in_head < d / 2 ? 2 * in_head : 2 * (in_head - d / 2) + 1);
}

rk_status rk_weights_read(rk_weights *w, rk_role role, int layer, int row, int n, float *dst) {
    int rows, cols;
    if (!rk_weights_has(w, role, layer))
        return RK_FAIL(RK_E_BUG, "%s: the model has no %s in layer %d", w->path, rk_role_name(role),
                       layer);
    rk_role_shape(&w->config, role, &rows, &cols);
    if (row < 0 || n < 0 || n > rows - row)
        return RK_FAIL(RK_E_BUG, "%s: rows %d + %d of %s are beyond its %d", w->path, row, n,
                       rk_role_name(role), rows);
    const rk_stored *s = &w->stored[*slot_of(w, role, layer)];
    int64_t          row_bytes = s->entry.bytes / rows;
    if (w->interleaved && (role == RK_W_Q || role == RK_W_K)) {
        for (int i = 0; i < n; i++)
            rk_ggml_dequant(s->type,
                            s->data + interleaved_row(row + i, w->config.head_dim) * row_bytes,
                            cols, dst + (int64_t)i * cols);
    } else {
        rk_ggml_dequant(s->type, s->data + row * row_bytes, (int64_t)n * cols, dst);
    }
    count_bytes(w, n * row_bytes);
    return RK_OK;
}

const char *rk_weights_type(const rk_weights *w, rk_role role, int layer) {
    RK_ASSERT(rk_weights_has(w, role, layer));
    return w->stored[*slot_of(w, role, layer)].entry.dtype;
}

rk_status rk_weights_stored_row(rk_weights *w, rk_role role, int layer, int row, const void **stored) {
    int rows, cols;
    rk_role_shape(&w->config, role, &rows, &cols);
    if (!rk_weights_has(w, role, layer) || row < 0 || row >= rows)
        return RK_FAIL(RK_E_BUG, "%s: no row %d of %s in layer %d", w->path, row, rk_role_name(role),
                       layer);
    const rk_stored *s = &w->stored[*slot_of(w, role, layer)];
    int64_t          row_bytes = s->entry.bytes / rows, at = row;
    if (w->interleaved && (role == RK_W_Q || role == RK_W_K))
        at = interleaved_row(row, w->config.head_dim);
    *stored = s->data + at * row_bytes;
    count_bytes(w, row_bytes);
    return RK_OK;
}

int rk_weights_count(const rk_weights *w) {
    return w->n_stored;
}

const rk_weights_entry *rk_weights_entry_at(const rk_weights *w, int i) {
    RK_ASSERT(i >= 0 && i < w->n_stored);
    return &w->stored[i].entry;
}

uint64_t rk_weights_entry_hash(const rk_weights *w, int i) {
    RK_ASSERT(i >= 0 && i < w->n_stored);
    count_bytes(w, w->stored[i].entry.bytes);
    return rk_hash(w->stored[i].data, (size_t)w->stored[i].entry.bytes);
}

uint64_t rk_weights_combine(const uint64_t *digests, int n) {
    return rk_hash(digests, (size_t)n * sizeof *digests);
}

int64_t rk_weights_bytes_read(const rk_weights *w) {
    return __atomic_load_n(w->bytes_read, __ATOMIC_RELAXED);
}
