/* test_golden_smollm2.c - the demo model against an independent implementation.
 * label: golden long
 *
 * Runs whatever prompts the folder's files hold. ref: every logit within 5e-4, the argmax of every
 * teacher-forced step equal (margins below 1e-3 exempt), kept positions equal. cpu: mean KL below
 * 1e-3 nats, argmax equal where the margin is at least 0.3, 98 % of the kept positions the same, and
 * logits on the golden's own kept positions within the same bound. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "core/tokenizer.h"
#include "tests/engine_fixture.h"
#include "tests/harness.h"
#include "tests/st_reader.h"
#include "tests/suites.h"

static const double REF_LOGIT = 5e-4, REF_MARGIN = 1e-3, CPU_KL = 1e-3, CPU_MARGIN = 0.3;
static const double CPU_KEPT = 0.98;

typedef struct golden {
    rk_json *doc;
    rk_st   *tensors;
} golden;

static bool open_golden(golden *g) {
    const char *dir = rk_test_goldens();
    char        path[4096];
    *g = (golden){0};
    if (!dir || !rk_test_model()) {
        rk_test_skip(dir ? "no model (RIPPLEKV_MODEL)" : "no goldens");
        return false;
    }
    snprintf(path, sizeof path, "%s/smollm2/prompts.json", dir);
    if (rk_json_load(path, &g->doc) != RK_OK) {
        rk_test_skip("no smollm2 goldens");
        return false;
    }
    snprintf(path, sizeof path, "%s/smollm2/logits.safetensors", dir);
    CU_ASSERT_EQUAL_FATAL(rk_st_open(path, &g->tensors), RK_OK);
    return true;
}

static void close_golden(golden *g) {
    rk_json_close(g->doc);
    rk_st_close(g->tensors);
}

static int32_t *ints(const rk_json *array, int64_t *n) {
    *n = (int64_t)rk_json_len(array);
    int32_t *v = calloc((size_t)*n + 1, sizeof *v);
    for (int64_t i = 0; i < *n; i++) v[i] = (int32_t)rk_json_int(rk_json_at(array, (size_t)i), -1);
    return v;
}

/* Rows of logits against the golden's, by the backend's rule. */
static void check_rows(const char *id, bool ref, const float *got, const float *want, int64_t rows,
                       int V) {
    double worst = 0, kl = 0;
    for (int64_t i = 0; i < rows * V; i++) {
        double d = fabs((double)got[i] - want[i]);
        if (!(d <= worst)) worst = d;
    }
    for (int64_t r = 0; r < rows; r++) kl += rk_row_kl(want + r * V, got + r * V, V) / (double)rows;
    printf("    %s %s: max |dlogit| %.2e, mean KL %.2e over %lld rows\n", ref ? "ref" : "cpu", id, worst,
           kl, (long long)rows);
    if (ref)
        CU_ASSERT(worst <= REF_LOGIT)
    else
        CU_ASSERT(kl < CPU_KL)
}

static void check_prompt(const golden *g, const rk_json *p, rk_engine *e, bool ref) {
    const char *id = rk_json_str(rk_json_get(p, "id"), "?");
    int         V = rk_engine_model(e)->n_vocab;
    int64_t     n, n_pos, n_greedy;
    int32_t    *tokens = ints(rk_json_get(p, "token_ids"), &n);
    int32_t    *pos = ints(rk_json_get(p, "logits_positions"), &n_pos);
    int32_t    *greedy = ints(rk_json_get(p, "greedy"), &n_greedy);
    char        name[256];
    int64_t     dim[4];
    snprintf(name, sizeof name, "%s.logits", id);
    const float *want = rk_st_get(g->tensors, name, RK_F32, 2, dim);
    CU_ASSERT_FATAL(want && dim[0] == n_pos && dim[1] == V);
    pos[n_pos] = (int32_t)n - 1; /* the row that begins the continuation */
    int    extra = pos[n_pos - 1] != n - 1;
    float *got = malloc((size_t)(n_pos + 1 + n_greedy) * (size_t)V * sizeof *got);
    CU_ASSERT_EQUAL_FATAL(rk_engine_logits(e, 0, tokens, n, NULL, n_greedy, pos, (int)n_pos + extra, got), RK_OK);
    check_rows(id, ref, got, want, n_pos, V);
    float *next = got + (n_pos + extra - 1) * V;
    int32_t *all = calloc((size_t)n_greedy, sizeof *all);
    for (int i = 0; i < n_greedy; i++) all[i] = i;
    if (n_greedy > 1)
        CU_ASSERT_EQUAL_FATAL(rk_engine_logits(e, 0, greedy, n_greedy - 1, NULL, 0, all, (int)n_greedy - 1,
                                               next + V), RK_OK);
    const rk_json *margins = rk_json_get(p, "greedy_margins");
    for (int64_t i = 0; i < n_greedy; i++) {
        double margin = rk_json_num(rk_json_at(margins, (size_t)i), 0);
        if (margin >= (ref ? REF_MARGIN : CPU_MARGIN))
            CU_ASSERT_EQUAL(rk_argmax(next + i * V, V), greedy[i]);
    }
    CU_ASSERT_EQUAL(rk_engine_free(e, 0), RK_OK);
    free(all);
    free(got);
    free(tokens);
    free(pos);
    free(greedy);
}

static int64_t longest(const rk_json *prompts) {
    int64_t n = 1;
    for (size_t i = 0; i < rk_json_len(prompts); i++) {
        int64_t k = (int64_t)rk_json_len(rk_json_get(rk_json_at(prompts, i), "token_ids"));
        if (k > n) n = k;
    }
    return n;
}

static void run_prompts(const char *backend) {
    golden g;
    if (!open_golden(&g)) return;
    const rk_json   *prompts = rk_json_get(g.doc, "prompts");
    rk_engine_config cfg = rk_fixture_config(backend, longest(prompts), 256);
    rk_fixture       f;
    CU_ASSERT_FATAL(rk_fixture_open(rk_test_model(), &cfg, &f));
    CU_ASSERT(rk_json_len(prompts) > 0);
    for (size_t i = 0; i < rk_json_len(prompts); i++)
        check_prompt(&g, rk_json_at(prompts, i), f.engine, strcmp(backend, "ref") == 0);
    CU_ASSERT_EQUAL(rk_engine_stop(f.engine), RK_OK);
    rk_fixture_close(&f);
    close_golden(&g);
}

static void test_logits_ref(void) { run_prompts("ref"); }
static void test_logits_cpu(void) { run_prompts("cpu"); }

static void test_token_ids(void) {
    golden        g;
    rk_weights   *w;
    rk_tokenizer *t;
    if (!open_golden(&g)) return;
    CU_ASSERT_EQUAL_FATAL(rk_weights_open(rk_test_model(), &w), RK_OK);
    CU_ASSERT_EQUAL_FATAL(rk_tokenizer_open_model(rk_test_model(), rk_weights_gguf(w), &t), RK_OK);
    const rk_json *prompts = rk_json_get(g.doc, "prompts");
    for (size_t i = 0; i < rk_json_len(prompts); i++) {
        const rk_json *p = rk_json_at(prompts, i), *text = rk_json_get(p, "text");
        int64_t        n, m;
        int32_t       *want = ints(rk_json_get(p, "token_ids"), &n), *ids;
        rk_text_part   part = {.text = rk_json_str(text, ""), .n = rk_json_str_len(text)};
        CU_ASSERT_EQUAL_FATAL(rk_tokenizer_encode(t, &part, 1, false, &ids, &m), RK_OK);
        CU_ASSERT(n == m && memcmp(ids, want, (size_t)n * sizeof *ids) == 0);
        rk_mem_free(ids);
        free(want);
    }
    rk_tokenizer_close(t);
    rk_weights_close(w);
    close_golden(&g);
}

/* Share of the golden's kept positions that the cache holds. */
static double same_kept(rk_engine *e, const int32_t *kept, int budget) {
    const rk_config *c = rk_engine_model(e);
    int64_t          same = 0, all = 0;
    for (int l = 0; l < c->n_layers; l++)
        for (int h = 0; h < c->n_kv_heads; h++) {
            const int32_t *want = kept + ((int64_t)l * c->n_kv_heads + h) * budget;
            const int32_t *got = rk_kv_positions(rk_engine_kv(e), l, 0, h);
            int32_t        n = rk_kv_stored(rk_engine_kv(e), l, 0, h);
            CU_ASSERT_EQUAL(n, budget);
            for (int i = 0, k = 0; i < budget; i++) {
                while (k < n && got[k] < want[i]) k++;
                same += k < n && got[k] == want[i];
            }
            all += budget;
        }
    return (double)same / (double)all;
}

static void inject(rk_engine *e, const int32_t *kept, int budget, int64_t n_new) {
    const rk_config *c = rk_engine_model(e);
    for (int l = 0; l < c->n_layers; l++) {
        const int32_t *slot[64];
        int32_t        count[64];
        for (int h = 0; h < c->n_kv_heads; h++) {
            slot[h] = kept + ((int64_t)l * c->n_kv_heads + h) * budget;
            count[h] = budget;
        }
        CU_ASSERT_EQUAL_FATAL(rk_kv_compact(rk_engine_kv(e), l, 0, 0, slot, count, n_new), RK_OK);
    }
    CU_ASSERT_EQUAL(rk_kv_check(rk_engine_kv(e)), RK_OK);
}

static void check_snap(const golden *g, const rk_json *p, rk_engine *e, bool ref) {
    const char *id = rk_json_str(rk_json_get(p, "id"), "?");
    int         V = rk_engine_model(e)->n_vocab, L = rk_engine_model(e)->n_layers;
    int         b = (int)rk_json_int(rk_json_get(p, "snap_budget"), 0);
    int64_t     n, T, dim[4];
    int32_t    *tokens = ints(rk_json_get(p, "token_ids"), &n);
    int32_t    *forced = ints(rk_json_get(p, "snap_tokens"), &T);
    int32_t     budget[4096], all[4096];
    char        name[256];
    for (int l = 0; l < L; l++) budget[l] = b;
    for (int i = 0; i < T; i++) all[i] = i;
    snprintf(name, sizeof name, "%s.snap_kept", id);
    const int32_t *kept = rk_st_get(g->tensors, name, RK_I32, 3, dim);
    snprintf(name, sizeof name, "%s.snap_logits", id);
    const float *want = rk_st_get(g->tensors, name, RK_F32, 2, dim);
    CU_ASSERT_FATAL(kept && want && dim[0] == T && dim[1] == V);
    float *got = malloc((size_t)T * (size_t)V * sizeof *got);
    for (int injected = 0; injected < 2; injected++) {
        CU_ASSERT_EQUAL_FATAL(rk_engine_logits(e, 0, tokens, n, injected ? NULL : budget, T, NULL, 0, NULL), RK_OK);
        if (injected) {
            inject(e, kept, b, T);
        } else {
            CU_ASSERT_EQUAL_FATAL(rk_engine_compress(e, 0, NULL, NULL), RK_OK);
            double share = same_kept(e, kept, b);
            printf("    %s %s: %.2f %% of the kept positions the same\n", ref ? "ref" : "cpu", id, 100 * share);
            CU_ASSERT(share >= (ref ? 1.0 : CPU_KEPT));
        }
        CU_ASSERT_EQUAL_FATAL(rk_engine_logits(e, 0, forced, T, NULL, 0, all, (int)T, got), RK_OK);
        if (injected || ref) check_rows(id, ref, got, want, T, V);
        CU_ASSERT_EQUAL(rk_engine_free(e, 0), RK_OK);
    }
    free(got);
    free(tokens);
    free(forced);
}

static void run_snap(const char *backend) {
    golden g;
    if (!open_golden(&g)) return;
    const rk_json   *prompts = rk_json_get(g.doc, "prompts");
    rk_engine_config cfg = rk_fixture_config(backend, longest(prompts), 64);
    rk_fixture       f;
    int              n = 0;
    CU_ASSERT_FATAL(rk_fixture_open(rk_test_model(), &cfg, &f));
    for (size_t i = 0; i < rk_json_len(prompts); i++) {
        const rk_json *p = rk_json_at(prompts, i);
        if (rk_json_int(rk_json_get(p, "snap_budget"), 0) <= 0) continue;
        check_snap(&g, p, f.engine, strcmp(backend, "ref") == 0);
        n++;
    }
    if (!n) rk_test_skip("no compressed decode in the goldens");
    CU_ASSERT_EQUAL(rk_engine_stop(f.engine), RK_OK);
    rk_fixture_close(&f);
    close_golden(&g);
}

static void test_snap_ref(void) { run_snap("ref"); }
static void test_snap_cpu(void) { run_snap("cpu"); }

int rk_suite_golden_smollm2(void) {
    CU_pSuite s = CU_add_suite("golden_smollm2", NULL, NULL);
    return !s || !CU_ADD_TEST(s, test_token_ids) || !CU_ADD_TEST(s, test_logits_cpu) ||
           !CU_ADD_TEST(s, test_snap_cpu) || !CU_ADD_TEST(s, test_logits_ref) ||
           !CU_ADD_TEST(s, test_snap_ref);
}
