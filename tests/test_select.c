/* test_select.c - golden selections, and the selection against a plain sort. */
#include <CUnit/CUnit.h>
#include <CUnit/TestDB.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "core/select.h"
#include "tests/harness.h"
#include "tests/st_reader.h"
#include "tests/suites.h"

/* One golden's tensors and sizes. */
typedef struct golden {
    rk_select_params p;
    int              n_heads, n_kv, d;
    int64_t          n;
    int32_t          budget;
    const float     *q, *k, *scores;
    const int32_t   *kept;
    bool             exact_only; /* compare kept only where no near tie decides */
} golden;

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

static float *new_floats(int64_t n) {
    void *mem = NULL;
    CU_ASSERT_EQUAL_FATAL(rk_mem_alloc(n + 1, sizeof(float), "test", &mem), RK_OK);
    return mem;
}

/* Window sums of one query head: causal softmax rows of the last window queries, in double. */
static void window_sums(const golden *g, int h, double *row, double *acc, float *mass) {
    int64_t      n = g->n, first = g->p.window < n ? n - g->p.window : 0;
    const float *k = g->k + (int64_t)(h / (g->n_heads / g->n_kv)) * n * g->d;
    for (int64_t j = 0; j < n; j++) acc[j] = 0;
    for (int64_t i = first; i < n; i++) {
        const float *q = g->q + ((int64_t)h * n + i) * g->d;
        double       max = -INFINITY, sum = 0;
        for (int64_t j = 0; j <= i; j++) {
            double s = 0;
            for (int e = 0; e < g->d; e++) s += (double)q[e] * (double)k[j * g->d + e];
            row[j] = s / sqrt(g->d);
            max = fmax(max, row[j]);
        }
        for (int64_t j = 0; j <= i; j++) sum += row[j] = exp(row[j] - max);
        for (int64_t j = 0; j <= i; j++) acc[j] += row[j] / sum;
    }
    for (int64_t j = 0; j < n; j++) mass[j] = (float)acc[j];
}

/* Scores within 1e-6 of the largest, over the prefix. */
static bool scores_agree(const golden *g, const float *score) {
    int64_t m = g->p.window < g->n ? g->n - g->p.window : 0;
    double  largest = 0, worst = 0;
    for (int h = 0; h < g->n_kv; h++)
        for (int64_t j = 0; j < m; j++) {
            double want = (double)g->scores[h * g->n + j];
            largest = fmax(largest, fabs(want));
            worst = fmax(worst, fabs((double)score[h * g->n + j] - want));
        }
    return worst <= 1e-6 * largest;
}

static bool kept_agrees(const golden *g, const float *score) {
    void *mem = NULL;
    bool  ok = rk_mem_alloc(g->budget, sizeof(int32_t), "kept", &mem) == RK_OK;
    for (int h = 0; ok && h < g->n_kv; h++) {
        const float *row = score == NULL ? NULL : score + h * g->n;
        ok = select_head(&g->p, g->n, g->budget, row, mem) == RK_OK &&
             memcmp(mem, g->kept + (int64_t)h * g->budget,
                    sizeof(int32_t) * (size_t)g->budget) == 0;
    }
    rk_mem_free(mem);
    return ok;
}

static bool check_golden(const golden *g) {
    if (!rk_select_needs_scores(&g->p)) return kept_agrees(g, NULL);
    float *mass = new_floats(g->n_heads * g->n), *score = new_floats(g->n_kv * g->n);
    void  *row = NULL, *acc = NULL;
    CU_ASSERT_EQUAL_FATAL(rk_mem_alloc(g->n, sizeof(double), "row", &row), RK_OK);
    CU_ASSERT_EQUAL_FATAL(rk_mem_alloc(g->n, sizeof(double), "sums", &acc), RK_OK);
    for (int h = 0; h < g->n_heads; h++) window_sums(g, h, row, acc, mass + h * g->n);
    bool ok = rk_select_snap_scores(&g->p, g->n_heads, g->n_kv, g->n, mass, score) == RK_OK &&
              scores_agree(g, score) && (g->exact_only || kept_agrees(g, score)) &&
              kept_agrees(g, g->scores);
    rk_mem_free(mass);
    rk_mem_free(score);
    rk_mem_free(row);
    rk_mem_free(acc);
    return ok;
}

static rk_select_params params_of(const rk_json *c, rk_policy policy) {
    return (rk_select_params){
        .policy = policy,
        .window = (int)rk_json_int(rk_json_get(c, "window"), 32),
        .sinks = (int)rk_json_int(rk_json_get(c, "sinks"), 4),
        .pool = strcmp(rk_json_str(rk_json_get(c, "pool"), "max"), "avg") == 0 ? RK_POOL_AVG
                                                                              : RK_POOL_MAX,
        .kernel = (int)rk_json_int(rk_json_get(c, "kernel"), 7),
        .group_reduce = strcmp(rk_json_str(rk_json_get(c, "group_reduce"), "mean"), "max") == 0
                            ? RK_REDUCE_MAX
                            : RK_REDUCE_MEAN,
        .pool_first = !rk_json_bool(rk_json_get(c, "reduce_before_pool"), true),
    };
}

static bool load_golden(const rk_json *c, const rk_st *st, rk_policy policy, golden *g) {
    int64_t qd[4] = {0}, kd[4] = {0}, sd[4] = {0}, bd[4] = {0};
    double  gap = rk_json_num(rk_json_get(c, "min_gap"), 1);
    *g = (golden){
        .p = params_of(c, policy),
        .n_heads = (int)rk_json_int(rk_json_get(c, "Hq"), 0),
        .n_kv = (int)rk_json_int(rk_json_get(c, "Hkv"), 0),
        .d = (int)rk_json_int(rk_json_get(c, "d"), 0),
        .n = rk_json_int(rk_json_get(c, "n"), 0),
        .budget = (int32_t)rk_json_int(rk_json_get(c, "budget"), 0),
        .q = rk_st_get(st, "q", RK_F32, 3, qd),
        .k = rk_st_get(st, "k", RK_F32, 3, kd),
        .scores = rk_st_get(st, "scores", RK_F32, 2, sd),
        .kept = rk_st_get(st, "kept", RK_I32, 2, bd),
        /* a gap of exactly 0 is a tie on purpose, and must come out right */
        .exact_only = rk_json_bool(rk_json_get(c, "near_tie"), false) && gap > 0,
    };
    bool snap = policy == RK_POLICY_SNAPKV;
    return rk_select_check(&g->p) == RK_OK && g->scores != NULL && g->kept != NULL && g->n >= 1 &&
           g->n_kv >= 1 && sd[0] == g->n_kv && sd[1] == g->n && bd[0] == g->n_kv &&
           bd[1] == g->budget &&
           (!snap || (g->q != NULL && g->k != NULL && qd[0] == g->n_heads && qd[1] == g->n &&
                      qd[2] == g->d && kd[0] == g->n_kv && kd[1] == g->n && kd[2] == g->d));
}

/* False: a policy or a way to budget heads that this version does not have. */
static bool run_case(const char *folder, const rk_json *c) {
    rk_policy policy;
    if (rk_policy_parse(rk_json_str(rk_json_get(c, "policy"), ""), &policy) != RK_OK ||
        strcmp(rk_json_str(rk_json_get(c, "head_mode"), "kv"), "kv") != 0)
        return false;
    char   path[4400];
    rk_st *st = NULL;
    golden g;
    snprintf(path, sizeof path, "%s/policies/%s", folder,
             rk_json_str(rk_json_get(c, "file"), "?"));
    bool ok = rk_st_open(path, &st) == RK_OK && load_golden(c, st, policy, &g) && check_golden(&g);
    if (!ok) fprintf(stderr, "policy golden %s differs\n", path);
    CU_ASSERT(ok);
    rk_st_close(st);
    return true;
}

static void test_goldens(void) {
    const char *folder = rk_test_goldens();
    if (folder == NULL) {
        rk_test_skip("no goldens");
        return;
    }
    char     path[4200];
    rk_json *j = NULL;
    snprintf(path, sizeof path, "%s/policies/cases.json", folder);
    CU_ASSERT_EQUAL(rk_json_load(path, &j), RK_OK);
    const rk_json *cases = rk_json_get(j, "cases");
    size_t         unknown = 0;
    for (size_t i = 0; i < rk_json_len(cases); i++)
        unknown += !run_case(folder, rk_json_at(cases, i));
    CU_ASSERT(rk_json_len(cases) > unknown);
    if (unknown > 0) {
        snprintf(path, sizeof path,
                 "%zu of %zu policy goldens use policies or head modes that do not exist", unknown,
                 rk_json_len(cases));
        rk_test_skip(path);
    }
    rk_json_close(j);
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
    for (int i = 0; i <= RK_POLICY_SNAPKV; i++) {
        CU_ASSERT_EQUAL(rk_policy_parse(rk_policy_name((rk_policy)i), &q), RK_OK);
        CU_ASSERT_EQUAL(q, (rk_policy)i);
    }
    CU_ASSERT_EQUAL(rk_policy_parse("snap", &q), RK_E_USAGE);
}

int rk_suite_select(void) {
    CU_pSuite s = CU_add_suite("select", NULL, NULL);
    if (s == NULL) return 1;
    CU_ADD_TEST(s, test_goldens);
    CU_ADD_TEST(s, test_against_ranks);
    CU_ADD_TEST(s, test_scores_by_hand);
    CU_ADD_TEST(s, test_forced);
    CU_ADD_TEST(s, test_check);
    return 0;
}
