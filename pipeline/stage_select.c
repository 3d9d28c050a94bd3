/* stage_select.c - which slots of a layer a policy keeps: what is observed while the prompt passes,
 * scores made from it, positions chosen. */
#include "base/mem.h"
#include "pipeline/stage_internal.h"

rk_status rk_stage_open_selection(rk_stage *s) {
    const rk_config *c = &s->cfg;
    int64_t layers = s->spec.layer_end - s->spec.layer_begin, f = (int64_t)sizeof(float);
    RK_TRY(rk_mem_alloc_to(c->n_kv_heads * s->spec.max_prompt, sizeof(int32_t), "kept", &s->kept));
    s->qwin_stride = (int64_t)s->spec.select.window * c->n_heads * c->head_dim;
    if (!rk_select_needs_scores(&s->spec.select)) return RK_OK;
    RK_TRY(rk_stage_dev(s, layers * s->spec.max_sequences * s->qwin_stride * f, "window queries",
                        &s->qwin));
    RK_TRY(rk_stage_dev(s, c->n_heads * s->spec.max_prompt * f, "window mass", &s->mass));
    RK_TRY(rk_mem_alloc_to(c->n_heads * s->spec.max_prompt, f, "window mass", &s->mass_host));
    return rk_mem_alloc_to(c->n_kv_heads * s->spec.max_prompt, f, "selection scores", &s->score);
}

void rk_stage_close_selection(rk_stage *s) {
    s->be->ops->release(s->be, s->qwin);
    s->be->ops->release(s->be, s->mass);
    rk_mem_free(s->kept);
    rk_mem_free(s->mass_host);
    rk_mem_free(s->score);
}

/* Queries of a sequence's window in a layer, dev [window][H d]. */
static float *window_of(const rk_stage *s, int layer, int seq) {
    int64_t i = (layer - s->spec.layer_begin) * (int64_t)s->spec.max_sequences + seq;
    return s->qwin + i * s->qwin_stride;
}

rk_status rk_stage_observe(rk_stage *s, int layer, const rk_record_set *set) {
    const rk_stage_seq *q = &s->seq[set->seq];
    int64_t w = s->spec.select.window < q->n_prompt ? s->spec.select.window : q->n_prompt;
    int64_t from = q->n_prompt - w - set->pos0, to = q->n_prompt - set->pos0; /* rows of the set */
    if (from < 0) from = 0;
    if (to > set->n_rows) to = set->n_rows;
    if (!s->qwin || from >= to) return RK_OK;
    int64_t width = (int64_t)s->cfg.n_heads * s->cfg.head_dim;
    float  *dst = window_of(s, layer, set->seq) + (set->pos0 + from - (q->n_prompt - w)) * width;
    return rk_model_take_q(s->model, set->row0 + (int)from, (int)(to - from), dst);
}

/* Scores [G][n] of a layer's slots into s->score. */
static rk_status score(rk_stage *s, const rk_select_params *p, int layer, int seq) {
    const rk_config *c = &s->cfg;
    int64_t          n = s->seq[seq].n_prompt;
    int              w = p->window < n ? p->window : (int)n;
    rk_attn_shape    sh = rk_model_attn(s->model);
    rk_span          spans[RK_STAGE_HEADS];
    if (!s->qwin || p->window > s->spec.select.window)
        return RK_FAIL(RK_E_BUG, "layer %d: no queries of a window of %d were kept", layer, p->window);
    int     n_spans = rk_kv_chain(s->kv, layer, seq, spans);
    int64_t have = s->spec.select.window < n ? s->spec.select.window : n; /* the last w of these */
    float  *q = window_of(s, layer, seq) + (have - w) * c->n_heads * c->head_dim;
    RK_TRY(s->be->ops->window_mass(s->be, &sh, q, w, spans, n_spans, (int32_t)n, s->mass));
    RK_TRY(s->be->ops->download(s->be, s->mass_host, s->mass, c->n_heads * n * (int64_t)sizeof(float)));
    return rk_select_snap_scores(p, c->n_heads, c->n_kv_heads, n, s->mass_host, s->score);
}

rk_status rk_stage_select(rk_stage *s, const rk_select_params *p, int layer, int seq, int32_t budget,
                          const int32_t **slot, int32_t *count) {
    int64_t n = s->seq[seq].n_prompt;
    int     G = s->cfg.n_kv_heads;
    bool    all = budget >= n, scored = !all && rk_select_needs_scores(p);
    RK_ASSERT(G <= RK_STAGE_HEADS);
    if (rk_kv_seen(s->kv, layer, seq) != n || rk_kv_stored(s->kv, layer, seq, 0) != n)
        return RK_FAIL(RK_E_BUG, "layer %d: sequence %d is not a whole prompt", layer, seq);
    if (scored) RK_TRY(score(s, p, layer, seq));
    for (int g = 0; g < G; g++) {
        int32_t *kept = s->kept + g * s->spec.max_prompt;
        slot[g] = kept;
        count[g] = all ? (int32_t)n : budget;
        for (int32_t i = 0; all && i < n; i++) kept[i] = i;
        if (!all) RK_TRY(rk_select_head(p, n, budget, scored ? s->score + g * n : NULL, kept));
    }
    return RK_OK;
}
