/* model.h - the weights of a stage's layers in device memory, and the layers' computation.
 *
 * Llama family: x += O attend(rope(QKV rmsnorm(x))); x += down(silu(gate) * up) of rmsnorm(x).
 * Weights are packed once at load: q|k|v and gate|up fused along their outputs, all matrices of the
 * stage in one block of memory. */
#pragma once
#include "core/config.h"
#include "core/weights.h"
#include "kernels/backend.h"

typedef struct rk_model rk_model;

/* Scratch is planned for max_rows rows in one call and table_positions of RoPE.
 * Errors: RK_E_MEM; RK_E_INPUT of reading; RK_E_INPUT for a feature that is not supported */
typedef struct rk_model_spec {
    int     layer_begin, layer_end;
    bool    has_embed, has_head;
    bool    native; /* quantised matrices stay quantised, where their type is one of quant.h */
    int64_t max_rows, table_positions;
    /* Called after each tensor group is loaded (may be NULL), for progress. */
    void (*on_loaded)(void *arg, int64_t done, int64_t total);
    void *arg;
} rk_model_spec;
rk_status rk_model_open(rk_backend *be, rk_weights *w, const rk_model_spec *spec, rk_model **out);
void      rk_model_close(rk_model *m);

int64_t rk_model_weight_bytes(const rk_model *m);
/* Bytes of the matrices of layers [layer_begin, layer_end), embedding and head, before there is a
 * model. dtype: of what is not quantised */
int64_t rk_model_matrix_bytes(const rk_weights *w, rk_dtype dtype, bool native, int layer_begin,
                              int layer_end, bool has_embed, bool has_head);

/* x[i] = embedding of tokens[i]. Shapes: x dev f32 [n][D] */
rk_status rk_model_embed(rk_model *m, const int32_t *tokens, int n, float *x);

/* First half of a layer: norm, QKV, RoPE, append to each set's last span. The rotated rows stay in
 * the model's scratch until attend. Shapes: x dev f32 [n][D]; pos host i32 [n] */
rk_status rk_model_qkv(rk_model *m, int layer, const float *x, int n, rk_rows_kind kind,
                       const int32_t *pos, const rk_seq_rows *sets, int n_sets);
/* The rotated Q rows of the latest qkv call: copies rows [row0, row0 + n) to dst dev [n][H d]. */
rk_status rk_model_take_q(rk_model *m, int row0, int n, float *dst);
/* Second half: attend, then mlp; x in place. */
rk_status rk_model_finish(rk_model *m, int layer, float *x, int n, rk_rows_kind kind,
                          const rk_seq_rows *sets, int n_sets);
/* Its parts: x += O attention over the sets' chains; x += MLP of the normed rows. */
rk_status rk_model_attend(rk_model *m, int layer, float *x, int n, rk_rows_kind kind,
                          const rk_seq_rows *sets, int n_sets);
rk_status rk_model_mlp(rk_model *m, int layer, float *x, int n, rk_rows_kind kind);

/* Logits of n rows of x (all rows 0..n-1). Shapes: logits dev f32 [n][V] */
rk_status rk_model_head(rk_model *m, const float *x, int n, rk_rows_kind kind, float *logits);

rk_attn_shape rk_model_attn(const rk_model *m);
