/* test_golden_policies.c - every policy against independent scores and selections.
 * label: golden
 *
 * Runs whatever cases the folder holds, on ref and on the cpu backend in both orders: the prompt
 * goes through the cache and an observer in chunks, as in a stage. Scores within 1e-5 of the
 * largest, kept positions and head counts equal. Heads narrower than a page's 32 dimensions are
 * padded with zeros, half by half, so that rotation pairs stay pairs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "core/observe.h"
#include "tests/harness.h"
#include "tests/st_reader.h"
#include "tests/suites.h"

enum { CHUNK = 50, MOST_HEADS = 64, MOST_DIM = 256 };
static const double TOLERANCE = 1e-5;

typedef struct golden {
    const rk_json   *c;
    rk_st           *st;
    rk_select_params p;
    int              H, G, d, D; /* D: padded */
    int64_t          n;
    int32_t          budget;
    const float     *q, *k, *v, *inv_freq;
    bool             pre; /* q is before rotation */
    double           speed[MOST_DIM / 2];
} golden;

static int64_t integer(const golden *g, const char *key, int64_t dflt) {
    return rk_json_int(rk_json_get(g->c, key), dflt);
}
static bool text_is(const golden *g, const char *key, const char *value) {
    return strcmp(rk_json_str(rk_json_get(g->c, key), ""), value) == 0;
}

static void read_params(golden *g) {
    rk_select_params *p = &g->p;
    CU_ASSERT_EQUAL_FATAL(rk_policy_parse(rk_json_str(rk_json_get(g->c, "policy"), ""), &p->policy),
                          RK_OK);
    p->window = (int)integer(g, "window", 32);
    p->sinks = (int)integer(g, "sinks", 4);
    p->pool = text_is(g, "pool", "avg") ? RK_POOL_AVG : RK_POOL_MAX;
    p->kernel = (int)integer(g, "kernel", 7);
    p->group_reduce = text_is(g, "group_reduce", "max") ? RK_REDUCE_MAX : RK_REDUCE_MEAN;
    p->pool_first = !rk_json_bool(rk_json_get(g->c, "reduce_before_pool"), true);
    p->recent = text_is(g, "recent_rule", "half") ? -1 : (int)integer(g, "recent", 0);
    p->per_visible = rk_json_bool(rk_json_get(g->c, "per_visible_query"), false);
    p->no_covariance = !rk_json_bool(rk_json_get(g->c, "covariance"), true);
    p->no_value_norm = !rk_json_bool(rk_json_get(g->c, "value_norm"), true);
    p->n_future = (int)integer(g, "n_future", 0);
    p->epsilon = rk_json_num(rk_json_get(g->c, "epsilon"), 0);
    p->alpha = rk_json_num(rk_json_get(g->c, "alpha"), 0);
    if (text_is(g, "head_mode", "adaptive"))
        p->head_mode = text_is(g, "rule", "blend")         ? RK_HEADS_BLEND
                       : text_is(g, "rule", "blend-exact") ? RK_HEADS_BLEND_EXACT
                                                           : RK_HEADS_ADAPTIVE;
    CU_ASSERT_EQUAL(rk_select_check(p), RK_OK);
}

static void read_tensors(golden *g) {
    int64_t dim[4];
    g->q = rk_st_get(g->st, "q", RK_F32, 3, dim);
    g->k = rk_st_get(g->st, "k", RK_F32, 3, dim);
    g->v = rk_st_get(g->st, "v", RK_F32, 3, dim);
    const float *pre = rk_st_get(g->st, "q_pre", RK_F32, 3, dim),
                *freq = rk_st_get(g->st, "inv_freq", RK_F32, 1, dim);
    if (pre) g->q = pre, g->pre = true;
    for (int i = 0; freq && i < g->d / 2; i++) g->speed[i] = (double)freq[i];
}

/* Where dimension i of the golden stands in a padded head. */
static int place(const golden *g, int i) {
    return i < g->d / 2 ? i : g->D / 2 + i - g->d / 2;
}

/* One row of the golden's queries, rotated, into padded heads. */
static void put_query(const golden *g, int64_t pos, float *row) {
    for (int h = 0; g->q && h < g->H; h++) {
        const float *x = g->q + ((int64_t)h * g->n + pos) * g->d;
        for (int i = 0; i < g->d / 2; i++) {
            double a = (double)x[i], b = (double)x[i + g->d / 2],
                   t = g->pre ? (double)pos * g->speed[i] : 0;
            row[h * g->D + place(g, i)] = (float)(a * cos(t) - b * sin(t));
            row[h * g->D + place(g, i + g->d / 2)] = (float)(b * cos(t) + a * sin(t));
        }
    }
}

static void put_row(const golden *g, int64_t pos, float *row) {
    memset(row, 0, (size_t)((g->H + 2 * g->G) * g->D) * sizeof *row);
    put_query(g, pos, row);
    for (int h = 0; h < g->G; h++)
        for (int i = 0; i < g->d; i++) {
            int64_t at = ((int64_t)h * g->n + pos) * g->d + i;
            if (g->k) row[(g->H + h) * g->D + place(g, i)] = g->k[at];
            if (g->v) row[(g->H + g->G + h) * g->D + place(g, i)] = g->v[at];
        }
}

static void *device(rk_backend *be, int64_t bytes) {
    void *p = NULL;
    CU_ASSERT_EQUAL_FATAL(be->ops->alloc(be, bytes, "test", &p), RK_OK);
    return p;
}

/* The prompt through cache and observer; sh says how many heads are seen as stored ones. */
static rk_observer *pass(rk_backend *be, const golden *g, const rk_attn_shape *sh,
                         rk_observe *shared, rk_span *spans, rk_span *seen) {
    int           width = (g->H + 2 * g->G) * g->D, share = sh->n_kv_heads / g->G;
    rk_attn_shape stored = {g->H, g->G, g->D, sh->scale};
    int64_t       f = (int64_t)sizeof(float);
    float  *rows, *qkv = device(be, CHUNK * width * f), *q = device(be, CHUNK * g->H * g->D * f);
    float  *table = device(be, g->D * f), one[MOST_DIM] = {0};
    int32_t zero[CHUNK] = {0}, index[CHUNK * MOST_HEADS];
    rk_observer *o;
    for (int i = 0; i < g->D / 2; i++) one[i] = 1; /* cosines of angle 0 */
    CU_ASSERT_EQUAL_FATAL(be->ops->upload(be, table, one, g->D * f), RK_OK);
    CU_ASSERT_EQUAL_FATAL(rk_mem_alloc_to(CHUNK * width, f, "test", &rows), RK_OK);
    CU_ASSERT_EQUAL_FATAL(rk_observer_open(shared, &o), RK_OK);
    rk_observer_begin(o, g->n);
    for (int64_t at = 0; at < g->n; at += CHUNK) {
        int m = (int)(g->n - at < CHUNK ? g->n - at : CHUNK);
        for (int i = 0; i < m; i++) put_row(g, at + i, rows + (int64_t)i * width);
        CU_ASSERT_EQUAL(be->ops->upload(be, qkv, rows, m * width * f), RK_OK);
        for (int h = 0; h < g->G; h++) spans[h].n = (int32_t)(at + m);
        rk_seq_rows set = {.row0 = 0, .n_rows = m, .n_spans = 1, .spans = spans};
        CU_ASSERT_EQUAL(be->ops->rope_append(be, &stored, qkv, m, zero, table, &set, 1), RK_OK);
        for (int i = 0; i < m * g->H; i++) index[i] = i / g->H * (g->H + 2 * g->G) + i % g->H;
        CU_ASSERT_EQUAL(be->ops->take_rows(be, qkv, index, m * g->H, g->D, q), RK_OK);
        for (int h = 0; h < sh->n_kv_heads; h++) seen[h] = spans[h / share];
        if (rk_observer_wants(o, at, m))
            CU_ASSERT_EQUAL(rk_observer_rows(o, q, at, m, seen), RK_OK);
    }
    be->ops->release(be, qkv), be->ops->release(be, q), be->ops->release(be, table);
    rk_mem_free(rows);
    return o;
}

/* Scores of stored heads (heads = G) or of each query head by itself (heads = H). */
static double check_scores(rk_backend *be, const golden *g, int heads, const char *name,
                           float *score) {
    rk_attn_shape  sh = {g->H, heads, g->D, (float)(1 / sqrt((double)g->d))};
    rk_observation need = {0};
    rk_observe    *shared;
    rk_span        spans[MOST_HEADS], seen[MOST_HEADS];
    int64_t        dim[4], pages = (g->n + RK_PAGE_KEYS - 1) / RK_PAGE_KEYS;
    int64_t        bytes = pages * rk_page_bytes(g->D, be->weight_dtype);
    const uint8_t *forced = rk_st_get(g->st, "forced", RK_U8, 1, dim);
    const float   *want = rk_st_get(g->st, name, RK_F32, 2, dim);
    double         top = 0, worst = 0;
    CU_ASSERT_FATAL(want && forced && dim[0] == heads && dim[1] == g->n);
    CU_ASSERT_EQUAL_FATAL(rk_observation_add(&need, &g->p), RK_OK);
    rk_observe_spec spec = {.shape = sh,
                            .see = need.see,
                            .window = need.window,
                            .sinks = need.sinks,
                            .max_prompt = g->n,
                            .rope_speed = g->speed};
    for (int h = 0; h < g->G; h++)
        spans[h] = (rk_span){.k = device(be, bytes),
                             .v = device(be, bytes),
                             .k_dtype = be->weight_dtype,
                             .v_dtype = be->weight_dtype};
    CU_ASSERT_EQUAL_FATAL(rk_observe_open(be, &spec, &shared), RK_OK);
    rk_observer *o = pass(be, g, &sh, shared, spans, seen);
    CU_ASSERT_EQUAL(rk_observer_scores(o, &g->p, seen, 0, score), RK_OK);
    for (int64_t i = 0; i < heads * g->n; i++) {
        if (forced[i % g->n]) continue;
        top = fmax(top, fabs((double)want[i]));
        worst = fmax(worst, fabs((double)score[i] - (double)want[i]));
    }
    for (int h = 0; h < g->G; h++)
        be->ops->release(be, spans[h].k), be->ops->release(be, spans[h].v);
    rk_observer_close(o);
    rk_observe_close(shared);
    return top > 0 ? worst / top : worst;
}

/* Kept positions by these scores are the golden's. */
static bool kept_equal(const golden *g, int heads, const char *flat, const char *by_head,
                       const float *score) {
    int64_t        dim[4];
    const int32_t *want = rk_st_get(g->st, flat, RK_I32, 1, dim), *at = NULL;
    int32_t       *kept, count[MOST_HEADS];
    if (want)
        at = rk_st_get(g->st, "kept_offsets", RK_I32, 1, dim);
    else
        want = rk_st_get(g->st, by_head, RK_I32, 2, dim);
    CU_ASSERT_FATAL(want != NULL);
    CU_ASSERT_EQUAL_FATAL(rk_mem_alloc_to(heads * g->n, sizeof *kept, "test", &kept), RK_OK);
    bool ok = rk_select_layer(&g->p, heads, g->n, g->budget, score, kept, count) == RK_OK;
    for (int h = 0; ok && h < heads; h++) {
        int32_t begin = at ? at[h] : h * g->budget, end = at ? at[h + 1] : begin + g->budget;
        ok = count[h] == end - begin &&
             memcmp(kept + h * g->n, want + begin, (size_t)count[h] * sizeof *kept) == 0;
    }
    rk_mem_free(kept);
    return ok;
}

static void check_heads(const golden *g) {
    const rk_json *counts = rk_json_get(g->c, "head_counts");
    int64_t        total = 0;
    if (!counts) return;
    for (size_t h = 0; h < rk_json_len(counts); h++) total += rk_json_int(rk_json_at(counts, h), 0);
    CU_ASSERT_EQUAL(total, integer(g, "total", -1));
    if (g->p.head_mode != RK_HEADS_BLEND) CU_ASSERT_EQUAL(total, (int64_t)g->budget * g->G);
}

static double run_case(rk_backend *be, const char *folder, const rk_json *c, int *per_query) {
    golden g = {.c = c};
    char   path[4400];
    double worst = 0;
    g.H = (int)integer(&g, "Hq", 0), g.G = (int)integer(&g, "Hkv", 0),
    g.d = (int)integer(&g, "d", 0);
    g.n = integer(&g, "n", 0), g.budget = (int32_t)integer(&g, "budget", 0);
    g.D = (g.d + 31) / 32 * 32;
    CU_ASSERT_FATAL(g.H > 0 && g.H <= MOST_HEADS && g.G > 0 && g.D <= MOST_DIM && g.n > 0);
    snprintf(path, sizeof path, "%s/policies/%s", folder, rk_json_str(rk_json_get(c, "file"), "?"));
    CU_ASSERT_EQUAL_FATAL(rk_st_open(path, &g.st), RK_OK);
    read_params(&g);
    read_tensors(&g);
    double  gap = rk_json_num(rk_json_get(c, "min_gap"),
                              1); /* 0: a tie on purpose, which must come out right */
    bool    near = rk_json_bool(rk_json_get(c, "near_tie"), false) && gap > 0;
    int64_t dim[4];
    float  *score;
    CU_ASSERT_EQUAL_FATAL(rk_mem_alloc_to(g.H * g.n, sizeof *score, "test", &score), RK_OK);
    bool ok = true;
    if (rk_select_needs_scores(&g.p)) {
        worst = check_scores(be, &g, g.G, "scores", score);
        ok = kept_equal(&g, g.G, "kept_flat", "kept", rk_st_get(g.st, "scores", RK_F32, 2, dim));
    }
    ok = ok && (near || kept_equal(&g, g.G, "kept_flat", "kept", score));
    if (rk_st_get(g.st, "scores_q", RK_F32, 2, dim)) {
        worst = fmax(worst, check_scores(be, &g, g.H, "scores_q", score));
        ok = ok && kept_equal(&g, g.H, "none", "kept_q", score);
        ++*per_query;
    }
    check_heads(&g);
    if (!ok || !(worst <= TOLERANCE))
        printf("  %s on %s: scores off by %.2e of the largest, kept %s\n", path, be->numerics,
               worst, ok ? "equal" : "differ");
    CU_ASSERT(ok && worst <= TOLERANCE);
    rk_mem_free(score);
    rk_st_close(g.st);
    return worst;
}

static void run(const char *name, const char *numerics) {
    const char *folder = rk_test_goldens();
    char        path[4200];
    rk_json    *j = NULL;
    rk_backend *be;
    double      worst = 0;
    int         per_query = 0;
    if (folder == NULL) {
        rk_test_skip("no goldens");
        return;
    }
    snprintf(path, sizeof path, "%s/policies/cases.json", folder);
    CU_ASSERT_EQUAL_FATAL(rk_json_load(path, &j), RK_OK);
    CU_ASSERT_EQUAL_FATAL(rk_backend_open(name, 1, NULL, numerics, &be), RK_OK);
    const rk_json *cases = rk_json_get(j, "cases");
    for (size_t i = 0; i < rk_json_len(cases); i++)
        worst = fmax(worst, run_case(be, folder, rk_json_at(cases, i), &per_query));
    CU_ASSERT(rk_json_len(cases) > 0);
    printf(
        "    %s %s: %zu cases, %d of them per query head too; scores within %.1e of the largest\n",
        name, be->numerics, rk_json_len(cases), per_query, worst);
    rk_backend_close(be);
    rk_json_close(j);
}

static void test_ref(void) {
    run("ref", NULL);
}
static void test_tile(void) {
    run("cpu", "tile");
}
static void test_pair(void) {
    run("cpu", "pair");
}

int rk_suite_golden_policies(void) {
    CU_pSuite s = CU_add_suite("golden_policies", NULL, NULL);
    return !s || !CU_ADD_TEST(s, test_ref) || !CU_ADD_TEST(s, test_tile) ||
           !CU_ADD_TEST(s, test_pair);
}
