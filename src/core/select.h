/* select.h - which positions of a layer stay in the cache.
 *
 * Pure: scores in, positions out. Definitions: SnapKV (window sums of softmax rows, group reduce,
 * pooling over the prefix), StreamingLLM (sinks and recent). Forced tokens are kept and count in
 * the budget; the rest by score, ties to the lower position; kept positions ascend. */
#pragma once
#include "base/err.h"

typedef enum rk_policy { RK_POLICY_FULL, RK_POLICY_STREAMING, RK_POLICY_SNAPKV } rk_policy;
typedef enum rk_pool { RK_POOL_MAX, RK_POOL_AVG } rk_pool;
typedef enum rk_reduce { RK_REDUCE_MEAN, RK_REDUCE_MAX } rk_reduce;

typedef struct rk_select_params {
    rk_policy policy;
    int       window, sinks;
    rk_pool   pool;
    int       kernel;       /* odd */
    rk_reduce group_reduce;
    bool      pool_first;   /* pool each query head, then reduce the group */
} rk_select_params;

/* Errors: RK_E_USAGE naming the option: even kernel, negative window, ... */
rk_status rk_select_check(const rk_select_params *p);

/* Does the policy read attention scores (the window sums of snap_scores)? */
bool rk_select_needs_scores(const rk_select_params *p);

/* SnapKV scores of the prefix.
 * Shapes: mass [H][n] f32, window sums per query head (entries >= n - window are ignored);
 *         score [G][n] f32 out, 0 from n - window on
 * Eq:     mean or max over the group's H/G heads, then pool over j < n - window (avg divides by
 *         kernel always; max ignores what lies beyond the ends); pool_first swaps the two */
rk_status rk_select_snap_scores(const rk_select_params *p, int n_heads, int n_kv_heads, int64_t n,
                                const float *mass, float *score);

/* Positions kept by one stored head.
 * Shapes: score [n] f32 (NULL for streaming and full); kept [budget] out, ascending
 * Errors: RK_E_BUG budget outside [1, n] */
rk_status rk_select_head(const rk_select_params *p, int64_t n, int32_t budget, const float *score,
                         int32_t *kept);

rk_status   rk_policy_parse(const char *name, rk_policy *out);
const char *rk_policy_name(rk_policy p);
