/* cmd_budget.c - ripplekv budget: tokens per layer for a prompt length. */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "cli/cache.h"
#include "cli/cli.h"

static rk_json *result_json(const rk_cache_plan *p, const int32_t *budget,
                            const rk_budget_result *r) {
    rk_json *o = rk_json_object(), *list = rk_json_array();
    for (int l = 0; l < p->n_layers; l++) rk_json_add_int(list, budget[l]);
    rk_json_set(o, "budgets", list);
    rk_json_set_int(o, "total", r->total);
    rk_json_set_int(o, "asked", r->asked);
    rk_json_set_int(o, "floor", r->lo);
    rk_json_set_int(o, "layers", p->n_layers);
    rk_json_set_int(o, "context", p->o->context);
    rk_json_set_num(o, "share", (double)r->total / ((double)p->o->context * p->n_layers));
    rk_json_set_str(o, "allocator", p->o->allocator);
    if (p->sensitivity) {
        list = rk_json_array();
        for (int l = 0; l < p->n_layers; l++) rk_json_add_num(list, p->sensitivity[l]);
        rk_json_set(o, "sensitivity", list);
    }
    return o;
}

static void show_table(const rk_cache_plan *p, const int32_t *budget, const rk_budget_result *r) {
    double n = (double)p->o->context * p->n_layers;
    rk_cli_show_layers(p->n_layers, p->sensitivity, NULL, budget);
    printf("total %lld tokens, %.4g %% of %d layers x %lld; mean %.1f a layer, floor %lld\n",
           (long long)r->total, 100 * (double)r->total / n, p->n_layers, (long long)p->o->context,
           (double)r->total / p->n_layers, (long long)r->lo);
    if (r->total != r->asked)
        printf("asked for were %lld tokens; the floor of each layer and the prompt's length bound "
               "it\n",
               (long long)r->asked);
}

/* ---- --explain ---- */

typedef struct explanation {
    rk_curve raw, hull;         /* plain means; what the allocator minimises */
    double cost[RK_ALLOC_LIST]; /* predicted damage of each allocator; NaN: its signal is absent */
    double part[RK_ALLOC_LIST]; /* of uniform's */
    double scale; /* of the hull, whose mean may have another unit, to the plain means */
} explanation;

/* Damage, summed over layers, that plain means predict for each allocator at this total. */
static rk_status predict(const rk_cache_plan *p, int32_t *budget, explanation *x) {
    rk_budget_result r;
    for (int a = 0; a < RK_ALLOC_LIST; a++) {
        x->cost[a] = NAN;
        if ((a == RK_ALLOC_LOCAL && !p->local) || (a == RK_ALLOC_CAKE && !p->entropy)) continue;
        RK_TRY(rk_cache_plan_split_by(p, (rk_allocator)a, p->o->context, budget, &r));
        x->cost[a] = rk_curve_total(&x->raw, budget, p->o->context);
        if (a == RK_ALLOC_UNIFORM)
            x->scale = x->cost[a] / rk_curve_total(&x->hull, budget, p->o->context);
    }
    for (int a = 0; a < RK_ALLOC_LIST; a++) x->part[a] = x->cost[a] / x->cost[RK_ALLOC_UNIFORM];
    return RK_OK;
}

/* What the next token of a layer saves, in nats. */
static double marginal(const rk_curve *c, int layer, int32_t b, int64_t n) {
    if (b >= n) return 0;
    return rk_curve_at(c, layer, (double)b / (double)n) -
           rk_curve_at(c, layer, (double)(b + 1) / (double)n);
}

static void explain_json(const rk_cache_plan *p, const int32_t *budget, const explanation *x,
                         rk_json *o) {
    rk_json *e = rk_json_object(), *cost = rk_json_object(), *curves = rk_json_array();
    rk_json_set_str(e, "curve_mean", rk_curve_mean_name(p->choice.mean));
    rk_json_set_num(e, "shrink", p->choice.shrink);
    rk_json_set_num(e, "held_out_score", p->choice.score);
    for (int a = 0; a < RK_ALLOC_LIST; a++)
        if (!isnan(x->cost[a]))
            rk_json_set_num(cost, rk_allocator_name((rk_allocator)a), x->cost[a]);
    rk_json_set(e, "predicted_damage", cost);
    for (int l = 0; l < p->n_layers; l++) {
        rk_json *c = rk_json_object(), *levels = rk_json_array(), *measured = rk_json_array(),
                *hull = rk_json_array();
        for (int k = 0; k < p->curve.n_levels; k++) {
            rk_json_add_num(levels, p->levels[k]);
            rk_json_add_num(measured, rk_curve_at(&x->raw, l, p->levels[k]));
            rk_json_add_num(hull, x->scale * rk_curve_at(&x->hull, l, p->levels[k]));
        }
        rk_json_set(c, "levels", levels);
        rk_json_set(c, "measured", measured);
        rk_json_set(c, "hull", hull);
        rk_json_set_num(c, "marginal", x->scale * marginal(&x->hull, l, budget[l], p->o->context));
        rk_json_add(curves, c);
    }
    rk_json_set(e, "curves", curves);
    rk_json_set(o, "explain", e);
}

static void explain_table(const rk_cache_plan *p, const int32_t *budget, const explanation *x) {
    printf("\ndamage curves: KL in nats with the layer alone cut; mean over documents, and below "
           "it the hull "
           "(%s)\nlayer",
           rk_curve_mean_name(p->choice.mean));
    for (int k = 0; k < p->curve.n_levels; k++) printf("  at %5.3g %%", 100 * p->levels[k]);
    printf("    tokens  next token saves\n");
    for (int l = 0; l < p->n_layers; l++) {
        printf("%5d", l);
        for (int k = 0; k < p->curve.n_levels; k++)
            printf("  %10.3e", rk_curve_at(&x->raw, l, p->levels[k]));
        printf("  %8d  %16.3e\n     ", budget[l],
               x->scale * marginal(&x->hull, l, budget[l], p->o->context));
        for (int k = 0; k < p->curve.n_levels; k++)
            printf("  %10.3e", x->scale * rk_curve_at(&x->hull, l, p->levels[k]));
        printf("\n");
    }
    printf("\nmean %s, %.3g of the way to uniform", rk_curve_mean_name(p->choice.mean),
           p->choice.shrink);
    if (p->choice.score > 0)
        printf("; held-out documents: %.3f of uniform's damage", p->choice.score);
    printf("\npredicted damage of all layers together (sum of the means; calibration documents)\n");
    for (int a = 0; a < RK_ALLOC_LIST; a++)
        if (!isnan(x->cost[a]))
            printf("  %-8s %9.5f nats  %5.3f of uniform\n", rk_allocator_name((rk_allocator)a),
                   x->cost[a], x->part[a]);
}

/* Shapes: budget, scratch [L] */
static rk_status explain(const rk_cache_plan *p, const int32_t *budget, int32_t *scratch,
                         rk_json *o) {
    explanation x = {0};
    rk_status   st;
    if (!p->curve.n_levels)
        return RK_FAIL(
            RK_E_INPUT,
            "%s: holds no damage, which --explain reads: profile with --signal kl,damage",
            p->o->sensitivity);
    RK_TRY_OUT(st, rk_curve_build(&p->curve, RK_CURVE_MEAN, NULL, true, &x.raw));
    RK_TRY_OUT(st, rk_curve_build(&p->curve, p->choice.mean, NULL, false, &x.hull));
    RK_TRY_OUT(st, predict(p, scratch, &x));
    if (o)
        explain_json(p, budget, &x, o);
    else
        explain_table(p, budget, &x);
out:
    rk_curve_free(&x.raw);
    rk_curve_free(&x.hull);
    return st;
}

static rk_status show(const rk_cache_plan *p, const int32_t *budget, int32_t *scratch,
                      const rk_budget_result *r) {
    rk_status st = RK_OK;
    if (!p->o->json) {
        show_table(p, budget, r);
        return p->o->explain ? explain(p, budget, scratch, NULL) : RK_OK;
    }
    rk_json *o = result_json(p, budget, r);
    if (p->o->explain) st = explain(p, budget, scratch, o);
    if (st == RK_OK)
        rk_cli_print_json(o);
    else
        rk_json_close(o);
    return st;
}

rk_status rk_cmd_budget(rk_cli *c) {
    rk_cache_plan    p = {0};
    rk_weights      *w = NULL;
    int32_t         *budget = NULL;
    rk_budget_result r;
    rk_status        st;
    rk_cli_log_settings(c->o);
    if (c->o->model) RK_TRY_OUT(st, rk_weights_open(c->o->model, &w));
    RK_TRY_OUT(st, rk_cache_plan_open(c->o, w ? rk_weights_config(w) : NULL, &p));
    RK_TRY_OUT(st, rk_mem_alloc_to(2 * (int64_t)p.n_layers, sizeof(int32_t), "budgets", &budget));
    RK_TRY_OUT(st, rk_cache_plan_split(&p, c->o->context, budget, &r));
    RK_TRY_OUT(st, show(&p, budget, budget + p.n_layers, &r));
    st = rk_cli_flush_stdout();
out:
    rk_mem_free(budget);
    rk_cache_plan_close(&p);
    rk_weights_close(w);
    return st;
}
