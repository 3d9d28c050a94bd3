/* test_kernels_attend.c - the ops on cached keys and values: attention against a softmax in double
 * and against itself under every cut that must not change a bit; append, gather, perturbation and
 * window sums. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/kernel_fixture.h"
#include "tests/suites.h"

enum { MAX_G = 3, MAX_SPANS = 4 };

static float *normals(int64_t n, uint32_t id, float scale) {
    return seeded_normals(30, n, id, scale);
}

/* bytes (a multiple of 4) of one value between two bands; 0xff is a NaN in every format. The bands
 * are signalling NaNs: even adding 0 to them shows. */
static void *guarded(int64_t bytes, int fill) {
    uint32_t *p = zeroed(bytes + 2 * BAND);
    for (int64_t i = 0; i < (bytes + 2 * BAND) / 4; i++) p[i] = 0x7fa00001u;
    memset((char *)p + BAND, fill, (size_t)bytes);
    return (char *)p + BAND;
}
/* Were the bands left alone? */
static bool release(void *buffer, int64_t bytes) {
    uint32_t *p = (void *)((char *)buffer - BAND);
    bool      ok = true;
    for (int i = 0; i < BAND / 4; i++)
        ok = ok && p[i] == 0x7fa00001u && p[(bytes + BAND) / 4 + i] == 0x7fa00001u;
    rk_mem_free(p);
    return ok;
}

/* The larger error; a NaN stays. */
static double worse(double a, double b) {
    return isnan(a) || b <= a ? a : b;
}

/* ---- chains ---- */

static int64_t pages_of(const rk_span *s) {
    return (s->first + s->n + RK_PAGE_KEYS - 1) / RK_PAGE_KEYS;
}

static void span_open(rk_span *s, int d, rk_dtype kt, rk_dtype vt, int64_t first, int64_t n) {
    *s = (rk_span){NULL, NULL, kt, vt, (int32_t)(first % RK_PAGE_KEYS), (int32_t)n};
    s->k = guarded(pages_of(s) * rk_page_bytes(d, kt), 0);
    s->v = guarded(pages_of(s) * rk_page_bytes(d, vt), 0);
}

/* n as when it was opened; the bands must be intact. */
static void span_close(rk_span *s, int d) {
    CU_ASSERT(release(s->k, pages_of(s) * rk_page_bytes(d, s->k_dtype)));
    CU_ASSERT(release(s->v, pages_of(s) * rk_page_bytes(d, s->v_dtype)));
}

static void span_put(const rk_span *s, int d, int64_t i, const float *k, const float *v) {
    char *kp = (char *)s->k + rk_span_page(s, i) * rk_page_bytes(d, s->k_dtype);
    char *vp = (char *)s->v + rk_span_page(s, i) * rk_page_bytes(d, s->v_dtype);
    int   slot = rk_span_slot(s, i);
    for (int j = 0; j < d; j++) {
        rk_page_put(kp, s->k_dtype, rk_kpage_at(slot, j, d), rk_page_count(d), k[j]);
        rk_page_put(vp, s->v_dtype, rk_vpage_at(slot, j, d), rk_page_count(d), v[j]);
    }
}
static float page_get(const void *page, rk_dtype t, int64_t at, int64_t page_count) {
    if (t == RK_F32) return ((const float *)page)[at];
    const uint16_t *p = page;
    float           hi = rk_bf16_to_f32(p[at]);
    return t == RK_BF16X2 ? hi + rk_bf16_to_f32(p[page_count + at]) : hi;
}
static float span_k(const rk_span *s, int d, int64_t i, int j) {
    return page_get((char *)s->k + rk_span_page(s, i) * rk_page_bytes(d, s->k_dtype), s->k_dtype,
                       rk_kpage_at(rk_span_slot(s, i), j, d), rk_page_count(d));
}
static float span_v(const rk_span *s, int d, int64_t i, int j) {
    return page_get((char *)s->v + rk_span_page(s, i) * rk_page_bytes(d, s->v_dtype), s->v_dtype,
                       rk_vpage_at(rk_span_slot(s, i), j, d), rk_page_count(d));
}

static bool same_pages(const rk_span *a, const rk_span *b, int d) {
    int64_t pages = pages_of(a);
    return memcmp(a->k, b->k, (size_t)(pages * rk_page_bytes(d, a->k_dtype))) == 0 &&
           memcmp(a->v, b->v, (size_t)(pages * rk_page_bytes(d, a->v_dtype))) == 0;
}

/* What a set's chain holds, as plain rows: [G][max_n][d], n[g] of them per stored head. */
typedef struct rows {
    rk_attn_shape sh;
    int           n[MAX_G], skew, max_n;
    float        *k, *v;
} rows;

static rows rows_open(rk_attn_shape sh, int n, int skew, uint32_t id) {
    rows r = {.sh = sh, .skew = skew, .max_n = n + skew * (sh.n_kv_heads - 1)};
    for (int g = 0; g < sh.n_kv_heads; g++) r.n[g] = n + skew * g;
    r.k = normals((int64_t)sh.n_kv_heads * r.max_n * sh.head_dim, id, 1);
    r.v = normals((int64_t)sh.n_kv_heads * r.max_n * sh.head_dim, id + 1, 1);
    return r;
}
static void rows_close(rows *r) {
    rk_mem_free(r->k), rk_mem_free(r->v);
}

/* Spans [n_spans][G] over the rows. Span i ends before slot end[i], the last one with the head. */
static void chain_open(const rows *r, int n_spans, const int *end, const rk_dtype *type,
                       rk_span *out) {
    int G = r->sh.n_kv_heads, d = r->sh.head_dim;
    for (int g = 0; g < G; g++)
        for (int i = 0, from = 0; i < n_spans; i++) {
            int to = i == n_spans - 1 || end[i] > r->n[g] ? r->n[g] : end[i];
            span_open(&out[i * G + g], d, type[i], type[i], from, to - from);
            for (int s = from; s < to; s++) {
                int64_t at = ((int64_t)g * r->max_n + s) * d;
                span_put(&out[i * G + g], d, s - from, r->k + at, r->v + at);
            }
            from = to;
        }
}
static void chain_close(const rk_attn_shape *sh, int n_spans, rk_span *spans) {
    for (int i = 0; i < n_spans * sh->n_kv_heads; i++) span_close(&spans[i], sh->head_dim);
}

/* The values that a chain holds, as rows: what rounding left of them. */
static rows chain_rows(const rows *like, int n_spans, const rk_span *spans) {
    rows r = rows_open(like->sh, like->n[0], like->skew, 0);
    int  G = r.sh.n_kv_heads, d = r.sh.head_dim;
    for (int g = 0; g < G; g++)
        for (int i = 0, slot = 0; i < n_spans; i++)
            for (int k = 0; k < spans[i * G + g].n; k++, slot++)
                for (int j = 0; j < d; j++) {
                    r.k[((int64_t)g * r.max_n + slot) * d + j] = span_k(&spans[i * G + g], d, k, j);
                    r.v[((int64_t)g * r.max_n + slot) * d + j] = span_v(&spans[i * G + g], d, k, j);
                }
    return r;
}

/* ---- attention and its judge ---- */

/* Bits of one activation row: [limb][width], bf16. */
static void row_bits(const uint16_t *act, int row, int width, int limbs, uint16_t *out) {
    for (int l = 0; l < limbs; l++)
        for (int j = 0; j < width; j++) *out++ = act[rk_act_at(row, j, width, limbs, l)];
}

/* Attend into a buffer of NaN; its rows [0, m) as bits [m][limb][H d] (ref: as floats). */
static void *attend(rk_backend *be, const rk_attn_shape *sh, const float *qkv, int m,
                    const rk_seq_rows *sets, int n_sets, rk_rows_kind kind) {
    int     width = sh->n_heads * sh->head_dim, limbs = rk_limbs(be, kind);
    int64_t bytes = rk_act_bytes(be, m, width, kind), n = rk_act_count(m, width, limbs), left = 0;
    void   *act = guarded(bytes, 0xff);
    OK(be->ops->attend(be, sh, qkv, m, sets, n_sets, kind, act));
    OK(be->ops->sync(be));
    char *out = zeroed((int64_t)m * limbs * width * 4);
    for (int i = 0; i < m; i++) {
        float *f = (float *)(void *)out + i * width;
        if (be == ref)
            for (int j = 0; j < width; j++) f[j] = ((float *)act)[rk_act_at(i, j, width, 1, 0)];
        else
            row_bits(act, i, width, limbs, (uint16_t *)(void *)out + (int64_t)i * limbs * width);
    }
    for (int64_t i = 0; i < n && be != ref; i++) left += ((uint16_t *)act)[i] == 0xffff;
    CHECK(be == ref || left == n - (int64_t)m * width * limbs, "%s wrote too much or left some",
          be->path);
    CHECK(release(act, bytes), "%s wrote outside", be->path);
    return out;
}

/* attend on every cpu path and thread count: the bits, equal for all (rk_mem_free). */
static uint16_t *attend_everywhere(const rk_attn_shape *sh, const float *qkv, int m,
                                   const rk_seq_rows *sets, int n_sets, rk_rows_kind kind,
                                   const char *what) {
    uint16_t *first = attend(cpus[0], sh, qkv, m, sets, n_sets, kind);
    size_t    bytes = (size_t)(m * sh->n_heads * sh->head_dim * rk_limbs(cpus[0], kind)) * 2;
    for (int i = 1; i < n_cpus; i++) {
        uint16_t *out = attend(cpus[i], sh, qkv, m, sets, n_sets, kind);
        CHECK(memcmp(first, out, bytes) == 0, "%s: %s with %d threads is not scalar's", what,
              cpus[i]->path, cpus[i]->n_threads);
        rk_mem_free(out);
    }
    return first;
}

/* One output row of one query head in double: out [d], and size [d], the sum of p |v|. */
static void soft_row(const rows *r, int g, int64_t see, const float *q, bool round_q, double *p,
                     double *out, double *size) {
    int          d = r->sh.head_dim;
    const float *k = r->k + (int64_t)g * r->max_n * d, *v = r->v + (int64_t)g * r->max_n * d;
    double       max = -INFINITY, sum = 0;
    for (int64_t s = 0; s < see; s++) {
        double t = 0;
        for (int j = 0; j < d; j++) {
            float x = round_q ? rk_bf16_to_f32(rk_f32_to_bf16(q[j])) : q[j];
            t += (double)x * (double)k[s * d + j];
        }
        p[s] = t * (double)r->sh.scale;
        max = fmax(max, p[s]);
    }
    for (int64_t s = 0; s < see; s++) sum += p[s] = exp(p[s] - max);
    for (int j = 0; j < d; j++) out[j] = size[j] = 0;
    for (int64_t s = 0; s < see; s++)
        for (int j = 0; j < d; j++) {
            out[j] += p[s] / sum * (double)v[s * d + j];
            size[j] += p[s] / sum * fabs((double)v[s * d + j]);
        }
}

/* Largest error of a set's rows, in units of the sum of p |v|. values: what the chain holds.
 * got: bits of the batch, or floats where f32. */
static double attend_error(const rows *values, const float *qkv, const rk_seq_rows *set,
                           rk_rows_kind kind, const void *got, bool f32) {
    const rk_attn_shape *sh = &values->sh;
    int                  H = sh->n_heads, G = sh->n_kv_heads, d = sh->head_dim, width = H * d;
    int                  limbs = kind == RK_ROWS_EXACT ? 2 : 1;
    double              *p = zeroed(values->max_n * 8), out[128], size[128], worst = 0;
    for (int i = 0; i < set->n_rows; i++)
        for (int h = 0; h < H; h++) {
            int             g = h / (H / G);
            int64_t         row = set->row0 + i;
            const float    *q = qkv + row * (H + 2 * G) * d + h * d;
            const uint16_t *bits = (const uint16_t *)got + row * limbs * width + h * d;
            soft_row(values, g, values->n[g] - (set->n_rows - 1 - i), q,
                     !f32 && kind == RK_ROWS_PLAIN, p, out, size);
            for (int j = 0; j < d; j++) {
                double y = f32 ? (double)((const float *)got)[row * width + h * d + j]
                               : (double)rk_bf16_to_f32(bits[j]) +
                                     (limbs == 2 ? (double)rk_bf16_to_f32(bits[width + j]) : 0);
                double e = fabs(y - out[j]) / size[j];
                worst = worse(worst, e);
            }
        }
    rk_mem_free(p);
    return worst;
}

static rk_attn_shape shape(int d, int G, int rep) {
    return (rk_attn_shape){G * rep, G, d, 1.0f / sqrtf((float)d)};
}
static float *queries(const rk_attn_shape *sh, int m, uint32_t id) {
    return normals((int64_t)m * (sh->n_heads + 2 * sh->n_kv_heads) * sh->head_dim, id, 1.5f);
}

typedef struct attend_case {
    int          d, G, rep, n, rows, skew; /* head g holds n + g skew slots */
    rk_rows_kind kind;
    rk_dtype     type[3]; /* of spans; one span where end is 0 */
    int          end[3];  /* [2]: do the last 10 keys beat all others by more than exp2 spans? */
} attend_case;

static void run_attend(const attend_case *c) {
    rk_attn_shape sh = shape(c->d, c->G, c->rep);
    rows          r = rows_open(sh, c->n, c->skew, 40);
    int           n_spans = c->end[0] == 0 ? 1 : c->end[1] == 0 ? 2 : 3;
    rk_span       spans[MAX_SPANS * MAX_G], f32[MAX_G];
    float        *qkv = queries(&sh, c->rows, 50);
    char          what[128];
    snprintf(what, sizeof what, "attend d=%d G=%d H/G=%d n=%d+%d rows=%d %s, %d spans", c->d, c->G,
             c->rep, c->n, c->skew, c->rows, c->kind == RK_ROWS_EXACT ? "exact" : "plain", n_spans);
    for (int i = (c->n - 10) * c->d; c->end[2] && i < c->n * c->d; i++) r.k[i] *= 100;
    chain_open(&r, n_spans, c->end, c->type, spans);
    rows values = chain_rows(&r, n_spans, spans);
    chain_open(&values, 1, c->end, (rk_dtype[]){RK_F32}, f32);
    rk_seq_rows set = {0, c->rows, n_spans, spans}, plain = {0, c->rows, 1, f32};
    uint16_t   *cpu = attend_everywhere(&sh, qkv, c->rows, &set, 1, c->kind, what);
    float      *oracle = attend(ref, &sh, qkv, c->rows, &plain, 1, c->kind);
    double      e = attend_error(&values, qkv, &set, c->kind, cpu, false);
    double      er = attend_error(&values, qkv, &set, c->kind, oracle, true);
    CHECK(e < (c->kind == RK_ROWS_EXACT ? 2e-5 : 6e-3), "%s: cpu is off by %g", what, e);
    CHECK(er < 1e-5, "%s: ref is off by %g", what, er);
    rk_mem_free(cpu), rk_mem_free(oracle), rk_mem_free(qkv);
    chain_close(&sh, n_spans, spans), chain_close(&sh, 1, f32);
    rows_close(&r), rows_close(&values);
}

#define PLAIN RK_ROWS_PLAIN
#define EXACT RK_ROWS_EXACT
#define B1    RK_BF16
#define B2    RK_BF16X2

static void test_attend_shapes(void) {
    static const attend_case cases[] = {
        {32, 1, 1, 1, 1, 0, PLAIN, {B1}, {0}},     {32, 1, 3, 15, 3, 0, EXACT, {B1}, {0}},
        {64, 2, 3, 100, 33, 5, PLAIN, {B1}, {0}},  {64, 3, 1, 64, 17, 1, EXACT, {B1}, {0}},
        {128, 2, 7, 65, 13, 63, PLAIN, {B1}, {0}}, {128, 1, 3, 130, 100, 0, PLAIN, {B1}, {0}},
        {64, 3, 3, 192, 2, 70, EXACT, {B2}, {0}},  {32, 3, 7, 129, 16, 0, EXACT, {B2}, {0}},
        {64, 1, 7, 63, 63, 0, PLAIN, {B1}, {0}},   {128, 1, 1, 70, 33, 0, EXACT, {B2}, {0}},
        {32, 2, 1, 101, 100, 7, EXACT, {B1}, {0}}, {64, 3, 1, 5, 1, 64, PLAIN, {B1}, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_attend(&cases[i]);
}

/* A bf16 prompt with a tail of two limbs, as measurement passes have it; borders within a page. */
static void test_attend_mixed(void) {
    static const attend_case cases[] = {
        {64, 3, 3, 100, 17, 0, EXACT, {B1, B2}, {83}},
        {64, 2, 1, 190, 33, 9, EXACT, {B1, B2}, {128}},
        {32, 1, 3, 200, 16, 0, EXACT, {B1, B2, B2}, {30, 50}},
        {128, 1, 1, 66, 2, 0, EXACT, {B1, B2, B1}, {3, 60}},
        {64, 2, 3, 90, 13, 40, PLAIN, {B1, B1, B1}, {20, 40}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_attend(&cases[i]);
}

/* Parts of 1024 slots, merged. */
static void test_attend_long(void) {
    static const attend_case cases[] = {
        {32, 1, 1, 1023, 1, 0, EXACT, {B1}, {0}},
        {32, 1, 3, 1024, 2, 0, PLAIN, {B1}, {0}},
        {32, 2, 1, 1025, 3, 0, EXACT, {B2}, {0}},
        {64, 1, 3, 2100, 1, 0, PLAIN, {B1}, {0, 0, 1}},
        {32, 1, 1, 2100, 100, 0, EXACT, {B1}, {0}},
        {32, 2, 3, 1030, 13, 1030, EXACT, {B1, B2}, {1000}},
        {32, 1, 1, 1100, 300, 0, PLAIN, {B1}, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_attend(&cases[i]);
}

/* The unused lanes of the last page hold zero keys, whose score 0 would beat every real one. */
static void test_attend_page_tail(void) {
    rk_attn_shape sh = shape(64, 1, 3);
    enum { M = 2 };
    for (int n = 2; n <= 130; n += 61) {
        rows   r = rows_open(sh, n, 0, 60);
        float *qkv = queries(&sh, M, 61);
        for (int i = 0; i < n * 64; i++) r.k[i] = -5.0f, r.v[i] = 1.0f;
        for (int i = 0; i < M * 5 * 64; i++) qkv[i] = 5.0f;
        rk_span     span;
        rk_seq_rows set = {0, M, 1, &span};
        chain_open(&r, 1, NULL, (rk_dtype[]){B1}, &span);
        uint16_t *out = attend_everywhere(&sh, qkv, M, &set, 1, PLAIN, "page tail");
        bool      ok = true;
        for (int i = 0; i < M * 3 * 64; i++) ok = ok && rk_bf16_to_f32(out[i]) == 1.0f;
        CHECK(ok, "unused lanes of %d slots count", n);
        rk_mem_free(out), rk_mem_free(qkv);
        chain_close(&sh, 1, &span), rows_close(&r);
    }
}

/* ---- what must not change a bit ---- */

static void test_span_cuts(void) {
    enum { N = 300, M = 17 };
    static const int cuts[][3] = {{100},  {64},     {299},      {1},       {30, 37}, {100, 140},
                                  {1, 2}, {63, 65}, {128, 192}, {50, 283}, {40, 40}};
    rk_attn_shape    sh = shape(64, 2, 3);
    rows             r = rows_open(sh, N, 11, 70);
    float           *qkv = queries(&sh, M, 71);
    for (int kind = 0; kind < 2; kind++) {
        rk_dtype type[] = {kind ? B2 : B1, kind ? B2 : B1, kind ? B2 : B1};
        size_t   bytes = (size_t)(M * 6 * 64 * (1 + kind)) * 2;
        rk_span  whole[MAX_G], spans[MAX_SPANS * MAX_G];
        chain_open(&r, 1, NULL, type, whole);
        rk_seq_rows set = {0, M, 1, whole};
        uint16_t   *want = attend_everywhere(&sh, qkv, M, &set, 1, (rk_rows_kind)kind, "one span");
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            int n_spans = cuts[i][1] ? 3 : 2;
            chain_open(&r, n_spans, cuts[i], type, spans);
            set = (rk_seq_rows){0, M, n_spans, spans};
            uint16_t *got = attend_everywhere(&sh, qkv, M, &set, 1, (rk_rows_kind)kind, "span cut");
            CHECK(memcmp(want, got, bytes) == 0, "cut at %d, %d (%s) changes bits", cuts[i][0],
                  cuts[i][1], kind ? "exact" : "plain");
            rk_mem_free(got);
            chain_close(&sh, n_spans, spans);
        }
        rk_mem_free(want);
        chain_close(&sh, 1, whole);
    }
    rk_mem_free(qkv);
    rows_close(&r);
}

/* Cosines and sines of d / 2 frequencies at positions [0, n). */
static float *rope_table(int n, int d) {
    float *t = zeroed((int64_t)n * d * 4);
    for (int p = 0; p < n; p++)
        for (int j = 0; j < d / 2; j++) {
            double a = p * pow(10000.0, -2.0 * j / d);
            t[p * d + j] = (float)cos(a);
            t[p * d + d / 2 + j] = (float)sin(a);
        }
    return t;
}

/* Append and attend `rows` rows behind a prompt, chunk by chunk; bits [rows][limb][H d]. */
static uint16_t *run_chunks(rk_backend *be, const rows *prompt, const float *qkv, int n_rows,
                            rk_rows_kind kind, const int *chunk) {
    const rk_attn_shape *sh = &prompt->sh;
    int d = sh->head_dim, G = sh->n_kv_heads, width = sh->n_heads * d, limbs = rk_limbs(be, kind);
    int64_t   in = (int64_t)(sh->n_heads + 2 * G) * d;
    rk_span   spans[2 * MAX_G];
    float    *table = rope_table(prompt->max_n + n_rows, d), *batch = zeroed(n_rows * in * 4);
    int32_t  *pos = zeroed(n_rows * 4);
    uint16_t *out = zeroed((int64_t)n_rows * limbs * width * 2);
    chain_open(prompt, 1, NULL, (rk_dtype[]){B1}, spans);
    for (int g = 0; g < G; g++) {
        rk_dtype t = kind == EXACT ? be->exact_dtype : B1;
        span_open(&spans[G + g], d, t, t, prompt->n[g], n_rows);
        spans[G + g].n = 0;
    }
    for (int at = 0, c = 0; at < n_rows; at += chunk[c++]) {
        int m = chunk[c];
        memcpy(batch, qkv + at * in, (size_t)(m * in) * 4);
        for (int g = 0; g < G; g++) spans[G + g].n += m;
        for (int i = 0; i < m; i++) pos[i] = prompt->n[0] + at + i;
        rk_seq_rows set = {0, m, 2, spans};
        OK(be->ops->rope_append(be, sh, batch, m, pos, table, &set, 1));
        uint16_t *bits = attend(be, sh, batch, m, &set, 1, kind);
        memcpy(out + (int64_t)at * limbs * width, bits, (size_t)(m * limbs * width) * 2);
        rk_mem_free(bits);
    }
    chain_close(sh, 2, spans);
    rk_mem_free(table), rk_mem_free(batch), rk_mem_free(pos);
    return out;
}

static void test_chunks_and_decode(void) {
    enum { N = 100 };
    static const int chunks[][32] = {
        {100},      {13, 33, 54},
        {99, 1},    {14, 50, 36},
        {1, 2, 97}, {80, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}};
    rk_attn_shape sh = shape(64, 2, 3);
    rows          prompt = rows_open(sh, 50, 0, 80);
    float        *qkv = queries(&sh, N, 82);
    for (int kind = 0; kind < 2; kind++) {
        size_t    bytes = (size_t)(N * 6 * 64 * (1 + kind)) * 2;
        uint16_t *want = run_chunks(cpus[0], &prompt, qkv, N, (rk_rows_kind)kind, chunks[0]);
        for (int i = 0; i < n_cpus; i++)
            for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
                uint16_t *got = run_chunks(cpus[i], &prompt, qkv, N, (rk_rows_kind)kind, chunks[c]);
                CHECK(memcmp(want, got, bytes) == 0,
                      "chunks %d, %d, .. on %s x %d (%s) change bits", chunks[c][0], chunks[c][1],
                      cpus[i]->path, cpus[i]->n_threads, kind ? "exact" : "plain");
                rk_mem_free(got);
            }
        rk_mem_free(want);
    }
    rk_mem_free(qkv);
    rows_close(&prompt);
}

/* A row over several parts alone (threads share its parts), with few and with many others. */
static void test_long_decode(void) {
    enum { N = 2100, M = 200 };
    rk_attn_shape sh = shape(32, 1, 1);
    rows          r = rows_open(sh, N, 0, 90);
    rk_span       span;
    float        *qkv = queries(&sh, M, 91);
    chain_open(&r, 1, NULL, (rk_dtype[]){B1}, &span);
    for (int kind = 0; kind < 2; kind++) {
        size_t    row = (size_t)(32 * (1 + kind)) * 2;
        uint16_t *want = NULL;
        for (int m = 1; m <= M; m = m == 1 ? 20 : m == 20 ? M : M + 1) {
            rk_seq_rows set = {0, m, 1, &span};
            char       *got = (void *)attend_everywhere(&sh, qkv + (M - m) * 3 * 32, m, &set, 1,
                                                        (rk_rows_kind)kind, "long decode");
            if (want == NULL)
                want = (void *)got;
            else {
                CHECK(memcmp(want, got + row * (size_t)(m - 1), row) == 0,
                      "the last of %d rows differs from itself alone", m);
                rk_mem_free(got);
            }
        }
        rk_mem_free(want);
    }
    chain_close(&sh, 1, &span);
    rk_mem_free(qkv);
    rows_close(&r);
}

static void test_batch_mates(void) {
    enum { SETS = 3 };
    static const int n[SETS] = {70, 200, 5}, m[SETS] = {3, 17, 1};
    static const int orders[][SETS] = {{0, 1, 2}, {1, 0, 2}, {2, 1, 0}, {1, 2, 0}};
    rk_attn_shape    sh = shape(64, 3, 1);
    int              width = 3 * 64, in = 9 * 64;
    float           *qkv = queries(&sh, 21, 100), *batch = queries(&sh, 21, 101);
    for (rk_rows_kind kind = PLAIN; kind <= EXACT; kind++) {
        int       row = width * (1 + (int)kind);
        rows      r[SETS];
        rk_span   spans[SETS][MAX_G];
        uint16_t *alone[SETS];
        for (int k = 0, at = 0; k < SETS; at += m[k++]) {
            r[k] = rows_open(sh, n[k], 3 * k, 102 + 2 * (uint32_t)k);
            chain_open(&r[k], 1, NULL, (rk_dtype[]){B1}, spans[k]);
            rk_seq_rows set = {0, m[k], 1, spans[k]};
            alone[k] = attend_everywhere(&sh, qkv + at * in, m[k], &set, 1, kind, "alone");
        }
        for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
            rk_seq_rows sets[SETS];
            for (int i = 0, at = 0; i < SETS; at += sets[i++].n_rows) {
                int k = orders[o][i], from = k == 0 ? 0 : k == 1 ? m[0] : m[0] + m[1];
                sets[i] = (rk_seq_rows){at, m[k], 1, spans[k]};
                memcpy(batch + at * in, qkv + from * in, (size_t)(m[k] * in) * 4);
            }
            uint16_t *got = attend_everywhere(&sh, batch, 21, sets, SETS, kind, "batch");
            for (int i = 0; i < SETS; i++)
                CHECK(memcmp(got + sets[i].row0 * row, alone[orders[o][i]],
                             (size_t)(sets[i].n_rows * row) * 2) == 0,
                      "set %d in order %zu differs from itself alone", orders[o][i], o);
            rk_mem_free(got);
        }
        for (int k = 0; k < SETS; k++)
            rk_mem_free(alone[k]), chain_close(&sh, 1, spans[k]), rows_close(&r[k]);
    }
    rk_mem_free(qkv), rk_mem_free(batch);
}

/* ---- rotation and append ---- */

/* Two sets of 3 and 70 rows behind 62 and 9 slots: over page borders, out of batch order. */
static void append_on(rk_backend *be, rk_dtype kt, rk_dtype vt) {
    enum { D = 64, H = 6, G = 2, W = (H + 2 * G) * D, M = 73 };
    static const int before[] = {62, 9}, count[] = {3, 70}, row0[] = {70, 0};
    rk_attn_shape    sh = shape(D, G, H / G);
    rk_span          spans[2][G];
    rk_seq_rows      sets[2];
    float           *raw = normals(M * W, 110, 1), *table = rope_table(200, D);
    float           *qkv = guarded(M * W * 4, 0);
    int32_t          pos[M];
    memcpy(qkv, raw, M * W * 4);
    for (int k = 0; k < 2; k++) {
        sets[k] = (rk_seq_rows){row0[k], count[k], 1, spans[k]};
        for (int i = 0; i < count[k]; i++) pos[row0[k] + i] = 100 * k + 20 + i;
        for (int g = 0; g < G; g++) /* a first beyond 0, and slots that were there before */
            span_open(&spans[k][g], D, kt, vt, 5 * k, before[k] + count[k]);
    }
    OK(be->ops->rope_append(be, &sh, qkv, M, pos, table, sets, 2));
    double worst = 0;
    bool   v_kept = true, stored = true;
    for (int i = 0; i < M; i++)
        for (int x = 0; x < W; x++) {
            int    j = x % D, half = D / 2, f = j % half;
            double angle = pos[i] * pow(10000.0, -2.0 * f / D), c = cos(angle), s = sin(angle);
            double a = (double)raw[i * W + x - j + f], b = (double)raw[i * W + x - j + f + half];
            if (x < (H + G) * D)
                worst = worse(worst, fabs((double)qkv[i * W + x] -
                                          (j < half ? a * c - b * s : b * c + a * s)));
            else
                v_kept = v_kept && qkv[i * W + x] == raw[i * W + x];
        }
    CHECK(worst < 1e-6, "%s: rotation is off by %g", be->ops->name, worst);
    CHECK(v_kept, "%s: values rotated", be->ops->name);
    for (int k = 0; k < 2; k++)
        for (int g = 0; g < G; g++) {
            rk_span *s = &spans[k][g], want;
            span_open(&want, D, kt, vt, 5 * k, s->n);
            for (int i = 0; i < count[k]; i++) {
                const float *row = qkv + (row0[k] + i) * W + (H + g) * D;
                span_put(&want, D, before[k] + i, row, row + G * D);
            }
            stored = stored && same_pages(s, &want, D);
            span_close(&want, D);
            span_close(s, D);
        }
    CHECK(stored, "%s: appended keys or values, or lanes beside them, are wrong", be->ops->name);
    CHECK(release(qkv, M * W * 4), "%s wrote outside", be->ops->name);
    rk_mem_free(raw), rk_mem_free(table);
}

static void test_rope_append(void) {
    for (int i = 0; i < n_cpus; i++) {
        append_on(cpus[i], B1, B1);
        append_on(cpus[i], B2, B2);
        append_on(cpus[i], B1, B2);
    }
    append_on(ref, RK_F32, RK_F32);
}

/* ---- compaction ---- */

static void gather_on(rk_backend *be, rk_dtype t) {
    enum { D = 64, N = 300, KEEP = 77 };
    rk_attn_shape sh = shape(D, 1, 1);
    rows          r = rows_open(sh, N, 0, 120);
    rk_span       chain[3], dst, want;
    int32_t       slot[KEEP];
    for (int i = 0; i < KEEP; i++) slot[i] = i < 10 ? i : i == KEEP - 1 ? N - 1 : 3 * i + i % 3;
    chain_open(&r, 3, (int[]){31, 140}, (rk_dtype[]){t, t, t}, chain);
    span_open(&dst, D, t, t, 0, KEEP);
    span_open(&want, D, t, t, 0, KEEP);
    for (int i = 0; i < KEEP; i++) span_put(&want, D, i, r.k + slot[i] * D, r.v + slot[i] * D);
    OK(be->ops->kv_gather(be, D, chain, 3, slot, KEEP, &dst));
    /* lanes beyond stay zero */
    CHECK(same_pages(&dst, &want, D), "%s: gathered slots are wrong", be->ops->name);
    span_close(&dst, D), span_close(&want, D);
    chain_close(&sh, 3, chain);
    rows_close(&r);
}

static void test_kv_gather(void) {
    for (int i = 0; i < n_cpus; i++) gather_on(cpus[i], B1), gather_on(cpus[i], B2);
    gather_on(ref, RK_F32);
}

/* ---- perturbation ---- */

static void perturb_on(rk_backend *be, int d, float eps) {
    enum { N = 100 };
    rk_dtype      from = be == ref ? RK_F32 : B1, to = be == ref ? RK_F32 : B2;
    rk_attn_shape sh = shape(d, 1, 1);
    rows          r = rows_open(sh, N, 0, 130);
    rk_span       src, dst, want;
    chain_open(&r, 1, NULL, &from, &src);
    span_open(&dst, d, to, to, 0, N);
    span_open(&want, d, to, to, 0, N);
    int64_t bytes = pages_of(&src) * rk_page_bytes(d, to);
    memset(dst.k, 0x5a, (size_t)bytes);
    OK(be->ops->kv_perturb(be, d, &src, eps, 0x123456789abcULL, 7, 1, 3, 2, &dst));
    double worst = 0;
    for (int i = 0; i < N; i++) {
        float  g[128], v[128], y[128], vv = 0, gg = 0;
        double change = 0, norm = 0;
        rk_rng_noise(0x123456789abcULL, 7, 1, 3, 2, (uint32_t)i, d, g);
        for (int j = 0; j < d; j++) {
            v[j] = span_v(&src, d, i, j);
            vv = fmaf(v[j], v[j], vv);
            gg = fmaf(g[j], g[j], gg);
        }
        for (int j = 0; j < d; j++) {
            y[j] = eps == 0 ? v[j] : fmaf(eps * sqrtf(vv) / sqrtf(gg), g[j], v[j]);
            double step = (double)span_v(&dst, d, i, j) - (double)v[j];
            change += step * step;
            norm += (double)v[j] * (double)v[j];
        }
        span_put(&want, d, i, y, y);
        worst = worse(worst, fabs(sqrt(change) - (double)eps * sqrt(norm)) / sqrt(norm));
    }
    memset(want.k, 0x5a, (size_t)bytes);
    CHECK(same_pages(&dst, &want, d), "%s (%s) d=%d eps=%g: not rng.h's noise, or keys touched",
          be->ops->name, be->path, d, (double)eps);
    CHECK(worst < 1e-5, "%s d=%d: the change is off by %g ||v||", be->ops->name, d, worst);
    span_close(&src, d), span_close(&dst, d), span_close(&want, d);
    rows_close(&r);
}

static void test_kv_perturb(void) {
    for (int i = 0; i <= n_cpus; i++)
        for (int d = 32; d <= 128; d *= 2)
            for (int e = 0; e < 3; e++) perturb_on(i < n_cpus ? cpus[i] : ref, d, 0.1f * (float)e);
}

/* Values perturbed by eps 0 attend to the same bits as those they came from. */
static void test_perturb_nothing(void) {
    enum { N = 150, M = 13, D = 64 };
    rk_attn_shape sh = shape(D, 1, 3);
    rows          r = rows_open(sh, N, 0, 140);
    float        *qkv = queries(&sh, M, 142);
    rk_span       base[2], pert[2];
    chain_open(&r, 2, (int[]){N - M}, (rk_dtype[]){B1, B2}, base);
    span_open(&pert[0], D, B1, B2, 0, N - M);
    OK(cpus[0]->ops->kv_perturb(cpus[0], D, &base[0], 0.0f, 1, 0, 0, 0, 0, &pert[0]));
    memcpy(pert[0].k, base[0].k, (size_t)(pages_of(base) * rk_page_bytes(D, B1)));
    pert[1] = base[1];
    rk_seq_rows a = {0, M, 2, base}, b = {0, M, 2, pert};
    uint16_t   *want = attend_everywhere(&sh, qkv, M, &a, 1, EXACT, "unperturbed");
    uint16_t   *got = attend_everywhere(&sh, qkv, M, &b, 1, EXACT, "perturbed by 0");
    CU_ASSERT(memcmp(want, got, M * 3 * D * 2 * 2) == 0);
    rk_mem_free(want), rk_mem_free(got), rk_mem_free(qkv);
    span_close(&pert[0], D);
    chain_close(&sh, 2, base);
    rows_close(&r);
}

/* ---- selection ---- */

static float *mass_on(rk_backend *be, const rk_attn_shape *sh, const float *q, int w,
                      const rk_span *spans, int n_spans, int n) {
    int64_t bytes = (int64_t)sh->n_heads * n * 4;
    float  *out = guarded(bytes, 0xff), *copy = zeroed(bytes);
    OK(be->ops->window_mass(be, sh, q, w, spans, n_spans, n, out));
    OK(be->ops->sync(be));
    memcpy(copy, out, (size_t)bytes);
    CHECK(release(out, bytes), "%s: window_mass wrote outside", be->path);
    return copy;
}

/* Largest error in units of what the window could give to one slot, w. */
static double mass_error(const rows *r, const float *q, int w, bool round_q, const float *mass) {
    int     H = r->sh.n_heads, d = r->sh.head_dim, n = r->n[0];
    double *p = zeroed(n * 8), *sum = zeroed(n * 8), out[128], size[128], worst = 0;
    for (int h = 0; h < H; h++) {
        memset(sum, 0, (size_t)n * 8);
        for (int i = 0; i < w; i++) {
            int    see = n - w + 1 + i;
            double total = 0;
            soft_row(r, h / (H / r->sh.n_kv_heads), see, q + (i * H + h) * d, round_q, p, out,
                     size);
            for (int s = 0; s < see; s++) total += p[s];
            for (int s = 0; s < see; s++) sum[s] += p[s] / total;
        }
        for (int s = 0; s < n; s++) {
            double e = fabs((double)mass[h * n + s] - sum[s]) / (sum[s] + 1e-6);
            worst = worse(worst, e);
        }
    }
    rk_mem_free(p), rk_mem_free(sum);
    return worst;
}

static void run_mass(int d, int G, int rep, int n, int w, int end0, int end1) {
    rk_attn_shape sh = shape(d, G, rep);
    rows          r = rows_open(sh, n, 0, 150);
    rk_dtype      type[] = {B1, B1, B1};
    int           n_spans = end0 == 0 ? 1 : end1 == 0 ? 2 : 3;
    rk_span       one[MAX_G], spans[MAX_SPANS * MAX_G], f32[MAX_G];
    float        *q = normals((int64_t)w * sh.n_heads * d, 151, 1.5f);
    size_t        bytes = (size_t)(sh.n_heads * n) * 4;
    char          what[96];
    snprintf(what, sizeof what, "window_mass d=%d G=%d H/G=%d n=%d w=%d", d, G, rep, n, w);
    chain_open(&r, 1, NULL, type, one);
    chain_open(&r, n_spans, (int[]){end0, end1}, type, spans);
    rows values = chain_rows(&r, 1, one);
    chain_open(&values, 1, NULL, (rk_dtype[]){RK_F32}, f32);
    float *want = mass_on(cpus[0], &sh, q, w, one, 1, n);
    for (int i = 0; i < n_cpus; i++) {
        float *got = mass_on(cpus[i], &sh, q, w, spans, n_spans, n);
        CHECK(memcmp(want, got, bytes) == 0, "%s: %s x %d, cut at %d, %d changes bits", what,
              cpus[i]->path, cpus[i]->n_threads, end0, end1);
        rk_mem_free(got);
    }
    float *oracle = mass_on(ref, &sh, q, w, f32, 1, n);
    double e = mass_error(&values, q, w, true, want), er = mass_error(&values, q, w, false, oracle);
    CHECK(e < 2e-5, "%s: cpu is off by %g", what, e);
    CHECK(er < 2e-5, "%s: ref is off by %g", what, er);
    rk_mem_free(want), rk_mem_free(oracle), rk_mem_free(q);
    chain_close(&sh, 1, one), chain_close(&sh, n_spans, spans), chain_close(&sh, 1, f32);
    rows_close(&r), rows_close(&values);
}

static void test_window_mass(void) {
    run_mass(32, 1, 1, 1, 1, 0, 0);
    run_mass(64, 2, 3, 70, 8, 30, 0);
    run_mass(64, 3, 1, 128, 16, 64, 0);
    run_mass(128, 1, 7, 65, 17, 3, 40);
    run_mass(32, 3, 3, 300, 32, 100, 140);
    run_mass(64, 1, 3, 33, 33, 1, 2);
    run_mass(64, 2, 1, 1100, 32, 1000, 1050);
}

static void add_tests(CU_pSuite s) {
    CU_ADD_TEST(s, test_attend_shapes);
    CU_ADD_TEST(s, test_attend_mixed);
    CU_ADD_TEST(s, test_attend_long);
    CU_ADD_TEST(s, test_attend_page_tail);
    CU_ADD_TEST(s, test_span_cuts);
    CU_ADD_TEST(s, test_chunks_and_decode);
    CU_ADD_TEST(s, test_long_decode);
    CU_ADD_TEST(s, test_batch_mates);
    CU_ADD_TEST(s, test_rope_append);
    CU_ADD_TEST(s, test_kv_gather);
    CU_ADD_TEST(s, test_kv_perturb);
    CU_ADD_TEST(s, test_perturb_nothing);
    CU_ADD_TEST(s, test_window_mass);
}

int rk_suite_kernels_attend(void) {
    CU_pSuite tile = CU_add_suite("kernels_attend tile", open_tile, close_backends);
    CU_pSuite pair = CU_add_suite("kernels_attend pair", open_pair, close_backends);
    if (!tile || !pair) return 1;
    add_tests(tile);
    add_tests(pair);
    return 0;
}
