/* test_golden_families.c - tiny models of each family against an independent implementation.
 * label: golden
 *
 * Every folder of the goldens that holds golden.safetensors and a config.json, as HF folder and as
 * GGUF. ref: logits within 1e-4, kept positions equal; cpu: mean KL within what bf16 weights move.
 * Models with a feature that is not supported must be refused, and are counted as skipped. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "tests/engine_fixture.h"
#include "tests/harness.h"
#include "tests/st_reader.h"
#include "tests/suites.h"

static const double REF_LOGIT = 1e-4, CPU_KL = 2e-3;
enum { MAX_L = 64 };

typedef struct family {
    char     dir[4096];
    rk_json *doc;
    rk_st   *tensors;
} family;

static double worst_diff(const float *a, const float *b, int64_t n) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static void check_logits(const char *what, bool ref, const float *got, const float *want, int64_t rows,
                         int V) {
    double worst = worst_diff(got, want, rows * V), kl = 0;
    for (int64_t r = 0; r < rows; r++) kl += rk_row_kl(want + r * V, got + r * V, V) / (double)rows;
    printf("    %s %s: max |dlogit| %.2e, mean KL %.2e\n", ref ? "ref" : "cpu", what, worst, kl);
    if (ref)
        CU_ASSERT(worst <= REF_LOGIT)
    else
        CU_ASSERT(kl <= CPU_KL)
}

static void check_kept(rk_engine *e, const int32_t *want, const int32_t *budget) {
    const rk_config *c = rk_engine_model(e);
    for (int l = 0; l < c->n_layers; l++)
        for (int h = 0; h < c->n_kv_heads; h++, want += budget[l]) {
            CU_ASSERT_EQUAL_FATAL(rk_kv_stored(rk_engine_kv(e), l, 0, h), budget[l]);
            CU_ASSERT(memcmp(rk_kv_positions(rk_engine_kv(e), l, 0, h), want,
                             (size_t)budget[l] * sizeof *want) == 0);
        }
}

/* The whole sequence, then two compressed decodes. */
static void check_model(const family *f, const char *path, bool ref) {
    int64_t          dim[4], n, forced;
    int              n_prompt = (int)rk_json_int(rk_json_get(f->doc, "prompt_tokens"), 0);
    const int32_t   *tokens = rk_st_get(f->tensors, "tokens", RK_I32, 1, dim);
    n = dim[0];
    rk_engine_config cfg = rk_fixture_config(ref ? "ref" : "cpu", n, n);
    rk_fixture       fx;
    cfg.select.window = (int)rk_json_int(rk_json_get(f->doc, "window"), 16);
    cfg.select.kernel = (int)rk_json_int(rk_json_get(f->doc, "kernel"), 5);
    cfg.select.pool = RK_POOL_AVG;
    cfg.chunk = 64;
    CU_ASSERT_FATAL(tokens != NULL && n_prompt > 0);
    CU_ASSERT_FATAL(rk_fixture_open(path, &cfg, &fx));
    int      V = rk_engine_model(fx.engine)->n_vocab, L = rk_engine_model(fx.engine)->n_layers;
    float   *got = malloc((size_t)n * (size_t)V * sizeof *got);
    int32_t *all = calloc((size_t)n, sizeof *all);
    for (int i = 0; i < n; i++) all[i] = i;
    const float *want = rk_st_get(f->tensors, "logits", RK_F32, 2, dim);
    CU_ASSERT_FATAL(want && dim[0] == n && dim[1] == V && L <= MAX_L);
    CU_ASSERT_EQUAL_FATAL(rk_engine_logits(fx.engine, 0, tokens, n, NULL, 0, all, (int)n, got), RK_OK);
    check_logits("whole", ref, got, want, n, V);
    CU_ASSERT_EQUAL(rk_engine_free(fx.engine, 0), RK_OK);
    for (int uneven = 0; uneven < 2; uneven++) {
        int32_t        budget[MAX_L];
        const rk_json *b2 = rk_json_get(f->doc, "snap2_budgets");
        for (int l = 0; l < L; l++)
            budget[l] = (int32_t)(uneven ? rk_json_int(rk_json_at(b2, (size_t)l), 0)
                                         : rk_json_int(rk_json_get(f->doc, "budget"), 0));
        const int32_t *kept = uneven ? rk_st_get(f->tensors, "snap2_kept_flat", RK_I32, 1, dim)
                                     : rk_st_get(f->tensors, "snap_kept", RK_I32, 3, dim);
        want = rk_st_get(f->tensors, uneven ? "snap2_logits" : "snap_logits", RK_F32, 2, dim);
        CU_ASSERT_FATAL(kept && want);
        forced = dim[0];
        CU_ASSERT_EQUAL_FATAL(rk_engine_logits(fx.engine, 0, tokens, n_prompt, budget, forced, NULL, 0,
                                               NULL), RK_OK);
        CU_ASSERT_EQUAL_FATAL(rk_engine_compress(fx.engine, 0, NULL, NULL), RK_OK);
        if (ref) check_kept(fx.engine, kept, budget);
        CU_ASSERT_EQUAL_FATAL(rk_engine_logits(fx.engine, 0, tokens + n_prompt, forced, NULL, 0, all,
                                               (int)forced, got), RK_OK);
        if (ref) check_logits(uneven ? "uneven budgets" : "snapkv", ref, got, want, forced, V);
        CU_ASSERT_EQUAL(rk_engine_free(fx.engine, 0), RK_OK);
    }
    CU_ASSERT_EQUAL(rk_engine_stop(fx.engine), RK_OK);
    free(got);
    free(all);
    rk_fixture_close(&fx);
}

/* Supported, or refused in so many words. */
static bool supported(const char *path) {
    rk_weights *w;
    if (rk_weights_open(path, &w) != RK_OK) {
        CU_ASSERT_EQUAL(rk_err_last()->code, RK_E_INPUT);
        printf("    %s\n", rk_err_last()->text);
        return false;
    }
    bool ok = !rk_weights_config(w)->qk_norm;
    rk_weights_close(w);
    return ok;
}

static void check_family(const char *dir, const char *name) {
    family f = {0};
    char   path[4400];
    snprintf(f.dir, sizeof f.dir, "%.2000s/%.200s", dir, name);
    snprintf(path, sizeof path, "%s/golden.json", f.dir);
    CU_ASSERT_EQUAL_FATAL(rk_json_load(path, &f.doc), RK_OK);
    snprintf(path, sizeof path, "%s/golden.safetensors", f.dir);
    CU_ASSERT_EQUAL_FATAL(rk_st_open(path, &f.tensors), RK_OK);
    printf("\n  %s\n", name);
    for (int gguf = 0; gguf < 2; gguf++) {
        snprintf(path, sizeof path, gguf ? "%s/model.gguf" : "%s", f.dir);
        if (access(path, R_OK) != 0) continue;
        if (!supported(path)) {
            rk_test_skip(name);
            continue;
        }
        check_model(&f, path, true);
        check_model(&f, path, false);
    }
    rk_json_close(f.doc);
    rk_st_close(f.tensors);
}

static void test_families(void) {
    const char *dir = rk_test_goldens();
    DIR        *d = dir ? opendir(dir) : NULL;
    int         n = 0;
    if (!d) {
        rk_test_skip("no goldens");
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        char path[4096], config[4096];
        snprintf(path, sizeof path, "%.2000s/%.200s/golden.safetensors", dir, e->d_name);
        snprintf(config, sizeof config, "%.2000s/%.200s/config.json", dir, e->d_name);
        if (e->d_name[0] == '.' || access(path, R_OK) != 0 || access(config, R_OK) != 0) continue;
        check_family(dir, e->d_name);
        n++;
    }
    closedir(d);
    if (!n) rk_test_skip("no family in the goldens");
}

int rk_suite_golden_families(void) {
    CU_pSuite s = CU_add_suite("golden_families", NULL, NULL);
    return !s || !CU_ADD_TEST(s, test_families);
}
