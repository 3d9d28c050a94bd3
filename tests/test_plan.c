/* test_plan.c - partition against all splits, lists, costs and bytes by hand. */
#include <CUnit/CUnit.h>
#include <CUnit/TestDB.h>
#include <math.h>
#include <string.h>

#include "core/plan.h"
#include "tests/harness.h"
#include "tests/suites.h"

static double largest_stage(int n_stages, const double *cost, double first, double last,
                            const int *begin) {
    double worst = 0;
    for (int p = 0; p < n_stages; p++) {
        double sum = 0;
        for (int l = begin[p]; l < begin[p + 1]; l++) sum += cost[l];
        sum += (p == 0 ? first : 0) + (p == n_stages - 1 ? last : 0);
        worst = fmax(worst, sum);
    }
    return worst;
}

/* The next split in lexicographic order of the stage borders; false after the last. */
static bool next_split(int n_layers, int n_stages, int *begin) {
    for (int p = n_stages - 1; p > 0; p--)
        if (begin[p] < n_layers - (n_stages - p)) {
            begin[p]++;
            for (int k = p + 1; k < n_stages; k++) begin[k] = begin[k - 1] + 1;
            return true;
        }
    return false;
}

/* All splits in order, so that the first best one is that with the smallest first stages. */
static void brute_force(int n_layers, int n_stages, const double *cost, double first, double last,
                        int *best) {
    int    begin[12];
    double least = INFINITY;
    for (int p = 0; p < n_stages; p++) begin[p] = p;
    begin[n_stages] = n_layers;
    do {
        double worst = largest_stage(n_stages, cost, first, last, begin);
        if (worst < least) {
            least = worst;
            memcpy(best, begin, sizeof begin);
        }
    } while (next_split(n_layers, n_stages, begin));
}

static void test_partition(void) {
    uint32_t lcg = 5;
    int      bad = 0;
    for (int round = 0; round < 4000; round++) {
        double cost[10], extra[2];
        int    got[12], want[12];
        lcg = lcg * 1664525u + 1013904223u;
        int n_layers = 1 + (int)(lcg >> 16) % 10;
        lcg = lcg * 1664525u + 1013904223u;
        int n_stages = 1 + (int)(lcg >> 16) % n_layers;
        for (int i = 0; i < n_layers + 2; i++) {
            lcg = lcg * 1664525u + 1013904223u;
            double v = round % 2 ? 1 + (int)(lcg >> 16) % 4 : 0.001 * (1 + (int)(lcg >> 16) % 1000);
            if (i < n_layers)
                cost[i] = round % 5 == 0 ? 0.1 : v;
            else
                extra[i - n_layers] = v;
        }
        brute_force(n_layers, n_stages, cost, extra[0], extra[1], want);
        bad += rk_plan_partition(n_layers, cost, extra[0], extra[1], n_stages, got) != RK_OK;
        bad += memcmp(got, want, sizeof(int) * (size_t)(n_stages + 1)) != 0;
    }
    CU_ASSERT_EQUAL(bad, 0);
    double cost[3] = {1, 1, 1};
    int    begin[5];
    CU_ASSERT_EQUAL(rk_plan_partition(3, cost, 0, 0, 4, begin), RK_E_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, "4 stages for 3 layers"));
    CU_ASSERT_EQUAL(rk_plan_partition(3, cost, 0, 0, 0, begin), RK_E_USAGE);
}

static void expect_usage(const char *text, int n_stages, const char *word) {
    int  begin[8] = {-5};
    bool given = true;
    CU_ASSERT_EQUAL(rk_plan_parse_partition(text, 30, n_stages, begin, &given), RK_E_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, word));
    CU_ASSERT_EQUAL(begin[0], -5);
}

static void test_parse(void) {
    int  b[8] = {-5};
    bool given = true;
    CU_ASSERT_EQUAL(rk_plan_parse_partition("auto", 30, 3, b, &given), RK_OK);
    CU_ASSERT(!given && b[0] == -5);
    CU_ASSERT_EQUAL(rk_plan_parse_partition("uniform", 30, 4, b, &given), RK_OK);
    CU_ASSERT(given && b[0] == 0 && b[1] == 8 && b[2] == 16 && b[3] == 23 && b[4] == 30);
    given = false;
    CU_ASSERT_EQUAL(rk_plan_parse_partition("10, 15,5", 30, 3, b, &given), RK_OK);
    CU_ASSERT(given && b[0] == 0 && b[1] == 10 && b[2] == 25 && b[3] == 30);
    CU_ASSERT_EQUAL(rk_plan_parse_partition("30", 30, 1, b, &given), RK_OK);
    CU_ASSERT_EQUAL(b[1], 30);
    expect_usage("10,10,9", 3, "sum to the model's 30 layers");
    expect_usage("10,20", 3, "2 entries for 3 stages");
    expect_usage("10,20,0", 3, "stage 2 has no layer");
    expect_usage("10,,20", 3, "--partition 10,,20");
    expect_usage("10,20,", 3, "--partition");
    expect_usage("", 1, "--partition");
    expect_usage("-5,35", 2, "--partition");
    expect_usage("99999999999999999999,1", 2, "sum");
    expect_usage("ten", 1, "auto, uniform");
    expect_usage("uniform", 31, "31 stages for 30 layers");
}

static rk_config small_config(void) {
    return (rk_config){.n_layers = 6, .d_model = 48, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16,
                       .d_ffn = 100, .n_vocab = 1000};
}

static void test_costs(void) {
    rk_config c = small_config();
    /* q 48x64, k and v 48x32, o 64x48, three 48x100; pairs cost 2 x 64 */
    double matrices = 48 * 64 + 2 * 48 * 32 + 64 * 48 + 3 * 48 * 100;
    CU_ASSERT_DOUBLE_EQUAL(rk_plan_layer_cost(&c, 10, 0, 0), 10 * matrices + 55 * 128, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(rk_plan_layer_cost(&c, 0, 3, 7), 3 * matrices + 21 * 128, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(rk_plan_head_cost(&c, 2), 2 * 48000, 1e-6);
    CU_ASSERT_EQUAL(rk_plan_n_chunks(0, 64), 0);
    CU_ASSERT_EQUAL(rk_plan_n_chunks(64, 64), 1);
    CU_ASSERT_EQUAL(rk_plan_n_chunks(65, 64), 2);
}

static rk_plan_memory memory_of(const rk_plan_memory_spec *s) {
    rk_plan_memory m;
    rk_plan_memory_of(s, &m);
    return m;
}

static void test_weights(void) {
    rk_config           c = small_config();
    rk_plan_memory_spec s = {.config = &c, .layer_begin = 2, .layer_end = 4, .weight_bytes = 2,
                             .kv_bytes = 2};
    /* padded: qkv 128x64, o 64x64, gate and up 224x64 (200 rows), down 64x128; norms 2 x 48 f32 */
    int64_t layer = 2 * (128 * 64 + 64 * 64 + 224 * 64 + 64 * 128) + 2 * 48 * 4;
    int64_t table = 2 * 1024 * 64;
    CU_ASSERT_EQUAL(memory_of(&s).weights, 2 * layer);
    s.has_embed = true;
    CU_ASSERT_EQUAL(memory_of(&s).weights, 2 * layer + table);
    s.has_head = true;
    CU_ASSERT_EQUAL(memory_of(&s).weights, 2 * layer + 2 * table + 48 * 4);
    c.tied = true;
    CU_ASSERT_EQUAL(memory_of(&s).weights, 2 * layer + table + 48 * 4);
    s.has_embed = false;
    CU_ASSERT_EQUAL(memory_of(&s).weights, 2 * layer + table + 48 * 4);
    c.qkv_bias = c.qk_norm = true;
    CU_ASSERT_EQUAL(memory_of(&s).weights, 2 * (layer + 128 * 4 + 32 * 4) + table + 48 * 4);
    s.weight_bytes = 4;
    CU_ASSERT_EQUAL(memory_of(&s).weights,
                    2 * (2 * layer - 2 * 48 * 4 + 128 * 4 + 32 * 4) + 2 * table + 48 * 4);
}

static void test_kv_and_buffers(void) {
    rk_config           c = small_config();
    int32_t             budget[6] = {1, 1, 60, 200, 1, 1};
    rk_plan_memory_spec s = {.config = &c, .layer_begin = 2, .layer_end = 4, .weight_bytes = 2,
                             .kv_bytes = 2, .n_prompt = 150, .n_new = 10, .n_sequences = 3};
    int64_t             page = 2 * 2 * 64 * 16 * 2; /* K and V of two stored heads, bf16 */
    rk_plan_memory      m = memory_of(&s);
    CU_ASSERT_EQUAL(m.kv_peak, 3 * 2 * 3 * page); /* 160 tokens: 3 pages a layer */
    CU_ASSERT_EQUAL(m.kv_after, m.kv_peak);
    s.budget = budget;
    m = memory_of(&s);
    /* kept: 70 tokens, 2 pages; a budget above the prompt is the prompt: 3 pages */
    CU_ASSERT_EQUAL(m.kv_after, 3 * (2 + 3) * page);
    CU_ASSERT_EQUAL(m.kv_peak, 6 * page + 2 * (2 + 3) * page);
    CU_ASSERT_EQUAL(m.buffers, 0);
    s.max_rows = 8;
    /* residual 48, qkv 128, input 100, rope 16 */
    CU_ASSERT_EQUAL(memory_of(&s).buffers, 8 * (48 + 128 + 100 + 16) * 4);
    s.has_head = true, s.max_logit_rows = 2;
    CU_ASSERT_EQUAL(memory_of(&s).buffers, (8 * 292 + 2 * 1000) * 4);
    s.observe_bytes = 5 * 7;
    m = memory_of(&s);
    CU_ASSERT_EQUAL(m.buffers, (8 * 292 + 2 * 1000) * 4 + 5 * 7);
    CU_ASSERT_EQUAL(m.total, m.weights + m.kv_peak + m.buffers);
    s.n_sequences = 0;
    CU_ASSERT_EQUAL(memory_of(&s).kv_peak, 0);
}

int rk_suite_plan(void) {
    CU_pSuite s = CU_add_suite("plan", NULL, NULL);
    if (s == NULL) return 1;
    CU_ADD_TEST(s, test_partition);
    CU_ADD_TEST(s, test_parse);
    CU_ADD_TEST(s, test_costs);
    CU_ADD_TEST(s, test_weights);
    CU_ADD_TEST(s, test_kv_and_buffers);
    return 0;
}
