/* test_synth.c - RULER's tasks and the needle: lengths, references, repeatability; answers found
 * again in the text by a reader of the test's own; scores. Needs a model's tokenizer. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "core/weights.h"
#include "eval/synth.h"
#include "tests/harness.h"
#include "tests/suites.h"

static rk_tokenizer *tokenizer;

static bool have_tokenizer(void) {
    rk_weights *w;
    if (tokenizer) return true;
    if (!rk_test_model()) {
        rk_test_skip("no model (RIPPLEKV_MODEL)");
        return false;
    }
    CU_ASSERT_EQUAL_FATAL(rk_weights_open(rk_test_model(), &w), RK_OK);
    CU_ASSERT_EQUAL_FATAL(rk_tokenizer_open_model(rk_test_model(), rk_weights_gguf(w), &tokenizer),
                          RK_OK);
    rk_weights_close(w);
    return true;
}

static int occurrences(const char *text, const char *what) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what)) n++;
    return n;
}

/* Not above the target and near below it; the references in the text and not in the question. */
static void check_sample(rk_synth t, int64_t target, const rk_synth_sample *s) {
    int64_t room = target - rk_synth_max_new(t);
    CU_ASSERT(s->tokens <= room &&
              s->tokens > room - (t == RK_SYNTH_CWE || t >= RK_SYNTH_NIAH_MULTIKEY_2 ? 120 : 64));
    CU_ASSERT(s->n_references > 0 && s->question > 0 && s->question < s->n && s->text[s->n] == 0);
    for (int i = 0; i < s->n_references; i++) {
        int all = occurrences(s->text, s->reference[i]),
            asked = occurrences(s->text + s->question, s->reference[i]);
        CU_ASSERT(asked == 0 && all >= 1);
        if (t <= RK_SYNTH_NIAH_MULTIQUERY || t == RK_SYNTH_NEEDLE) CU_ASSERT_EQUAL(all, 1);
    }
}

static void test_lengths(void) {
    static const int64_t targets[] = {512, 1024, 4096, 6001};
    if (!have_tokenizer()) return;
    for (int t = 0; t < RK_SYNTHS; t++)
        for (size_t k = 0; k < sizeof targets / sizeof *targets; k++) {
            rk_synth_sample s = {0}, same = {0}, other = {0};
            rk_status st = rk_synth_make((rk_synth)t, tokenizer, targets[k], 7, 3, -1, NULL, &s);
            if (st == RK_E_USAGE) { /* too short for the task: says how much it needs, which then is
                                       enough */
                const char *needs = strstr(rk_err_last()->text, "it needs ");
                CU_ASSERT_FATAL(needs != NULL && targets[k] < 4096);
                int64_t least = atoll(needs + strlen("it needs "));
                CU_ASSERT(least > targets[k]);
                CU_ASSERT_EQUAL(
                    rk_synth_make((rk_synth)t, tokenizer, least - 1, 7, 3, -1, NULL, &s),
                    RK_E_USAGE);
                CU_ASSERT_EQUAL_FATAL(
                    rk_synth_make((rk_synth)t, tokenizer, least, 7, 3, -1, NULL, &s), RK_OK);
                rk_synth_free(&s);
                continue;
            }
            CU_ASSERT_EQUAL_FATAL(st, RK_OK);
            check_sample((rk_synth)t, targets[k], &s);
            CU_ASSERT_EQUAL(
                rk_synth_make((rk_synth)t, tokenizer, targets[k], 7, 3, -1, NULL, &same), RK_OK);
            CU_ASSERT(same.n == s.n && memcmp(same.text, s.text, s.n) == 0);
            CU_ASSERT_EQUAL(
                rk_synth_make((rk_synth)t, tokenizer, targets[k], 8, 3, -1, NULL, &other), RK_OK);
            CU_ASSERT(strcmp(other.text, s.text) != 0 &&
                      strcmp(other.reference[0], s.reference[0]) != 0);
            rk_synth_free(&s), rk_synth_free(&same), rk_synth_free(&other);
        }
}

static void test_depth(void) {
    if (!have_tokenizer()) return;
    for (int k = 0; k <= 4; k++) {
        rk_synth_sample s;
        CU_ASSERT_EQUAL_FATAL(
            rk_synth_make(RK_SYNTH_NEEDLE, tokenizer, 2048, 1, k, k / 4.0, NULL, &s), RK_OK);
        double at = (double)(strstr(s.text, s.reference[0]) - s.text) / (double)s.question;
        CU_ASSERT(fabs(at - k / 4.0) < 0.05);
        rk_synth_free(&s);
    }
}

/* A user's prose, shorter than what is needed and longer. */
static void test_haystack(void) {
    static const char one[] = "The tide came in. Was it late? Nobody knew!\n";
    if (!have_tokenizer()) return;
    rk_synth_sample s;
    CU_ASSERT_EQUAL_FATAL(rk_synth_make(RK_SYNTH_NIAH_SINGLE_2, tokenizer, 1024, 1, 0, -1, one, &s),
                          RK_OK);
    check_sample(RK_SYNTH_NIAH_SINGLE_2, 1024, &s);
    CU_ASSERT(occurrences(s.text, "Was it late?") > 20 && occurrences(s.text, "the teacher") == 0);
    rk_synth_free(&s);
}

/* The chain of assignments, followed through the text. */
static void test_chain(void) {
    if (!have_tokenizer()) return;
    for (int index = 0; index < 20; index++) {
        rk_synth_sample s;
        char            known[64][16];
        int             n = 0;
        CU_ASSERT_EQUAL_FATAL(rk_synth_make(RK_SYNTH_VT, tokenizer, 1500, 5, index, -1, NULL, &s),
                              RK_OK);
        const char *ask = strstr(s.text + s.question, "value ");
        char        value[16] = {0};
        CU_ASSERT_FATAL(ask != NULL && sscanf(ask, "value %15s", value) == 1);
        s.text[s.question] = 0;
        const char *p = strstr(strstr(s.text, "are:") + 4, "Follow"); /* behind the example */
        for (; p && (p = strstr(p, "VAR ")); p += 4) {
            char name[16], from[16];
            bool take = false;
            if (sscanf(p, "VAR %15s = VAR %15s", name, from) == 2)
                for (int k = 0; k < n; k++) take = take || strcmp(known[k], from) == 0;
            else if (sscanf(p, "VAR %15s = %15s", name, from) == 2)
                take = strcmp(from, value) == 0;
            if (take && n < 64) strcpy(known[n++], name);
        }
        CU_ASSERT_EQUAL(n, s.n_references);
        for (int i = 0; i < s.n_references; i++) {
            bool found = false;
            for (int k = 0; k < n; k++) found = found || strcmp(known[k], s.reference[i]) == 0;
            CU_ASSERT(found);
        }
        rk_synth_free(&s);
    }
}

typedef struct tally {
    char word[32];
    int  n;
} tally;

static int by_count(const void *a, const void *b) {
    return ((const tally *)b)->n - ((const tally *)a)->n;
}

/* Words of letters alone in [from, to), most frequent first. */
static int count_words(const char *from, const char *to, tally *t, int cap) {
    int n = 0;
    for (const char *p = from; p < to;) {
        char w[32];
        int  k = 0;
        while (p < to && !isalpha((unsigned char)*p)) p++;
        while (p < to && isalpha((unsigned char)*p) && k < 31) w[k++] = *p++;
        w[k] = 0;
        if (!k) break;
        int i = 0;
        while (i < n && strcmp(t[i].word, w) != 0) i++;
        if (i == n && n < cap) strcpy(t[n++].word, w);
        if (i < cap) t[i].n++;
    }
    qsort(t, (size_t)n, sizeof *t, by_count);
    return n;
}

static void check_counts(rk_synth task, const char *head, int top) {
    static tally t[4096];
    for (int index = 0; index < 6; index++) {
        rk_synth_sample s;
        CU_ASSERT_EQUAL_FATAL(rk_synth_make(task, tokenizer, 5000, 5, index, -1, NULL, &s), RK_OK);
        const char *from = s.text;
        for (const char *p = s.text; (p = strstr(p, head)) && p < s.text + s.question; p += 1)
            from = p + strlen(head);
        memset(t, 0, sizeof t);
        int n = count_words(from, s.text + s.question, t, 4096);
        CU_ASSERT_FATAL(n > top && s.n_references == top);
        CU_ASSERT(t[top - 1].n > t[top].n); /* no tie decides */
        for (int i = 0; i < top; i++) {
            bool found = false;
            for (int k = 0; k < top; k++) found = found || strcmp(t[k].word, s.reference[i]) == 0;
            CU_ASSERT(found);
        }
        rk_synth_free(&s);
    }
}

static void test_counts(void) {
    if (!have_tokenizer()) return;
    check_counts(RK_SYNTH_CWE, "come most often.\n\n", 10);
    check_counts(RK_SYNTH_FWE, "come most often.\n\n", 3);
}

static void test_scores(void) {
    char            a[] = "Alpha-Beta", b[] = "4711";
    rk_synth_sample s = {.reference = {a, b}, .n_references = 2};
    static const struct {
        const char *text;
        double      exact, overlap;
    } cases[] = {{"it is ALPHA-beta and 4711", 1, 1},
                 {"4711", 0.5, 0.5},
                 {"", 0, 0},
                 {"alpha-beta\x01"
                  "4711",
                  1, 0},
                 {"47 11 alpha beta", 0, 0},
                 {"x4711y alpha-beta.", 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double x = NAN, y = NAN;
        rk_str p = {cases[i].text, strlen(cases[i].text)};
        CU_ASSERT_EQUAL(rk_synth_score(&s, p, &x), RK_OK);
        CU_ASSERT_EQUAL(rk_synth_overlap(&s, p, &y), RK_OK);
        CU_ASSERT(x == cases[i].exact && y == cases[i].overlap);
    }
    rk_synth t;
    for (int i = 0; i < RK_SYNTHS; i++)
        CU_ASSERT(rk_synth_parse(rk_synth_name((rk_synth)i), &t) == RK_OK && t == (rk_synth)i);
    CU_ASSERT_EQUAL(rk_synth_parse("niah", &t), RK_E_USAGE);
}

static int end(void) {
    rk_tokenizer_close(tokenizer);
    tokenizer = NULL;
    return 0;
}

int rk_suite_synth(void) {
    CU_pSuite s = CU_add_suite("synth", NULL, end);
    return !s || !CU_ADD_TEST(s, test_lengths) || !CU_ADD_TEST(s, test_depth) ||
           !CU_ADD_TEST(s, test_haystack) || !CU_ADD_TEST(s, test_chain) ||
           !CU_ADD_TEST(s, test_counts) || !CU_ADD_TEST(s, test_scores);
}
