/* eval_synth.c - eval ruler and eval needle: tasks that the program builds from --seed, answered
 * greedily under every configuration. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "cli/eval_gen.h"
#include "eval/synth.h"

enum { DEFAULT_SAMPLES = 10 };

typedef struct tasks {
    rk_synth         used[RK_SYNTHS];
    int              n_used, per_task;
    char            *haystack;
    rk_chat         *chat;
    rk_synth_sample *samples; /* [n_used][per_task] */
    rk_eval_prompt  *prompts;
    int              n;
} tasks;

static rk_status pick_tasks(const rk_options *o, tasks *t) {
    char list[512];
    if (strcmp(o->positional, "needle") == 0) {
        t->used[t->n_used++] = RK_SYNTH_NEEDLE;
        return RK_OK;
    }
    if (strcmp(o->tasks, "all") == 0) {
        for (int i = 0; i < RK_SYNTH_NEEDLE; i++) t->used[t->n_used++] = (rk_synth)i;
        return RK_OK;
    }
    snprintf(list, sizeof list, "%s", o->tasks);
    for (char *name = list, *next; name; name = next) {
        next = strchr(name, ',');
        if (next) *next++ = 0;
        rk_synth  x;
        rk_status st = rk_synth_parse(name, &x);
        if (st != RK_OK || x == RK_SYNTH_NEEDLE)
            return RK_FAIL(
                RK_E_USAGE,
                "--tasks: %.40s is no task of RULER: there are niah_single_1 to _3, "
                "niah_multikey_1 to _3, niah_multivalue, niah_multiquery, vt, cwe and fwe",
                name);
        for (int i = 0; i < t->n_used; i++)
            if (t->used[i] == x) return RK_FAIL(RK_E_USAGE, "--tasks: %s is named twice", name);
        t->used[t->n_used++] = x;
    }
    return RK_OK;
}

/* Needles stand at even depths from the front to the end. */
static double depth_of(const tasks *t, int task, int i) {
    if (t->used[task] != RK_SYNTH_NEEDLE) return -1;
    return t->per_task > 1 ? (double)i / (t->per_task - 1) : 0.5;
}

static rk_status encode(rk_eval *v, tasks *t, const rk_synth_sample *s, rk_eval_prompt *p) {
    rk_message   m = {.role = "user", .content = s->text, .n = s->n};
    rk_text_part part = {s->text, s->n, true};
    if (!v->c->o->chat) return rk_tokenizer_encode(v->tokenizer, &part, 1, true, &p->tokens, &p->n);
    if (!t->chat)
        RK_TRY(rk_chat_open(rk_weights_chat_template(v->w), v->c->o->chat_template, v->tokenizer,
                            &t->chat));
    return rk_chat_encode(t->chat, &m, 1, &p->tokens, &p->n);
}

/* With --tasks all, leave out what is too long for --context. */
static rk_status drop_long(const rk_eval *v, tasks *t) {
    const rk_options *o = v->c->o;
    int               n = 0;
    if (strcmp(o->positional, "ruler") != 0 || strcmp(o->tasks, "all") != 0) return RK_OK;
    for (int i = 0; i < t->n_used; i++) {
        rk_synth_sample s = {0};
        rk_status       st =
            rk_synth_make(t->used[i], v->tokenizer, o->context, o->seed, 0, -1, t->haystack, &s);
        rk_synth_free(&s);
        if (st == RK_E_USAGE) {
            if (v->c->leader)
                RK_LOG(RK_LOG_WARN, "eval", "%s; it is left out", rk_err_last()->text);
            rk_err_clear();
            continue;
        }
        RK_TRY(st);
        t->used[n++] = t->used[i];
    }
    t->n_used = n;
    return n ? RK_OK
             : RK_FAIL(RK_E_USAGE, "--context %lld: no task of RULER is so short",
                       (long long)o->context);
}

static rk_status load(rk_eval *v) {
    const rk_options *o = v->c->o;
    tasks            *t;
    int64_t           n_text;
    RK_TRY(rk_mem_alloc_to(1, sizeof *t, "tasks", &t));
    v->data = t;
    RK_TRY(pick_tasks(o, t));
    if (o->haystack) RK_TRY(rk_cli_read_file(o->haystack, &t->haystack, &n_text));
    if (o->haystack && strspn(t->haystack, " \t\r\n") == strlen(t->haystack))
        return RK_FAIL(RK_E_INPUT, "--haystack %s: holds no text", o->haystack);
    RK_TRY(drop_long(v, t));
    t->per_task = o->samples ? (int)o->samples : DEFAULT_SAMPLES;
    int n = t->n_used * t->per_task;
    RK_TRY(rk_mem_alloc_to(n, sizeof *t->samples, "samples", &t->samples));
    RK_TRY(rk_mem_alloc_to(n, sizeof *t->prompts, "samples", &t->prompts));
    for (; t->n < n; t->n++) {
        int             k = t->n / t->per_task, i = t->n % t->per_task;
        rk_eval_prompt *p = &t->prompts[t->n];
        RK_TRY(rk_synth_make(t->used[k], v->tokenizer, o->context, o->seed, i, depth_of(t, k, i),
                             t->haystack, &t->samples[t->n]));
        p->max_new = rk_synth_max_new(t->used[k]);
        rk_status st = encode(v, t, &t->samples[t->n], p);
        if (st != RK_OK) {
            t->n++; /* this one, too, is to be freed */
            return st;
        }
        rk_eval_add_stops(v, t->chat, p);
    }
    return rk_eval_take_prompts(v, t->prompts, n, "sample");
}

static void unload(rk_eval *v) {
    tasks *t = v->data;
    if (!t) return;
    for (int i = 0; i < t->n; i++) {
        rk_synth_free(&t->samples[i]);
        rk_mem_free(t->prompts[i].tokens);
    }
    rk_mem_free(t->samples);
    rk_mem_free(t->prompts);
    rk_mem_free(t->haystack);
    rk_chat_close(t->chat);
    rk_mem_free(t);
}

static rk_status run(rk_eval *v, int i, rk_json *record) {
    const tasks *t = v->data;
    rk_json     *list = rk_json_array();
    rk_json_set_str(record, "task", rk_synth_name(t->used[i / t->per_task]));
    for (int k = 0; k < t->samples[i].n_references; k++)
        rk_json_add_str(list, t->samples[i].reference[k]);
    rk_json_set(record, "references", list);
    return rk_eval_answer(v, i, &t->prompts[i], record);
}

/* Mean scores of a task under a configuration, in percent. */
static rk_status score(const rk_eval *v, rk_json *const *records, int task, int config,
                       double *exact, double *overlap) {
    const tasks *t = v->data;
    *exact = *overlap = 0;
    for (int i = task * t->per_task; i < (task + 1) * t->per_task; i++) {
        const rk_json *j =
            rk_json_get(rk_json_at(rk_json_get(records[i], "predictions"), (size_t)config), "text");
        rk_str p = {rk_json_str(j, ""), rk_json_str_len(j)};
        double a, b;
        RK_TRY(rk_synth_score(&t->samples[i], p, &a));
        RK_TRY(rk_synth_overlap(&t->samples[i], p, &b));
        *exact += a;
        *overlap += b;
    }
    *exact *= 100.0 / t->per_task;
    *overlap *= 100.0 / t->per_task;
    return RK_OK;
}

static rk_status show_json(const rk_eval *v, rk_json *const *records, rk_json *out) {
    const tasks *t = v->data;
    rk_json     *configs = rk_json_array();
    rk_json_set(out, "configurations", configs);
    rk_json_set_int(out, "samples_per_task", t->per_task);
    for (int k = 0; k < v->sweep.n; k++) {
        rk_json *o = rk_json_object(), *scores = rk_json_object(), *words = rk_json_object();
        double   sum = 0, exact, overlap;
        rk_json_add(configs, o);
        rk_json_set_str(o, "name", v->sweep.at[k].name);
        rk_json_set(o, "scores", scores);
        rk_json_set(o, "word_overlap", words);
        for (int d = 0; d < t->n_used; d++) {
            RK_TRY(score(v, records, d, k, &exact, &overlap));
            rk_json_set_num(scores, rk_synth_name(t->used[d]), exact);
            rk_json_set_num(words, rk_synth_name(t->used[d]), overlap);
            sum += exact;
        }
        rk_json_set_num(o, "mean", sum / t->n_used);
    }
    return RK_OK;
}

static rk_status show_table(const rk_eval *v, rk_json *const *records) {
    const tasks *t = v->data;
    double       exact, overlap;
    printf("references found, %%; %d samples a task of at most %lld tokens, answer included\n%-18s",
           t->per_task, (long long)v->c->o->context, "task");
    for (int k = 0; k < v->sweep.n; k++) printf(" %12.12s", v->sweep.at[k].name);
    printf("\n");
    for (int d = 0; d < t->n_used; d++) {
        printf("%-18s", rk_synth_name(t->used[d]));
        for (int k = 0; k < v->sweep.n; k++) {
            RK_TRY(score(v, records, d, k, &exact, &overlap));
            printf(" %12.1f", exact);
        }
        printf("\n");
    }
    printf("%-18s", "mean");
    for (int k = 0; k < v->sweep.n; k++) {
        double sum = 0;
        for (int d = 0; d < t->n_used; d++) {
            RK_TRY(score(v, records, d, k, &exact, &overlap));
            sum += exact;
        }
        printf(" %12.1f", sum / t->n_used);
    }
    printf("\n");
    return RK_OK;
}

/* One line a depth: where in the prompt a needle is lost. */
static void show_depths(const rk_eval *v, rk_json *const *records) {
    const tasks *t = v->data;
    printf("depth   needle found\n");
    for (int i = 0; i < t->n; i++) {
        printf("%5.0f %%", 100 * depth_of(t, 0, i));
        for (int k = 0; k < v->sweep.n; k++) {
            const rk_json *j =
                rk_json_get(rk_json_at(rk_json_get(records[i], "predictions"), (size_t)k), "text");
            double x = 0;
            if (rk_synth_score(&t->samples[i], (rk_str){rk_json_str(j, ""), rk_json_str_len(j)},
                               &x) != RK_OK)
                x = NAN;
            printf(" %12s", x > 0 ? "yes" : "no");
        }
        printf("\n");
    }
}

static rk_status report(rk_eval *v, rk_json *const *records, rk_json *out) {
    if (v->c->o->json) return show_json(v, records, out);
    RK_TRY(show_table(v, records));
    if (((const tasks *)v->data)->used[0] == RK_SYNTH_NEEDLE) show_depths(v, records);
    return RK_OK;
}

const rk_eval_task rk_eval_ruler = {"ruler", load, run, report, unload};
const rk_eval_task rk_eval_needle = {"needle", load, run, report, unload};
