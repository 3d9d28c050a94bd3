/* longbench.c - see longbench.h. */
#include "eval/longbench.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"

const rk_lb_dataset rk_lb_datasets[] = {
    {"narrativeqa", "single-document QA", RK_METRIC_QA_F1, 128, true, false, true},
    {"qasper", "single-document QA", RK_METRIC_QA_F1, 128, true, false, true},
    {"multifieldqa_en", "single-document QA", RK_METRIC_QA_F1, 64, true, false, true},
    {"multifieldqa_zh", "single-document QA", RK_METRIC_QA_F1_ZH, 64, true, false, false},
    {"hotpotqa", "multi-document QA", RK_METRIC_QA_F1, 32, true, false, true},
    {"2wikimqa", "multi-document QA", RK_METRIC_QA_F1, 32, true, false, true},
    {"musique", "multi-document QA", RK_METRIC_QA_F1, 32, true, false, true},
    {"dureader", "multi-document QA", RK_METRIC_ROUGE_ZH, 128, true, false, false},
    {"gov_report", "summarisation", RK_METRIC_ROUGE, 512, true, false, true},
    {"qmsum", "summarisation", RK_METRIC_ROUGE, 512, true, false, true},
    {"multi_news", "summarisation", RK_METRIC_ROUGE, 512, true, false, true},
    {"vcsum", "summarisation", RK_METRIC_ROUGE_ZH, 512, true, false, false},
    {"trec", "few-shot", RK_METRIC_CLASSIFICATION, 64, false, true, true},
    {"triviaqa", "few-shot", RK_METRIC_QA_F1, 32, false, true, true},
    {"samsum", "few-shot", RK_METRIC_ROUGE, 128, false, true, true},
    {"lsht", "few-shot", RK_METRIC_CLASSIFICATION, 64, false, true, false},
    {"passage_count", "synthetic", RK_METRIC_COUNT, 32, true, false, true},
    {"passage_retrieval_en", "synthetic", RK_METRIC_RETRIEVAL, 32, true, false, true},
    {"passage_retrieval_zh", "synthetic", RK_METRIC_RETRIEVAL_ZH, 32, true, false, false},
    {"lcc", "code", RK_METRIC_CODE_SIM, 64, false, false, true},
    {"repobench-p", "code", RK_METRIC_CODE_SIM, 64, false, false, true},
};
const int rk_lb_n_datasets = (int)(sizeof rk_lb_datasets / sizeof *rk_lb_datasets);

const rk_lb_dataset *rk_lb_find(const char *name) {
    for (int i = 0; i < rk_lb_n_datasets; i++)
        if (strcmp(rk_lb_datasets[i].name, name) == 0) return &rk_lb_datasets[i];
    return NULL;
}

/* ---- the checkout ---- */

struct rk_longbench {
    rk_json *prompt, *max_len;
    char     path[4096]; /* of the prompts, for messages */
};

rk_status rk_longbench_open(const char *checkout, rk_longbench **out) {
    static const char *const places[] = {"LongBench/config", "config"};
    char                     path[4096];
    rk_longbench            *b;
    rk_status                st;
    *out = NULL;
    RK_TRY(rk_mem_alloc_to(1, sizeof *b, "LongBench", &b));
    for (size_t i = 0; i < 2 && !b->path[0]; i++) {
        snprintf(path, sizeof path, "%.3900s/%s/dataset2prompt.json", checkout, places[i]);
        if (access(path, R_OK) == 0) snprintf(b->path, sizeof b->path, "%s", path);
    }
    if (!b->path[0]) {
        snprintf(path, sizeof path, "%.3900s/config/model2maxlen.json", checkout);
        st = RK_FAIL(RK_E_INPUT, "%.300s: no LongBench/config/dataset2prompt.json%s", checkout,
                     access(path, R_OK) == 0
                         ? ": config/ is of LongBench v2; check out v1's folder LongBench too"
                         : ": give a checkout of LongBench v1");
        goto out;
    }
    RK_TRY_OUT(st, rk_json_load(b->path, &b->prompt));
    snprintf(path, sizeof path, "%.*smaxlen.json", (int)(strlen(b->path) - strlen("prompt.json")),
             b->path);
    RK_TRY_OUT(st, rk_json_load(path, &b->max_len));
    *out = b;
    return RK_OK;
out:
    rk_longbench_close(b);
    return st;
}

void rk_longbench_close(rk_longbench *b) {
    if (!b) return;
    rk_json_close(b->prompt);
    rk_json_close(b->max_len);
    rk_mem_free(b);
}

int rk_longbench_max_new(const rk_longbench *b, const rk_lb_dataset *d) {
    return (int)rk_json_int(rk_json_get(b->max_len, d->name), d->max_new);
}

/* ---- samples ---- */

typedef struct loader {
    const char    *path;
    int64_t        line;
    rk_lb_samples *out;
    int            cap;
} loader;

static rk_status bad_field(const loader *l, const char *field, const char *want, const rk_json *v) {
    return RK_FAIL(RK_E_INPUT, "%s line %lld: `%s` must be %s, it is %s", l->path,
                   (long long)l->line, field, want, v ? rk_json_kind_name(v) : "absent");
}

static rk_status get_string(const loader *l, const rk_json *j, const char *field, rk_str *out) {
    const rk_json *v = rk_json_get(j, field);
    if (rk_json_kind_of(v) != RK_JSON_STRING) return bad_field(l, field, "a string", v);
    *out = (rk_str){rk_json_str(v, ""), rk_json_str_len(v)};
    return RK_OK;
}

static rk_status get_list(const loader *l, const rk_json *j, const char *field, bool may_lack,
                          rk_str **out, int *n) {
    const rk_json *v = rk_json_get(j, field);
    rk_json_kind   k = rk_json_kind_of(v);
    if (may_lack && (k == RK_JSON_NULL || k == RK_JSON_NONE)) return RK_OK;
    if (k != RK_JSON_ARRAY) return bad_field(l, field, "a list of strings", v);
    *n = (int)rk_json_len(v);
    RK_TRY(rk_mem_alloc_to(*n + 1, sizeof **out, "answers", out));
    for (int i = 0; i < *n; i++) {
        const rk_json *s = rk_json_at(v, (size_t)i);
        if (rk_json_kind_of(s) != RK_JSON_STRING)
            return bad_field(l, field, "a list of strings", s);
        (*out)[i] = (rk_str){rk_json_str(s, ""), rk_json_str_len(s)};
    }
    return RK_OK;
}

static rk_status fill(const loader *l, const rk_json *j, rk_lb_sample *s) {
    char id[32];
    snprintf(id, sizeof id, "line %lld", (long long)l->line);
    const rk_json *v = rk_json_get(j, "_id");
    RK_TRY(rk_mem_strdup(rk_json_str(v, id), &s->id));
    RK_TRY(get_string(l, j, "context", &s->context));
    RK_TRY(get_string(l, j, "input", &s->input));
    RK_TRY(get_list(l, j, "answers", false, &s->answers, &s->n_answers));
    RK_TRY(get_list(l, j, "all_classes", true, &s->classes, &s->n_classes));
    v = rk_json_get(j, "length");
    if (v && rk_json_kind_of(v) != RK_JSON_INT) return bad_field(l, "length", "a whole number", v);
    s->length = rk_json_int(v, 0);
    return RK_OK;
}

static rk_status add(loader *l, const char *text, size_t n) {
    rk_lb_samples *o = l->out;
    char           origin[4200];
    rk_json       *j;
    if (o->n == l->cap) {
        void *a = o->at, *b = o->line;
        int   cap = l->cap ? 2 * l->cap : 64;
        RK_TRY(rk_mem_resize(&a, cap, sizeof *o->at, "samples"));
        o->at = a;
        RK_TRY(rk_mem_resize(&b, cap, sizeof *o->line, "samples"));
        o->line = b;
        l->cap = cap;
    }
    snprintf(origin, sizeof origin, "%s line %lld", l->path, (long long)l->line);
    RK_TRY(rk_json_parse(text, n, origin, &j));
    o->line[o->n] = j;
    o->at[o->n] = (rk_lb_sample){0};
    return fill(l, j, &o->at[o->n++]);
}

static rk_status read_all(const char *path, char **text, size_t *n) {
    FILE   *f = fopen(path, "rbe");
    void   *p = NULL;
    int64_t cap = 1 << 20, used = 0;
    if (!f) return RK_FAIL(RK_E_INPUT, "%s: cannot open: %m", path);
    rk_status st = RK_OK;
    for (size_t k = 1; k > 0 && st == RK_OK;) {
        st = rk_mem_resize(&p, cap + 1, 1, "samples");
        if (st != RK_OK) break;
        k = fread((char *)p + used, 1, (size_t)(cap - used), f);
        used += (int64_t)k;
        if (used == cap) cap *= 2;
    }
    if (st == RK_OK && ferror(f)) st = RK_FAIL(RK_E_INPUT, "%s: cannot read: %m", path);
    fclose(f);
    if (st != RK_OK) {
        rk_mem_free(p);
        return st;
    }
    ((char *)p)[used] = 0;
    *text = p;
    *n = (size_t)used;
    return RK_OK;
}

rk_status rk_longbench_load(const char *folder, const rk_lb_dataset *d, bool e, int most,
                            rk_lb_samples *out) {
    char      path[4096], *text = NULL;
    size_t    n = 0;
    loader    l = {.path = path, .line = 1, .out = out};
    rk_status st;
    *out = (rk_lb_samples){0};
    snprintf(path, sizeof path, "%.3900s/%s%s.jsonl", folder, d->name, e ? "_e" : "");
    RK_TRY_OUT(st, read_all(path, &text, &n));
    for (size_t at = 0; at < n && (most == 0 || out->n < most); l.line++) {
        const char *nl = memchr(text + at, '\n', n - at);
        size_t      len = nl ? (size_t)(nl - (text + at)) : n - at;
        if (strspn(text + at, " \t\r") < len) RK_TRY_OUT(st, add(&l, text + at, len));
        at += len + 1;
    }
    if (out->n == 0) st = RK_FAIL(RK_E_INPUT, "%s: holds no samples", path);
out:
    rk_mem_free(text);
    if (st != RK_OK) rk_longbench_free(out);
    return st;
}

void rk_longbench_free(rk_lb_samples *s) {
    for (int i = 0; i < s->n; i++) {
        rk_mem_free(s->at[i].id);
        rk_mem_free(s->at[i].answers);
        rk_mem_free(s->at[i].classes);
        rk_json_close(s->line[i]);
    }
    rk_mem_free(s->at);
    rk_mem_free(s->line);
    *s = (rk_lb_samples){0};
}

/* ---- prompts ---- */

static rk_status fill_template(const char *t, const rk_lb_sample *s, char **out, size_t *n) {
    static const char context[] = "{context}", input[] = "{input}";
    char             *o;
    size_t            cap = 1;
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0;
        if (pass) RK_TRY(rk_mem_alloc_to((int64_t)cap, 1, "prompt", &o));
        for (const char *p = t; *p;) {
            const rk_str *x = strncmp(p, context, sizeof context - 1) == 0 ? &s->context
                              : strncmp(p, input, sizeof input - 1) == 0   ? &s->input
                                                                           : NULL;
            if (x && pass) memcpy(o + at, x->s, x->n);
            if (!x && pass) o[at] = *p;
            at += x ? x->n : 1;
            p += !x ? 1 : x == &s->context ? sizeof context - 1 : sizeof input - 1;
        }
        cap = at + 1;
        if (pass) o[at] = 0, *out = o, *n = at;
    }
    return RK_OK;
}

/* transformers' clean_up_tokenization, in place: spaces before marks and contractions go. */
static void clean_up(char *s, size_t *n) {
    static const char *const pairs[][2] = {
        {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
        {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
        size_t from = strlen(pairs[k][0]), to = strlen(pairs[k][1]), m = 0;
        for (size_t i = 0; i < *n;) {
            if (*n - i >= from && memcmp(s + i, pairs[k][0], from) == 0) {
                memcpy(s + m, pairs[k][1], to);
                m += to;
                i += from;
            } else {
                s[m++] = s[i++];
            }
        }
        *n = m;
        s[m] = 0;
    }
}

/* Both halves of max_tokens, decoded and joined. */
static rk_status join_halves(const rk_tokenizer *t, const int32_t *ids, int64_t n_ids, int64_t half,
                             bool cleanup, char **text, size_t *n) {
    char     *part[2] = {NULL, NULL}, *joined = NULL;
    size_t    len[2] = {0, 0};
    rk_status st;
    for (int k = 0; k < 2; k++) {
        RK_TRY_OUT(st, rk_tokenizer_decode(t, k ? ids + n_ids - half : ids, half, true, &part[k],
                                           &len[k]));
        if (cleanup) clean_up(part[k], &len[k]);
    }
    RK_TRY_OUT(st, rk_mem_alloc_to((int64_t)(len[0] + len[1]) + 1, 1, "prompt", &joined));
    memcpy(joined, part[0], len[0]);
    memcpy(joined + len[0], part[1], len[1]);
    joined[len[0] + len[1]] = 0;
    *text = joined;
    *n = len[0] + len[1];
out:
    rk_mem_free(part[0]);
    rk_mem_free(part[1]);
    return st;
}

rk_status rk_longbench_prompt(const rk_longbench *b, const char *name, const rk_lb_sample *s,
                              const rk_tokenizer *t, int64_t max_tokens, bool cleanup, char **text,
                              size_t *n, bool *truncated) {
    const rk_json *form = rk_json_get(b->prompt, name);
    int32_t       *ids = NULL;
    int64_t        n_ids;
    char          *whole = NULL;
    size_t         n_whole = 0;
    rk_status      st;
    *truncated = false;
    if (rk_json_kind_of(form) != RK_JSON_STRING)
        return RK_FAIL(RK_E_INPUT, "%s: has no prompt for %s", b->path, name);
    RK_TRY_OUT(st, fill_template(rk_json_str(form, ""), s, &whole, &n_whole));
    rk_text_part part = {whole, n_whole, false};
    if (max_tokens > 0) {
        RK_TRY_OUT(st, rk_tokenizer_encode(t, &part, 1, true, &ids, &n_ids));
        *truncated = n_ids > max_tokens;
    }
    if (*truncated) {
        RK_TRY_OUT(st, join_halves(t, ids, n_ids, max_tokens / 2, cleanup, text, n));
    } else {
        *text = whole;
        *n = n_whole;
        whole = NULL;
    }
out:
    rk_mem_free(ids);
    rk_mem_free(whole);
    return st;
}

/* ---- scores ---- */

rk_str rk_longbench_counted(const rk_lb_dataset *d, rk_str p) {
    if (!d->first_line) return p;
    while (p.n && *p.s == '\n') p.s++, p.n--;
    const char *nl = p.n ? memchr(p.s, '\n', p.n) : NULL;
    if (nl) p.n = (size_t)(nl - p.s);
    return p;
}

rk_status rk_longbench_score(const rk_lb_dataset *d, rk_similarity s, rk_str prediction,
                             const rk_lb_sample *x, double *out) {
    rk_str p = rk_longbench_counted(d, prediction);
    *out = 0;
    for (int i = 0; i < x->n_answers; i++) {
        double one;
        RK_TRY(rk_metric_score(d->metric, s, p, x->answers[i], x->classes, x->n_classes, &one));
        *out = one > *out ? one : *out;
    }
    return RK_OK;
}

void rk_longbench_average(const double *score, double *of_papers, double *of_categories) {
    double papers = 0, categories = 0;
    int    n_papers = 0, n_categories = 0;
    for (int i = 0; i < rk_lb_n_datasets; i++) {
        double sum = 0;
        int    n = 0;
        bool   first = true;
        if (rk_lb_datasets[i].papers && !isnan(score[i])) papers += score[i], n_papers++;
        for (int k = 0; k < rk_lb_n_datasets; k++) {
            if (strcmp(rk_lb_datasets[k].category, rk_lb_datasets[i].category) != 0) continue;
            first = first && k >= i;
            if (!isnan(score[k])) sum += score[k], n++;
        }
        if (first && n) categories += sum / n, n_categories++;
    }
    *of_papers = n_papers ? papers / n_papers : NAN;
    *of_categories = n_categories ? categories / n_categories : NAN;
}
