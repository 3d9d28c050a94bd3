/* similarity.c - how alike two strings are, as Python's difflib and python-Levenshtein say. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "eval/metrics_internal.h"

/* ---- difflib's Ratcliff-Obershelp ---- */

typedef struct place {
    int32_t c;
    int64_t at;
} place;

typedef struct matcher {
    rk_slice a, b;
    place   *index; /* [m] characters of b with their places, sorted, popular ones left out */
    int64_t  m;
    int64_t *length, *next; /* [|b| + 1] run that ends at a place of b, at index + 1 */
} matcher;

static int by_place(const void *x, const void *y) {
    const place *p = x, *q = y;
    if (p->c != q->c) return p->c < q->c ? -1 : 1;
    return (p->at > q->at) - (p->at < q->at);
}

/* In strings of 200 or more, characters that are more than 1 % of b seed no match. */
static void index_places(matcher *t) {
    enum { LONG = 200, SHARE = 100 };
    place  *p = t->index;
    int64_t n = t->b.n, kept = 0;
    for (int64_t i = 0; i < n; i++) p[i] = (place){t->b.c[i], i};
    qsort(p, (size_t)n, sizeof *p, by_place);
    for (int64_t i = 0, end; i < n; i = end) {
        for (end = i; end < n && p[end].c == p[i].c;) end++;
        if (n >= LONG && end - i > n / SHARE + 1) continue;
        memmove(p + kept, p + i, (size_t)(end - i) * sizeof *p);
        kept += end - i;
    }
    t->m = kept;
}

static int64_t first_place(const matcher *t, int32_t c) {
    int64_t lo = 0, hi = t->m;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (t->index[mid].c < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

typedef struct block {
    int64_t a0, a1, b0, b1;
} block;

/* The longest match within a block, the first of equals; then made longer by popular characters. */
static int64_t longest_match(matcher *t, const block *k, int64_t *at_a, int64_t *at_b) {
    int64_t best = 0, i0 = k->a0, j0 = k->b0, n = k->b1 - k->b0 + 1;
    memset(t->length + k->b0, 0, (size_t)n * sizeof *t->length);
    for (int64_t i = k->a0; i < k->a1; i++) {
        memset(t->next + k->b0, 0, (size_t)n * sizeof *t->next);
        for (int64_t p = first_place(t, t->a.c[i]); p < t->m && t->index[p].c == t->a.c[i]; p++) {
            int64_t j = t->index[p].at;
            if (j < k->b0) continue;
            if (j >= k->b1) break;
            int64_t len = t->next[j + 1] = t->length[j] + 1;
            if (len > best) best = len, i0 = i - len + 1, j0 = j - len + 1;
        }
        int64_t *swap = t->length;
        t->length = t->next;
        t->next = swap;
    }
    while (i0 > k->a0 && j0 > k->b0 && t->a.c[i0 - 1] == t->b.c[j0 - 1]) i0--, j0--, best++;
    while (i0 + best < k->a1 && j0 + best < k->b1 && t->a.c[i0 + best] == t->b.c[j0 + best]) best++;
    *at_a = i0;
    *at_b = j0;
    return best;
}

/* Characters in all matching blocks. Shapes: stack [|a| + |b| + 2] */
static int64_t matching(matcher *t, block *stack) {
    int64_t sum = 0, n = 0, i, j;
    stack[n++] = (block){0, t->a.n, 0, t->b.n};
    while (n) {
        block   k = stack[--n];
        int64_t len = longest_match(t, &k, &i, &j);
        if (len == 0) continue;
        sum += len;
        if (k.a0 < i && k.b0 < j) stack[n++] = (block){k.a0, i, k.b0, j};
        if (i + len < k.a1 && j + len < k.b1) stack[n++] = (block){i + len, k.a1, j + len, k.b1};
    }
    return sum;
}

static rk_status difflib_ratio(rk_slice a, rk_slice b, double *out) {
    matcher   t = {.a = a, .b = b};
    block    *stack = NULL;
    int64_t  *one = NULL, *two = NULL;
    rk_status st;
    RK_TRY_OUT(st, rk_mem_alloc_to(b.n + 1, sizeof *t.index, "places", &t.index));
    RK_TRY_OUT(st, rk_mem_alloc_to(b.n + 2, sizeof *one, "runs", &one));
    RK_TRY_OUT(st, rk_mem_alloc_to(b.n + 2, sizeof *two, "runs", &two));
    RK_TRY_OUT(st, rk_mem_alloc_to(a.n + b.n + 2, sizeof *stack, "blocks", &stack));
    t.length = one;
    t.next = two;
    index_places(&t);
    *out = 2.0 * (double)matching(&t, stack) / (double)(a.n + b.n);
out:
    rk_mem_free(t.index);
    rk_mem_free(one);
    rk_mem_free(two);
    rk_mem_free(stack);
    return st;
}

/* ---- indel: insertions and deletions alone ---- */

static rk_status indel_ratio(rk_slice a, rk_slice b, double *out) {
    int64_t *row;
    RK_TRY(rk_mem_alloc_to(b.n + 1, sizeof *row, "common characters", &row));
    for (int64_t i = 0; i < a.n; i++)
        for (int64_t j = 1, diagonal = 0; j <= b.n; j++) {
            int64_t above = row[j];
            row[j] = a.c[i] == b.c[j - 1] ? diagonal + 1 : row[j - 1] > above ? row[j - 1] : above;
            diagonal = above;
        }
    double n = (double)(a.n + b.n), distance = n - 2 * (double)row[b.n];
    *out = 1.0 - distance / n;
    rk_mem_free(row);
    return RK_OK;
}

rk_status rk_fuzz_ratio(rk_similarity s, rk_slice a, rk_slice b, int *percent) {
    double r = 0;
    *percent = rk_slice_equal(a, b) ? 100 : 0;
    if (*percent || a.n == 0 || b.n == 0) return RK_OK;
    RK_TRY(s == RK_SIMILARITY_INDEL ? indel_ratio(a, b, &r) : difflib_ratio(a, b, &r));
    *percent = (int)rint(100 * r);
    return RK_OK;
}
