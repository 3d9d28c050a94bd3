/* bench_report.c - the result of ripplekv bench as text and as JSON; see bench.h. */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/cli.h"

static const double GIGA = 1e9, MEBI = 1048576;

/* ---- what times are compared with ---- */

/* Floating-point operations of a prefill: two for each multiply and add of the layers' matrices,
 * for every token, and of attention, where token i meets i + 1 keys and as many values in each
 * head: 2 * (n * (D (H + 2 G) d + H d D + 3 D F) + 2 H d * n (n + 1) / 2) * L. The head, which one
 * row passes, the norms and the softmax are left out. */
static double prefill_flop(const rk_config *m, int64_t n) {
    return 2 * rk_plan_layer_cost(m, (double)n, 0, 0) * m->n_layers;
}

/* Bytes of weights that a decode step reads: all that the ranks hold, but of the table of
 * embeddings a few rows only where it is not also the head. */
static double step_weight_bytes(const rk_bench *b) {
    rk_dtype dtype = rk_engine_backend(b->e)->weight_dtype;
    int      P = rk_engine_stages(b->e);
    int64_t  bytes = 0,
            table = rk_model_matrix_bytes(b->w, dtype, rk_engine_native(b->e), 0, 0, true, false);
    for (int p = 0; p < P; p++) bytes += b->stages[p].weight_bytes;
    return (double)(rk_engine_model(b->e)->tied && P == 1 ? bytes : bytes - table);
}

/* Bytes that a step reads of all caches: what the prompts left, and on average half of what the
 * decoding adds. */
static double step_kv_bytes(const rk_bench *b, const rk_bench_decode *r) {
    const rk_config *m = rk_engine_model(b->e);
    double           slot = 2.0 * m->n_kv_heads * m->head_dim * m->n_layers *
                  (double)rk_dtype_bytes(rk_engine_backend(b->e)->weight_dtype);
    return (double)r->kv_bytes + r->batch * slot * ((double)r->n_new + 1) / 2;
}

static double share(double rate, double roof) {
    return roof > 0 ? rate / roof : 0;
}

/* ---- JSON ---- */

static rk_json *prefill_json(const rk_bench *b, const rk_bench_prefill *r) {
    rk_json *o = rk_json_object();
    double   flop_s = prefill_flop(rk_engine_model(b->e), r->n) / r->s;
    rk_json_set_int(o, "tokens", r->n);
    rk_json_set_num(o, "prefill_s", r->s);
    rk_json_set_num(o, "min_s", r->min_s);
    rk_json_set_num(o, "max_s", r->max_s);
    rk_json_set_num(o, "tok_s", (double)r->n / r->s);
    rk_json_set_num(o, "flop_s", flop_s);
    rk_json_set_num(o, "of_roof", share(flop_s, b->roofs.flop_s));
    rk_json_set_int(o, "peak_bytes", r->peak_bytes);
    rk_cli_set_hash(o, "logits_hash", r->hash);
    return o;
}

static rk_json *decode_json(const rk_bench *b, const rk_bench_decode *r) {
    rk_json *o = rk_json_object();
    double   weights = step_weight_bytes(b), kv = step_kv_bytes(b, r);
    double   read_s = (weights + kv) / r->step_s;
    rk_json_set_int(o, "context", r->context);
    rk_json_set_int(o, "batch", r->batch);
    rk_json_set_str(o, "cache", r->compressed ? "compressed" : "full");
    rk_json_set_int(o, "new_tokens", r->n_new);
    rk_json_set_num(o, "step_s", r->step_s);
    rk_json_set_num(o, "decode_s", r->all_s);
    rk_json_set_num(o, "decode_tok_s", r->batch / r->step_s);
    rk_json_set_num(o, "mean_tok_s", r->batch * (double)r->n_new / r->all_s);
    rk_json_set_num(o, "step_weight_bytes", weights);
    rk_json_set_num(o, "step_kv_bytes", kv);
    rk_json_set_num(o, "read_s", read_s);
    rk_json_set_num(o, "of_roof", share(read_s, b->roofs.memory_read_s));
    rk_json_set_num(o, "prefill_s", r->prefill_s);
    if (r->compressed) {
        rk_json_set_num(o, "compress_s", r->compress_s);
        rk_json_set_num(o, "compress_prefills", r->compress_s / r->prefill_s);
    }
    rk_json_set_num(o, "kv_tokens", r->kv_tokens);
    rk_json_set_int(o, "kv_bytes", r->kv_bytes);
    rk_json_set_int(o, "peak_bytes", r->peak_bytes);
    rk_cli_set_hash(o, "logits_hash", r->hash);
    return o;
}

static rk_json *pair_json(const rk_bench *b, const rk_bench_pair *r) {
    rk_json *o = rk_json_object();
    rk_json_set_int(o, "context", r->context);
    rk_json_set_int(o, "new_tokens", r->n_new);
    rk_json_set_str(o, "allocator", b->o->allocator);
    rk_json_set_int(o, "kept", r->kept[0]);
    rk_json_set_int(o, "uniform_kept", r->kept[1]);
    rk_json_set_num(o, "step_s", r->step_s[0]);
    rk_json_set_num(o, "uniform_step_s", r->step_s[1]);
    rk_json_set_num(o, "ratio", r->ratio);
    rk_json_set_num(o, "ratio_low", r->ratio_low);
    rk_json_set_num(o, "ratio_high", r->ratio_high);
    return o;
}

static rk_json *profile_json(const rk_bench *b, const rk_bench_profile *r) {
    rk_json *o = rk_json_object();
    rk_json_set_int(o, "context", r->context);
    rk_json_set_int(o, "response", r->response);
    rk_json_set_int(o, "layers", rk_engine_model(b->e)->n_layers);
    rk_json_set_num(o, "prefill_s", r->prefill_s);
    rk_json_set_num(o, "profile_s", r->profile_s);
    rk_json_set_num(o, "prefills", r->profile_s / r->prefill_s);
    rk_json_set_int(o, "peak_bytes", r->peak_bytes);
    rk_cli_set_hash(o, "logits_hash", r->hash);
    return o;
}

static rk_json *roofs_json(const rk_roofs *r) {
    rk_json *o = rk_json_object();
    rk_json_set_num(o, "flop_s", r->flop_s);
    rk_json_set_str(o, "flop_kind", r->flop_kind);
    if (r->int8_kind) {
        rk_json_set_num(o, "int8_op_s", r->int8_op_s);
        rk_json_set_str(o, "int8_kind", r->int8_kind);
    }
    rk_json_set_num(o, "memory_read_s", r->memory_read_s);
    rk_json_set_int(o, "memory_bytes", r->memory_bytes);
    rk_json_set_num(o, "l2_read_s", r->l2_read_s);
    rk_json_set_int(o, "l2_bytes", r->l2_bytes);
    rk_json_set_int(o, "threads", r->n_threads);
    return o;
}

/* The first context and batch, under the cache options where there are any. */
static const rk_bench_decode *first_decode(const rk_bench *b) {
    return b->n_decode ? &b->decode[b->cache ? 1 : 0] : NULL;
}

static int64_t job_peak(const rk_bench *b) {
    int64_t sum = 0;
    for (int p = 0; p < rk_engine_stages(b->e); p++) sum += b->stages[p].peak_bytes;
    return sum;
}

static void set_first(const rk_bench *b, rk_json *o) {
    const rk_bench_decode *d = first_decode(b);
    if (b->n_prefill || d || b->n_profile)
        rk_json_set_num(o, "prefill_s",
                        b->n_prefill ? b->prefill[0].s
                        : d          ? d->prefill_s
                                     : b->profile[0].prefill_s);
    if (d) {
        rk_json_set_num(o, "decode_tok_s", d->batch / d->step_s);
        rk_json_set_int(o, "kv_bytes", d->kv_bytes);
        if (d->compressed) rk_json_set_num(o, "compress_s", d->compress_s);
    }
    if (b->n_profile) {
        rk_json_set_num(o, "profile_s", b->profile[0].profile_s);
        rk_json_set_num(o, "prefills", b->profile[0].profile_s / b->profile[0].prefill_s);
    }
    rk_json_set_int(o, "peak_bytes", job_peak(b));
    rk_cli_set_hash(o, "logits_hash",
                    d              ? d->hash
                    : b->n_prefill ? b->prefill[0].hash
                                   : b->profile[0].hash);
}

void rk_bench_show_json(const rk_bench *b) {
    const rk_backend *be = rk_engine_backend(b->e);
    const rk_config  *m = rk_engine_model(b->e);
    rk_json          *o = rk_json_object(), *prefill = rk_json_array(), *decode = rk_json_array();
    rk_json          *profile = rk_json_array(), *pair = rk_json_array();
    rk_json_set_str(o, "model", m->name[0] ? m->name : m->arch);
    rk_cli_set_numbers(o, b->e);
    rk_json_set_int(o, "ranks", rk_engine_stages(b->e));
    rk_json_set_int(o, "threads", be->n_threads);
    rk_json_set_int(o, "seed", (int64_t)b->o->seed);
    rk_json_set_int(o, "repeat", b->o->repeat);
    set_first(b, o);
    for (int i = 0; i < b->n_prefill; i++) rk_json_add(prefill, prefill_json(b, &b->prefill[i]));
    for (int i = 0; i < b->n_decode; i++) rk_json_add(decode, decode_json(b, &b->decode[i]));
    for (int i = 0; i < b->n_profile; i++) rk_json_add(profile, profile_json(b, &b->profile[i]));
    rk_json_set(o, "prefill", prefill);
    rk_json_set(o, "decode", decode);
    for (int i = 0; i < b->n_pair; i++) rk_json_add(pair, pair_json(b, &b->pair[i]));
    rk_json_set(o, "beside_uniform", pair);
    rk_json_set(o, "profile", profile);
    rk_json_set(o, "roofs", roofs_json(&b->roofs));
    rk_json_set(o, "stages", rk_cli_stages_of(b->stages, rk_engine_stages(b->e)));
    rk_cli_print_json(o);
}

/* ---- text ---- */

/* "83 %", or "-" without a roof; returns buf. */
static const char *percent(double rate, double roof, char buf[16]) {
    if (roof > 0)
        snprintf(buf, 16, "%.0f %%", 100 * rate / roof);
    else
        snprintf(buf, 16, "-");
    return buf;
}

static void show_head(const rk_bench *b) {
    const rk_backend *be = rk_engine_backend(b->e);
    const rk_config  *m = rk_engine_model(b->e);
    const rk_roofs   *r = &b->roofs;
    int               P = rk_engine_stages(b->e);
    char              peak[32];
    printf("%s, %d layers, %s weights; %s order on %s, %d rank%s, %d thread%s\n",
           m->name[0] ? m->name : m->arch, m->n_layers, rk_cli_weights_form(b->e), be->numerics,
           be->path, P, P > 1 ? "s" : "", r->n_threads, r->n_threads > 1 ? "s" : "");
    printf("roofs      %.0f GFLOP/s (%s)", r->flop_s / GIGA, r->flop_kind);
    if (r->int8_kind) printf(", %.0f GOP/s (%s)", r->int8_op_s / GIGA, r->int8_kind);
    if (r->memory_read_s > 0) printf(", memory %.1f GB/s", r->memory_read_s / GIGA);
    printf(", second-level caches %.0f GB/s\n", r->l2_read_s / GIGA);
    printf("memory     %s at most, all ranks\n", rk_mem_human(job_peak(b), peak));
}

static void show_prefill(const rk_bench *b) {
    char hex[17], of[16], spread[40];
    printf("\nprefill  median of %lld\n", (long long)b->o->repeat);
    printf("  tokens   seconds  (least - most)       tok/s  GFLOP/s  of roof  logits hash\n");
    for (int i = 0; i < b->n_prefill; i++) {
        const rk_bench_prefill *r = &b->prefill[i];
        double                  flop_s = prefill_flop(rk_engine_model(b->e), r->n) / r->s;
        snprintf(spread, sizeof spread, "(%.4g - %.4g)", r->min_s, r->max_s);
        printf("%8lld  %8.4f  %-18s %8.1f  %7.1f  %7s  %s\n", (long long)r->n, r->s, spread,
               (double)r->n / r->s, flop_s / GIGA, percent(flop_s, b->roofs.flop_s, of),
               rk_hash_hex(r->hash, hex));
    }
}

static void show_decode(const rk_bench *b) {
    char hex[17], of[16];
    printf("\ndecode  %lld new tokens a sequence; median step, all sequences together\n",
           (long long)b->decode[0].n_new);
    printf(" context batch   kept   step ms     tok/s  read MiB   GB/s of roof cache MiB  peak MiB"
           "  logits hash\n");
    for (int i = 0; i < b->n_decode; i++) {
        const rk_bench_decode *r = &b->decode[i];
        double                 bytes = step_weight_bytes(b) + step_kv_bytes(b, r);
        printf("%8lld %5d %6.0f %9.3f %9.1f %9.1f %6.1f %7s %9.2f %9.1f  %s\n",
               (long long)r->context, r->batch, r->kv_tokens, r->step_s * 1e3, r->batch / r->step_s,
               bytes / MEBI, bytes / r->step_s / GIGA,
               percent(bytes / r->step_s, b->roofs.memory_read_s, of), (double)r->kv_bytes / MEBI,
               (double)r->peak_bytes / MEBI, rk_hash_hex(r->hash, hex));
    }
    if (!b->cache) return;
    printf("\ncompression of one sequence\n context batch   kept        ms  of its prefill\n");
    for (int i = 0; i < b->n_decode; i++) {
        const rk_bench_decode *r = &b->decode[i];
        if (r->compressed)
            printf("%8lld %5d %6.0f %9.2f  %.2f %%\n", (long long)r->context, r->batch,
                   r->kv_tokens, r->compress_s * 1e3, 100 * r->compress_s / r->prefill_s);
    }
}

static void show_pair(const rk_bench *b) {
    printf("\n%s beside uniform at the same total, decoded in turn\n", b->o->allocator);
    printf(" context     kept  uniform   step ms  uniform     ratio  (quartiles over the steps)\n");
    for (int i = 0; i < b->n_pair; i++) {
        const rk_bench_pair *r = &b->pair[i];
        printf("%8lld %8lld %8lld  %8.3f %8.3f  %8.3f  (%.3f - %.3f)\n", (long long)r->context,
               (long long)r->kept[0], (long long)r->kept[1], r->step_s[0] * 1e3, r->step_s[1] * 1e3,
               r->ratio, r->ratio_low, r->ratio_high);
    }
}

static void show_profile(const rk_bench *b) {
    char hex[17];
    printf("\nprofile of a sample, all %d layers; median of %lld\n",
           rk_engine_model(b->e)->n_layers, (long long)b->o->repeat);
    printf(" context  response  prefill s   whole s  prefills  logits hash\n");
    for (int i = 0; i < b->n_profile; i++) {
        const rk_bench_profile *r = &b->profile[i];
        printf("%8lld  %8lld  %9.4f  %8.4f  %8.2f  %s\n", (long long)r->context,
               (long long)r->response, r->prefill_s, r->profile_s, r->profile_s / r->prefill_s,
               rk_hash_hex(r->hash, hex));
    }
}

void rk_bench_show(const rk_bench *b) {
    show_head(b);
    if (b->n_prefill) show_prefill(b);
    if (b->n_decode) show_decode(b);
    if (b->n_pair) show_pair(b);
    if (b->n_profile) show_profile(b);
}
