/* eval_longbench.c - eval longbench: a user's LongBench v1 checkout and data, answered greedily
 * under every configuration and scored as eval.py does. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/mem.h"
#include "cli/eval_gen.h"
#include "eval/longbench.h"

enum {
    MARGIN = 692
}; /* of the context for template and answer where --max-prompt is not given: what
      model2maxlen.json leaves of 8192 (7500) */

typedef struct item {
    int  dataset, sample; /* dataset: in `used` */
    bool truncated;
} item;

typedef struct bench {
    rk_longbench        *bench;
    rk_chat             *chat;
    const rk_lb_dataset *used[32];
    rk_lb_samples        samples[32];
    int                  n_used;
    item                *items;
    rk_eval_prompt      *prompts;
    int                  n, cap;
} bench;

/* ---- items ---- */

static rk_status pick_datasets(const rk_options *o, bench *b) {
    char list[512];
    snprintf(list, sizeof list, "%s", o->datasets);
    for (char *name = list, *next; name; name = next) {
        next = strchr(name, ',');
        if (next) *next++ = 0;
        const rk_lb_dataset *d = rk_lb_find(name);
        if (!d) return RK_FAIL(RK_E_USAGE, "--datasets: %.40s is no dataset of LongBench v1", name);
        for (int i = 0; i < b->n_used; i++)
            if (b->used[i] == d) return RK_FAIL(RK_E_USAGE, "--datasets: %s is named twice", name);
        b->used[b->n_used++] = d;
    }
    return RK_OK;
}

static rk_status encode(rk_eval *v, bench *b, const rk_lb_dataset *d, const char *text, size_t n,
                        rk_eval_prompt *p) {
    rk_message   m = {.role = "user", .content = text, .n = n};
    rk_text_part part = {text, n, false};
    if (!d->chat || !v->c->o->chat)
        return rk_tokenizer_encode(v->tokenizer, &part, 1, true, &p->tokens, &p->n);
    if (!b->chat)
        RK_TRY(rk_chat_open(rk_weights_chat_template(v->w), v->c->o->chat_template, v->tokenizer,
                            &b->chat));
    return rk_chat_encode(b->chat, &m, 1, &p->tokens, &p->n);
}

/* samsum answers end at a line's end: the last id of an encoded one. */
static rk_status add_newline(const rk_eval *v, const rk_lb_dataset *d, rk_eval_prompt *p) {
    rk_text_part part = {"\n", 1, true};
    int32_t     *ids;
    int64_t      n;
    if (strcmp(d->name, "samsum") != 0) return RK_OK;
    RK_TRY(rk_tokenizer_encode(v->tokenizer, &part, 1, false, &ids, &n));
    if (n) p->stop[p->n_stop++] = ids[n - 1];
    rk_mem_free(ids);
    return RK_OK;
}

static rk_status add_item(rk_eval *v, bench *b, int dataset, int sample) {
    const rk_options    *o = v->c->o;
    const rk_lb_dataset *d = b->used[dataset];
    int64_t              context = rk_weights_config(v->w)->max_positions,
            most = o->max_prompt ? o->max_prompt : context - MARGIN;
    rk_eval_prompt p = {.max_new = rk_longbench_max_new(b->bench, d)};
    char          *text = NULL;
    size_t         n = 0;
    rk_status      st;
    if (b->n == b->cap) {
        void *x = b->items, *y = b->prompts;
        int   cap = b->cap ? 2 * b->cap : 64;
        RK_TRY(rk_mem_resize(&x, cap, sizeof *b->items, "items"));
        b->items = x;
        RK_TRY(rk_mem_resize(&y, cap, sizeof *b->prompts, "items"));
        b->prompts = y;
        b->cap = cap;
    }
    item *it = &b->items[b->n];
    *it = (item){.dataset = dataset, .sample = sample};
    if (most < 2)
        return RK_FAIL(RK_E_USAGE, "--max-prompt: a context of %lld tokens leaves none",
                       (long long)context);
    RK_TRY_OUT(st, rk_longbench_prompt(b->bench, d->name, &b->samples[dataset].at[sample],
                                       v->tokenizer, most, o->cleanup, &text, &n, &it->truncated));
    RK_TRY_OUT(st, encode(v, b, d, text, n, &p));
    rk_eval_add_stops(v, d->chat && o->chat ? b->chat : NULL, &p);
    b->prompts[b->n++] = p;
    st = add_newline(v, d, &b->prompts[b->n - 1]);
out:
    rk_mem_free(text);
    return st;
}

static rk_status load(rk_eval *v) {
    const rk_options *o = v->c->o;
    bench            *b;
    RK_TRY(rk_mem_alloc_to(1, sizeof *b, "LongBench", &b));
    v->data = b;
    RK_TRY(pick_datasets(o, b));
    RK_TRY(rk_longbench_open(o->longbench, &b->bench));
    for (int k = 0; k < b->n_used; k++) {
        RK_TRY(rk_longbench_load(o->data, b->used[k], o->longbench_e, (int)o->samples,
                                 &b->samples[k]));
        for (int i = 0; i < b->samples[k].n; i++) RK_TRY(add_item(v, b, k, i));
    }
    return rk_eval_take_prompts(v, b->prompts, b->n, "sample");
}

static void unload(rk_eval *v) {
    bench *b = v->data;
    if (!b) return;
    for (int i = 0; i < b->n; i++) rk_mem_free(b->prompts[i].tokens);
    for (int k = 0; k < b->n_used; k++) rk_longbench_free(&b->samples[k]);
    rk_mem_free(b->items);
    rk_mem_free(b->prompts);
    rk_chat_close(b->chat);
    rk_longbench_close(b->bench);
    rk_mem_free(b);
}

static rk_status run(rk_eval *v, int i, rk_json *record) {
    const bench *b = v->data;
    const item  *it = &b->items[i];
    rk_json_set_str(record, "dataset", b->used[it->dataset]->name);
    rk_json_set_str(record, "id", b->samples[it->dataset].at[it->sample].id);
    rk_json_set_bool(record, "truncated", it->truncated);
    return rk_eval_answer(v, i, &b->prompts[i], record);
}

/* ---- scores ---- */

static rk_str prediction_of(const rk_json *record, int config) {
    const rk_json *t =
        rk_json_get(rk_json_at(rk_json_get(record, "predictions"), (size_t)config), "text");
    return (rk_str){rk_json_str(t, ""), rk_json_str_len(t)};
}

/* A dataset's score under a configuration; NaN where its metric wants a dictionary of words. */
static rk_status score_dataset(const rk_eval *v, rk_json *const *records, int dataset, int config,
                               rk_similarity s, double *all, double *out) {
    const bench *b = v->data;
    int          n = 0;
    rk_metric    m = b->used[dataset]->metric;
    *out = NAN;
    if (m == RK_METRIC_QA_F1_ZH || m == RK_METRIC_ROUGE_ZH) return RK_OK;
    for (int i = 0; i < b->n; i++)
        if (b->items[i].dataset == dataset)
            RK_TRY(rk_longbench_score(b->used[dataset], s, prediction_of(records[i], config),
                                      &b->samples[dataset].at[b->items[i].sample], &all[n++]));
    *out = rk_metric_dataset(all, n, NULL);
    return RK_OK;
}

/* pred/<model>/<dataset>.jsonl of the official code, below a folder for each configuration. */
static rk_status write_predictions(const rk_eval *v, rk_json *const *records) {
    const bench *b = v->data;
    char         path[4096];
    for (int k = 0; v->c->o->predictions && k < v->sweep.n; k++) {
        snprintf(path, sizeof path, "%.3000s", v->c->o->predictions);
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return RK_FAIL(RK_E_OUTPUT, "%s: cannot make: %m", path);
        snprintf(path, sizeof path, "%.3000s/%.200s", v->c->o->predictions, v->sweep.at[k].name);
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return RK_FAIL(RK_E_OUTPUT, "%s: cannot make: %m", path);
        for (int d = 0; d < b->n_used; d++) {
            snprintf(path, sizeof path, "%.3000s/%.200s/%s%s.jsonl", v->c->o->predictions,
                     v->sweep.at[k].name, b->used[d]->name, v->c->o->longbench_e ? "_e" : "");
            FILE *f = fopen(path, "we");
            if (!f) return RK_FAIL(RK_E_OUTPUT, "%s: cannot write: %m", path);
            bool ok = true;
            for (int i = 0; i < b->n; i++) {
                if (b->items[i].dataset != d) continue;
                const rk_lb_sample *x = &b->samples[d].at[b->items[i].sample];
                rk_str              p = prediction_of(records[i], k);
                rk_json *o = rk_json_object(), *list = rk_json_array(), *classes = rk_json_array();
                rk_json_set_strn(o, "pred", p.s, p.n);
                for (int a = 0; a < x->n_answers; a++) rk_json_add_str(list, x->answers[a].s);
                for (int a = 0; a < x->n_classes; a++) rk_json_add_str(classes, x->classes[a].s);
                rk_json_set(o, "answers", list);
                rk_json_set(o, "all_classes", classes);
                rk_json_set_int(o, "length", x->length);
                char *text = rk_json_text(o, false);
                ok = fprintf(f, "%s\n", text) > 0 && ok;
                rk_mem_free(text);
                rk_json_close(o);
            }
            if (fclose(f) != 0 || !ok) return RK_FAIL(RK_E_OUTPUT, "%s: cannot write: %m", path);
        }
    }
    return RK_OK;
}

typedef struct scores {
    double *of;    /* [configurations][rk_lb_n_datasets] by difflib; NaN: not run */
    double *indel; /* the same by indel distance */
    double *all;   /* scratch [items] */
} scores;

static rk_status score_all(const rk_eval *v, rk_json *const *records, scores *s) {
    const bench *b = v->data;
    int          n = v->sweep.n * rk_lb_n_datasets;
    RK_TRY(rk_mem_alloc_to(n, sizeof(double), "scores", &s->of));
    RK_TRY(rk_mem_alloc_to(n, sizeof(double), "scores", &s->indel));
    RK_TRY(rk_mem_alloc_to(b->n, sizeof(double), "scores", &s->all));
    for (int i = 0; i < n; i++) s->of[i] = s->indel[i] = NAN;
    for (int k = 0; k < v->sweep.n; k++)
        for (int d = 0; d < b->n_used; d++) {
            int64_t at = (int64_t)k * rk_lb_n_datasets + (b->used[d] - rk_lb_datasets);
            RK_TRY(score_dataset(v, records, d, k, RK_SIMILARITY_DIFFLIB, s->all, &s->of[at]));
            RK_TRY(score_dataset(v, records, d, k, RK_SIMILARITY_INDEL, s->all, &s->indel[at]));
        }
    return RK_OK;
}

static int count_truncated(const bench *b, int dataset) {
    int n = 0;
    for (int i = 0; i < b->n; i++) n += b->items[i].dataset == dataset && b->items[i].truncated;
    return n;
}

static void show_json(const rk_eval *v, const scores *s, rk_json *out) {
    const bench *b = v->data;
    rk_json     *configs = rk_json_array(), *sets = rk_json_array();
    for (int k = 0; k < v->sweep.n; k++) {
        const double *row = s->of + (int64_t)k * rk_lb_n_datasets,
                     *indel = s->indel + (int64_t)k * rk_lb_n_datasets;
        rk_json *o = rk_json_object(), *by = rk_json_object(), *by_indel = rk_json_object();
        double   papers, categories;
        rk_longbench_average(row, &papers, &categories);
        for (int d = 0; d < b->n_used; d++) {
            int64_t at = b->used[d] - rk_lb_datasets;
            rk_json_set_num(by, b->used[d]->name, row[at]);
            if (b->used[d]->metric == RK_METRIC_CODE_SIM)
                rk_json_set_num(by_indel, b->used[d]->name, indel[at]);
        }
        rk_json_set_str(o, "name", v->sweep.at[k].name);
        rk_json_set(o, "scores", by);
        rk_json_set(o, "scores_levenshtein", by_indel);
        rk_json_set_num(o, "mean_of_datasets", papers);
        rk_json_set_num(o, "mean_of_categories", categories);
        rk_json_add(configs, o);
    }
    for (int d = 0; d < b->n_used; d++) {
        rk_json *o = rk_json_object();
        rk_json_set_str(o, "name", b->used[d]->name);
        rk_json_set_str(o, "metric", rk_metric_name(b->used[d]->metric));
        rk_json_set_int(o, "samples", b->samples[d].n);
        rk_json_set_int(o, "truncated", count_truncated(b, d));
        rk_json_add(sets, o);
    }
    rk_json_set(out, "datasets", sets);
    rk_json_set(out, "configurations", configs);
}

static void show_table(const rk_eval *v, const scores *s) {
    const bench *b = v->data;
    printf("%-20s %-14s %8s %9s", "dataset", "metric", "samples", "truncated");
    for (int k = 0; k < v->sweep.n; k++) printf(" %12.12s", v->sweep.at[k].name);
    printf("\n");
    for (int d = 0; d < b->n_used; d++) {
        int64_t at = b->used[d] - rk_lb_datasets;
        printf("%-20s %-14s %8d %9d", b->used[d]->name, rk_metric_name(b->used[d]->metric),
               b->samples[d].n, count_truncated(b, d));
        for (int k = 0; k < v->sweep.n; k++) {
            double x = s->of[(int64_t)k * rk_lb_n_datasets + at];
            if (isnan(x))
                printf(" %12s", "-");
            else
                printf(" %12.2f", x);
        }
        printf("\n");
    }
    static const char *const means[] = {"mean of datasets", "mean of categories"};
    for (int m = 0; m < 2; m++) {
        printf("%-20s %-14s %8s %9s", means[m], "", "", "");
        for (int k = 0; k < v->sweep.n; k++) {
            double x[2];
            rk_longbench_average(s->of + (int64_t)k * rk_lb_n_datasets, &x[0], &x[1]);
            printf(" %12.2f", x[m]);
        }
        printf("\n");
    }
    printf("mean of datasets: of those that papers average (16 when all are run); mean of "
           "categories: LongBench's "
           "own\n");
}

static rk_status report(rk_eval *v, rk_json *const *records, rk_json *out) {
    const bench *b = v->data;
    scores       s = {0};
    rk_status    st;
    for (int d = 0; d < b->n_used; d++)
        if (count_truncated(b, d))
            RK_LOG(RK_LOG_WARN, "eval",
                   "%s: %d of %d prompts were cut in the middle: what the answer needs may be gone",
                   b->used[d]->name, count_truncated(b, d), b->samples[d].n);
    RK_TRY_OUT(st, write_predictions(v, records));
    RK_TRY_OUT(st, score_all(v, records, &s));
    if (v->c->o->json)
        show_json(v, &s, out);
    else
        show_table(v, &s);
out:
    rk_mem_free(s.of);
    rk_mem_free(s.indel);
    rk_mem_free(s.all);
    return st;
}

const rk_eval_task rk_eval_longbench = {"longbench", load, run, report, unload};
