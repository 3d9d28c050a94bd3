/* cmd_generate.c - ripplekv generate: prompts under a cache budget. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/answers.h"
#include "cli/cache.h"
#include "cli/cli.h"

/* What every rank must know to open its stage. */
typedef struct job {
    int64_t max_prompt, max_new, max_sequences, chunk;
    int32_t has_budget, hash_weights;
} job;

typedef struct generation {
    rk_cli        *c;
    rk_weights    *w;
    rk_engine     *e;
    job            job;
    int32_t       *estimate; /* [L] budgets of the longest prompt */
    /* the leader's */
    rk_prompts     prompts;
    rk_cache_plan  cache;
    rk_answers    *answers;
    FILE          *file;     /* --output */
    int32_t       *budgets;  /* [n][L] */
    rk_request    *requests; /* [n] */
    rk_completion *done;     /* [n] */
    double         run_s;
} generation;

static int layers_of(const generation *g) {
    return rk_weights_config(g->w)->n_layers;
}

/* ---- before the work (leader) ---- */

/* Opened now, so that a bad path is found before the work; emptied when the answers come. */
static rk_status open_output(generation *g) {
    const char *path = g->c->o->output, *input = g->c->o->input;
    struct stat a, b;
    if (!path) return RK_OK;
    if (input && stat(path, &a) == 0 && stat(input, &b) == 0 && a.st_dev == b.st_dev &&
        a.st_ino == b.st_ino)
        return RK_FAIL(RK_E_USAGE, "--output %s is the file of --input: it would be overwritten",
                       path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    g->file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (g->file) return RK_OK;
    rk_status st = RK_FAIL(RK_E_OUTPUT, "--output %s: cannot write: %m", path);
    if (fd >= 0) close(fd);
    return st;
}

/* Tokens that the cache holds when it is compressed. */
static int64_t compressed_at(const generation *g, int64_t n) {
    return strcmp(g->c->o->first_token, "compressed") == 0 && n > 1 ? n - 1 : n;
}

static rk_status split_budgets(generation *g) {
    int              L = layers_of(g);
    rk_budget_result r;
    if (rk_options_full_cache(g->c->o)) return RK_OK;
    g->job.has_budget = 1;
    RK_TRY(rk_mem_alloc_to((int64_t)g->prompts.n * L, sizeof(int32_t), "budgets", &g->budgets));
    for (int i = 0; i < g->prompts.n; i++)
        RK_TRY(rk_cache_plan_split(&g->cache, compressed_at(g, g->prompts.at[i].n_tokens),
                                   g->budgets + (int64_t)i * L, &r));
    return rk_cache_plan_split(&g->cache, compressed_at(g, g->prompts.max_prompt), g->estimate, &r);
}

static rk_status prepare_leader(generation *g) {
    const rk_options *o = g->c->o;
    rk_sampler        s = {.temperature = o->temperature, .top_p = o->top_p, .seed = o->seed};
    RK_TRY(rk_sampler_check(&s));
    rk_select_params select = rk_cli_select(o);
    RK_TRY(rk_select_check(&select));
    if (!rk_options_full_cache(o))
        RK_TRY(rk_cache_plan_open(o, rk_weights_config(g->w), &g->cache));
    RK_TRY(rk_prompts_load(o, g->w, &g->prompts));
    RK_TRY(split_budgets(g));
    int64_t n = g->prompts.n;
    g->job.max_prompt = g->prompts.max_prompt;
    g->job.max_new = g->prompts.max_new;
    g->job.max_sequences = n < o->batch ? n : o->batch;
    g->job.chunk = rk_cli_chunk(o, g->prompts.max_prompt, rk_comm_size(g->c->world));
    g->job.hash_weights = g->cache.weights_hash != 0;
    return o->dry_run ? RK_OK : open_output(g);
}

static rk_status prepare(generation *g) {
    RK_TRY(rk_weights_open(g->c->o->model, &g->w));
    RK_TRY(rk_cli_check_weights(g->c->o, g->w));
    RK_TRY(rk_mem_alloc_to(layers_of(g), sizeof(int32_t), "budgets", &g->estimate));
    return g->c->leader ? prepare_leader(g) : RK_OK;
}

static rk_engine_config engine_config(const generation *g) {
    const rk_options *o = g->c->o;
    return (rk_engine_config){.backend = o->backend,
                              .n_threads = rk_cli_threads(o, g->c->world),
                              .partition = o->partition,
                              .chunk = g->job.chunk,
                              .max_sequences = (int)g->job.max_sequences,
                              .max_prompt = g->job.max_prompt,
                              .max_new = g->job.max_new,
                              .select = rk_cli_select(o),
                              .budget = g->job.has_budget ? g->estimate : NULL,
                              .native = rk_cli_native(o, g->w),
                              .hash_weights = g->job.hash_weights != 0};
}

/* ---- dry run (leader) ---- */

static rk_status dry_run(generation *g) {
    const rk_config *m = rk_weights_config(g->w);
    rk_engine_config cfg = engine_config(g);
    int              P = rk_comm_size(g->c->world), *begin = NULL;
    RK_TRY(rk_mem_alloc_to(P + 1, sizeof(int), "partition", &begin));
    rk_status st = rk_engine_partition_of(m, &cfg, P, begin);
    if (st != RK_OK) {
        rk_mem_free(begin);
        return st;
    }
    rk_json *stages = rk_cli_dry_stages(g->w, &cfg, P, begin);
    rk_mem_free(begin);
    if (g->c->o->json) {
        rk_json *o = rk_json_object(), *list = rk_json_array();
        for (int l = 0; l < m->n_layers; l++)
            rk_json_add_int(list, cfg.budget ? g->estimate[l] : g->job.max_prompt);
        rk_json_set_bool(o, "dry_run", true);
        rk_json_set_int(o, "prompts", g->prompts.n);
        rk_json_set_int(o, "max_prompt_tokens", g->job.max_prompt);
        rk_json_set_int(o, "max_new_tokens", g->job.max_new);
        rk_json_set_int(o, "chunk", g->job.chunk);
        rk_json_set(o, "budgets", list);
        rk_json_set(o, "stages", stages);
        rk_cli_print_json(o);
    } else {
        printf("%d prompts, longest %lld tokens and %lld new ones, %lld at once, chunks of %lld\n",
               g->prompts.n, (long long)g->job.max_prompt, (long long)g->job.max_new,
               (long long)g->job.max_sequences, (long long)g->job.chunk);
        rk_cli_show_stages(stages);
        if (cfg.budget) {
            printf("budgets of the longest prompt\n");
            rk_cli_show_layers(m->n_layers, g->cache.sensitivity, NULL, g->estimate);
        }
        rk_json_close(stages);
    }
    return rk_cli_flush_stdout();
}

/* ---- the work (leader) ---- */

static rk_status make_requests(generation *g) {
    const rk_options *o = g->c->o;
    int               n = g->prompts.n, L = layers_of(g);
    RK_TRY(rk_mem_alloc_to(n, sizeof(rk_request), "requests", &g->requests));
    RK_TRY(rk_mem_alloc_to(n, sizeof(rk_completion), "answers", &g->done));
    for (int i = 0; i < n; i++) {
        const rk_prompt *p = &g->prompts.at[i];
        rk_request      *q = &g->requests[i];
        *q = (rk_request){.tokens = p->tokens,
                          .n_tokens = p->n_tokens,
                          .max_new = p->max_new,
                          .budget = g->job.has_budget ? g->budgets + (int64_t)i * L : NULL,
                          .sampler = {o->temperature, o->top_p, o->seed}};
        q->stop = rk_answers_stop(g->answers, i, &q->n_stop);
    }
    return RK_OK;
}

static rk_status open_answers(generation *g) {
    const rk_options *o = g->c->o;
    rk_answers_mode   mode = RK_ANSWERS_STREAM;
    if (o->output)
        mode = RK_ANSWERS_LINES;
    else if (o->json)
        mode = RK_ANSWERS_COLLECT;
    else if (o->input)
        mode = RK_ANSWERS_LINES;
    if (g->file && ftruncate(fileno(g->file), 0) != 0 && errno != EINVAL) /* EINVAL: a device */
        return RK_FAIL(RK_E_OUTPUT, "--output %s: cannot write: %m", o->output);
    return rk_answers_open(o, &g->prompts, rk_weights_config(g->w), mode,
                           g->file ? g->file : stdout, g->file ? o->output : "standard output",
                           &g->answers);
}

static rk_status answer_all(generation *g) {
    RK_TRY(open_answers(g));
    RK_TRY(make_requests(g));
    int              size = rk_tokenizer_size(g->prompts.tokenizer);
    int              V = rk_weights_config(g->w)->n_vocab;
    rk_batch_options b = {.n_usable = size < V ? size : V,
                          .first_compressed = strcmp(g->c->o->first_token, "compressed") == 0,
                          .on_token = rk_answers_on_token,
                          .on_done = rk_answers_on_done,
                          .arg = g->answers};
    double           t = rk_now_s();
    RK_TRY(rk_batch_run(g->e, &b, g->requests, g->prompts.n, g->done));
    g->run_s = rk_now_s() - t;
    return RK_OK;
}

static rk_status lead(generation *g) {
    rk_status st = answer_all(g);
    /* A disk that is full leaves the engine whole: the ranks can still part in order. */
    if (st != RK_OK && st != RK_E_OUTPUT) return st;
    RK_TRY(rk_engine_stop(g->e));
    return st;
}

static void warn_weights(const generation *g) {
    char     a[17], b[17];
    uint64_t mine = rk_engine_weights_hash(g->e);
    if (!g->cache.weights_hash || g->cache.weights_hash == mine) return;
    RK_LOG(RK_LOG_WARN, "budget",
           "%s was measured on other weights of this shape (weights_hash %s, here %s)",
           g->c->o->sensitivity, rk_hash_hex(g->cache.weights_hash, a), rk_hash_hex(mine, b));
}

/* ---- after the work (leader) ---- */

typedef struct totals {
    int64_t  prompt, fresh, kv_bytes, kept;
    uint64_t hash;
} totals;

static totals sum_up(const generation *g) {
    totals        t = {0};
    rk_hash_state h;
    rk_hash_init(&h);
    for (int i = 0; i < g->prompts.n; i++) {
        const rk_completion *c = &g->done[i];
        t.prompt += g->prompts.at[i].n_tokens;
        t.fresh += c->n_new;
        t.kv_bytes += c->kv_bytes;
        for (int l = 0; l < layers_of(g); l++) t.kept += c->kv_tokens[l];
        rk_hash_add(&h, &c->logits_hash, sizeof c->logits_hash);
    }
    t.hash = g->prompts.n == 1 ? g->done[0].logits_hash : rk_hash_digest(&h);
    return t;
}

static void log_summary(const generation *g, const totals *t) {
    char   hex[17], human[32], speed[96];
    double share = 100 * (double)t->kept / ((double)t->prompt * layers_of(g));
    rk_mem_human(t->kv_bytes, human);
    rk_hash_hex(t->hash, hex);
    const rk_completion *c = &g->done[0];
    if (g->prompts.n > 1)
        snprintf(speed, sizeof speed, "%.1f tokens/s together", (double)t->fresh / g->run_s);
    else if (c->n_new > 1 && c->decode_s > 0)
        snprintf(speed, sizeof speed, "first after %.2f s, then %.1f tokens/s", c->ttft_s,
                 (double)(c->n_new - 1) / c->decode_s);
    else
        snprintf(speed, sizeof speed, "first after %.2f s", c->ttft_s);
    RK_LOG(RK_LOG_INFO, "generate",
           "%lld prompt tokens, %lld new in %.2f s (%s); prompt cache %s (%.3g %%); logits hash %s",
           (long long)t->prompt, (long long)t->fresh, g->run_s, speed, human, share, hex);
}

static rk_json *summary_json(const generation *g, const totals *t) {
    rk_json *o = rk_json_object();
    rk_json_set_int(o, "prompts", g->prompts.n);
    rk_json_set_int(o, "prompt_tokens", t->prompt);
    rk_json_set_int(o, "new_tokens", t->fresh);
    rk_json_set_int(o, "kv_bytes", t->kv_bytes);
    rk_cli_set_hash(o, "logits_hash", t->hash);
    rk_json_set_num(o, "run_s", g->run_s);
    return o;
}

/* A single prompt's own object, or one about all prompts; `stages` in both. */
static void show_json(generation *g, const totals *t) {
    rk_json *made = rk_answers_take(g->answers);
    bool     single = made && !g->c->o->input;
    rk_json *o = single ? made : summary_json(g, t);
    if (made && !single) rk_json_set(o, "results", made);
    rk_cli_set_numbers(o, g->e);
    rk_json_set(o, "stages", rk_cli_stages(g->e));
    rk_cli_print_json(o);
}

static rk_status finish(generation *g) {
    totals t = sum_up(g);
    log_summary(g, &t);
    if (g->c->o->json) show_json(g, &t);
    if (g->file) {
        int bad = fclose(g->file);
        g->file = NULL;
        if (bad) return RK_FAIL(RK_E_OUTPUT, "cannot write to %s: %m", g->c->o->output);
    }
    return rk_cli_flush_stdout();
}

static rk_status run(generation *g) {
    rk_cli *c = g->c;
    RK_TRY(rk_cli_phase(c, prepare(g)));
    if (c->o->dry_run) return rk_cli_phase(c, c->leader ? dry_run(g) : RK_OK);
    RK_TRY(rk_comm_bcast(c->world, &g->job, sizeof g->job, 0));
    RK_TRY(rk_comm_bcast(c->world, g->estimate, layers_of(g) * (int64_t)sizeof(int32_t), 0));
    if (c->leader) rk_cli_log_settings(c->o);
    rk_engine_config cfg = engine_config(g);
    RK_TRY(rk_cli_path(c, &cfg));
    RK_TRY(rk_cli_phase(c, rk_engine_open(c->world, g->w, &cfg, &g->e)));
    rk_status st = RK_OK;
    if (c->leader) {
        warn_weights(g);
        st = lead(g);
        if (st == RK_OK) st = finish(g);
        if (st != RK_OK && st != RK_E_OUTPUT) return st; /* the others are still at work */
    } else {
        RK_TRY(rk_engine_serve(g->e));
    }
    return rk_cli_phase(c, st);
}

rk_status rk_cmd_generate(rk_cli *c) {
    generation g = {.c = c};
    rk_status  st = run(&g);
    for (int i = 0; g.done && i < g.prompts.n; i++) rk_completion_free(&g.done[i]);
    rk_mem_free(g.done);
    rk_mem_free(g.requests);
    rk_mem_free(g.budgets);
    rk_mem_free(g.estimate);
    rk_answers_close(g.answers);
    rk_engine_close(g.e);
    rk_prompts_free(&g.prompts);
    rk_cache_plan_close(&g.cache);
    rk_weights_close(g.w);
    if (g.file) fclose(g.file);
    return st;
}
