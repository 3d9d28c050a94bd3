/* observe.h - what a selection learns from a prompt: taken from its rows as they pass, chunk by
 * chunk, in one layer; and the scores made of it.
 *
 * Scores do not depend on how the prompt was cut into chunks, nor on threads: column sums are made
 * of blocks of 64 queries at fixed positions, moments row by row in ascending position. */
#pragma once
#include "core/select.h"
#include "kernels/backend.h"

typedef struct rk_observe  rk_observe;  /* what all observers of a stage share */
typedef struct rk_observer rk_observer; /* of one layer and sequence */

typedef struct rk_observe_spec {
    rk_attn_shape shape;
    unsigned      see;    /* RK_SEE_ bits */
    int           window; /* queries kept of the prompt's end */
    int           sinks;  /* moments begin behind them */
    int64_t       max_prompt;
    const double *rope_speed; /* [d/2] radians per position, for moments; must outlive */
} rk_observe_spec;

/* Owner: be must outlive it, and it the observers. Errors: RK_E_MEM */
rk_status rk_observe_open(rk_backend *be, const rk_observe_spec *spec, rk_observe **out);
void      rk_observe_close(rk_observe *s);
rk_status rk_observer_open(rk_observe *s, rk_observer **out);
void      rk_observer_close(rk_observer *o);
/* Host and device memory of the shared part, and of one observer. */
int64_t   rk_observe_bytes(const rk_observe_spec *spec);
int64_t   rk_observer_bytes(const rk_observe_spec *spec);

/* A prompt of n tokens begins. */
void rk_observer_begin(rk_observer *o, int64_t n_prompt);

/* Whether any of the rows at positions [pos0, pos0 + m) is of interest. */
bool rk_observer_wants(const rk_observer *o, int64_t pos0, int m);

/* Rows at positions pos0 .. pos0 + m - 1, which follow those seen before.
 * Shapes: q dev f32 [m][H d] rotated; spans [G] the layer's chain, which holds at least their keys,
 *         slot = position */
rk_status rk_observer_rows(rk_observer *o, const float *q, int64_t pos0, int m,
                           const rk_span *spans);

/* What CAKE's allocator asks of a layer: over all heads, queries of the window kept and positions
 * before it, entropy = - sum a log(a + 1e-10), and variance = the sum over heads and positions of
 * the unbiased variance over the queries (0 for one). In f64, heads, then queries, then positions
 * ascending. Errors: RK_E_BUG no window is observed; RK_E_MEM */
rk_status rk_observer_attention(rk_observer *o, const rk_span *spans, double *entropy,
                                double *variance);

/* Scores of all positions under a policy (select.h). layer, counted over the whole model, is of the
 * policy random. Shapes: spans [G] of the whole prompt; score host [G][n] f32 out
 * Errors: RK_E_BUG what the policy reads was not seen */
rk_status rk_observer_scores(rk_observer *o, const rk_select_params *p, const rk_span *spans,
                             int layer, float *score);
