/* model.c - see model.h. */
#include "core/model.h"

#include <math.h>

#include "base/mem.h"
#include "core/model_internal.h"

rk_attn_shape rk_model_attn(const rk_model *m) {
    return (rk_attn_shape){.n_heads = m->cfg.n_heads,
                           .n_kv_heads = m->cfg.n_kv_heads,
                           .head_dim = m->cfg.head_dim,
                           .scale = (float)(1.0 / sqrt((double)m->cfg.head_dim))};
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
    rk_status st = rk_model_load(m, w);
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
        rk_layer_weights *l = &m->layer[i];
        void *dev[] = {l->attn_norm, l->ffn_norm, l->qkv_bias};
        for (size_t k = 0; k < sizeof dev / sizeof *dev; k++) be->ops->release(be, dev[k]);
    }
    void *dev[] = {m->arena, m->out_norm, m->rope, m->act, m->ffn, m->qkv};
    for (size_t k = 0; k < sizeof dev / sizeof *dev; k++) be->ops->release(be, dev[k]);
    rk_mem_free(m->layer);
    rk_mem_free(m->index);
    rk_mem_free(m);
}

int64_t rk_model_weight_bytes(const rk_model *m) { return m->arena_bytes + m->vector_bytes; }

rk_status rk_model_embed(rk_model *m, const int32_t *tokens, int n, float *x) {
    for (int i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= m->cfg.n_vocab)
            return RK_FAIL(RK_E_INPUT, "token id %d is outside the model's vocabulary of %d", tokens[i],
                           m->cfg.n_vocab);
    return m->be->ops->embed(m->be, &m->embed, tokens, n, x);
}

static rk_layer_weights *layer_at(rk_model *m, int layer) {
    RK_ASSERT(layer >= m->spec.layer_begin && layer < m->spec.layer_end);
    return &m->layer[layer - m->spec.layer_begin];
}

rk_status rk_model_qkv(rk_model *m, int layer, const float *x, int n, rk_rows_kind kind,
                       const int32_t *pos, const rk_seq_rows *sets, int n_sets) {
    const rk_backend_ops *op = m->be->ops;
    rk_layer_weights     *lw = layer_at(m, layer);
    rk_attn_shape         sh = rk_model_attn(m);
    RK_ASSERT(n <= m->spec.max_rows);
    for (int i = 0; i < n; i++)
        if (pos[i] < 0 || pos[i] >= m->spec.table_positions)
            return RK_FAIL(RK_E_BUG, "position %d outside the rope table of %lld", pos[i],
                           (long long)m->spec.table_positions);
    RK_TRY(op->rmsnorm(m->be, x, lw->attn_norm, (float)m->cfg.rms_eps, n, m->cfg.d_model, kind, m->act));
    for (int i = 0, at = 0; i < lw->n_qkv; at += lw->qkv[i++].n)
        RK_TRY(op->gemm(m->be, m->act, kind, n, &lw->qkv[i], lw->qkv_bias ? lw->qkv_bias + at : NULL, false,
                        m->qkv + at, rk_qkv_width(&m->cfg)));
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

rk_status rk_model_attend(rk_model *m, int layer, float *x, int n, rk_rows_kind kind,
                          const rk_seq_rows *sets, int n_sets) {
    const rk_backend_ops *op = m->be->ops;
    rk_attn_shape         sh = rk_model_attn(m);
    RK_TRY(op->attend(m->be, &sh, m->qkv, n, sets, n_sets, kind, m->act));
    return op->gemm(m->be, m->act, kind, n, &layer_at(m, layer)->o, NULL, true, x, m->cfg.d_model);
}

rk_status rk_model_mlp(rk_model *m, int layer, float *x, int n, rk_rows_kind kind) {
    const rk_backend_ops *op = m->be->ops;
    rk_layer_weights     *lw = layer_at(m, layer);
    int                   D = m->cfg.d_model;
    for (int r = 0; r < n; r += RK_MLP_ROWS) {
        int    k = n - r < RK_MLP_ROWS ? n - r : RK_MLP_ROWS;
        float *xr = x + (int64_t)r * D;
        RK_TRY(op->rmsnorm(m->be, xr, lw->ffn_norm, (float)m->cfg.rms_eps, k, D, kind, m->act));
        RK_TRY(op->gemm_silu_mul(m->be, m->act, kind, k, &lw->gate_up, m->ffn));
        RK_TRY(op->gemm(m->be, m->ffn, kind, k, &lw->down, NULL, true, xr, D));
    }
    return RK_OK;
}

rk_status rk_model_finish(rk_model *m, int layer, float *x, int n, rk_rows_kind kind,
                          const rk_seq_rows *sets, int n_sets) {
    RK_TRY(rk_model_attend(m, layer, x, n, kind, sets, n_sets));
    return rk_model_mlp(m, layer, x, n, kind);
}

rk_status rk_model_head(rk_model *m, const float *x, int n, rk_rows_kind kind, float *logits) {
    RK_ASSERT(n <= m->spec.max_rows && m->head.dev);
    RK_TRY(m->be->ops->rmsnorm(m->be, x, m->out_norm, (float)m->cfg.rms_eps, n, m->cfg.d_model, kind,
                               m->act));
    return m->be->ops->gemm(m->be, m->act, kind, n, &m->head, NULL, false, logits, m->cfg.n_vocab);
}
