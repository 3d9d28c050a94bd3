/* test_correlate.c - Spearman's rho: hand values, the closed form without ties, invariances. */
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdint.h>

#include "profiler/correlate.h"
#include "tests/suites.h"

static uint32_t next(uint32_t *s) {
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

static void hand_values(void) {
    const double up[] = {1, 2, 3, 4, 5}, down[] = {50, 4, 3, 2, -1e300};
    const double tied[] = {1, 2, 2, 3}, other[] = {1, 3, 2, 4}, two[] = {7, 8};
    CU_ASSERT_DOUBLE_EQUAL(rk_spearman(up, up, 5), 1, 1e-15);
    CU_ASSERT_DOUBLE_EQUAL(rk_spearman(up, down, 5), -1, 1e-15);
    CU_ASSERT_DOUBLE_EQUAL(rk_spearman(two, up, 2), 1, 1e-15);
    /* ranks 1, 2.5, 2.5, 4 against 1, 3, 2, 4: 4.5 / sqrt(4.5 * 5) */
    CU_ASSERT_DOUBLE_EQUAL(rk_spearman(tied, other, 4), 0.94868329805051377, 1e-15);
    CU_ASSERT_DOUBLE_EQUAL(rk_spearman(tied, tied, 4), 1, 1e-15);
}

static void undefined(void) {
    const double a[] = {1, 2, 3}, flat[] = {4, 4, 4}, hole[] = {1, NAN, 3};
    CU_ASSERT(isnan(rk_spearman(a, a, 0)));
    CU_ASSERT(isnan(rk_spearman(a, a, 1)));
    CU_ASSERT(isnan(rk_spearman(a, flat, 3)));
    CU_ASSERT(isnan(rk_spearman(flat, a, 3)));
    CU_ASSERT(isnan(rk_spearman(a, hole, 3)));
    CU_ASSERT(isnan(rk_spearman(hole, a, 3)));
}

static void permutations(void) {
    enum { N = 31 };
    uint32_t seed = 5;
    for (int round = 0; round < 50; round++) {
        double a[N], b[N], monotone[N], d2 = 0;
        for (int i = 0; i < N; i++) a[i] = i;
        for (int i = 0; i < N; i++) b[i] = i;
        for (int i = N - 1; i > 0; i--) {
            int    j = (int)(next(&seed) % (uint32_t)(i + 1));
            double t = b[i];
            b[i] = b[j];
            b[j] = t;
        }
        for (int i = 0; i < N; i++) {
            d2 += (a[i] - b[i]) * (a[i] - b[i]);
            monotone[i] = exp(b[i]) - 1e6;
        }
        double rho = rk_spearman(a, b, N);
        CU_ASSERT_DOUBLE_EQUAL(rho, 1 - 6 * d2 / ((double)N * (N * N - 1)), 1e-12);
        CU_ASSERT(rho == rk_spearman(b, a, N));
        CU_ASSERT(rho == rk_spearman(a, monotone, N));
    }
}

int rk_suite_correlate(void) {
    CU_pSuite s = CU_add_suite("correlate", NULL, NULL);
    if (!s || !CU_ADD_TEST(s, hand_values) || !CU_ADD_TEST(s, undefined) ||
        !CU_ADD_TEST(s, permutations))
        return (int)CU_get_error();
    return 0;
}
