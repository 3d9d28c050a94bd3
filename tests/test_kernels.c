/* test_kernels.c - layouts, backends, pool and the ops without a cache: each op on every
 * instruction set and thread count gives the same bits, within a bound of ref or of a sum in
 * double. */
#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu_isa.h"
#include "kernels/pool.h"
#include "tests/kernel_fixture.h"
#include "tests/suites.h"

static float *normals(int64_t n, uint32_t id, float scale) {
    return seeded_normals(20, n, id, scale);
}

/* An output between two bands, all of it 0xff: a NaN in every format. */
static void *guarded(int64_t bytes) {
    char *p = zeroed(bytes + 2 * BAND);
    memset(p, 0xa5, (size_t)bytes + 2 * BAND);
    memset(p + BAND, 0xff, (size_t)bytes);
    return p + BAND;
}
static void release(void *p) {
    rk_mem_free((char *)p - BAND);
}

static bool all_bytes(const void *p, int64_t n, int value) {
    for (int64_t i = 0; i < n; i++)
        if (((const unsigned char *)p)[i] != value) return false;
    return true;
}
static bool bands_intact(const void *p, int64_t bytes) {
    return all_bytes((const char *)p - BAND, BAND, 0xa5) &&
           all_bytes((const char *)p + bytes, BAND, 0xa5);
}

typedef void op_fn(rk_backend *be, const void *arg, void *out);

/* Run op everywhere: same bits, and nothing outside of out. Returns the output (release). */
static void *same_everywhere(op_fn *op, const void *arg, int64_t bytes, const char *what) {
    void *first = guarded(bytes);
    for (int i = 0; i < n_cpus; i++) {
        void *out = i ? guarded(bytes) : first;
        op(cpus[i], arg, out);
        CHECK(bands_intact(out, bytes), "%s: %s wrote outside", what, cpus[i]->path);
        CHECK(memcmp(out, first, (size_t)bytes) == 0, "%s: %s with %d threads is not scalar's",
              what, cpus[i]->path, cpus[i]->n_threads);
        if (i) release(out);
    }
    return first;
}
static float *on_ref(op_fn *op, const void *arg, int64_t bytes, const char *what) {
    void *out = guarded(bytes);
    op(ref, arg, out);
    CHECK(bands_intact(out, bytes), "%s: ref wrote outside", what);
    return out;
}

/* The larger error; a NaN stays. */
static double worse(double a, double b) {
    return isnan(a) || b <= a ? a : b;
}

static uint16_t bf16(float x) {
    return rk_f32_to_bf16(x);
}
static float rounded(float x) {
    return rk_bf16_to_f32(bf16(x));
}

/* Activations of rows x [m][k] (release with rk_mem_free). */
static void *make_act(rk_backend *be, rk_rows_kind kind, const float *x, int m, int k) {
    int   limbs = rk_limbs(be, kind);
    void *act = zeroed(rk_act_bytes(be, m, k, kind));
    for (int i = 0; i < m; i++)
        for (int j = 0; j < k; j++) {
            float   v = x[(int64_t)i * k + j];
            int64_t at = rk_act_at(i, j, k, limbs, 0);
            if (be->weight_dtype == RK_F32) ((float *)act)[at] = v;
            if (be->weight_dtype == RK_BF16) ((uint16_t *)act)[at] = bf16(v);
            if (limbs == 2) ((uint16_t *)act)[rk_act_at(i, j, k, limbs, 1)] = bf16(v - rounded(v));
        }
    return act;
}

/* A value of bf16 activations: the sum of its limbs. */
static double act_value(const uint16_t *act, int limbs, int i, int j, int k) {
    double v = (double)rk_bf16_to_f32(act[rk_act_at(i, j, k, limbs, 0)]);
    return limbs == 2 ? v + (double)rk_bf16_to_f32(act[rk_act_at(i, j, k, limbs, 1)]) : v;
}

/* ---- layouts ---- */

static void mark(unsigned char *seen, int64_t at, int64_t n, bool *ok) {
    if (at < 0 || at >= n || seen[at])
        *ok = false;
    else
        seen[at] = 1;
}

static void test_layout_bijections(void) {
    unsigned char *seen = zeroed(1 << 20);
    bool           ok = true;
    for (int N = 32; N <= 160; N += 64)
        for (int K = 32; K <= 160; K += 32) {
            int64_t n = rk_mat_count(N, K);
            memset(seen, 0, 1 << 20);
            for (int i = 0; i < N; i++)
                for (int k = 0; k < K; k++) mark(seen, rk_mat_at(i, k, K), n, &ok);
            ok = ok && n == (int64_t)N * K;
        }
    CU_ASSERT(ok);
    for (int M = 16; M <= 48; M += 16)
        for (int limbs = 1; limbs <= 2; limbs++) {
            memset(seen, 0, 1 << 20);
            for (int i = 0; i < M; i++)
                for (int k = 0; k < 96; k++)
                    for (int l = 0; l < limbs; l++)
                        mark(seen, rk_act_at(i, k, 96, limbs, l), rk_act_count(M, 96, limbs), &ok);
            ok = ok && rk_act_count(M, 96, limbs) == (int64_t)M * 96 * limbs;
        }
    CU_ASSERT(ok);
    for (int d = 32; d <= 128; d *= 2)
        for (int v = 0; v < 2; v++) {
            memset(seen, 0, 1 << 20);
            for (int s = 0; s < 64; s++)
                for (int j = 0; j < d; j++)
                    mark(seen, v ? rk_vpage_at(s, j, d) : rk_kpage_at(s, j, d), rk_page_count(d),
                         &ok);
        }
    CU_ASSERT(ok);
    /* the pictures at the head of layout.h, by hand */
    CU_ASSERT_EQUAL(rk_mat_at(33, 35, 64), ((1 * 2 + 1) * 2 + 0) * 512 + 1 * 32 + 1 * 2 + 1);
    CU_ASSERT_EQUAL(rk_mat_at(17, 0, 64), 512 + 2);
    CU_ASSERT_EQUAL(rk_act_at(17, 33, 64, 2, 1), ((1 * 2 + 1) * 2 + 1) * 512 + 1 * 32 + 1);
    CU_ASSERT_EQUAL(rk_kpage_at(18, 35, 64), (1 * 2 + 1) * 512 + 1 * 32 + 2 * 2 + 1);
    CU_ASSERT_EQUAL(rk_vpage_at(35, 18, 64), (1 * 4 + 1) * 512 + 1 * 32 + 2 * 2 + 1);
    CU_ASSERT_EQUAL(rk_mat_count(70, 40), 96 * 64);
    CU_ASSERT_EQUAL(rk_act_count(17, 40, 2), 32 * 64 * 2);
    rk_mem_free(seen);
}

static void test_pack(void) {
    enum { N = 70, K = 40 };
    float    *w = normals(N * K, 1, 1);
    uint16_t *whole = zeroed(rk_mat_count(N, K) * 2), *pieces = zeroed(rk_mat_count(N, K) * 2);
    rk_mat_pack(RK_BF16, whole, N, K, 0, N, w);
    rk_mat_pack(RK_BF16, pieces, N, K, 33, N - 33, w + 33 * K);
    rk_mat_pack(RK_BF16, pieces, N, K, 0, 33, w);
    CU_ASSERT(memcmp(whole, pieces, (size_t)rk_mat_count(N, K) * 2) == 0);
    int64_t set = 0;
    bool    ok = true;
    for (int64_t i = 0; i < rk_mat_count(N, K); i++) set += whole[i] != 0;
    for (int i = 0; i < N; i++)
        for (int k = 0; k < K; k++) ok = ok && whole[rk_mat_at(i, k, K)] == bf16(w[i * K + k]);
    CU_ASSERT(ok);
    CU_ASSERT_EQUAL(set, N * K); /* the rest of the tiles is zero */
    float *f32 = zeroed(rk_mat_count(N, K) * 4);
    rk_mat_pack(RK_F32, f32, N, K, 0, N, w);
    CU_ASSERT_EQUAL(f32[rk_mat_at(69, 39, K)], w[69 * K + 39]);
    rk_mem_free(w), rk_mem_free(whole), rk_mem_free(pieces), rk_mem_free(f32);
}

/* ---- matrix product ---- */

typedef struct gemm_case {
    int          m, k, n, ld;
    rk_rows_kind kind;
    bool         add;
    float       *x, *w, *bias, *init; /* [m][k], [n][k] of bf16 values, [n] or NULL, [m][n] */
} gemm_case;

static void op_gemm(rk_backend *be, const void *arg, void *out) {
    const gemm_case *c = arg;
    void            *act = make_act(be, c->kind, c->x, c->m, c->k);
    rk_mat           w = {.n = c->n, .k = c->k, .dtype = be->weight_dtype,
                          .dev = zeroed(rk_mat_bytes(be, c->n, c->k))};
    rk_mat_pack(w.dtype, w.dev, c->n, c->k, 0, c->n, c->w);
    for (int i = 0; c->add && i < c->m; i++)
        memcpy((float *)out + (int64_t)i * c->ld, c->init + (int64_t)i * c->n, (size_t)c->n * 4);
    OK(be->ops->gemm(be, act, c->kind, c->m, &w, c->bias, c->add, out, c->ld));
    OK(be->ops->sync(be));
    rk_mem_free(act), rk_mem_free(w.dev);
}

/* One output in the order that backend.h states, step by step. */
static float stated_order(const gemm_case *c, int i, int n) {
    const float *x = c->x + (int64_t)i * c->k, *w = c->w + (int64_t)n * c->k;
    bool         pair = strcmp(order, "pair") == 0;
    float        sum = 0;
    for (int k0 = 0; k0 < c->k; k0 += 32)
        for (int limb = 0; limb < (c->kind == RK_ROWS_EXACT ? 2 : 1); limb++) {
            float eo[2] = {0, 0};
            for (int j = 0; j < 32 && k0 + j < c->k; j++) {
                int   k = k0 + (pair ? j ^ 1 : j); /* the odd one of a pair first */
                float a = limb ? rounded(x[k] - rounded(x[k])) : rounded(x[k]);
                if (pair)
                    sum = fmaf(a, w[k], sum);
                else
                    eo[k % 2] = fmaf(a, w[k], eo[k % 2]);
            }
            if (!pair) sum = sum + (eo[0] + eo[1]);
        }
    if (c->bias) sum = sum + c->bias[n];
    return c->add ? c->init[(int64_t)i * c->n + n] + sum : sum;
}

/* Errors in units of the root of the sum of squared products: of ref against double; of cpu against
 * ref (bf16 rows) or double (two limbs). */
static void judge_gemm(const gemm_case *c, const float *cpu, const float *f32, const char *what) {
    double worst_cpu = 0, worst_ref = 0;
    bool   same = true, untouched = true;
    for (int i = 0; i < c->m; i++) {
        const float *a = cpu + (int64_t)i * c->ld, *b = f32 + (int64_t)i * c->ld;
        untouched = untouched && all_bytes(a + c->n, (c->ld - c->n) * 4, 0xff) &&
                    all_bytes(b + c->n, (c->ld - c->n) * 4, 0xff);
        for (int n = 0; n < c->n; n++) {
            double sum = 0, squares = 1e-30;
            for (int k = 0; k < c->k; k++) {
                double t =
                    (double)c->x[(int64_t)i * c->k + k] * (double)c->w[(int64_t)n * c->k + k];
                sum += t;
                squares += t * t;
            }
            if (c->bias) sum += (double)c->bias[n];
            if (c->add) sum += (double)c->init[(int64_t)i * c->n + n];
            double want = c->kind == RK_ROWS_EXACT ? sum : (double)b[n], unit = sqrt(squares);
            worst_cpu = worse(worst_cpu, fabs((double)a[n] - want) / unit);
            worst_ref = worse(worst_ref, fabs((double)b[n] - sum) / unit);
            same = same && a[n] == stated_order(c, i, n);
        }
    }
    CHECK(same, "%s: not the %s order", what, order);
    CHECK(untouched, "%s: wrote beyond column %d", what, c->n);
    CHECK(worst_cpu < (c->kind == RK_ROWS_EXACT ? 2e-5 : 1e-2), "%s: cpu is off by %g", what,
          worst_cpu);
    CHECK(worst_ref < 2e-5, "%s: ref is off by %g", what, worst_ref);
}

static void run_gemm(int m, int k, int n, rk_rows_kind kind, bool bias, bool add) {
    gemm_case c = {m,
                   k,
                   n,
                   n + 5,
                   kind,
                   add,
                   normals((int64_t)m * k, 1, 1),
                   normals((int64_t)n * k, 2, 0.1f),
                   bias ? normals(n, 3, 1) : NULL,
                   normals((int64_t)m * n, 4, 1)};
    char      what[96];
    snprintf(what, sizeof what, "gemm %dx%dx%d, %s%s%s", m, k, n,
             kind == RK_ROWS_EXACT ? "exact" : "plain", bias ? ", bias" : "", add ? ", add" : "");
    for (int64_t i = 0; i < (int64_t)n * k; i++) c.w[i] = rounded(c.w[i]);
    int64_t bytes = (int64_t)m * c.ld * 4;
    float *cpu = same_everywhere(op_gemm, &c, bytes, what), *f32 = on_ref(op_gemm, &c, bytes, what);
    judge_gemm(&c, cpu, f32, what);
    release(cpu), release(f32);
    rk_mem_free(c.x), rk_mem_free(c.w), rk_mem_free(c.bias), rk_mem_free(c.init);
}

static void test_gemm(void) {
    static const int M[] = {1, 2, 3, 13, 16, 17, 33, 100}, K[] = {32, 64, 576, 40};
    static const int N[] = {32, 96, 160, 70};
    unsigned         turn = 0;
    run_gemm(3, 2700, 70, RK_ROWS_PLAIN, true, true); /* k in pieces */
    run_gemm(19, 2624, 48, RK_ROWS_EXACT, false, false);
    run_gemm(300, 64, 32, RK_ROWS_PLAIN, false, true); /* rows in pieces */
    for (size_t i = 0; i < sizeof M / sizeof *M; i++)
        for (size_t j = 0; j < sizeof K / sizeof *K; j++, turn++) {
            bool bias = turn & 1, add = turn & 2;
            run_gemm(M[i], K[j], N[(i + j) % 4], RK_ROWS_PLAIN, bias, add);
            run_gemm(M[i], K[j], N[(i + j + 1) % 4], RK_ROWS_EXACT, add, bias);
        }
}

/* Denormal operands count as zero inside an op, and as themselves for the caller after it. */
static void test_gemm_denormals(void) {
    enum { K = 32, N = 32 };
    float     x[K] = {0}, w[N * K] = {0};
    gemm_case c = {.m = 1, .k = K, .n = N, .ld = N, .x = x, .w = w};
    x[0] = 0x1p100f, w[0] = 0x1p-130f;    /* denormal times large */
    x[1] = 0x1p-70f, w[K + 1] = 0x1p-70f; /* a product that is denormal */
    x[2] = 1.0f, w[2 * K + 2] = 0x1p-126f;
    float *out = same_everywhere(op_gemm, &c, N * 4, "denormals");
    CU_ASSERT_EQUAL(out[0], 0.0f);
    CU_ASSERT_EQUAL(out[1], 0.0f);
    CU_ASSERT_EQUAL(out[2], 0x1p-126f);
    release(out);
    volatile float tiny = FLT_MIN;
    CU_ASSERT(tiny / 4 != 0);
}

/* ---- rows ---- */

typedef struct row_case {
    int          m, width;
    rk_rows_kind kind;
    const float *x, *w;
} row_case;

static void op_rmsnorm(rk_backend *be, const void *arg, void *out) {
    const row_case *c = arg;
    OK(be->ops->rmsnorm(be, c->x, c->w, 1e-5f, c->m, c->width, c->kind, out));
}
/* The product with a permuted identity: gates and ups of a row of x [m][2F] reach the epilogue as
 * they are, in bf16 (two limbs where exact). */
static void op_silu(rk_backend *be, const void *arg, void *out) {
    const row_case *c = arg;
    int             F = c->width, n = 2 * (int)rk_round_up(F, 16);
    void           *act = make_act(be, c->kind, c->x, c->m, 2 * F);
    float          *one = zeroed((int64_t)n * 2 * F * 4);
    rk_mat          w = {.n = n, .k = 2 * F, .dtype = be->weight_dtype,
                         .dev = zeroed(rk_mat_bytes(be, n, 2 * F))};
    for (int i = 0; i < F; i++) {
        one[(int64_t)(i / 16 * 32 + i % 16) * 2 * F + i] = 1;
        one[(int64_t)(i / 16 * 32 + 16 + i % 16) * 2 * F + F + i] = 1;
    }
    rk_mat_pack(w.dtype, w.dev, n, 2 * F, 0, n, one);
    OK(be->ops->gemm_silu_mul(be, act, c->kind, c->m, &w, out));
    rk_mem_free(act), rk_mem_free(one), rk_mem_free(w.dev);
}

static double want_rmsnorm(const row_case *c, int i, int j) {
    const float *x = c->x + (int64_t)i * c->width;
    double       s = 0;
    for (int k = 0; k < c->width; k++) s += (double)x[k] * (double)x[k];
    return (double)x[j] / sqrt(s / c->width + 1e-5) * (double)c->w[j];
}
static double want_silu(const row_case *c, int i, int j) {
    const float *x = c->x + (int64_t)i * 2 * c->width;
    double       g = (double)x[j], u = (double)x[c->width + j];
    return g / (1 + exp(-g)) * u;
}

/* Errors in units of each value: one limb is within 2^-8, two within 2^-16, f32 adds some. */
static void judge_rows(const row_case *c, op_fn *op, double (*want)(const row_case *, int, int),
                       const char *name) {
    int     limbs = c->kind == RK_ROWS_EXACT ? 2 : 1;
    int64_t count = rk_act_count(c->m, c->width, limbs);
    char    what[64];
    snprintf(what, sizeof what, "%s %dx%d, %d limbs", name, c->m, c->width, limbs);
    uint16_t *cpu = same_everywhere(op, c, count * 2, what);
    float    *f32 = on_ref(op, c, rk_act_count(c->m, c->width, 1) * 4, what);
    double    worst_cpu = 0, worst_ref = 0;
    int64_t   unwritten = 0;
    for (int i = 0; i < c->m; i++)
        for (int j = 0; j < c->width; j++) {
            double y = want(c, i, j), r = (double)f32[rk_act_at(i, j, c->width, 1, 0)];
            double base = limbs == 2 ? y : r, unit = fabs(y) + 1e-30;
            double e = fabs(act_value(cpu, limbs, i, j, c->width) - base) / unit;
            worst_cpu = worse(worst_cpu, e);
            worst_ref = worse(worst_ref, fabs(r - y) / unit);
        }
    for (int64_t i = 0; i < count; i++) unwritten += cpu[i] == 0xffff;
    CHECK(worst_cpu < (limbs == 2 ? 1.7e-5 : 3.92e-3), "%s: cpu is off by %g", what, worst_cpu);
    CHECK(worst_ref < 3e-6, "%s: ref is off by %g", what, worst_ref);
    CHECK(unwritten == count - (int64_t)c->m * c->width * limbs, "%s: rows beyond m written", what);
    release(cpu), release(f32);
}

static const int row_counts[] = {1, 2, 3, 13, 16, 17, 33, 100}, widths[] = {32, 64, 576};
enum { N_ROW_COUNTS = 8, N_WIDTHS = 3 };

static void test_rmsnorm(void) {
    float *x = normals(100 * 576, 5, 3), *w = normals(576, 6, 1), *none = zeroed(4 * 576);
    for (int i = 0; i < N_ROW_COUNTS; i++)
        for (int j = 0; j < N_WIDTHS; j++)
            for (int kind = 0; kind < 2; kind++) {
                row_case c = {row_counts[i], widths[j], (rk_rows_kind)kind, x, w};
                judge_rows(&c, op_rmsnorm, want_rmsnorm, "rmsnorm");
            }
    row_case c = {1, 576, RK_ROWS_EXACT, none, w}; /* eps keeps a zero row finite */
    judge_rows(&c, op_rmsnorm, want_rmsnorm, "rmsnorm of zeros");
    rk_mem_free(x), rk_mem_free(w), rk_mem_free(none);
}

static void test_silu(void) {
    float             *gu = normals(100 * 2 * 576, 7, 3);
    static const float edge[] = {0, -80, 80, -1e-6f, 20, -20, 3e4f, 88, -60};
    for (int r = 0; r < 3; r++)
        for (size_t i = 0; i < sizeof edge / sizeof *edge; i++) gu[r * 64 + (int)i] = edge[i];
    for (int i = 0; i < 100 * 2 * 576; i++) gu[i] = rounded(gu[i]);
    for (int i = 0; i < N_ROW_COUNTS; i++)
        for (int j = 0; j < N_WIDTHS; j++)
            for (int kind = 0; kind < 2; kind++) {
                row_case c = {row_counts[i], widths[j], (rk_rows_kind)kind, gu, NULL};
                judge_rows(&c, op_silu, want_silu, "silu");
            }
    rk_mem_free(gu);
    /* far below, where the sigmoid underflows, nothing but a vanishing value may come out */
    float deep[64];
    for (int i = 0; i < 32; i++) deep[i] = i % 2 ? -3e38f : -200.0f, deep[32 + i] = 1.0f;
    row_case  c = {1, 32, RK_ROWS_PLAIN, deep, NULL};
    uint16_t *out = same_everywhere(op_silu, &c, rk_act_count(1, 32, 1) * 2, "silu, deep");
    bool      ok = true;
    for (int i = 0; i < 32; i++)
        ok = ok && fabs(act_value(out, 1, 0, i, 32)) <= (i % 2 ? 2.0 : 1e-30);
    CU_ASSERT(ok);
    release(out);
}

typedef struct take_case {
    const float   *src;
    const int32_t *index;
    int            n, width, rows;
} take_case;

static void op_embed(rk_backend *be, const void *arg, void *out) {
    const take_case *c = arg;
    rk_mat t = {.n = c->rows, .k = c->width, .dtype = be->weight_dtype,
                .dev = zeroed(rk_mat_bytes(be, c->rows, c->width))};
    rk_mat_pack(t.dtype, t.dev, c->rows, c->width, 0, c->rows, c->src);
    OK(be->ops->embed(be, &t, c->index, c->n, out));
    rk_mem_free(t.dev);
}
static void op_take(rk_backend *be, const void *arg, void *out) {
    const take_case *c = arg;
    OK(be->ops->take_rows(be, c->src, c->index, c->n, c->width, out));
}

static void test_embed_and_take_rows(void) {
    enum { ROWS = 70, W = 96, N = 5 };
    static const int32_t index[N] = {69, 0, 33, 33, 17};
    float               *src = normals(ROWS * W, 8, 1);
    take_case            c = {src, index, N, W, ROWS};
    float               *e = same_everywhere(op_embed, &c, N * W * 4, "embed");
    float               *er = on_ref(op_embed, &c, N * W * 4, "embed");
    float               *t = same_everywhere(op_take, &c, N * W * 4, "take_rows");
    float               *tr = on_ref(op_take, &c, N * W * 4, "take_rows");
    bool                 ok = true;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < W; j++) {
            float x = src[index[i] * W + j];
            int   at = i * W + j;
            ok = ok && e[at] == rounded(x) && er[at] == x && t[at] == x && tr[at] == x;
        }
    CU_ASSERT(ok);
    release(e), release(er), release(t), release(tr);
    rk_mem_free(src);
}

/* ---- rows beside their reference ---- */

typedef struct score_case {
    const float   *ref, *rows;
    int            n_ref, n, V;
    const int32_t *next;
} score_case;

static void op_score(rk_backend *be, const void *arg, void *out) {
    const score_case *c = arg;
    OK(be->ops->score_rows(be, c->ref, c->n_ref, c->rows, c->n, c->V, c->next, out));
    OK(be->ops->sync(be));
}

static long double kl_by_hand(const float *a, const float *b, int V) {
    long double sa = 0, sb = 0, kl = 0;
    for (int i = 0; i < V; i++) sa += expl((long double)a[i]), sb += expl((long double)b[i]);
    for (int i = 0; i < V; i++) {
        long double la = (long double)a[i] - logl(sa), lb = (long double)b[i] - logl(sb);
        kl += expl(la) * (la - lb);
    }
    return kl;
}

static long double nll_by_hand(const float *row, int V, int token) {
    long double sum = 0;
    for (int i = 0; i < V; i++) sum += expl((long double)row[i]);
    return logl(sum) - (long double)row[token];
}

static void test_score_rows(void) {
    enum { V = 1003, N_REF = 3, N = 7 };
    static const int32_t next[N_REF] = {1002, -1, 17};
    float *a = normals(N_REF * V, 9, 4), *b = normals(N * V, 10, 4);
    for (int i = 0; i < V; i++) {
        b[3 * V + i] = a[i];                                    /* row 3 equals reference row 0 */
        b[4 * V + i] = a[V + i] * 1.0001f;                      /* nearly reference row 1 */
        b[5 * V + i] = a[2 * V + i] + (i % 9 == 0 ? 60.0f : 0); /* far from reference row 2 */
    }
    a[500] = a[900] = b[3 * V + 500] = b[3 * V + 900] = b[6 * V + 500] = 99; /* a tie: the lower id */
    b[900] = 99;                                                             /* row 0: the other one */
    score_case    c = {a, b, N_REF, N, V, next};
    rk_row_score *out = (rk_row_score *)(void *)same_everywhere(op_score, &c, N * sizeof *out, "score");
    rk_row_score *r = (rk_row_score *)(void *)on_ref(op_score, &c, N * sizeof *r, "score");
    for (int i = 0; i < N; i++) {
        long double want = kl_by_hand(a + i % N_REF * V, b + i * V, V);
        CHECK(fabsl((long double)out[i].kl - want) <= 1e-12L + 1e-9L * want,
              "kl row %d is %.12g, not %.12Lg", i, out[i].kl, want);
        CHECK(i == 3 ? out[i].kl == 0 : out[i].kl > 0, "kl row %d is %g", i, out[i].kl);
        int32_t     token = next[i % N_REF];
        long double nll = token < 0 ? 0 : nll_by_hand(b + i * V, V, token);
        CHECK(fabsl((long double)out[i].nll - nll) <= 1e-10L + 1e-9L * nll, "nll row %d is %.12g", i,
              out[i].nll);
        CHECK(out[i].same == (i == 3 || i == 4 || i == 6), "row %d: same likeliest token %g", i,
              out[i].same);
    }
    CHECK(memcmp(out, r, N * sizeof *out) == 0, "scores differ on ref");
    release(out), release(r);
    rk_mem_free(a), rk_mem_free(b);
}

/* ---- exp2 ---- */

static const rk_cpu_isa *table_of(int isa) {
    static const rk_cpu_isa *const tile[] = {&rk_cpu_tile_scalar, &rk_cpu_tile_avx2,
                                             &rk_cpu_tile_avx512};
    static const rk_cpu_isa *const pair[] = {&rk_cpu_pair_scalar, &rk_cpu_pair_avx2,
                                             &rk_cpu_pair_avx512};
    if (strcmp(isa_names[isa], "avx512bf16") == 0) return &rk_cpu_pair_bf16;
    return (strcmp(order, "pair") == 0 ? pair : tile)[isa < 3 ? isa : 2]; /* AMX has AVX-512 lanes */
}

static void test_exp2(void) {
    enum { N = 253 * 512 + 3 };
    float *x = zeroed(N * 4), *y = zeroed(N * 4), *first = zeroed(N * 4);
    for (int i = 0; i < N; i++) x[i] = -126.0f + (float)i / 512.0f; /* ascending */
    for (int i = 0; i < N; i += 2) x[i] += 0.0007f;
    for (int i = 0; i < N_ISAS; i++) {
        if (!rk_backend_has_isa(isa_names[i], order)) continue;
        double worst = 0;
        bool   rises = true;
        table_of(i)->exp2(x, N, y);
        for (int k = 0; k < N && x[k] <= 127.0f; k++) {
            double want = exp2((double)x[k]);
            worst = worse(worst, fabs((double)y[k] - want) / want);
            rises = rises && (k == 0 || (double)y[k] >= (double)y[k - 1] * (1 - 3e-7));
        }
        CHECK(worst < 3e-7, "exp2 of %s is off by %g", isa_names[i], worst);
        CHECK(rises, "exp2 of %s falls", isa_names[i]);
        if (i == 0) memcpy(first, y, N * 4);
        CHECK(memcmp(first, y, N * 4) == 0, "exp2 of %s is not scalar's", isa_names[i]);
        float in[] = {0.0f, -0.0f, -INFINITY, -127.0f, -126.0f, -1e30f,
                      1.0f, 10.0f, -3.0f,     200.0f,  INFINITY};
        float want[] = {1, 1, 0, 0, 0x1p-126f, 0, 2, 1024, 0.125f, 0x1p127f, 0x1p127f}, got[11];
        table_of(i)->exp2(in, 11, got);
        for (int k = 0; k < 11; k++)
            CHECK(got[k] == want[k], "exp2(%g) of %s is %g", (double)in[k], isa_names[i],
                  (double)got[k]);
    }
    rk_mem_free(x), rk_mem_free(y), rk_mem_free(first);
}

/* ---- backends and pool ---- */

static void test_open_errors(void) {
    rk_backend *be = ref;
    CU_ASSERT_EQUAL(rk_backend_open("gpu7", 1, NULL, NULL, &be), RK_E_USAGE);
    CU_ASSERT_PTR_NULL(be);
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, "gpu7"));
    be = ref;
    CU_ASSERT_EQUAL(rk_backend_open("cpu", 1, "sse9", order, &be), RK_E_USAGE);
    CU_ASSERT_PTR_NULL(be);
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, "sse9"));
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, "scalar"));
    CU_ASSERT(!rk_backend_has_isa("sse9", order) && rk_backend_has_isa("scalar", order));
    be = ref;
    CU_ASSERT_EQUAL(rk_backend_open("cpu", 1, NULL, "sorted", &be), RK_E_USAGE);
    CU_ASSERT_PTR_NULL(be);
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, "sorted"));
    CU_ASSERT_STRING_EQUAL(rk_backend_best_numerics(RK_NATIVE_TILE | RK_NATIVE_PAIR), "tile");
    CU_ASSERT_STRING_EQUAL(rk_backend_best_numerics(RK_NATIVE_PAIR), "pair");
    CU_ASSERT_STRING_EQUAL(rk_backend_best_numerics(0), "pair");
    rk_backend_close(NULL);
}

static void test_handle(void) {
    rk_backend *be;
    int64_t     blocks = rk_mem_blocks();
    CU_ASSERT_EQUAL_FATAL(rk_backend_open("cpu", 0, NULL, order, &be), RK_OK);
    CU_ASSERT_EQUAL(be->n_threads, rk_pool_cpus());
    CU_ASSERT(be->weight_dtype == RK_BF16 && be->exact_dtype == RK_BF16X2);
    CU_ASSERT_STRING_EQUAL(be->ops->name, "cpu");
    CU_ASSERT_STRING_EQUAL(be->numerics, order);
    const char *best = "scalar";
    for (int i = 1; i < N_ISAS; i++)
        if (rk_backend_has_isa(isa_names[i], order)) best = isa_names[i];
    CU_ASSERT_STRING_EQUAL(be->path, best);
    CU_ASSERT(rk_limbs(be, RK_ROWS_EXACT) == 2 && rk_limbs(be, RK_ROWS_PLAIN) == 1);
    CU_ASSERT(ref->weight_dtype == RK_F32 && ref->exact_dtype == RK_F32);
    CU_ASSERT_STRING_EQUAL(ref->numerics, "f32");
    CU_ASSERT_EQUAL(rk_limbs(ref, RK_ROWS_EXACT), 1);
    void *dev;
    char  text[] = "seven and more", back[sizeof text];
    CU_ASSERT_EQUAL_FATAL(be->ops->alloc(be, 100, "test", &dev), RK_OK);
    CU_ASSERT((uintptr_t)dev % 64 == 0 && all_bytes(dev, 100, 0));
    OK(be->ops->upload(be, dev, text, sizeof text));
    OK(be->ops->download(be, back, dev, sizeof text));
    CU_ASSERT_STRING_EQUAL(back, text);
    OK(be->ops->zero(be, dev, 5));
    OK(be->ops->sync(be));
    OK(be->ops->download(be, back, dev, sizeof text));
    CU_ASSERT(all_bytes(back, 5, 0));
    CU_ASSERT_STRING_EQUAL(back + 5, text + 5);
    be->ops->release(be, dev);
    rk_backend_close(be);
    CU_ASSERT_EQUAL(rk_mem_blocks(), blocks);
}

typedef struct tally {
    _Atomic int runs[8], in_use[8]; /* pieces a thread did; pieces it is at */
    int         total, seen[64];    /* plain: the pool orders it before the return */
    _Atomic int n_wrong;
    bool        slow;
} tally;

static void count_run(void *arg, int piece, int n_pieces, int thread) {
    tally  *t = arg;
    int64_t begin, end;
    if (thread < 0 || thread >= 8 || piece < 0 || piece >= n_pieces) {
        t->n_wrong++;
        return;
    }
    if (atomic_fetch_add(&t->in_use[thread], 1) != 0) t->n_wrong++;
    atomic_fetch_add(&t->runs[thread], 1);
    if (t->slow) usleep(thread == 0 ? 50 : 5000);
    t->seen[piece]++;
    rk_pool_share(t->total, piece, n_pieces, &begin, &end);
    if (begin > end || end > t->total) t->n_wrong++;
    atomic_fetch_sub(&t->in_use[thread], 1);
}

static void test_pool(void) {
    int64_t blocks = rk_mem_blocks();
    for (int n = 1; n <= 4; n++) {
        enum { JOBS = 3000 };
        rk_pool *p;
        CU_ASSERT_EQUAL_FATAL(rk_pool_open(n, &p), RK_OK);
        CU_ASSERT_EQUAL(rk_pool_size(p), n);
        tally t = {0};
        for (int j = 0; j < JOBS; j++) {
            int pieces = j * 7 % 65, sum = 0;
            t.total = j;
            t.slow = j % 500 == 7;
            memset(t.seen, 0, sizeof t.seen);
            rk_pool_run(p, pieces, count_run, &t);
            for (int i = 0; i < 64; i++) {
                t.n_wrong += t.seen[i] != (i < pieces);
                sum += t.seen[i];
            }
            t.n_wrong += sum != pieces;
            if (j % 300 == 299) usleep(20000); /* long enough for workers to fall asleep */
        }
        for (int i = n; i < 8; i++) CHECK(t.runs[i] == 0, "%d threads: thread %d ran", n, i);
        CHECK(t.n_wrong == 0, "%d threads: %d pieces lost, doubled or torn", n, (int)t.n_wrong);
        rk_pool_close(p);
    }
    for (int i = 0; i < 40; i++) { /* closed at once, or after a sleep */
        rk_pool *p;
        CU_ASSERT_EQUAL_FATAL(rk_pool_open(1 + i % 4, &p), RK_OK);
        if (i % 10 == 0) usleep(20000);
        rk_pool_close(p);
    }
    rk_pool_close(NULL);
    CU_ASSERT_EQUAL(rk_mem_blocks(), blocks);
}

/* Every worker takes part when there is enough to do. */
static void test_pool_shares(void) {
    rk_pool *p;
    CU_ASSERT_EQUAL_FATAL(rk_pool_open(2, &p), RK_OK);
    tally t = {.total = 1, .slow = true}; /* the worker sleeps in its pieces: the caller goes on */
    for (int tries = 0; tries < 200 && (t.runs[0] == 0 || t.runs[1] == 0); tries++)
        rk_pool_run(p, 64, count_run, &t);
    CU_ASSERT(t.runs[0] > 0 && t.runs[1] > 0);
    CU_ASSERT(t.runs[0] > t.runs[1]);
    CU_ASSERT_EQUAL(t.n_wrong, 0);
    rk_pool_close(p);
}

/* Open, one product and one attention, close; what every step needs comes before the first. */
typedef struct small_run {
    rk_mat        w;
    uint16_t     *act;
    float        *out, *qkv;
    rk_attn_shape sh;
    rk_seq_rows   set;
} small_run;

static rk_status run_ops(rk_backend *be, const small_run *r) {
    float  mass[100];
    rk_row_score score;
    RK_TRY(be->ops->gemm(be, r->act, RK_ROWS_PLAIN, 1, &r->w, NULL, false, r->out, 32));
    RK_TRY(be->ops->attend(be, &r->sh, r->qkv, 1, &r->set, 1, RK_ROWS_PLAIN, r->act));
    RK_TRY(be->ops->window_mass(be, &r->sh, r->qkv, 1, r->set.spans, 1, 3, mass));
    RK_TRY(be->ops->score_rows(be, r->qkv, 1, r->qkv, 1, 96, NULL, &score));
    return be->ops->sync(be);
}

/* Every allocation fails once: RK_E_MEM, nothing held, and the op works when asked again. */
static void fail_each_allocation(const char *name, const small_run *r) {
    int64_t blocks = rk_mem_blocks();
    int     open_failures = 0, op_failures = 0;
    for (int nth = 1; nth < 100; nth++) {
        rk_backend *be = NULL;
        rk_mem_fail_at(nth);
        rk_status st = rk_backend_open(name, 3, NULL, order, &be);
        if (st != RK_OK) {
            CHECK(st == RK_E_MEM && be == NULL, "%s, allocation %d: open gave %d", name, nth,
                  (int)st);
            open_failures++;
        } else {
            st = run_ops(be, r);
            rk_mem_fail_at(0);
            if (st != RK_OK) {
                CHECK(st == RK_E_MEM, "%s, allocation %d: ops gave %d", name, nth, (int)st);
                CHECK(run_ops(be, r) == RK_OK, "%s, allocation %d: broken afterwards", name, nth);
                op_failures++;
            }
            rk_backend_close(be);
        }
        rk_mem_fail_at(0);
        CHECK(rk_mem_blocks() == blocks, "%s, allocation %d: blocks are left", name, nth);
        if (st == RK_OK) break;
    }
    CHECK(open_failures >= 4 && op_failures >= 2, "%s: only %d and %d failures", name,
          open_failures, op_failures);
}

static void test_failed_allocations(void) {
    void     *page = zeroed(64 * 32 * 4);
    rk_span   span = {page, page, RK_BF16, RK_BF16, 0, 3};
    small_run r = {.w = {.n = 32, .k = 32, .dtype = RK_BF16, .dev = zeroed(32 * 32 * 4)},
                   .act = zeroed(16 * 32 * 4),
                   .out = zeroed(32 * 4),
                   .qkv = normals(96, 11, 1),
                   .sh = {1, 1, 32, 0.2f},
                   .set = {0, 1, 1, &span}};
    fail_each_allocation("cpu", &r);
    r.w.dtype = span.k_dtype = span.v_dtype = RK_F32;
    fail_each_allocation("ref", &r);
    rk_mem_free(page), rk_mem_free(r.w.dev), rk_mem_free(r.act), rk_mem_free(r.out),
        rk_mem_free(r.qkv);
}

static void add_tests(CU_pSuite s) {
    CU_ADD_TEST(s, test_layout_bijections);
    CU_ADD_TEST(s, test_pack);
    CU_ADD_TEST(s, test_gemm);
    CU_ADD_TEST(s, test_gemm_denormals);
    CU_ADD_TEST(s, test_rmsnorm);
    CU_ADD_TEST(s, test_silu);
    CU_ADD_TEST(s, test_embed_and_take_rows);
    CU_ADD_TEST(s, test_score_rows);
    CU_ADD_TEST(s, test_exp2);
    CU_ADD_TEST(s, test_open_errors);
    CU_ADD_TEST(s, test_handle);
    CU_ADD_TEST(s, test_pool);
    CU_ADD_TEST(s, test_pool_shares);
    CU_ADD_TEST(s, test_failed_allocations);
}

int rk_suite_kernels(void) {
    CU_pSuite tile = CU_add_suite("kernels tile", open_tile, close_backends);
    CU_pSuite pair = CU_add_suite("kernels pair", open_pair, close_backends);
    if (!tile || !pair) return 1;
    add_tests(tile);
    add_tests(pair);
    return 0;
}
