/* test_curve.c - the curve allocator: exact against brute force, monotone, repeatable; the choice
 * of mean and shrinkage finds what the documents hold. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "core/curve.h"
#include "tests/harness.h"
#include "tests/suites.h"

static uint32_t state = 1;
static uint32_t next(uint32_t below) {
    state = state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)state * below >> 32);
}
static double unit(void) {
    return (next(1u << 24) + 1) * 0x1p-24;
}

/* The least sum over all ways to share out `left` tokens among layers l.. above lo. */
static double least(const rk_curve *c, int l, int64_t lo, int64_t n, int64_t left) {
    if (l == c->n_layers) return left == 0 ? 0 : INFINITY;
    double best = INFINITY;
    for (int64_t b = lo; b <= n && b - lo <= left; b++)
        best = fmin(best, rk_curve_at(c, l, (double)b / (double)n) +
                              least(c, l + 1, lo, n, left - (b - lo)));
    return best;
}

static rk_curve_data random_data(int L, int K, int N, double *levels, double *damage) {
    for (int k = 0; k < K; k++) levels[k] = (k + 0.2 + 0.6 * unit()) / (K + 0.2);
    for (int i = 0; i < N * K * L; i++) damage[i] = next(4) == 0 ? 0.25 * next(5) : unit();
    return (rk_curve_data){
        .n_layers = L, .n_levels = K, .n_documents = N, .levels = levels, .damage = damage};
}

static void test_brute_force(void) {
    enum { CASES = 4000 };
    double levels[4], damage[4 * 4 * 3];
    int    exact = 0;
    for (int i = 0; i < CASES; i++) {
        int     L = 1 + (int)next(4), K = 1 + (int)next(4), N = 1 + (int)next(3);
        int64_t n = 1 + next(12), lo = 1 + next((uint32_t)n),
                total = lo * L + next((uint32_t)((n - lo) * L) + 1);
        rk_curve_data d = random_data(L, K, N, levels, damage);
        rk_curve      c;
        int32_t       budget[4];
        int64_t       sum = 0;
        CU_ASSERT_EQUAL_FATAL(
            rk_curve_build(&d, (rk_curve_mean)next(RK_CURVE_MEANS), NULL, false, &c), RK_OK);
        CU_ASSERT_EQUAL_FATAL(rk_curve_minimise(&c, lo, n, total, budget), RK_OK);
        for (int l = 0; l < L; l++) {
            CU_ASSERT(budget[l] >= lo && budget[l] <= n);
            sum += budget[l];
        }
        double got = rk_curve_total(&c, budget, n), want = least(&c, 0, lo, n, total - lo * L);
        exact += fabs(got - want) <= 1e-12 * (1 + fabs(want));
        CU_ASSERT(sum == total);
        rk_curve_free(&c);
    }
    CU_ASSERT_EQUAL(exact, CASES);
    printf("    %d of %d minima equal brute force\n", exact, CASES);
}

static void test_curves(void) {
    enum { L = 3, K = 5, N = 4 };
    double levels[K], damage[N * K * L];
    for (int i = 0; i < 500; i++) {
        rk_curve_data d = random_data(L, K, N, levels, damage);
        rk_curve      c, raw;
        CU_ASSERT_EQUAL_FATAL(rk_curve_build(&d, RK_CURVE_MEAN, NULL, false, &c), RK_OK);
        CU_ASSERT_EQUAL_FATAL(rk_curve_build(&d, RK_CURVE_MEAN, NULL, true, &raw), RK_OK);
        for (int l = 0; l < L; l++) {
            CU_ASSERT(rk_curve_at(&c, l, 1) == 0);
            double before = INFINITY, slope = -INFINITY;
            for (int k = 0; k <= 100; k++) {
                double y = rk_curve_at(&c, l, k / 100.0);
                CU_ASSERT(y >= -1e-15 && y <= before + 1e-12 &&
                          y <= rk_curve_at(&raw, l, k / 100.0) + 1e-12);
                if (k) {
                    CU_ASSERT(y - before >= slope - 1e-12); /* convex */
                    slope = y - before;
                }
                before = y;
            }
            double top =
                0; /* raw curves pass through the means, raised where a larger share has more */
            for (int k = K - 1; k >= 0; k--) {
                double mean = 0;
                for (int j = 0; j < N; j++) mean += damage[(j * K + k) * L + l] / N;
                top = fmax(top, mean);
                CU_ASSERT(fabs(rk_curve_at(&raw, l, levels[k]) - top) < 1e-12);
            }
        }
        rk_curve_free(&c);
        rk_curve_free(&raw);
    }
}

static void test_monotone_and_repeatable(void) {
    enum { L = 7, K = 5, N = 3, TOKENS = 400 };
    double levels[K], damage[N * K * L];
    for (int i = 0; i < 20; i++) {
        rk_curve_data d = random_data(L, K, N, levels, damage);
        int32_t       last[L] = {0}, a[L], b[L];
        rk_curve      c;
        CU_ASSERT_EQUAL_FATAL(rk_curve_build(&d, RK_CURVE_GEOMETRIC, NULL, false, &c), RK_OK);
        for (int64_t total = 10 * L; total <= TOKENS * L; total += 1 + next(40)) {
            CU_ASSERT_EQUAL(rk_curve_minimise(&c, 10, TOKENS, total, a), RK_OK);
            CU_ASSERT_EQUAL(rk_curve_minimise(&c, 10, TOKENS, total, b), RK_OK);
            CU_ASSERT(memcmp(a, b, sizeof a) == 0);
            for (int l = 0; l < L; l++) CU_ASSERT(a[l] >= last[l]);
            memcpy(last, a, sizeof a);
        }
        rk_curve_free(&c);
    }
}

/* Equal layers: the lower ones first; equal curves at any length give equal shares. */
static void test_ties_and_lengths(void) {
    enum { L = 4, K = 2 };
    double        levels[K] = {0.1, 0.5}, damage[K * L];
    int32_t       b[L], longer[L];
    rk_curve_data d = {L, K, 1, levels, damage};
    rk_curve      c;
    for (int i = 0; i < K * L; i++) damage[i] = i < L ? 1 : 0.25;
    CU_ASSERT_EQUAL_FATAL(rk_curve_build(&d, RK_CURVE_MEAN, NULL, false, &c), RK_OK);
    CU_ASSERT_EQUAL(rk_curve_minimise(&c, 10, 100, 10 * L + 50, b), RK_OK);
    CU_ASSERT(b[0] == 50 && b[1] == 20 && b[2] == 10 && b[3] == 10);
    CU_ASSERT_EQUAL(rk_curve_minimise(&c, 100, 1000, 10 * (10 * L + 50), longer), RK_OK);
    for (int l = 0; l < L; l++) CU_ASSERT_EQUAL(longer[l], 10 * b[l]);
    CU_ASSERT_EQUAL(rk_curve_minimise(&c, 10, 100, 39, b), RK_E_BUG);
    rk_curve_free(&c);
    damage[2] = -1;
    CU_ASSERT_EQUAL(rk_curve_build(&d, RK_CURVE_MEAN, NULL, false, &c), RK_E_INPUT);
    damage[2] = NAN;
    CU_ASSERT_EQUAL(rk_curve_build(&d, RK_CURVE_MEAN, NULL, false, &c), RK_E_INPUT);
}

/* Documents that agree: no shrinkage. Documents of pure noise: most of it. Few: the fixed choice.
 */
static void test_choice(void) {
    enum { L = 12, K = 5, N = 10 };
    static const double levels[K] = {0.04, 0.08, 0.16, 0.32, 0.6};
    double              damage[N * K * L];
    rk_curve_data       d = {L, K, N, levels, damage};
    rk_curve_choice     same, noise, few;
    for (int i = 0; i < N * K * L; i++) {
        int l = i % L, k = i / L % K;
        damage[i] = pow(10, -3.0 * l / L) * (1 - levels[k]) * (1 + 0.01 * unit());
    }
    CU_ASSERT_EQUAL(rk_curve_choose(&d, 36, 1200, 7, &same), RK_OK);
    for (int i = 0; i < N * K * L; i++) damage[i] = pow(10, -4 * unit()) * (1 - levels[i / L % K]);
    CU_ASSERT_EQUAL(rk_curve_choose(&d, 36, 1200, 7, &noise), RK_OK);
    d.n_documents = 3;
    CU_ASSERT_EQUAL(rk_curve_choose(&d, 36, 1200, 7, &few), RK_OK);
    printf("    agreeing documents: %s, shrink %g, %.3f of uniform; noise: %s, %g, %.3f\n",
           rk_curve_mean_name(same.mean), same.shrink, same.score, rk_curve_mean_name(noise.mean),
           noise.shrink, noise.score);
    CU_ASSERT(same.shrink == 0 && same.score < 0.7);
    CU_ASSERT(noise.shrink >= 0.5 && noise.score > 0.85);
    CU_ASSERT(few.mean == RK_CURVE_NORMALISED && few.shrink == 0.25 && few.score == 0);
}

int rk_suite_curve(void) {
    CU_pSuite s = CU_add_suite("curve", NULL, NULL);
    return !s || !CU_ADD_TEST(s, test_brute_force) || !CU_ADD_TEST(s, test_curves) ||
           !CU_ADD_TEST(s, test_monotone_and_repeatable) ||
           !CU_ADD_TEST(s, test_ties_and_lengths) || !CU_ADD_TEST(s, test_choice);
}
