/* test_select.c - the selection against a plain sort; test_golden_policies has the goldens. */
#include <CUnit/CUnit.h>
#include <CUnit/TestDB.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "core/select.h"
#include "tests/harness.h"
#include "tests/suites.h"

/* One head alone. */
static rk_status select_head(const rk_select_params *p, int64_t n, int32_t budget, const float *score,
                                int32_t *kept) {
    int32_t  *all, count;
    if (n < 1 || budget > n) return rk_select_layer(p, 1, n, budget, score, kept, &count);
    RK_TRY(rk_mem_alloc_to(n, sizeof(int32_t), "kept", &all));
    rk_status st = rk_select_layer(p, 1, n, budget, score, all, &count);
    if (st == RK_OK) memcpy(kept, all, (size_t)count * sizeof *kept);
    if (st == RK_OK && count != budget) st = RK_FAIL(RK_E_BUG, "%d kept, not %d", count, budget);
    rk_mem_free(all);
    return st;
}

static uint32_t lcg_state;
static uint32_t lcg(void) {
    return (lcg_state = lcg_state * 1664525u + 1013904223u) >> 8;
}

static const rk_select_params SNAP = {.policy = RK_POLICY_SNAPKV, .window = 4, .sinks = 4,
                                      .pool = RK_POOL_MAX, .kernel = 7};

/* rank of j among the prefix: how many come before it */
static int rank_of(const float *s, int64_t m, int64_t j) {
    int r = 0;
    for (int64_t i = 0; i < m; i++) r += s[i] > s[j] || (s[i] >= s[j] && i < j && s[i] <= s[j]);
    return r;
}

/* Random scores with ties, negative values and both zeros: kept = rank below what is left. */
static void test_against_ranks(void) {
    int bad = 0;
    lcg_state = 3;
    for (int round = 0; round < 3000; round++) {
        rk_select_params p = SNAP;
        float            s[80];
        int32_t          kept[80];
        int64_t          n = 1 + lcg() % 80;
        p.window = (int)(lcg() % 12);
        int64_t w = p.window < n ? p.window : n, m = n - w;
        int32_t budget = (int32_t)(w + lcg() % (uint32_t)(m + 1));
        if (budget == 0) budget = 1;
        for (int64_t j = 0; j < n; j++) {
            int v = (int)(lcg() % 9) - 4;
            s[j] = round % 2 ? (float)v : (float)v * 1e-20f * (float)(lcg() % 1000);
            if (v == 0 && lcg() % 2) s[j] = -0.0f;
        }
        bad += select_head(&p, n, budget, s, kept) != RK_OK;
        int32_t at = 0;
        for (int64_t j = 0; j < n; j++)
            if (j >= m || rank_of(s, m, j) < budget - w) bad += kept[at++] != j;
        bad += at != budget;
    }
    CU_ASSERT_EQUAL(bad, 0);
}

/* Every kind of pool and reduce against the definition, kernels wider than the prefix included. */
static void test_scores_by_hand(void) {
    rk_select_params p = SNAP;
    float            out[8];
    float            one[] = {1, 0, 0, 0, 2, 0, 9, 9};
    p.window = 2, p.kernel = 3, p.pool = RK_POOL_AVG;
    CU_ASSERT_EQUAL(rk_select_snap_scores(&p, 1, 1, 8, one, out), RK_OK);
    float want[] = {1 / 3.0f, 1 / 3.0f, 0, 2 / 3.0f, 2 / 3.0f, 2 / 3.0f, 0, 0};
    CU_ASSERT(memcmp(out, want, sizeof want) == 0);
    p.pool = RK_POOL_MAX;
    CU_ASSERT_EQUAL(rk_select_snap_scores(&p, 1, 1, 8, one, out), RK_OK);
    float most[] = {1, 1, 0, 2, 2, 2, 0, 0};
    CU_ASSERT(memcmp(out, most, sizeof most) == 0);
    p.kernel = 99;
    CU_ASSERT_EQUAL(rk_select_snap_scores(&p, 1, 1, 8, one, out), RK_OK);
    for (int j = 0; j < 6; j++) CU_ASSERT(fabsf(out[j] - 2) <= 0);

    /* two heads whose maxima lie apart, at positions 2 and 1 of a prefix of 3 */
    float two[] = {0, 0, 4, 9, 0, 4, 0, 9};
    p.window = 1, p.kernel = 3;
    CU_ASSERT_EQUAL(rk_select_snap_scores(&p, 2, 1, 4, two, out), RK_OK);
    CU_ASSERT(fabsf(out[1] - 2) <= 0);
    p.pool_first = true;
    CU_ASSERT_EQUAL(rk_select_snap_scores(&p, 2, 1, 4, two, out), RK_OK);
    CU_ASSERT(fabsf(out[1] - 4) <= 0 && fabsf(out[0] - 2) <= 0);
    p.group_reduce = RK_REDUCE_MAX;
    CU_ASSERT_EQUAL(rk_select_snap_scores(&p, 2, 1, 4, two, out), RK_OK);
    CU_ASSERT(fabsf(out[0] - 4) <= 0 && fabsf(out[3]) <= 0);
    CU_ASSERT_EQUAL(rk_select_snap_scores(&p, 3, 2, 4, two, out), RK_E_BUG);
}

static void test_forced(void) {
    rk_select_params p = SNAP;
    float            s[10] = {0, 5, 1, 0, 2, 2, 0, 0, 0, 0};
    int32_t          kept[10];
    CU_ASSERT_EQUAL(select_head(&p, 10, 6, s, kept), RK_OK);
    static const int32_t SIX[] = {1, 4, 6, 7, 8, 9};
    CU_ASSERT(memcmp(kept, SIX, sizeof SIX) == 0);
    CU_ASSERT_EQUAL(select_head(&p, 10, 4, s, kept), RK_OK);
    CU_ASSERT(kept[0] == 6 && kept[3] == 9);
    CU_ASSERT_EQUAL(select_head(&p, 10, 3, s, kept), RK_E_BUG);
    CU_ASSERT_EQUAL(select_head(&p, 10, 0, s, kept), RK_E_BUG);
    CU_ASSERT_EQUAL(select_head(&p, 10, 11, s, kept), RK_E_BUG);
    s[2] = NAN;
    CU_ASSERT_EQUAL(select_head(&p, 10, 6, s, kept), RK_E_BUG);
    p.policy = RK_POLICY_STREAMING;
    CU_ASSERT_EQUAL(select_head(&p, 10, 6, NULL, kept), RK_OK);
    static const int32_t SINKS[] = {0, 1, 2, 3, 8, 9};
    CU_ASSERT(memcmp(kept, SINKS, sizeof SINKS) == 0);
    CU_ASSERT_EQUAL(select_head(&p, 10, 3, NULL, kept), RK_OK);
    CU_ASSERT(kept[0] == 0 && kept[2] == 2);
    p.policy = RK_POLICY_FULL;
    CU_ASSERT_EQUAL(select_head(&p, 10, 10, NULL, kept), RK_OK);
    for (int i = 0; i < 10; i++) CU_ASSERT_EQUAL(kept[i], i);
    CU_ASSERT_EQUAL(select_head(&p, 10, 9, NULL, kept), RK_E_BUG);
}

static void expect_usage(rk_select_params p, const char *option) {
    CU_ASSERT_EQUAL(rk_select_check(&p), RK_E_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, option));
}

static void test_check(void) {
    rk_select_params p = SNAP;
    CU_ASSERT_EQUAL(rk_select_check(&p), RK_OK);
    p.kernel = 4, expect_usage(p, "--kernel"), p.kernel = 0, expect_usage(p, "--kernel"), p = SNAP;
    p.window = -1, expect_usage(p, "--window"), p.window = 0, expect_usage(p, "--window"), p = SNAP;
    p.sinks = -1, expect_usage(p, "--sinks"), p = SNAP;
    p.policy = RK_POLICY_STREAMING, p.window = 0;
    CU_ASSERT_EQUAL(rk_select_check(&p), RK_OK);
    CU_ASSERT(!rk_select_needs_scores(&p) && rk_select_needs_scores(&SNAP));
    rk_policy q;
    for (int i = 0; i < RK_POLICIES; i++) {
        CU_ASSERT_EQUAL(rk_policy_parse(rk_policy_name((rk_policy)i), &q), RK_OK);
        CU_ASSERT_EQUAL(q, (rk_policy)i);
    }
    CU_ASSERT_EQUAL(rk_policy_parse("snap", &q), RK_E_USAGE);
}

int rk_suite_select(void) {
    CU_pSuite s = CU_add_suite("select", NULL, NULL);
    if (s == NULL) return 1;
    CU_ADD_TEST(s, test_against_ranks);
    CU_ADD_TEST(s, test_scores_by_hand);
    CU_ADD_TEST(s, test_forced);
    CU_ADD_TEST(s, test_check);
    return 0;
}
