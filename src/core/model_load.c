/* model_load.c - weights onto the device: which matrices are fused, which type they keep, packing. */
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "core/model_internal.h"
#include "core/weights_internal.h"

enum { LOAD_ROWS = 256, ALIGN = 64 }; /* rows unpacked at a time; bytes */

/* A packed matrix before it is loaded: its parts, stacked along the outputs or alternating. */
typedef struct mat_plan {
    const rk_role *roles;
    int            n_roles, layer;
    bool           alternate; /* part p of two has its runs of 16 outputs at 32 i + 16 p (gemm_silu_mul) */
    rk_mat         mat;
} mat_plan;

static const rk_role qkv_roles[] = {RK_W_Q, RK_W_K, RK_W_V}, gate_up_roles[] = {RK_W_GATE, RK_W_UP};
static const rk_role o_role[] = {RK_W_O}, down_role[] = {RK_W_DOWN};
static const rk_role embed_role[] = {RK_W_EMBED}, head_role[] = {RK_W_HEAD};

/* The type that all parts share and that can stay as it is; NONE otherwise. */
static rk_quant shared_quant(const rk_weights *w, const mat_plan *p) {
    rk_quant q = RK_QUANT_NONE;
    for (int i = 0; i < p->n_roles; i++) {
        rk_quant t = rk_quant_of_name(rk_weights_type(w, p->roles[i], p->layer));
        if (t == RK_QUANT_NONE || (i && t != q) || p->mat.k % rk_quant_block(t) != 0)
            return RK_QUANT_NONE;
        q = t;
    }
    return q;
}

static mat_plan plan_mat(const rk_weights *w, rk_dtype dtype, bool native, const rk_role *roles,
                         int n_roles, int layer, bool alternate) {
    mat_plan p = {.roles = roles, .n_roles = n_roles, .layer = layer, .alternate = alternate};
    int      rows, cols = 0, n = 0;
    for (int i = 0; i < n_roles; i++) {
        rk_weights_shape(w, roles[i], &rows, &cols);
        n += alternate ? (int)rk_round_up(rows, 16) : rows;
    }
    p.mat = (rk_mat){.n = n, .k = cols, .dtype = dtype};
    if (native) p.mat.quant = shared_quant(w, &p);
    return p;
}

static int64_t mat_bytes(const rk_mat *m) {
    int64_t n = m->quant != RK_QUANT_NONE ? rk_quant_bytes(m->quant, m->n, m->k)
                                          : rk_mat_count(m->n, m->k) * rk_dtype_bytes(m->dtype);
    return rk_round_up(n, ALIGN);
}

/* Matrices of a layer: Q, K, V apart where they cannot share a type. Returns their number. */
enum { MAX_LAYER_MATS = 6 };
static int plan_layer(const rk_weights *w, rk_dtype dtype, bool native, int layer,
                      mat_plan out[MAX_LAYER_MATS]) {
    int n = 0;
    out[n++] = plan_mat(w, dtype, native, qkv_roles, 3, layer, false);
    if (native && out[0].mat.quant == RK_QUANT_NONE) {
        n = 0;
        for (int i = 0; i < 3; i++) out[n++] = plan_mat(w, dtype, native, qkv_roles + i, 1, layer, false);
    }
    out[n++] = plan_mat(w, dtype, native, o_role, 1, layer, false);
    out[n++] = plan_mat(w, dtype, native, gate_up_roles, 2, layer, true);
    out[n++] = plan_mat(w, dtype, native, down_role, 1, layer, false);
    return n;
}

static mat_plan plan_head(const rk_weights *w, rk_dtype dtype, bool native) {
    bool tied = rk_weights_config(w)->tied;
    return plan_mat(w, dtype, native, tied ? embed_role : head_role, 1, -1, false);
}

int64_t rk_model_matrix_bytes(const rk_weights *w, rk_dtype dtype, bool native, int layer_begin,
                              int layer_end, bool has_embed, bool has_head) {
    mat_plan p[MAX_LAYER_MATS], embed = plan_mat(w, dtype, native, embed_role, 1, -1, false);
    mat_plan head = plan_head(w, dtype, native);
    int64_t  sum = has_embed ? mat_bytes(&embed.mat) : 0;
    for (int l = layer_begin; l < layer_end; l++)
        for (int i = plan_layer(w, dtype, native, l, p); i-- > 0;) sum += mat_bytes(&p[i].mat);
    if (has_head && !(rk_weights_config(w)->tied && has_embed)) sum += mat_bytes(&head.mat);
    return sum;
}

static rk_status dev_alloc(rk_model *m, int64_t bytes, const char *what, void *slot) {
    void *p;
    RK_TRY(m->be->ops->alloc(m->be, bytes, what, &p));
    memcpy(slot, &p, sizeof p);
    return RK_OK;
}

/* Where output `row` of part `part`, which begins at output `at`, lies in the packed matrix. */
static int packed_row(const mat_plan *p, int part, int at, int row) {
    return p->alternate ? row / 16 * 32 + part * 16 + row % 16 : at + row;
}

static rk_status pack_quantised(rk_weights *w, const mat_plan *p, int part, int at, int rows, void *image) {
    for (int r = 0; r < rows; r++) {
        const void *stored;
        RK_TRY(rk_weights_stored_row(w, p->roles[part], p->layer, r, &stored));
        rk_quant_pack_row(p->mat.quant, image, p->mat.k, packed_row(p, part, at, r), stored);
    }
    return RK_OK;
}

static rk_status pack_values(rk_weights *w, const mat_plan *p, int part, int at, int rows, float *buf,
                             void *image) {
    for (int r = 0; r < rows; r += LOAD_ROWS) {
        int n = rows - r < LOAD_ROWS ? rows - r : LOAD_ROWS, run;
        RK_TRY(rk_weights_read(w, p->roles[part], p->layer, r, n, buf));
        for (int i = 0; i < n; i += run) {
            run = !p->alternate ? n : 16 - (r + i) % 16 < n - i ? 16 - (r + i) % 16 : n - i;
            rk_mat_pack(p->mat.dtype, image, p->mat.n, p->mat.k, packed_row(p, part, at, r + i), run,
                        buf + (int64_t)i * p->mat.k);
        }
    }
    return RK_OK;
}

static rk_status load_mat(rk_model *m, rk_weights *w, const mat_plan *p, rk_mat *out) {
    rk_status st = RK_OK;
    int64_t   bytes = mat_bytes(&p->mat);
    void     *image = NULL, *buf = NULL;
    *out = p->mat;
    RK_ASSERT(m->arena_used + bytes <= m->arena_bytes);
    out->dev = (char *)m->arena + m->arena_used;
    m->arena_used += bytes;
    RK_TRY_OUT(st, rk_mem_alloc(bytes, 1, "weight image", &image));
    RK_TRY_OUT(st, rk_mem_alloc((int64_t)LOAD_ROWS * p->mat.k, sizeof(float), "weight rows", &buf));
    for (int i = 0, at = 0, rows, cols; i < p->n_roles; i++, at += rows) {
        rk_weights_shape(w, p->roles[i], &rows, &cols);
        if (p->mat.quant != RK_QUANT_NONE)
            RK_TRY_OUT(st, pack_quantised(w, p, i, at, rows, image));
        else
            RK_TRY_OUT(st, pack_values(w, p, i, at, rows, buf, image));
    }
    RK_TRY_OUT(st, m->be->ops->upload(m->be, out->dev, image, bytes));
    if (m->spec.on_loaded) m->spec.on_loaded(m->spec.arg, m->arena_used, m->arena_bytes);
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
    m->vector_bytes += n * (int64_t)sizeof(float);
out:
    rk_mem_free(buf);
    return st;
}

static rk_status load_layer(rk_model *m, rk_weights *w, int layer, rk_layer_weights *lw) {
    static const rk_role an[] = {RK_W_ATTN_NORM}, fn[] = {RK_W_FFN_NORM};
    static const rk_role qb[] = {RK_W_Q_BIAS, RK_W_K_BIAS, RK_W_V_BIAS};
    mat_plan p[MAX_LAYER_MATS];
    int      n = plan_layer(w, m->be->weight_dtype, m->spec.native, layer, p);
    lw->n_qkv = n - 3;
    for (int i = 0; i < lw->n_qkv; i++) RK_TRY(load_mat(m, w, &p[i], &lw->qkv[i]));
    RK_TRY(load_mat(m, w, &p[n - 3], &lw->o));
    RK_TRY(load_mat(m, w, &p[n - 2], &lw->gate_up));
    RK_TRY(load_mat(m, w, &p[n - 1], &lw->down));
    for (int i = 0; m->spec.native && i < n; i++)
        if (p[i].mat.quant == RK_QUANT_NONE)
            RK_LOG(RK_LOG_DEBUG, "weights", "layer %d: %s stays in %s, %s", layer,
                   rk_role_name(p[i].roles[0]), rk_dtype_name(p[i].mat.dtype),
                   "its type has no quantised form here or its parts differ");
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
    int64_t rows = m->spec.max_rows, widest = c->d_model;
    if (c->n_heads * c->head_dim > widest) widest = c->n_heads * c->head_dim;
    RK_TRY(dev_alloc(m, rk_act_bytes(m->be, rows, widest, RK_ROWS_EXACT), "activations", &m->act));
    RK_TRY(dev_alloc(m, rk_act_bytes(m->be, RK_MLP_ROWS, c->d_ffn, RK_ROWS_EXACT), "activations", &m->ffn));
    RK_TRY(dev_alloc(m, rows * rk_qkv_width(c) * (int64_t)sizeof(float), "qkv rows", &m->qkv));
    void *p;
    RK_TRY(rk_mem_alloc(rows * c->n_heads, sizeof(int32_t), "row index", &p));
    m->index = p;
    return RK_OK;
}

rk_status rk_model_load(rk_model *m, rk_weights *w) {
    static const rk_role norm[] = {RK_W_OUT_NORM};
    const rk_model_spec *s = &m->spec;
    rk_dtype             t = m->be->weight_dtype;
    mat_plan             embed = plan_mat(w, t, s->native, embed_role, 1, -1, false);
    mat_plan             head = plan_head(w, t, s->native);
    RK_TRY(rk_mem_alloc_to(s->layer_end - s->layer_begin, sizeof(rk_layer_weights), "layers", &m->layer));
    m->arena_bytes = rk_model_matrix_bytes(w, t, s->native, s->layer_begin, s->layer_end, s->has_embed,
                                           s->has_head);
    RK_TRY(dev_alloc(m, m->arena_bytes, "weights", &m->arena));
    if (s->has_embed) RK_TRY(load_mat(m, w, &embed, &m->embed));
    for (int l = s->layer_begin; l < s->layer_end; l++)
        RK_TRY(load_layer(m, w, l, &m->layer[l - s->layer_begin]));
    if (s->has_head) {
        RK_TRY(load_vec(m, w, norm, 1, -1, &m->out_norm));
        m->head = m->embed;
        if (!m->cfg.tied || !s->has_embed) RK_TRY(load_mat(m, w, &head, &m->head));
    }
    RK_TRY(load_rope(m));
    return open_scratch(m);
}
