/* cache.c - see cache.h. */
#include "cli/cache.h"

#include <string.h>

#include "base/hash.h"
#include "base/log.h"
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

static rk_status copy(const double *from, int64_t n, double **out) {
    RK_TRY(rk_mem_alloc_to(n, sizeof(double), "sensitivities", out));
    memcpy(*out, from, (size_t)n * sizeof(double));
    return RK_OK;
}

/* A policy of other settings than the one that the damages were measured with. */
static void warn_policy(const rk_options *o, const char *path, const rk_profile_policy *p) {
    bool same = strcmp(p->policy, o->policy) == 0 && p->window == o->window;
    if (same || o->command == RK_CMD_BUDGET) return;
    RK_LOG(RK_LOG_WARN, "budget",
           "%s: damages were measured with --policy %s --window %d, not %s and %lld", path,
           p->policy, p->window, o->policy, (long long)o->window);
}

static rk_status read_damage(rk_cache_plan *p, const rk_profile *f, const char *path) {
    const rk_options *o = p->o;
    RK_TRY(copy(f->levels, f->n_levels, &p->levels));
    RK_TRY(copy(f->damage, (int64_t)f->n_samples * f->n_levels * f->n_layers, &p->damage));
    p->curve = (rk_curve_data){.n_layers = f->n_layers,
                               .n_levels = f->n_levels,
                               .n_documents = f->n_samples,
                               .levels = p->levels,
                               .damage = p->damage};
    if (strcmp(o->allocator, "curve") == 0) warn_policy(o, path, &f->policy);
    int64_t lo = rk_budget_floor(f->context, (int)o->window, (int)o->sinks);
    bool    given = strcmp(o->curve_mean, "auto") != 0;
    if (!given || !o->given[RK_OPT_SHRINK])
        RK_TRY(rk_curve_choose(&p->curve, lo, f->context, f->seed, &p->choice));
    if (given) RK_TRY(rk_curve_mean_parse(o->curve_mean, &p->choice.mean));
    if (o->given[RK_OPT_SHRINK]) p->choice.shrink = o->shrink;
    return RK_OK;
}

/* What the allocator reads must be in the file. */
static rk_status check_signal(const rk_options *o, const rk_profile *f, const char *path) {
    bool local = strcmp(o->allocator, "local") == 0, curve = strcmp(o->allocator, "curve") == 0;
    bool cake = strcmp(o->allocator, "cake") == 0;
    const char *lacks = local && !f->local      ? "local"
                        : curve && !f->n_levels ? "damage"
                        : cake && !f->entropy   ? "attention"
                                                : NULL;
    if (!lacks) return RK_OK;
    return RK_FAIL(RK_E_INPUT,
                   "%s: holds no %s, which --allocator %s reads: profile with --signal kl,%s", path,
                   lacks, o->allocator, lacks);
}

static rk_status read_sensitivity(rk_cache_plan *p, const rk_config *model) {
    const char *path = p->o->sensitivity;
    rk_profile  f;
    rk_status   st;
    RK_TRY(rk_profile_read(path, &f));
    if (model) RK_TRY_OUT(st, check_model(&f, path, model));
    RK_TRY_OUT(st, check_signal(p->o, &f, path));
    p->n_layers = f.n_layers;
    p->weights_hash = f.weights_hash;
    p->context = f.context;
    RK_TRY_OUT(st, copy(f.sensitivity, f.n_layers, &p->sensitivity));
    if (f.local) {
        RK_TRY_OUT(st, rk_mem_alloc_to(f.n_layers, sizeof(double), "local responses", &p->local));
        RK_TRY_OUT(st, rk_profile_mean(&f, f.local, p->local));
    }
    if (f.entropy) {
        RK_TRY_OUT(st, rk_mem_alloc_to(f.n_layers, sizeof(double), "attention", &p->entropy));
        RK_TRY_OUT(st, rk_mem_alloc_to(f.n_layers, sizeof(double), "attention", &p->variance));
        RK_TRY_OUT(st, rk_profile_mean(&f, f.entropy, p->entropy));
        RK_TRY_OUT(st, rk_profile_mean(&f, f.variance, p->variance));
    }
    if (f.n_levels) RK_TRY_OUT(st, read_damage(p, &f, path));
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
    void *all[] = {p->sensitivity, p->shares, p->local, p->entropy,
                   p->variance,    p->levels, p->damage};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) rk_mem_free(all[i]);
    *p = (rk_cache_plan){0};
}

rk_status rk_cache_plan_split_by(const rk_cache_plan *p, rk_allocator a, int64_t n, int32_t *budget,
                                 rk_budget_result *result) {
    const rk_options *o = p->o;
    rk_budget_spec    s = {.n_layers = p->n_layers,
                           .n_prompt = n,
                           .ratio = o->given[RK_OPT_BUDGET] ? -1 : 1,
                           .tokens = o->budget,
                           .allocator = a,
                           .sensitivity = a == RK_ALLOC_LOCAL ? p->local : p->sensitivity,
                           .shares = p->shares,
                           .entropy = p->entropy,
                           .variance = p->variance,
                           .tau = {o->tau1, o->tau2},
                           .curve = p->curve.n_levels ? &p->curve : NULL,
                           .choice = p->choice,
                           .r = o->r,
                           .gamma = o->gamma,
                           .beta = o->beta,
                           .window = (int)o->window,
                           .sinks = (int)o->sinks};
    if (o->given[RK_OPT_RATIO]) s.ratio = o->ratio;
    return rk_budget_split(&s, budget, result);
}

rk_status rk_cache_plan_split(const rk_cache_plan *p, int64_t n, int32_t *budget,
                              rk_budget_result *result) {
    return rk_cache_plan_split_by(p, p->allocator, n, budget, result);
}
