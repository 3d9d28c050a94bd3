/* profiler.c - see profiler.h. */
#include "profiler/profiler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "profiler/journal.h"

enum { MAX_JOURNALS = 4096, PATH_LEN = 4096 };
static const float FLOOR_EPSILON = 1e-3f; /* too small to move a result: what it shows is rounding */

/* A piece of work: a sample's variants of layers [layer_begin, layer_end). */
typedef struct item {
    int  sample, layer_begin, layer_end;
    bool done;
} item;

typedef struct work {
    const rk_profiler_job *job;
    rk_profile            *out;
    item                  *items;
    int                    n_items, splits;
    uint64_t              *ref_hash; /* [N] */
    double                *prefill_s, *whole_s; /* [n_items] of this run */
    int                    n_prefill, n_whole, n_resumed;
    uint64_t               job_hash;
} work;

/* Values of a layer, in this order: KL of each epsilon and draw, its own response, damage of each
 * level, entropy and variance of its attention. */
static int n_noise(const rk_profile *p) { return p->n_epsilon * p->n_draws; }
static int per_layer(const rk_profile *p) {
    return n_noise(p) + (p->local != NULL) + p->n_levels + 2 * (p->entropy != NULL);
}

static uint64_t hash_job(const rk_profile *p) {
    rk_hash_state h;
    int32_t       n[4] = {p->n_layers, p->n_samples, p->n_epsilon, p->n_draws};
    uint64_t      u[6] = {p->model_shape_hash, p->weights_hash,  p->calibration_hash,
                          p->seed,             (uint64_t)p->context, (uint64_t)p->response};
    rk_hash_init(&h);
    rk_hash_add(&h, n, sizeof n);
    rk_hash_add(&h, u, sizeof u);
    rk_hash_add(&h, p->epsilon, (size_t)p->n_epsilon * sizeof *p->epsilon);
    rk_hash_add(&h, p->signal, strlen(p->signal) + 1);
    if (p->n_levels) {
        rk_hash_add(&h, p->levels, (size_t)p->n_levels * sizeof *p->levels);
        rk_hash_add(&h, &p->policy, sizeof p->policy);
    }
    rk_hash_add(&h, p->backend, strlen(p->backend) + 1);
    rk_hash_add(&h, p->dtype, strlen(p->dtype) + 1);
    rk_hash_add(&h, p->numerics, strlen(p->numerics) + 1);
    return rk_hash_digest(&h);
}

static void journal_path(const work *w, int k, char path[PATH_LEN]) {
    snprintf(path, PATH_LEN, "%s.journal.%d", w->job->output, k);
}

/* Samples, and where these are fewer than replicas, layer ranges of them. */
static rk_status make_items(work *w, int n_replicas) {
    int   N = w->out->n_samples, L = w->out->n_layers;
    void *p;
    w->splits = N >= n_replicas ? 1 : (n_replicas + N - 1) / N;
    if (w->splits > L) w->splits = L;
    w->n_items = N * w->splits;
    RK_TRY(rk_mem_alloc(w->n_items, sizeof(item), "work items", &p));
    w->items = p;
    for (int i = 0; i < w->n_items; i++) {
        int k = i % w->splits;
        w->items[i] = (item){.sample = i / w->splits,
                             .layer_begin = (int)((int64_t)L * k / w->splits),
                             .layer_end = (int)((int64_t)L * (k + 1) / w->splits)};
    }
    RK_TRY(rk_mem_alloc(N, sizeof(uint64_t), "hashes", &p));
    w->ref_hash = p;
    RK_TRY(rk_mem_alloc(w->n_items, sizeof(double), "times", &p));
    w->prefill_s = p;
    RK_TRY(rk_mem_alloc(w->n_items, sizeof(double), "times", &p));
    w->whole_s = p;
    return RK_OK;
}

/* Where value `id` of a sample lies. */
static double *value_at(rk_profile *p, int sample, int id) {
    int64_t L = p->n_layers, D = p->n_draws, K = p->n_levels, each = per_layer(p), l = id / each, k = id % each;
    if (k < n_noise(p)) return &p->kl[((sample * (int64_t)p->n_epsilon + k / D) * D + k % D) * L + l];
    k -= n_noise(p);
    if (p->local && k-- == 0) return &p->local[sample * L + l];
    if (k < K) return &p->damage[(sample * K + k) * L + l];
    return &(k == K ? p->entropy : p->variance)[sample * L + l];
}

/* Put a journal's record into the profile; records of other cuts of the same work are welcome. */
static rk_status absorb(void *arg, const rk_journal_record *r) {
    work       *w = arg;
    rk_profile *p = w->out;
    if (r->sample < 0 || r->sample >= p->n_samples || r->first < 0 || r->n < 0 ||
        (int64_t)r->first + r->n > (int64_t)p->n_layers * per_layer(p) ||
        r->sample_hash != w->job->calibration->samples[r->sample].hash)
        return RK_FAIL(RK_E_USAGE, "%s: a journal does not fit this job; remove the .journal files",
                       w->job->output);
    for (int i = 0; i < r->n; i++) *value_at(p, r->sample, r->first + i) = r->kl[i];
    if (!isnan(r->floor_kl)) p->floor_kl[r->sample] = r->floor_kl;
    w->ref_hash[r->sample] = r->ref_hash;
    return RK_OK;
}

static bool range_done(rk_profile *p, int sample, int begin, int end) {
    for (int id = begin * per_layer(p); id < end * per_layer(p); id++)
        if (isnan(*value_at(p, sample, id))) return false;
    return begin > 0 || !isnan(p->floor_kl[sample]);
}

static rk_status read_journals(work *w) {
    char path[PATH_LEN];
    for (int k = 0; k < MAX_JOURNALS; k++) {
        journal_path(w, k, path);
        if (access(path, F_OK) == 0) RK_TRY(rk_journal_read(path, w->job_hash, absorb, w));
    }
    for (int i = 0; i < w->n_items; i++) {
        item *it = &w->items[i];
        it->done = range_done(w->out, it->sample, it->layer_begin, it->layer_end);
    }
    return RK_OK;
}

static rk_status remove_journals(const work *w) {
    char path[PATH_LEN];
    for (int k = 0; k < MAX_JOURNALS; k++) {
        journal_path(w, k, path);
        if (access(path, F_OK) == 0) RK_TRY(rk_journal_remove(path));
    }
    return RK_OK;
}

/* Variants of an item, layer by layer; the noise floor's stands first. */
static int make_variants(const work *w, const item *it, int64_t n_prompt, rk_variant *v) {
    const rk_profiler_job *job = w->job;
    int                    n = 0;
    if (it->layer_begin == 0)
        v[n++] = (rk_variant){.layer = 0, .epsilon = FLOOR_EPSILON, .sample = it->sample};
    for (int l = it->layer_begin; l < it->layer_end; l++) {
        for (int e = 0; e < w->out->n_epsilon; e++)
            for (int d = 0; d < w->out->n_draws; d++)
                v[n++] = (rk_variant){.layer = l,
                                      .epsilon = (float)job->epsilon[e],
                                      .sample = it->sample,
                                      .draw = d};
        for (int k = 0; k < w->out->n_levels; k++)
            v[n++] = (rk_variant){.kind = RK_VARIANT_COMPRESS,
                                  .layer = l,
                                  .budget = rk_budget_of_level(job->levels[k], n_prompt, job->window,
                                                               job->sinks)};
    }
    return n;
}

/* The journal's values of an item from what was measured of its variants. */
static int take_values(const rk_profile *p, const item *it, const rk_measured *m, const double *attention,
                       double *out) {
    int n = 0;
    for (int l = it->layer_begin; l < it->layer_end; l++) {
        double local = 0;
        for (int d = 0; d < p->n_draws; d++) local += m[d].local / p->n_draws; /* the first epsilon */
        for (int k = 0; k < n_noise(p); k++) out[n++] = m[k].kl;
        if (p->local) out[n++] = local;
        for (int k = 0; k < p->n_levels; k++) out[n++] = m[n_noise(p) + k].kl;
        for (int k = 0; p->entropy && k < 2; k++) out[n++] = attention[k * p->n_layers + l];
        m += n_noise(p) + p->n_levels;
    }
    return n;
}

/* Shapes: v, m, kl of the longest item; attention [2][L] */
static rk_status measure(work *w, rk_engine *e, const item *it, rk_variant *v, rk_measured *m,
                         double *attention, double *kl, rk_journal *journal) {
    const rk_sample *s = &w->job->calibration->samples[it->sample];
    int              n = make_variants(w, it, s->n_prompt, v), skip = it->layer_begin == 0;
    uint64_t         hash;
    double           t0 = rk_now_s();
    RK_TRY(rk_engine_prefill(e, 0, s->tokens, s->n_prompt, 0, NULL, NULL, NULL));
    RK_TRY(rk_engine_compress(e, 0, NULL, NULL)); /* moves nothing: the end of the prefill */
    double t1 = rk_now_s();
    if (w->out->entropy) RK_TRY(rk_engine_attention(e, 0, attention, attention + w->out->n_layers));
    RK_TRY(rk_engine_measure(e, 0, s->tokens + s->n_prompt, (int)s->n_response, w->job->seed, v, n, m,
                             NULL, &hash));
    int n_values = take_values(w->out, it, m + skip, attention, kl);
    double t2 = rk_now_s();
    RK_TRY(rk_engine_free(e, 0));
    rk_journal_record r = {.sample = it->sample,
                           .first = it->layer_begin * per_layer(w->out),
                           .n = n_values,
                           .sample_hash = s->hash,
                           .floor_kl = skip ? m[0].kl : NAN,
                           .ref_hash = hash,
                           .kl = kl};
    RK_TRY(rk_journal_append(journal, &r));
    w->prefill_s[w->n_prefill++] = t1 - t0;
    if (w->splits == 1) w->whole_s[w->n_whole++] = t2 - t0;
    return RK_OK;
}

/* The leader of one replica: its items, one after the other. */
static rk_status run_items(work *w, rk_engine *e, int replica, int n_replicas, bool speak) {
    char        path[PATH_LEN];
    rk_journal *journal = NULL;
    rk_status   st;
    void       *v = NULL, *m = NULL, *kl = NULL;
    double     *attention = NULL;
    int64_t     most = (int64_t)w->out->n_layers * per_layer(w->out) + 1;
    rk_progress bar;
    int         done = 0, mine = 0;
    journal_path(w, replica, path);
    for (int i = replica; i < w->n_items; i += n_replicas) mine += !w->items[i].done;
    RK_TRY_OUT(st, rk_journal_open(path, w->job_hash, w->job->resume, &journal));
    RK_TRY_OUT(st, rk_mem_alloc(most, sizeof(rk_variant), "variants", &v));
    RK_TRY_OUT(st, rk_mem_alloc(most, sizeof(double), "divergences", &kl));
    RK_TRY_OUT(st, rk_mem_alloc(most, sizeof(rk_measured), "measurements", &m));
    RK_TRY_OUT(st, rk_mem_alloc_to(2 * (int64_t)w->out->n_layers, sizeof(double), "attention", &attention));
    if (speak) rk_progress_begin(&bar, "profiling", n_replicas > 1 ? "samples of replica 0" : "samples", mine);
    for (int i = replica; i < w->n_items; i += n_replicas) {
        if (w->items[i].done) continue;
        if (w->job->stop_request && *w->job->stop_request) break;
        RK_TRY_OUT(st, measure(w, e, &w->items[i], v, m, attention, kl, journal));
        w->items[i].done = true;
        done++;
        if (speak) rk_progress_set(&bar, done);
    }
    if (speak) rk_progress_end(&bar);
    st = rk_engine_stop(e);
out:
    rk_journal_close(journal);
    rk_mem_free(v);
    rk_mem_free(m);
    rk_mem_free(attention);
    rk_mem_free(kl);
    return st;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *v, int n) {
    if (n == 0) return NAN;
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* World rank 0, after all replicas: the journals become the file. */
static rk_status finish(work *w, rk_profiler_cost *cost) {
    rk_profile *p = w->out;
    bool        all = true;
    RK_TRY(read_journals(w));
    for (int s = 0; s < p->n_samples; s++) {
        const rk_sample *c = &w->job->calibration->samples[s];
        p->prompt_tokens[s] = (int32_t)c->n_prompt;
        p->hash[s] = c->hash;
        p->done[s] = range_done(p, s, 0, p->n_layers);
        all = all && p->done[s];
    }
    cost->prefill_s = median(w->prefill_s, w->n_prefill);
    cost->profile_s = median(w->whole_s, w->n_whole);
    cost->prefills = cost->profile_s / cost->prefill_s;
    cost->n_resumed = w->n_resumed;
    cost->logits_hash = rk_hash(w->ref_hash, (size_t)p->n_samples * sizeof *w->ref_hash);
    if (!all)
        return RK_FAIL(RK_E_STOPPED,
                       "stopped on request; finished samples are saved beside %s, the same command with "
                       "--resume goes on",
                       w->job->output);
    RK_TRY(rk_profile_reduce(p));
    RK_TRY(rk_profile_write(p, w->job->output));
    return remove_journals(w);
}

static rk_status start(work *w, int n_replicas, bool rank0) {
    RK_TRY(make_items(w, n_replicas));
    if (rank0) {
        RK_TRY(rk_profile_probe(w->job->output));
        if (!w->job->resume) RK_TRY(remove_journals(w));
    }
    return RK_OK;
}

/* Replicas end at different times, each after many steps: the deadline is that of a job. */
static rk_status wait_for_replicas(rk_comm *world) {
    enum { STEPS = 30 };
    double t = rk_comm_timeout(world);
    rk_comm_set_timeout(world, STEPS * t);
    rk_status st = rk_comm_barrier(world);
    rk_comm_set_timeout(world, t);
    return st;
}

rk_status rk_profiler_run(rk_comm *world, rk_engine *e, rk_comm *replica, int replica_index,
                          int n_replicas, const rk_profiler_job *job, rk_profile *out,
                          rk_profiler_cost *cost) {
    work      w = {.job = job, .out = out, .job_hash = hash_job(out)};
    bool      rank0 = rk_comm_rank(world) == 0, leader = rk_comm_rank(replica) == 0;
    rk_status st;
    memset(cost, 0, sizeof *cost);
    RK_TRY_OUT(st, rk_comm_agree(world, start(&w, n_replicas, rank0), NULL));
    if (job->resume) {
        RK_TRY_OUT(st, rk_comm_agree(world, read_journals(&w), NULL));
        for (int i = 0; i < w.n_items; i++) w.n_resumed += w.items[i].done;
    }
    /* From here to the next agreement ranks wait for each other inside the engine: a failure is not
     * agreed and ends the job through main. */
    if (leader)
        RK_TRY_OUT(st, run_items(&w, e, replica_index, n_replicas, rank0));
    else
        RK_TRY_OUT(st, rk_engine_serve(e));
    RK_TRY_OUT(st, wait_for_replicas(world));
    st = rk_comm_agree(world, rank0 ? finish(&w, cost) : RK_OK, NULL);
out:
    rk_mem_free(w.items);
    rk_mem_free(w.ref_hash);
    rk_mem_free(w.prefill_s);
    rk_mem_free(w.whole_s);
    return st;
}
