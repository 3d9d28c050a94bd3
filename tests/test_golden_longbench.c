/* test_golden_longbench.c - LongBench's scores and prompts against the official code's own results.
 * label: golden
 *
 * Whatever records the folder's files hold: samples' and datasets' scores to 1e-9, before and after
 * rounding, both similarities of code; prompts after truncation by length and SHA-256. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "eval/longbench.h"
#include "eval/text.h"
#include "tests/harness.h"
#include "tests/sha256.h"
#include "tests/suites.h"
#include "tests/xz.h"

enum { MOST = 600 };

static rk_str str_of(const rk_json *j) {
    return (rk_str){rk_json_str(j, ""), rk_json_str_len(j)};
}

/* Strings of a list; returns their number. */
static int list_of(const rk_json *j, rk_str out[MOST]) {
    int n = (int)rk_json_len(j);
    CU_ASSERT_FATAL(n <= MOST);
    for (int i = 0; i < n; i++) out[i] = str_of(rk_json_at(j, (size_t)i));
    return n;
}

static bool near_to(double got, const rk_json *want) {
    double w = rk_json_num(want, NAN);
    return isnan(w) ? isnan(got) : fabs(got - w) <= 1e-9;
}

typedef void (*line_fn)(const rk_json *j, int *counts);

/* Every line of a file; counts [RK_METRICS + 1]. */
static bool each_line(const char *name, line_fn fn, int *counts) {
    const char *folder = rk_test_goldens();
    char        path[4200], *line = NULL;
    size_t      cap = 0;
    ssize_t     n;
    if (!folder) {
        rk_test_skip("no goldens");
        return false;
    }
    snprintf(path, sizeof path, "%s/longbench/%s", folder, name);
    FILE *f = fopen(path, "r");
    CU_ASSERT_FATAL(f != NULL);
    while ((n = getline(&line, &cap, f)) > 0) {
        rk_json *j;
        while (n && strchr("\n,", line[n - 1])) line[--n] = 0;
        if (n < 2) continue; /* the brackets of an array with an object a line */
        CU_ASSERT_EQUAL_FATAL(rk_json_parse(line, (size_t)n, path, &j), RK_OK);
        fn(j, counts);
        rk_json_close(j);
    }
    free(line);
    fclose(f);
    return true;
}

static void show(const char *what, const int *counts) {
    printf("    %s:", what);
    for (int m = 0; m < RK_METRICS; m++)
        if (counts[m]) printf(" %s %d", rk_metric_name((rk_metric)m), counts[m]);
    printf("\n");
}

static rk_lb_sample sample_of(const rk_json *j, rk_str answers[MOST], rk_str classes[MOST]) {
    rk_lb_sample s = {.answers = answers, .classes = classes};
    s.n_answers = list_of(rk_json_get(j, "answers"), answers);
    s.n_classes = list_of(rk_json_get(j, "all_classes"), classes);
    return s;
}

static void check_record(const rk_json *j, int *counts) {
    static rk_str        answers[MOST], classes[MOST];
    const rk_lb_dataset *d = rk_lb_find(rk_json_str(rk_json_get(j, "dataset"), ""));
    rk_metric            m;
    CU_ASSERT_FATAL(d != NULL);
    CU_ASSERT_EQUAL(rk_metric_parse(rk_json_str(rk_json_get(j, "metric"), ""), &m), RK_OK);
    CU_ASSERT_EQUAL(m, d->metric);
    rk_lb_sample s = sample_of(j, answers, classes);
    rk_str       p = str_of(rk_json_get(j, "prediction"));
    double       got = NAN;
    CU_ASSERT_EQUAL(rk_longbench_score(d, RK_SIMILARITY_DIFFLIB, p, &s, &got), RK_OK);
    bool ok = near_to(got, rk_json_get(j, "expected"));
    if (m == RK_METRIC_CODE_SIM) {
        CU_ASSERT_EQUAL(rk_longbench_score(d, RK_SIMILARITY_INDEL, p, &s, &got), RK_OK);
        ok = ok && near_to(got, rk_json_get(j, "expected_levenshtein"));
    }
    if (!ok)
        printf("  %s %s: \"%.60s\" gives %.10f, not %.10f\n", rk_metric_name(m),
               rk_json_str(rk_json_get(j, "case"), ""), p.s, got,
               rk_json_num(rk_json_get(j, "expected"), NAN));
    CU_ASSERT(ok);
    counts[m]++;
}

static void test_metrics(void) {
    int counts[RK_METRICS] = {0};
    if (each_line("metrics.jsonl", check_record, counts)) show("records", counts);
}

static void check_cut(const rk_json *j, int *counts) {
    static rk_str  p[20000], a[20000];
    const rk_json *answers = rk_json_get(j, "answers_cut"), *cut = rk_json_get(j, "prediction_cut");
    rk_metric      m;
    double         best = 0;
    CU_ASSERT_EQUAL_FATAL(rk_metric_parse(rk_json_str(rk_json_get(j, "metric"), ""), &m), RK_OK);
    int np = (int)rk_json_len(cut);
    CU_ASSERT_FATAL(np <= 20000);
    for (int i = 0; i < np; i++) p[i] = str_of(rk_json_at(cut, (size_t)i));
    for (size_t k = 0; k < rk_json_len(answers); k++) {
        const rk_json *one = rk_json_at(answers, k);
        int            na = (int)rk_json_len(one);
        double         score = NAN;
        CU_ASSERT_FATAL(na <= 20000);
        for (int i = 0; i < na; i++) a[i] = str_of(rk_json_at(one, (size_t)i));
        CU_ASSERT_EQUAL(rk_metric_tokens(m, p, np, a, na, &score), RK_OK);
        best = fmax(best, score);
    }
    CU_ASSERT(near_to(best, rk_json_get(j, "expected")));
    counts[m]++;
}

static void test_cut_words(void) {
    int counts[RK_METRICS] = {0};
    if (each_line("metrics_zh.jsonl", check_cut, counts)) show("records of cut words", counts);
}

/* Scores of a dataset's samples, whole and by length. */
static bool check_scores(const rk_json *j, const rk_lb_dataset *d, rk_similarity s,
                         const char *suffix) {
    static rk_str  answers[MOST], classes[MOST];
    const rk_json *predictions = rk_json_get(j, "predictions"), *all = rk_json_get(j, "answers");
    const rk_json *lengths = rk_json_get(j, "lengths");
    int            n = (int)rk_json_len(predictions), m[3] = {0};
    double        *score = calloc((size_t)n * 4 + 1, sizeof *score), exact;
    char           key[64];
    rk_lb_sample   x = {.answers = answers, .classes = classes};
    x.n_classes = list_of(rk_json_get(j, "all_classes"), classes);
    for (int i = 0; i < n; i++) {
        x.n_answers = list_of(rk_json_at(all, (size_t)i), answers);
        CU_ASSERT_EQUAL(
            rk_longbench_score(d, s, str_of(rk_json_at(predictions, (size_t)i)), &x, &score[i]),
            RK_OK);
        int64_t length = rk_json_int(rk_json_at(lengths, (size_t)i), 0);
        int     k = length < 4000 ? 0 : length < 8000 ? 1 : 2;
        score[(k + 1) * n + m[k]++] = score[i];
    }
    double rounded = rk_metric_dataset(score, n, &exact);
    snprintf(key, sizeof key, "score%s", suffix);
    bool ok = near_to(rounded, rk_json_get(j, key));
    snprintf(key, sizeof key, "score_unrounded%s", suffix);
    ok = ok && near_to(exact, rk_json_get(j, key));
    for (int k = 0; k < 3; k++) {
        static const char *const buckets[] = {"0-4k", "4-8k", "8k+"};
        rounded = rk_metric_bucket(score + (k + 1) * n, m[k], &exact);
        snprintf(key, sizeof key, "score_e%s", suffix);
        const rk_json *e = rk_json_get(j, key);
        ok = ok &&
             near_to(rounded, rk_json_kind_of(e) == RK_JSON_ARRAY ? rk_json_at(e, (size_t)k)
                                                                  : rk_json_get(e, buckets[k]));
        snprintf(key, sizeof key, "score_e_unrounded%s", suffix);
        e = rk_json_get(j, key);
        ok = ok && near_to(exact, rk_json_kind_of(e) == RK_JSON_ARRAY ? rk_json_at(e, (size_t)k)
                                                                      : rk_json_get(e, buckets[k]));
    }
    free(score);
    return ok;
}

static void check_dataset(const rk_json *j, int *counts) {
    const rk_lb_dataset *d = rk_lb_find(rk_json_str(rk_json_get(j, "dataset"), ""));
    CU_ASSERT_FATAL(d != NULL);
    bool ok = check_scores(j, d, RK_SIMILARITY_DIFFLIB, "");
    if (d->metric == RK_METRIC_CODE_SIM)
        ok = check_scores(j, d, RK_SIMILARITY_INDEL, "_levenshtein") && ok;
    if (!ok)
        printf("  dataset %s (%s) differs\n", d->name, rk_json_str(rk_json_get(j, "case"), ""));
    CU_ASSERT(ok);
    counts[d->metric]++;
}

static void test_datasets(void) {
    int counts[RK_METRICS] = {0};
    if (each_line("dataset_scores.json", check_dataset, counts)) show("datasets", counts);
}

/* ---- prompts ---- */

static struct {
    rk_longbench *bench;
    char          kept[3][64]; /* names: of the tokenizer and of the dataset at hand */
    rk_tokenizer *tokenizer;
    rk_lb_samples samples;
} prompts;

/* False: of a family that this version does not read. */
static bool take_tokenizer(const char *name) {
    char path[4400], plain[512];
    if (strcmp(prompts.kept[0], name) == 0) return prompts.tokenizer != NULL;
    rk_tokenizer_close(prompts.tokenizer);
    prompts.tokenizer = NULL;
    snprintf(path, sizeof path, "%s/../tokenizers/%s/tokenizer.json.xz", rk_test_goldens(), name);
    CU_ASSERT_FATAL(rk_test_unpack(path, "tokenizer.json", plain));
    snprintf(prompts.kept[0], sizeof prompts.kept[0], "%s", name);
    if (rk_tokenizer_open_json(plain, &prompts.tokenizer) == RK_OK) return true;
    CU_ASSERT(strstr(rk_err_last()->text, "is not supported") != NULL); /* the one reason */
    prompts.tokenizer = NULL;
    return false;
}

static const rk_lb_sample *take_sample(const char *dataset, const char *id) {
    char path[4400];
    if (strcmp(prompts.kept[1], dataset) != 0) {
        rk_longbench_free(&prompts.samples);
        snprintf(path, sizeof path, "%s/../data/longbench/data", rk_test_goldens());
        CU_ASSERT_EQUAL_FATAL(
            rk_longbench_load(path, rk_lb_find(dataset), false, 0, &prompts.samples), RK_OK);
        snprintf(prompts.kept[1], sizeof prompts.kept[1], "%s", dataset);
    }
    for (int i = 0; i < prompts.samples.n; i++)
        if (strcmp(prompts.samples.at[i].id, id) == 0) return &prompts.samples.at[i];
    return NULL;
}

static void check_prompt(const rk_json *j, int *counts) {
    char   hex[65], *text = NULL;
    size_t n = 0;
    bool   cut;
    if (!take_tokenizer(rk_json_str(rk_json_get(j, "tokenizer"), ""))) {
        counts[2]++;
        return;
    }
    const rk_lb_sample *s = take_sample(rk_json_str(rk_json_get(j, "dataset"), ""),
                                        rk_json_str(rk_json_get(j, "_id"), ""));
    CU_ASSERT_FATAL(s != NULL);
    const char *name = rk_json_str(rk_json_get(j, "template"), "");
    CU_ASSERT_EQUAL_FATAL(
        rk_longbench_prompt(prompts.bench, name, s, prompts.tokenizer, 0, false, &text, &n, &cut),
        RK_OK);
    rk_sha256_hex(text, n, hex);
    bool ok = strcmp(hex, rk_json_str(rk_json_get(j, "full_sha256"), "")) == 0;
    rk_mem_free(text);
    CU_ASSERT_EQUAL_FATAL(rk_longbench_prompt(prompts.bench, name, s, prompts.tokenizer,
                                              rk_json_int(rk_json_get(j, "max_length"), 0),
                                              rk_json_bool(rk_json_get(j, "cleanup"), false), &text,
                                              &n, &cut),
                          RK_OK);
    rk_sha256_hex(text, n, hex);
    rk_text t;
    CU_ASSERT_EQUAL(rk_text_open(text, n, &t), RK_OK);
    ok = ok && strcmp(hex, rk_json_str(rk_json_get(j, "sha256"), "")) == 0 &&
         t.n == rk_json_int(rk_json_get(j, "chars"), -1) &&
         cut == rk_json_bool(rk_json_get(j, "truncated"), !cut);
    if (!ok) printf("  prompt %s of %s, %s: differs\n", name, s->id, prompts.kept[0]);
    CU_ASSERT(ok);
    rk_text_free(&t);
    rk_mem_free(text);
    counts[0]++;
    counts[1] += cut;
}

static void test_prompts(void) {
    int  counts[3] = {0};
    char path[4400];
    if (!rk_test_goldens()) {
        rk_test_skip("no goldens");
        return;
    }
    snprintf(path, sizeof path, "%s/../data/longbench", rk_test_goldens());
    CU_ASSERT_EQUAL_FATAL(rk_longbench_open(path, &prompts.bench), RK_OK);
    each_line("prompts.jsonl", check_prompt, counts);
    printf("    %d prompts, %d of them cut; %d of tokenizers that are not read\n", counts[0],
           counts[1], counts[2]);
    if (counts[2])
        rk_test_skip("prompts of SentencePiece tokenizers, which this version does not read");
    CU_ASSERT(counts[0] > 0);
    rk_longbench_close(prompts.bench);
    rk_tokenizer_close(prompts.tokenizer);
    rk_longbench_free(&prompts.samples);
    memset(&prompts, 0, sizeof prompts);
}

int rk_suite_golden_longbench(void) {
    CU_pSuite s = CU_add_suite("golden_longbench", NULL, NULL);
    return !s || !CU_ADD_TEST(s, test_metrics) || !CU_ADD_TEST(s, test_cut_words) ||
           !CU_ADD_TEST(s, test_datasets) || !CU_ADD_TEST(s, test_prompts);
}
