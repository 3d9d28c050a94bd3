/* model_internal.h - the model's state, shared by model.c and model_load.c. */
#pragma once
#include "core/model.h"

enum { RK_MLP_ROWS = 512 }; /* rows per pass of the MLP: its activations stay in the cache */

typedef struct rk_layer_weights {
    rk_mat qkv[3]; /* one matrix, or Q, K and V apart where the file has them in different types */
    int    n_qkv;
    rk_mat o, gate_up, down;
    float *attn_norm, *ffn_norm, *qkv_bias; /* dev; qkv_bias NULL where the family has none */
} rk_layer_weights;

struct rk_model {
    rk_backend       *be;
    rk_config         cfg;
    rk_model_spec     spec;
    rk_layer_weights *layer; /* [layer_end - layer_begin] */
    rk_mat            embed, head;
    void             *arena; /* dev: all matrices, one after the other */
    int64_t           arena_used, arena_bytes;
    float            *out_norm, *rope; /* dev */
    int64_t           vector_bytes;

    /* scratch, dev */
    void    *act;   /* activations of width D or H d */
    void    *ffn;   /* activations (RK_MLP_ROWS, F) */
    float   *qkv;   /* [max_rows][(H + 2G) d] */
    int32_t *index; /* host [max_rows * H] for take_q */
};

static inline int rk_qkv_width(const rk_config *c) {
    return (c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
}

/* Everything that open brings onto the device; close frees what is there after a failure. */
rk_status rk_model_load(rk_model *m, rk_weights *w);
