/* metrics.c - see metrics.h. ROUGE and the similarity of strings are in rouge.c and similarity.c.
 */
#include "eval/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "eval/metrics_internal.h"

static const char *const names[RK_METRICS] = {"qa_f1",    "rouge",     "classification",
                                              "count",    "retrieval", "retrieval_zh",
                                              "code_sim", "qa_f1_zh",  "rouge_zh"};

const char *rk_metric_name(rk_metric m) {
    return (unsigned)m < RK_METRICS ? names[m] : "?";
}

rk_status rk_metric_parse(const char *name, rk_metric *out) {
    for (int i = 0; i < RK_METRICS; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (rk_metric)i;
            return RK_OK;
        }
    return RK_FAIL(RK_E_USAGE, "metric %.40s is unknown", name);
}

/* ---- F1 of words ---- */

static int by_words(const void *a, const void *b) {
    return rk_slice_compare(*(const rk_slice *)a, *(const rk_slice *)b);
}

/* F1 of two multisets of words; both are sorted in place. */
static double f1(rk_slice *a, int64_t na, rk_slice *b, int64_t nb) {
    int64_t same = 0;
    qsort(a, (size_t)na, sizeof *a, by_words);
    qsort(b, (size_t)nb, sizeof *b, by_words);
    for (int64_t i = 0, j = 0; i < na && j < nb;) {
        int c = rk_slice_compare(a[i], b[j]);
        same += c == 0;
        i += c <= 0;
        j += c >= 0;
    }
    if (same == 0) return 0;
    double precision = (double)same / (double)na, recall = (double)same / (double)nb;
    return 2 * precision * recall / (precision + recall);
}

static bool is_article(rk_slice w) {
    static const int32_t a[] = {'a'}, an[] = {'a', 'n'}, the[] = {'t', 'h', 'e'};
    return rk_slice_equal(w, (rk_slice){a, 1}) || rk_slice_equal(w, (rk_slice){an, 2}) ||
           rk_slice_equal(w, (rk_slice){the, 3});
}

/* Lower case, ASCII punctuation deleted, whole words a, an, the blanked. */
static rk_status normalise(rk_str s, rk_text *out) {
    rk_text t, low;
    RK_TRY(rk_text_open(s.s, s.n, &t));
    rk_status st = rk_text_lower(&t, &low);
    rk_text_free(&t);
    RK_TRY(st);
    int64_t n = 0;
    for (int64_t i = 0; i < low.n; i++)
        if (!rk_char_is_ascii_punctuation(low.c[i])) low.c[n++] = low.c[i];
    low.n = n;
    for (int64_t i = 0; i < n;) {
        int64_t from = i;
        while (i < n && rk_char_is_word(low.c[i])) i++;
        if (i > from && is_article((rk_slice){low.c + from, i - from}))
            for (int64_t k = from; k < i; k++) low.c[k] = ' ';
        if (i == from) i++;
    }
    *out = low;
    return RK_OK;
}

static rk_status words_of(const rk_text *t, rk_slice **words, int64_t *n) {
    RK_TRY(rk_mem_alloc_to(t->n / 2 + 2, sizeof **words, "words", words));
    *n = rk_slice_split_space(rk_slice_of(t), *words, t->n / 2 + 2);
    return RK_OK;
}

static rk_status qa_f1(rk_str prediction, rk_str answer, double *out) {
    rk_text   p = {0}, a = {0};
    rk_slice *wp = NULL, *wa = NULL;
    int64_t   np = 0, na = 0;
    rk_status st;
    RK_TRY_OUT(st, normalise(prediction, &p));
    RK_TRY_OUT(st, normalise(answer, &a));
    RK_TRY_OUT(st, words_of(&p, &wp, &np));
    RK_TRY_OUT(st, words_of(&a, &wa, &na));
    *out = f1(wp, np, wa, na);
out:
    rk_mem_free(wp);
    rk_mem_free(wa);
    rk_text_free(&p);
    rk_text_free(&a);
    return st;
}

/* Punctuation that metrics.py deletes from Chinese texts beside ASCII's. */
static bool is_cjk_punctuation(int32_t c) {
    static const char set[] = "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟"
                              "｠｢｣､、〃》「」『』【】〔〕"
                              "〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏.";
    rk_text           t;
    bool              found = false;
    if (rk_text_open(set, sizeof set - 1, &t) != RK_OK) return false;
    for (int64_t i = 0; i < t.n; i++) found = found || t.c[i] == c;
    rk_text_free(&t);
    return found;
}

/* A word of a Chinese text: lower case, without punctuation and white space. */
static rk_status normalise_zh(rk_str s, rk_text *out) {
    rk_text t;
    RK_TRY(rk_text_open(s.s, s.n, &t));
    rk_status st = rk_text_lower(&t, out);
    rk_text_free(&t);
    RK_TRY(st);
    int64_t n = 0;
    for (int64_t i = 0; i < out->n; i++) {
        int32_t c = out->c[i];
        if (!rk_char_is_ascii_punctuation(c) && !rk_char_is_space(c) && !is_cjk_punctuation(c))
            out->c[n++] = c;
    }
    out->n = n;
    return RK_OK;
}

/* Normalised words that are not empty. Shapes: text, words [n] */
static rk_status words_zh(const rk_str *s, int n, rk_text *text, rk_slice *words,
                          int64_t *n_words) {
    *n_words = 0;
    for (int i = 0; i < n; i++) {
        RK_TRY(normalise_zh(s[i], &text[i]));
        if (text[i].n) words[(*n_words)++] = rk_slice_of(&text[i]);
    }
    return RK_OK;
}

static rk_status qa_f1_zh(const rk_str *p, int np, const rk_str *a, int na, double *out) {
    rk_text  *text = NULL;
    rk_slice *words = NULL;
    int64_t   wp = 0, wa = 0;
    rk_status st;
    RK_TRY_OUT(st, rk_mem_alloc_to(np + na + 1, sizeof *text, "words", &text));
    RK_TRY_OUT(st, rk_mem_alloc_to(np + na + 1, sizeof *words, "words", &words));
    RK_TRY_OUT(st, words_zh(p, np, text, words, &wp));
    RK_TRY_OUT(st, words_zh(a, na, text + np, words + np, &wa));
    *out = f1(words, wp, words + np, wa);
out:
    for (int i = 0; text && i < np + na; i++) rk_text_free(&text[i]);
    rk_mem_free(text);
    rk_mem_free(words);
    return st;
}

/* ---- numbers ---- */

/* The next run of digits from *at on; *at is moved behind it. */
static bool next_number(rk_slice s, int64_t *at, rk_slice *out) {
    while (*at < s.n && !rk_char_is_digit(s.c[*at])) ++*at;
    int64_t from = *at;
    while (*at < s.n && rk_char_is_digit(s.c[*at])) ++*at;
    *out = (rk_slice){s.c + from, *at - from};
    return out->n > 0;
}

/* Share of the prediction's numbers that equal want. */
static double count_score(rk_slice prediction, rk_slice want) {
    int64_t  at = 0, n = 0, right = 0;
    rk_slice x;
    while (next_number(prediction, &at, &x)) {
        n++;
        right += rk_slice_equal(x, want);
    }
    return n ? (double)right / (double)n : 0;
}

/* The number behind a word in the answer, wherever it first has one. */
static rk_slice number_behind(rk_slice answer, const int32_t *word, int64_t n) {
    rk_slice none = {answer.c, 0};
    for (int64_t at = 0; (at = rk_slice_find(answer, (rk_slice){word, n}, at)) >= 0; at++) {
        int64_t from = at + n, end = from;
        while (end < answer.n && rk_char_is_digit(answer.c[end])) end++;
        if (end > from) return (rk_slice){answer.c + from, end - from};
    }
    return none;
}

static double retrieval(rk_slice prediction, rk_slice answer, bool zh) {
    static const int32_t word[] = {'P', 'a', 'r', 'a', 'g', 'r', 'a', 'p', 'h', ' '},
                         duan_luo[] = {0x6bb5, 0x843d};
    rk_slice want = zh ? number_behind(answer, duan_luo, 2) : number_behind(answer, word, 10);
    return want.n ? count_score(prediction, want) : 0;
}

/* ---- classes ---- */

/* Classes named in the prediction; then the list is walked while proper parts of the answer are
 * taken out of it, so that the one behind each is passed over. That is the metric. Shapes: list [n]
 * scratch */
static double classification(rk_slice prediction, rk_slice answer, const rk_text *classes, int n,
                             rk_slice *list) {
    int m = 0;
    for (int i = 0; i < n; i++)
        if (rk_slice_find(prediction, rk_slice_of(&classes[i]), 0) >= 0)
            list[m++] = rk_slice_of(&classes[i]);
    for (int i = 0; i < m; i++) {
        if (rk_slice_find(answer, list[i], 0) < 0 || rk_slice_equal(list[i], answer)) continue;
        int first = 0;
        while (!rk_slice_equal(list[first], list[i])) first++;
        memmove(list + first, list + first + 1, (size_t)(m - first - 1) * sizeof *list);
        m--;
    }
    for (int i = 0; i < m; i++)
        if (rk_slice_equal(list[i], answer)) return 1.0 / m;
    return 0;
}

static rk_status classify(rk_slice prediction, rk_slice answer, const rk_str *classes, int n,
                          double *out) {
    rk_text  *text = NULL;
    rk_slice *list = NULL;
    rk_status st;
    RK_TRY_OUT(st, rk_mem_alloc_to(n + 1, sizeof *text, "classes", &text));
    RK_TRY_OUT(st, rk_mem_alloc_to(n + 1, sizeof *list, "classes", &list));
    for (int i = 0; i < n; i++) RK_TRY_OUT(st, rk_text_open(classes[i].s, classes[i].n, &text[i]));
    *out = classification(prediction, answer, text, n, list);
out:
    for (int i = 0; text && i < n; i++) rk_text_free(&text[i]);
    rk_mem_free(text);
    rk_mem_free(list);
    return st;
}

/* ---- code ---- */

static bool looks_like_code(rk_slice line) {
    for (int64_t i = 0; i < line.n; i++) {
        if (line.c[i] == '`' || line.c[i] == '#') return false;
        if (line.c[i] == '/' && i + 1 < line.n && line.c[i + 1] == '/') return false;
    }
    return true;
}

/* The first line without a sign of a comment or a fence; leading line ends do not count. */
static rk_slice first_code_line(rk_slice s) {
    int64_t at = 0;
    while (at < s.n && s.c[at] == '\n') at++;
    for (;;) {
        int64_t end = at;
        while (end < s.n && s.c[end] != '\n') end++;
        rk_slice line = {s.c + at, end - at};
        if (looks_like_code(line)) return line;
        if (end >= s.n) return (rk_slice){s.c, 0};
        at = end + 1;
    }
}

/* ---- all of them ---- */

static rk_status score_texts(rk_metric m, rk_similarity s, rk_slice p, rk_slice a,
                             const rk_str *classes, int n_classes, double *out) {
    switch (m) {
    case RK_METRIC_ROUGE:
        return rk_rouge_l(p, a, out);
    case RK_METRIC_CLASSIFICATION:
        return classify(p, a, classes, n_classes, out);
    case RK_METRIC_COUNT:
        *out = count_score(p, a);
        return RK_OK;
    case RK_METRIC_RETRIEVAL:
        *out = retrieval(p, a, false);
        return RK_OK;
    case RK_METRIC_RETRIEVAL_ZH:
        *out = retrieval(p, a, true);
        return RK_OK;
    case RK_METRIC_CODE_SIM: {
        int percent = 0;
        RK_TRY(rk_fuzz_ratio(s, first_code_line(p), a, &percent));
        *out = percent / 100.0;
        return RK_OK;
    }
    default:
        return RK_FAIL(RK_E_USAGE, "metric %s is of words that are cut by the caller",
                       rk_metric_name(m));
    }
}

rk_status rk_metric_score(rk_metric m, rk_similarity s, rk_str prediction, rk_str answer,
                          const rk_str *classes, int n_classes, double *out) {
    rk_text   p = {0}, a = {0};
    rk_status st;
    if (m == RK_METRIC_QA_F1) return qa_f1(prediction, answer, out);
    RK_TRY_OUT(st, rk_text_open(prediction.s, prediction.n, &p));
    RK_TRY_OUT(st, rk_text_open(answer.s, answer.n, &a));
    st = score_texts(m, s, rk_slice_of(&p), rk_slice_of(&a), classes, n_classes, out);
out:
    rk_text_free(&p);
    rk_text_free(&a);
    return st;
}

/* Words joined by single spaces. */
static rk_status join(const rk_str *s, int n, char **out, size_t *len) {
    size_t all = 1;
    for (int i = 0; i < n; i++) all += s[i].n + 1;
    RK_TRY(rk_mem_alloc_to((int64_t)all, 1, "text", out));
    *len = 0;
    for (int i = 0; i < n; i++) {
        if (i) (*out)[(*len)++] = ' ';
        memcpy(*out + *len, s[i].s, s[i].n);
        *len += s[i].n;
    }
    return RK_OK;
}

rk_status rk_metric_tokens(rk_metric m, const rk_str *prediction, int n_prediction,
                           const rk_str *answer, int n_answer, double *out) {
    char     *p = NULL, *a = NULL;
    size_t    np, na;
    rk_status st;
    if (m == RK_METRIC_QA_F1_ZH) return qa_f1_zh(prediction, n_prediction, answer, n_answer, out);
    if (m != RK_METRIC_ROUGE_ZH)
        return RK_FAIL(RK_E_USAGE, "metric %s is not of cut words", rk_metric_name(m));
    RK_TRY_OUT(st, join(prediction, n_prediction, &p, &np));
    RK_TRY_OUT(st, join(answer, n_answer, &a, &na));
    st = rk_metric_score(RK_METRIC_ROUGE, RK_SIMILARITY_DIFFLIB, (rk_str){p, np}, (rk_str){a, na},
                         NULL, 0, out);
out:
    rk_mem_free(p);
    rk_mem_free(a);
    return st;
}

/* ---- datasets ---- */

double rk_metric_dataset(const double *scores, int n, double *unrounded) {
    char   text[64];
    double total = 0;
    for (int i = 0; i < n; i++) total += scores[i];
    double x = 100 * total / n;
    if (unrounded) *unrounded = x;
    snprintf(text, sizeof text, "%.2f", x); /* exact, half to even, as Python's round */
    return strtod(text, NULL);
}

/* numpy's order of a sum: eight chains within 128 values, halves above. */
static double pairwise(const double *a, int64_t n) {
    enum { CHAINS = 8, BLOCK = 128 };
    if (n < CHAINS) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++) sum += a[i];
        return sum;
    }
    if (n > BLOCK) {
        int64_t half = n / 2 - n / 2 % CHAINS;
        return pairwise(a, half) + pairwise(a + half, n - half);
    }
    double  r[CHAINS];
    int64_t i = CHAINS;
    for (int k = 0; k < CHAINS; k++) r[k] = a[k];
    for (; i < n - n % CHAINS; i += CHAINS)
        for (int k = 0; k < CHAINS; k++) r[k] += a[i + k];
    double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < n; i++) sum += a[i];
    return sum;
}

double rk_metric_bucket(const double *scores, int n, double *unrounded) {
    double x = n ? 100 * (pairwise(scores, n) / n) : NAN;
    if (unrounded) *unrounded = x;
    return rint(x * 100) / 100;
}
