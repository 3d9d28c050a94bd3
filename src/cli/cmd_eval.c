/* cmd_eval.c - ripplekv eval: the frame (eval.h). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "cli/eval.h"

enum { ROW_CAP = 1024, PATH_LEN = 4096, MAX_PARTS = 4096 };

static const rk_eval_task *const tasks[] = {&rk_eval_fidelity, &rk_eval_perplexity,
                                            &rk_eval_damage,   &rk_eval_longbench,
                                            &rk_eval_ruler,    &rk_eval_needle};

int rk_eval_layers(const rk_eval *v) {
    return rk_weights_config(v->w)->n_layers;
}

const int32_t *rk_eval_budget(const rk_eval *v, int item, int config) {
    return v->budgets + ((int64_t)item * v->sweep.n + config) * rk_eval_layers(v);
}

/* ---- numbers ---- */

double rk_eval_mean(const double *x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return n ? sum / n : NAN;
}

double rk_eval_stderr(const double *x, int n) {
    double mean = rk_eval_mean(x, n), sum = 0;
    for (int i = 0; i < n; i++) sum += (x[i] - mean) * (x[i] - mean);
    return n > 1 ? sqrt(sum / (n - 1) / n) : NAN;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double rk_eval_median(double *x, int n) {
    if (n == 0) return NAN;
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

double rk_eval_sign_test(int won, int n) {
    double p = 0;
    for (int k = won; k <= n; k++)
        p += exp(lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) - n * log(2));
    return p < 1 ? p : 1;
}

/* ---- records and their journal ---- */

typedef struct records {
    rk_json **at; /* [n_items]; NULL: not done */
    FILE     *part;
    char      path[PATH_LEN];
} records;

static void part_path(const rk_eval *v, int k, char path[PATH_LEN]) {
    snprintf(path, PATH_LEN, "%s.part.%d", v->c->o->output, k);
}

static rk_status write_line(records *r, const rk_json *j) {
    char *text = rk_json_text(j, false);
    bool  ok = fprintf(r->part, "%s\n", text) > 0 && fflush(r->part) == 0;
    if (ok && fdatasync(fileno(r->part)) != 0 && errno != EINVAL) ok = false; /* EINVAL: a device */
    rk_mem_free(text);
    return ok ? RK_OK : RK_FAIL(RK_E_OUTPUT, "%s: cannot write: %m", r->path);
}

/* A line of a journal; what cannot be read ends it. */
static bool take_line(rk_eval *v, records *r, const char *line, size_t n, bool first,
                      uint64_t job) {
    rk_json *j;
    char     hex[17];
    if (rk_json_parse(line, n, "journal", &j) != RK_OK) {
        rk_err_clear();
        return false;
    }
    bool    good;
    int64_t item = rk_json_int(rk_json_get(j, "item"), -1);
    if (first)
        good = strcmp(rk_json_str(rk_json_get(j, "job"), ""), rk_hash_hex(job, hex)) == 0;
    else
        good = item >= 0 && item < v->n_items;
    if (first || !good || r->at[item]) {
        rk_json_close(j);
        return good;
    }
    r->at[item] = j;
    return true;
}

static rk_status read_part(rk_eval *v, records *r, const char *path, uint64_t job) {
    char   *text;
    int64_t n;
    bool    first = true;
    RK_TRY(rk_cli_read_file(path, &text, &n));
    rk_status st = RK_OK;
    for (char *line = text, *nl; (nl = strchr(line, '\n')); line = nl + 1, first = false) {
        if (take_line(v, r, line, (size_t)(nl - line), first, job)) continue;
        if (first)
            st =
                RK_FAIL(RK_E_USAGE,
                        "%s: journal of another job: give the same model, data and options, choose "
                        "another --output, or run without --resume",
                        path);
        break; /* a torn tail */
    }
    rk_mem_free(text);
    return st;
}

static rk_status resume(rk_eval *v, records *r, uint64_t job) {
    char path[PATH_LEN];
    for (int k = 0; k < MAX_PARTS; k++) {
        part_path(v, k, path);
        if (access(path, F_OK) == 0) RK_TRY(read_part(v, r, path, job));
    }
    return RK_OK;
}

static void remove_parts(const rk_eval *v, int from) {
    char path[PATH_LEN];
    for (int k = from; k < MAX_PARTS; k++) {
        part_path(v, k, path);
        if (access(path, F_OK) == 0) unlink(path);
    }
}

/* The replica's journal, written anew with what is known of its share, so that a torn tail and
 * other numbers of replicas are gone; the old one stays until the new one is whole. */
static rk_status open_part(rk_eval *v, records *r, uint64_t job) {
    char     hex[17], final[PATH_LEN];
    rk_json *head = rk_json_object();
    part_path(v, v->index, final);
    snprintf(r->path, sizeof r->path, "%s.tmp.%d", v->c->o->output, v->index);
    r->part = fopen(r->path, "we");
    if (!r->part) {
        rk_json_close(head);
        return RK_FAIL(RK_E_OUTPUT, "%s: cannot write: %m", r->path);
    }
    rk_json_set_str(head, "job", rk_hash_hex(job, hex));
    rk_status st = write_line(r, head);
    rk_json_close(head);
    for (int i = v->index; st == RK_OK && i < v->n_items; i += (int)v->c->o->replicas)
        if (r->at[i]) st = write_line(r, r->at[i]);
    RK_TRY(st);
    if (rename(r->path, final) != 0)
        return RK_FAIL(RK_E_OUTPUT, "%s: cannot rename to %s: %m", r->path, final);
    snprintf(r->path, sizeof r->path, "%s", final);
    return RK_OK;
}

/* ---- before the work ---- */

static rk_status find_task(rk_eval *v) {
    char names[128] = "";
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
        if (strcmp(tasks[i]->name, v->c->o->positional) == 0) v->task = tasks[i];
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", tasks[i]->name);
    }
    if (v->task) return RK_OK;
    return RK_FAIL(RK_E_USAGE, "eval %.40s: unknown task; there are %s", v->c->o->positional,
                   names);
}

static rk_status check_replicas(const rk_eval *v) {
    int64_t R = v->c->o->replicas;
    int     n = rk_comm_size(v->c->world);
    if (n % R == 0) return RK_OK;
    return RK_FAIL(RK_E_USAGE, "--replicas %lld does not divide the %d ranks", (long long)R, n);
}

static rk_status probe_output(const rk_eval *v) {
    const char *path = v->c->o->output;
    if (!path || !v->c->leader) return RK_OK;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return RK_FAIL(RK_E_OUTPUT, "--output %s: cannot write: %m", path);
    close(fd);
    return RK_OK;
}

static rk_status prepare(rk_eval *v) {
    const rk_options *o = v->c->o;
    RK_TRY(find_task(v));
    RK_TRY(check_replicas(v));
    RK_TRY(rk_sweep_parse(v->c, &v->sweep));
    RK_TRY(rk_weights_open(o->model, &v->w));
    RK_TRY(rk_cli_check_weights(o, v->w));
    RK_TRY(rk_tokenizer_open_model(o->model, rk_weights_gguf(v->w), &v->tokenizer));
    v->n_stages = rk_comm_size(v->c->world) / (int)o->replicas;
    v->index = rk_comm_rank(v->c->world) / v->n_stages;
    RK_TRY(rk_sweep_observe(&v->sweep, &v->observe));
    rk_hash_init(&v->job_hash);
    RK_TRY(v->task->load(v));
    RK_TRY(rk_mem_alloc_to((int64_t)v->n_items * v->sweep.n * rk_eval_layers(v), sizeof(int32_t),
                           "budgets", &v->budgets));
    return probe_output(v);
}

/* World leader: budgets of every item under every configuration. */
static rk_status split_budgets(rk_eval *v) {
    int L = rk_eval_layers(v);
    if (!v->c->leader) return RK_OK;
    RK_TRY(rk_sweep_open(&v->sweep, rk_weights_config(v->w)));
    for (int i = 0; i < v->n_items; i++)
        for (int k = 0; k < v->sweep.n; k++)
            RK_TRY(rk_sweep_split(&v->sweep.at[k], L, v->item_tokens[i],
                                  v->budgets + ((int64_t)i * v->sweep.n + k) * L));
    return RK_OK;
}

/* What records depend on beside what the task added. */
static uint64_t hash_job(rk_eval *v) {
    rk_hash_state *h = &v->job_hash;
    const char    *numerics = rk_engine_backend(v->e)->numerics;
    const char    *form = rk_cli_weights_form(v->e);
    uint64_t       u[] = {rk_engine_weights_hash(v->e), v->c->o->seed};
    rk_hash_add(h, v->task->name, strlen(v->task->name));
    rk_hash_add(h, numerics, strlen(numerics));
    rk_hash_add(h, form, strlen(form));
    rk_hash_add(h, u, sizeof u);
    rk_hash_add(h, v->budgets,
                (size_t)v->n_items * (size_t)v->sweep.n * (size_t)rk_eval_layers(v) *
                    sizeof(int32_t));
    for (int k = 0; k < v->sweep.n; k++) {
        const rk_sweep_entry *e = &v->sweep.at[k];
        rk_hash_add(h, e->name, strlen(e->name) + 1);
        rk_hash_add(h, &e->select, sizeof e->select);
    }
    return rk_hash_digest(h);
}

static rk_engine_config engine_config(const rk_eval *v) {
    const rk_options *o = v->c->o;
    rk_engine_config  cfg = {.backend = o->backend,
                             .n_threads = rk_cli_threads(o, v->c->world),
                             .partition = o->partition,
                             .for_profile = v->max_response > 0,
                             .chunk = rk_cli_chunk(o, v->max_prompt, v->n_stages),
                             .max_sequences = 1 + v->max_forks,
                             .max_prompt = v->max_prompt,
                             .max_new = v->max_new,
                             .select = v->sweep.at[0].select,
                             .observe = v->observe,
                             .native = rk_cli_native(o, v->w),
                             .hash_weights = true,
                             .quiet = v->index != 0};
    if (v->max_response) {
        cfg.row_cap = 2 * v->max_response > ROW_CAP ? 2 * v->max_response : ROW_CAP;
        cfg.max_response = v->max_response;
    }
    return cfg;
}

/* ---- the work ---- */

static rk_status run_items(rk_eval *v, records *r, const volatile int *stop) {
    int         R = (int)v->c->o->replicas, todo = 0, done = 0;
    rk_progress bar;
    for (int i = v->index; i < v->n_items; i += R) todo += !r->at[i];
    if (v->c->leader) rk_progress_begin(&bar, v->task->name, "items", todo);
    for (int i = v->index; i < v->n_items && !*stop; i += R) {
        if (r->at[i]) continue;
        rk_json *j = rk_json_object();
        rk_json_set_int(j, "item", i);
        rk_status st = v->task->run(v, i, j);
        if (st != RK_OK) rk_json_close(j);
        RK_TRY(st);
        r->at[i] = j;
        if (r->part) RK_TRY(write_line(r, j));
        if (v->c->leader) rk_progress_set(&bar, ++done);
    }
    if (v->c->leader) rk_progress_end(&bar);
    return RK_OK;
}

/* Ranks: collective. Records of all replicas to the world leader, as lines of text. */
static rk_status gather(rk_eval *v, records *r) {
    int       size = rk_comm_size(v->c->world), R = (int)v->c->o->replicas;
    char     *all = NULL, *mine = NULL;
    void     *p = NULL;
    int64_t   used = 0, cap = 0;
    double    most;
    rk_status st = RK_OK;
    if (R == 1) return RK_OK;
    for (int i = v->index; rk_comm_rank(v->replica) == 0 && i < v->n_items; i += R) {
        if (!r->at[i]) continue;
        char   *text = rk_json_text(r->at[i], false);
        int64_t n = (int64_t)strlen(text);
        if (used + n + 2 > cap) {
            cap = 2 * cap + n + 2;
            RK_TRY_OUT(st, rk_mem_resize(&p, cap, 1, "records"));
        }
        memcpy((char *)p + used, text, (size_t)n);
        ((char *)p)[used + n] = '\n';
        used += n + 1;
        rk_mem_free(text);
    }
    most = (double)used + 1;
    RK_TRY_OUT(st, rk_comm_max_f64(v->c->world, &most, 1));
    RK_TRY_OUT(st, rk_mem_alloc_to((int64_t)most, 1, "records", &mine));
    if (used) memcpy(mine, p, (size_t)used);
    if (v->c->leader) RK_TRY_OUT(st, rk_mem_alloc_to((int64_t)most * size, 1, "records", &all));
    RK_TRY_OUT(st, rk_comm_gather(v->c->world, mine, (int64_t)most, all, 0));
    for (int k = 0; v->c->leader && k < size; k++)
        for (char *line = all + k * (int64_t)most, *nl; (nl = strchr(line, '\n')); line = nl + 1)
            (void)take_line(v, r, line, (size_t)(nl - line), false, 0);
out:
    rk_mem_free(p);
    rk_mem_free(mine);
    rk_mem_free(all);
    return st;
}

static rk_status write_output(const rk_eval *v, const records *r) {
    const char *path = v->c->o->output;
    if (!path) return RK_OK;
    FILE *f = fopen(path, "we");
    if (!f) return RK_FAIL(RK_E_OUTPUT, "--output %s: cannot write: %m", path);
    bool ok = true;
    for (int i = 0; i < v->n_items; i++) {
        char *text = rk_json_text(r->at[i], false);
        ok = fprintf(f, "%s\n", text) > 0 && ok;
        rk_mem_free(text);
    }
    if (fclose(f) != 0) ok = false;
    if (!ok) return RK_FAIL(RK_E_OUTPUT, "--output %s: cannot write: %m", path);
    remove_parts(v, 0);
    return RK_OK;
}

/* World leader: all records are there, or the run was stopped. */
static rk_status finish(rk_eval *v, records *r, double seconds) {
    for (int i = 0; i < v->n_items; i++)
        if (!r->at[i])
            return RK_FAIL(RK_E_STOPPED,
                           v->c->o->output
                               ? "stopped on request; finished items are saved beside %s, the same "
                                 "command with --resume goes on"
                               : "stopped on request%.0s; without --output nothing was saved",
                           v->c->o->output ? v->c->o->output : "");
    RK_TRY(write_output(v, r));
    rk_json  *out = rk_json_object();
    rk_status st = v->task->report(v, r->at, out);
    if (st == RK_OK && v->c->o->json) {
        rk_json_set_int(out, "items", v->n_items);
        rk_json_set_num(out, "run_s", seconds);
        rk_cli_set_numbers(out, v->e);
        rk_json_set(out, "stages", rk_cli_stages(v->e));
        rk_cli_print_json(out);
    } else {
        rk_json_close(out);
    }
    return st == RK_OK ? rk_cli_flush_stdout() : st;
}

static rk_status start_records(rk_eval *v, records *r, uint64_t job) {
    RK_TRY(rk_mem_alloc_to(v->n_items, sizeof(rk_json *), "records", &r->at));
    if (!v->c->o->output) return RK_OK;
    if (v->c->o->resume) RK_TRY(resume(v, r, job));
    return RK_OK;
}

static rk_status open_journal(rk_eval *v, records *r, uint64_t job) {
    if (!v->c->o->output || rk_comm_rank(v->replica) != 0) return RK_OK;
    return open_part(v, r, job);
}

static rk_status work(rk_eval *v, records *r, const volatile int *stop) {
    uint64_t job = hash_job(v);
    double   t = rk_now_s();
    RK_TRY(rk_cli_phase(v->c, start_records(v, r, job)));
    /* All have read before anyone writes anew. */
    RK_TRY(rk_cli_phase(v->c, open_journal(v, r, job)));
    if (v->c->leader && v->c->o->output) remove_parts(v, (int)v->c->o->replicas);
    if (rk_comm_rank(v->replica) == 0) {
        RK_TRY(run_items(v, r, stop));
        RK_TRY(rk_engine_stop(v->e));
    } else {
        RK_TRY(rk_engine_serve(v->e));
    }
    RK_TRY(rk_cli_wait_for_replicas(v->c));
    if (r->part) {
        fclose(r->part);
        r->part = NULL;
    }
    RK_TRY(gather(v, r));
    return rk_cli_phase(v->c, v->c->leader ? finish(v, r, rk_now_s() - t) : RK_OK);
}

static rk_status dry_run(const rk_eval *v) {
    rk_engine_config cfg = engine_config(v);
    int             *begin = NULL;
    RK_TRY(rk_mem_alloc_to(v->n_stages + 1, sizeof(int), "partition", &begin));
    rk_status st = rk_engine_partition_of(rk_weights_config(v->w), &cfg, v->n_stages, begin);
    if (st == RK_OK) {
        rk_json *stages = rk_cli_dry_stages(v->w, &cfg, v->n_stages, begin);
        if (v->c->o->json) {
            rk_json *o = rk_json_object();
            rk_json_set_bool(o, "dry_run", true);
            rk_json_set_int(o, "items", v->n_items);
            rk_json_set_int(o, "configurations", v->sweep.n);
            rk_json_set_int(o, "max_prompt_tokens", v->max_prompt);
            rk_json_set(o, "stages", stages);
            rk_cli_print_json(o);
        } else {
            printf("%d items, longest prompt %lld tokens, %d configurations, %d forks at once\n",
                   v->n_items, (long long)v->max_prompt, v->sweep.n, v->max_forks);
            rk_cli_show_stages(stages);
            rk_json_close(stages);
        }
        st = rk_cli_flush_stdout();
    }
    rk_mem_free(begin);
    return st;
}

static rk_status run(rk_eval *v, records *r) {
    rk_cli             *c = v->c;
    const volatile int *stop = rk_cli_catch_signals();
    RK_TRY(rk_cli_phase(c, prepare(v)));
    RK_TRY(rk_cli_phase(c, split_budgets(v)));
    RK_TRY(rk_comm_bcast(
        c->world, v->budgets,
        (int64_t)v->n_items * v->sweep.n * rk_eval_layers(v) * (int64_t)sizeof(int32_t), 0));
    if (c->o->dry_run) return rk_cli_phase(c, c->leader ? dry_run(v) : RK_OK);
    if (c->leader) rk_cli_log_settings(c->o);
    RK_TRY(rk_comm_split(c->world, v->index, &v->replica));
    rk_engine_config cfg = engine_config(v);
    RK_TRY(rk_cli_path(c, &cfg));
    RK_TRY(rk_cli_phase(c, rk_engine_open(v->replica, v->w, &cfg, &v->e)));
    return work(v, r, stop);
}

rk_status rk_cmd_eval(rk_cli *c) {
    rk_eval   v = {.c = c};
    records   r = {0};
    rk_status st = run(&v, &r);
    if (r.part) fclose(r.part);
    for (int i = 0; r.at && i < v.n_items; i++) rk_json_close(r.at[i]);
    rk_mem_free(r.at);
    if (v.task && v.task->unload) v.task->unload(&v);
    rk_engine_close(v.e);
    rk_mem_free(v.budgets);
    rk_mem_free(v.item_tokens);
    rk_sweep_close(&v.sweep);
    rk_tokenizer_close(v.tokenizer);
    rk_weights_close(v.w);
    rk_comm_close(v.replica);
    return st;
}
