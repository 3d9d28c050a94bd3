/* rouge.c - see metrics_internal.h. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "eval/metrics_internal.h"

/* Pieces of a text as lists of words. */
typedef struct pieces {
    int64_t   n, n_words, n_distinct;
    int64_t  *begin; /* [n + 1] in words */
    rk_slice *word;
} pieces;

static void pieces_free(pieces *p) {
    rk_mem_free(p->begin);
    rk_mem_free(p->word);
}

static int by_word(const void *a, const void *b) {
    return rk_slice_compare(*(const rk_slice *)a, *(const rk_slice *)b);
}

/* Number of distinct words of a list, which is sorted in place. */
static int64_t distinct(rk_slice *w, int64_t n) {
    int64_t m = 0;
    qsort(w, (size_t)n, sizeof *w, by_word);
    for (int64_t i = 0; i < n; i++) m += i == 0 || !rk_slice_equal(w[i], w[i - 1]);
    return m;
}

/* Between full stops, empty pieces left out; of white space alone: one empty word. */
static rk_status cut(rk_slice s, pieces *p) {
    rk_slice *copy;
    RK_TRY(rk_mem_alloc_to(s.n + 2, sizeof *p->begin, "pieces", &p->begin));
    RK_TRY(rk_mem_alloc_to(s.n + 2, sizeof *p->word, "words", &p->word));
    for (int64_t at = 0; at <= s.n;) {
        int64_t end = at;
        while (end < s.n && s.c[end] != '.') end++;
        if (end > at) {
            int64_t k = rk_slice_split_space((rk_slice){s.c + at, end - at}, p->word + p->n_words,
                                             s.n + 2 - p->n_words);
            if (k == 0) p->word[p->n_words + k++] = (rk_slice){s.c, 0};
            p->n_words += k;
            p->begin[++p->n] = p->n_words;
        }
        at = end + 1;
    }
    RK_TRY(rk_mem_alloc_to(p->n_words + 1, sizeof *copy, "words", &copy));
    if (p->n_words) memcpy(copy, p->word, (size_t)p->n_words * sizeof *copy);
    p->n_distinct = distinct(copy, p->n_words);
    rk_mem_free(copy);
    return RK_OK;
}

/* Add the words of one longest common subsequence of x and y to taken; ties go back along y.
 * Shapes: table [(nx + 1) (ny + 1)] scratch */
static void common(const rk_slice *x, int64_t nx, const rk_slice *y, int64_t ny, int32_t *table,
                   rk_slice *taken, int64_t *n_taken) {
    int64_t w = ny + 1;
    memset(table, 0, (size_t)w * sizeof *table);
    for (int64_t i = 1; i <= nx; i++) {
        table[i * w] = 0;
        for (int64_t j = 1; j <= ny; j++) {
            int32_t up = table[(i - 1) * w + j], left = table[i * w + j - 1];
            table[i * w + j] = rk_slice_equal(x[i - 1], y[j - 1]) ? table[(i - 1) * w + j - 1] + 1
                               : up > left                        ? up
                                                                  : left;
        }
    }
    for (int64_t i = nx, j = ny; i > 0 && j > 0;) {
        if (rk_slice_equal(x[i - 1], y[j - 1])) {
            taken[(*n_taken)++] = x[i - 1];
            i--, j--;
        } else if (table[(i - 1) * w + j] > table[i * w + j - 1]) {
            i--;
        } else {
            j--;
        }
    }
}

static int64_t longest(const pieces *p) {
    int64_t most = 0;
    for (int64_t i = 0; i < p->n; i++)
        if (p->begin[i + 1] - p->begin[i] > most) most = p->begin[i + 1] - p->begin[i];
    return most;
}

/* Distinct words of the union over all pairs. A reference piece's words are made distinct before
 * the next comes, so that the list stays short. */
static rk_status union_size(const pieces *ref, const pieces *hyp, int64_t *out) {
    int32_t  *table = NULL;
    rk_slice *taken = NULL;
    int64_t   cap = ref->n_words + longest(ref) * (hyp->n ? 1 : 0) + 1, n = 0;
    rk_status st;
    RK_TRY_OUT(st, rk_mem_alloc_to((longest(ref) + 1) * (longest(hyp) + 1), sizeof *table,
                                   "common words", &table));
    RK_TRY_OUT(st, rk_mem_alloc_to(cap, sizeof *taken, "common words", &taken));
    for (int64_t i = 0; i < ref->n; i++)
        for (int64_t j = 0; j < hyp->n; j++) {
            common(ref->word + ref->begin[i], ref->begin[i + 1] - ref->begin[i],
                   hyp->word + hyp->begin[j], hyp->begin[j + 1] - hyp->begin[j], table, taken, &n);
            int64_t m = 0;
            qsort(taken, (size_t)n, sizeof *taken, by_word);
            for (int64_t k = 0; k < n; k++)
                if (k == 0 || !rk_slice_equal(taken[k], taken[m - 1])) taken[m++] = taken[k];
            n = m;
        }
    *out = n;
out:
    rk_mem_free(table);
    rk_mem_free(taken);
    return st;
}

rk_status rk_rouge_l(rk_slice prediction, rk_slice answer, double *out) {
    pieces    hyp = {0}, ref = {0};
    int64_t   n = 0;
    rk_status st;
    *out = 0;
    RK_TRY_OUT(st, cut(prediction, &hyp));
    RK_TRY_OUT(st, cut(answer, &ref));
    if (hyp.n == 0 || ref.n == 0) goto out;
    RK_TRY_OUT(st, union_size(&ref, &hyp, &n));
    double p = (double)n / (double)hyp.n_distinct, r = (double)n / (double)ref.n_distinct;
    *out = 2 * (p * r / (p + r + 1e-8));
out:
    pieces_free(&hyp);
    pieces_free(&ref);
    return st;
}
