/* engine_plan.c - what an engine would do on each stage, before there is one: used by open and by
 * dry runs, so that both say the same. */
#include <string.h>

#include "base/mem.h"
#include "pipeline/engine.h"
#include "pipeline/stage.h"

static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

int64_t rk_engine_rows_of(const rk_engine_config *cfg) {
    return max64(max64(cfg->chunk, cfg->row_cap), max64(cfg->max_sequences, RK_STAGE_LOGIT_ROWS));
}

rk_status rk_engine_partition_of(const rk_config *c, const rk_engine_config *cfg, int n_stages,
                                 int *begin) {
    bool explicit_list = false;
    if (n_stages > c->n_layers)
        return RK_FAIL(RK_E_USAGE, "%d ranks for a model of %d layers; use at most one rank per layer "
                       "(or --replicas)", n_stages, c->n_layers);
    RK_TRY(rk_plan_parse_partition(cfg->partition ? cfg->partition : "auto", c->n_layers, n_stages,
                                   begin, &explicit_list));
    if (explicit_list) return RK_OK;
    void     *p;
    rk_status st;
    RK_TRY(rk_mem_alloc(c->n_layers, sizeof(double), "layer costs", &p));
    double *cost = p, n = (double)cfg->max_prompt, T = (double)cfg->max_response, rows = 0;
    for (int l = 0; l < c->n_layers; l++) {
        /* The forks of all earlier layers pass too; measurement rows cost twice. */
        rows = cfg->for_profile ? T * (2 + l) * 2 : 0;
        cost[l] = rk_plan_layer_cost(c, n, rows, n);
    }
    double head = rk_plan_head_cost(c, cfg->for_profile ? rows : 1);
    st = rk_plan_partition(c->n_layers, cost, 0, head, n_stages, begin);
    rk_mem_free(cost);
    return st;
}

/* What selection keeps of prompts; at most, since forks pass no rows. */
static int64_t observe_bytes(const rk_config *c, const rk_engine_config *cfg, int n_layers) {
    rk_observation o = cfg->observe;
    if (rk_observation_add(&o, &cfg->select) != RK_OK) rk_err_clear(); /* open says it */
    if (!o.scored) return 0;
    rk_attn_shape   shape = {.n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim};
    rk_observe_spec s = rk_stage_observe_spec(shape, &o, cfg->max_prompt);
    return rk_observe_bytes(&s) + (int64_t)n_layers * cfg->max_sequences * rk_observer_bytes(&s);
}

void rk_engine_memory_of(const rk_weights *w, const rk_engine_config *cfg, int n_stages,
                         const int *begin, int stage, rk_plan_memory *out) {
    const rk_config    *c = rk_weights_config(w);
    int                 bytes = strcmp(cfg->backend, "ref") == 0 ? 4 : 2;
    rk_plan_memory_spec s = {.config = c,
                             .layer_begin = begin[stage],
                             .layer_end = begin[stage + 1],
                             .has_embed = stage == 0,
                             .has_head = stage == n_stages - 1,
                             .weight_bytes = bytes,
                             .kv_bytes = bytes,
                             .n_prompt = cfg->max_prompt,
                             .n_new = cfg->max_new,
                             .n_sequences = cfg->max_sequences,
                             .budget = cfg->budget,
                             .max_rows = rk_engine_rows_of(cfg),
                             .max_logit_rows = max64(RK_STAGE_LOGIT_ROWS, cfg->max_response),
                             .observe_bytes = observe_bytes(c, cfg, begin[stage + 1] - begin[stage])};
    if (cfg->native)
        s.matrix_bytes = rk_model_matrix_bytes(w, RK_BF16, true, s.layer_begin, s.layer_end, s.has_embed,
                                               s.has_head);
    rk_plan_memory_of(&s, out);
}
