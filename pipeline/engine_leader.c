/* engine_leader.c - what rank 0 submits: records made, slots run, results taken. */
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "pipeline/engine_internal.h"

static rk_status open_pending(rk_engine *e, int n_parts, int64_t part_bytes, rk_pending **out) {
    void      *p;
    rk_status  st;
    *out = NULL;
    RK_TRY(rk_mem_alloc(1, sizeof(rk_pending), "pending result", &p));
    rk_pending *pend = p;
    pend->step = e->n_slots;
    pend->n_parts = n_parts;
    pend->part_bytes = part_bytes;
    RK_TRY_OUT(st, rk_mem_alloc(n_parts * part_bytes, 1, "pending result", &p));
    pend->data = p;
    RK_TRY_OUT(st, rk_mem_alloc(n_parts, sizeof(rk_link_op), "pending result", &p));
    pend->op = p;
    pend->next = e->pending;
    e->pending = pend;
    *out = pend;
    return RK_OK;
out:
    rk_mem_free(pend->data);
    rk_mem_free(pend);
    return st;
}

static void drop_pending(rk_engine *e, rk_pending *pend) {
    /* At home: the end of the run has nothing to wait for. */
    e->slots[pend->step].back_bytes = e->slots[pend->step].stat_bytes = 0;
    for (rk_pending **at = &e->pending; *at; at = &(*at)->next)
        if (*at == pend) {
            *at = pend->next;
            break;
        }
    rk_mem_free(pend->data);
    rk_mem_free(pend->op);
    rk_mem_free(pend);
}

static rk_status take(rk_engine *e, rk_ticket ticket, rk_pending **out) {
    for (rk_pending *p = e->pending; p; p = p->next)
        if (p->step == ticket) {
            for (int i = 0; i < p->n_parts; i++)
                RK_TRY(rk_link_wait(e->link, &p->op[i], "a result"));
            *out = p;
            return RK_OK;
        }
    return RK_FAIL(RK_E_BUG, "slot %d has no result to take", ticket);
}

/* Encode and run one slot; ticket -1 where it returns nothing. */
static rk_status submit(rk_engine *e, rk_record *r, int n_parts, int64_t part_bytes,
                        rk_ticket *ticket) {
    rk_pending *pend = NULL;
    int32_t    *layers = NULL;
    void       *p;
    RK_ASSERT(e->me == 0 && !e->stopped);
    r->head.step = e->n_slots;
    bool all = r->head.kind == RK_SLOT_COMPRESS || r->head.kind == RK_SLOT_MEASURE ||
               r->head.kind == RK_SLOT_ATTEND || r->head.kind == RK_SLOT_STOP; /* every stage returns a part */
    r->head.back_bytes = all ? 0 : part_bytes;
    r->head.stat_bytes = all ? part_bytes : 0;
    if (part_bytes) RK_TRY(open_pending(e, n_parts, part_bytes, &pend));
    if (ticket) *ticket = pend ? pend->step : -1;
    rk_slot slot = {.kind = (rk_slot_kind)r->head.kind,
                    .n_rows = r->head.n_rows,
                    .n_forks = r->head.n_forks,
                    .back_bytes = r->head.back_bytes,
                    .stat_bytes = r->head.stat_bytes,
                    .after = -1};
    if (slot.n_forks) {
        RK_TRY(rk_mem_alloc(slot.n_forks, sizeof(int32_t), "fork layers", &p));
        layers = p;
        for (int i = 0; i < slot.n_forks; i++) layers[i] = r->forks[i].layer;
        slot.fork_layer = layers;
    }
    rk_status st = rk_engine_run_slot(e, &slot, r, pend);
    rk_mem_free(layers);
    return st;
}

static rk_status check_seq(const rk_engine *e, int seq, bool live) {
    if (seq < 0 || seq >= e->cfg.max_sequences)
        return RK_FAIL(RK_E_BUG, "sequence %d of %d", seq, e->cfg.max_sequences);
    if ((e->n_prompt[seq] > 0) != live)
        return RK_FAIL(RK_E_BUG, "sequence %d is %s", seq, live ? "free" : "in use");
    return RK_OK;
}

static rk_record_draw wire_draw(const rk_draw *d, int row) {
    return (rk_record_draw){.row = row,
                            .seq = d->seq,
                            .n_usable = d->n_usable,
                            .sampler = d->sampler,
                            .stream = d->stream,
                            .step = d->step};
}

static rk_status check_lengths(const rk_engine *e, int seq, int64_t n, int64_t n_new) {
    RK_TRY(check_seq(e, seq, false));
    if (n < 1 || n > e->cfg.max_prompt)
        return RK_FAIL(RK_E_BUG, "prompt of %lld tokens; the engine was opened for 1 to %lld",
                       (long long)n, (long long)e->cfg.max_prompt);
    if (n_new < 0 || n_new > e->cfg.max_new)
        return RK_FAIL(RK_E_BUG, "%lld new tokens; the engine was opened for %lld", (long long)n_new,
                       (long long)e->cfg.max_new);
    return RK_OK;
}

rk_status rk_engine_prefill(rk_engine *e, int seq, const int32_t *tokens, int64_t n, int64_t n_new,
                            const int32_t *budget, const rk_draw *draw, rk_ticket *ticket) {
    int64_t chunk = e->cfg.chunk;
    RK_TRY(check_lengths(e, seq, n, n_new));
    if (ticket) *ticket = -1;
    for (int64_t at = 0; at < n; at += chunk) {
        int            m = (int)(n - at < chunk ? n - at : chunk);
        bool           draws = draw && at + m == n;
        rk_record_set  set = {.seq = seq, .n_rows = m, .pos0 = at, .n_prompt = n, .n_new = n_new};
        rk_record_draw wd = draws ? wire_draw(draw, m - 1) : (rk_record_draw){0};
        rk_record      r = {.head = {.kind = RK_SLOT_PREFILL,
                                     .rows_kind = RK_ROWS_PLAIN,
                                     .n_rows = m,
                                     .n_sets = 1,
                                     .n_draws = draws,
                                     .n_budget = budget ? rk_engine_model(e)->n_layers : 0},
                            .sets = &set,
                            .draws = &wd,
                            .tokens = tokens + at,
                            .budget = budget};
        RK_TRY(submit(e, &r, 1, draws ? (int64_t)sizeof(rk_stage_drawn) : 0, draws ? ticket : NULL));
    }
    e->n_prompt[seq] = n;
    e->n_seen[seq] = n;
    return RK_OK;
}

static int64_t stored_bytes(const rk_engine *e) {
    int64_t L = rk_engine_model(e)->n_layers;
    return (int64_t)sizeof(rk_stage_stored) + (L * (int64_t)sizeof(int32_t) + 7) / 8 * 8;
}

rk_status rk_engine_compress_post(rk_engine *e, int seq, rk_ticket *ticket) {
    rk_record_set set = {.seq = seq, .target = seq};
    rk_record     r = {.head = {.kind = RK_SLOT_COMPRESS, .n_sets = 1, .select = e->cfg.select},
                       .sets = &set};
    RK_TRY(check_seq(e, seq, true));
    return submit(e, &r, e->P, stored_bytes(e), ticket);
}

rk_status rk_engine_fork(rk_engine *e, int from, int to, const rk_select_params *select,
                         const int32_t *budget, int64_t n_new, int32_t *stored, int64_t *kv_bytes) {
    rk_ticket     t;
    rk_record_set set = {.seq = from, .target = to, .n_new = n_new};
    rk_record     r = {.head = {.kind = RK_SLOT_COMPRESS,
                                .n_sets = 1,
                                .n_budget = budget ? rk_engine_model(e)->n_layers : 0,
                                .select = *select},
                       .sets = &set,
                       .budget = budget};
    RK_TRY(check_seq(e, from, true));
    RK_TRY(check_seq(e, to, false));
    RK_TRY(rk_select_check(select));
    RK_TRY(submit(e, &r, e->P, stored_bytes(e), &t));
    e->n_prompt[to] = e->n_prompt[from];
    e->n_seen[to] = e->n_seen[from];
    return rk_engine_compress_take(e, t, stored, kv_bytes);
}

rk_status rk_engine_attention(rk_engine *e, int seq, double *entropy, double *variance) {
    int           L = rk_engine_model(e)->n_layers;
    int64_t       bytes = rk_stage_attention_bytes(L);
    rk_record_set set = {.seq = seq};
    rk_record     r = {.head = {.kind = RK_SLOT_ATTEND, .n_sets = 1}, .sets = &set};
    rk_ticket     t;
    rk_pending   *p;
    RK_TRY(check_seq(e, seq, true));
    RK_TRY(submit(e, &r, e->P, bytes, &t));
    RK_TRY(take(e, t, &p));
    for (int l = 0; l < L; l++) {
        entropy[l] = variance[l] = 0;
        for (int k = 0; k < e->P; k++) {
            const double *x = (const void *)(p->data + k * bytes);
            entropy[l] += x[l];
            variance[l] += x[L + l];
        }
    }
    drop_pending(e, p);
    return RK_OK;
}

rk_status rk_engine_compress_take(rk_engine *e, rk_ticket ticket, int32_t *stored,
                                  int64_t *kv_bytes) {
    int         L = rk_engine_model(e)->n_layers;
    rk_pending *p;
    RK_TRY(take(e, ticket, &p));
    if (kv_bytes) *kv_bytes = 0;
    if (stored) memset(stored, 0, (size_t)L * sizeof *stored);
    for (int i = 0; i < e->P; i++) {
        const rk_stage_stored *s = (const void *)(p->data + i * stored_bytes(e));
        if (kv_bytes) *kv_bytes += s->kv_bytes;
        for (int l = 0; stored && l < L; l++) stored[l] += s->stored[l];
    }
    drop_pending(e, p);
    return RK_OK;
}

rk_status rk_engine_compress(rk_engine *e, int seq, int32_t *stored, int64_t *kv_bytes) {
    rk_ticket t;
    RK_TRY(rk_engine_compress_post(e, seq, &t));
    return rk_engine_compress_take(e, t, stored, kv_bytes);
}

rk_status rk_engine_decode(rk_engine *e, const rk_draw *draws, int n, rk_ticket *ticket) {
    void      *buf;
    int64_t    each = sizeof(rk_record_set) + sizeof(rk_record_draw) + sizeof(int64_t);
    rk_status  st;
    if (n < 1 || n > e->cfg.max_sequences) return RK_FAIL(RK_E_BUG, "decode of %d sequences", n);
    RK_TRY(rk_mem_alloc(n, each, "decode record", &buf));
    rk_record_set  *sets = buf;
    rk_record_draw *wd = (void *)(sets + n);
    int32_t        *tokens = (void *)(wd + n);
    for (int i = 0; i < n; i++) {
        int seq = draws[i].seq;
        RK_TRY_OUT(st, check_seq(e, seq, true));
        sets[i] = (rk_record_set){.seq = seq, .row0 = i, .n_rows = 1, .pos0 = e->n_seen[seq]};
        wd[i] = wire_draw(&draws[i], i);
        tokens[i] = draws[i].token;
    }
    rk_record r = {.head = {.kind = RK_SLOT_DECODE,
                            .rows_kind = RK_ROWS_DECODE,
                            .n_rows = n,
                            .n_sets = n,
                            .n_draws = n},
                   .sets = sets,
                   .draws = wd,
                   .tokens = tokens};
    RK_TRY_OUT(st, submit(e, &r, 1, n * (int64_t)sizeof(rk_stage_drawn), ticket));
    for (int i = 0; i < n; i++) e->n_seen[draws[i].seq]++;
out:
    rk_mem_free(buf);
    return st;
}

rk_status rk_engine_result(rk_engine *e, rk_ticket ticket, rk_drawn *out) {
    rk_pending *p;
    RK_TRY(take(e, ticket, &p));
    const rk_stage_drawn *d = (const void *)p->data;
    int                   n = (int)(p->part_bytes / (int64_t)sizeof *d);
    for (int i = 0; i < n; i++) out[i] = (rk_drawn){.token = d[i].token, .logits_hash = d[i].hash};
    drop_pending(e, p);
    return RK_OK;
}

/* One slot of variants; every stage returns what it knows of each, the rest 0. */
static rk_status measure_wave(rk_engine *e, rk_record *r, const rk_variant *variants, int n,
                              rk_measured *out, rk_measured *reference, uint64_t *hash) {
    void       *buf;
    rk_status   st;
    rk_ticket   t;
    rk_pending *p;
    int64_t     bytes = rk_stage_measured_bytes(n);
    RK_TRY(rk_mem_alloc(n + 1, sizeof(rk_record_fork), "forks", &buf));
    rk_record_fork *f = buf;
    for (int i = 0; i < n; i++)
        f[i] = (rk_record_fork){.kind = (int32_t)variants[i].kind,
                                .layer = variants[i].layer,
                                .sample = variants[i].sample,
                                .draw = variants[i].draw,
                                .epsilon = variants[i].epsilon,
                                .budget = variants[i].budget,
                                .seq = variants[i].seq};
    r->head.n_forks = n;
    r->forks = f;
    RK_TRY_OUT(st, submit(e, r, e->P, bytes, &t));
    RK_TRY_OUT(st, take(e, t, &p));
    memset(out, 0, (size_t)n * sizeof *out);
    for (int k = 0; k < e->P; k++) {
        const rk_stage_measured *m = (const void *)(p->data + k * bytes);
        for (int i = 0; i < n; i++) {
            out[i].kl += m->variant[i].kl;
            out[i].agreement += m->variant[i].agreement;
            out[i].nll += m->variant[i].nll;
            out[i].local += m->variant[i].local;
        }
        if (k == e->P - 1) *reference = m->reference, *hash = m->ref_hash;
    }
    drop_pending(e, p);
out:
    rk_mem_free(buf);
    return st;
}

static rk_status check_variants(const rk_engine *e, int seq, const rk_variant *v, int n) {
    for (int i = 0; i < n; i++) {
        if (v[i].layer < (i ? v[i - 1].layer : 0) || v[i].layer >= rk_engine_model(e)->n_layers)
            return RK_FAIL(RK_E_BUG, "variant %d of layer %d is out of order", i, v[i].layer);
        if (v[i].kind != RK_VARIANT_SEQUENCE) continue;
        RK_TRY(check_seq(e, v[i].seq, true));
        if (v[i].layer != 0 || e->n_seen[v[i].seq] != e->n_seen[seq])
            return RK_FAIL(RK_E_BUG, "variant %d: sequence %d is not a fork of %d", i, v[i].seq, seq);
    }
    return RK_OK;
}

rk_status rk_engine_measure(rk_engine *e, int seq, const int32_t *response, int T, uint64_t seed,
                            const rk_variant *variants, int n, rk_measured *out,
                            rk_measured *reference, uint64_t *ref_hash) {
    RK_TRY(check_seq(e, seq, true));
    int64_t per_wave = T > 0 ? e->cfg.row_cap / T - 1 : 0;
    if (T < 1 || T > e->cfg.max_response || per_wave < 1)
        return RK_FAIL(RK_E_BUG, "measurement of %d response rows; the engine was opened for %lld rows "
                       "of at most %lld", T, (long long)e->cfg.row_cap,
                       (long long)e->cfg.max_response);
    RK_TRY(check_variants(e, seq, variants, n));
    for (int at = 0; at < n || at == 0; at += (int)per_wave) {
        int           m = n - at < per_wave ? n - at : (int)per_wave;
        uint64_t      hash = 0;
        rk_measured   ref;
        rk_record_set set = {.seq = seq, .n_rows = T, .pos0 = e->n_seen[seq]};
        rk_record     r = {.head = {.kind = RK_SLOT_MEASURE,
                                    .rows_kind = RK_ROWS_EXACT,
                                    .n_rows = T,
                                    .n_sets = 1,
                                    .seed = seed,
                                    .select = e->cfg.select},
                           .sets = &set,
                           .tokens = response};
        RK_TRY(measure_wave(e, &r, variants + at, m, out + at, &ref, &hash));
        if (reference) *reference = ref; /* the same in every wave */
        if (ref_hash) *ref_hash = hash;
    }
    return RK_OK;
}

rk_status rk_engine_logits(rk_engine *e, int seq, const int32_t *tokens, int64_t n,
                           const int32_t *budget, int64_t n_new, const int32_t *want, int n_want,
                           float *logits) {
    int64_t chunk = e->cfg.chunk, V = rk_engine_model(e)->n_vocab;
    RK_ASSERT(seq >= 0 && seq < e->cfg.max_sequences);
    bool fresh = e->n_prompt[seq] == 0;
    if (fresh) RK_TRY(check_lengths(e, seq, n, n_new));
    void     *buf;
    rk_status st = RK_OK;
    RK_TRY(rk_mem_alloc(chunk, sizeof(int32_t), "rows wanted", &buf));
    int32_t *rows = buf;
    for (int64_t at = 0, w = 0; at < n; at += chunk) {
        int m = (int)(n - at < chunk ? n - at : chunk), k = 0;
        for (; w + k < n_want && want[w + k] < at + m; k++) rows[k] = (int32_t)(want[w + k] - at);
        rk_record_set set = {.seq = seq, .n_rows = m, .pos0 = e->n_seen[seq] + at, .n_prompt = n, .n_new = n_new};
        rk_record     r = {.head = {.kind = RK_SLOT_PREFILL,
                                    .rows_kind = fresh ? RK_ROWS_PLAIN : RK_ROWS_DECODE,
                                    .n_rows = m,
                                    .n_sets = 1,
                                    .n_want = k,
                                    .n_budget = fresh && budget ? rk_engine_model(e)->n_layers : 0},
                           .sets = &set,
                           .tokens = tokens + at,
                           .want = rows,
                           .budget = budget};
        rk_ticket   t;
        rk_pending *p;
        int64_t     bytes = k * V * (int64_t)sizeof(float);
        RK_TRY_OUT(st, submit(e, &r, 1, bytes, &t));
        if (k) {
            RK_TRY_OUT(st, take(e, t, &p));
            memcpy(logits + w * V, p->data, (size_t)bytes);
            drop_pending(e, p);
        }
        w += k;
    }
    if (fresh) e->n_prompt[seq] = n;
    e->n_seen[seq] += n;
out:
    rk_mem_free(buf);
    return st;
}

rk_status rk_engine_free(rk_engine *e, int seq) {
    rk_record_set set = {.seq = seq};
    rk_record     r = {.head = {.kind = RK_SLOT_FREE, .n_sets = 1}, .sets = &set};
    RK_TRY(check_seq(e, seq, true));
    RK_TRY(submit(e, &r, 1, 0, NULL));
    e->n_prompt[seq] = e->n_seen[seq] = 0;
    return RK_OK;
}

rk_status rk_engine_stop(rk_engine *e) {
    rk_record   r = {.head = {.kind = RK_SLOT_STOP}};
    rk_ticket   t = -1;
    rk_pending *p;
    RK_TRY(submit(e, &r, e->P, (int64_t)sizeof(rk_stage_stats), &t));
    RK_TRY(take(e, t, &p));
    memcpy(e->stats, p->data, (size_t)e->P * sizeof *e->stats);
    drop_pending(e, p);
    e->stopped = true;
    return RK_OK;
}
