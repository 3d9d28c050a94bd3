/* test_config.c - ranges, rotation tables, recovery of llama3 scaling, the shape hash. */
#include <CUnit/CUnit.h>
#include <CUnit/TestDB.h>
#include <math.h>
#include <string.h>

#include "core/config.h"
#include "core/weights_internal.h"
#include "tests/harness.h"
#include "tests/suites.h"

static rk_config good(void) {
    rk_config c = {.arch = "llama",
                   .n_layers = 4,
                   .d_model = 64,
                   .n_heads = 4,
                   .n_kv_heads = 2,
                   .head_dim = 32,
                   .d_ffn = 96,
                   .n_vocab = 300,
                   .max_positions = 4096,
                   .rms_eps = 1e-5,
                   .rope_theta = 10000,
                   .bos = -1,
                   .stop = {299},
                   .n_stop = 1};
    return c;
}

/* Llama 3.1 and 3.2's numbers on a given head_dim. */
static rk_config llama3(int head_dim, double theta, double factor, double low, double high,
                        int64_t original) {
    rk_config c = good();
    c.head_dim = head_dim;
    c.rope_theta = theta;
    c.rope_scaling = RK_ROPE_LLAMA3;
    c.rope_factor = factor;
    c.rope_low_freq = low;
    c.rope_high_freq = high;
    c.rope_original_positions = original;
    return c;
}

static void refused(const rk_config *c, const char *expected) {
    CU_ASSERT_EQUAL(rk_config_check(c, "ORIGIN"), RK_E_INPUT);
    const char *text = rk_err_last()->text;
    CU_ASSERT(strncmp(text, "ORIGIN: ", 8) == 0 && !strchr(text, '\n'));
    if (!strstr(text, expected)) {
        fprintf(stderr, "expected \"%s\": %s\n", expected, text);
        CU_FAIL("message");
    }
}

#define REFUSED(set, expected)                                                                     \
    do {                                                                                           \
        rk_config c = good();                                                                      \
        set;                                                                                       \
        refused(&c, expected);                                                                     \
    } while (0)

static void test_check(void) {
    rk_config ok = good();
    CU_ASSERT_EQUAL(rk_config_check(&ok, "ORIGIN"), RK_OK);
    REFUSED(c.n_layers = 0, "number of layers is 0, expected 1 to 4096");
    REFUSED(c.n_layers = 4097, "number of layers is 4097");
    REFUSED(c.d_model = 0, "hidden size is 0");
    REFUSED(c.d_model = 48, "hidden size is 48, not a multiple of 32: the kernels");
    REFUSED(c.d_model = 1 << 21, "hidden size is 2097152");
    REFUSED(c.n_heads = 0, "attention heads is 0");
    REFUSED(c.n_kv_heads = 0, "key-value heads is 0");
    REFUSED(c.n_kv_heads = 3, "4 attention heads are no multiple of 3");
    REFUSED(c.n_kv_heads = 8, "key-value heads is 8, expected 1 to 4");
    REFUSED(c.head_dim = 33, "head_dim is 33, not a multiple of 32");
    REFUSED(c.head_dim = -32, "head_dim is -32");
    REFUSED(c.n_heads = 1 << 19, "heads x head_dim is 16777216");
    REFUSED(c.d_ffn = 100, "feed-forward size is 100, not a multiple of 32");
    REFUSED(c.n_vocab = 0, "vocabulary size is 0");
    REFUSED(c.max_positions = 0, "number of positions is 0");
    REFUSED(c.max_positions = 1ll << 40, "number of positions is");
    REFUSED(c.bos = 300, "bos token id is 300, expected -1 to 299");
    REFUSED(c.stop[0] = 300, "stop token id is 300, expected 0 to 299");
    REFUSED(c.rms_eps = NAN, "RMS norm epsilon is nan");
    REFUSED(c.rms_eps = 0, "RMS norm epsilon is 0");
    REFUSED(c.rms_eps = 2, "RMS norm epsilon is 2");
    REFUSED(c.rope_theta = INFINITY, "rope_theta is inf");
    REFUSED(c.rope_theta = -1, "rope_theta is -1");
    REFUSED(c.rope_scaling = RK_ROPE_LINEAR, "rope scaling factor is 0");
    REFUSED(c = llama3(32, 1e4, 8, 4, 4, 64), "high_freq_factor 4 is not above");
    REFUSED(c = llama3(32, 1e4, 8, 0, 4, 64), "low_freq_factor is 0");
    REFUSED(c = llama3(32, 1e4, 8, 1, 4, 0), "original_max_position_embeddings is 0");
}

static void test_stops(void) {
    rk_config c = good();
    CU_ASSERT_EQUAL(rk_config_add_stop(&c, 299, "ORIGIN"), RK_OK);
    CU_ASSERT_EQUAL(c.n_stop, 1);
    for (int i = 0; i < RK_MAX_STOP - 1; i++)
        CU_ASSERT_EQUAL(rk_config_add_stop(&c, i, "ORIGIN"), RK_OK);
    CU_ASSERT_EQUAL(rk_config_add_stop(&c, 100, "ORIGIN"), RK_E_INPUT);
    CU_ASSERT_EQUAL(rk_config_add_stop(&c, -2, "ORIGIN"), RK_E_INPUT);
}

/* Speed of frequency i as the Llama 3.1 rule states it, in long double. */
static long double speed(const rk_config *c, int i) {
    long double s = powl((long double)c->rope_theta, -2.0L * i / c->head_dim);
    if (c->rope_scaling == RK_ROPE_LINEAR) return s / (long double)c->rope_factor;
    if (c->rope_scaling == RK_ROPE_PLAIN) return s;
    long double wave = 2 * acosl(-1.0L) / s, old = (long double)c->rope_original_positions;
    long double low = (long double)c->rope_low_freq, high = (long double)c->rope_high_freq;
    if (wave < old / high) return s;
    if (wave > old / low) return s / (long double)c->rope_factor;
    long double blend = (old / wave - low) / (high - low);
    return (1 - blend) * s / (long double)c->rope_factor + blend * s;
}

static void check_table(const rk_config *c, int64_t first) {
    enum { N = 5 };
    float table[N * 128], part[128];
    int   d = c->head_dim, bad = 0;
    rk_config_rope_table(c, first, N, table);
    for (int p = 0; p < N; p++)
        for (int i = 0; i < d / 2; i++) {
            long double a = (long double)(first + p) * speed(c, i);
            double      tolerance = 6e-8 + 1e-15 * (double)a; /* f32 rounding, f64 angle */
            bad += !(fabs((double)(table[p * d + i] - (float)cosl(a))) <= tolerance);
            bad += !(fabs((double)(table[p * d + d / 2 + i] - (float)sinl(a))) <= tolerance);
        }
    CU_ASSERT_EQUAL(bad, 0);
    rk_config_rope_table(c, first + 3, 1,
                         part); /* a row does not depend on where the table starts */
    CU_ASSERT(memcmp(part, table + 3 * d, (size_t)d * sizeof *part) == 0);
}

static void test_rope_table(void) {
    static const int64_t starts[] = {0, 1000, 131000};
    rk_config            c = good(), linear = good();
    rk_config            three = llama3(128, 500000, 8, 1, 4, 8192);
    linear.rope_scaling = RK_ROPE_LINEAR;
    linear.rope_factor = 4;
    for (int i = 0; i < 3; i++) {
        check_table(&c, starts[i]);
        check_table(&linear, starts[i]);
        check_table(&three, starts[i]);
    }
}

/* The table that a GGUF file holds gives the same scaling back; for thresholds that two blended
 * frequencies show, also when the table was made in f32. */
static void test_fit(void) {
    const rk_config cases[] = {
        llama3(128, 500000, 8, 1, 4, 8192),  /* Llama 3.1 */
        llama3(64, 500000, 32, 1, 4, 8192),  /* Llama 3.2 1B */
        llama3(128, 500000, 32, 1, 4, 8192), /* Llama 3.2 3B */
        llama3(32, 50000, 8, 1, 4, 64),      llama3(32, 50000, 8, 2, 8, 128),
        llama3(64, 10000, 16, 1, 32, 4096),  llama3(64, 1e6, 4, 3, 5, 1000),
        llama3(32, 50000, 8, 1, 1.5, 200),   llama3(128, 500000, 8, 1, 4, 3001),
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        const rk_config *c = &cases[k];
        for (int noisy = 0; noisy < 2; noisy++) {
            float     f[64];
            rk_config got = *c;
            int       n_blended = 0;
            for (int i = 0; i < c->head_dim / 2; i++) {
                double exact = rk_config_rope_factor(c, i);
                n_blended += exact > 1 && exact < c->rope_factor;
                f[i] = (float)(exact * (noisy && exact != 1 ? 1 + 4e-7 * (i % 3 - 1) : 1));
            }
            got.rope_scaling = RK_ROPE_PLAIN;
            got.rope_factor = got.rope_low_freq = got.rope_high_freq = 0;
            got.rope_original_positions = 0;
            CU_ASSERT_EQUAL(rk_config_fit_rope(&got, f, "ORIGIN"), RK_OK);
            CU_ASSERT_EQUAL(rk_config_check(&got, "ORIGIN"), RK_OK);
            if (!noisy || n_blended > 1)
                CU_ASSERT_EQUAL(rk_config_shape_hash(&got), rk_config_shape_hash(c));
        }
    }
}

static void test_fit_other(void) {
    rk_config c = good();
    float     f[16];
    for (int i = 0; i < 16; i++) f[i] = 1;
    CU_ASSERT_EQUAL(rk_config_fit_rope(&c, f, "ORIGIN"), RK_OK);
    CU_ASSERT_EQUAL(c.rope_scaling, RK_ROPE_PLAIN);
    for (int i = 0; i < 16; i++) f[i] = 4;
    CU_ASSERT_EQUAL(rk_config_fit_rope(&c, f, "ORIGIN"), RK_OK);
    CU_ASSERT(c.rope_scaling == RK_ROPE_LINEAR && c.rope_factor == 4);
    for (int bad = 0; bad < 5; bad++) {
        rk_config three = llama3(32, 50000, 8, 1, 4, 64);
        for (int i = 0; i < 16; i++) f[i] = (float)rk_config_rope_factor(&three, i);
        if (bad == 0) f[0] = 3;
        if (bad == 1) f[15] = 0;
        if (bad == 2) f[7] = NAN;
        if (bad == 3) f[2] = f[3] * 1.5f; /* slower than its longer neighbour */
        if (bad == 4) f[15] = INFINITY;
        CU_ASSERT_EQUAL(rk_config_fit_rope(&three, f, "ORIGIN"), RK_E_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, "rope_freqs.weight"));
    }
}

/* Every value that shapes the computation counts, and nothing else does. */
static void test_shape_hash(void) {
    enum { N = 14 };
    rk_config c[N];
    for (int i = 0; i < N; i++) c[i] = good();
    c[1].n_layers = 5;
    c[2].d_model = 96;
    c[3].n_heads = 6;
    c[4].n_kv_heads = 4;
    c[5].head_dim = 64;
    c[6].d_ffn = 64;
    c[7].n_vocab = 301;
    c[8].rms_eps = 1e-6;
    c[9].rope_theta = 10001;
    c[10].tied = true;
    c[11].qkv_bias = true;
    c[12].qk_norm = true;
    c[13] = llama3(32, 10000, 8, 1, 4, 64);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < i; j++)
            CU_ASSERT_NOT_EQUAL(rk_config_shape_hash(&c[i]), rk_config_shape_hash(&c[j]));
    rk_config same = good();
    strcpy(same.arch, "mistral");
    strcpy(same.name, "another name");
    same.n_stop = 0;
    same.bos = 3;
    same.rms_eps = (double)(float)same.rms_eps; /* what a GGUF file keeps of it */
    CU_ASSERT_EQUAL(rk_config_shape_hash(&same), rk_config_shape_hash(&c[0]));
}

int rk_suite_config(void) {
    CU_pSuite s = CU_add_suite("config", NULL, NULL);
    if (s == NULL) return 1;
    CU_ADD_TEST(s, test_check);
    CU_ADD_TEST(s, test_stops);
    CU_ADD_TEST(s, test_rope_table);
    CU_ADD_TEST(s, test_fit);
    CU_ADD_TEST(s, test_fit_other);
    CU_ADD_TEST(s, test_shape_hash);
    return 0;
}
