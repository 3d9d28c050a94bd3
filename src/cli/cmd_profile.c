/* cmd_profile.c - ripplekv profile: layer sensitivities of a model into an HDF5 file. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "core/tokenizer.h"
#include "profiler/profiler.h"
#include "rk_version.h"

enum { ROW_CAP = 1024 }; /* rows of a wave of variants: bounds its memory, not its result */

typedef struct profiling {
    rk_cli          *c;
    rk_weights      *w;
    rk_comm         *replica;
    rk_engine       *e;
    rk_calibration   calibration;
    rk_profile       out;
    rk_profiler_cost cost;
    int              n_stages, index; /* P; which replica this rank is of */
    int64_t          max_prompt;
} profiling;

/* ---- before the work ---- */

static rk_status check_shape(const profiling *g) {
    const rk_options *o = g->c->o;
    const rk_config  *m = rk_weights_config(g->w);
    int               n = rk_comm_size(g->c->world);
    if (o->context + o->response > m->max_positions)
        return RK_FAIL(
            RK_E_USAGE,
            "--context %lld and --response %lld do not fit in the model's context of %lld "
            "tokens",
            (long long)o->context, (long long)o->response, (long long)m->max_positions);
    if (n % o->replicas != 0)
        return RK_FAIL(RK_E_USAGE, "--replicas %lld does not divide the %d ranks",
                       (long long)o->replicas, n);
    return RK_OK;
}

/* Every rank makes the same samples from the same file. */
static rk_status prepare(profiling *g) {
    const rk_options *o = g->c->o;
    rk_tokenizer     *t = NULL;
    rk_status         st;
    RK_TRY(rk_weights_open(o->model, &g->w));
    RK_TRY(rk_cli_check_weights(o, g->w));
    RK_TRY(check_shape(g));
    if (g->c->leader) RK_TRY(rk_profile_probe(o->output));
    RK_TRY(rk_tokenizer_open_model(o->model, rk_weights_gguf(g->w), &t));
    RK_TRY_OUT(st, rk_calibration_load(o->calibration, t, o->context, o->response, (int)o->samples,
                                       &g->calibration));
    for (int i = 0; i < g->calibration.n_samples; i++) {
        const rk_sample *s = &g->calibration.samples[i];
        if (s->n_prompt > g->max_prompt) g->max_prompt = s->n_prompt;
        for (int64_t k = 0; k < s->n_prompt + s->n_response; k++)
            if (s->tokens[k] >= rk_weights_config(g->w)->n_vocab) {
                st = RK_FAIL(RK_E_INPUT, "%s: its tokenizer gives id %d, the model has %d rows",
                             o->model, s->tokens[k], rk_weights_config(g->w)->n_vocab);
                goto out;
            }
    }
    g->n_stages = rk_comm_size(g->c->world) / (int)o->replicas;
    g->index = rk_comm_rank(g->c->world) / g->n_stages;
out:
    rk_tokenizer_close(t);
    return st;
}

/* The policy of the damages, whose window is that of the attention's statistics too; without them
 * nothing is selected. */
static rk_select_params select_of(const rk_options *o) {
    bool attention = rk_options_signal(o, "attention");
    return rk_options_signal(o, "damage") || attention ? rk_cli_policy(o) : (rk_select_params){.kernel = 1};
}

static void describe_policy(const rk_options *o, rk_profile_policy *p) {
    snprintf(p->policy, sizeof p->policy, "%s", o->policy);
    snprintf(p->pool, sizeof p->pool, "%s", o->pool);
    snprintf(p->group_reduce, sizeof p->group_reduce, "%s", o->group_reduce);
    snprintf(p->head_mode, sizeof p->head_mode, "%s", o->head_mode);
    p->alpha = strcmp(o->head_mode, "kv") ? o->alpha : 0;
    p->window = (int)o->window;
    p->sinks = (int)o->sinks;
    p->kernel = (int)o->kernel;
    p->pool_first = o->pool_first;
}

static rk_engine_config engine_config(const profiling *g) {
    const rk_options *o = g->c->o;
    int64_t           rows = 2 * o->response > ROW_CAP ? 2 * o->response : ROW_CAP;
    return (rk_engine_config){.backend = o->backend,
                              .n_threads = rk_cli_threads(o, g->c->world),
                              .partition = o->partition,
                              .for_profile = true,
                              .chunk = rk_cli_chunk(o, g->max_prompt, g->n_stages),
                              .max_sequences = 1,
                              .max_prompt = g->max_prompt,
                              .row_cap = rows,
                              .max_response = o->response,
                              .select = select_of(o),
                              .hash_weights = true,
                              .native = rk_cli_native(o, g->w),
                              .quiet = g->index != 0};
}

static rk_status dry_run(const profiling *g) {
    const rk_config *m = rk_weights_config(g->w);
    rk_engine_config cfg = engine_config(g);
    int             *begin = NULL;
    RK_TRY(rk_mem_alloc_to(g->n_stages + 1, sizeof(int), "partition", &begin));
    rk_status st = rk_engine_partition_of(m, &cfg, g->n_stages, begin);
    if (st != RK_OK) {
        rk_mem_free(begin);
        return st;
    }
    rk_json *stages = rk_cli_dry_stages(g->w, &cfg, g->n_stages, begin);
    rk_mem_free(begin);
    if (g->c->o->json) {
        rk_json *o = rk_json_object();
        rk_json_set_bool(o, "dry_run", true);
        rk_json_set_int(o, "samples", g->calibration.n_samples);
        rk_json_set_int(o, "skipped", g->calibration.n_skipped);
        rk_json_set_int(o, "replicas", g->c->o->replicas);
        rk_json_set_int(o, "max_prompt_tokens", g->max_prompt);
        rk_json_set_int(o, "chunk", cfg.chunk);
        rk_json_set(o, "stages", stages);
        rk_cli_print_json(o);
    } else {
        printf("%d samples (%d too short), longest prompt %lld tokens; %lld replicas of %d stages, "
               "chunks of %lld\n",
               g->calibration.n_samples, g->calibration.n_skipped, (long long)g->max_prompt,
               (long long)g->c->o->replicas, g->n_stages, (long long)cfg.chunk);
        rk_cli_show_stages(stages);
        rk_json_close(stages);
    }
    return rk_cli_flush_stdout();
}

/* ---- the work ---- */

static void copy_name(char *to, size_t cap, const char *name, const char *path) {
    if (name[0]) {
        snprintf(to, cap, "%.*s", (int)cap - 1, name);
        return;
    }
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && path[from - 1] != '/') from--;
    snprintf(to, cap, "%.*s", (int)(n - from < cap ? n - from : cap - 1), path + from);
}

static rk_status command_line(const rk_cli *c, char **out) {
    size_t n = 1;
    for (int i = 0; i < c->argc; i++) n += strlen(c->argv[i]) + 1;
    RK_TRY(rk_mem_alloc_to((int64_t)n, 1, "command line", out));
    for (int i = 0; i < c->argc; i++) {
        if (i) strcat(*out, " ");
        strcat(*out, c->argv[i]);
    }
    return RK_OK;
}

static rk_status describe(profiling *g) {
    const rk_options *o = g->c->o;
    const rk_config  *m = rk_weights_config(g->w);
    rk_backend       *be = rk_engine_backend(g->e);
    rk_profile       *p = &g->out;
    RK_TRY(rk_profile_init(p, m->n_layers, g->calibration.n_samples, o->epsilon.n, (int)o->draws));
    memcpy(p->epsilon, o->epsilon.v, (size_t)o->epsilon.n * sizeof(double));
    if (rk_options_signal(o, "local")) RK_TRY(rk_profile_add_local(p));
    if (rk_options_signal(o, "attention")) RK_TRY(rk_profile_add_attention(p));
    if (rk_options_signal(o, "damage")) {
        RK_TRY(rk_profile_add_damage(p, o->levels.v, o->levels.n));
        describe_policy(o, &p->policy);
    }
    p->seed = o->seed;
    p->context = o->context;
    p->response = o->response;
    p->n_kv_heads = m->n_kv_heads;
    p->head_dim = m->head_dim;
    p->ranks = rk_comm_size(g->c->world);
    p->replicas = (int)o->replicas;
    p->threads = be->n_threads;
    p->model_shape_hash = rk_config_shape_hash(m);
    p->weights_hash = rk_engine_weights_hash(g->e);
    p->calibration_hash = g->calibration.hash;
    copy_name(p->model_name, sizeof p->model_name, m->name, o->model);
    const char *dtype = rk_dtype_name(be->weight_dtype);
    snprintf(p->backend, sizeof p->backend, "%s", o->backend);
    snprintf(p->dtype, sizeof p->dtype, "%s", dtype);
    snprintf(p->numerics, sizeof p->numerics, "%s", be->numerics);
    snprintf(p->weights, sizeof p->weights, "%s", rk_cli_weights_form(g->e));
    snprintf(p->signal, sizeof p->signal, "%s", o->signal);
    snprintf(p->version, sizeof p->version, "%s", RK_VERSION);
    return command_line(g->c, &p->command);
}

/* ---- after the work (leader) ---- */

/* Means over the samples: `local` [L], and `damage` [K][L] with `levels` [K]. */
static rk_status set_signals(const rk_profile *p, rk_json *o) {
    int     L = p->n_layers, K = p->n_levels;
    double *x = NULL;
    rk_status st;
    RK_TRY_OUT(st, rk_mem_alloc_to((int64_t)(K + 1) * L, sizeof(double), "means", &x));
    if (p->local) {
        rk_json *list = rk_json_array();
        rk_json_set(o, "local", list);
        RK_TRY_OUT(st, rk_profile_mean(p, p->local, x));
        for (int l = 0; l < L; l++) rk_json_add_num(list, x[l]);
    }
    if (K) {
        rk_json *levels = rk_json_array(), *rows = rk_json_array();
        rk_json_set(o, "levels", levels);
        rk_json_set(o, "damage", rows);
        RK_TRY_OUT(st, rk_profile_mean_damage(p, x));
        for (int k = 0; k < K; k++) {
            rk_json *row = rk_json_array();
            for (int l = 0; l < L; l++) rk_json_add_num(row, x[k * L + l]);
            rk_json_add_num(levels, p->levels[k]);
            rk_json_add(rows, row);
        }
    }
out:
    rk_mem_free(x);
    return st;
}

static rk_status show_json(const profiling *g) {
    const rk_profile *p = &g->out;
    rk_json          *o = rk_json_object(), *list = rk_json_array(), *std = rk_json_array();
    for (int l = 0; l < p->n_layers; l++) {
        rk_json_add_num(list, p->sensitivity[l]);
        rk_json_add_num(std, p->sensitivity_std[l]);
    }
    rk_json_set(o, "sensitivity", list);
    rk_json_set(o, "sensitivity_std", std);
    rk_json_set_num(o, "noise_floor", p->noise_floor);
    rk_cli_set_hash(o, "logits_hash", g->cost.logits_hash);
    rk_json_set_num(o, "prefill_s", g->cost.prefill_s);
    rk_json_set_num(o, "profile_s", g->cost.profile_s);
    rk_json_set_num(o, "prefills", g->cost.prefills);
    rk_json_set_int(o, "samples", p->n_samples);
    rk_json_set_int(o, "skipped", g->calibration.n_skipped);
    rk_json_set_int(o, "resumed", g->cost.n_resumed);
    rk_json_set_str(o, "output", g->c->o->output);
    rk_cli_set_numbers(o, g->e);
    rk_json_set(o, "stages", rk_cli_stages(g->e));
    rk_status st = set_signals(p, o);
    rk_cli_print_json(o);
    return st;
}

static rk_status show_table(const profiling *g) {
    const rk_profile *p = &g->out;
    rk_cli_show_layers(p->n_layers, p->sensitivity, p->n_samples > 1 ? p->sensitivity_std : NULL,
                       NULL);
    printf("noise floor %.2e nats per token (what rounding alone shows), epsilon %g, %d samples\n",
           p->noise_floor, p->epsilon[0], p->n_samples);
    if (isfinite(g->cost.profile_s))
        printf(
            "cost of a sample: prefill %.2f s, with all layers measured %.2f s = %.1f prefills\n",
            g->cost.prefill_s, g->cost.profile_s, g->cost.prefills);
    if (g->cost.n_resumed) printf("%d pieces of work were there already\n", g->cost.n_resumed);
    printf("written to %s%s%s%s\n", g->c->o->output, p->local || p->n_levels ? ", with" : "",
           p->local ? " local responses" : "",
           p->n_levels ? p->local ? " and damages" : " damages" : "");
    return RK_OK;
}

static rk_status run(profiling *g) {
    rk_cli           *c = g->c;
    const rk_options *o = c->o;
    const volatile int *stop = rk_cli_catch_signals();
    RK_TRY(rk_cli_phase(c, prepare(g)));
    if (o->dry_run) return rk_cli_phase(c, c->leader ? dry_run(g) : RK_OK);
    if (c->leader) {
        rk_cli_log_settings(o);
        if (g->calibration.n_samples < o->samples || g->calibration.n_skipped)
            RK_LOG(RK_LOG_INFO, "profile", "%s gives %d samples; %d items were too short",
                   o->calibration, g->calibration.n_samples, g->calibration.n_skipped);
    }
    RK_TRY(rk_comm_split(c->world, g->index, &g->replica));
    rk_engine_config cfg = engine_config(g);
    RK_TRY(rk_cli_path(c, &cfg));
    RK_TRY(rk_cli_phase(c, rk_engine_open(g->replica, g->w, &cfg, &g->e)));
    RK_TRY(rk_cli_phase(c, describe(g)));
    rk_profiler_job job = {.calibration = &g->calibration,
                           .epsilon = o->epsilon.v,
                           .n_epsilon = o->epsilon.n,
                           .n_draws = (int)o->draws,
                           .seed = o->seed,
                           .levels = o->levels.v,
                           .n_levels = g->out.n_levels,
                           .window = (int)o->window,
                           .sinks = (int)o->sinks,
                           .output = o->output,
                           .resume = o->resume,
                           .stop_request = stop};
    RK_TRY(rk_profiler_run(c->world, g->e, g->replica, g->index, (int)o->replicas, &job, &g->out,
                           &g->cost));
    if (c->leader) {
        rk_status st = (o->json ? show_json : show_table)(g);
        return rk_cli_phase(c, st == RK_OK ? rk_cli_flush_stdout() : st);
    }
    return rk_cli_phase(c, RK_OK);
}

rk_status rk_cmd_profile(rk_cli *c) {
    profiling g = {.c = c};
    rk_status st = run(&g);
    rk_engine_close(g.e);
    rk_profile_free(&g.out);
    rk_calibration_free(&g.calibration);
    rk_weights_close(g.w);
    rk_comm_close(g.replica);
    return st;
}
