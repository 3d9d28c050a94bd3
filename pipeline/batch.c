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
    const rk_request       *req;
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

static rk_draw draw_of(const run *u, int seq) {
    const live       *v = &u->live[seq];
    const rk_request *q = &u->req[v->index];
    return (rk_draw){.seq = seq,
                     .token = v->last,
                     .sampler = q->sampler,
                     .n_usable = u->o->n_usable,
                     .stream = (uint64_t)v->index,
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
    const rk_request *q = &u->req[v->index];
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

static rk_status begin(run *u, int seq, int index) {
    live             *v = &u->live[seq];
    const rk_request *q = &u->req[index];
    rk_completion    *c = &u->out[index];
    bool              late = u->o->first_compressed && q->n_tokens > 1;
    void             *p;
    *v = (live){.index = index, .first = -1, .stored = -1, .start_s = rk_now_s(),
                .last = q->tokens[q->n_tokens - 1]};
    RK_TRY(rk_mem_alloc(q->max_new, sizeof(int32_t), "new tokens", &p));
    c->tokens = p;
    RK_TRY(rk_mem_alloc(rk_engine_model(u->e)->n_layers, sizeof(int32_t), "stored tokens", &p));
    c->kv_tokens = p;
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

/* Decode all live sequences in micro-batches; sequence s belongs to micro-batch s % m. */
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
                for (int s = k; s < n_live; s += m)
                    if (!u->live[s].done) RK_TRY_OUT(st, accept(u, s, &u->drawn[n++]));
                t[k] = -1;
            }
            n = 0;
            for (int s = k; s < n_live; s += m)
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

rk_status rk_batch_run(rk_engine *e, const rk_batch_options *o, const rk_request *req, int n,
                       rk_completion *out) {
    run       u = {.e = e, .o = o, .req = req, .out = out, .n = n};
    int       alive = rk_engine_max_sequences(e);
    void     *a = NULL, *b = NULL, *c = NULL, *d = NULL;
    rk_status st;
    for (int i = 0; i < n; i++) {
        out[i] = (rk_completion){0};
        if (req[i].max_new < 1) return RK_FAIL(RK_E_BUG, "request %d wants no tokens", i);
    }
    RK_TRY_OUT(st, rk_mem_alloc(n, sizeof(bool), "batch", &a));
    RK_TRY_OUT(st, rk_mem_alloc(alive, sizeof(live), "batch", &b));
    RK_TRY_OUT(st, rk_mem_alloc(alive, sizeof(rk_draw), "batch", &c));
    RK_TRY_OUT(st, rk_mem_alloc(alive, sizeof(rk_drawn), "batch", &d));
    u.finished = a;
    u.live = b;
    u.draws = c;
    u.drawn = d;
    st = run_groups(&u, alive);
out:
    rk_mem_free(a);
    rk_mem_free(b);
    rk_mem_free(c);
    rk_mem_free(d);
    return st;
}
