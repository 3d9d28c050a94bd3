/* select.c - scores to kept positions, without sorting and without allocating. */
#include "core/select.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_KERNEL = 4095 };

rk_status rk_select_check(const rk_select_params *p) {
    if ((unsigned)p->policy > RK_POLICY_SNAPKV)
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
    return RK_OK;
}

bool rk_select_needs_scores(const rk_select_params *p) {
    return p->policy == RK_POLICY_SNAPKV;
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

static rk_status keep_snap(const rk_select_params *p, int64_t n, int32_t budget, const float *score,
                           int32_t *kept) {
    int64_t window = p->window < n ? p->window : n, m = n - window, take = budget - window;
    if (take < 0)
        return RK_FAIL(RK_E_BUG, "a budget of %d tokens is below the window of %lld", budget,
                       (long long)window);
    for (int64_t j = 0; j < m; j++)
        if (isnan(score[j]))
            return RK_FAIL(RK_E_BUG, "the score of position %lld is not a number", (long long)j);
    int64_t at = 0, n_equal = 0;
    if (take > 0) {
        uint32_t t = threshold(score, m, take, &n_equal);
        for (int64_t j = 0; j < m; j++) {
            uint32_t k = key_of(score[j]);
            if (k > t || (k == t && n_equal-- > 0)) kept[at++] = (int32_t)j;
        }
    }
    for (int64_t j = m; j < n; j++) kept[at++] = (int32_t)j;
    RK_ASSERT(at == budget);
    return RK_OK;
}

rk_status rk_select_head(const rk_select_params *p, int64_t n, int32_t budget, const float *score,
                         int32_t *kept) {
    if (n < 1 || n > INT32_MAX || budget < 1 || budget > n)
        return RK_FAIL(RK_E_BUG, "a budget of %d tokens is outside [1, %lld]", budget,
                       (long long)n);
    if (budget < n && p->policy == RK_POLICY_FULL)
        return RK_FAIL(RK_E_BUG, "policy full keeps all %lld positions, not %d", (long long)n,
                       budget);
    if (budget < n && p->policy == RK_POLICY_SNAPKV) return keep_snap(p, n, budget, score, kept);
    /* The sinks, then the last ones; the sinks go first where the budget does not hold them. */
    int32_t sinks = p->policy == RK_POLICY_STREAMING && p->sinks < budget ? p->sinks : budget;
    for (int32_t i = 0; i < budget; i++)
        kept[i] = i < sinks ? i : (int32_t)(n - budget + i);
    return RK_OK;
}

static const char *const POLICY_NAMES[] = {
    [RK_POLICY_FULL] = "full",
    [RK_POLICY_STREAMING] = "streaming",
    [RK_POLICY_SNAPKV] = "snapkv",
};

rk_status rk_policy_parse(const char *name, rk_policy *out) {
    for (int i = 0; i <= RK_POLICY_SNAPKV; i++)
        if (strcmp(name, POLICY_NAMES[i]) == 0) {
            *out = (rk_policy)i;
            return RK_OK;
        }
    return RK_FAIL(RK_E_USAGE, "--policy %s: known are snapkv, streaming and full", name);
}

const char *rk_policy_name(rk_policy p) {
    return (unsigned)p <= RK_POLICY_SNAPKV ? POLICY_NAMES[p] : "?";
}
