/* test_native.c - weights that stay quantised: what the prompt's pass gives is bit for bit what bf16
 * weights give; new tokens, with int8 activations, are near; memory is what the file has. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "tests/engine_fixture.h"
#include "tests/harness.h"
#include "tests/suites.h"
#include "tests/tiny_model.h"

enum { PROMPT = 150, FORCED = 24 };

typedef struct outcome {
    float  *prompt, *forced; /* [1][V], [FORCED][V] */
    int64_t weight_bytes;
} outcome;

static bool run(const char *path, bool native, const char *numerics, const char *isa,
                const int32_t *tokens, outcome *out) {
    rk_engine_config cfg = rk_fixture_config("cpu", PROMPT, FORCED);
    rk_fixture       f;
    int32_t          last[] = {PROMPT - 1}, all[FORCED];
    cfg.native = native, cfg.numerics = numerics, cfg.isa = isa;
    cfg.chunk = 64;
    *out = (outcome){0};
    if (!rk_fixture_open(path, &cfg, &f)) return false;
    int64_t V = rk_engine_model(f.engine)->n_vocab;
    void   *p;
    bool    ok = rk_mem_alloc((FORCED + 1) * V, sizeof(float), "test", &p) == RK_OK;
    for (int i = 0; i < FORCED; i++) all[i] = i;
    out->prompt = p;
    out->forced = out->prompt + V;
    ok = ok && rk_engine_logits(f.engine, 0, tokens, PROMPT, NULL, FORCED, last, 1, out->prompt) == RK_OK;
    ok = ok && rk_engine_logits(f.engine, 0, tokens + PROMPT, FORCED, NULL, 0, all, FORCED, out->forced) == RK_OK;
    rk_plan_memory m;
    int            begin[] = {0, rk_engine_model(f.engine)->n_layers};
    rk_engine_memory_of(f.weights, &cfg, 1, begin, 0, &m);
    ok = ok && rk_engine_stop(f.engine) == RK_OK;
    out->weight_bytes = rk_engine_stats(f.engine)[0].weight_bytes;
    ok = ok && m.weights == out->weight_bytes;
    rk_fixture_close(&f);
    return ok;
}

static void compare(const char *path, const char *what, int n_vocab, double bound, double most_bytes) {
    static const char *const numerics[] = {"tile", "pair"};
    int32_t                  tokens[PROMPT + FORCED];
    for (int i = 0; i < PROMPT + FORCED; i++) tokens[i] = (i * 7919 + i * i * 31) % n_vocab;
    for (int k = 0; k < 2; k++) {
        outcome a, b, c;
        double  kl = 0;
        CU_ASSERT_FATAL(run(path, false, numerics[k], NULL, tokens, &a));
        CU_ASSERT_FATAL(run(path, true, numerics[k], NULL, tokens, &b));
        CU_ASSERT_FATAL(run(path, true, numerics[k], "avx2", tokens, &c) || !rk_backend_has_isa("avx2", "pair"));
        size_t row = (size_t)n_vocab * sizeof(float);
        CU_ASSERT(memcmp(a.prompt, b.prompt, row) == 0);
        CU_ASSERT(memcmp(a.forced, b.forced, row) != 0); /* int8 does round */
        if (c.prompt) CU_ASSERT(memcmp(b.forced, c.forced, row * FORCED) == 0);
        for (int i = 0; i < FORCED; i++)
            kl += rk_row_kl(a.forced + (int64_t)i * n_vocab, b.forced + (int64_t)i * n_vocab, n_vocab) / FORCED;
        printf("    %s, %s: KL of new tokens %.2e nats, weights %.2f of bf16's\n", what, numerics[k], kl,
               (double)b.weight_bytes / (double)a.weight_bytes);
        CU_ASSERT(kl > 0 && kl < bound);
        CU_ASSERT((double)b.weight_bytes < most_bytes * (double)a.weight_bytes);
        rk_mem_free(a.prompt), rk_mem_free(b.prompt), rk_mem_free(c.prompt);
    }
}

static void test_tiny(void) {
    static const struct {
        int    type;
        double bytes;
    } types[] = {{RK_GGML_Q8_0, 0.6}, {RK_GGML_Q4_0, 0.4}, {RK_GGML_Q4_1, 0.4}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        rk_tiny_spec s = rk_tiny_default();
        char         path[4096];
        s.type = types[i].type;
        snprintf(path, sizeof path, "%s/native.gguf", rk_test_tmpdir());
        CU_ASSERT_EQUAL_FATAL(rk_tiny_model_write_gguf(path, &s), RK_OK);
        compare(path, rk_ggml_type_name(s.type), RK_TINY_VOCAB, 2e-3, types[i].bytes);
    }
}

static void test_model(void) {
    rk_weights *w;
    if (!rk_test_model()) {
        rk_test_skip("no model (RIPPLEKV_MODEL)");
        return;
    }
    CU_ASSERT_EQUAL_FATAL(rk_weights_open(rk_test_model(), &w), RK_OK);
    int  V = rk_weights_config(w)->n_vocab;
    bool quantised = rk_quant_of_name(rk_weights_dtype(w)) != RK_QUANT_NONE;
    rk_weights_close(w);
    if (quantised)
        compare(rk_test_model(), "the model", V, 2e-2, 0.6);
    else
        rk_test_skip("the model is not quantised");
}

int rk_suite_native(void) {
    CU_pSuite s = CU_add_suite("native", NULL, NULL);
    if (s == NULL) return 1;
    CU_ADD_TEST(s, test_tiny);
    CU_ADD_TEST(s, test_model);
    return 0;
}
