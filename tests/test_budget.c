/* test_budget.c - golden budgets, and the header's promises on random specs. */
#include <CUnit/CUnit.h>
#include <CUnit/TestDB.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "core/budget.h"
#include "tests/harness.h"
#include "tests/suites.h"

enum { MAX_L = 512 };

/* Reads a golden's list of numbers; its length, or -1 where there is none or it is too long. */
static int read_numbers(const rk_json *c, const char *key, double *out) {
    const rk_json *a = rk_json_get(c, key);
    if (rk_json_kind_of(a) != RK_JSON_ARRAY || rk_json_len(a) > MAX_L) return -1;
    for (size_t i = 0; i < rk_json_len(a); i++) out[i] = rk_json_num(rk_json_at(a, i), NAN);
    return (int)rk_json_len(a);
}

static bool run_split(const rk_json *c, rk_budget_spec *s, const char *allocator) {
    int32_t          got[MAX_L];
    double           want[MAX_L];
    rk_budget_result r = {0};
    int64_t          sum = 0;
    bool             full = strcmp(allocator, "full") == 0;
    if (full) s->ratio = 1; /* rho is ignored */
    if (read_numbers(c, "budgets", want) != s->n_layers) return false;
    if (rk_budget_split(s, got, &r) != RK_OK) return false;
    bool ok = r.lo == rk_json_int(rk_json_get(c, "lo"), -1) &&
              r.total == rk_json_int(rk_json_get(c, "total"), -1) &&
              (full || r.asked == rk_json_int(rk_json_get(c, "T"), -1));
    for (int l = 0; l < s->n_layers; l++) {
        ok = ok && (double)got[l] == want[l];
        sum += got[l];
    }
    return ok && sum == r.total;
}

/* False: an allocator that this version does not have. */
static bool run_case(const rk_json *c) {
    static double  sens[MAX_L], weights[MAX_L];
    const char    *name = rk_json_str(rk_json_get(c, "allocator"), "");
    bool           list = strcmp(name, "weights") == 0, full = strcmp(name, "full") == 0;
    rk_budget_spec s = {
        .n_layers = (int)rk_json_int(rk_json_get(c, "L"), 0),
        .n_prompt = rk_json_int(rk_json_get(c, "n"), 0),
        .ratio = rk_json_num(rk_json_get(c, "rho"), -1),
        .tokens = rk_json_int(rk_json_get(c, "budget"), 0),
        .allocator = list ? RK_ALLOC_LIST : RK_ALLOC_UNIFORM,
        .r = rk_json_num(rk_json_get(c, "r"), 4),
        .gamma = rk_json_num(rk_json_get(c, "gamma"), 4),
        .beta = rk_json_num(rk_json_get(c, "beta"), 20),
        .window = (int)rk_json_int(rk_json_get(c, "window"), 32),
        .sinks = (int)rk_json_int(rk_json_get(c, "sinks"), 4),
    };
    if (!list && !full && rk_allocator_parse(name, &s.allocator) != RK_OK) return false;
    if (read_numbers(c, "sensitivity", sens) == s.n_layers) s.sensitivity = sens;
    if (read_numbers(c, "weights", weights) == s.n_layers) s.shares = weights;
    bool ok = s.n_layers >= 1 && s.n_layers <= MAX_L && run_split(c, &s, name);
    if (!ok)
        fprintf(stderr, "budget golden %lld (%s, %s) differs\n",
                (long long)rk_json_int(rk_json_get(c, "id"), -1), name,
                rk_json_str(rk_json_get(c, "note"), ""));
    CU_ASSERT(ok);
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
    snprintf(path, sizeof path, "%s/policies/budgets.json", folder);
    CU_ASSERT_EQUAL(rk_json_load(path, &j), RK_OK);
    const rk_json *cases = rk_json_get(j, "cases");
    size_t         unknown = 0;
    for (size_t i = 0; i < rk_json_len(cases); i++) unknown += !run_case(rk_json_at(cases, i));
    CU_ASSERT(rk_json_len(cases) > unknown);
    if (unknown > 0) {
        snprintf(path, sizeof path, "%zu of %zu budget goldens use allocators that do not exist",
                 unknown, rk_json_len(cases));
        rk_test_skip(path);
    }
    rk_json_close(j);
}

static uint64_t mix_state;
static uint64_t mix(void) {
    uint64_t z = mix_state += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}
static int64_t below(int64_t n) {
    return (int64_t)(mix() % (uint64_t)n);
}
static double unit(void) {
    return (double)(mix() >> 11) / 9007199254740992.0;
}

/* Shares of one of several kinds: small integers with ties, uniform, 600 decades, zeros. */
static double random_share(int64_t kind) {
    switch (kind) {
    case 0:
        return (double)(1 + below(6));
    case 1:
        return unit();
    case 2:
        return pow(10, 600 * unit() - 300);
    case 3:
        return below(3) == 0 ? 0 : pow(10, 8 * unit() - 4);
    case 4:
        return ldexp(1, (int)below(40));
    default:
        return 1 + 1e-15 * (double)below(5);
    }
}

/* Every layer within one token of the water-fill, whose scale is found by bisection. */
static bool near_fill(int n_layers, const double *w, int64_t lo, int64_t n, int64_t total,
                      const int32_t *b) {
    long double low = -1200, high = 1200, scale = 0; /* log2 of the scale */
    for (int i = 0; i < 200; i++) {
        long double sum = 0;
        scale = exp2l((low + high) / 2);
        for (int l = 0; l < n_layers; l++)
            sum += fminl(fmaxl(scale * (long double)w[l], (long double)lo), (long double)n);
        if (sum <= (long double)total)
            low = (low + high) / 2;
        else
            high = (low + high) / 2;
    }
    for (int l = 0; l < n_layers; l++) {
        long double y = fminl(fmaxl(scale * (long double)w[l], (long double)lo), (long double)n);
        if (w[l] > 0 && fabsl((long double)b[l] - y) > 1 + 1e-6L) return false;
    }
    return true;
}

/* Promises exact, bounded, monotone, repeatable; and scale: shares times 2^k change nothing. */
static void test_properties(void) {
    int bad = 0, far = 0;
    mix_state = 1;
    for (int round = 0; round < 100000; round++) {
        int     n_layers = 1 + (int)below(round % 50 == 0 ? 128 : 20);
        int64_t n = 1 + below(round % 7 == 0 ? 2000000000 : 5000), lo = 1 + below(n < 64 ? n : 64);
        int64_t total = n_layers * lo + below(n_layers * (n - lo) + 1), sum = 0, kind = below(6);
        double  w[128], w2[128];
        int32_t b[128], b2[128];
        for (int l = 0; l < n_layers; l++) {
            w[l] = random_share(kind);
            w2[l] = ldexp(w[l], 7);
        }
        if (rk_budget_integerise(n_layers, w, lo, n, total, b) != RK_OK ||
            rk_budget_integerise(n_layers, w2, lo, n, total, b2) != RK_OK) {
            bad++;
            continue;
        }
        bad += memcmp(b, b2, sizeof b[0] * (size_t)n_layers) != 0;
        for (int l = 0; l < n_layers; l++) {
            sum += b[l];
            bad += b[l] < lo || b[l] > n;
            for (int k = 0; k < n_layers; k++)
                bad += (w[l] > w[k] && b[l] < b[k]) ||
                       (w[l] >= w[k] && w[l] <= w[k] && l < k && (b[l] < b[k] || b[l] > b[k] + 1));
        }
        bad += sum != total;
        if (round % 50 == 0) far += !near_fill(n_layers, w, lo, n, total, b);
    }
    CU_ASSERT_EQUAL(bad, 0);
    CU_ASSERT_EQUAL(far, 0);
}

/* Remainders that are equal as fractions, whatever their doubles round to. */
static void test_exact_ties(void) {
    double  w[] = {8, 1, 15}; /* 24 shares, total 100: 33 1/3, 4 1/6, 62 1/2 */
    int32_t b[4];
    CU_ASSERT_EQUAL(rk_budget_integerise(3, w, 1, 1000, 100, b), RK_OK);
    CU_ASSERT(b[0] == 33 && b[1] == 4 && b[2] == 63);
    double v[] = {8, 1, 1, 4}; /* 14 shares, total 23: 13 1/7, 1 9/14, 1 9/14, 6 4/7 */
    CU_ASSERT_EQUAL(rk_budget_integerise(4, v, 1, 1000, 23, b), RK_OK);
    CU_ASSERT(b[0] == 13 && b[1] == 2 && b[2] == 2 && b[3] == 6);
    /* 28 shares, total 40: 21 3/7, 11 3/7, 1 3/7, 5 5/7: the second spare one has three equal
     * remainders to choose from */
    double u[] = {15, 8, 1, 4};
    CU_ASSERT_EQUAL(rk_budget_integerise(4, u, 1, 1000, 40, b), RK_OK);
    CU_ASSERT(b[0] == 22 && b[1] == 11 && b[2] == 1 && b[3] == 6);
    /* Tied remainders 1/3 and 1/3 of shares ten apart in a ratio that no double holds: k / 3 */
    for (int64_t k = 1; k < 2000; k++) {
        double  x[] = {1, 10, 1}; /* 12 shares, total 4k: k/3, 10k/3, k/3 */
        int64_t third = k / 3;
        if (third < 1 || k % 3 != 1) continue;
        CU_ASSERT_EQUAL(rk_budget_integerise(3, x, 1, 100000, 4 * k, b), RK_OK);
        CU_ASSERT(b[0] == third + 1 && b[1] == 10 * k / 3 && b[2] == third);
    }
}

/* Every (n, ratio) of a small grid, rounding of T included. */
static void test_totals(void) {
    for (int64_t n = 1; n < 90; n += 4)
        for (int i = 1; i <= 20; i++) {
            int32_t          b[7];
            double           s[7] = {3, 1, 0, 2, 2, 9, 4};
            rk_budget_result r;
            rk_budget_spec   spec = {.n_layers = 7, .n_prompt = n, .ratio = i / 20.0,
                                     .allocator = RK_ALLOC_RIPPLE, .sensitivity = s, .r = 4,
                                     .gamma = 4, .beta = 20, .window = 8, .sinks = 4};
            CU_ASSERT_EQUAL(rk_budget_split(&spec, b, &r), RK_OK);
            int64_t sum = 0, asked = (int64_t)round(i / 20.0 * (double)(n * 7));
            for (int l = 0; l < 7; l++) sum += b[l];
            int64_t lo = n < 8 ? n : 8, want = asked < 7 * lo ? 7 * lo : asked;
            CU_ASSERT_EQUAL(r.asked, asked);
            CU_ASSERT_EQUAL(sum, want < 7 * n ? want : 7 * n);
            CU_ASSERT(b[5] >= b[6] && b[6] >= b[0] && b[0] >= b[3] && b[1] >= b[2]);
        }
}

static void expect_fail(rk_budget_spec s, rk_status code, const char *word) {
    int32_t b[4] = {-7, -7, -7, -7};
    CU_ASSERT_EQUAL(rk_budget_split(&s, b, NULL), code);
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, word));
    CU_ASSERT_EQUAL(b[0], -7);
}

static void test_errors(void) {
    double         s[4] = {1, 2, 3, 4}, bad[4] = {1, NAN, 3, 4}, neg[4] = {1, 2, -3, 4};
    rk_budget_spec ok = {.n_layers = 4, .n_prompt = 100, .ratio = 0.5, .sensitivity = s,
                         .shares = s, .allocator = RK_ALLOC_RIPPLE, .r = 4, .gamma = 4, .beta = 20,
                         .window = 8, .sinks = 4};
    rk_budget_spec x = ok;
    int32_t        b[4];
    CU_ASSERT_EQUAL(rk_budget_split(&ok, b, NULL), RK_OK);
    x.ratio = 1.5, expect_fail(x, RK_E_USAGE, "--ratio"), x = ok;
    x.ratio = 0, expect_fail(x, RK_E_USAGE, "--ratio"), x = ok;
    x.ratio = NAN, expect_fail(x, RK_E_USAGE, "--ratio"), x = ok;
    x.ratio = -1, x.tokens = 0, expect_fail(x, RK_E_USAGE, "--budget"), x = ok;
    x.r = 0, expect_fail(x, RK_E_USAGE, "--r "), x = ok;
    x.gamma = 0.5, expect_fail(x, RK_E_USAGE, "--gamma"), x = ok;
    x.allocator = RK_ALLOC_PYRAMID, x.beta = 0.5, expect_fail(x, RK_E_USAGE, "--beta"), x = ok;
    x.window = -1, expect_fail(x, RK_E_USAGE, "--window"), x = ok;
    x.sinks = -1, expect_fail(x, RK_E_USAGE, "--sinks"), x = ok;
    x.sensitivity = NULL, expect_fail(x, RK_E_USAGE, "--sensitivity"), x = ok;
    x.sensitivity = bad, expect_fail(x, RK_E_INPUT, "layer 1"), x = ok;
    x.sensitivity = neg, expect_fail(x, RK_E_INPUT, "layer 2"), x = ok;
    x.allocator = RK_ALLOC_LIST, x.shares = neg, expect_fail(x, RK_E_INPUT, "layer 2"), x = ok;
    x.n_prompt = 0, expect_fail(x, RK_E_USAGE, "prompt"), x = ok;
    x.n_layers = 0, expect_fail(x, RK_E_USAGE, "0 layers");

    rk_allocator a;
    CU_ASSERT_EQUAL(rk_allocator_parse("ripples", &a), RK_E_USAGE);
    for (int i = 0; i < RK_ALLOC_LIST; i++) {
        CU_ASSERT_EQUAL(rk_allocator_parse(rk_allocator_name((rk_allocator)i), &a), RK_OK);
        CU_ASSERT_EQUAL(a, (rk_allocator)i);
    }
}

/* No allocation may fail unseen, and none may leak. */
static void test_out_of_memory(void) {
    double         s[4] = {1, 2, 3, 4};
    int32_t        b[4];
    rk_budget_spec x = {.n_layers = 4, .n_prompt = 100, .ratio = 0.5, .sensitivity = s,
                        .allocator = RK_ALLOC_RIPPLE, .r = 4, .gamma = 4, .window = 8};
    int64_t        blocks = rk_mem_blocks();
    int            failed = 0;
    for (int n = 1; n < 20; n++) {
        rk_mem_fail_at(n);
        rk_status st = rk_budget_split(&x, b, NULL);
        rk_mem_fail_at(0);
        CU_ASSERT(st == RK_OK || st == RK_E_MEM);
        failed += st == RK_E_MEM;
        CU_ASSERT_EQUAL(rk_mem_blocks(), blocks);
    }
    CU_ASSERT_EQUAL(failed, 3);
}

static rk_status load_text(const char *text, size_t n, double *out) {
    char path[4200];
    snprintf(path, sizeof path, "%s/shares.txt", rk_test_tmpdir());
    FILE *f = fopen(path, "wb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    CU_ASSERT_EQUAL(fwrite(text, 1, n, f), n);
    CU_ASSERT_EQUAL(fclose(f), 0);
    return rk_budget_load_list(path, 3, out);
}

static void test_load_list(void) {
    static const char *const GOOD[] = {"1 2.5\n3e2", "1,2.5,3e2\n", "[1, 2.5, 300.0]",
                                       "# shares\n1 # one\n2.5,\t300\r\n",
                                       " \n[1,\n2.5,300]\n"};
    static const char *const BAD[] = {"",      "1 2",      "1 2 3 4",  "1 x 3", "1 2 nan",
                                      "1 -2 3", "[1,2]",   "[1,2,\"3\"]", "[1,2,3", "1 2 3x",
                                      "[1,2,3,4]", "1 2 inf"};
    double v[4];
    for (size_t i = 0; i < sizeof GOOD / sizeof GOOD[0]; i++) {
        memset(v, 0, sizeof v);
        CU_ASSERT_EQUAL(load_text(GOOD[i], strlen(GOOD[i]), v), RK_OK);
        CU_ASSERT(fabs(v[0] - 1) + fabs(v[1] - 2.5) + fabs(v[2] - 300) <= 0);
    }
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        CU_ASSERT_EQUAL(load_text(BAD[i], strlen(BAD[i]), v), RK_E_INPUT);
        CU_ASSERT(fabs(v[3]) <= 0); /* nothing beyond the three */
        CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, "shares.txt"));
    }
    CU_ASSERT_EQUAL(load_text("1 2\0 3", 6, v), RK_E_INPUT);
    CU_ASSERT_EQUAL(rk_budget_load_list("/nonexistent/shares", 3, v), RK_E_INPUT);
}

int rk_suite_budget(void) {
    CU_pSuite s = CU_add_suite("budget", NULL, NULL);
    if (s == NULL) return 1;
    CU_ADD_TEST(s, test_goldens);
    CU_ADD_TEST(s, test_properties);
    CU_ADD_TEST(s, test_exact_ties);
    CU_ADD_TEST(s, test_totals);
    CU_ADD_TEST(s, test_errors);
    CU_ADD_TEST(s, test_out_of_memory);
    CU_ADD_TEST(s, test_load_list);
    return 0;
}
