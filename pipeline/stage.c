/* stage.c - see stage.h. Prefill, decode and compression; measurement is in stage_measure.c. */
#include "pipeline/stage.h"

#include <string.h>

#include "base/mem.h"
#include "pipeline/stage_internal.h"

rk_kv    *rk_stage_kv(rk_stage *s) { return s->kv; }
rk_model *rk_stage_model(rk_stage *s) { return s->model; }
int64_t   rk_stage_weight_bytes(const rk_stage *s) { return rk_model_weight_bytes(s->model); }

rk_status rk_stage_dev(rk_stage *s, int64_t bytes, const char *what, void *slot) {
    void *p;
    RK_TRY(s->be->ops->alloc(s->be, bytes, what, &p));
    memcpy(slot, &p, sizeof p);
    return RK_OK;
}

rk_status rk_stage_grow(rk_stage *s, int64_t bytes, const char *what, void *slot, int64_t *have) {
    if (bytes <= *have) return RK_OK;
    void *old;
    memcpy(&old, slot, sizeof old);
    s->be->ops->release(s->be, old);
    old = NULL;
    memcpy(slot, &old, sizeof old);
    *have = 0;
    RK_TRY(rk_stage_dev(s, bytes, what, slot));
    *have = bytes;
    return RK_OK;
}

static rk_status open_buffers(rk_stage *s) {
    const rk_config *c = &s->cfg;
    int64_t          rows = s->spec.max_rows, f = (int64_t)sizeof(float);
    RK_TRY(rk_mem_alloc_to(rows, sizeof(int32_t), "positions", &s->pos));
    RK_TRY(rk_mem_alloc_to(rows, sizeof(int32_t), "row index", &s->index));
    RK_TRY(rk_mem_alloc_to(rows, sizeof(rk_seq_rows), "row sets", &s->sets));
    RK_TRY(rk_mem_alloc_to(2 * rows * c->n_kv_heads, sizeof(rk_span), "spans", &s->spans));
    RK_TRY(rk_mem_alloc_to(s->spec.max_sequences, sizeof(rk_stage_seq), "sequences", &s->seq));
    for (int i = 0; i < s->spec.max_sequences; i++)
        RK_TRY(rk_mem_alloc_to(c->n_layers, sizeof(int32_t), "budgets", &s->seq[i].budget));
    RK_TRY(rk_stage_open_selection(s));
    if (!s->spec.last) return RK_OK;
    s->logit_rows = s->spec.max_response > RK_STAGE_LOGIT_ROWS ? s->spec.max_response : RK_STAGE_LOGIT_ROWS;
    RK_TRY(rk_stage_dev(s, s->logit_rows * c->n_vocab * f, "logits", &s->logits));
    RK_TRY(rk_stage_dev(s, s->logit_rows * c->d_model * f, "head rows", &s->head_rows));
    return rk_mem_alloc_to(s->logit_rows * c->n_vocab, f, "logits", &s->logits_host);
}

rk_status rk_stage_open(rk_backend *be, rk_weights *w, const rk_stage_spec *spec, rk_stage **out) {
    void *p;
    *out = NULL;
    RK_TRY(rk_mem_alloc(1, sizeof(rk_stage), "stage", &p));
    rk_stage *s = p;
    rk_status st;
    s->be = be;
    s->cfg = *rk_weights_config(w);
    s->spec = *spec;
    s->scored_seq = -1;
    if (s->spec.max_rows < RK_STAGE_LOGIT_ROWS) s->spec.max_rows = RK_STAGE_LOGIT_ROWS;
    rk_model_spec ms = {.layer_begin = spec->layer_begin,
                        .layer_end = spec->layer_end,
                        .has_embed = spec->first,
                        .has_head = spec->last,
                        .native = spec->native,
                        .max_rows = s->spec.max_rows,
                        .table_positions = spec->max_positions,
                        .on_loaded = spec->on_loaded,
                        .arg = spec->arg};
    RK_TRY_OUT(st, rk_model_open(be, w, &ms, &s->model));
    RK_TRY_OUT(st, rk_kv_open(be, &s->cfg, spec->layer_begin, spec->layer_end, spec->max_sequences,
                              &s->kv));
    RK_TRY_OUT(st, open_buffers(s));
    *out = s;
    return RK_OK;
out:
    rk_stage_close(s);
    return st;
}

void rk_stage_close(rk_stage *s) {
    if (!s) return;
    void *dev[] = {s->logits, s->head_rows, s->ref_logits, s->score_rows, s->tail,
                   s->own,    s->before,    s->q_rows};
    for (size_t i = 0; i < sizeof dev / sizeof *dev; i++) s->be->ops->release(s->be, dev[i]);
    for (int i = 0; s->seq && i < s->spec.max_sequences; i++) rk_mem_free(s->seq[i].budget);
    void *host[] = {s->pos, s->index, s->sets, s->spans, s->seq, s->logits_host, s->local_host};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) rk_mem_free(host[i]);
    rk_stage_close_selection(s);
    rk_kv_close(s->kv);
    rk_model_close(s->model);
    rk_mem_free(s);
}

/* A layer's budget in a record; what is not named there, or not below n, is kept whole. */
static int32_t budget_of(const rk_record *r, int layer, int64_t n) {
    return layer >= r->head.n_budget || r->budget[layer] >= n ? (int32_t)n : r->budget[layer];
}

/* A sequence begins: remember its plan, take its pages. */
static rk_status begin_sequence(rk_stage *s, const rk_record *r, const rk_record_set *set) {
    rk_stage_seq *q = &s->seq[set->seq];
    q->n_prompt = set->n_prompt;
    q->n_new = set->n_new;
    rk_hash_init(&q->hash);
    int64_t capacity[4096];
    RK_ASSERT(s->cfg.n_layers <= 4096);
    for (int l = 0; l < s->cfg.n_layers; l++) {
        q->budget[l] = budget_of(r, l, set->n_prompt);
        bool all = q->budget[l] == set->n_prompt;
        int i = l - s->spec.layer_begin;
        if (i >= 0 && l < s->spec.layer_end) capacity[i] = set->n_prompt + (all ? set->n_new : 0);
    }
    return rk_kv_begin(s->kv, set->seq, capacity);
}

static rk_status run_layers(rk_stage *s, const rk_record *r, float *x) {
    int          G = s->cfg.n_kv_heads, n = r->head.n_rows;
    rk_rows_kind kind = (rk_rows_kind)r->head.rows_kind;
    for (int k = 0; k < r->head.n_sets; k++) {
        const rk_record_set *set = &r->sets[k];
        for (int i = 0; i < set->n_rows; i++) s->pos[set->row0 + i] = (int32_t)(set->pos0 + i);
    }
    for (int l = s->spec.layer_begin; l < s->spec.layer_end; l++) {
        for (int k = 0; k < r->head.n_sets; k++) {
            const rk_record_set *set = &r->sets[k];
            rk_span             *sp = s->spans + (int64_t)k * G;
            RK_TRY(rk_kv_extend(s->kv, l, set->seq, set->pos0, set->n_rows));
            s->sets[k] = (rk_seq_rows){.row0 = set->row0,
                                       .n_rows = set->n_rows,
                                       .n_spans = rk_kv_chain(s->kv, l, set->seq, sp),
                                       .spans = sp};
        }
        RK_TRY(rk_model_qkv(s->model, l, x, n, kind, s->pos, s->sets, r->head.n_sets));
        for (int k = 0; k < r->head.n_sets; k++) RK_TRY(rk_stage_observe(s, l, &r->sets[k], s->sets[k].spans));
        RK_TRY(rk_model_finish(s->model, l, x, n, kind, s->sets, r->head.n_sets));
        if (s->spec.poll) s->spec.poll(s->spec.arg);
    }
    return RK_OK;
}

rk_status rk_stage_logits(rk_stage *s, const float *x, const int32_t *rows, int n, rk_rows_kind kind,
                          float *logits) {
    RK_ASSERT(n <= s->logit_rows);
    RK_TRY(s->be->ops->take_rows(s->be, x, rows, n, s->cfg.d_model, s->head_rows));
    return rk_model_head(s->model, s->head_rows, n, kind, logits);
}

static rk_status draw_tokens(rk_stage *s, const rk_record *r, const float *x, rk_stage_drawn *out) {
    int64_t V = s->cfg.n_vocab;
    for (int at = 0; at < r->head.n_draws; at += RK_STAGE_LOGIT_ROWS) {
        int n = r->head.n_draws - at < RK_STAGE_LOGIT_ROWS ? r->head.n_draws - at : RK_STAGE_LOGIT_ROWS;
        for (int i = 0; i < n; i++) s->index[i] = r->draws[at + i].row;
        RK_TRY(rk_stage_logits(s, x, s->index, n, (rk_rows_kind)r->head.rows_kind, s->logits));
        RK_TRY(s->be->ops->download(s->be, s->logits_host, s->logits, n * V * (int64_t)sizeof(float)));
        for (int i = 0; i < n; i++) {
            const rk_record_draw *d = &r->draws[at + i];
            const float          *row = s->logits_host + i * V;
            rk_stage_seq         *q = &s->seq[d->seq];
            rk_hash_add(&q->hash, row, (size_t)V * sizeof(float));
            memset(&out[at + i], 0, sizeof out[at + i]);
            out[at + i].hash = rk_hash_digest(&q->hash);
            RK_TRY(rk_sampler_draw(&d->sampler, row, d->n_usable, d->stream, d->step,
                                   &out[at + i].token));
        }
    }
    return RK_OK;
}

static rk_status want_logits(rk_stage *s, const rk_record *r, const float *x, float *out) {
    int64_t V = s->cfg.n_vocab;
    for (int at = 0; at < r->head.n_want; at += RK_STAGE_LOGIT_ROWS) {
        int n = r->head.n_want - at < RK_STAGE_LOGIT_ROWS ? r->head.n_want - at : RK_STAGE_LOGIT_ROWS;
        RK_TRY(rk_stage_logits(s, x, r->want + at, n, (rk_rows_kind)r->head.rows_kind, s->logits));
        RK_TRY(s->be->ops->download(s->be, out + at * V, s->logits, n * V * (int64_t)sizeof(float)));
    }
    return RK_OK;
}

static rk_status run_rows(rk_stage *s, const rk_record *r, float *x, void *back) {
    for (int k = 0; r->head.kind == RK_SLOT_PREFILL && k < r->head.n_sets; k++)
        if (r->sets[k].pos0 == 0) RK_TRY(begin_sequence(s, r, &r->sets[k]));
    if (s->spec.first) RK_TRY(rk_model_embed(s->model, r->tokens, r->head.n_rows, x));
    RK_TRY(run_layers(s, r, x));
    if (s->spec.last && r->head.n_draws) RK_TRY(draw_tokens(s, r, x, back));
    if (s->spec.last && r->head.n_want) RK_TRY(want_logits(s, r, x, back));
    return s->be->ops->sync(s->be);
}

/* A layer of the sequence `from` under its budget, into `to` (which may be `from`). */
static rk_status compress_layer(rk_stage *s, const rk_select_params *p, int layer, int from, int to) {
    const rk_stage_seq *q = &s->seq[to];
    const int32_t      *slot[RK_STAGE_HEADS];
    int32_t             count[RK_STAGE_HEADS];
    if (q->budget[layer] >= q->n_prompt && from == to) return RK_OK;
    RK_TRY(rk_stage_select(s, p, layer, from, q->budget[layer], slot, count));
    return rk_kv_compact(s->kv, layer, from, to, slot, count, q->n_new);
}

/* A fork of a prefilled sequence: its plan; the layers come one by one. */
static rk_status begin_fork(rk_stage *s, const rk_record *r) {
    const rk_record_set *set = &r->sets[0];
    const rk_stage_seq  *from = &s->seq[set->seq];
    rk_stage_seq        *to = &s->seq[set->target];
    to->n_prompt = from->n_prompt;
    to->n_new = set->n_new;
    to->hash = from->hash;
    for (int l = 0; l < s->cfg.n_layers; l++) to->budget[l] = budget_of(r, l, to->n_prompt);
    return rk_kv_begin_empty(s->kv, set->target);
}

static rk_status compress(rk_stage *s, const rk_record *r, rk_stage_stored *stat) {
    int from = r->sets[0].seq, seq = r->sets[0].target, G = s->cfg.n_kv_heads;
    if (!rk_kv_in_use(s->kv, from)) return RK_FAIL(RK_E_BUG, "compress of free sequence %d", from);
    if (seq != from) RK_TRY(begin_fork(s, r));
    for (int l = s->spec.layer_begin; l < s->spec.layer_end; l++) {
        RK_TRY(compress_layer(s, &r->head.select, l, from, seq));
        if (s->spec.poll) s->spec.poll(s->spec.arg);
    }
    RK_TRY(s->be->ops->sync(s->be));
    stat->kv_bytes = rk_kv_stored_bytes(s->kv, seq);
    for (int l = 0; l < s->cfg.n_layers; l++) {
        int64_t sum = 0;
        if (l >= s->spec.layer_begin && l < s->spec.layer_end)
            for (int g = 0; g < G; g++) sum += rk_kv_stored(s->kv, l, seq, g);
        stat->stored[l] = (int32_t)(sum / G);
    }
    return RK_OK;
}

rk_status rk_stage_run(rk_stage *s, const rk_record *r, float *x, void *back, void *stat) {
    switch ((rk_slot_kind)r->head.kind) {
    case RK_SLOT_PREFILL:
    case RK_SLOT_DECODE: return run_rows(s, r, x, back);
    case RK_SLOT_COMPRESS: return compress(s, r, stat);
    case RK_SLOT_MEASURE: return rk_stage_measure(s, r, x, stat);
    case RK_SLOT_ATTEND: return rk_stage_attention(s, r->sets[0].seq, stat);
    case RK_SLOT_FREE: rk_kv_drop(s->kv, r->sets[0].seq); return RK_OK;
    case RK_SLOT_STOP: return RK_OK;
    }
    return RK_FAIL(RK_E_BUG, "slot kind %d", r->head.kind);
}
