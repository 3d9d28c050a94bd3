/* plan.h - layers to stages, chunks, and bytes per rank. Pure arithmetic, no ranks, no memory.
 *
 * A stage owns layer groups; with groups v = 1 it owns one contiguous run of layers. */
#pragma once
#include "core/config.h"

/* Split L layers into P contiguous stages that minimise the largest stage cost.
 * Shapes: layer_cost [L] > 0; first_cost and last_cost are added to stage 0 (embedding) and to
 *         stage P - 1 (head); begin [P + 1] out: stage p owns layers begin[p] .. begin[p + 1] - 1
 * Eq:     min-max dynamic programme over (stage, layer); of equal optima the one whose first
 *         stages are smallest. Every stage gets at least one layer.
 * Errors: RK_E_USAGE P > L or P < 1 */
rk_status rk_plan_partition(int n_layers, const double *layer_cost, double first_cost,
                            double last_cost, int n_stages, int *begin);

/* Parse --partition: "auto" (begin untouched, *explicit_list false), "uniform", or "10,10,10". */
rk_status rk_plan_parse_partition(const char *text, int n_layers, int n_stages, int *begin,
                                  bool *explicit_list);

/* Relative cost of one layer and of the head for a job: prompts of n tokens prefilled, m rows
 * decoded on kept tokens. In multiply-adds. */
double rk_plan_layer_cost(const rk_config *c, double n_prompt, double n_rows, double n_kept);
double rk_plan_head_cost(const rk_config *c, double n_rows);

/* Fixed-size chunks of a prompt: chunk i covers [i * chunk, min(n, (i + 1) * chunk)). */
int64_t rk_plan_n_chunks(int64_t n_prompt, int64_t chunk);

typedef struct rk_plan_memory_spec {
    const rk_config *config;
    int     layer_begin, layer_end;
    bool    has_embed, has_head;
    int     weight_bytes, kv_bytes; /* per element: 2 for bf16, 4 for f32 */
    int64_t matrix_bytes;           /* of the matrices, where that is known better; else 0 */
    int64_t n_prompt, n_new;        /* longest prompt, new tokens */
    int     n_sequences;            /* caches alive at once */
    const int32_t *budget;          /* [L] tokens kept, or NULL: all */
    int64_t max_rows;               /* rows in flight in one step */
    int64_t max_logit_rows;         /* rows that pass the head in one step */
    int64_t observe_bytes;          /* what selections keep of prompts while they pass */
} rk_plan_memory_spec;

typedef struct rk_plan_memory {
    int64_t weights, kv_peak, kv_after, buffers, total; /* bytes; total of weights, peak, buffers */
} rk_plan_memory;

/* What one stage will hold. kv_peak: at the end of a prompt's prefill, before compression, with
 * other sequences compressed; pages of 64 slots; per layer K and V. */
void rk_plan_memory_of(const rk_plan_memory_spec *s, rk_plan_memory *out);
