/* curve.c - see curve.h. */
#include "core/curve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "core/budget.h"

static const double FLOOR = 1e-12; /* nats: below it a damage is rounding, for logarithms */

static const char *const names[RK_CURVE_MEANS] = {"mean", "normalised", "geometric", "median"};

rk_status rk_curve_mean_parse(const char *name, rk_curve_mean *out) {
    for (int i = 0; i < RK_CURVE_MEANS; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (rk_curve_mean)i;
            return RK_OK;
        }
    return RK_FAIL(RK_E_USAGE, "--curve-mean %.40s: known are mean, normalised, geometric, median",
                   name);
}

const char *rk_curve_mean_name(rk_curve_mean m) {
    return (unsigned)m < RK_CURVE_MEANS ? names[m] : "?";
}

/* ---- documents to one curve a layer ---- */

static bool complete(const rk_curve_data *d, int i) {
    int64_t n = (int64_t)d->n_levels * d->n_layers;
    for (int64_t k = 0; k < n; k++)
        if (isnan(d->damage[i * n + k])) return false;
    return true;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double average(double *x, int n, rk_curve_mean mean) {
    double sum = 0;
    if (mean == RK_CURVE_MEDIAN) {
        qsort(x, (size_t)n, sizeof *x, by_value);
        return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
    }
    for (int i = 0; i < n; i++) sum += mean == RK_CURVE_GEOMETRIC ? log(fmax(x[i], FLOOR)) : x[i];
    return mean == RK_CURVE_GEOMETRIC ? exp(sum / n) : sum / n;
}

/* Averaged damages [K][L]. Shapes: list, x [N] scratch */
static rk_status average_all(const rk_curve_data *d, rk_curve_mean mean, const bool *use, int *list,
                             double *x, double *out) {
    int     n = 0;
    int64_t each = (int64_t)d->n_levels * d->n_layers;
    for (int i = 0; i < d->n_documents; i++)
        if ((!use || use[i]) && complete(d, i)) list[n++] = i;
    if (n == 0)
        return RK_FAIL(RK_E_INPUT, "no document has all its damages measured: profile again");
    for (int64_t k = 0; k < each; k++) {
        for (int i = 0; i < n; i++) {
            const double *row = d->damage + list[i] * each;
            double        own = 1;
            if (!(row[k] >= 0) || isinf(row[k]))
                return RK_FAIL(RK_E_INPUT, "damage %g is not a number >= 0: profile again", row[k]);
            if (mean == RK_CURVE_NORMALISED) {
                own = 0;
                for (int64_t j = 0; j < each; j++) own += row[j] / (double)each;
            }
            x[i] = own > 0 ? row[k] / own : 0;
        }
        out[k] = average(x, n, mean);
    }
    return RK_OK;
}

/* Damage at half the lowest level. */
static double below(double f1, double d1, double f2, double d2) {
    double line = d1 + (d1 - d2) / (f2 - f1) * f1 / 2, law = line;
    if (d1 > 0 && d2 > 0) law = d1 * exp2(log(d1 / d2) / log(f2 / f1));
    return fmax(line, fmin(law, 4 * d1));
}

/* Points of a layer from 0 to 1, non-increasing. Returns their number, K + 3 at most. */
static int points_of(const rk_curve_data *d, const double *mean, int layer, double *share,
                     double *damage) {
    int n = 2, K = d->n_levels;
    for (int k = 0; k < K; k++) {
        if (d->levels[k] >= 1) break;
        share[n] = d->levels[k];
        damage[n++] = mean[(int64_t)k * d->n_layers + layer];
    }
    share[n] = 1;
    damage[n++] = 0;
    for (int i = n - 2; i >= 2; i--) damage[i] = fmax(damage[i], damage[i + 1]);
    share[1] = share[2] / 2;
    damage[1] = below(share[2], damage[2], share[3], damage[3]);
    share[0] = 0;
    damage[0] = 2 * damage[1] - damage[2];
    return n;
}

/* The lower convex hull of n points, in place; returns how many stay. */
static int hull(int n, double *share, double *damage) {
    int m = 0;
    for (int i = 0; i < n; i++) {
        while (m >= 2) {
            double before = (damage[m - 1] - damage[m - 2]) * (share[i] - share[m - 1]);
            double after = (damage[i] - damage[m - 1]) * (share[m - 1] - share[m - 2]);
            if (before < after) break; /* convex: the slope rises */
            m--;
        }
        share[m] = share[i];
        damage[m++] = damage[i];
    }
    return m;
}

void rk_curve_free(rk_curve *c) {
    rk_mem_free(c->n_points);
    rk_mem_free(c->share);
    rk_mem_free(c->damage);
    *c = (rk_curve){0};
}

rk_status rk_curve_build(const rk_curve_data *d, rk_curve_mean mean, const bool *use, bool raw,
                         rk_curve *out) {
    int       L = d->n_layers, cap = d->n_levels + 3, *list = NULL;
    double   *x = NULL, *all = NULL;
    rk_curve  c = {.n_layers = L, .cap = cap, .lowest = d->n_levels > 0 ? d->levels[0] : 0};
    rk_status st;
    if (L < 1 || d->n_levels < 1 || !(d->levels[0] > 0) || d->levels[0] >= 1)
        return RK_FAIL(RK_E_INPUT, "damage curves want a level below 1");
    RK_TRY_OUT(st, rk_mem_alloc_to(d->n_documents, sizeof(int), "documents", &list));
    RK_TRY_OUT(st, rk_mem_alloc_to(d->n_documents, sizeof(double), "damages", &x));
    RK_TRY_OUT(st, rk_mem_alloc_to((int64_t)d->n_levels * L, sizeof(double), "damages", &all));
    RK_TRY_OUT(st, rk_mem_alloc_to(L, sizeof(int), "curves", &c.n_points));
    RK_TRY_OUT(st, rk_mem_alloc_to((int64_t)L * cap, sizeof(double), "curves", &c.share));
    RK_TRY_OUT(st, rk_mem_alloc_to((int64_t)L * cap, sizeof(double), "curves", &c.damage));
    RK_TRY_OUT(st, average_all(d, mean, use, list, x, all));
    for (int l = 0; l < L; l++) {
        double *s = c.share + (int64_t)l * cap, *y = c.damage + (int64_t)l * cap;
        c.n_points[l] = points_of(d, all, l, s, y);
        if (!raw) c.n_points[l] = hull(c.n_points[l], s, y);
    }
    *out = c;
    c = (rk_curve){0};
out:
    rk_mem_free(list);
    rk_mem_free(x);
    rk_mem_free(all);
    rk_curve_free(&c);
    return st;
}

/* ---- damage at a share ---- */

/* The segment [i, i + 1] of a layer that holds a share. */
static int segment_of(const rk_curve *c, int layer, double share) {
    const double *s = c->share + (int64_t)layer * c->cap;
    int           i = 0;
    while (i + 2 < c->n_points[layer] && s[i + 1] <= share) i++;
    return i;
}

double rk_curve_at(const rk_curve *c, int layer, double share) {
    const double *s = c->share + (int64_t)layer * c->cap, *y = c->damage + (int64_t)layer * c->cap;
    int           i = segment_of(c, layer, share);
    return y[i] + (y[i + 1] - y[i]) * ((share - s[i]) / (s[i + 1] - s[i]));
}

double rk_curve_total(const rk_curve *c, const int32_t *budget, int64_t n) {
    double sum = 0;
    for (int l = 0; l < c->n_layers; l++) sum += rk_curve_at(c, l, (double)budget[l] / (double)n);
    return sum;
}

/* ---- the minimiser ---- */

/* What the next token of a layer at b saves, and for how many tokens that stays so: all that lie
 * within one segment, or the one that crosses a corner. */
static double saving(const rk_curve *c, int layer, int64_t b, int64_t n, int64_t *run) {
    const double *s = c->share + (int64_t)layer * c->cap, *y = c->damage + (int64_t)layer * c->cap;
    int           i = segment_of(c, layer, (double)b / (double)n);
    int64_t       end = (int64_t)floor(s[i + 1] * (double)n); /* last token that ends within it */
    if (s[i + 1] >= 1) end = n;
    if (end > b) {
        *run = end - b;
        return (y[i] - y[i + 1]) / (s[i + 1] - s[i]) / (double)n;
    }
    *run = 1;
    return rk_curve_at(c, layer, (double)b / (double)n) -
           rk_curve_at(c, layer, (double)(b + 1) / (double)n);
}

rk_status rk_curve_minimise(const rk_curve *c, int64_t lo, int64_t n, int64_t total,
                            int32_t *budget) {
    int     L = c->n_layers;
    int64_t left = total - lo * L;
    if (lo < 0 || lo > n || n < 1 || n > INT32_MAX || left < 0 || total > n * L)
        return RK_FAIL(RK_E_BUG, "budget total %lld lies outside [%lld, %lld]", (long long)total,
                       (long long)(lo * L), (long long)(n * L));
    for (int l = 0; l < L; l++) budget[l] = (int32_t)lo;
    while (left > 0) {
        int     best = -1;
        double  most = 0;
        int64_t take = 0;
        for (int l = 0; l < L; l++) {
            int64_t run;
            if (budget[l] == n) continue;
            double s = saving(c, l, budget[l], n, &run);
            if (best >= 0 && !(s > most)) continue;
            best = l, most = s, take = run;
        }
        if (take > left) take = left;
        budget[best] += (int32_t)take;
        left -= take;
    }
    return RK_OK;
}

/* Budgets towards uniform. */
static rk_status shrink(double s, int L, int64_t lo, int64_t n, int64_t total, int32_t *budget) {
    double *share;
    if (s <= 0) return RK_OK;
    RK_TRY(rk_mem_alloc_to(L, sizeof(double), "layer shares", &share));
    double even = (double)total / L;
    for (int l = 0; l < L; l++) share[l] = pow((double)budget[l], 1 - s) * pow(even, s);
    rk_status st = rk_budget_integerise(L, share, lo, n, total, budget);
    rk_mem_free(share);
    return st;
}

static rk_status split(const rk_curve *c, double s, int64_t lo, int64_t n, int64_t total,
                       int32_t *budget) {
    int64_t least = (int64_t)ceil(c->lowest * (double)n);
    if (least > total / c->n_layers) least = total / c->n_layers;
    RK_TRY(rk_curve_minimise(c, least > lo ? least : lo, n, total, budget));
    return shrink(s, c->n_layers, lo, n, total, budget);
}

rk_status rk_curve_split(const rk_curve_data *d, const rk_curve_choice *choice, int64_t lo,
                         int64_t n, int64_t total, int32_t *budget) {
    rk_curve c;
    if (!(choice->shrink >= 0 && choice->shrink <= 1))
        return RK_FAIL(RK_E_USAGE, "--shrink %g must lie in [0, 1]", choice->shrink);
    RK_TRY(rk_curve_build(d, choice->mean, NULL, false, &c));
    rk_status st = split(&c, choice->shrink, lo, n, total, budget);
    rk_curve_free(&c);
    return st;
}

/* ---- cross-validation ---- */

enum { SPLITS = 16, SHRINKS = 4, RATIOS = 3 };
static const double shrinks[SHRINKS] = {0, 0.25, 0.5, 0.75}, ratios[RATIOS] = {0.1, 0.2, 0.3};

/* A random half of the complete documents. */
static void draw_half(const rk_curve_data *d, uint64_t seed, int which, bool *train, bool *test) {
    int left = 0, want;
    for (int i = 0; i < d->n_documents; i++) left += complete(d, i);
    want = left / 2;
    for (int i = 0; i < d->n_documents; i++) {
        train[i] = test[i] = false;
        if (!complete(d, i)) continue;
        uint32_t c[4] = {(uint32_t)i, (uint32_t)which, 0x63757276u /* "curv" */, 0};
        rk_rng_philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
        bool take = (uint64_t)c[0] * (uint64_t)left >> 32 < (uint64_t)want; /* selection sampling */
        train[i] = take;
        test[i] = !take;
        want -= take;
        left--;
    }
}

/* Add to score [MEANS][SHRINKS] what budgets from train cost on test, beside uniform. */
static rk_status judge(const rk_curve_data *d, const bool *train, const bool *test, int64_t lo,
                       int64_t n, int32_t *budget, double score[RK_CURVE_MEANS][SHRINKS]) {
    int       L = d->n_layers;
    rk_curve  held, c = {0};
    rk_status st;
    RK_TRY(rk_curve_build(d, RK_CURVE_MEAN, test, true, &held));
    for (int m = 0; m < RK_CURVE_MEANS; m++) {
        RK_TRY_OUT(st, rk_curve_build(d, (rk_curve_mean)m, train, false, &c));
        for (int r = 0; r < RATIOS; r++) {
            int64_t total = (int64_t)(ratios[r] * (double)n * L);
            if (total < lo * L) total = lo * L;
            double even = 0;
            for (int l = 0; l < L; l++)
                even += rk_curve_at(&held, l, (double)total / L / (double)n);
            for (int s = 0; s < SHRINKS; s++) {
                RK_TRY_OUT(st, split(&c, shrinks[s], lo, n, total, budget));
                score[m][s] += (even > 0 ? rk_curve_total(&held, budget, n) / even : 1) / RATIOS;
            }
        }
        rk_curve_free(&c);
    }
    st = RK_OK;
out:
    rk_curve_free(&c);
    rk_curve_free(&held);
    return st;
}

rk_status rk_curve_choose(const rk_curve_data *d, int64_t lo, int64_t n, uint64_t seed,
                          rk_curve_choice *out) {
    double    score[RK_CURVE_MEANS][SHRINKS] = {{0}};
    int       usable = 0;
    bool     *half = NULL;
    int32_t  *budget = NULL;
    rk_status st = RK_OK;
    *out = (rk_curve_choice){.mean = RK_CURVE_NORMALISED, .shrink = 0.25};
    for (int i = 0; i < d->n_documents; i++) usable += complete(d, i);
    if (usable < 4) return RK_OK;
    RK_TRY_OUT(st, rk_mem_alloc_to(2 * (int64_t)d->n_documents, sizeof(bool), "documents", &half));
    RK_TRY_OUT(st, rk_mem_alloc_to(d->n_layers, sizeof(int32_t), "budgets", &budget));
    for (int i = 0; i < SPLITS; i++) {
        bool *a = half, *b = half + d->n_documents;
        draw_half(d, seed, i, a, b);
        RK_TRY_OUT(st, judge(d, a, b, lo, n, budget, score));
        RK_TRY_OUT(st, judge(d, b, a, lo, n, budget, score));
    }
    out->score = INFINITY;
    for (int m = 0; m < RK_CURVE_MEANS; m++)
        for (int s = 0; s < SHRINKS; s++)
            if (score[m][s] / (2 * SPLITS) < out->score)
                *out = (rk_curve_choice){(rk_curve_mean)m, shrinks[s], score[m][s] / (2 * SPLITS)};
out:
    rk_mem_free(half);
    rk_mem_free(budget);
    return st;
}
