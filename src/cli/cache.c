/* cache.c - see cache.h. */
#include "cli/cache.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "profiler/profile_h5.h"

static rk_status check_model(const rk_profile *f, const char *path, const rk_config *m) {
    char a[17], b[17];
    if (f->n_layers != m->n_layers)
        return RK_FAIL(
            RK_E_INPUT, "%s is a profile of %s with %d layers; this model (%s) has %d: profile it",
            path, f->model_name, f->n_layers, m->name[0] ? m->name : m->arch, m->n_layers);
    uint64_t mine = rk_config_shape_hash(m);
    if (f->model_shape_hash == mine) return RK_OK;
    return RK_FAIL(
        RK_E_INPUT,
        "%s is a profile of another model (%s, model_shape_hash %s); this one (%s) has %s: "
        "profile it",
        path, f->model_name, rk_hash_hex(f->model_shape_hash, a), m->name[0] ? m->name : m->arch,
        rk_hash_hex(mine, b));
}

static rk_status read_sensitivity(rk_cache_plan *p, const rk_config *model) {
    const char *path = p->o->sensitivity;
    rk_profile  f;
    rk_status   st;
    RK_TRY(rk_profile_read(path, &f));
    if (model) RK_TRY_OUT(st, check_model(&f, path, model));
    RK_TRY_OUT(st, rk_mem_alloc_to(f.n_layers, sizeof(double), "sensitivities", &p->sensitivity));
    memcpy(p->sensitivity, f.sensitivity, (size_t)f.n_layers * sizeof(double));
    p->n_layers = f.n_layers;
    p->weights_hash = f.weights_hash;
    st = RK_OK;
out:
    rk_profile_free(&f);
    return st;
}

static rk_status load(rk_cache_plan *p, const rk_config *model) {
    static const char list[] = "list:";
    const char       *a = p->o->allocator;
    p->n_layers = model ? model->n_layers : 0;
    if (p->o->sensitivity) RK_TRY(read_sensitivity(p, model));
    if (strncmp(a, list, strlen(list)) != 0) return rk_allocator_parse(a, &p->allocator);
    p->allocator = RK_ALLOC_LIST;
    RK_TRY(rk_mem_alloc_to(p->n_layers, sizeof(double), "shares", &p->shares));
    return rk_budget_load_list(a + strlen(list), p->n_layers, p->shares);
}

rk_status rk_cache_plan_open(const rk_options *o, const rk_config *model, rk_cache_plan *out) {
    *out = (rk_cache_plan){.o = o};
    rk_status st = load(out, model);
    if (st != RK_OK) rk_cache_plan_close(out);
    RK_TRY(st);
    return RK_OK;
}

void rk_cache_plan_close(rk_cache_plan *p) {
    rk_mem_free(p->sensitivity);
    rk_mem_free(p->shares);
    *p = (rk_cache_plan){0};
}

rk_status rk_cache_plan_split(const rk_cache_plan *p, int64_t n, int32_t *budget,
                              rk_budget_result *result) {
    const rk_options *o = p->o;
    rk_budget_spec    s = {.n_layers = p->n_layers,
                           .n_prompt = n,
                           .ratio = o->given[RK_OPT_BUDGET] ? -1 : 1,
                           .tokens = o->budget,
                           .allocator = p->allocator,
                           .sensitivity = p->sensitivity,
                           .shares = p->shares,
                           .r = o->r,
                           .gamma = o->gamma,
                           .beta = o->beta,
                           .window = (int)o->window,
                           .sinks = (int)o->sinks};
    if (o->given[RK_OPT_RATIO]) s.ratio = o->ratio;
    return rk_budget_split(&s, budget, result);
}
