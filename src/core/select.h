/* select.h - which positions of a layer stay in the cache.
 *
 * Pure: scores in, positions out; scores are made in observe.h. A policy forces some of the first and
 * last positions, which count in the budget; the others compete by score, larger first, ties to the
 * lower position (between heads: to the lower position, then the lower head). Kept positions ascend.
 *
 *   policy     forced             score of position j in a stored head
 *   full       all                -
 *   streaming  sinks first, rest  - (StreamingLLM)
 *   snapkv     last window        softmax rows of the last window queries, summed; heads of the group
 *                                 reduced, then pooled over the prefix (--pool-first: the other way)
 *   h2o        last recent        the same sum over all queries of the prompt, not pooled
 *   tova       last 1             softmax row of the last query, mean over all heads of the layer
 *   knorm      none               - || k ||
 *   expected   first sinks        attention expected of the next n_future queries, from mean and
 *                                 covariance of the prompt's; times || v || (ExpectedAttention)
 *   random     none               a uniform number of (seed, layer, head, position) */
#pragma once
#include "base/err.h"

typedef enum rk_policy {
    RK_POLICY_FULL,
    RK_POLICY_STREAMING,
    RK_POLICY_SNAPKV,
    RK_POLICY_H2O,
    RK_POLICY_TOVA,
    RK_POLICY_KNORM,
    RK_POLICY_EXPECTED,
    RK_POLICY_RANDOM,
    RK_POLICIES,
} rk_policy;
typedef enum rk_pool { RK_POOL_MAX, RK_POOL_AVG } rk_pool;
typedef enum rk_reduce { RK_REDUCE_MEAN, RK_REDUCE_MAX } rk_reduce;

/* How a layer's total, budget x stored heads, is shared among its heads. */
typedef enum rk_head_mode {
    RK_HEADS_EQUAL,
    RK_HEADS_ADAPTIVE, /* each head keeps its best floor(alpha budget), forced ones counted; the rest
                          goes to the best scores of all heads (AdaKV's idea, kvpress' rule) */
    RK_HEADS_BLEND,    /* AdaKV's original: c = the head's share of the best (budget - forced) G of all;
                          it keeps round-half-even((1 - alpha) c + floor(alpha (budget - forced))) and
                          the forced ones. The total may drift by a few tokens */
    RK_HEADS_BLEND_EXACT, /* (1 - alpha) c + alpha (budget - forced), made whole by the largest
                             remainders (tie: lower head) */
} rk_head_mode;

/* Zero is a valid setting of every field but kernel (recent: none is forced). Compared and hashed as bytes: make it from
 * (rk_select_params){0}. */
typedef struct rk_select_params {
    rk_policy    policy;
    int          window, sinks;
    rk_pool      pool;
    int          kernel;       /* odd */
    rk_reduce    group_reduce; /* snapkv, h2o */
    bool         pool_first;   /* pool each query head, then reduce the group */
    bool         per_visible;  /* h2o: sums divided by the n - j queries that see j (kvpress) */
    bool         no_covariance, no_value_norm; /* expected */
    int          recent;       /* h2o: last tokens forced; < 0: half of the budget */
    int          n_future;     /* expected; 0: 512 */
    rk_head_mode head_mode;
    double       alpha;        /* head modes but equal: in [0, 1] */
    double       epsilon;      /* expected: added to the score before the value's norm */
    uint64_t     seed;         /* random */
} rk_select_params;

/* Errors: RK_E_USAGE naming the option: even kernel, negative window, ... */
rk_status rk_select_check(const rk_select_params *p);

/* What has to be seen while the prompt passes, as bits. */
enum {
    RK_SEE_WINDOW = 1,  /* the last rk_select_window rotated queries */
    RK_SEE_COLUMNS = 2, /* sums over all queries of their softmax rows */
    RK_SEE_MOMENTS = 4, /* mean and covariance of unrotated queries */
};
unsigned rk_select_sees(const rk_select_params *p);
int      rk_select_window(const rk_select_params *p); /* queries at the prompt's end */
bool     rk_select_needs_scores(const rk_select_params *p);

/* What the policies of a run need together. */
typedef struct rk_observation {
    unsigned see;
    int      window, sinks; /* sinks: of expected */
    bool     scored;        /* some policy reads scores */
} rk_observation;
/* Errors: RK_E_USAGE two policies expected with different --sinks */
rk_status rk_observation_add(rk_observation *o, const rk_select_params *p);

/* Group reduce and pooling of a window's mass: SnapKV's scores of the prefix.
 * Shapes: mass [H][n] f32, sums per query head (entries >= n - window are ignored);
 *         score [G][n] f32 out, 0 from n - window on
 * Eq:     mean or max over the group's H/G heads, then pool over j < n - window (avg divides by
 *         kernel always; max ignores what lies beyond the ends); pool_first swaps the two */
rk_status rk_select_snap_scores(const rk_select_params *p, int n_heads, int n_kv_heads, int64_t n,
                                const float *mass, float *score);

/* Positions forced at both ends under a budget. */
void rk_select_forced(const rk_select_params *p, int64_t n, int32_t budget, int64_t *first,
                      int64_t *last);

/* Positions kept by each stored head of a layer.
 * Shapes: score [G][n] f32 (NULL where the policy needs none); kept [G][n] out, ascending, the first
 *         count[g] of row g; count [G] out, summing to budget G (head mode blend: about)
 * Errors: RK_E_BUG budget outside [1, n] or below what is forced, a score that is not a number */
rk_status rk_select_layer(const rk_select_params *p, int n_kv_heads, int64_t n, int32_t budget,
                          const float *score, int32_t *kept, int32_t *count);

rk_status   rk_policy_parse(const char *name, rk_policy *out);
const char *rk_policy_name(rk_policy p);
