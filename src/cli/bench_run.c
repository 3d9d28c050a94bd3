/* bench_run.c - the measurements of ripplekv bench; see bench.h. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "cli/bench.h"
#include "cli/cli.h"

static const float EPSILON = 0.3f;        /* profile's default; no time depends on it */
static const float FLOOR_EPSILON = 1e-3f; /* of one variant more, profile's noise floor */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Shapes: v [n] is sorted in place, n >= 1 */
static double median(double *v, int64_t n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* ---- prompts ---- */

static bool begins_or_ends(const rk_config *m, int32_t id) {
    bool yes = id == m->bos;
    for (int i = 0; i < m->n_stop; i++) yes = yes || id == m->stop[i];
    return yes;
}

/* Random ids; no speed depends on which. stream tells sequences apart. */
static void make_tokens(const rk_bench *b, uint32_t stream, int64_t n, int32_t *out) {
    const rk_config *m = rk_engine_model(b->e);
    uint64_t         seed = b->o->seed, V = (uint64_t)m->n_vocab;
    for (int64_t i = 0; i < n; i++) {
        uint32_t c[4] = {(uint32_t)i, stream, 0, 0};
        rk_rng_philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
        out[i] = (int32_t)(c[0] * V >> 32);
        for (int k = 0; k <= RK_MAX_STOP && begins_or_ends(m, out[i]); k++)
            out[i] = (int32_t)((uint64_t)(out[i] + 1) % V);
    }
}

static rk_draw draw_of(const rk_bench *b, int seq, int32_t token, int64_t step) {
    return (rk_draw){.seq = seq,
                     .token = token,
                     .sampler = {.temperature = 0, .top_p = 1, .seed = b->o->seed},
                     .n_usable = rk_engine_model(b->e)->n_vocab,
                     .stream = (uint64_t)seq,
                     .step = (uint64_t)step};
}

/* Prefill a free sequence and wait for its first new token; *s are the seconds. */
static rk_status prefill(rk_bench *b, int seq, const int32_t *tokens, int64_t n, int64_t n_new,
                         const int32_t *budget, rk_drawn *first, double *s) {
    rk_draw   d = draw_of(b, seq, 0, 0);
    rk_ticket t;
    double    t0 = rk_now_s();
    RK_TRY(rk_engine_prefill(b->e, seq, tokens, n, n_new, budget, &d, &t));
    RK_TRY(rk_engine_result(b->e, t, first));
    *s = rk_now_s() - t0;
    return RK_OK;
}

/* ---- memory of one measurement ---- */

static void peak_begin(rk_bench *b) {
    int64_t peak = rk_mem_peak();
    if (peak > b->peak_bytes) b->peak_bytes = peak;
    rk_mem_peak_reset();
}
static int64_t peak_end(rk_bench *b) {
    int64_t peak = rk_mem_peak();
    if (peak > b->peak_bytes) b->peak_bytes = peak;
    return peak;
}

/* ---- prefill ---- */

static rk_status run_prefill(rk_bench *b, rk_bench_prefill *r, const int32_t *tokens, double *s) {
    int64_t R = b->o->repeat;
    peak_begin(b);
    for (int64_t i = 0; i < R; i++) {
        rk_drawn first;
        RK_TRY(prefill(b, 0, tokens, r->n, 0, NULL, &first, &s[i]));
        RK_TRY(rk_engine_free(b->e, 0));
        r->hash = first.logits_hash;
    }
    r->peak_bytes = peak_end(b);
    r->s = median(s, R);
    r->min_s = s[0];
    r->max_s = s[R - 1];
    return RK_OK;
}

/* ---- decode ---- */

typedef struct live {
    rk_drawn last;
    double   prefill_s, compress_s;
} live;

typedef struct decoding {
    rk_bench_decode *r;
    int32_t         *tokens, *stored, *budget; /* [context], [L], [L] */
    live            *live;                     /* [batch] */
    rk_draw         *draws;                    /* [batch] */
    rk_drawn        *drawn;
    rk_ticket       *tickets;
    double          *times; /* [max of n_new, batch] */
    int64_t          slots; /* stored of all prompts, all layers */
} decoding;

/* Sequence i of the batch: prefill, compression, and what is then stored. */
static rk_status begin_sequence(rk_bench *b, decoding *d, int i) {
    rk_bench_decode *r = d->r;
    live            *v = &d->live[i];
    int64_t          kv_bytes = 0;
    int              L = rk_engine_model(b->e)->n_layers;
    make_tokens(b, (uint32_t)i, r->context, d->tokens);
    RK_TRY(prefill(b, i, d->tokens, r->context, r->n_new, r->compressed ? d->budget : NULL,
                   &v->last, &v->prefill_s));
    double t = rk_now_s();
    RK_TRY(rk_engine_compress(b->e, i, d->stored, &kv_bytes));
    v->compress_s = rk_now_s() - t;
    r->kv_bytes += kv_bytes;
    for (int l = 0; l < L; l++) d->slots += d->stored[l];
    return RK_OK;
}

/* Micro-batch k holds sequences k, k + m, ... */
static rk_status submit(rk_bench *b, decoding *d, int k, int m, int64_t step) {
    int n = 0;
    for (int i = k; i < d->r->batch; i += m)
        d->draws[n++] = draw_of(b, i, d->live[i].last.token, step + 1);
    return rk_engine_decode(b->e, d->draws, n, &d->tickets[k]);
}
static rk_status collect(rk_bench *b, decoding *d, int k, int m) {
    int n = 0;
    RK_TRY(rk_engine_result(b->e, d->tickets[k], d->drawn));
    for (int i = k; i < d->r->batch; i += m) d->live[i].last = d->drawn[n++];
    return RK_OK;
}

/* Every stage has a micro-batch at work; a step ends when the last of them has its tokens. */
static rk_status run_steps(rk_bench *b, decoding *d) {
    rk_bench_decode *r = d->r;
    int              P = rk_engine_stages(b->e), m = P < r->batch ? P : r->batch;
    double           start = rk_now_s(), last = start, now = start;
    for (int k = 0; k < m; k++) RK_TRY(submit(b, d, k, m, 0));
    for (int64_t step = 0; step < r->n_new; step++) {
        for (int k = 0; k < m; k++) {
            RK_TRY(collect(b, d, k, m));
            if (k == m - 1) now = rk_now_s();
            if (step + 1 < r->n_new) RK_TRY(submit(b, d, k, m, step + 1));
        }
        d->times[step] = now - last;
        last = now;
    }
    r->all_s = last - start;
    r->step_s = median(d->times, r->n_new);
    return RK_OK;
}

static void sum_up(decoding *d, int n_layers) {
    rk_bench_decode *r = d->r;
    rk_hash_state    h;
    rk_hash_init(&h);
    for (int i = 0; i < r->batch; i++) {
        d->times[i] = d->live[i].prefill_s;
        rk_hash_add(&h, &d->live[i].last.logits_hash, sizeof d->live[i].last.logits_hash);
    }
    r->prefill_s = median(d->times, r->batch);
    r->kv_tokens = (double)d->slots / n_layers / r->batch;
    for (int i = 0; i < r->batch; i++) d->times[i] = d->live[i].compress_s;
    r->compress_s = r->compressed ? median(d->times, r->batch) : 0;
    r->hash = r->batch == 1 ? d->live[0].last.logits_hash : rk_hash_digest(&h);
}

static rk_status decode(rk_bench *b, decoding *d) {
    rk_bench_decode *r = d->r;
    rk_budget_result split;
    if (r->compressed) RK_TRY(rk_cache_plan_split(b->cache, r->context, d->budget, &split));
    peak_begin(b);
    for (int i = 0; i < r->batch; i++) RK_TRY(begin_sequence(b, d, i));
    RK_TRY(run_steps(b, d));
    r->peak_bytes = peak_end(b);
    for (int i = 0; i < r->batch; i++) RK_TRY(rk_engine_free(b->e, i));
    sum_up(d, rk_engine_model(b->e)->n_layers);
    return RK_OK;
}

static rk_status run_decode(rk_bench *b, rk_bench_decode *r) {
    decoding  d = {.r = r};
    int64_t   L = rk_engine_model(b->e)->n_layers, B = r->batch;
    rk_status st;
    RK_TRY_OUT(st, rk_mem_alloc_to(r->context, sizeof(int32_t), "prompt", &d.tokens));
    RK_TRY_OUT(st, rk_mem_alloc_to(L, sizeof(int32_t), "stored tokens", &d.stored));
    RK_TRY_OUT(st, rk_mem_alloc_to(L, sizeof(int32_t), "budgets", &d.budget));
    RK_TRY_OUT(st, rk_mem_alloc_to(B, sizeof(live), "batch", &d.live));
    RK_TRY_OUT(st, rk_mem_alloc_to(B, sizeof(rk_draw), "batch", &d.draws));
    RK_TRY_OUT(st, rk_mem_alloc_to(B, sizeof(rk_drawn), "batch", &d.drawn));
    RK_TRY_OUT(st, rk_mem_alloc_to(B, sizeof(rk_ticket), "batch", &d.tickets));
    RK_TRY_OUT(st, rk_mem_alloc_to(r->n_new > B ? r->n_new : B, sizeof(double), "times", &d.times));
    st = decode(b, &d);
out:;
    void *all[] = {d.tokens, d.stored, d.budget, d.live, d.draws, d.drawn, d.tickets, d.times};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) rk_mem_free(all[i]);
    return st;
}

/* ---- an allocator beside uniform ---- */

static bool has_pair(const rk_options *o) {
    return o->bench_decode && !rk_options_full_cache(o) && strcmp(o->allocator, "uniform") != 0;
}

int rk_bench_sequences(const rk_options *o) { return has_pair(o) ? 3 : 1; }

/* Forks of the prompt in sequence 0: 1 under the plan, 2 uniform at the same total. */
static rk_status fork_pair(rk_bench *b, rk_bench_pair *r, int32_t *budget) {
    int              L = rk_engine_model(b->e)->n_layers;
    rk_select_params select = rk_cli_select(b->o);
    rk_budget_result split;
    RK_TRY(rk_cache_plan_split(b->cache, r->context, budget, &split));
    rk_budget_spec even = {.n_layers = L, .n_prompt = r->context, .ratio = (double)split.total / ((double)r->context * L),
                           .allocator = RK_ALLOC_UNIFORM, .window = (int)b->o->window,
                           .sinks = (int)b->o->sinks};
    for (int k = 0; k < 2; k++) {
        if (k) RK_TRY(rk_budget_split(&even, budget, &split));
        RK_TRY(rk_engine_fork(b->e, 0, 1 + k, &select, budget, r->n_new, NULL, NULL));
        r->kept[k] = split.total;
    }
    return RK_OK;
}

/* Shapes: times [3][n_new] */
static rk_status decode_pair(rk_bench *b, rk_bench_pair *r, int32_t token, double *times) {
    rk_drawn last[2] = {{.token = token}, {.token = token}};
    int64_t  n = r->n_new;
    for (int64_t i = 0; i < n; i++)
        for (int turn = 0; turn < 2; turn++) {
            int       k = (int)(i + turn) % 2; /* who goes first changes */
            rk_draw   d = draw_of(b, 1 + k, last[k].token, i + 1);
            rk_ticket t;
            double    t0 = rk_now_s();
            RK_TRY(rk_engine_decode(b->e, &d, 1, &t));
            RK_TRY(rk_engine_result(b->e, t, &last[k]));
            times[k * n + i] = rk_now_s() - t0;
        }
    double *ratio = times + 2 * n;
    for (int64_t i = 0; i < n; i++) ratio[i] = times[i] / times[n + i];
    r->ratio = median(ratio, n); /* sorts */
    r->ratio_low = ratio[n / 4];
    r->ratio_high = ratio[n - 1 - n / 4];
    for (int k = 0; k < 2; k++) r->step_s[k] = median(times + k * n, n);
    return RK_OK;
}

static rk_status run_pair(rk_bench *b, rk_bench_pair *r, const int32_t *tokens) {
    int32_t  *budget = NULL;
    double   *times = NULL, s;
    rk_drawn  first;
    rk_status st;
    RK_TRY_OUT(st, rk_mem_alloc_to(rk_engine_model(b->e)->n_layers, sizeof(int32_t), "budgets", &budget));
    RK_TRY_OUT(st, rk_mem_alloc_to(3 * r->n_new, sizeof(double), "times", &times));
    RK_TRY_OUT(st, prefill(b, 0, tokens, r->context, 0, NULL, &first, &s));
    RK_TRY_OUT(st, fork_pair(b, r, budget));
    RK_TRY_OUT(st, decode_pair(b, r, first.token, times));
    for (int k = 0; k < 3; k++) RK_TRY_OUT(st, rk_engine_free(b->e, k));
out:
    rk_mem_free(budget);
    rk_mem_free(times);
    return st;
}

/* ---- profile ---- */

/* Shapes: tokens [context + response]; v, m [L + 1]; whole, first [repeat] */
static rk_status run_profile(rk_bench *b, rk_bench_profile *r, const int32_t *tokens, rk_variant *v,
                             rk_measured *m, double *whole, double *first) {
    int L = rk_engine_model(b->e)->n_layers;
    v[0] = (rk_variant){.layer = 0, .epsilon = FLOOR_EPSILON};
    for (int l = 0; l < L; l++) v[l + 1] = (rk_variant){.layer = l, .epsilon = EPSILON};
    peak_begin(b);
    for (int64_t i = 0; i < b->o->repeat; i++) {
        double t = rk_now_s();
        RK_TRY(rk_engine_prefill(b->e, 0, tokens, r->context, 0, NULL, NULL, NULL));
        RK_TRY(rk_engine_compress(b->e, 0, NULL, NULL)); /* moves nothing: the end of the prefill */
        first[i] = rk_now_s() - t;
        RK_TRY(rk_engine_measure(b->e, 0, tokens + r->context, (int)r->response, b->o->seed, v,
                                 L + 1, m, NULL, &r->hash));
        whole[i] = rk_now_s() - t;
        RK_TRY(rk_engine_free(b->e, 0));
    }
    r->peak_bytes = peak_end(b);
    r->prefill_s = median(first, b->o->repeat);
    r->profile_s = median(whole, b->o->repeat);
    return RK_OK;
}

/* ---- all of it ---- */

static rk_status plan(rk_bench *b) {
    const rk_options  *o = b->o;
    const rk_int_list *p = &o->bench_prefill, *c = &o->bench_context, *k = &o->bench_batch;
    int                variants = b->cache ? 2 : 1;
    b->n_prefill = p->v[0] ? p->n : 0;
    b->n_decode = o->bench_decode ? c->n * k->n * variants : 0;
    b->n_pair = has_pair(o) ? c->n : 0;
    b->n_profile = o->bench_profile ? c->n : 0;
    RK_TRY(rk_mem_alloc_to(b->n_prefill, sizeof *b->prefill, "results", &b->prefill));
    RK_TRY(rk_mem_alloc_to(b->n_decode, sizeof *b->decode, "results", &b->decode));
    RK_TRY(rk_mem_alloc_to(b->n_pair, sizeof *b->pair, "results", &b->pair));
    for (int i = 0; i < b->n_pair; i++)
        b->pair[i] = (rk_bench_pair){.context = c->v[i], .n_new = o->bench_decode};
    RK_TRY(rk_mem_alloc_to(b->n_profile, sizeof *b->profile, "results", &b->profile));
    for (int i = 0; i < b->n_prefill; i++) b->prefill[i].n = p->v[i];
    for (int i = 0; i < b->n_decode; i++)
        b->decode[i] = (rk_bench_decode){.context = c->v[i / variants / k->n],
                                         .n_new = o->bench_decode,
                                         .batch = (int)k->v[i / variants % k->n],
                                         .compressed = i % variants != 0};
    for (int i = 0; i < b->n_profile; i++) {
        b->profile[i].context = c->v[i];
        b->profile[i].response = o->response;
    }
    return RK_OK;
}

static int64_t longest(const rk_bench *b) {
    int64_t n = 1;
    for (int i = 0; i < b->n_prefill; i++) n = b->prefill[i].n > n ? b->prefill[i].n : n;
    for (int i = 0; i < b->o->bench_context.n; i++)
        n = b->o->bench_context.v[i] > n ? b->o->bench_context.v[i] : n;
    return n;
}

/* Shapes: tokens [longest + response], v, m [L + 1], s [2 * repeat] */
static rk_status measure(rk_bench *b, int32_t *tokens, rk_variant *v, rk_measured *m, double *s) {
    enum { WARM = 64 }; /* tokens: first calls make scratch memory and wake threads */
    int64_t     n = longest(b);
    int         done = 0;
    rk_drawn    first;
    rk_progress bar;
    make_tokens(b, 0, n + b->o->response, tokens);
    RK_TRY(prefill(b, 0, tokens, n < WARM ? n : WARM, 0, NULL, &first, s));
    RK_TRY(rk_engine_free(b->e, 0));
    rk_progress_begin(&bar, "measuring", "settings",
                      b->n_prefill + b->n_decode + b->n_pair + b->n_profile);
    for (int i = 0; i < b->n_prefill; i++) {
        RK_TRY(run_prefill(b, &b->prefill[i], tokens, s));
        rk_progress_set(&bar, ++done);
    }
    for (int i = 0; i < b->n_decode; i++) {
        RK_TRY(run_decode(b, &b->decode[i]));
        rk_progress_set(&bar, ++done);
    }
    for (int i = 0; i < b->n_pair; i++) {
        RK_TRY(run_pair(b, &b->pair[i], tokens));
        rk_progress_set(&bar, ++done);
    }
    for (int i = 0; i < b->n_profile; i++) {
        RK_TRY(run_profile(b, &b->profile[i], tokens, v, m, s, s + b->o->repeat));
        rk_progress_set(&bar, ++done);
    }
    rk_progress_end(&bar);
    return RK_OK;
}

rk_status rk_bench_run(rk_bench *b) {
    int32_t    *tokens = NULL;
    rk_variant *v = NULL;
    rk_measured *m = NULL;
    double     *s = NULL;
    int64_t     L = rk_engine_model(b->e)->n_layers;
    rk_status   st;
    RK_TRY_OUT(st, plan(b));
    RK_TRY_OUT(st,
               rk_mem_alloc_to(longest(b) + b->o->response, sizeof(int32_t), "prompt", &tokens));
    RK_TRY_OUT(st, rk_mem_alloc_to(L + 1, sizeof(rk_variant), "variants", &v));
    RK_TRY_OUT(st, rk_mem_alloc_to(L + 1, sizeof(rk_measured), "measurements", &m));
    RK_TRY_OUT(st, rk_mem_alloc_to(2 * b->o->repeat, sizeof(double), "times", &s));
    st = measure(b, tokens, v, m, s);
out:
    rk_mem_free(tokens);
    rk_mem_free(v);
    rk_mem_free(m);
    rk_mem_free(s);
    return st;
}

void rk_bench_free(rk_bench *b) {
    rk_mem_free(b->prefill);
    rk_mem_free(b->decode);
    rk_mem_free(b->pair);
    rk_mem_free(b->profile);
    rk_mem_free(b->stages);
    b->prefill = NULL;
    b->decode = NULL;
    b->pair = NULL;
    b->profile = NULL;
    b->stages = NULL;
}
