/* sampler.c - greedy and top-p draws with sums in one fixed order and no allocation. */
#include "core/sampler.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"

/* Keeps draws apart from the perturbation noise, which uses the same seed: "SAMP". */
#define KEY_DOMAIN 0x53414d50u

rk_status rk_sampler_check(const rk_sampler *s) {
    if (!isfinite(s->temperature) || s->temperature < 0)
        return RK_FAIL(RK_E_USAGE, "--temperature %g must be a number >= 0", s->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return RK_FAIL(RK_E_USAGE, "--top-p %g must lie in (0, 1]", s->top_p);
    return RK_OK;
}

/* e^x for x <= 0 by one polynomial, so that a draw does not hang on the C library's version.
 * x = k ln 2 + r, |r| <= ln 2 / 2; Taylor to r^13 (next term 4e-18); below 2^-995: 0. */
static double exp_neg(double x) {
    if (!(x > -690)) return 0;
    double k = nearbyint(x * 1.4426950408889634);
    /* ln 2 in two parts: k * 0.693147180369... is exact for |k| < 2^11 */
    double r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800.0;
    static const double COEF[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                                  1.0 / 40320,     1.0 / 5040,     1.0 / 720,     1.0 / 120,
                                  1.0 / 24,        1.0 / 6,        0.5,           1.0, 1.0};
    for (size_t i = 0; i < sizeof COEF / sizeof COEF[0]; i++) p = p * r + COEF[i];
    uint64_t bits = (uint64_t)(1023 + (int)k) << 52;
    double   scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

static double weight(const rk_sampler *s, float logit, float max) {
    return exp_neg(((double)logit - (double)max) / s->temperature);
}

/* Unsigned order of the result is the order of the floats; -0 equals 0. 0 for what cannot be drawn:
 * infinite or not a number. */
static uint32_t key_of(float f) {
    uint32_t u;
    if (!isfinite(f)) return 0;
    f += 0.0f;
    memcpy(&u, &f, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Smallest key of the nucleus, digit by digit from the top. In a bin of the last digit all logits
 * are equal: *n_equal of those belong to it, lowest ids first. */
static uint32_t nucleus(const rk_sampler *s, const float *logits, int n, float max, double mass,
                        int64_t *n_equal) {
    uint32_t prefix = 0, mask = 0;
    double   above = 0; /* mass of larger keys than the bins looked at */
    *n_equal = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        double  sum[256] = {0};
        int64_t count[256] = {0};
        for (int i = 0; i < n; i++) {
            uint32_t k = key_of(logits[i]);
            if (k == 0 || (k & mask) != prefix) continue;
            sum[k >> shift & 255] += weight(s, logits[i], max);
            count[k >> shift & 255]++;
        }
        /* Rounding may leave the mass short of the goal: then the last bin that holds any. */
        int digit = -1;
        for (int d = 255; d >= 0; d--) {
            if (count[d] == 0) continue;
            if (digit >= 0) above += sum[digit];
            digit = d;
            if (above + sum[d] >= mass) break;
        }
        RK_ASSERT(digit >= 0);
        prefix |= (uint32_t)digit << shift;
        mask |= (uint32_t)255 << shift;
        if (shift == 0) {
            double each = sum[digit] / (double)count[digit];
            double want = each > 0 ? ceil((mass - above) / each) : (double)count[digit];
            *n_equal = want < 1 ? 1 : want < (double)count[digit] ? (int64_t)want : count[digit];
        }
    }
    return prefix;
}

/* Uniform in [0, 1), 53 bits. */
static double uniform(uint64_t seed, uint64_t sequence, uint64_t step) {
    uint32_t c[4] = {(uint32_t)step, (uint32_t)(step >> 32), (uint32_t)sequence,
                     (uint32_t)(sequence >> 32)};
    rk_rng_philox(c, (uint32_t)seed, (uint32_t)(seed >> 32) ^ KEY_DOMAIN);
    return ((double)(c[0] >> 5) * 67108864.0 + (double)(c[1] >> 6)) / 9007199254740992.0;
}

rk_status rk_sampler_draw(const rk_sampler *s, const float *logits, int n_usable, uint64_t sequence,
                          uint64_t step, int32_t *token) {
    int32_t best = -1;
    for (int i = 0; i < n_usable; i++)
        if (isfinite(logits[i]) && (best < 0 || logits[i] > logits[best])) best = i;
    if (best < 0)
        return RK_FAIL(RK_E_BUG, "none of %d logits is finite (sequence %llu, step %llu)", n_usable,
                       (unsigned long long)sequence, (unsigned long long)step);
    if (s->temperature <= 0) {
        *token = best;
        return RK_OK;
    }
    float    max = logits[best];
    uint32_t low = 1;
    int64_t  n_equal = n_usable;
    double   total = 0;
    for (int i = 0; i < n_usable; i++)
        if (isfinite(logits[i])) total += weight(s, logits[i], max);
    if (s->top_p < 1) {
        low = nucleus(s, logits, n_usable, max, s->top_p * total, &n_equal);
        total = 0;
        int64_t equal = n_equal;
        for (int i = 0; i < n_usable; i++) {
            uint32_t k = key_of(logits[i]);
            if (k > low || (k == low && equal-- > 0)) total += weight(s, logits[i], max);
        }
    }
    /* Walk the same ids in the same order; rounding may leave the walk short: the last one that
     * weighs anything. */
    double at = uniform(s->seed, sequence, step) * total;
    for (int i = 0; i < n_usable; i++) {
        uint32_t k = key_of(logits[i]);
        if (!(k > low || (k == low && n_equal-- > 0))) continue;
        double w = weight(s, logits[i], max);
        if (w > 0) *token = i;
        if (at < w) break;
        at -= w;
    }
    return RK_OK;
}
