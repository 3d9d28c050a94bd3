/* engine.c - opening, memory check, and the driver that executes a stage's op lists. */
#include "pipeline/engine.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "pipeline/engine_internal.h"

static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static void memory_of(const rk_engine *e, int stage, rk_plan_memory *m) {
    rk_engine_memory_of(e->weights, &e->cfg, e->P, e->begin, stage, m);
}

static void print_memory(const rk_engine *e) {
    char a[32], b[32], c[32], d[32], t[32];
    for (int p = 0; p < e->P; p++) {
        rk_plan_memory m;
        memory_of(e, p, &m);
        RK_LOG(RK_LOG_INFO, "plan",
               "stage %d: layers %d-%d, weights %s, cache %s (%s after compression), buffers %s, "
               "total %s", p, e->begin[p], e->begin[p + 1] - 1, rk_mem_human(m.weights, a),
               rk_mem_human(m.kv_peak, b), rk_mem_human(m.kv_after, c), rk_mem_human(m.buffers, d),
               rk_mem_human(m.total, t));
    }
}

/* Refuse before any weight is read. The ranks of a node share its memory. */
static rk_status check_memory(const rk_engine *e) {
    rk_plan_memory m;
    memory_of(e, e->me, &m);
    int64_t have = rk_mem_available() / rk_comm_local_size(e->comm);
    char    a[32], b[32], c[32], d[32], t[32];
    if (m.total <= have) return RK_OK;
    return RK_FAIL(RK_E_MEM,
                   "stage %d (layers %d-%d) needs %s: weights %s, cache %s, buffers %s; %s is free for "
                   "it on its node. Use more ranks, a shorter context, or fewer sequences at once",
                   e->me, e->begin[e->me], e->begin[e->me + 1] - 1, rk_mem_human(m.total, t),
                   rk_mem_human(m.weights, a), rk_mem_human(m.kv_peak, b), rk_mem_human(m.buffers, c),
                   rk_mem_human(have, d));
}

static bool owns_entry(const rk_engine *e, const rk_weights_entry *t) {
    if (t->role == RK_W_EMBED) return e->me == 0;
    if (t->layer < 0) return e->me == e->P - 1;
    return t->layer >= e->begin[e->me] && t->layer < e->begin[e->me + 1];
}

/* Ranks: collective. */
static rk_status hash_weights(rk_engine *e) {
    int   n = rk_weights_count(e->weights);
    void *p;
    RK_TRY(rk_mem_alloc(n, sizeof(uint64_t), "digests", &p));
    uint64_t *digest = p;
    for (int i = 0; i < n; i++)
        if (owns_entry(e, rk_weights_entry_at(e->weights, i)))
            digest[i] = rk_weights_entry_hash(e->weights, i);
    rk_status st = rk_comm_or_u64(e->comm, digest, n);
    if (st == RK_OK) e->weights_hash = rk_weights_combine(digest, n);
    rk_mem_free(p);
    return st;
}

static void on_loaded(void *arg, int64_t done, int64_t total) {
    rk_engine    *e = arg;
    const int64_t mib = 1 << 20;
    if (e->me != 0) return;
    if (!e->loading) rk_progress_begin(&e->load, "loading weights", "MiB", total / mib);
    e->loading = done < total;
    rk_progress_set(&e->load, done / mib);
    if (!e->loading) rk_progress_end(&e->load);
}

static void poll(void *arg) {
    rk_engine *e = arg;
    if (e->link) rk_link_poll(e->link);
}

static rk_status open_stage(rk_engine *e) {
    RK_TRY(rk_backend_open(e->cfg.backend, e->cfg.n_threads, e->cfg.isa, e->cfg.numerics, &e->be));
    const rk_config *c = rk_weights_config(e->weights);
    rk_stage_spec    s = {.layer_begin = e->begin[e->me],
                          .layer_end = e->begin[e->me + 1],
                          .first = e->me == 0,
                          .last = e->me == e->P - 1,
                          .max_sequences = e->cfg.max_sequences,
                          .max_rows = e->max_rows,
                          .max_prompt = e->cfg.max_prompt,
                          .max_positions = e->cfg.max_prompt + max64(e->cfg.max_new, e->cfg.max_response),
                          .max_response = e->cfg.max_response,
                          .native = e->cfg.native,
                          .observe = e->cfg.observe,
                          .poll = poll,
                          .on_loaded = e->cfg.quiet ? NULL : on_loaded,
                          .arg = e};
    RK_TRY(rk_stage_open(e->be, e->weights, &s, &e->stage));
    for (int i = 0; i < RK_ROW_BUFFERS; i++) {
        void *p;
        RK_TRY(e->be->ops->alloc(e->be, e->max_rows * c->d_model * (int64_t)sizeof(float), "rows", &p));
        e->x[i] = p;
    }
    for (int i = 0; i < RK_PLAN_BUFFERS; i++)
        RK_TRY(rk_mem_alloc_to(e->plan_bytes, 1, "plan records", &e->plan[i]));
    RK_TRY(rk_mem_alloc_to(e->cfg.max_sequences, sizeof(int64_t), "sequences", &e->n_prompt));
    RK_TRY(rk_mem_alloc_to(e->cfg.max_sequences, sizeof(int64_t), "sequences", &e->n_seen));
    e->cap_ops = rk_schedule_max_ops(&e->schedule) + 2 * e->P;
    RK_TRY(rk_mem_alloc_to(e->cap_ops, sizeof(rk_op), "schedule", &e->ops));
    return rk_mem_alloc_to(e->P, sizeof(rk_stage_stats), "statistics", &e->stats);
}

static rk_status prepare(rk_engine *e) {
    const rk_config *c = rk_weights_config(e->weights);
    RK_TRY(rk_select_check(&e->cfg.select));
    RK_TRY(rk_observation_add(&e->cfg.observe, &e->cfg.select));
    RK_TRY(rk_mem_alloc_to(e->P + 1, sizeof(int), "partition", &e->begin));
    RK_TRY(rk_engine_partition_of(c, &e->cfg, e->P, e->begin));
    e->max_rows = rk_engine_rows_of(&e->cfg);
    rk_record_caps caps = {.rows = (int)e->max_rows,
                           .sets = e->cfg.max_sequences,
                           .forks = (int)e->cfg.row_cap,
                           .layers = c->n_layers};
    e->plan_bytes = rk_record_bytes(&caps);
    e->schedule = (rk_schedule){.n_stages = e->P,
                                .n_groups = 1,
                                .n_layers = c->n_layers,
                                .d_model = c->d_model,
                                .begin = e->begin,
                                .plan_bytes = (int)e->plan_bytes};
    RK_TRY(rk_schedule_check(&e->schedule));
    if (e->me == 0 && !e->cfg.quiet) print_memory(e);
    return check_memory(e);
}

rk_status rk_engine_agree_numerics(rk_comm *c, const char **numerics) {
    uint64_t lacking = ~(uint64_t)rk_backend_native_numerics();
    RK_TRY(rk_comm_or_u64(c, &lacking, 1));
    *numerics = rk_backend_best_numerics((unsigned)~lacking);
    return RK_OK;
}

rk_status rk_engine_open(rk_comm *c, rk_weights *w, const rk_engine_config *cfg, rk_engine **out) {
    void *p;
    *out = NULL;
    RK_TRY(rk_mem_alloc(1, sizeof(rk_engine), "engine", &p));
    rk_engine *e = p;
    rk_status  st;
    e->comm = c;
    e->weights = w;
    e->cfg = *cfg;
    e->P = rk_comm_size(c);
    e->me = rk_comm_rank(c);
    RK_TRY_OUT(st, rk_comm_agree(c, prepare(e), NULL));
    if (!e->cfg.numerics) RK_TRY_OUT(st, rk_engine_agree_numerics(c, &e->cfg.numerics));
    if (cfg->hash_weights) RK_TRY_OUT(st, hash_weights(e));
    RK_TRY_OUT(st, rk_comm_agree(c, open_stage(e), NULL));
    e->cfg.budget = NULL; /* was for the estimate only */
    RK_TRY_OUT(st, rk_link_open(c, &e->link));
    *out = e;
    return RK_OK;
out:
    rk_engine_close(e);
    return st;
}

void rk_engine_close(rk_engine *e) {
    if (!e) return;
    rk_link_close(e->link);
    rk_stage_close(e->stage);
    for (int i = 0; i < RK_ROW_BUFFERS; i++) {
        if (e->be) e->be->ops->release(e->be, e->x[i]);
        rk_mem_free(e->back[i]);
    }
    rk_backend_close(e->be);
    for (int i = 0; i < RK_PLAN_BUFFERS; i++) rk_mem_free(e->plan[i]);
    for (int i = 0; i < e->n_slots; i++) {
        union {
            const int32_t *c;
            void          *p;
        } u = {.c = e->slots[i].fork_layer};
        rk_mem_free(u.p);
    }
    for (rk_pending *p = e->pending, *next; p; p = next) {
        next = p->next;
        rk_mem_free(p->data);
        rk_mem_free(p->op);
        rk_mem_free(p);
    }
    void *host[] = {e->slots, e->ops, e->begin, e->n_prompt, e->n_seen, e->stats};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) rk_mem_free(host[i]);
    rk_mem_free(e);
}

const rk_config      *rk_engine_model(const rk_engine *e) { return rk_weights_config(e->weights); }
rk_backend           *rk_engine_backend(rk_engine *e) { return e->be; }
bool                  rk_engine_native(const rk_engine *e) { return e->cfg.native; }
int                   rk_engine_stages(const rk_engine *e) { return e->P; }
int                   rk_engine_max_sequences(const rk_engine *e) { return e->cfg.max_sequences; }
const int            *rk_engine_partition(const rk_engine *e) { return e->begin; }
uint64_t              rk_engine_weights_hash(const rk_engine *e) { return e->weights_hash; }
rk_kv                *rk_engine_kv(rk_engine *e) { return rk_stage_kv(e->stage); }
const rk_stage_stats *rk_engine_stats(const rk_engine *e) { return e->stats; }

/* ---- the driver ---- */

static rk_status append_slot(rk_engine *e, const rk_slot *slot) {
    if (e->n_slots == e->cap_slots) {
        int   cap = e->cap_slots ? 2 * e->cap_slots : 256;
        void *p = e->slots;
        RK_TRY(rk_mem_resize(&p, cap, sizeof(rk_slot), "slots"));
        e->slots = p;
        e->cap_slots = cap;
    }
    rk_slot copy = *slot;
    copy.fork_layer = NULL;
    if (slot->n_forks) {
        void *p;
        RK_TRY(rk_mem_alloc(slot->n_forks, sizeof(int32_t), "fork layers", &p));
        memcpy(p, slot->fork_layer, (size_t)slot->n_forks * sizeof(int32_t));
        copy.fork_layer = p;
    }
    e->slots[e->n_slots++] = copy;
    return RK_OK;
}

static void fill_stats(rk_engine *e, rk_stage_stats *s) {
    const rk_link_stats *l = rk_link_stats_of(e->link);
    *s = (rk_stage_stats){.rank = e->me,
                          .layer_begin = e->begin[e->me],
                          .layer_end = e->begin[e->me + 1],
                          .compute_s = e->compute_s,
                          .wait_recv_s = l->wait_recv_s,
                          .wait_send_s = l->wait_send_s,
                          .weight_bytes = rk_stage_weight_bytes(e->stage),
                          .kv_peak_bytes = rk_kv_peak_bytes(rk_stage_kv(e->stage)),
                          .peak_bytes = rk_mem_peak(),
                          .bytes_sent = l->bytes_sent,
                          .bytes_read = rk_weights_bytes_read(e->weights)};
}

/* Where this rank's part of a slot's result is written: a send buffer, or the leader's own part. */
static rk_status result_buffer(rk_engine *e, int which, int64_t bytes, rk_pending *pend, void **out) {
    *out = NULL;
    if (bytes == 0) return RK_OK;
    if (e->me == 0) {
        RK_ASSERT(pend != NULL);
        *out = pend->data;
        return RK_OK;
    }
    int b = which % RK_ROW_BUFFERS;
    RK_TRY(rk_link_wait(e->link, &e->back_send[b], "the taking of a result"));
    if (bytes > e->back_cap[b]) {
        rk_mem_free(e->back[b]);
        e->back[b] = NULL;
        e->back_cap[b] = 0;
        RK_TRY(rk_mem_alloc_to(bytes, 1, "results", &e->back[b]));
        e->back_cap[b] = bytes;
    }
    *out = e->back[b];
    return RK_OK;
}

static rk_status run_stage(rk_engine *e, int which, const rk_record *r, rk_pending *pend) {
    const rk_slot *s = &e->slots[which];
    void          *back = NULL, *stat = NULL;
    if (e->me == e->P - 1) RK_TRY(result_buffer(e, which, s->back_bytes, pend, &back));
    if (s->stat_bytes) RK_TRY(result_buffer(e, which, s->stat_bytes, pend, &stat));
    double t = rk_now_s();
    if (s->kind == RK_SLOT_STOP && stat)
        fill_stats(e, stat);
    else
        RK_TRY(rk_stage_run(e->stage, r, e->x[which % RK_ROW_BUFFERS], back, stat));
    e->compute_s += rk_now_s() - t;
    return RK_OK;
}

static rk_status post_recv(rk_engine *e, const rk_op *op, rk_pending *pend) {
    int b;
    switch (op->channel) {
    case RK_CH_PLAN:
        b = op->slot % RK_PLAN_BUFFERS;
        /* Arrived already, or posted when the one before arrived. */
        if (op->slot < e->n_slots || e->plan_recv[b].n_requests) return RK_OK;
        return rk_link_recv(e->link, RK_CH_PLAN, op->peer, op->slot, e->plan[b], e->plan_bytes,
                            &e->plan_recv[b]);
    case RK_CH_ROWS:
        b = op->slot % RK_ROW_BUFFERS;
        return rk_link_recv(e->link, RK_CH_ROWS, op->peer, op->slot, e->x[b], op->bytes,
                            &e->rows_recv[b]);
    case RK_CH_BACK:
        RK_ASSERT(pend && pend->step == op->slot);
        b = pend->n_parts == 1 ? 0 : op->peer;
        return rk_link_recv(e->link, RK_CH_BACK, op->peer, op->slot,
                            pend->data + b * pend->part_bytes, op->bytes, &pend->op[b]);
    case RK_CHANNELS: break;
    }
    return RK_FAIL(RK_E_BUG, "schedule: receive on channel %d", op->channel);
}

static rk_status post_send(rk_engine *e, const rk_op *op) {
    int b;
    switch (op->channel) {
    case RK_CH_PLAN:
        b = op->slot % RK_PLAN_BUFFERS;
        return rk_link_send(e->link, RK_CH_PLAN, op->peer, op->slot, e->plan[b], e->plan_bytes,
                            &e->plan_send[b]);
    case RK_CH_ROWS:
        b = op->slot % RK_ROW_BUFFERS;
        return rk_link_send(e->link, RK_CH_ROWS, op->peer, op->slot, e->x[b], op->bytes,
                            &e->rows_send[b]);
    case RK_CH_BACK:
        b = op->slot % RK_ROW_BUFFERS;
        return rk_link_send(e->link, RK_CH_BACK, op->peer, op->slot, e->back[b], op->bytes,
                            &e->back_send[b]);
    case RK_CHANNELS: break;
    }
    return RK_FAIL(RK_E_BUG, "schedule: send on channel %d", op->channel);
}

static rk_status wait_back(rk_engine *e, int step) {
    for (rk_pending *p = e->pending; p; p = p->next)
        if (p->step == step)
            for (int i = 0; i < p->n_parts; i++)
                RK_TRY(rk_link_wait(e->link, &p->op[i], "a result"));
    return RK_OK;
}

static rk_status wait_for(rk_engine *e, const rk_op *op) {
    bool recv = op->kind == RK_OP_WAIT_RECV;
    switch (op->channel) {
    case RK_CH_PLAN:
        return rk_link_wait(e->link, recv ? &e->plan_recv[op->slot % RK_PLAN_BUFFERS]
                                          : &e->plan_send[op->slot % RK_PLAN_BUFFERS], "plan");
    case RK_CH_ROWS:
        return rk_link_wait(e->link, recv ? &e->rows_recv[op->slot % RK_ROW_BUFFERS]
                                          : &e->rows_send[op->slot % RK_ROW_BUFFERS], "rows");
    case RK_CH_BACK:
        if (recv) return wait_back(e, op->slot);
        return rk_link_wait(e->link, &e->back_send[op->slot % RK_ROW_BUFFERS], "a result");
    case RK_CHANNELS: break;
    }
    return RK_FAIL(RK_E_BUG, "schedule: wait on channel %d", op->channel);
}

static rk_status execute(rk_engine *e, int which, const rk_record *r, rk_pending *pend) {
    int  n = rk_schedule_ops(&e->schedule, e->me, e->slots, e->n_slots, which, e->ops, e->cap_ops);
    bool ran = e->slots[which].kind == RK_SLOT_STOP;
    RK_ASSERT(n <= e->cap_ops);
    if (ran) RK_TRY(run_stage(e, which, r, pend)); /* the statistics: no layers, no op */
    for (int i = 0; i < n; i++) {
        const rk_op *op = &e->ops[i];
        switch (op->kind) {
        case RK_OP_POST_RECV: RK_TRY(post_recv(e, op, pend)); break;
        case RK_OP_WAIT_RECV:
        case RK_OP_WAIT_SEND: RK_TRY(wait_for(e, op)); break;
        case RK_OP_POST_SEND: RK_TRY(post_send(e, op)); break;
        case RK_OP_RUN:
            RK_TRY(run_stage(e, which, r, pend));
            ran = true;
            break;
        }
    }
    return ran ? RK_OK : RK_FAIL(RK_E_BUG, "schedule: slot %d does not run on stage %d", which, e->me);
}

rk_status rk_engine_run_slot(rk_engine *e, const rk_slot *slot, const rk_record *r, rk_pending *pend) {
    int which = e->n_slots;
    RK_TRY(append_slot(e, slot));
    if (e->me == 0 && e->P > 1) {
        /* The send from this buffer was waited for by slot which - 2, before it sent its own. */
        RK_TRY(rk_record_write(r, e->plan[which % RK_PLAN_BUFFERS], e->plan_bytes));
    }
    return execute(e, which, r, pend);
}

rk_status rk_engine_serve(rk_engine *e) {
    RK_ASSERT(e->me != 0);
    for (;;) {
        int   step = e->n_slots, b = step % RK_PLAN_BUFFERS;
        rk_op next = {.kind = RK_OP_POST_RECV, .channel = RK_CH_PLAN, .peer = e->me - 1, .slot = step};
        RK_TRY(post_recv(e, &next, NULL));
        RK_TRY(rk_link_wait_idle(e->link, &e->plan_recv[b], "plan"));
        rk_record r;
        RK_TRY(rk_record_read(e->plan[b], e->plan_bytes, step, &r));
        if (r.head.kind != RK_SLOT_STOP) {
            next.slot = step + 1;
            RK_TRY(post_recv(e, &next, NULL));
        }
        rk_slot  slot = {.kind = (rk_slot_kind)r.head.kind,
                         .n_rows = r.head.n_rows,
                         .n_forks = r.head.n_forks,
                         .back_bytes = r.head.back_bytes,
                         .stat_bytes = r.head.stat_bytes,
                         .after = -1};
        int32_t *layers = NULL;
        if (slot.n_forks) {
            RK_TRY(rk_mem_alloc_to(slot.n_forks, sizeof(int32_t), "fork layers", &layers));
            for (int i = 0; i < slot.n_forks; i++) layers[i] = r.forks[i].layer;
            slot.fork_layer = layers;
        }
        rk_status st = rk_engine_run_slot(e, &slot, &r, NULL);
        rk_mem_free(layers);
        if (st != RK_OK) return rk_err_via(st, __FILE__, __LINE__, __func__);
        if (slot.kind == RK_SLOT_STOP) return RK_OK; /* its ops waited for all that was sent */
    }
}
