/* eval_damage.c - eval damage: each layer cut alone by the real policy, at several levels.
 *
 * One prefill per document; a variant per layer and level, and one fork per level in which all
 * layers are cut alike. What is asked: does a layer's sensitivity, or its depth, say how much it
 * suffers; and do the single damages add up to the joint one. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/eval.h"
#include "cli/eval_docs.h"
#include "profiler/correlate.h"
#include "profiler/profile_h5.h"

enum { RESAMPLES = 2000 };

static const rk_calibration *documents(const rk_eval *v) {
    return v->data;
}

static rk_status load(rk_eval *v) {
    const rk_options *o = v->c->o;
    if (v->sweep.n != 1)
        return RK_FAIL(RK_E_USAGE,
                       "--sweep: eval damage takes one policy; give its options themselves");
    RK_TRY(rk_mem_alloc_to(1, sizeof(rk_calibration), "documents", &v->data));
    v->max_forks = o->levels.n;
    /* The policy is asked for though nothing says how much is kept: the levels do. */
    v->sweep.at[0].select = rk_cli_policy(o);
    v->observe = (rk_observation){0};
    RK_TRY(rk_observation_add(&v->observe, &v->sweep.at[0].select));
    rk_hash_add(&v->job_hash, o->levels.v, (size_t)o->levels.n * sizeof *o->levels.v);
    return rk_eval_load_documents(v, v->data);
}

static int32_t budget_at(const rk_eval *v, int64_t n, int level) {
    const rk_options *o = v->c->o;
    return rk_budget_of_level(o->levels.v[level], n, (int)o->window, (int)o->sinks);
}

static rk_status fork_levels(rk_eval *v, int64_t n) {
    int      L = rk_eval_layers(v);
    int32_t *budget;
    RK_TRY(rk_mem_alloc_to(L, sizeof(int32_t), "budgets", &budget));
    rk_status st = RK_OK;
    for (int k = 0; st == RK_OK && k < v->max_forks; k++) {
        for (int l = 0; l < L; l++) budget[l] = budget_at(v, n, k);
        st = rk_engine_fork(v->e, 0, 1 + k, &v->sweep.at[0].select, budget, 0, NULL, NULL);
    }
    rk_mem_free(budget);
    return st;
}

static rk_status run(rk_eval *v, int item, rk_json *record) {
    const rk_sample *s = &documents(v)->samples[item];
    int              K = v->max_forks, L = rk_eval_layers(v), n = 0;
    rk_variant      *var = NULL;
    rk_measured     *m = NULL;
    rk_json         *single = rk_json_array(), *joint = rk_json_array();
    rk_status        st;
    rk_json_set_str(record, "id", s->id);
    rk_json_set(record, "damage", single); /* [K][L] */
    rk_json_set(record, "joint", joint);   /* [K] */
    RK_TRY_OUT(st, rk_mem_alloc_to((int64_t)K * (L + 1), sizeof *var, "variants", &var));
    RK_TRY_OUT(st, rk_mem_alloc_to((int64_t)K * (L + 1), sizeof *m, "measurements", &m));
    RK_TRY_OUT(st, rk_engine_prefill(v->e, 0, s->tokens, s->n_prompt, 0, NULL, NULL, NULL));
    RK_TRY_OUT(st, fork_levels(v, s->n_prompt));
    for (int k = 0; k < K; k++) var[n++] = (rk_variant){.kind = RK_VARIANT_SEQUENCE, .seq = 1 + k};
    for (int l = 0; l < L; l++)
        for (int k = 0; k < K; k++)
            var[n++] = (rk_variant){
                .kind = RK_VARIANT_COMPRESS, .layer = l, .budget = budget_at(v, s->n_prompt, k)};
    RK_TRY_OUT(st, rk_engine_measure(v->e, 0, s->tokens + s->n_prompt, (int)s->n_response,
                                     v->c->o->seed, var, n, m, NULL, NULL));
    for (int k = 0; k < K; k++) {
        rk_json *row = rk_json_array();
        for (int l = 0; l < L; l++) rk_json_add_num(row, m[K + l * K + k].kl);
        rk_json_add(single, row);
        rk_json_add_num(joint, m[k].kl);
    }
    for (int k = 0; k <= K; k++) RK_TRY_OUT(st, rk_engine_free(v->e, k));
out:
    rk_mem_free(var);
    rk_mem_free(m);
    return st;
}

/* ---- the report ---- */

typedef struct level {
    double *damage;             /* [N][L] */
    double *mean;               /* [L] */
    double  joint, sum;         /* means over documents */
    double  rho_s, rho_s_ci[2]; /* with sensitivity; NaN: no file */
    double  rho_d, rho_d_ci[2]; /* with depth */
} level;

static rk_status correlate(const rk_eval *v, const double *sensitivity, level *x) {
    int      N = v->n_items, L = rk_eval_layers(v);
    double  *depth;
    uint64_t seed = v->c->o->seed;
    RK_TRY(rk_mem_alloc_to(L, sizeof(double), "depths", &depth));
    for (int l = 0; l < L; l++) depth[l] = l;
    rk_status st =
        rk_spearman_bootstrap(x->damage, N, depth, L, RESAMPLES, seed, &x->rho_d, x->rho_d_ci);
    x->rho_s = x->rho_s_ci[0] = x->rho_s_ci[1] = NAN;
    if (st == RK_OK && sensitivity)
        st = rk_spearman_bootstrap(x->damage, N, sensitivity, L, RESAMPLES, seed, &x->rho_s,
                                   x->rho_s_ci);
    rk_mem_free(depth);
    return st;
}

static rk_status fill(const rk_eval *v, rk_json *const *records, const double *sensitivity, int k,
                      level *x) {
    int N = v->n_items, L = rk_eval_layers(v);
    RK_TRY(rk_mem_alloc_to((int64_t)N * L, sizeof(double), "damages", &x->damage));
    RK_TRY(rk_mem_alloc_to(L, sizeof(double), "damages", &x->mean));
    for (int i = 0; i < N; i++) {
        const rk_json *row = rk_json_at(rk_json_get(records[i], "damage"), (size_t)k);
        x->joint += rk_json_num(rk_json_at(rk_json_get(records[i], "joint"), (size_t)k), NAN) / N;
        for (int l = 0; l < L; l++) {
            double d = rk_json_num(rk_json_at(row, (size_t)l), NAN);
            x->damage[i * L + l] = d;
            x->mean[l] += d / N;
            x->sum += d / N;
        }
    }
    return correlate(v, sensitivity, x);
}

/* Mean over the levels, as one more level. */
static rk_status fill_mean(const rk_eval *v, const double *sensitivity, const level *at, int K,
                           level *x) {
    int N = v->n_items, L = rk_eval_layers(v);
    RK_TRY(rk_mem_alloc_to((int64_t)N * L, sizeof(double), "damages", &x->damage));
    RK_TRY(rk_mem_alloc_to(L, sizeof(double), "damages", &x->mean));
    for (int k = 0; k < K; k++) {
        for (int i = 0; i < N * L; i++) x->damage[i] += at[k].damage[i] / K;
        for (int l = 0; l < L; l++) x->mean[l] += at[k].mean[l] / K;
        x->joint += at[k].joint / K;
        x->sum += at[k].sum / K;
    }
    return correlate(v, sensitivity, x);
}

static void set_level(const rk_eval *v, const level *x, rk_json *o) {
    rk_json *list = rk_json_array(), *s = rk_json_array(), *d = rk_json_array();
    for (int l = 0; l < rk_eval_layers(v); l++) rk_json_add_num(list, x->mean[l]);
    for (int i = 0; i < 2; i++) {
        rk_json_add_num(s, x->rho_s_ci[i]);
        rk_json_add_num(d, x->rho_d_ci[i]);
    }
    rk_json_set(o, "damage", list);
    rk_json_set_num(o, "spearman_sensitivity", x->rho_s);
    rk_json_set(o, "spearman_sensitivity_ci", s);
    rk_json_set_num(o, "spearman_depth", x->rho_d);
    rk_json_set(o, "spearman_depth_ci", d);
    rk_json_set_num(o, "joint", x->joint);
    rk_json_set_num(o, "sum", x->sum);
}

static void show_json(const rk_eval *v, const level *x, rk_json *out) {
    int      K = v->max_forks;
    rk_json *list = rk_json_array();
    set_level(v, &x[K], out);
    for (int k = 0; k < K; k++) {
        rk_json *o = rk_json_object();
        rk_json_set_num(o, "level", v->c->o->levels.v[k]);
        set_level(v, &x[k], o);
        rk_json_add(list, o);
    }
    rk_json_set(out, "levels", list);
}

static void show_table(const rk_eval *v, const level *x, const double *sensitivity) {
    int K = v->max_forks, L = rk_eval_layers(v);
    printf("%d documents, %lld + %lld tokens; KL in nats per token with one layer cut alone\nlayer",
           v->n_items, (long long)v->c->o->context, (long long)v->c->o->response);
    for (int k = 0; k < K; k++) printf("  kept %4.3g%%", 100 * v->c->o->levels.v[k]);
    printf("%s\n", sensitivity ? "  sensitivity" : "");
    for (int l = 0; l < L; l++) {
        printf("%5d", l);
        for (int k = 0; k < K; k++) printf("  %10.3e", x[k].mean[l]);
        if (sensitivity) printf("  %11.3e", sensitivity[l]);
        printf("\n");
    }
    printf("\n%-12s %10s %10s  %-28s  %s\n", "kept", "sum", "joint", "rho with sensitivity [95 %]",
           "rho with depth [95 %]");
    for (int k = 0; k <= K; k++) {
        char name[24];
        snprintf(name, sizeof name, "mean");
        if (k < K) snprintf(name, sizeof name, "%.3g %%", 100 * v->c->o->levels.v[k]);
        printf("%-12s %10.4f %10.4f  %5.2f [%5.2f, %5.2f]%10s  %5.2f [%5.2f, %5.2f]\n", name,
               x[k].sum, x[k].joint, x[k].rho_s, x[k].rho_s_ci[0], x[k].rho_s_ci[1], "", x[k].rho_d,
               x[k].rho_d_ci[0], x[k].rho_d_ci[1]);
    }
}

static rk_status report(rk_eval *v, rk_json *const *records, rk_json *out) {
    const double *sensitivity = v->sweep.at[0].cache.sensitivity;
    int           K = v->max_forks;
    level        *x = NULL;
    rk_status     st;
    RK_TRY_OUT(st, rk_mem_alloc_to(K + 1, sizeof *x, "levels", &x));
    for (int k = 0; k < K; k++) RK_TRY_OUT(st, fill(v, records, sensitivity, k, &x[k]));
    RK_TRY_OUT(st, fill_mean(v, sensitivity, x, K, &x[K]));
    if (v->c->o->json)
        show_json(v, x, out);
    else
        show_table(v, x, sensitivity);
out:
    for (int k = 0; x && k <= K; k++) {
        rk_mem_free(x[k].damage);
        rk_mem_free(x[k].mean);
    }
    rk_mem_free(x);
    return st;
}

const rk_eval_task rk_eval_damage = {"damage", load, run, report, rk_eval_unload_documents};
