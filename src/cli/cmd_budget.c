/* cmd_budget.c - ripplekv budget: tokens per layer for a prompt length. */
#include <stdio.h>

#include "base/mem.h"
#include "cli/cache.h"
#include "cli/cli.h"

static void show_json(const rk_cache_plan *p, const int32_t *budget, const rk_budget_result *r) {
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
    rk_cli_print_json(o);
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

rk_status rk_cmd_budget(rk_cli *c) {
    rk_cache_plan    p = {0};
    rk_weights      *w = NULL;
    int32_t         *budget = NULL;
    rk_budget_result r;
    rk_status        st;
    rk_cli_log_settings(c->o);
    if (c->o->model) RK_TRY_OUT(st, rk_weights_open(c->o->model, &w));
    RK_TRY_OUT(st, rk_cache_plan_open(c->o, w ? rk_weights_config(w) : NULL, &p));
    RK_TRY_OUT(st, rk_mem_alloc_to(p.n_layers, sizeof(int32_t), "budgets", &budget));
    RK_TRY_OUT(st, rk_cache_plan_split(&p, c->o->context, budget, &r));
    (c->o->json ? show_json : show_table)(&p, budget, &r);
    st = rk_cli_flush_stdout();
out:
    rk_mem_free(budget);
    rk_cache_plan_close(&p);
    rk_weights_close(w);
    return st;
}
