/* model.c - see model.h. */
#include "core/model.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { LOAD_ROWS = 256, MLP_ROWS = 512 }; /* rows unpacked at a time; rows per pass of the MLP */

typedef struct layer_weights {
    rk_mat qkv, o, gate_up, down;
    float *attn_norm, *ffn_norm, *qkv_bias; /* dev; qkv_bias NULL where the family has none */
} layer_weights;

struct rk_model {
    rk_backend    *be;
    rk_config      cfg;
    rk_model_spec  spec;
    layer_weights *layer; /* [layer_end - layer_begin] */
    rk_mat         embed, head;
    bool           head_is_embed;
    float         *out_norm, *rope; /* dev */
    int64_t        weight_bytes;

    /* scratch, dev */
    void  *act;   /* activations of any width */
    float *qkv;   /* [max_rows][(H + 2G) d] */
    float *wide;  /* [MLP_ROWS][2F] */
    int32_t *index; /* host [max_rows * H] for take_q */

    int64_t done, total; /* load progress, bytes */
};

rk_attn_shape rk_model_attn(const rk_model *m) {
    return (rk_attn_shape){.n_heads = m->cfg.n_heads,
                           .n_kv_heads = m->cfg.n_kv_heads,
                           .head_dim = m->cfg.head_dim,
                           .scale = (float)(1.0 / sqrt((double)m->cfg.head_dim))};
}

static int qkv_width(const rk_config *c) { return (c->n_heads + 2 * c->n_kv_heads) * c->head_dim; }

static rk_status dev_alloc(rk_model *m, int64_t bytes, const char *what, void *slot) {
    void *p;
    RK_TRY(m->be->ops->alloc(m->be, bytes, what, &p));
    memcpy(slot, &p, sizeof p);
    return RK_OK;
}

/* Load parts, stacked along the outputs, into one packed matrix. */
static rk_status load_mat(rk_model *m, rk_weights *w, const rk_role *roles, int n_roles, int layer,
                          rk_mat *out) {
    int       rows[3], cols = 0, n = 0;
    rk_status st = RK_OK;
    void     *image = NULL, *buf = NULL;
    for (int i = 0; i < n_roles; i++) {
        rk_weights_shape(w, roles[i], &rows[i], &cols);
        n += rows[i];
    }
    out->n = n;
    out->k = cols;
    out->dtype = m->be->weight_dtype;
    int64_t bytes = rk_mat_bytes(m->be, n, cols);
    RK_TRY(dev_alloc(m, bytes, "weights", &out->dev));
    RK_TRY_OUT(st, rk_mem_alloc(bytes, 1, "weight image", &image));
    RK_TRY_OUT(st, rk_mem_alloc((int64_t)LOAD_ROWS * cols, sizeof(float), "weight rows", &buf));
    int at = 0;
    for (int i = 0; i < n_roles; i++)
        for (int r = 0; r < rows[i]; r += LOAD_ROWS) {
            int take = rows[i] - r < LOAD_ROWS ? rows[i] - r : LOAD_ROWS;
            RK_TRY_OUT(st, rk_weights_read(w, roles[i], layer, r, take, buf));
            rk_mat_pack(out->dtype, image, n, cols, at, take, buf);
            at += take;
        }
    RK_TRY_OUT(st, m->be->ops->upload(m->be, out->dev, image, bytes));
    m->weight_bytes += bytes;
    m->done += bytes;
    if (m->spec.on_loaded) m->spec.on_loaded(m->spec.arg, m->done, m->total);
out:
    rk_mem_free(image);
    rk_mem_free(buf);
    return st;
}

/* Load vectors one after the other into one device array. */
static rk_status load_vec(rk_model *m, rk_weights *w, const rk_role *roles, int n_roles, int layer,
                          float **out) {
    int       cols[3], rows, n = 0, at = 0;
    rk_status st = RK_OK;
    void     *buf = NULL;
    for (int i = 0; i < n_roles; i++) {
        rk_weights_shape(w, roles[i], &rows, &cols[i]);
        n += cols[i];
    }
    RK_TRY(dev_alloc(m, n * (int64_t)sizeof(float), "norm weights", out));
    RK_TRY_OUT(st, rk_mem_alloc(n, sizeof(float), "norm rows", &buf));
    for (int i = 0; i < n_roles; i++) {
        RK_TRY_OUT(st, rk_weights_read(w, roles[i], layer, 0, 1, (float *)buf + at));
        at += cols[i];
    }
    RK_TRY_OUT(st, m->be->ops->upload(m->be, *out, buf, n * (int64_t)sizeof(float)));
    m->weight_bytes += n * (int64_t)sizeof(float);
out:
    rk_mem_free(buf);
    return st;
}

static rk_status load_layer(rk_model *m, rk_weights *w, int layer, layer_weights *lw) {
    static const rk_role qkv[] = {RK_W_Q, RK_W_K, RK_W_V}, gu[] = {RK_W_GATE, RK_W_UP};
    static const rk_role o[] = {RK_W_O}, down[] = {RK_W_DOWN}, an[] = {RK_W_ATTN_NORM};
    static const rk_role fn[] = {RK_W_FFN_NORM}, qb[] = {RK_W_Q_BIAS, RK_W_K_BIAS, RK_W_V_BIAS};
    RK_TRY(load_mat(m, w, qkv, 3, layer, &lw->qkv));
    RK_TRY(load_mat(m, w, o, 1, layer, &lw->o));
    RK_TRY(load_mat(m, w, gu, 2, layer, &lw->gate_up));
    RK_TRY(load_mat(m, w, down, 1, layer, &lw->down));
    RK_TRY(load_vec(m, w, an, 1, layer, &lw->attn_norm));
    RK_TRY(load_vec(m, w, fn, 1, layer, &lw->ffn_norm));
    if (m->cfg.qkv_bias) RK_TRY(load_vec(m, w, qb, 3, layer, &lw->qkv_bias));
    return RK_OK;
}

static rk_status load_rope(rk_model *m) {
    void     *buf;
    int64_t   n = m->spec.table_positions, d = m->cfg.head_dim;
    rk_status st;
    RK_TRY(rk_mem_alloc(n * d, sizeof(float), "rope table", &buf));
    rk_config_rope_table(&m->cfg, 0, n, buf);
    RK_TRY_OUT(st, dev_alloc(m, n * d * (int64_t)sizeof(float), "rope table", &m->rope));
    st = m->be->ops->upload(m->be, m->rope, buf, n * d * (int64_t)sizeof(float));
out:
    rk_mem_free(buf);
    return st;
}

static rk_status open_scratch(rk_model *m) {
    const rk_config *c = &m->cfg;
    int64_t rows = m->spec.max_rows, widest = c->d_model, act;
    if (c->n_heads * c->head_dim > widest) widest = c->n_heads * c->head_dim;
    act = rk_act_bytes(m->be, rows, widest, RK_ROWS_EXACT);
    int64_t ffn = rk_act_bytes(m->be, MLP_ROWS, c->d_ffn, RK_ROWS_EXACT);
    RK_TRY(dev_alloc(m, act > ffn ? act : ffn, "activations", &m->act));
    RK_TRY(dev_alloc(m, rows * qkv_width(c) * (int64_t)sizeof(float), "qkv rows", &m->qkv));
    RK_TRY(dev_alloc(m, (int64_t)MLP_ROWS * 2 * c->d_ffn * (int64_t)sizeof(float), "mlp rows", &m->wide));
    void *p;
    RK_TRY(rk_mem_alloc(rows * c->n_heads, sizeof(int32_t), "row index", &p));
    m->index = p;
    return RK_OK;
}

static int64_t expected_bytes(const rk_model *m, const rk_config *c) {
    int64_t per_layer = rk_mat_bytes(m->be, qkv_width(c), c->d_model) +
                        rk_mat_bytes(m->be, c->d_model, (int64_t)c->n_heads * c->head_dim) +
                        rk_mat_bytes(m->be, 2 * (int64_t)c->d_ffn, c->d_model) +
                        rk_mat_bytes(m->be, c->d_model, c->d_ffn);
    int64_t table = rk_mat_bytes(m->be, c->n_vocab, c->d_model);
    int     tables = m->spec.has_embed + (m->spec.has_head && !(c->tied && m->spec.has_embed));
    return per_layer * (m->spec.layer_end - m->spec.layer_begin) + tables * table;
}

static rk_status load_all(rk_model *m, rk_weights *w) {
    static const rk_role embed[] = {RK_W_EMBED}, head[] = {RK_W_HEAD}, norm[] = {RK_W_OUT_NORM};
    const rk_config *c = &m->cfg;
    void            *p;
    RK_TRY(rk_mem_alloc(m->spec.layer_end - m->spec.layer_begin, sizeof(layer_weights), "layers", &p));
    m->layer = p;
    m->total = expected_bytes(m, c);
    if (m->spec.has_embed) RK_TRY(load_mat(m, w, embed, 1, -1, &m->embed));
    for (int l = m->spec.layer_begin; l < m->spec.layer_end; l++)
        RK_TRY(load_layer(m, w, l, &m->layer[l - m->spec.layer_begin]));
    if (m->spec.has_head) {
        RK_TRY(load_vec(m, w, norm, 1, -1, &m->out_norm));
        m->head_is_embed = c->tied && m->spec.has_embed;
        if (m->head_is_embed)
            m->head = m->embed;
        else
            RK_TRY(load_mat(m, w, c->tied ? embed : head, 1, -1, &m->head));
    }
    RK_TRY(load_rope(m));
    return open_scratch(m);
}

rk_status rk_model_open(rk_backend *be, rk_weights *w, const rk_model_spec *spec, rk_model **out) {
    void *p;
    *out = NULL;
    if (rk_weights_config(w)->qk_norm)
        return RK_FAIL(RK_E_INPUT, "%s: normalised queries and keys (%s) are not supported",
                       rk_weights_path(w), rk_weights_config(w)->arch);
    RK_TRY(rk_mem_alloc(1, sizeof(rk_model), "model", &p));
    rk_model *m = p;
    m->be = be;
    m->cfg = *rk_weights_config(w);
    m->spec = *spec;
    rk_status st = load_all(m, w);
    if (st != RK_OK) {
        rk_model_close(m);
        return rk_err_via(st, __FILE__, __LINE__, __func__);
    }
    *out = m;
    return RK_OK;
}

void rk_model_close(rk_model *m) {
    if (!m) return;
    rk_backend *be = m->be;
    int         n = m->spec.layer_end - m->spec.layer_begin;
    for (int i = 0; m->layer && i < n; i++) {
        layer_weights *l = &m->layer[i];
        void *dev[] = {l->qkv.dev, l->o.dev, l->gate_up.dev, l->down.dev,
                       l->attn_norm, l->ffn_norm, l->qkv_bias};
        for (size_t k = 0; k < sizeof dev / sizeof *dev; k++) be->ops->release(be, dev[k]);
    }
    if (!m->head_is_embed) be->ops->release(be, m->head.dev);
    void *dev[] = {m->embed.dev, m->out_norm, m->rope, m->act, m->qkv, m->wide};
    for (size_t k = 0; k < sizeof dev / sizeof *dev; k++) be->ops->release(be, dev[k]);
    rk_mem_free(m->layer);
    rk_mem_free(m->index);
    rk_mem_free(m);
}

int64_t rk_model_weight_bytes(const rk_model *m) { return m->weight_bytes; }

rk_status rk_model_embed(rk_model *m, const int32_t *tokens, int n, float *x) {
    for (int i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= m->cfg.n_vocab)
            return RK_FAIL(RK_E_INPUT, "token id %d is outside the model's vocabulary of %d", tokens[i],
                           m->cfg.n_vocab);
    return m->be->ops->embed(m->be, &m->embed, tokens, n, x);
}

static layer_weights *layer_at(rk_model *m, int layer) {
    RK_ASSERT(layer >= m->spec.layer_begin && layer < m->spec.layer_end);
    return &m->layer[layer - m->spec.layer_begin];
}

rk_status rk_model_qkv(rk_model *m, int layer, const float *x, int n, rk_rows_kind kind,
                       const int32_t *pos, const rk_seq_rows *sets, int n_sets) {
    const rk_backend_ops *op = m->be->ops;
    layer_weights        *lw = layer_at(m, layer);
    rk_attn_shape         sh = rk_model_attn(m);
    RK_ASSERT(n <= m->spec.max_rows);
    for (int i = 0; i < n; i++)
        if (pos[i] < 0 || pos[i] >= m->spec.table_positions)
            return RK_FAIL(RK_E_BUG, "position %d outside the rope table of %lld", pos[i],
                           (long long)m->spec.table_positions);
    RK_TRY(op->rmsnorm(m->be, x, lw->attn_norm, (float)m->cfg.rms_eps, n, m->cfg.d_model, kind, m->act));
    RK_TRY(op->gemm(m->be, m->act, kind, n, &lw->qkv, lw->qkv_bias, false, m->qkv, qkv_width(&m->cfg)));
    return op->rope_append(m->be, &sh, m->qkv, n, pos, m->rope, sets, n_sets);
}

rk_status rk_model_take_q(rk_model *m, int row0, int n, float *dst) {
    /* The q part of a row is H blocks of d; the op copies blocks. */
    int H = m->cfg.n_heads, blocks = H + 2 * m->cfg.n_kv_heads;
    RK_ASSERT(row0 + n <= m->spec.max_rows);
    for (int i = 0; i < n; i++)
        for (int h = 0; h < H; h++) m->index[i * H + h] = (row0 + i) * blocks + h;
    return m->be->ops->take_rows(m->be, m->qkv, m->index, n * H, m->cfg.head_dim, dst);
}

rk_status rk_model_finish(rk_model *m, int layer, float *x, int n, rk_rows_kind kind,
                          const rk_seq_rows *sets, int n_sets) {
    const rk_backend_ops *op = m->be->ops;
    layer_weights        *lw = layer_at(m, layer);
    rk_attn_shape         sh = rk_model_attn(m);
    int                   D = m->cfg.d_model, F = m->cfg.d_ffn;
    RK_TRY(op->attend(m->be, &sh, m->qkv, n, sets, n_sets, kind, m->act));
    RK_TRY(op->gemm(m->be, m->act, kind, n, &lw->o, NULL, true, x, D));
    for (int r = 0; r < n; r += MLP_ROWS) {
        int    k = n - r < MLP_ROWS ? n - r : MLP_ROWS;
        float *xr = x + (int64_t)r * D;
        RK_TRY(op->rmsnorm(m->be, xr, lw->ffn_norm, (float)m->cfg.rms_eps, k, D, kind, m->act));
        RK_TRY(op->gemm(m->be, m->act, kind, k, &lw->gate_up, NULL, false, m->wide, 2 * F));
        RK_TRY(op->silu_mul(m->be, m->wide, k, F, kind, m->act));
        RK_TRY(op->gemm(m->be, m->act, kind, k, &lw->down, NULL, true, xr, D));
    }
    return RK_OK;
}

rk_status rk_model_head(rk_model *m, const float *x, int n, rk_rows_kind kind, float *logits) {
    RK_ASSERT(n <= m->spec.max_rows && m->head.dev);
    RK_TRY(m->be->ops->rmsnorm(m->be, x, m->out_norm, (float)m->cfg.rms_eps, n, m->cfg.d_model, kind,
                               m->act));
    return m->be->ops->gemm(m->be, m->act, kind, n, &m->head, NULL, false, logits, m->cfg.n_vocab);
}
