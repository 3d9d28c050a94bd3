/* curve.h - budgets that minimise measured damage: RippleKV's own allocator.
 *
 * Measured is, for each layer l and a few kept shares f_1 < ... < f_K of the prompt, the damage
 * D_l(f): the KL divergence of the next-token distributions when only layer l is cut by the real
 * policy, in nats; D_l(1) = 0. The damages of several layers about add up. So the budgets are those
 * that minimise sum_l D_l(b_l / n) subject to sum b_l = total, lo <= b_l <= n, in whole tokens.
 *
 * Curves are shares of the prompt against nats, so that one profile serves all lengths and ratios.
 * Over documents they are averaged (rk_curve_mean), made non-increasing (a point is raised to the
 * highest one at a larger share), continued below the lowest level, and replaced by their lower
 * convex hull. Below f_1 one more point stands at f_1 / 2, on the power law through the two lowest
 * levels, but not below the straight line through them and not above 4 D(f_1); the line through it
 * and f_1 goes on below. A power law, since measured curves are nearly straight in log D against
 * log f.
 *
 * No layer gets less than the lowest measured share while the total allows that: what lies below
 * was not measured, and what a layer suffers there is no continuation (at SnapKV's floor of the
 * window alone, the prompt's first tokens go, which attention leans on).
 *
 * With convex curves the greedy is exact: tokens go one run of a hull's segment after the other to
 * the layer whose next token saves most; of equal ones to the lower layer. So the result is
 * monotone in the total. Shrinkage moves the budgets towards uniform: shares are curve^(1 - s) *
 * uniform^s, through the one integeriser. */
#pragma once
#include "base/err.h"

typedef enum rk_curve_mean {
    RK_CURVE_MEAN,       /* over documents */
    RK_CURVE_NORMALISED, /* each document's damages divided by their own mean first */
    RK_CURVE_GEOMETRIC,
    RK_CURVE_MEDIAN,
    RK_CURVE_MEANS,
} rk_curve_mean;

/* Measured damages. Shapes: levels [K] ascending in (0, 1]; damage [N][K][L] >= 0, rows with NaN
 * are not used. Borrowed. */
typedef struct rk_curve_data {
    int           n_layers, n_levels, n_documents; /* L, K, N */
    const double *levels, *damage;
} rk_curve_data;

typedef struct rk_curve_choice {
    rk_curve_mean mean;
    double        shrink; /* in [0, 1]; 1: uniform */
    double        score;  /* of rk_curve_choose: held-out damage beside uniform's; else 0 */
} rk_curve_choice;

/* Convex damage curves of all layers. */
typedef struct rk_curve {
    int     n_layers;
    int    *n_points;       /* [L] */
    double *share, *damage; /* [L][cap] ascending shares, from 0 to 1 */
    int     cap;
    double  lowest; /* measured share */
} rk_curve;

/* Hulls of the documents in use (NULL: all), or with raw the averaged curves before the hull.
 * Owner: rk_curve_free. Errors: RK_E_INPUT no complete document, or a negative damage; RK_E_MEM */
rk_status rk_curve_build(const rk_curve_data *d, rk_curve_mean mean, const bool *use, bool raw,
                         rk_curve *out);
void      rk_curve_free(rk_curve *c);

/* Damage of a layer at a share, linear between points. */
double rk_curve_at(const rk_curve *c, int layer, double share);
/* Sum over layers of the damage at budget[l] of n tokens. */
double rk_curve_total(const rk_curve *c, const int32_t *budget, int64_t n);

/* The exact minimiser over convex curves. Shapes: budget [L] out
 * Errors: RK_E_BUG total outside [lo L, n L] */
rk_status rk_curve_minimise(const rk_curve *c, int64_t lo, int64_t n, int64_t total,
                            int32_t *budget);

/* Build, minimise above the lowest measured share, shrink. */
rk_status rk_curve_split(const rk_curve_data *d, const rk_curve_choice *choice, int64_t lo,
                         int64_t n, int64_t total, int32_t *budget);

/* Choose mean and shrinkage by cross-validation on these documents alone: the documents are split
 * into halves in 16 ways (seeded), both ways round; budgets for 10, 20 and 30 % of n tokens are
 * made from one half and judged by the other's mean damage (raw curves, summed over layers),
 * divided by uniform's there; the mean over all is the score. The grid: all means, shrinkage 0,
 * 0.25, 0.5, 0.75. With fewer than 4 complete documents there is nothing to judge by: normalised,
 * 0.25, which the pilot's documents chose (allocation by few documents). Errors: as of build */
rk_status rk_curve_choose(const rk_curve_data *d, int64_t lo, int64_t n, uint64_t seed,
                          rk_curve_choice *out);

rk_status   rk_curve_mean_parse(const char *name, rk_curve_mean *out); /* RK_E_USAGE */
const char *rk_curve_mean_name(rk_curve_mean m);
