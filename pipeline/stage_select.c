/* stage_select.c - which slots of a layer a policy keeps: what is observed while the prompt passes,
 * scores made from it, positions chosen. */
#include <string.h>

#include "base/mem.h"
#include "pipeline/stage_internal.h"

/* Observers [layers][max_sequences] are opened when a sequence first passes: forks need none. */
rk_status rk_stage_open_selection(rk_stage *s) {
    const rk_config *c = &s->cfg;
    int64_t          layers = s->spec.layer_end - s->spec.layer_begin;
    rk_observe_spec  spec =
        rk_stage_observe_spec(rk_model_attn(s->model), &s->spec.observe, s->spec.max_prompt);
    RK_ASSERT(c->n_kv_heads <= RK_STAGE_HEADS);
    RK_TRY(rk_mem_alloc_to(c->n_kv_heads * s->spec.max_prompt, sizeof(int32_t), "kept", &s->kept));
    if (!s->spec.observe.scored) return RK_OK;
    RK_TRY(rk_mem_alloc_to(c->n_kv_heads * s->spec.max_prompt, sizeof(float), "selection scores",
                           &s->score));
    RK_TRY(rk_mem_alloc_to(c->head_dim / 2, sizeof(double), "rotation speeds", &s->rope_speed));
    rk_config_rope_speeds(c, s->rope_speed);
    spec.rope_speed = s->rope_speed;
    RK_TRY(rk_mem_alloc_to(layers * s->spec.max_sequences, sizeof(rk_observer *), "observers",
                           &s->observer));
    /* Of one prompt at least there is room now, not when it comes. */
    RK_TRY(rk_observe_open(s->be, &spec, &s->observe));
    for (int64_t l = 0; l < layers; l++)
        RK_TRY(rk_observer_open(s->observe, &s->observer[l * s->spec.max_sequences]));
    return RK_OK;
}

rk_observe_spec rk_stage_observe_spec(rk_attn_shape shape, const rk_observation *o,
                                      int64_t max_prompt) {
    return (rk_observe_spec){.shape = shape,
                             .see = o->see,
                             .window = o->window,
                             .sinks = o->sinks,
                             .max_prompt = max_prompt};
}

void rk_stage_close_selection(rk_stage *s) {
    int64_t n = (int64_t)(s->spec.layer_end - s->spec.layer_begin) * s->spec.max_sequences;
    for (int64_t i = 0; s->observer && i < n; i++) rk_observer_close(s->observer[i]);
    rk_observe_close(s->observe);
    rk_mem_free(s->observer);
    rk_mem_free(s->rope_speed);
    rk_mem_free(s->kept);
    rk_mem_free(s->score);
}

static rk_observer **observer_at(const rk_stage *s, int layer, int seq) {
    return &s->observer[(layer - s->spec.layer_begin) * (int64_t)s->spec.max_sequences + seq];
}

rk_status rk_stage_observe(rk_stage *s, int layer, const rk_record_set *set, const rk_span *spans) {
    if (!s->observe) return RK_OK;
    rk_observer **o = observer_at(s, layer, set->seq);
    if (set->pos0 == 0) {
        s->scored_seq = -1;
        if (!*o) RK_TRY(rk_observer_open(s->observe, o));
        rk_observer_begin(*o, s->seq[set->seq].n_prompt);
    }
    if (set->pos0 >= s->seq[set->seq].n_prompt || !rk_observer_wants(*o, set->pos0, set->n_rows))
        return RK_OK;
    int64_t bytes =
        set->n_rows * (int64_t)s->cfg.n_heads * s->cfg.head_dim * (int64_t)sizeof(float);
    RK_TRY(rk_stage_grow(s, bytes, "queries", &s->q_rows, &s->q_bytes));
    RK_TRY(rk_model_take_q(s->model, set->row0, set->n_rows, s->q_rows));
    return rk_observer_rows(*o, s->q_rows, set->pos0, set->n_rows, spans);
}

/* Scores [G][n] of a layer's slots into s->score; those of the call before are kept. */
static rk_status score(rk_stage *s, const rk_select_params *p, int layer, int seq) {
    rk_span spans[RK_STAGE_HEADS];
    bool    known =
        s->scored_seq == seq && s->scored_layer == layer && memcmp(&s->scored, p, sizeof *p) == 0;
    if (known) return RK_OK;
    s->scored_seq = -1;
    int n_spans = rk_kv_chain(s->kv, layer, seq, spans);
    RK_ASSERT(n_spans == 1);
    if (!s->observe || !*observer_at(s, layer, seq))
        return RK_FAIL(RK_E_BUG, "layer %d: policy %s of sequence %d was not prepared for", layer,
                       rk_policy_name(p->policy), seq);
    RK_TRY(rk_observer_scores(*observer_at(s, layer, seq), p, spans, layer, s->score));
    s->scored_seq = seq;
    s->scored_layer = layer;
    s->scored = *p;
    return RK_OK;
}

rk_status rk_stage_attention(rk_stage *s, int seq, double *out) {
    int     L = s->cfg.n_layers;
    rk_span spans[RK_STAGE_HEADS];
    memset(out, 0, (size_t)rk_stage_attention_bytes(L));
    for (int l = s->spec.layer_begin; l < s->spec.layer_end; l++) {
        if (!s->observe || !*observer_at(s, l, seq) ||
            rk_kv_seen(s->kv, l, seq) != s->seq[seq].n_prompt)
            return RK_FAIL(RK_E_BUG, "layer %d: the attention of sequence %d was not observed", l,
                           seq);
        rk_kv_chain(s->kv, l, seq, spans);
        RK_TRY(rk_observer_attention(*observer_at(s, l, seq), spans, &out[l], &out[L + l]));
        if (s->spec.poll) s->spec.poll(s->spec.arg);
    }
    return RK_OK;
}

rk_status rk_stage_select(rk_stage *s, const rk_select_params *p, int layer, int seq,
                          int32_t budget, const int32_t **slot, int32_t *count) {
    int64_t n = s->seq[seq].n_prompt;
    int     G = s->cfg.n_kv_heads;
    bool    all = budget >= n;
    if (rk_kv_seen(s->kv, layer, seq) != n || rk_kv_stored(s->kv, layer, seq, 0) != n)
        return RK_FAIL(RK_E_BUG, "layer %d: sequence %d is not a whole prompt", layer, seq);
    if (!all && rk_select_needs_scores(p)) RK_TRY(score(s, p, layer, seq));
    if (!all) RK_TRY(rk_select_layer(p, G, n, budget, s->score, s->kept, count));
    for (int g = 0; g < G; g++) {
        slot[g] = s->kept + g * n;
        if (all) count[g] = (int32_t)n;
        for (int32_t i = 0; all && i < n; i++) s->kept[g * n + i] = i;
    }
    return RK_OK;
}
