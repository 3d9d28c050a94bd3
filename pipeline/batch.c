/* batch.c - see batch.h. */
#include "pipeline/batch.h"

#include "base/log.h"
#include "base/mem.h"

/* A request that is alive: its sequence number is its place in the table. */
typedef struct live {
    int       index;        /* of the request; -1: none */
    rk_ticket first, stored; /* tickets of the first token (-1: comes from decode) and compression */
    double    start_s, first_s;
    int32_t   last;         /* newest token, the next row's input */
    bool      done;
} live;

typedef struct run {
    rk_engine              *e;
    const rk_batch_options *o;
    const rk_request       *req;   /* [n], or the one request of a sweep */
    bool                    sweep;
    uint64_t                stream; /* of a sweep */
    int                     base;   /* first sequence that answers: 1 in a sweep */
    rk_completion          *out;
    int                     n, next_done;
    bool                   *finished; /* [n] */
    live                   *live;     /* [max alive] */
    rk_draw                *draws;    /* [max alive] */
    rk_drawn               *drawn;
} run;

void rk_completion_free(rk_completion *c) {
    rk_mem_free(c->tokens);
    rk_mem_free(c->kv_tokens);
    *c = (rk_completion){0};
}

static const rk_request *request_of(const run *u, int index) {
    return &u->req[u->sweep ? 0 : index];
}

static rk_draw draw_of(const run *u, int seq) {
    const live       *v = &u->live[seq];
    const rk_request *q = request_of(u, v->index);
    return (rk_draw){.seq = seq,
                     .token = v->last,
                     .sampler = q->sampler,
                     .n_usable = u->o->n_usable,
                     .stream = u->sweep ? u->stream : (uint64_t)v->index,
                     .step = (uint64_t)u->out[v->index].n_new};
}

static rk_status finish(run *u, int seq, bool stopped) {
    live          *v = &u->live[seq];
    rk_completion *c = &u->out[v->index];
    c->stopped = stopped;
    c->decode_s = rk_now_s() - v->first_s;
    v->done = true;
    RK_TRY(rk_engine_free(u->e, seq));
    u->finished[v->index] = true;
    while (u->next_done < u->n && u->finished[u->next_done]) {
        if (u->o->on_done) RK_TRY(u->o->on_done(u->o->arg, u->next_done, &u->out[u->next_done]));
        u->next_done++;
    }
    return RK_OK;
}

static rk_status accept(run *u, int seq, const rk_drawn *d) {
    live             *v = &u->live[seq];
    const rk_request *q = request_of(u, v->index);
    rk_completion    *c = &u->out[v->index];
    if (c->n_new == 0) {
        v->first_s = rk_now_s();
        c->ttft_s = v->first_s - v->start_s;
    }
    c->tokens[c->n_new++] = d->token;
    c->logits_hash = d->logits_hash;
    v->last = d->token;
    bool stopped = false;
    for (int i = 0; i < q->n_stop; i++) stopped = stopped || q->stop[i] == d->token;
    if (u->o->on_token) {
        rk_status st = u->o->on_token(u->o->arg, v->index, d->token);
        if (st == RK_E_NO)
            stopped = true;
        else
            RK_TRY(st);
    }
    return stopped || c->n_new >= q->max_new ? finish(u, seq, stopped) : RK_OK;
}

/* Put a request into the table of the living, with room for its answer. */
static rk_status admit(run *u, int seq, int index) {
    live             *v = &u->live[seq];
    const rk_request *q = request_of(u, index);
    rk_completion    *c = &u->out[index];
    *v = (live){.index = index, .first = -1, .stored = -1, .start_s = rk_now_s(),
                .last = q->tokens[q->n_tokens - 1]};
    RK_TRY(rk_mem_alloc_to(q->max_new, sizeof(int32_t), "new tokens", &c->tokens));
    return rk_mem_alloc_to(rk_engine_model(u->e)->n_layers, sizeof(int32_t), "stored tokens",
                           &c->kv_tokens);
}

static rk_status begin(run *u, int seq, int index) {
    live             *v = &u->live[seq];
    const rk_request *q = &u->req[index];
    bool              late = u->o->first_compressed && q->n_tokens > 1;
    RK_TRY(admit(u, seq, index));
    rk_draw d = draw_of(u, seq);
    RK_TRY(rk_engine_prefill(u->e, seq, q->tokens, q->n_tokens - late, q->max_new, q->budget,
                             late ? NULL : &d, &v->first));
    return rk_engine_compress_post(u->e, seq, &v->stored);
}

/* Take what the prefill of a sequence brought. */
static rk_status settle(run *u, int seq) {
    live          *v = &u->live[seq];
    rk_completion *c = &u->out[v->index];
    rk_drawn       d;
    bool           have = v->first >= 0;
    if (have) RK_TRY(rk_engine_result(u->e, v->first, &d));
    RK_TRY(rk_engine_compress_take(u->e, v->stored, c->kv_tokens, &c->kv_bytes));
    c->prefill_s = rk_now_s() - v->start_s;
    return have ? accept(u, seq, &d) : RK_OK;
}

/* Decode sequences base .. base + n_live - 1 in micro-batches; the one at place s belongs to
 * micro-batch s % m. */
static rk_status decode(run *u, int n_live) {
    int m = rk_engine_stages(u->e) < n_live ? rk_engine_stages(u->e) : n_live;
    void *p;
    RK_TRY(rk_mem_alloc(m, sizeof(rk_ticket), "micro-batches", &p));
    rk_ticket *t = p;
    rk_status  st = RK_OK;
    for (int k = 0; k < m; k++) t[k] = -1;
    for (bool busy = true; busy;) {
        busy = false;
        for (int k = 0; k < m; k++) {
            int n = 0;
            if (t[k] >= 0) {
                RK_TRY_OUT(st, rk_engine_result(u->e, t[k], u->drawn));
                for (int s = u->base + k; s < u->base + n_live; s += m)
                    if (!u->live[s].done) RK_TRY_OUT(st, accept(u, s, &u->drawn[n++]));
                t[k] = -1;
            }
            n = 0;
            for (int s = u->base + k; s < u->base + n_live; s += m)
                if (!u->live[s].done) u->draws[n++] = draw_of(u, s);
            if (n) RK_TRY_OUT(st, rk_engine_decode(u->e, u->draws, n, &t[k]));
            busy = busy || n > 0;
        }
    }
out:
    rk_mem_free(p);
    return st;
}

static rk_status run_groups(run *u, int max_alive) {
    int lag = rk_engine_stages(u->e) > 1; /* prompts in flight behind the newest */
    for (int at = 0; at < u->n; at += max_alive) {
        int alive = u->n - at < max_alive ? u->n - at : max_alive;
        for (int s = 0; s < alive + lag; s++) {
            if (s < alive) RK_TRY(begin(u, s, at + s));
            if (s >= lag) RK_TRY(settle(u, s - lag));
        }
        RK_TRY(decode(u, alive));
    }
    return RK_OK;
}

/* Tables for as many sequences as the engine has; in any case freed by close_run. */
static rk_status open_run(run *u) {
    int alive = rk_engine_max_sequences(u->e);
    for (int i = 0; i < u->n; i++) {
        u->out[i] = (rk_completion){0};
        if (request_of(u, i)->max_new < 1) return RK_FAIL(RK_E_BUG, "request %d wants no tokens", i);
    }
    RK_TRY(rk_mem_alloc_to(u->n, sizeof(bool), "batch", &u->finished));
    RK_TRY(rk_mem_alloc_to(alive, sizeof(live), "batch", &u->live));
    RK_TRY(rk_mem_alloc_to(alive, sizeof(rk_draw), "batch", &u->draws));
    return rk_mem_alloc_to(alive, sizeof(rk_drawn), "batch", &u->drawn);
}

static void close_run(run *u) {
    rk_mem_free(u->finished);
    rk_mem_free(u->live);
    rk_mem_free(u->draws);
    rk_mem_free(u->drawn);
}

rk_status rk_batch_run(rk_engine *e, const rk_batch_options *o, const rk_request *req, int n,
                       rk_completion *out) {
    run       u = {.e = e, .o = o, .req = req, .out = out, .n = n};
    rk_status st = open_run(&u);
    if (st == RK_OK) st = run_groups(&u, rk_engine_max_sequences(e));
    close_run(&u);
    return st == RK_OK ? st : rk_err_via(st, __FILE__, __LINE__, __func__);
}

/* Forks of the prompt in sequence 0 for cuts [at, at + n), and their answers. */
static rk_status sweep_wave(run *u, const rk_cut *cut, int at, int n, const rk_drawn *first,
                            double prefill_s) {
    const rk_request *q = u->req;
    for (int i = 0; i < n; i++) {
        int            seq = u->base + i;
        rk_completion *c = &u->out[at + i];
        RK_TRY(admit(u, seq, at + i));
        RK_TRY(rk_engine_fork(u->e, 0, seq, &cut[at + i].select, cut[at + i].budget, q->max_new,
                              c->kv_tokens, &c->kv_bytes));
        u->live[seq].start_s -= prefill_s;
        c->prefill_s = rk_now_s() - u->live[seq].start_s;
    }
    for (int i = 0; first && i < n; i++) RK_TRY(accept(u, u->base + i, first));
    return decode(u, n);
}

static rk_status sweep(run *u, const rk_cut *cut, int n) {
    const rk_request *q = u->req;
    bool              late = u->o->first_compressed && q->n_tokens > 1;
    int               wave = rk_engine_max_sequences(u->e) - 1;
    rk_ticket         t;
    rk_drawn          first;
    rk_draw d = {.seq = 0, .sampler = q->sampler, .n_usable = u->o->n_usable, .stream = u->stream};
    double  start = rk_now_s();
    if (wave < 1) return RK_FAIL(RK_E_BUG, "a sweep wants two sequences");
    RK_TRY(rk_engine_prefill(u->e, 0, q->tokens, q->n_tokens - late, 0, NULL, late ? NULL : &d, &t));
    if (!late) RK_TRY(rk_engine_result(u->e, t, &first));
    double prefill_s = rk_now_s() - start;
    for (int at = 0; at < n; at += wave)
        RK_TRY(sweep_wave(u, cut, at, n - at < wave ? n - at : wave, late ? NULL : &first, prefill_s));
    return rk_engine_free(u->e, 0);
}

rk_status rk_batch_sweep(rk_engine *e, const rk_batch_options *o, const rk_request *req,
                         uint64_t stream, const rk_cut *cut, int n, rk_completion *out) {
    run u = {.e = e, .o = o, .req = req, .out = out, .n = n, .sweep = true, .stream = stream, .base = 1};
    rk_status st = open_run(&u);
    if (st == RK_OK) st = sweep(&u, cut, n);
    close_run(&u);
    return st == RK_OK ? st : rk_err_via(st, __FILE__, __LINE__, __func__);
}
