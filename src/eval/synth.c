/* synth.c - see synth.h. Words and prose are in synth_words.c. */
#include "eval/synth.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "eval/synth_words.h"
#include "eval/text.h"

static const struct {
    const char *name;
    int         max_new;
} table[RK_SYNTHS] = {
    {"niah_single_1", 128},
    {"niah_single_2", 128},
    {"niah_single_3", 128},
    {"niah_multikey_1", 128},
    {"niah_multikey_2", 128},
    {"niah_multikey_3", 128},
    {"niah_multivalue", 128},
    {"niah_multiquery", 128},
    {"vt", 30},
    {"cwe", 120},
    {"fwe", 50},
    {"needle", 32},
};

const char *rk_synth_name(rk_synth t) {
    return (unsigned)t < RK_SYNTHS ? table[t].name : "?";
}
int rk_synth_max_new(rk_synth t) {
    return table[t].max_new;
}

rk_status rk_synth_parse(const char *name, rk_synth *out) {
    for (int i = 0; i < RK_SYNTHS; i++)
        if (strcmp(name, table[i].name) == 0) {
            *out = (rk_synth)i;
            return RK_OK;
        }
    return RK_FAIL(RK_E_USAGE,
                   "%.40s is no task: there are niah_single_1 to _3, niah_multikey_1 to _3, "
                   "niah_multivalue, niah_multiquery, vt, cwe and fwe",
                   name);
}

/* ---- a text under construction ---- */

typedef struct writer {
    char     *s;
    size_t    n, cap;
    rk_status st;
} writer;

static void put(writer *w, const char *s, size_t n) {
    if (w->st != RK_OK) return;
    if (w->n + n + 1 > w->cap) {
        void *p = w->s;
        w->cap = 2 * w->cap + n + 1024;
        w->st = rk_mem_resize(&p, (int64_t)w->cap, 1, "task text");
        if (w->st != RK_OK) return;
        w->s = p;
    }
    memcpy(w->s + w->n, s, n);
    w->n += n;
    w->s[w->n] = 0;
}

__attribute__((format(printf, 2, 3))) static void say(writer *w, const char *fmt, ...) {
    char    line[2048];
    va_list a;
    va_start(a, fmt);
    int n = vsnprintf(line, sizeof line, fmt, a);
    va_end(a);
    put(w, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
}

/* ---- what a task asks ---- */

enum { MOST_NEEDLES = 8, KEY = 48 };

typedef struct plan {
    rk_synth    task;
    uint64_t    seed;
    int         index;
    double      depth;
    const char *haystack;
    char        key[MOST_NEEDLES][KEY], value[MOST_NEEDLES][KEY];
    int         n_needles;
} plan;

static rk_draws draws_of(const plan *p, uint32_t stream) {
    return (rk_draws){.seed = p->seed, .stream = {(uint32_t)p->task, (uint32_t)p->index, stream}};
}

static bool uuid_values(rk_synth t) {
    return t == RK_SYNTH_NIAH_SINGLE_3 || t == RK_SYNTH_NIAH_MULTIKEY_3;
}

static void make_needle(const plan *p, rk_draws *d, char key[KEY], char value[KEY]) {
    if (p->task == RK_SYNTH_NIAH_MULTIKEY_3)
        rk_words_uuid(d, key);
    else
        rk_words_key(d, key);
    if (uuid_values(p->task))
        rk_words_uuid(d, value);
    else
        rk_words_number(d, value);
}

/* Needles with different keys, but for multivalue's, which share one. */
static void make_needles(plan *p) {
    rk_draws d = draws_of(p, 0);
    switch (p->task) {
    case RK_SYNTH_NIAH_MULTIKEY_1:
    case RK_SYNTH_NIAH_MULTIVALUE:
    case RK_SYNTH_NIAH_MULTIQUERY:
        p->n_needles = 4;
        break;
    default:
        p->n_needles = 1;
        break;
    }
    for (int i = 0; i < p->n_needles; i++)
        for (bool fresh = false; !fresh;) {
            make_needle(p, &d, p->key[i], p->value[i]);
            if (i && p->task == RK_SYNTH_NIAH_MULTIVALUE) strcpy(p->key[i], p->key[0]);
            fresh = true;
            for (int k = 0; k < i; k++)
                fresh = fresh && strcmp(p->value[i], p->value[k]) != 0 &&
                        (p->task == RK_SYNTH_NIAH_MULTIVALUE || strcmp(p->key[i], p->key[k]) != 0);
        }
}

static const char *kind_of(rk_synth t) {
    return uuid_values(t) ? "identifier" : "number";
}

static void say_needle(writer *w, const plan *p, const char *key, const char *value) {
    say(w, "The secret %s of %s is %s.", kind_of(p->task), key, value);
}

static rk_status add_reference(rk_synth_sample *s, const char *text) {
    RK_ASSERT(s->n_references < RK_SYNTH_REFERENCES);
    return rk_mem_strdup(text, &s->reference[s->n_references++]);
}

/* ---- needles among sentences ---- */

/* Where needle i of n goes among size sentences: before sentence [0, size]. */
static int64_t place_of(const plan *p, rk_draws *d, int64_t size) {
    if (p->n_needles == 1 && p->depth >= 0) return (int64_t)llround(p->depth * (double)size);
    return (int64_t)rk_draw(d, (uint32_t)size + 1);
}

/* Sentence i of the haystack; at: where the user's prose goes on. */
static void say_sentence(writer *w, const plan *p, rk_draws *prose, const char **at, int64_t i) {
    char key[KEY], value[KEY];
    switch (p->task) {
    case RK_SYNTH_NIAH_SINGLE_1:
    case RK_SYNTH_VT:
        say(w, "%s", rk_words_noise(i));
        break;
    case RK_SYNTH_NIAH_MULTIKEY_2:
    case RK_SYNTH_NIAH_MULTIKEY_3:
        do make_needle(p, prose, key, value);
        while (strcmp(key, p->key[0]) == 0 || strcmp(value, p->value[0]) == 0);
        say_needle(w, p, key, value);
        break;
    default: {
        char sentence[RK_SENTENCE];
        rk_words_sentence(prose, p->haystack, at, sentence);
        say(w, "%s", sentence);
    }
    }
    say(w, i % 6 == 5 ? "\n" : " ");
}

static void say_haystack(writer *w, const plan *p, int64_t size) {
    rk_draws    where = draws_of(p, 1), prose = draws_of(p, 2);
    int64_t     place[MOST_NEEDLES];
    const char *at = p->haystack;
    for (int k = 0; k < p->n_needles; k++) place[k] = place_of(p, &where, size);
    for (int64_t i = 0; i <= size; i++) {
        for (int k = 0; k < p->n_needles; k++)
            if (place[k] == i) {
                say_needle(w, p, p->key[k], p->value[k]);
                say(w, " ");
            }
        if (i < size) say_sentence(w, p, &prose, &at, i);
    }
}

static rk_status needles_text(const plan *p, int64_t size, writer *w, rk_synth_sample *s) {
    bool all = p->task == RK_SYNTH_NIAH_MULTIQUERY, values = p->task == RK_SYNTH_NIAH_MULTIVALUE;
    say(w,
        "Some secret %ss are hidden in the text below. Remember them; you will be asked about "
        "them.\n\n",
        kind_of(p->task));
    say_haystack(w, p, size);
    s->question = w->n;
    say(w, "\n\nWhat %s the secret %s%s of ", all || values ? "are" : "is", kind_of(p->task),
        all || values ? "s" : "");
    for (int k = 0; k < (all ? p->n_needles : 1); k++)
        say(w, "%s%s", k == 0 ? "" : k + 1 < p->n_needles ? ", " : " and ", p->key[k]);
    say(w, " in the text?\nThe secret %s%s of ", kind_of(p->task), all || values ? "s" : "");
    for (int k = 0; k < (all ? p->n_needles : 1); k++)
        say(w, "%s%s", k == 0 ? "" : k + 1 < p->n_needles ? ", " : " and ", p->key[k]);
    say(w, " in the text %s", all || values ? "are" : "is");
    for (int k = 0; k < (all || values ? p->n_needles : 1); k++)
        RK_TRY(add_reference(s, p->value[k]));
    return w->st;
}

/* ---- variable tracking ---- */

enum { HOPS = 4 };

static void make_chain(rk_draws *d, char name[HOPS + 1][KEY], char value[KEY]) {
    rk_words_number(d, value);
    value[5] = 0;
    for (int i = 0; i <= HOPS; i++)
        for (bool fresh = false; !fresh;) {
            rk_words_letters(d, 5, name[i]);
            fresh = true;
            for (int k = 0; k < i; k++) fresh = fresh && strcmp(name[i], name[k]) != 0;
        }
}

static void say_chain(writer *w, char name[HOPS + 1][KEY], const char *value, const plan *p,
                      rk_draws *where, int64_t size) {
    int64_t place[HOPS + 1];
    for (int i = 0; i <= HOPS; i++) place[i] = (int64_t)rk_draw(where, (uint32_t)size + 1);
    for (int i = 1; i <= HOPS; i++) /* assignments stand in order */
        for (int k = i; k > 0 && place[k] < place[k - 1]; k--) {
            int64_t t = place[k];
            place[k] = place[k - 1];
            place[k - 1] = t;
        }
    for (int64_t i = 0; i <= size; i++) {
        for (int k = 0; k <= HOPS; k++)
            if (place[k] == i) {
                if (k == 0)
                    say(w, "VAR %s = %s ", name[0], value);
                else
                    say(w, "VAR %s = VAR %s ", name[k], name[k - 1]);
            }
        if (i < size) say_sentence(w, p, NULL, NULL, i);
    }
}

static void ask_chain(writer *w, const char *value) {
    say(w,
        "\n\nWhich variables have the value %s in the text above?\nThe variables with the value %s "
        "are:",
        value, value);
}

static rk_status chain_text(const plan *p, int64_t size, writer *w, rk_synth_sample *s) {
    enum { EXAMPLE = 8 }; /* sentences of the worked example */
    char              name[HOPS + 1][KEY], value[KEY];
    rk_draws          d = draws_of(p, 0), where = draws_of(p, 1);
    static const char task[] = "Follow the chain of assignments that is hidden in the text.\n\n";
    make_chain(&d, name, value);
    say(w, "%s", task);
    say_chain(w, name, value, p, &where, EXAMPLE);
    ask_chain(w, value);
    for (int i = 0; i <= HOPS; i++) say(w, " %s", name[i]);
    say(w, "\n\n%s", task);
    make_chain(&d, name, value);
    say_chain(w, name, value, p, &where, size);
    s->question = w->n;
    ask_chain(w, value);
    for (int i = 0; i <= HOPS; i++) RK_TRY(add_reference(s, name[i]));
    return w->st;
}

/* ---- common words ---- */

enum { COMMON = 10, COMMON_TIMES = 30, OTHER_TIMES = 3 };

/* A shuffled numbered list of `common` words, each so many times, and `others` ones. first: number
 * of the first word in the program's list that is used. */
static rk_status say_list(writer *w, rk_draws *d, int first, int common, int times,
                          int64_t others) {
    int64_t  n = (int64_t)common * times + others * OTHER_TIMES, at = 0;
    int32_t *word;
    RK_TRY(rk_mem_alloc_to(n + 1, sizeof *word, "word list", &word));
    for (int64_t i = 0; i < common + others; i++)
        for (int k = 0; k < (i < common ? times : OTHER_TIMES); k++)
            word[at++] = (int32_t)(first + i);
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t k = (int64_t)rk_draw(d, (uint32_t)i + 1);
        int32_t t = word[i];
        word[i] = word[k];
        word[k] = t;
    }
    for (int64_t i = 0; i < n; i++) {
        char text[KEY];
        rk_words_noun(word[i], text);
        say(w, "%lld. %s ", (long long)i + 1, text);
    }
    rk_mem_free(word);
    return w->st;
}

static void ask_common(writer *w) {
    say(w, "\n\nWhich ten words are the most common in the list above?\nThe ten most common words "
           "are:");
}

static rk_status common_text(const plan *p, int64_t size, writer *w, rk_synth_sample *s) {
    enum { EXAMPLE_TIMES = 5, EXAMPLE_OTHERS = 10 };
    rk_draws          d = draws_of(p, 0);
    int               first = (int)rk_draw(&d, 100000);
    static const char task[] = "Below is a numbered list of words. Some come often. Remember the "
                               "ones that come most often.\n\n";
    char              text[KEY];
    say(w, "%s", task);
    RK_TRY(say_list(w, &d, first + 50000, COMMON, EXAMPLE_TIMES, EXAMPLE_OTHERS));
    ask_common(w);
    for (int i = 0; i < COMMON; i++) {
        rk_words_noun(first + 50000 + i, text);
        say(w, " %d. %s", i + 1, text);
    }
    say(w, "\n\n%s", task);
    RK_TRY(say_list(w, &d, first, COMMON, COMMON_TIMES, size));
    s->question = w->n;
    ask_common(w);
    for (int i = 0; i < COMMON; i++) {
        rk_words_noun(first + i, text);
        RK_TRY(add_reference(s, text));
    }
    return w->st;
}

/* ---- frequent coded words ---- */

static rk_status frequent_text(const plan *p, int64_t size, writer *w, rk_synth_sample *s) {
    enum { CODES = 50, TOP = 3 };
    char     code[CODES][KEY];
    int64_t  count[CODES], n = 0, at = 0;
    rk_draws d = draws_of(p, 0);
    int32_t *word;
    for (int i = 0; i < CODES; i++)
        for (bool fresh = false; !fresh;) {
            rk_words_letters(&d, 6, code[i]);
            for (char *c = code[i]; *c; c++) *c = (char)(*c | 0x20);
            fresh = true;
            for (int k = 0; k < i; k++) fresh = fresh && strcmp(code[i], code[k]) != 0;
        }
    for (int i = 0; i < CODES;
         i++) { /* word k comes size / k^2 times, the first ones differ by one at least */
        count[i] = size / ((int64_t)(i + 1) * (i + 1));
        if (i < TOP && count[i] < TOP + 1 - i) count[i] = TOP + 1 - i;
        n += count[i];
    }
    RK_TRY(rk_mem_alloc_to(n + 1, sizeof *word, "coded words", &word));
    for (int i = 0; i < CODES; i++)
        for (int64_t k = 0; k < count[i]; k++) word[at++] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t k = (int64_t)rk_draw(&d, (uint32_t)i + 1);
        int32_t t = word[i];
        word[i] = word[k];
        word[k] = t;
    }
    say(w, "The text below is in code. Find the coded words that come most often.\n\n");
    for (int64_t i = 0; i < n; i++) say(w, "%s%s", code[word[i]], i % 12 == 11 ? ". " : " ");
    rk_mem_free(word);
    s->question = w->n;
    say(w, "\n\nWhich three words come most often in the coded text above?\nThe three most "
           "frequent words are:");
    for (int i = 0; i < TOP; i++) RK_TRY(add_reference(s, code[i]));
    return w->st;
}

/* ---- a sample of the right length ---- */

static rk_status build(const plan *p, int64_t size, const rk_tokenizer *tok, rk_synth_sample *out) {
    writer          w = {0};
    rk_synth_sample s = {0};
    int32_t        *ids = NULL;
    rk_status       st;
    switch (p->task) {
    case RK_SYNTH_VT:
        st = chain_text(p, size, &w, &s);
        break;
    case RK_SYNTH_CWE:
        st = common_text(p, size, &w, &s);
        break;
    case RK_SYNTH_FWE:
        st = frequent_text(p, size, &w, &s);
        break;
    default:
        st = needles_text(p, size, &w, &s);
        break;
    }
    s.text = w.s;
    s.n = w.n;
    rk_text_part part = {w.s, w.n, true};
    if (st == RK_OK) st = rk_tokenizer_encode(tok, &part, 1, true, &ids, &s.tokens);
    rk_mem_free(ids);
    if (st != RK_OK) {
        rk_synth_free(&s);
        return rk_err_via(st, __FILE__, __LINE__, __func__);
    }
    *out = s;
    return RK_OK;
}

void rk_synth_free(rk_synth_sample *s) {
    rk_mem_free(s->text);
    for (int i = 0; i < s->n_references; i++) rk_mem_free(s->reference[i]);
    *s = (rk_synth_sample){0};
}

rk_status rk_synth_make(rk_synth t, const rk_tokenizer *tok, int64_t target, uint64_t seed,
                        int index, double depth, const char *haystack, rk_synth_sample *out) {
    plan    p = {.task = t, .seed = seed, .index = index, .depth = depth, .haystack = haystack};
    int64_t room = target - rk_synth_max_new(t), low = 1, high;
    rk_synth_sample s = {0};
    make_needles(&p);
    RK_TRY(build(&p, low, tok, &s));
    if (s.tokens > room) {
        int64_t least = s.tokens + rk_synth_max_new(t);
        rk_synth_free(&s);
        return RK_FAIL(RK_E_USAGE, "%s does not fit in %lld tokens: it needs %lld at least",
                       rk_synth_name(t), (long long)target, (long long)least);
    }
    for (high = 2; s.tokens <= room; high *= 2) {
        rk_synth_free(&s);
        RK_TRY(build(&p, high, tok, &s));
        if (s.tokens <= room) low = high;
    }
    for (high /= 2; low + 1 < high;) { /* low fits, high does not */
        int64_t mid = (low + high) / 2;
        rk_synth_free(&s);
        RK_TRY(build(&p, mid, tok, &s));
        if (s.tokens <= room)
            low = mid;
        else
            high = mid;
    }
    rk_synth_free(&s);
    return build(&p, low, tok, out);
}

/* ---- scores ---- */

static rk_status lower(const char *s, size_t n, bool control, rk_text *out) {
    rk_text t;
    RK_TRY(rk_text_open(s, n, &t));
    for (int64_t i = 0; control && i < t.n; i++)
        if (t.c[i] < 0x20) t.c[i] = '\n';
    rk_status st = rk_text_lower(&t, out);
    rk_text_free(&t);
    return st;
}

rk_status rk_synth_score(const rk_synth_sample *s, rk_str prediction, double *out) {
    rk_text p;
    int     found = 0;
    RK_TRY(lower(prediction.s, prediction.n, true, &p));
    rk_status st = RK_OK;
    for (int i = 0; st == RK_OK && i < s->n_references; i++) {
        rk_text r = {0};
        st = lower(s->reference[i], strlen(s->reference[i]), false, &r);
        if (st == RK_OK) found += rk_slice_find(rk_slice_of(&p), rk_slice_of(&r), 0) >= 0;
        rk_text_free(&r);
    }
    rk_text_free(&p);
    *out = s->n_references ? (double)found / s->n_references : 0;
    return st;
}

static bool among(rk_slice w, const rk_slice *list, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (rk_slice_equal(w, list[i])) return true;
    return false;
}

rk_status rk_synth_overlap(const rk_synth_sample *s, rk_str prediction, double *out) {
    enum { CAP = 512 };
    rk_slice  want[CAP], got[CAP];
    rk_text   p = {0}, r[RK_SYNTH_REFERENCES] = {{0}};
    int64_t   n = 0, both = 0, m = 0;
    rk_status st;
    RK_TRY_OUT(st, lower(prediction.s, prediction.n, false, &p));
    m = rk_slice_split_space(rk_slice_of(&p), got, CAP);
    m = m < CAP ? m : CAP;
    for (int i = 0; i < s->n_references; i++) {
        rk_slice w[CAP];
        RK_TRY_OUT(st, lower(s->reference[i], strlen(s->reference[i]), false, &r[i]));
        int64_t k = rk_slice_split_space(rk_slice_of(&r[i]), w, CAP);
        for (int64_t j = 0; j < k && j < CAP; j++)
            if (n < CAP && !among(w[j], want, n)) want[n++] = w[j];
    }
    for (int64_t i = 0; i < n; i++) both += among(want[i], got, m);
    *out = n ? (double)both / (double)n : 0;
out:
    rk_text_free(&p);
    for (int i = 0; i < s->n_references; i++) rk_text_free(&r[i]);
    return st;
}
