/* test_native.c - weights that stay quantised: what the prompt's pass gives is bit for bit what bf16
 * weights give; new tokens, with int8 activations, are near; memory is what the file has. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "core/tokenizer.h"
#include "tests/engine_fixture.h"
#include "tests/harness.h"
#include "tests/suites.h"
#include "tests/tiny_model.h"

enum { MOST_FORCED = 256 };

typedef struct text { /* tokens of a prompt, then those that are decoded one by one, given */
    const int32_t *tokens;
    int            prompt, forced;
} text;

typedef struct outcome {
    float  *prompt, *forced; /* [1][V], [t->forced][V] */
    int64_t weight_bytes;
} outcome;

static bool run(const char *path, bool native, const char *numerics, const char *isa, const text *t,
                outcome *out) {
    rk_engine_config cfg = rk_fixture_config("cpu", t->prompt, t->forced);
    rk_fixture       f;
    int32_t          last[] = {t->prompt - 1}, all[MOST_FORCED];
    cfg.native = native, cfg.numerics = numerics, cfg.isa = isa;
    if (t->prompt < 1000) cfg.chunk = 64; /* several chunks in a short one, too */
    *out = (outcome){0};
    if (!rk_fixture_open(path, &cfg, &f)) return false;
    int64_t V = rk_engine_model(f.engine)->n_vocab;
    void   *p;
    bool    ok = rk_mem_alloc((t->forced + 1) * V, sizeof(float), "test", &p) == RK_OK;
    for (int i = 0; i < t->forced; i++) all[i] = i;
    out->prompt = p;
    out->forced = out->prompt + V;
    ok = ok && rk_engine_logits(f.engine, 0, t->tokens, t->prompt, NULL, t->forced, last, 1, out->prompt) == RK_OK;
    ok = ok && rk_engine_logits(f.engine, 0, t->tokens + t->prompt, t->forced, NULL, 0, all, t->forced, out->forced) == RK_OK;
    rk_plan_memory m;
    int            begin[] = {0, rk_engine_model(f.engine)->n_layers};
    rk_engine_memory_of(f.weights, &cfg, 1, begin, 0, &m);
    ok = ok && rk_engine_stop(f.engine) == RK_OK;
    out->weight_bytes = rk_engine_stats(f.engine)[0].weight_bytes;
    ok = ok && m.weights == out->weight_bytes;
    rk_fixture_close(&f);
    return ok;
}

static int compare_floats(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void compare(const char *path, const char *what, int n_vocab, const text *t, double bound,
                    double most_bytes) {
    static const char *const numerics[] = {"tile", "pair"};
    for (int k = 0; k < 2; k++) {
        outcome a, b, c;
        double  kl[MOST_FORCED], mean = 0;
        int     same = 0;
        CU_ASSERT_FATAL(run(path, false, numerics[k], NULL, t, &a));
        CU_ASSERT_FATAL(run(path, true, numerics[k], NULL, t, &b));
        CU_ASSERT_FATAL(run(path, true, numerics[k], "avx2", t, &c) || !rk_backend_has_isa("avx2", numerics[k]));
        size_t row = (size_t)n_vocab * sizeof(float);
        CU_ASSERT(memcmp(a.prompt, b.prompt, row) == 0);
        CU_ASSERT(memcmp(a.forced, b.forced, row) != 0); /* int8 does round */
        if (c.prompt) CU_ASSERT(memcmp(b.forced, c.forced, row * (size_t)t->forced) == 0);
        for (int i = 0; i < t->forced; i++) {
            const float *exact = a.forced + (int64_t)i * n_vocab, *near = b.forced + (int64_t)i * n_vocab;
            kl[i] = rk_row_kl(exact, near, n_vocab);
            mean += kl[i] / t->forced;
            same += rk_argmax(exact, n_vocab) == rk_argmax(near, n_vocab);
        }
        qsort(kl, (size_t)t->forced, sizeof *kl, compare_floats);
        printf("    %s, %s: KL of %d new tokens behind %d: mean %.2e, median %.2e, 99 %% below %.2e nats; "
               "the same likeliest token in %.1f %%; weights %.2f of bf16's\n",
               what, numerics[k], t->forced, t->prompt, mean, kl[t->forced / 2], kl[t->forced * 99 / 100],
               100.0 * same / t->forced, (double)b.weight_bytes / (double)a.weight_bytes);
        CU_ASSERT(mean > 0 && mean < bound);
        CU_ASSERT((double)b.weight_bytes < most_bytes * (double)a.weight_bytes);
        rk_mem_free(a.prompt), rk_mem_free(b.prompt), rk_mem_free(c.prompt);
    }
}

static void test_tiny(void) {
    static const struct {
        int    type;
        double bytes;
    } types[] = {{RK_GGML_Q8_0, 0.6}, {RK_GGML_Q4_0, 0.4}, {RK_GGML_Q4_1, 0.4}};
    int32_t tokens[174];
    text    t = {tokens, 150, 24};
    for (int i = 0; i < t.prompt + t.forced; i++) tokens[i] = (i * 7919 + i * i * 31) % RK_TINY_VOCAB;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        rk_tiny_spec s = rk_tiny_default();
        char         path[4096];
        s.type = types[i].type;
        snprintf(path, sizeof path, "%s/native.gguf", rk_test_tmpdir());
        CU_ASSERT_EQUAL_FATAL(rk_tiny_model_write_gguf(path, &s), RK_OK);
        compare(path, rk_ggml_type_name(s.type), RK_TINY_VOCAB, &t, 2e-3, types[i].bytes);
    }
}

/* The demo's document: the first tokens as prompt, the next ones given one by one. */
static bool document_tokens(const rk_weights *w, int64_t n, int32_t **ids) {
    rk_tokenizer *t;
    char          path[4096];
    int64_t       got = 0;
    snprintf(path, sizeof path, "%s/demo/document.txt", getenv("RIPPLEKV_ROOT") ? getenv("RIPPLEKV_ROOT") : ".");
    FILE *file = fopen(path, "r");
    if (!file) return false;
    static char  s[32768];
    rk_text_part part = {.text = s, .n = fread(s, 1, sizeof s, file)};
    fclose(file);
    bool ok = rk_tokenizer_open_model(rk_test_model(), rk_weights_gguf(w), &t) == RK_OK;
    ok = ok && rk_tokenizer_encode(t, &part, 1, false, ids, &got) == RK_OK && got >= n;
    rk_tokenizer_close(t);
    return ok;
}

static void test_model(void) {
    rk_weights *w;
    int32_t    *tokens = NULL;
    text        t = {.prompt = 1024, .forced = MOST_FORCED};
    if (!rk_test_model()) {
        rk_test_skip("no model (RIPPLEKV_MODEL)");
        return;
    }
    CU_ASSERT_EQUAL_FATAL(rk_weights_open(rk_test_model(), &w), RK_OK);
    int  V = rk_weights_config(w)->n_vocab;
    bool quantised = rk_quant_of_name(rk_weights_dtype(w)) != RK_QUANT_NONE;
    CU_ASSERT_FATAL(document_tokens(w, t.prompt + t.forced, &tokens));
    rk_weights_close(w);
    t.tokens = tokens;
    if (quantised)
        compare(rk_test_model(), "the model", V, &t, 2e-2, 0.6);
    else
        rk_test_skip("the model is not quantised");
    rk_mem_free(tokens);
}

int rk_suite_native(void) {
    CU_pSuite s = CU_add_suite("native", NULL, NULL);
    if (s == NULL) return 1;
    CU_ADD_TEST(s, test_tiny);
    CU_ADD_TEST(s, test_model);
    return 0;
}
