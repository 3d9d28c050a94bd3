/* select.c - scores to kept positions, without sorting. */
#include "core/select.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_KERNEL = 4095, MOST_HEADS = 1024 };

rk_status rk_select_check(const rk_select_params *p) {
    if ((unsigned)p->policy >= RK_POLICIES)
        return RK_FAIL(RK_E_USAGE, "--policy: number %d is unknown", (int)p->policy);
    if (p->window < 0)
        return RK_FAIL(RK_E_USAGE, "--window %d must be at least 0", p->window);
    if (p->policy == RK_POLICY_SNAPKV && p->window < 1)
        return RK_FAIL(RK_E_USAGE, "--window %d must be at least 1 for --policy snapkv", p->window);
    if (p->sinks < 0) return RK_FAIL(RK_E_USAGE, "--sinks %d must be at least 0", p->sinks);
    if (p->kernel < 1 || p->kernel > MAX_KERNEL || p->kernel % 2 == 0)
        return RK_FAIL(RK_E_USAGE, "--kernel %d must be odd and within 1 to %d", p->kernel,
                       MAX_KERNEL);
    if (p->pool != RK_POOL_MAX && p->pool != RK_POOL_AVG)
        return RK_FAIL(RK_E_USAGE, "--pool must be max or avg");
    if (p->group_reduce != RK_REDUCE_MEAN && p->group_reduce != RK_REDUCE_MAX)
        return RK_FAIL(RK_E_USAGE, "--group-reduce must be mean or max");
    if (p->n_future < 0 || !(p->epsilon >= 0))
        return RK_FAIL(RK_E_USAGE, "future queries and epsilon must be at least 0");
    if ((unsigned)p->head_mode > RK_HEADS_BLEND_EXACT || !(p->alpha >= 0 && p->alpha <= 1))
        return RK_FAIL(RK_E_USAGE, "--alpha %g must lie in [0, 1]", p->alpha);
    return RK_OK;
}

unsigned rk_select_sees(const rk_select_params *p) {
    switch (p->policy) {
    case RK_POLICY_SNAPKV:
    case RK_POLICY_TOVA: return RK_SEE_WINDOW;
    case RK_POLICY_H2O: return RK_SEE_COLUMNS;
    case RK_POLICY_EXPECTED: return RK_SEE_MOMENTS;
    default: return 0;
    }
}

int rk_select_window(const rk_select_params *p) {
    return p->policy == RK_POLICY_SNAPKV ? p->window : p->policy == RK_POLICY_TOVA;
}

bool rk_select_needs_scores(const rk_select_params *p) {
    return p->policy != RK_POLICY_FULL && p->policy != RK_POLICY_STREAMING;
}

rk_status rk_observation_add(rk_observation *o, const rk_select_params *p) {
    unsigned sees = rk_select_sees(p);
    int      window = rk_select_window(p);
    if (sees & o->see & RK_SEE_MOMENTS && o->sinks != p->sinks)
        return RK_FAIL(RK_E_USAGE, "--policy expected with --sinks %d and with %d cannot share a prefill", o->sinks,
                       p->sinks);
    if (sees & RK_SEE_MOMENTS) o->sinks = p->sinks;
    if (window > o->window) o->window = window;
    o->see |= sees;
    o->scored = o->scored || rk_select_needs_scores(p);
    return RK_OK;
}

/* Pooled value at j of x[0 .. m). A constant stretch pools to the same bits everywhere inside: each
 * output adds its own terms in ascending order, no running sum. */
static float pool_at(const rk_select_params *p, const float *x, int64_t m, int64_t j) {
    int64_t half = p->kernel / 2;
    int64_t from = j < half ? 0 : j - half, to = j + half >= m ? m - 1 : j + half;
    if (p->pool == RK_POOL_MAX) {
        float best = x[from];
        for (int64_t i = from + 1; i <= to; i++) best = x[i] > best ? x[i] : best;
        return best;
    }
    double sum = 0;
    for (int64_t i = from; i <= to; i++) sum += (double)x[i];
    return (float)(sum / p->kernel);
}

/* One group's heads at one position: mass is [n_group][n], pooled where pool is set. */
static float reduce_at(const rk_select_params *p, int n_group, const float *mass, int64_t n,
                       int64_t m, int64_t j, bool pool) {
    double sum = 0;
    float  best = -INFINITY;
    for (int h = 0; h < n_group; h++) {
        const float *row = mass + h * n;
        float        v = pool ? pool_at(p, row, m, j) : row[j];
        sum += (double)v;
        best = v > best ? v : best;
    }
    return p->group_reduce == RK_REDUCE_MAX ? best : (float)(sum / n_group);
}

rk_status rk_select_snap_scores(const rk_select_params *p, int n_heads, int n_kv_heads, int64_t n,
                                const float *mass, float *score) {
    if (n_heads < 1 || n_kv_heads < 1 || n_heads % n_kv_heads != 0 || n < 1)
        return RK_FAIL(RK_E_BUG, "scores of %d heads over %d stored heads, %lld positions", n_heads,
                       n_kv_heads, (long long)n);
    int     n_group = n_heads / n_kv_heads;
    int64_t m = p->window < n ? n - p->window : 0; /* prefix */
    void   *mem = NULL;
    if (!p->pool_first) RK_TRY(rk_mem_alloc(m + 1, sizeof(float), "reduced scores", &mem));
    float *reduced = mem;
    for (int g = 0; g < n_kv_heads; g++) {
        const float *group = mass + (int64_t)g * n_group * n;
        float       *out = score + g * n;
        if (p->pool_first) {
            for (int64_t j = 0; j < m; j++) out[j] = reduce_at(p, n_group, group, n, m, j, true);
        } else {
            for (int64_t j = 0; j < m; j++)
                reduced[j] = reduce_at(p, n_group, group, n, m, j, false);
            for (int64_t j = 0; j < m; j++) out[j] = pool_at(p, reduced, m, j);
        }
        for (int64_t j = m; j < n; j++) out[j] = 0;
    }
    rk_mem_free(mem);
    return RK_OK;
}

/* Unsigned order of the result is the order of the floats; -0 equals 0. No NaN. */
static uint32_t key_of(float f) {
    uint32_t u;
    f += 0.0f;
    memcpy(&u, &f, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The take-th largest key of score[0 .. m), 1 <= take <= m, digit by digit from the top, and how
 * many of the positions with exactly this key belong to the take largest. */
static uint32_t threshold(const float *score, int64_t m, int64_t take, int64_t *n_equal) {
    uint32_t prefix = 0, mask = 0;
    int64_t  left = take;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int64_t count[256] = {0};
        for (int64_t j = 0; j < m; j++) {
            uint32_t k = key_of(score[j]);
            if ((k & mask) == prefix) count[k >> shift & 255]++;
        }
        uint32_t digit = 255;
        for (; count[digit] < left; digit--) left -= count[digit];
        prefix |= digit << shift;
        mask |= (uint32_t)255 << shift;
    }
    *n_equal = left;
    return prefix;
}

void rk_select_forced(const rk_select_params *p, int64_t n, int32_t budget, int64_t *first,
                      int64_t *last) {
    *first = *last = 0;
    switch (p->policy) {
    case RK_POLICY_FULL: *last = n; break;
    case RK_POLICY_STREAMING: /* the sinks go first where the budget does not hold them */
        *first = p->sinks < budget ? p->sinks : budget;
        *last = budget - *first;
        break;
    case RK_POLICY_SNAPKV: *last = p->window; break;
    case RK_POLICY_H2O: *last = p->recent < 0 ? budget / 2 : p->recent; break;
    case RK_POLICY_TOVA: *last = 1; break;
    case RK_POLICY_EXPECTED: *first = p->sinks; break;
    default: break;
    }
    if (*first > n) *first = n;
    if (*last > n - *first) *last = n - *first;
}

/* A layer's selection under way: keep [G][n], 1 where a position stays. */
typedef struct layer {
    int          G;
    int64_t      n;
    const float *score;
    uint8_t     *keep;
    float       *pool; /* [G n] scores of those that compete */
} layer;

/* Mark the `take` best of heads [from, to) that are not marked; position by position, then head by
 * head, which is the order of ties. */
static void mark_best(layer *y, int from, int to, int64_t take) {
    int64_t m = 0, n_equal = 0;
    if (take <= 0) return;
    for (int64_t j = 0; j < y->n; j++)
        for (int g = from; g < to; g++)
            if (!y->keep[g * y->n + j]) y->pool[m++] = y->score[g * y->n + j];
    uint32_t least = threshold(y->pool, m, take, &n_equal);
    m = 0;
    for (int64_t j = 0; j < y->n; j++)
        for (int g = from; g < to; g++) {
            if (y->keep[g * y->n + j]) continue;
            uint32_t k = key_of(y->pool[m++]);
            y->keep[g * y->n + j] = k > least || (k == least && n_equal-- > 0);
        }
}

static int64_t marked(const layer *y, int g) {
    int64_t sum = 0;
    for (int64_t j = 0; j < y->n; j++) sum += y->keep[g * y->n + j];
    return sum;
}

static void mark_forced(layer *y, int64_t first, int64_t last) {
    memset(y->keep, 0, (size_t)(y->G * y->n));
    for (int g = 0; g < y->G; g++) {
        memset(y->keep + g * y->n, 1, (size_t)first);
        memset(y->keep + (g + 1) * y->n - last, 1, (size_t)last);
    }
}

/* What AdaKV's blend gives each head beside the forced ones. */
static void blend(const rk_select_params *p, layer *y, int64_t forced, int64_t each, int64_t *take) {
    double  rest[MOST_HEADS];
    int64_t left = each * y->G;
    mark_best(y, 0, y->G, each * y->G);
    for (int g = 0; g < y->G; g++) {
        double c = (double)(marked(y, g) - forced);
        double want = p->head_mode == RK_HEADS_BLEND
                          ? rint((1 - p->alpha) * c + floor(p->alpha * (double)each))
                          : (1 - p->alpha) * c + p->alpha * (double)each;
        take[g] = (int64_t)floor(want);
        if (take[g] > y->n - forced) take[g] = y->n - forced;
        rest[g] = want - (double)take[g];
        left -= take[g];
    }
    for (; p->head_mode == RK_HEADS_BLEND_EXACT && left > 0; left--) {
        int best = 0;
        for (int g = 1; g < y->G; g++)
            if (rest[g] > rest[best]) best = g;
        take[best]++;
        rest[best] = -1;
    }
}

static void mark(const rk_select_params *p, layer *y, int32_t budget, int64_t first, int64_t last) {
    int64_t forced = first + last, take[MOST_HEADS], left = ((int64_t)budget - forced) * y->G;
    mark_forced(y, first, last);
    switch (p->head_mode) {
    case RK_HEADS_EQUAL:
        for (int g = 0; g < y->G; g++) mark_best(y, g, g + 1, budget - forced);
        return;
    case RK_HEADS_ADAPTIVE:
        for (int g = 0; g < y->G; g++) {
            int64_t own = (int64_t)floor(p->alpha * (double)budget) - forced;
            mark_best(y, g, g + 1, own);
            left -= own > 0 ? own : 0;
        }
        mark_best(y, 0, y->G, left);
        return;
    case RK_HEADS_BLEND:
    case RK_HEADS_BLEND_EXACT:
        blend(p, y, forced, budget - forced, take);
        mark_forced(y, first, last);
        for (int g = 0; g < y->G; g++) mark_best(y, g, g + 1, take[g]);
        return;
    }
}

/* All heads keep the forced positions and nothing else. */
static void list_forced(int64_t n, int64_t first, int64_t last, int32_t *kept) {
    for (int64_t i = 0; i < first; i++) kept[i] = (int32_t)i;
    for (int64_t i = 0; i < last; i++) kept[first + i] = (int32_t)(n - last + i);
}

static rk_status check_layer(const rk_select_params *p, int G, int64_t n, int32_t budget, int64_t forced,
                             const float *score) {
    if (n < 1 || n > INT32_MAX || budget < 1 || budget > n || G < 1 || G > MOST_HEADS)
        return RK_FAIL(RK_E_BUG, "a budget of %d tokens is outside [1, %lld]", budget, (long long)n);
    if (p->policy == RK_POLICY_FULL && budget < n)
        return RK_FAIL(RK_E_BUG, "policy full keeps all %lld positions, not %d", (long long)n, budget);
    if (forced > budget)
        return RK_FAIL(RK_E_BUG, "a budget of %d tokens is below the %lld that %s always keeps", budget,
                       (long long)forced, rk_policy_name(p->policy));
    for (int64_t i = 0; forced < budget && i < G * n; i++)
        if (isnan(score[i]))
            return RK_FAIL(RK_E_BUG, "the score of position %lld is not a number", (long long)(i % n));
    return RK_OK;
}

rk_status rk_select_layer(const rk_select_params *p, int n_kv_heads, int64_t n, int32_t budget,
                          const float *score, int32_t *kept, int32_t *count) {
    int64_t   first = 0, last = n;
    layer     y = {.G = n_kv_heads, .n = n, .score = score};
    rk_status st;
    if (budget < n) rk_select_forced(p, n, budget, &first, &last);
    RK_TRY(check_layer(p, n_kv_heads, n, budget, first + last, score));
    if (first + last == budget) {
        for (int g = 0; g < n_kv_heads; g++) {
            list_forced(n, first, last, kept + g * n);
            count[g] = budget;
        }
        return RK_OK;
    }
    RK_TRY_OUT(st, rk_mem_alloc_to(n_kv_heads * n, 1, "selection", &y.keep));
    RK_TRY_OUT(st, rk_mem_alloc_to(n_kv_heads * n, sizeof(float), "selection", &y.pool));
    mark(p, &y, budget, first, last);
    for (int g = 0; g < n_kv_heads; g++) {
        count[g] = 0;
        for (int64_t j = 0; j < n; j++)
            if (y.keep[g * n + j]) kept[g * n + count[g]++] = (int32_t)j;
    }
out:
    rk_mem_free(y.keep);
    rk_mem_free(y.pool);
    return st;
}

static const char *const POLICY_NAMES[] = {
    [RK_POLICY_FULL] = "full",
    [RK_POLICY_STREAMING] = "streaming",
    [RK_POLICY_SNAPKV] = "snapkv",
    [RK_POLICY_H2O] = "h2o",
    [RK_POLICY_TOVA] = "tova",
    [RK_POLICY_KNORM] = "knorm",
    [RK_POLICY_EXPECTED] = "expected",
    [RK_POLICY_RANDOM] = "random",
};

rk_status rk_policy_parse(const char *name, rk_policy *out) {
    for (int i = 0; i < RK_POLICIES; i++)
        if (strcmp(name, POLICY_NAMES[i]) == 0) {
            *out = (rk_policy)i;
            return RK_OK;
        }
    return RK_FAIL(RK_E_USAGE, "--policy %s: known are snapkv, streaming, h2o, tova, knorm, expected, "
                   "random and full", name);
}

const char *rk_policy_name(rk_policy p) {
    return (unsigned)p < RK_POLICIES ? POLICY_NAMES[p] : "?";
}
