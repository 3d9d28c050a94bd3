/* test_rng.c - Philox against published vectors, normals against double precision. */
#include <CUnit/CUnit.h>
#include <CUnit/TestDB.h>
#include <math.h>

#include "base/rng.h"
#include "tests/harness.h"
#include "tests/suites.h"

/* Known answers of Random123 (kat_vectors, philox4x32 10). */
static void test_philox_vectors(void) {
    static const struct {
        uint32_t c[4], k[2], want[4];
    } V[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof V / sizeof V[0]; i++) {
        uint32_t c[4];
        memcpy(c, V[i].c, sizeof c);
        rk_rng_philox(c, V[i].k[0], V[i].k[1]);
        CU_ASSERT(memcmp(c, V[i].want, sizeof c) == 0);
    }
}

static void normal_by_definition(uint32_t a, uint32_t b, double *n0, double *n1) {
    double r = sqrt(-2 * log(((double)(a >> 8) + 1) / 16777216.0));
    double angle = 2 * 3.14159265358979323846 * ((double)(b >> 6) / 67108864.0);
    *n0 = r * cos(angle);
    *n1 = r * sin(angle);
}

static int close_to(float got, double want, double bound) {
    return fabs((double)got - want) <= bound * (1 + fabs(want));
}

/* Words that sit at the ends of u and at every octant's border, and a million others. */
static void test_normal_accuracy(void) {
    static const uint32_t EDGE[] = {0, 255, 256, 0xffffffff, 0xfffffeff, 0x7fffffff, 0x80000000,
                                    0xb504f333, 0xb504f300, 0xb504f400};
    int bad = 0;
    for (size_t i = 0; i < sizeof EDGE / sizeof EDGE[0]; i++)
        for (uint32_t octant = 0; octant < 8; octant++)
            for (uint32_t d = 0; d < 5; d++) {
                uint32_t b = (octant << 29) + (d - 2u) * 64u;
                float    g0, g1;
                double   w0, w1;
                rk_rng_normal2(EDGE[i], b, &g0, &g1);
                normal_by_definition(EDGE[i], b, &w0, &w1);
                bad += !close_to(g0, w0, 3e-7) + !close_to(g1, w1, 3e-7);
            }
    for (uint32_t i = 0; i < 1000000; i++) {
        uint32_t c[4] = {i, 1, 2, 3};
        float    g0, g1;
        double   w0, w1;
        rk_rng_philox(c, 11, 12);
        rk_rng_normal2(c[0], c[1], &g0, &g1);
        normal_by_definition(c[0], c[1], &w0, &w1);
        bad += !close_to(g0, w0, 3e-7) + !close_to(g1, w1, 3e-7);
    }
    CU_ASSERT_EQUAL(bad, 0);
}

static void test_log_accuracy(void) {
    double worst = 0;
    for (uint32_t k = 1; k < 1u << 24; k += 7) {
        double want = log((double)k / 16777216.0);
        double rel = fabs(((double)rk_rng_log((float)k / 16777216.0f) - want) / want);
        worst = rel > worst ? rel : worst;
    }
    CU_ASSERT(worst < 3e-7);
    CU_ASSERT(rk_rng_log(1.0f) == 0.0f);
}

/* A million values: mean, variance, skew, kurtosis within five standard errors. */
static void test_moments(void) {
    enum { DIM = 128, VECTORS = 8000 };
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, n = (double)DIM * VECTORS, lag = 0, last = 0;
    for (uint32_t p = 0; p < VECTORS; p++) {
        float g[DIM];
        rk_rng_noise(0x123456789abcdefULL, 5, 1, 0, 0, p, DIM, g);
        for (int i = 0; i < DIM; i++) {
            double v = (double)g[i];
            m1 += v;
            m2 += v * v;
            m3 += v * v * v;
            m4 += v * v * v * v;
            lag += v * last;
            last = v;
        }
    }
    CU_ASSERT(fabs(m1 / n) < 5 * sqrt(1 / n));
    CU_ASSERT(fabs(m2 / n - 1) < 5 * sqrt(2 / n));
    CU_ASSERT(fabs(m3 / n) < 5 * sqrt(15 / n));
    CU_ASSERT(fabs(m4 / n - 3) < 5 * sqrt(96 / n));
    CU_ASSERT(fabs(lag / n) < 5 * sqrt(1 / n));
}

/* The counter's layout, and that each of its fields matters. */
static void test_noise_counter(void) {
    uint64_t seed = 0xfedcba9876543210ULL;
    float    g[64], other[64];
    rk_rng_noise(seed, 7, 3, 9, 2, 1234, 64, g);
    for (uint32_t b = 0; b < 16; b++) {
        uint32_t c[4] = {b, 1234, 7u << 16 | 3u, 9u << 16 | 2u};
        double   w[4];
        rk_rng_philox(c, 0x76543210u, 0xfedcba98u);
        normal_by_definition(c[0], c[1], &w[0], &w[1]);
        normal_by_definition(c[2], c[3], &w[2], &w[3]);
        for (int i = 0; i < 4; i++) CU_ASSERT(close_to(g[4 * b + (uint32_t)i], w[i], 3e-7));
    }
    for (uint32_t field = 0; field < 6; field++) {
        rk_rng_noise(seed + (field == 0 ? 1ULL << 40 : 0), 7 + (field == 1), 3 + (field == 2),
                     9 + (field == 3), 2 + (field == 4), 1234 + (field == 5), 64, other);
        CU_ASSERT(memcmp(g, other, sizeof g) != 0);
    }
    rk_rng_noise(seed, 7, 3, 9, 2, 1234, 32, other); /* a shorter vector is a prefix */
    CU_ASSERT(memcmp(g, other, 32 * sizeof g[0]) == 0);
}

int rk_suite_rng(void) {
    CU_pSuite s = CU_add_suite("rng", NULL, NULL);
    if (s == NULL) return 1;
    CU_ADD_TEST(s, test_philox_vectors);
    CU_ADD_TEST(s, test_normal_accuracy);
    CU_ADD_TEST(s, test_log_accuracy);
    CU_ADD_TEST(s, test_moments);
    CU_ADD_TEST(s, test_noise_counter);
    return 0;
}
