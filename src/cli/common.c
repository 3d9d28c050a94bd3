/* common.c - see cli.h. */
#define _GNU_SOURCE /* sched_getaffinity */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/cli.h"

/* kvpress' expected_attention is adaptive heads over scores that are raised by this much. */
static const double EXPECTED_EPSILON = 0.01;

rk_status rk_cli_phase(rk_cli *c, rk_status mine) {
    if (mine == RK_E_PEER) return mine;
    rk_status st = rk_comm_agree(c->world, mine, &c->reporter);
    c->agreed = st != RK_OK && (st != RK_E_PEER);
    return st;
}

/* The one thing that a signal handler can reach. */
static volatile int stop_request;

static void on_signal(int sig) {
    stop_request = 1;
    signal(sig, SIG_DFL); /* a second one ends it the hard way */
}

const volatile int *rk_cli_catch_signals(void) {
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&a.sa_mask);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
    return &stop_request;
}

rk_status rk_cli_wait_for_replicas(rk_cli *c) {
    enum { STEPS = 30 };
    double t = rk_comm_timeout(c->world);
    rk_comm_set_timeout(c->world, STEPS * t);
    rk_status st = rk_comm_barrier(c->world);
    rk_comm_set_timeout(c->world, t);
    return st;
}

void rk_cli_log_settings(const rk_options *o) {
    char buf[1800];
    RK_LOG(RK_LOG_INFO, "settings", "%s %s", rk_command_name(o->command),
           rk_options_settings(o, buf, sizeof buf));
}

int rk_cli_threads(const rk_options *o, const rk_comm *comm) {
    if (o->threads > 0) return (int)o->threads;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    long cores = CPU_COUNT(&set), online = sysconf(_SC_NPROCESSORS_ONLN);
    /* A rank that may run anywhere shares the cores with the node's other ranks. */
    if (cores >= online) cores /= rk_comm_local_size(comm);
    return cores < 1 ? 1 : (int)cores;
}

int64_t rk_cli_chunk(const rk_options *o, int64_t n_prompt, int n_stages) {
    enum { MOST = 512, LEAST = 64, STEP = 32, PER_STAGE = 4 };
    if (o->chunk > 0) return o->chunk;
    if (n_stages == 1) return MOST;
    int64_t n = n_prompt / (PER_STAGE * (int64_t)n_stages) / STEP * STEP;
    return n < LEAST ? LEAST : n > MOST ? MOST : n;
}

rk_status rk_cli_path(rk_cli *c, rk_engine_config *cfg) {
    const char *isa = getenv("RIPPLEKV_ISA");
    char        list[RK_PATH_LIST];
    cfg->numerics = c->o->numerics;
    if (strcmp(c->o->numerics, "auto") == 0) RK_TRY(rk_engine_agree_numerics(c->world, &cfg->numerics));
    if (!isa || !*isa || strcmp(c->o->backend, "cpu") != 0) return RK_OK;
    cfg->isa = isa;
    rk_status st = RK_OK;
    if (!rk_backend_has_isa(isa, cfg->numerics))
        st = RK_FAIL(RK_E_USAGE, "RIPPLEKV_ISA=%s: this CPU has no such path in %s order; there are %s",
                     isa, cfg->numerics, rk_backend_list_isas(cfg->numerics, list));
    return rk_cli_phase(c, st);
}

bool rk_cli_native(const rk_options *o, const rk_weights *w) {
    if (o->weights) return strcmp(o->weights, "native") == 0;
    return strcmp(o->backend, "cpu") == 0 && rk_quant_of_name(rk_weights_dtype(w)) != RK_QUANT_NONE;
}

rk_status rk_cli_check_weights(const rk_options *o, const rk_weights *w) {
    if (!rk_cli_native(o, w) || rk_quant_of_name(rk_weights_dtype(w)) != RK_QUANT_NONE) return RK_OK;
    return RK_FAIL(RK_E_USAGE, "--weights native: %s holds %s, which is not quantised; use --weights bf16",
                   o->model, rk_weights_dtype(w));
}

const char *rk_cli_weights_form(rk_engine *e) {
    return rk_engine_native(e) ? "native" : rk_dtype_name(rk_engine_backend(e)->weight_dtype);
}

void rk_cli_set_numbers(rk_json *o, rk_engine *e) {
    const rk_backend *be = rk_engine_backend(e);
    rk_json_set_str(o, "backend", be->ops->name);
    rk_json_set_str(o, "numerics", be->numerics);
    rk_json_set_str(o, "weights", rk_cli_weights_form(e));
    rk_json_set_str(o, "path", be->path);
}

rk_select_params rk_cli_policy(const rk_options *o) {
    static const struct {
        const char  *name;
        rk_head_mode mode;
    } modes[] = {{"kv", RK_HEADS_EQUAL}, {"adaptive", RK_HEADS_ADAPTIVE}, {"blend", RK_HEADS_BLEND}};
    rk_select_params p = {0};
    if (rk_policy_parse(o->policy, &p.policy) != RK_OK) rk_err_clear(); /* the table checked it */
    p.window = (int)o->window;
    p.sinks = (int)o->sinks;
    p.pool = strcmp(o->pool, "avg") == 0 ? RK_POOL_AVG : RK_POOL_MAX;
    p.kernel = (int)o->kernel;
    p.group_reduce = strcmp(o->group_reduce, "max") == 0 ? RK_REDUCE_MAX : RK_REDUCE_MEAN;
    p.pool_first = o->pool_first;
    p.recent = (int)o->recent;
    p.seed = o->seed;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(o->head_mode, modes[i].name) == 0) p.head_mode = modes[i].mode;
    p.alpha = p.head_mode == RK_HEADS_EQUAL ? 0 : o->alpha;
    if (p.policy == RK_POLICY_EXPECTED && p.head_mode != RK_HEADS_EQUAL) p.epsilon = EXPECTED_EPSILON;
    return p;
}

rk_select_params rk_cli_select(const rk_options *o) {
    rk_select_params p = rk_cli_policy(o);
    if (rk_options_full_cache(o)) p.policy = RK_POLICY_FULL;
    return p;
}

/* ---- stages ---- */

rk_json *rk_cli_dry_stages(const rk_weights *w, const rk_engine_config *e, int n_stages,
                           const int *begin) {
    rk_json *list = rk_json_array();
    for (int p = 0; p < n_stages; p++) {
        rk_plan_memory mem;
        rk_engine_memory_of(w, e, n_stages, begin, p, &mem);
        rk_json *o = rk_json_object(), *layers = rk_json_array();
        rk_json_add_int(layers, begin[p]);
        rk_json_add_int(layers, begin[p + 1] - 1);
        rk_json_set_int(o, "rank", p);
        rk_json_set(o, "layers", layers);
        rk_json_set_int(o, "weight_bytes", mem.weights);
        rk_json_set_int(o, "kv_peak_bytes", mem.kv_peak);
        rk_json_set_int(o, "kv_bytes", mem.kv_after);
        rk_json_set_int(o, "buffer_bytes", mem.buffers);
        rk_json_set_int(o, "total_bytes", mem.total);
        rk_json_add(list, o);
    }
    return list;
}

void rk_cli_show_stages(const rk_json *stages) {
    static const char *const keys[] = {"weight_bytes", "kv_peak_bytes", "kv_bytes", "buffer_bytes",
                                       "total_bytes"};
    printf(
        "stage  layers        weights    cache peak   cache after       buffers         total\n");
    for (size_t p = 0; p < rk_json_len(stages); p++) {
        const rk_json *s = rk_json_at(stages, p), *layers = rk_json_get(s, "layers");
        char           text[32], range[32];
        snprintf(range, sizeof range, "%lld-%lld", (long long)rk_json_int(rk_json_at(layers, 0), 0),
                 (long long)rk_json_int(rk_json_at(layers, 1), 0));
        printf("%5zu  %-8s", p, range);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            printf(" %*s", k ? 13 : 12,
                   rk_mem_human(rk_json_int(rk_json_get(s, keys[k]), 0), text));
        putchar('\n');
    }
}

rk_json *rk_cli_stages(const rk_engine *e) {
    return rk_cli_stages_of(rk_engine_stats(e), rk_engine_stages(e));
}

rk_json *rk_cli_stages_of(const rk_stage_stats *s, int n) {
    rk_json *list = rk_json_array();
    for (int p = 0; p < n; p++) {
        rk_json *o = rk_json_object(), *layers = rk_json_array();
        rk_json_add_int(layers, s[p].layer_begin);
        rk_json_add_int(layers, s[p].layer_end - 1);
        rk_json_set_int(o, "rank", s[p].rank);
        rk_json_set(o, "layers", layers);
        rk_json_set_num(o, "compute_s", s[p].compute_s);
        rk_json_set_num(o, "wait_recv_s", s[p].wait_recv_s);
        rk_json_set_num(o, "wait_send_s", s[p].wait_send_s);
        rk_json_set_int(o, "weight_bytes", s[p].weight_bytes);
        rk_json_set_int(o, "kv_peak_bytes", s[p].kv_peak_bytes);
        rk_json_set_int(o, "peak_bytes", s[p].peak_bytes);
        rk_json_set_int(o, "bytes_sent", s[p].bytes_sent);
        rk_json_set_int(o, "bytes_read", s[p].bytes_read);
        rk_json_add(list, o);
    }
    return list;
}

/* ---- text ---- */

const char *rk_cli_bar(double value, double top, int width, char buf[RK_BAR_CAP]) {
    if (width > RK_BAR_CAP - 1) width = RK_BAR_CAP - 1;
    int full = top > 0 && value > 0 ? (int)(value / top * width + 0.5) : 0;
    if (full > width) full = width;
    memset(buf, '#', (size_t)full);
    buf[full] = 0;
    return buf;
}

void rk_cli_show_layers(int n_layers, const double *sensitivity, const double *std,
                        const int32_t *budget) {
    enum { BAR = 48 };
    char   bar[RK_BAR_CAP];
    double top = 0;
    for (int l = 0; l < n_layers; l++) {
        double v = budget ? budget[l] : sensitivity[l];
        if (v > top) top = v;
    }
    printf("layer%s%s%s\n", sensitivity ? "  sensitivity" : "", std ? "        std" : "",
           budget ? "  tokens" : "");
    for (int l = 0; l < n_layers; l++) {
        printf("%5d", l);
        if (sensitivity) printf("  %11.4e", sensitivity[l]);
        if (std) printf("  %9.2e", std[l]);
        if (budget) printf("  %6d", budget[l]);
        rk_cli_bar(budget ? budget[l] : sensitivity[l], top, BAR, bar);
        printf("%s%s\n", bar[0] ? "  " : "", bar);
    }
}

void rk_cli_print_json(rk_json *j) {
    char *text = rk_json_text(j, false);
    puts(text);
    rk_mem_free(text);
    rk_json_close(j);
}

rk_status rk_cli_flush_stdout(void) {
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout))
        return RK_FAIL(RK_E_OUTPUT, "cannot write to standard output: %s",
                       errno ? strerror(errno) : "an earlier write failed");
    return RK_OK;
}

void rk_cli_set_hash(rk_json *o, const char *key, uint64_t hash) {
    char hex[17];
    rk_json_set_str(o, key, rk_hash_hex(hash, hex));
}

rk_status rk_cli_read_file(const char *path, char **text, int64_t *n) {
    FILE     *f = fopen(path, "rbe");
    void     *p = NULL;
    int64_t   cap = 0, used = 0;
    rk_status st = RK_OK;
    if (!f) return RK_FAIL(RK_E_INPUT, "%s: cannot open: %m", path);
    for (;;) {
        if (cap - used < 2) {
            cap = cap ? 2 * cap : 1 << 16;
            RK_TRY_OUT(st, rk_mem_resize(&p, cap, 1, "input text"));
        }
        size_t k = fread((char *)p + used, 1, (size_t)(cap - used - 1), f);
        used += (int64_t)k;
        if (ferror(f)) {
            st = RK_FAIL(RK_E_INPUT, "%s: cannot read: %m", path);
            goto out;
        }
        if (k == 0) break;
    }
    ((char *)p)[used] = 0;
    *text = p;
    *n = used;
    p = NULL;
out:
    fclose(f);
    rk_mem_free(p);
    return st;
}
