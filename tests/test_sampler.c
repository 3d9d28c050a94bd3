/* test_sampler.c - greedy and top-p draws. */
#include <CUnit/CUnit.h>
#include <CUnit/TestDB.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "core/sampler.h"
#include "base/rng.h"
#include "tests/harness.h"
#include "tests/suites.h"

static int32_t draw(rk_sampler s, const float *logits, int n, uint64_t sequence, uint64_t step) {
    int32_t t = -1;
    CU_ASSERT_EQUAL(rk_sampler_draw(&s, logits, n, sequence, step, &t), RK_OK);
    return t;
}

static void test_check(void) {
    static const rk_sampler BAD[] = {{-1, 1, 0}, {NAN, 1, 0}, {INFINITY, 1, 0}, {1, 0, 0},
                                     {1, 1.5, 0}, {1, NAN, 0}, {1, -0.5, 0}};
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        CU_ASSERT_EQUAL(rk_sampler_check(&BAD[i]), RK_E_USAGE);
        CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, i < 3 ? "--temperature" : "--top-p"));
    }
    rk_sampler good = {0, 1, 0};
    CU_ASSERT_EQUAL(rk_sampler_check(&good), RK_OK);
}

static void test_greedy(void) {
    rk_sampler s = {0, 1, 7};
    float      x[] = {-3, 5, -INFINITY, 5, NAN, 4, 9};
    CU_ASSERT_EQUAL(draw(s, x, 6, 0, 0), 1); /* tie: lowest id; id 6 is not usable */
    CU_ASSERT_EQUAL(draw(s, x, 7, 0, 0), 6);
    float   none[] = {NAN, -INFINITY, INFINITY};
    int32_t t = 42;
    CU_ASSERT_EQUAL(rk_sampler_draw(&s, none, 3, 0, 0, &t), RK_E_BUG);
    CU_ASSERT_EQUAL(t, 42);
}

/* Frequencies over many steps against softmax(x / temperature), within five standard errors. */
static void test_distribution(void) {
    enum { N = 6, DRAWS = 60000 };
    static const double TEMPERATURE[] = {0.5, 1, 2};
    float               x[N] = {0.5f, -1.0f, 2.0f, 2.0f, -INFINITY, 0.0f};
    for (int k = 0; k < 3; k++) {
        rk_sampler s = {TEMPERATURE[k], 1, 99};
        int        count[N] = {0};
        double     p[N], sum = 0;
        for (uint64_t step = 0; step < DRAWS; step++) count[draw(s, x, N, 3, step)]++;
        for (int i = 0; i < N; i++) sum += p[i] = exp(((double)x[i] - 2) / s.temperature);
        for (int i = 0; i < N; i++) {
            double q = p[i] / sum;
            CU_ASSERT(fabs(count[i] - q * DRAWS) <= 5 * sqrt(q * (1 - q) * DRAWS));
        }
    }
}

/* Each draw from its definition: u from Philox with counter (step, sequence) and the seed's key,
 * "SAMP" mixed into its high half; the token where the running sum of weights passes u * total. */
static void test_definition(void) {
    enum { N = 5, DRAWS = 100000 };
    float      x[N] = {0.3f, -0.3f, 0.03f, -1.7f, 0.6f};
    rk_sampler s = {1.3, 1, 0x100000002ULL};
    int        bad = 0;
    for (uint64_t step = 0; step < DRAWS; step++) {
        uint32_t c[4] = {(uint32_t)step, 0, 6, 0};
        double   w[N], sum = 0, at = 0;
        int      want = 0;
        rk_rng_philox(c, 2, 1 ^ 0x53414d50u);
        double u = ((c[0] >> 5) * 67108864.0 + (c[1] >> 6)) / 9007199254740992.0;
        for (int i = 0; i < N; i++) sum += w[i] = exp(((double)x[i] - (double)x[4]) / 1.3);
        for (; want < N - 1 && (at += w[want]) <= u * sum; want++) continue;
        bad += draw(s, x, N, 6, step) != want;
    }
    CU_ASSERT_EQUAL(bad, 0);
}

/* The set that top_p leaves: ids sorted by logit, then id, until the mass is reached. */
static int nucleus_by_sorting(const float *x, int n, double temperature, double top_p, bool *in) {
    bool  *done = in;
    double total = 0, mass = 0;
    float  max = -INFINITY;
    int    size = 0;
    for (int i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int i = 0; i < n; i++) {
        done[i] = false;
        total += exp(((double)x[i] - (double)max) / temperature);
    }
    while (mass < top_p * total * (1 - 1e-12) && size < n) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!done[i] && (best < 0 || x[i] > x[best])) best = i;
        done[best] = true;
        size++;
        mass += exp(((double)x[best] - (double)max) / temperature);
    }
    return size;
}

/* Nothing outside the nucleus is drawn and everything likely inside is. */
static void test_top_p(void) {
    enum { N = 40, DRAWS = 4000 };
    uint32_t lcg = 1;
    for (int round = 0; round < 60; round++) {
        float x[N];
        bool  in[N];
        int   seen[N] = {0};
        for (int i = 0; i < N; i++) {
            lcg = lcg * 1664525u + 1013904223u;
            x[i] = (float)(int)(lcg >> 28) * 0.5f - 4.0f; /* many ties */
        }
        rk_sampler s = {round % 3 == 0 ? 1.0 : 0.7, 0.05 + 0.9 * round / 60, (uint64_t)round};
        int        size = nucleus_by_sorting(x, N, s.temperature, s.top_p, in);
        for (uint64_t step = 0; step < DRAWS; step++) seen[draw(s, x, N, 0, step)]++;
        int outside = 0, missing = 0;
        for (int i = 0; i < N; i++) {
            outside += seen[i] > 0 && !in[i];
            missing += seen[i] == 0 && in[i];
        }
        CU_ASSERT_EQUAL(outside, 0);
        CU_ASSERT(missing * 5 <= size); /* the least likely may not come up */
    }
}

/* Exactly equal logits: a nucleus of k of them, lowest ids. */
static void test_top_p_ties(void) {
    float x[10] = {0};
    int   seen[10] = {0};
    for (uint64_t step = 0; step < 2000; step++) {
        rk_sampler s = {1, 0.35, 5};
        seen[draw(s, x, 10, 1, step)]++;
    }
    for (int i = 0; i < 10; i++) CU_ASSERT(i < 4 ? seen[i] > 400 : seen[i] == 0);
    rk_sampler tiny = {1e-300, 0.9, 5};
    x[3] = 1;
    CU_ASSERT_EQUAL(draw(tiny, x, 10, 1, 0), 3);
    rk_sampler least = {1, 1e-9, 5};
    CU_ASSERT_EQUAL(draw(least, x, 10, 1, 0), 3);
}

/* A pure function of (seed, sequence, step): each changes the row of draws, nothing else does. */
static void test_repeatable(void) {
    enum { N = 1000, STEPS = 20 };
    float   x[N];
    int32_t row[4][STEPS];
    for (int i = 0; i < N; i++) x[i] = (float)(i % 37) * 0.01f;
    for (int k = 0; k < 4; k++)
        for (uint64_t step = 0; step < STEPS; step++) {
            rk_sampler s = {1, 0.95, k == 1 ? 1ULL << 40 : 0};
            row[k][step] = draw(s, x, N, k == 2, step + (k == 3 ? 1ULL << 33 : 0));
            CU_ASSERT_EQUAL(row[k][step], draw(s, x, N, k == 2, step + (k == 3 ? 1ULL << 33 : 0)));
        }
    for (int k = 1; k < 4; k++) CU_ASSERT(memcmp(row[0], row[k], sizeof row[0]) != 0);
}

/* A real row's size: no allocation, so that it works while memory is frozen. */
static void test_frozen(void) {
    void *mem = NULL;
    CU_ASSERT_EQUAL_FATAL(rk_mem_alloc(128256, sizeof(float), "logits", &mem), RK_OK);
    float *x = mem;
    for (int i = 0; i < 128256; i++) x[i] = (float)(i * 7919 % 1009) * 0.02f;
    rk_mem_freeze(true);
    rk_sampler s = {0.8, 0.9, 1};
    int32_t    t = draw(s, x, 128256, 0, 0);
    rk_mem_freeze(false);
    CU_ASSERT(t >= 0 && t < 128256);
    rk_mem_free(mem);
}

int rk_suite_sampler(void) {
    CU_pSuite s = CU_add_suite("sampler", NULL, NULL);
    if (s == NULL) return 1;
    CU_ADD_TEST(s, test_check);
    CU_ADD_TEST(s, test_greedy);
    CU_ADD_TEST(s, test_distribution);
    CU_ADD_TEST(s, test_definition);
    CU_ADD_TEST(s, test_top_p);
    CU_ADD_TEST(s, test_top_p_ties);
    CU_ADD_TEST(s, test_repeatable);
    CU_ADD_TEST(s, test_frozen);
    return 0;
}
