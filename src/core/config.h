/* config.h - what a decoder-only transformer of the Llama family is made of.
 *
 * Symbols of shapes, used in every header: L layers, D model width, H query heads, G stored (kv)
 * heads, d head dim, F ffn width, V vocabulary rows. Query head h reads stored head h / (H / G). */
#pragma once
#include "base/err.h"

enum { RK_MAX_STOP = 16, RK_NAME_LEN = 128 };

typedef enum rk_rope_scaling { RK_ROPE_PLAIN, RK_ROPE_LINEAR, RK_ROPE_LLAMA3 } rk_rope_scaling;

typedef struct rk_config {
    char    arch[32];           /* "llama", "mistral", "qwen2", "qwen3" */
    char    name[RK_NAME_LEN];  /* for people; may be empty */
    int     n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ffn, n_vocab;
    int64_t max_positions;
    double  rms_eps, rope_theta;
    bool    tied;               /* the head is the embedding table */
    bool    qkv_bias, qk_norm;  /* Qwen2; Qwen3 */

    rk_rope_scaling rope_scaling;
    double  rope_factor, rope_low_freq, rope_high_freq; /* llama3 scaling; factor also for linear */
    int64_t rope_original_positions;

    int32_t bos;                /* -1: none */
    int32_t stop[RK_MAX_STOP];  /* every token that ends a generation */
    int     n_stop;
} rk_config;

/* Check ranges and divisibility; origin begins the message.
 * Errors: RK_E_INPUT naming the field and its value */
rk_status rk_config_check(const rk_config *c, const char *origin);

/* Hash of the config values that shape the computation and of the shapes of the model's tensors by
 * role: the same for an HF folder and its GGUF (model_shape_hash). */
uint64_t rk_config_shape_hash(const rk_config *c);

/* cos and sin of position x frequency, angles in f64, rounded to f32.
 * Shapes: out [n][d] = d/2 cosines, then d/2 sines, of positions first .. first + n - 1 */
void rk_config_rope_speeds(const rk_config *c, double *speed); /* [d/2] radians per position */
void rk_config_rope_table(const rk_config *c, int64_t first, int64_t n, float *out);
