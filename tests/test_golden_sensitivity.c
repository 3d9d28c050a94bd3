/* test_golden_sensitivity.c - layer sensitivities of the demo model against f64 values.
 * label: golden long
 *
 * ref: every layer within 1 %. cpu: rank correlation at least 0.99 over the layers and every layer
 * within 5 %, at every epsilon. Cases are whatever sensitivity.json holds. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "profiler/correlate.h"
#include "tests/engine_fixture.h"
#include "tests/harness.h"
#include "tests/suites.h"

static const double REF_TOLERANCE = 0.01, CPU_TOLERANCE = 0.05, CPU_RHO = 0.99;

/* Mean over draws of the measured KLs of one epsilon against the golden's. */
static void check_epsilon(const char *id, bool ref, double eps, const double *got, const double *want,
                          int L) {
    double worst = 0;
    for (int l = 0; l < L; l++) {
        double d = fabs(got[l] - want[l]) / want[l];
        if (!(d <= worst)) worst = d;
    }
    double rho = rk_spearman(got, want, L);
    printf("    %s %s epsilon %g: worst layer off by %.2f %%, rank correlation %.4f\n",
           ref ? "ref" : "cpu", id, eps, 100 * worst, rho);
    CU_ASSERT(worst <= (ref ? REF_TOLERANCE : CPU_TOLERANCE));
    CU_ASSERT(rho >= CPU_RHO);
}

static void check_case(const rk_json *c, bool ref) {
    const char    *id = rk_json_str(rk_json_get(c, "id"), "?");
    const rk_json *ids = rk_json_get(c, "token_ids"), *eps = rk_json_get(c, "epsilon");
    const rk_json *kl = rk_json_get(c, "kl");
    int64_t        n = rk_json_int(rk_json_get(c, "prompt_tokens"), 0);
    int            T = (int)rk_json_int(rk_json_get(c, "response_tokens"), 0);
    int            D = (int)rk_json_int(rk_json_get(c, "draws"), 0), E = (int)rk_json_len(eps);
    int            L = (int)rk_json_len(rk_json_at(rk_json_at(kl, 0), 0)), k = 0;
    int32_t       *tokens = calloc((size_t)(n + T), sizeof *tokens);
    rk_variant    *v = calloc((size_t)(L * E * D), sizeof *v);
    rk_measured   *got = calloc((size_t)(L * E * D), sizeof *got);
    for (int64_t i = 0; i < n + T; i++)
        tokens[i] = (int32_t)rk_json_int(rk_json_at(ids, (size_t)i), -1);
    for (int l = 0; l < L; l++)
        for (int e = 0; e < E; e++)
            for (int d = 0; d < D; d++)
                v[k++] = (rk_variant){.layer = l,
                                      .epsilon = (float)rk_json_num(rk_json_at(eps, (size_t)e), 0),
                                      .sample = (int32_t)rk_json_int(rk_json_get(c, "sample"), 0),
                                      .draw = d};
    rk_engine_config cfg = rk_fixture_config(ref ? "ref" : "cpu", n, 0);
    cfg.max_response = T;
    cfg.row_cap = 512;
    rk_fixture f;
    CU_ASSERT_FATAL(rk_fixture_open(rk_test_model(), &cfg, &f));
    CU_ASSERT_EQUAL_FATAL(rk_engine_model(f.engine)->n_layers, L);
    CU_ASSERT_EQUAL_FATAL(rk_engine_prefill(f.engine, 0, tokens, n, 0, NULL, NULL, NULL), RK_OK);
    CU_ASSERT_EQUAL_FATAL(rk_engine_measure(f.engine, 0, tokens + n, T,
                                            (uint64_t)rk_json_int(rk_json_get(c, "seed"), 0), v, k, got,
                                            NULL, NULL), RK_OK);
    CU_ASSERT_EQUAL(rk_engine_stop(f.engine), RK_OK);
    rk_fixture_close(&f);
    double *a = calloc((size_t)L, sizeof *a), *b = calloc((size_t)L, sizeof *b);
    for (int e = 0; e < E; e++) {
        for (int l = 0; l < L; l++) {
            a[l] = b[l] = 0;
            for (int d = 0; d < D; d++) {
                a[l] += got[(l * E + e) * D + d].kl / D;
                b[l] += rk_json_num(rk_json_at(rk_json_at(rk_json_at(kl, (size_t)e), (size_t)d), (size_t)l),
                                    NAN) / D;
            }
        }
        check_epsilon(id, ref, rk_json_num(rk_json_at(eps, (size_t)e), 0), a, b, L);
    }
    free(a);
    free(b);
    free(tokens);
    free(v);
    free(got);
}

static void run(bool ref) {
    const char *dir = rk_test_goldens();
    char        path[4096];
    rk_json    *doc;
    if (!dir || !rk_test_model()) {
        rk_test_skip(dir ? "no model (RIPPLEKV_MODEL)" : "no goldens");
        return;
    }
    snprintf(path, sizeof path, "%s/smollm2/sensitivity.json", dir);
    if (rk_json_load(path, &doc) != RK_OK) {
        rk_test_skip("no sensitivity goldens");
        return;
    }
    const rk_json *cases = rk_json_get(doc, "cases");
    CU_ASSERT(rk_json_len(cases) > 0);
    for (size_t i = 0; i < rk_json_len(cases); i++) check_case(rk_json_at(cases, i), ref);
    rk_json_close(doc);
}

static void test_ref(void) { run(true); }
static void test_cpu(void) { run(false); }

int rk_suite_golden_sensitivity(void) {
    CU_pSuite s = CU_add_suite("golden_sensitivity", NULL, NULL);
    return !s || !CU_ADD_TEST(s, test_cpu) || !CU_ADD_TEST(s, test_ref);
}
