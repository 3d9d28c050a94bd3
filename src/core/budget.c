/* budget.c - shares to whole tokens per layer, exact in integers.
 *
 * The integeriser never rounds. A share is m 2^e with m < 2^53, and layers strictly between the
 * bounds differ by less than n / lo < 2^31, so whatever is divided fits in 128 bits. */
#include "core/budget.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"

__extension__ typedef unsigned __int128 u128;

enum {
    MAX_LAYERS = 1 << 12,
    /* Shares further apart than this many binades differ by more than any n / lo. */
    FAR_BINADES = 34,
    MAX_LIST_BYTES = 1 << 24,
};

/* A positive share is mant * 2^exp with mant in [2^52, 2^53). */
typedef struct number {
    uint64_t mant;
    int      exp, layer;
} number;

/* A quotient: whole part, and the rest over a denominator that its user knows. */
typedef struct part {
    u128 whole, rest;
} part;

static number number_of(double x, int layer) {
    int    e;
    double m = frexp(x, &e);
    return (number){(uint64_t)ldexp(m, 53), e - 53, layer};
}

static int number_cmp(const number *a, const number *b) {
    if (a->exp != b->exp) return a->exp < b->exp ? -1 : 1;
    return a->mant < b->mant ? -1 : a->mant > b->mant;
}

/* clamp(bound * x / ref, lo, n), the rest over den = ref->mant << FAR_BINADES, for 1 <= lo <= bound
 * <= n < 2^31. */
static part scaled(const number *x, const number *ref, int64_t bound, int64_t lo, int64_t n,
                   u128 den) {
    int apart = x->exp - ref->exp;
    if (apart > FAR_BINADES) return (part){(u128)n, 0};
    if (apart < -FAR_BINADES) return (part){(u128)lo, 0};
    /* One side is shifted: at most 53 + FAR_BINADES + 31 = 118 bits. */
    u128 num = (u128)x->mant, d = (u128)ref->mant;
    if (apart >= 0)
        num <<= apart;
    else
        d <<= -apart;
    num *= (uint64_t)bound;
    u128 q = num / d, r = num - q * d;
    if (q >= (u128)n) return (part){(u128)n, 0};
    if (q < (u128)lo) return (part){(u128)lo, 0};
    /* Bring the rest from over d to over den: den / d is a power of two. */
    return (part){q, r * (den / d)};
}

/* Sign of sum clamp(c x, lo, n) - total at c = bound / ref. */
static int compare_sum(const number *x, int n_pos, const number *ref, int64_t bound, int64_t lo,
                       int64_t n, int64_t total) {
    u128 den = (u128)ref->mant << FAR_BINADES, whole = 0, rest = 0;
    for (int i = 0; i < n_pos; i++) {
        part p = scaled(&x[i], ref, bound, lo, n, den);
        whole += p.whole;
        rest += p.rest;
    }
    whole += rest / den;
    rest %= den;
    if (whole != (u128)total) return whole < (u128)total ? -1 : 1;
    return rest != 0;
}

static bool sorts_before(const number *a, const number *b) {
    int c = number_cmp(a, b);
    return c != 0 ? c > 0 : a->layer < b->layer;
}

static void sift(number *x, int i, int n) {
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && sorts_before(&x[child], &x[child + 1])) child++;
        if (!sorts_before(&x[i], &x[child])) return;
        number t = x[i];
        x[i] = x[child];
        x[child] = t;
    }
}

/* Heap sort: largest share first, equal ones by layer. */
static void sort_shares(number *x, int n) {
    for (int i = n / 2; i-- > 0;) sift(x, i, n);
    for (int i = n; i-- > 1;) {
        number t = x[0];
        x[0] = x[i];
        x[i] = t;
        sift(x, 0, i);
    }
}

/* times * num / den by doubling, for num <= den < 2^126. */
static part muldiv(uint64_t times, u128 num, u128 den) {
    part p = {0, 0};
    for (int bit = 63; bit >= 0; bit--) {
        p.whole *= 2;
        p.rest *= 2;
        if (times >> bit & 1) p.rest += num;
        while (p.rest >= den) {
            p.rest -= den;
            p.whole++;
        }
    }
    return p;
}

/* Give the free layers x[0 .. n_free) sum tokens in proportion; rest is scratch [n_free]. */
static void spread(const number *x, int n_free, int64_t sum, int32_t *budget, u128 *rest) {
    int  low = x[n_free - 1].exp; /* sorted: the smallest */
    u128 den = 0;
    for (int i = 0; i < n_free; i++) den += (u128)x[i].mant << (x[i].exp - low);
    int64_t left = sum;
    for (int i = 0; i < n_free; i++) {
        part p = muldiv((uint64_t)sum, (u128)x[i].mant << (x[i].exp - low), den);
        budget[x[i].layer] = (int32_t)p.whole;
        rest[i] = p.rest;
        left -= (int64_t)p.whole;
    }
    /* The rests sum to left * den, so at least left of them are positive. */
    for (; left > 0; left--) {
        int best = 0;
        for (int i = 1; i < n_free; i++)
            if (rest[i] > rest[best] || (rest[i] == rest[best] && x[i].layer < x[best].layer))
                best = i;
        RK_ASSERT(rest[best] > 0);
        rest[best] = 0;
        budget[x[best].layer]++;
    }
}

/* Water-fill n_pos positive shares, sorted. lo n_pos <= total <= n n_pos, lo < n. */
static void fill(number *x, int n_pos, int64_t lo, int64_t n, int64_t total, int32_t *budget,
                 u128 *rest) {
    /* Layer j ends at n when the sum at the scale that just brings it there is not above total. */
    int a = 0, b = n_pos;
    while (a < b) {
        int mid = (a + b) / 2;
        if (compare_sum(x, n_pos, &x[mid], n, lo, n, total) <= 0)
            a = mid + 1;
        else
            b = mid;
    }
    int at_top = a;
    /* It stays at lo when the sum at the scale where it would leave lo is not below total. */
    b = n_pos;
    while (a < b) {
        int mid = (a + b) / 2;
        if (compare_sum(x, n_pos, &x[mid], lo, lo, n, total) < 0)
            a = mid + 1;
        else
            b = mid;
    }
    int at_low = a;
    for (int i = 0; i < at_top; i++) budget[x[i].layer] = (int32_t)n;
    for (int i = at_low; i < n_pos; i++) budget[x[i].layer] = (int32_t)lo;
    int64_t sum = total - at_top * n - (n_pos - at_low) * lo;
    if (at_low > at_top) spread(x + at_top, at_low - at_top, sum, budget, rest);
}

static rk_status check_integerise(int n_layers, const double *share, int64_t lo, int64_t n,
                                  int64_t total) {
    if (n_layers < 1 || n_layers > MAX_LAYERS)
        return RK_FAIL(RK_E_USAGE, "budgets of %d layers: 1 to %d are possible", n_layers,
                       MAX_LAYERS);
    if (n < 1 || n > INT32_MAX || lo < 1 || lo > n)
        return RK_FAIL(RK_E_BUG, "budget bounds [%lld, %lld] must satisfy 1 <= lo <= n < 2^31",
                       (long long)lo, (long long)n);
    if (total < lo * n_layers || total > n * n_layers)
        return RK_FAIL(RK_E_BUG, "budget total %lld lies outside [%lld, %lld]", (long long)total,
                       (long long)(lo * n_layers), (long long)(n * n_layers));
    for (int l = 0; l < n_layers; l++)
        if (!isfinite(share[l]) || share[l] < 0)
            return RK_FAIL(RK_E_INPUT, "share %g of layer %d is not a number >= 0", share[l], l);
    return RK_OK;
}

rk_status rk_budget_integerise(int n_layers, const double *share, int64_t lo, int64_t n,
                               int64_t total, int32_t *budget) {
    RK_TRY(check_integerise(n_layers, share, lo, n, total));
    rk_status st = RK_OK;
    void     *mem_x = NULL, *mem_rest = NULL;
    RK_TRY_OUT(st, rk_mem_alloc(n_layers, sizeof(number), "layer shares", &mem_x));
    RK_TRY_OUT(st, rk_mem_alloc(n_layers, sizeof(u128), "layer remainders", &mem_rest));
    number *x = mem_x;
    int     n_pos = 0;
    for (int l = 0; l < n_layers; l++)
        if (share[l] > 0) x[n_pos++] = number_of(share[l], l);
    int n_zero = n_layers - n_pos;
    for (int l = 0; l < n_layers; l++) budget[l] = (int32_t)lo;
    if (lo == n) goto out;
    if (total - lo * n_zero >= n * n_pos) { /* also where no share is positive */
        int64_t rest = total - n * n_pos;
        for (int l = 0, z = 0; l < n_layers; l++) {
            if (share[l] > 0)
                budget[l] = (int32_t)n;
            else
                budget[l] = (int32_t)(rest / n_zero + (z++ < rest % n_zero));
        }
        goto out;
    }
    sort_shares(x, n_pos);
    fill(x, n_pos, lo, n, total - lo * n_zero, budget, mem_rest);
out:
    rk_mem_free(mem_x);
    rk_mem_free(mem_rest);
    return st;
}

rk_status rk_budget_ripple_weights(int n_layers, const double *sensitivity, double r, double gamma,
                                   double *w) {
    if (!isfinite(r) || r <= 0) return RK_FAIL(RK_E_USAGE, "--r %g must be above 0", r);
    if (!isfinite(gamma) || gamma < 1)
        return RK_FAIL(RK_E_USAGE, "--gamma %g must be at least 1", gamma);
    double min = INFINITY, max = 0;
    for (int l = 0; l < n_layers; l++) {
        double s = sensitivity[l];
        if (!isfinite(s) || s < 0)
            return RK_FAIL(RK_E_INPUT,
                           "sensitivity %g of layer %d is not a number >= 0: profile again", s, l);
        min = fmin(min, s);
        max = fmax(max, s);
    }
    for (int l = 0; l < n_layers; l++) {
        double z = max > min ? (sensitivity[l] - min) / (max - min) : 0;
        w[l] = fmin(fmax(pow(r, z), 1 / gamma), gamma);
    }
    return RK_OK;
}

/* A linear ramp over depth whose mean is total / L: it falls from max to mean / beta, both beside
 * the window, or to what keeps the mean where max is cut at the prompt. */
static rk_status pyramid_shares(const rk_budget_spec *s, int64_t total, double *w) {
    if (!isfinite(s->beta) || s->beta < 1)
        return RK_FAIL(RK_E_USAGE, "--beta %g must be at least 1", s->beta);
    int    n_layers = s->n_layers;
    double n = (double)s->n_prompt, window = fmin((double)s->window, n);
    double mean = (double)total / n_layers - window;
    double min = mean / s->beta, max = 2 * mean - min;
    if (max >= n - window) {
        max = n - window;
        min = 2 * mean - max;
    }
    if (n_layers == 1) max = mean;
    double step = n_layers > 1 ? (max - min) / (n_layers - 1) : 0;
    /* total / L may round to just below the window */
    for (int l = 0; l < n_layers; l++) w[l] = fmax(window + max - l * step, 0);
    return RK_OK;
}

/* The window for each, and the rest of the total by preference. */
static rk_status cake_shares(const rk_budget_spec *s, int64_t total, double *w) {
    double sum = 0, window = fmin((double)s->window, (double)s->n_prompt);
    if (!(s->tau[0] > 0) || !(s->tau[1] > 0))
        return RK_FAIL(RK_E_USAGE, "--tau1 %g and --tau2 %g must be above 0", s->tau[0], s->tau[1]);
    for (int l = 0; l < s->n_layers; l++) {
        if (!(s->entropy[l] >= 0) || !(s->variance[l] >= 0) || isinf(s->entropy[l]) || isinf(s->variance[l]))
            return RK_FAIL(RK_E_INPUT, "attention of layer %d is not a number >= 0: profile again", l);
        w[l] = pow(s->entropy[l], 1 / s->tau[0]) * pow(s->variance[l], 1 / s->tau[1]);
        sum += w[l];
    }
    double rest = fmax((double)total - window * s->n_layers, 0);
    for (int l = 0; l < s->n_layers; l++) w[l] = window + (sum > 0 ? w[l] / sum : 1.0 / s->n_layers) * rest;
    return RK_OK;
}

static rk_status check_spec(const rk_budget_spec *s) {
    if (s->n_layers < 1 || s->n_layers > MAX_LAYERS)
        return RK_FAIL(RK_E_USAGE, "budgets of %d layers: 1 to %d are possible", s->n_layers,
                       MAX_LAYERS);
    if (s->n_prompt < 1 || s->n_prompt > INT32_MAX)
        return RK_FAIL(RK_E_USAGE, "a prompt of %lld tokens: 1 to 2^31 - 1 are possible",
                       (long long)s->n_prompt);
    if (isnan(s->ratio) || s->ratio == 0 || s->ratio > 1)
        return RK_FAIL(RK_E_USAGE, "--ratio %g must lie in (0, 1]", s->ratio);
    if (s->ratio < 0 && (s->tokens < 1 || s->tokens > INT64_MAX / MAX_LAYERS))
        return RK_FAIL(RK_E_USAGE, "--budget %lld must be at least 1 token and below 2^51",
                       (long long)s->tokens);
    if (s->window < 0 || s->sinks < 0 || s->sinks == INT32_MAX)
        return RK_FAIL(RK_E_USAGE, "--%s %d must be at least 0 and below 2^31 - 1",
                       s->window < 0 ? "window" : "sinks", s->window < 0 ? s->window : s->sinks);
    bool reads = s->allocator == RK_ALLOC_RIPPLE || s->allocator == RK_ALLOC_LOCAL;
    if ((reads && s->sensitivity == NULL) || (s->allocator == RK_ALLOC_CURVE && s->curve == NULL) ||
        (s->allocator == RK_ALLOC_CAKE && (s->entropy == NULL || s->variance == NULL)))
        return RK_FAIL(RK_E_USAGE, "--allocator %s needs --sensitivity FILE.h5",
                       rk_allocator_name(s->allocator));
    if (s->allocator == RK_ALLOC_LIST && s->shares == NULL)
        return RK_FAIL(RK_E_USAGE, "--allocator list needs a file: list:FILE");
    return RK_OK;
}

static rk_status shares_of(const rk_budget_spec *s, int64_t total, double *w) {
    switch (s->allocator) {
    case RK_ALLOC_UNIFORM:
        for (int l = 0; l < s->n_layers; l++) w[l] = 1;
        return RK_OK;
    case RK_ALLOC_PYRAMID:
        return pyramid_shares(s, total, w);
    case RK_ALLOC_RIPPLE:
    case RK_ALLOC_LOCAL:
        return rk_budget_ripple_weights(s->n_layers, s->sensitivity, s->r, s->gamma, w);
    case RK_ALLOC_LIST:
        for (int l = 0; l < s->n_layers; l++) w[l] = s->shares[l];
        return RK_OK;
    case RK_ALLOC_CAKE:
        return cake_shares(s, total, w);
    case RK_ALLOC_CURVE:
        break; /* has no shares */
    }
    return RK_FAIL(RK_E_BUG, "allocator number %d", (int)s->allocator);
}

int64_t rk_budget_floor(int64_t n, int window, int sinks) {
    int64_t lo = window > sinks ? window : (int64_t)sinks + 1;
    return lo < n ? lo : n;
}

int32_t rk_budget_of_level(double level, int64_t n, int window, int sinks) {
    int64_t lo = rk_budget_floor(n, window, sinks), b = llround(level * (double)n);
    return (int32_t)(b < lo ? lo : b < n ? b : n);
}

rk_status rk_budget_split(const rk_budget_spec *spec, int32_t *budget, rk_budget_result *result) {
    RK_TRY(check_spec(spec));
    int64_t n = spec->n_prompt, n_layers = spec->n_layers;
    int64_t lo = rk_budget_floor(n, spec->window, spec->sinks);
    int64_t asked = spec->ratio < 0 ? spec->tokens * n_layers
                                    : (int64_t)round(spec->ratio * (double)(n * n_layers));
    int64_t total = asked < n_layers * lo ? n_layers * lo : asked;
    if (total > n * n_layers) total = n * n_layers;

    rk_status st = RK_OK;
    void     *w = NULL;
    RK_TRY(rk_mem_alloc(n_layers, sizeof(double), "layer shares", &w));
    if (spec->allocator == RK_ALLOC_CURVE) {
        RK_TRY_OUT(st, rk_curve_split(spec->curve, &spec->choice, lo, n, total, budget));
    } else {
        RK_TRY_OUT(st, shares_of(spec, total, w));
        RK_TRY_OUT(st, rk_budget_integerise(spec->n_layers, w, lo, n, total, budget));
    }
    if (result != NULL) *result = (rk_budget_result){lo, asked, total};
out:
    rk_mem_free(w);
    return st;
}

static const char *const ALLOCATOR_NAMES[] = {
    [RK_ALLOC_UNIFORM] = "uniform",
    [RK_ALLOC_PYRAMID] = "pyramid",
    [RK_ALLOC_RIPPLE] = "ripple",
    [RK_ALLOC_LOCAL] = "local",
    [RK_ALLOC_CAKE] = "cake",
    [RK_ALLOC_CURVE] = "curve",
    [RK_ALLOC_LIST] = "list",
};

rk_status rk_allocator_parse(const char *name, rk_allocator *out) {
    for (int i = 0; i < RK_ALLOC_LIST; i++)
        if (strcmp(name, ALLOCATOR_NAMES[i]) == 0) {
            *out = (rk_allocator)i;
            return RK_OK;
        }
    return RK_FAIL(RK_E_USAGE, "--allocator %s: known are uniform, pyramid, ripple, local, cake, curve and "
                   "list:FILE", name);
}

const char *rk_allocator_name(rk_allocator a) {
    return (unsigned)a <= RK_ALLOC_LIST ? ALLOCATOR_NAMES[a] : "?";
}

/* The whole of a small file, NUL-terminated. Owner: free with rk_mem_free. */
static rk_status read_text(const char *path, char **text, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return RK_FAIL(RK_E_INPUT, "%s: cannot open the list of layer shares", path);
    rk_status st = RK_OK;
    void     *buf = NULL;
    size_t    used = 0, cap = 1 << 16;
    for (;;) {
        RK_TRY_OUT(st, rk_mem_resize(&buf, (int64_t)cap + 1, 1, "list of layer shares"));
        used += fread((char *)buf + used, 1, cap - used, f);
        if (used < cap) break;
        if (cap >= MAX_LIST_BYTES) {
            st = RK_FAIL(RK_E_INPUT, "%s: too large for a list of layer shares", path);
            goto out;
        }
        cap *= 2;
    }
    if (ferror(f)) {
        st = RK_FAIL(RK_E_INPUT, "%s: cannot read the list of layer shares", path);
        goto out;
    }
    ((char *)buf)[used] = 0;
    *text = buf;
    *n = used;
    buf = NULL;
out:
    rk_mem_free(buf);
    (void)fclose(f);
    return st;
}

static rk_status put_share(const char *path, int n_layers, double v, int i, double *shares) {
    if (i >= n_layers)
        return RK_FAIL(RK_E_INPUT, "%s: more than %d numbers, the model has %d layers", path,
                       n_layers, n_layers);
    if (!isfinite(v) || v < 0)
        return RK_FAIL(RK_E_INPUT, "%s: number %d (%g) must be finite and >= 0", path, i + 1, v);
    shares[i] = v;
    return RK_OK;
}

static rk_status list_from_json(const char *path, const char *text, size_t n, int n_layers,
                                double *shares, int *count) {
    rk_json  *j = NULL;
    rk_status st = RK_OK;
    RK_TRY(rk_json_parse(text, n, path, &j));
    for (size_t i = 0; i < rk_json_len(j); i++) {
        /* not a number: NaN, which put_share refuses with its place */
        RK_TRY_OUT(st, put_share(path, n_layers, rk_json_num(rk_json_at(j, i), NAN), *count,
                                 shares));
        ++*count;
    }
out:
    rk_json_close(j);
    return st;
}

static rk_status list_from_text(const char *path, char *text, int n_layers, double *shares,
                                int *count) {
    for (char *p = text; *p != 0;) {
        if (*p == '#') {
            p += strcspn(p, "\n");
        } else if (strchr(" \t\r\n,", *p) != NULL) {
            p++;
        } else {
            char  *end;
            double v = strtod(p, &end);
            if (end == p || strchr(" \t\r\n,#", *end) == NULL) {
                p[strcspn(p, " \t\r\n,#")] = 0;
                return RK_FAIL(RK_E_INPUT, "%s: \"%.40s\" is not a number", path, p);
            }
            RK_TRY(put_share(path, n_layers, v, *count, shares));
            ++*count;
            p = end;
        }
    }
    return RK_OK;
}

rk_status rk_budget_load_list(const char *path, int n_layers, double *shares) {
    char     *text = NULL;
    size_t    n = 0;
    int       count = 0;
    rk_status st = RK_OK;
    RK_TRY(read_text(path, &text, &n));
    if (memchr(text, 0, n) != NULL) {
        st = RK_FAIL(RK_E_INPUT, "%s: not a text file", path);
        goto out;
    }
    if (text[strspn(text, " \t\r\n")] == '[')
        RK_TRY_OUT(st, list_from_json(path, text, n, n_layers, shares, &count));
    else
        RK_TRY_OUT(st, list_from_text(path, text, n_layers, shares, &count));
    if (count != n_layers)
        st = RK_FAIL(RK_E_INPUT, "%s: %d numbers, but the model has %d layers", path, count,
                     n_layers);
out:
    rk_mem_free(text);
    return st;
}
