/* cmd_bench.c - ripplekv bench: speeds and bytes of a model on this machine, beside its roofs. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/cache.h"
#include "cli/cli.h"

enum { ROW_CAP = 1024 }; /* rows of a wave of variants, as in profile */

typedef struct benching {
    rk_cli       *c;
    rk_weights   *w;
    rk_engine    *e;
    int32_t      *estimate; /* [L] tokens that sequences hold while another is prefilled */
    rk_cache_plan cache;    /* the leader's */
    rk_bench      b;        /* the leader's */
} benching;

static int64_t largest(const rk_int_list *list) {
    int64_t most = 0;
    for (int i = 0; i < list->n; i++) most = list->v[i] > most ? list->v[i] : most;
    return most;
}

static int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* ---- before the work ---- */

static rk_status check_lengths(const benching *g) {
    const rk_options *o = g->c->o;
    int64_t           most = rk_weights_config(g->w)->max_positions;
    int64_t           prefill = largest(&o->bench_prefill), context = largest(&o->bench_context);
    if (prefill > most)
        return RK_FAIL(RK_E_USAGE,
                       "--prefill %lld does not fit in the model's context of %lld tokens",
                       (long long)prefill, (long long)most);
    if (o->bench_decode && context + o->bench_decode > most)
        return RK_FAIL(RK_E_USAGE,
                       "--context %lld and --decode %lld do not fit in the model's context of %lld "
                       "tokens",
                       (long long)context, (long long)o->bench_decode, (long long)most);
    if (o->bench_profile && context + o->response > most)
        return RK_FAIL(RK_E_USAGE,
                       "--context %lld and --response %lld do not fit in the model's context of "
                       "%lld tokens",
                       (long long)context, (long long)o->response, (long long)most);
    return RK_OK;
}

/* All budgets are made once before the work, so that a rule that refuses one is heard at once. */
static rk_status prepare_leader(benching *g) {
    const rk_options *o = g->c->o;
    rk_select_params  select = rk_cli_select(o);
    rk_budget_result  r;
    RK_TRY(rk_select_check(&select));
    if (rk_options_full_cache(o)) return RK_OK;
    RK_TRY(rk_cache_plan_open(o, rk_weights_config(g->w), &g->cache));
    for (int i = 0; i < o->bench_context.n; i++)
        RK_TRY(rk_cache_plan_split(&g->cache, o->bench_context.v[i], g->estimate, &r));
    return RK_OK;
}

static rk_status prepare(benching *g) {
    const rk_options *o = g->c->o;
    RK_TRY(rk_weights_open(o->model, &g->w));
    int L = rk_weights_config(g->w)->n_layers;
    RK_TRY(check_lengths(g));
    RK_TRY(rk_cli_check_weights(o, g->w));
    RK_TRY(rk_mem_alloc_to(L, sizeof(int32_t), "budgets", &g->estimate));
    if (g->c->leader) RK_TRY(prepare_leader(g));
    /* The full cache is measured too: sequences that wait hold whole contexts. */
    for (int l = 0; l < L; l++) g->estimate[l] = (int32_t)largest(&o->bench_context);
    return RK_OK;
}

static rk_engine_config engine_config(const benching *g) {
    const rk_options *o = g->c->o;
    bool              contexts = o->bench_decode || o->bench_profile;
    int64_t           context = contexts ? largest(&o->bench_context) : 1;
    int64_t           longest = max64(largest(&o->bench_prefill), context);
    rk_engine_config  cfg = {
         .backend = o->backend,
         .n_threads = rk_cli_threads(o, g->c->world),
         .partition = o->partition,
         .chunk = rk_cli_chunk(o, longest, rk_comm_size(g->c->world)),
         .max_sequences = (int)max64(o->bench_decode ? largest(&o->bench_batch) : 1,
                                     rk_bench_sequences(o)),
         .max_prompt = longest,
         .max_new = o->bench_decode,
         .select = rk_cli_select(o),
         .budget = longest > context ? g->estimate : NULL,
         .native = rk_cli_native(o, g->w),
    };
    if (o->bench_profile) {
        cfg.row_cap = max64(2 * o->response, ROW_CAP);
        cfg.max_response = o->response;
    }
    return cfg;
}

static rk_status dry_run(const benching *g) {
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
        rk_json *o = rk_json_object();
        rk_json_set_bool(o, "dry_run", true);
        rk_json_set_int(o, "max_prompt_tokens", cfg.max_prompt);
        rk_json_set_int(o, "max_new_tokens", cfg.max_new);
        rk_json_set_int(o, "sequences", cfg.max_sequences);
        rk_json_set_int(o, "chunk", cfg.chunk);
        rk_json_set(o, "stages", stages);
        rk_cli_print_json(o);
    } else {
        printf(
            "longest prompt %lld tokens and %lld new ones, %d sequences at once, chunks of %lld\n",
            (long long)cfg.max_prompt, (long long)cfg.max_new, cfg.max_sequences,
            (long long)cfg.chunk);
        rk_cli_show_stages(stages);
        rk_json_close(stages);
    }
    return rk_cli_flush_stdout();
}

/* ---- roofs ---- */

/* Ranks: collective. All ranks at once, as in a run, each with its threads; the sum is the job's.
 */
static rk_status measure_roofs(benching *g, rk_roofs *sum) {
    enum { MIB = 1 << 20, NODE = 512, LEAST = 64 };
    rk_comm  *world = g->c->world;
    int       P = rk_comm_size(world);
    rk_roofs  mine, *all = NULL;
    rk_status st = rk_mem_alloc_to(P, sizeof *all, "roofs", &all);
    RK_TRY_OUT(st, rk_cli_phase(g->c, st)); /* all begin together */
    int64_t bytes = max64(NODE / rk_comm_local_size(world), LEAST) * MIB;
    RK_TRY_OUT(st, rk_cli_phase(g->c, rk_roof_measure(rk_engine_backend(g->e), bytes, &mine)));
    RK_TRY_OUT(st, rk_comm_gather(world, &mine, sizeof mine, all, 0));
    *sum = mine; /* names are this rank's own: pointers of others mean nothing here */
    for (int p = 1; g->c->leader && p < P; p++) {
        sum->n_threads += all[p].n_threads;
        sum->flop_s += all[p].flop_s;
        sum->int8_op_s += all[p].int8_op_s;
        sum->memory_read_s += all[p].memory_read_s;
        sum->l2_read_s += all[p].l2_read_s;
        sum->memory_bytes += all[p].memory_bytes;
        sum->l2_bytes += all[p].l2_bytes;
    }
out:
    rk_mem_free(all);
    return st;
}

/* ---- the work ---- */

static rk_status lead(benching *g) {
    rk_bench *b = &g->b;
    *b = (rk_bench){.o = g->c->o,
                    .w = g->w,
                    .e = g->e,
                    .cache = rk_options_full_cache(g->c->o) ? NULL : &g->cache};
    RK_TRY(rk_bench_run(b));
    RK_TRY(rk_engine_stop(g->e));
    int P = rk_engine_stages(g->e);
    RK_TRY(rk_mem_alloc_to(P, sizeof *b->stages, "stages", &b->stages));
    memcpy(b->stages, rk_engine_stats(g->e), (size_t)P * sizeof *b->stages);
    /* The counter was reset between measurements. */
    b->stages[0].peak_bytes = max64(b->stages[0].peak_bytes, b->peak_bytes);
    return RK_OK;
}

static rk_status run(benching *g) {
    rk_cli *c = g->c;
    RK_TRY(rk_cli_phase(c, prepare(g)));
    if (c->o->dry_run) return rk_cli_phase(c, c->leader ? dry_run(g) : RK_OK);
    if (c->leader) rk_cli_log_settings(c->o);
    rk_engine_config cfg = engine_config(g);
    RK_TRY(rk_cli_path(c, &cfg));
    RK_TRY(rk_cli_phase(c, rk_engine_open(c->world, g->w, &cfg, &g->e)));
    /* A failure in here is not agreed: the other ranks are at work, and main ends the job. */
    if (c->leader)
        RK_TRY(lead(g));
    else
        RK_TRY(rk_engine_serve(g->e));
    rk_roofs roofs;
    RK_TRY(measure_roofs(g, &roofs));
    if (!c->leader) return rk_cli_phase(c, RK_OK);
    g->b.roofs = roofs;
    (c->o->json ? rk_bench_show_json : rk_bench_show)(&g->b);
    return rk_cli_phase(c, rk_cli_flush_stdout());
}

rk_status rk_cmd_bench(rk_cli *c) {
    benching  g = {.c = c};
    rk_status st = run(&g);
    rk_bench_free(&g.b);
    rk_engine_close(g.e);
    rk_mem_free(g.estimate);
    rk_cache_plan_close(&g.cache);
    rk_weights_close(g.w);
    return st;
}
