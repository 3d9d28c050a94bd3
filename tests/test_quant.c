/* test_quant.c - quantised weights: packed rows against core's dequantiser, every instruction set
 * against the scalar kernels bit for bit, and these against sums in double. Bytes are
 * pseudo-random, so that every code, scale and minimum occurs. */
#include <CUnit/CUnit.h>
#include <CUnit/TestDB.h>
#include <cpuid.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/mem.h"
#include "core/gguf.h"
#include "kernels/quant.h"
#include "tests/harness.h"
#include "tests/suites.h"

enum { BAND = 256, POISON = 0xff }; /* bytes of 0xff are NaN as f32 and as bf16 */

static const struct type {
    rk_quant    q;
    int         ggml, f16_at[2]; /* of a stored block */
    const char *name;
} types[] = {
    {RK_QUANT_Q8_0, RK_GGML_Q8_0, {0, 0}, "Q8_0"},
    {RK_QUANT_Q4_0, RK_GGML_Q4_0, {0, 0}, "Q4_0"},
    {RK_QUANT_Q4_1, RK_GGML_Q4_1, {0, 2}, "Q4_1"},
    {RK_QUANT_Q5_0, RK_GGML_Q5_0, {0, 0}, "Q5_0"},
    {RK_QUANT_Q5_1, RK_GGML_Q5_1, {0, 2}, "Q5_1"},
    {RK_QUANT_Q4_K, RK_GGML_Q4_K, {0, 2}, "Q4_K"},
    {RK_QUANT_Q5_K, RK_GGML_Q5_K, {0, 2}, "Q5_K"},
    {RK_QUANT_Q6_K, RK_GGML_Q6_K, {208, 208}, "Q6_K"},
};
enum { N_TYPES = sizeof types / sizeof types[0] };

static const rk_quant_isa *isas[3]; /* [0] scalar */
static int                 n_isas;
static unsigned            mxcsr;
static uint32_t            state;

static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* As the backend sets it around kernels: denormals are zero. */
static int set_up(void) {
    isas[0] = &rk_quant_scalar;
    n_isas = 1;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        isas[n_isas++] = &rk_quant_avx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni"))
        isas[n_isas++] = &rk_quant_avx512vnni;
    mxcsr = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mxcsr | 0x8040);
    return 0;
}
static int tear_down(void) {
    __builtin_ia32_ldmxcsr(mxcsr);
    return 0;
}

__attribute__((format(printf, 3, 4))) static void check(bool ok, int line, const char *fmt, ...) {
    char    text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    CU_assertImplementation(ok, (unsigned)line, text, __FILE__, "", CU_FALSE);
}
#define CHECK(ok, ...) check((ok), __LINE__, __VA_ARGS__)

static uint32_t next(void) { return (state = state * 1664525u + 1013904223u) >> 8; }
static float    uniform(void) { return (float)next() / 8388608.0f - 1.0f; }

/* Memory between bands of poison; inside it is zero (as an image must be) or poison. */
typedef struct banded {
    uint8_t *all, *p;
    int64_t  bytes;
} banded;
static banded banded_of(int64_t bytes, int fill) {
    banded b = {.bytes = bytes};
    CU_ASSERT_EQUAL_FATAL(rk_mem_alloc_to(bytes + 2 * BAND, 1, "test", &b.all), RK_OK);
    b.p = b.all + BAND;
    memset(b.all, POISON, (size_t)bytes + 2 * BAND);
    memset(b.p, fill, (size_t)bytes);
    return b;
}
static void drop(banded *b, const char *what, const char *where) {
    int bad = 0;
    for (int i = 0; i < BAND; i++) bad += b->all[i] != POISON || b->p[b->bytes + i] != POISON;
    CHECK(bad == 0, "%s (%s) wrote beside its output", what, where);
    rk_mem_free(b->all);
}

/* Rows of stored blocks, at an odd address, and their packed image. */
typedef struct matrix {
    const struct type *t;
    int64_t            n, k, row_bytes;
    uint8_t           *stored;
    banded             image;
} matrix;

static matrix matrix_of(const struct type *t, int64_t n, int64_t k) {
    int64_t by = rk_quant_block_bytes(t->q);
    matrix  w = {.t = t, .n = n, .k = k, .row_bytes = k / rk_quant_block(t->q) * by};
    CU_ASSERT_EQUAL_FATAL(rk_mem_alloc_to(n * w.row_bytes + 1, 1, "test", &w.stored), RK_OK);
    for (int64_t i = 0; i < n * w.row_bytes; i++) {
        uint8_t b = (uint8_t)(next() >> 8);
        if (i % by == t->f16_at[0] + 1 || i % by == t->f16_at[1] + 1) b &= 0xbf; /* below 2 */
        w.stored[1 + i] = b;
    }
    w.image = banded_of(rk_quant_bytes(t->q, n, k), 0);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = (i * 7 + 3) % n; /* n no multiple of 7: each row once */
        rk_quant_pack_row(t->q, w.image.p, k, row, w.stored + 1 + row * w.row_bytes);
    }
    return w;
}
static void drop_matrix(matrix *w) {
    drop(&w->image, "pack_row", w->t->name);
    rk_mem_free(w->stored);
}

static void *zeroed(int64_t bytes) {
    void *p = NULL;
    CU_ASSERT_EQUAL_FATAL(rk_mem_alloc(bytes, 1, "test", &p), RK_OK);
    return p;
}

/* m rows of activations of very different sizes: row i % 6 is 0 plain, 1 zero but for one block,
 * 2 huge, 3 on the edge of the denormals, 4 one large value among small ones, 5 signed zeros and
 * powers of two (ties when rounded). */
static uint16_t *activations(int m, int64_t k) {
    uint16_t *a = zeroed(rk_act_count(m, k, 1) * 2);
    for (int i = 0; i < m; i++)
        for (int64_t j = 0; j < k; j++) {
            float x = uniform();
            if (i % 6 == 1) x = j / 32 == k / 64 ? x : 0;
            if (i % 6 == 2) x *= 3e38f;
            if (i % 6 == 3) x *= 0x1p-122f * (float)(1 << (j / 32 % 8));
            if (i % 6 == 4) x *= j % 37 == 5 ? 100.0f : 0.3f;
            if (i % 6 == 5)
                x = next() % 3 ? ldexpf(1, (int)(next() % 8)) * (next() % 2 ? 1 : -1) : -0.0f;
            a[rk_act_at(i, j, k, 1, 0)] = rk_f32_to_bf16(x);
            if (i % 6 == 3 && next() % 5 == 0)
                a[rk_act_at(i, j, k, 1, 0)] = (uint16_t)(next() % 128);
        }
    return a;
}

/* ---- types and rows ---- */

static void test_types(void) {
    CU_ASSERT_EQUAL(N_TYPES, RK_QUANTS - 1);
    for (const struct type *t = types; t < types + N_TYPES; t++) {
        CU_ASSERT_STRING_EQUAL(rk_quant_name(t->q), t->name);
        CU_ASSERT_EQUAL(rk_quant_of_name(t->name), t->q);
        CU_ASSERT_STRING_EQUAL(rk_ggml_type_name(t->ggml), t->name);
        int64_t block = rk_quant_block(t->q), by = rk_quant_block_bytes(t->q);
        for (int64_t blocks = 1; blocks < 9; blocks++) { /* no more than an eighth above the file */
            int64_t bytes = rk_quant_bytes(t->q, 32, blocks * block);
            CHECK(bytes % 128 == 0 && bytes >= 32 * blocks * by &&
                      bytes * 8 <= 32 * blocks * by * 9,
                  "%s: %lld bytes for %lld blocks", t->name, (long long)bytes, (long long)blocks);
            CU_ASSERT_EQUAL(rk_quant_bytes(t->q, 33, blocks * block), 2 * bytes);
        }
    }
    CU_ASSERT_EQUAL(rk_quant_of_name("BF16"), RK_QUANT_NONE);
    CU_ASSERT_EQUAL(rk_quant_of_name("Q4"), RK_QUANT_NONE);
    CU_ASSERT_EQUAL(rk_quant_of_name(""), RK_QUANT_NONE);
    CU_ASSERT_PTR_NOT_NULL(rk_quant_name(RK_QUANT_NONE));
}

static const int64_t rows_of[] = {1, 16, 33, 48, 50}; /* outputs */

/* What comes out of an image is what core reads from the file, -0 and NaN included. */
static void test_rows(void) {
    for (const struct type *t = types; t < types + N_TYPES; t++)
        for (size_t i = 0; i < sizeof rows_of / sizeof *rows_of; i++)
            for (int64_t blocks = 1; blocks <= 5; blocks++) {
                int64_t k = blocks * rk_quant_block(t->q);
                matrix  w = matrix_of(t, rows_of[i], k);
                if (blocks == 2) { /* an infinite factor and a NaN */
                    memcpy(w.stored + 1 + t->f16_at[0], (uint16_t[]){0x7c00}, 2);
                    rk_quant_pack_row(t->q, w.image.p, k, 0, w.stored + 1);
                }
                float *want = zeroed(k * 4);
                int    bad = 0;
                for (int64_t r = 0; r < w.n; r++) {
                    banded got = banded_of(k * 4, POISON);
                    rk_ggml_dequant(t->ggml, w.stored + 1 + r * w.row_bytes, k, want);
                    rk_quant_unpack_row(t->q, w.image.p, k, r, (float *)(void *)got.p);
                    bad += memcmp(want, got.p, (size_t)k * 4) != 0;
                    drop(&got, "unpack_row", t->name);
                }
                CHECK(bad == 0, "%s: %d of %lld rows of %lld differ", t->name, bad, (long long)w.n,
                      (long long)k);
                rk_mem_free(want);
                drop_matrix(&w);
            }
}

/* A row puts its own bytes only: what others wrote stays. */
static void test_rows_apart(void) {
    for (const struct type *t = types; t < types + N_TYPES; t++) {
        int64_t  k = 3 * rk_quant_block(t->q), bytes = rk_quant_bytes(t->q, 16, k);
        matrix   w = matrix_of(t, 16, k);
        uint8_t *owner = zeroed(bytes);
        int      bad = 0;
        for (int r = 0; r < 16; r++) {
            banded one = banded_of(bytes, 0);
            rk_quant_pack_row(t->q, one.p, k, r, w.stored + 1 + r * w.row_bytes);
            for (int64_t i = 0; i < bytes; i++) {
                bad += one.p[i] != 0 && owner[i] != 0;
                if (one.p[i]) owner[i] = 1;
            }
            drop(&one, "pack_row", t->name);
        }
        CHECK(bad == 0, "%s: %d bytes are shared", t->name, bad);
        rk_mem_free(owner);
        drop_matrix(&w);
    }
}

/* ---- activations ---- */

static const int ms[] = {1, 2, 3, 5, 8, 16, 17};
enum { N_MS = sizeof ms / sizeof *ms };

static void test_quantise(void) {
    for (int mi = 0; mi < N_MS; mi++)
        for (int64_t k = 32; k <= 5 * 32; k += 64) {
            int64_t   bytes = rk_quant_act_bytes(ms[mi], k);
            uint16_t *a = activations(ms[mi], k);
            banded    q[3];
            if (k > 32) { /* infinite and NaN: the same in every instruction set, too */
                a[rk_act_at(0, 3, k, 1, 0)] = 0xff80;
                a[rk_act_at(ms[mi] - 1, k - 1, k, 1, 0)] = 0x7fc3;
            }
            for (int i = 0; i < n_isas; i++) {
                q[i] = banded_of(bytes, POISON);
                isas[i]->quantise(a, ms[mi], k, q[i].p);
                CHECK(memcmp(q[0].p, q[i].p, (size_t)bytes) == 0, "%s: m %d k %lld differs",
                      isas[i]->name, ms[mi], (long long)k);
            }
            for (int i = 0; i < n_isas; i++) drop(&q[i], "quantise", isas[i]->name);
            rk_mem_free(a);
        }
}

/* ---- products ---- */

/* The header's definition, one output of one row, from stored weights: the sum in double of the
 * exact terms, and a bound on what f32 may lose. */
static double dot_double(const matrix *w, const float *weight, const uint16_t *a, int row,
                         double *bound) {
    double sum = 0, size = 0;
    for (int64_t b = 0; b < w->k; b += 32) {
        float  most = 0, heaviest = 0, x[32];
        double count = 0;
        for (int i = 0; i < 32; i++) {
            x[i] = rk_bf16_to_f32(a[rk_act_at(row, b + i, w->k, 1, 0)]);
            most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
            heaviest = fabsf(weight[b + i]) > heaviest ? fabsf(weight[b + i]) : heaviest;
        }
        float da = most / 127;
        for (int i = 0; i < 32 && da > 0; i++) {
            double qa = nearbyint((double)(x[i] / da));
            sum += (double)weight[b + i] * qa * (double)da;
            count += fabs(qa);
        }
        /* d q and m may each be twice as large as their sum's largest */
        size += 2 * (double)heaviest * count * (double)da;
    }
    /* a few roundings of 2^-24 per block, each of no more than the sum of sizes, and random in
     * sign; products of scales below 2^-126 are lost */
    *bound = size * 0x1p-24 * (3 + sqrt((double)w->k / 32)) + (double)w->k / 32 * 0x1p-107;
    return sum;
}

static void test_against_double(void) {
    static const int blocks_of[] = {1, 2, 5, 48};
    for (const struct type *t = types; t < types + N_TYPES; t++)
        for (size_t bi = 0; bi < sizeof blocks_of / sizeof *blocks_of; bi++) {
            int64_t   k = blocks_of[bi] * 32 * (rk_quant_block(t->q) == 256 ? 8 : 1);
            int       m = 12, n = 20;
            matrix    w = matrix_of(t, n, k);
            uint16_t *a = activations(m, k);
            float    *weight = zeroed(k * 4), *c = zeroed((int64_t)m * 32 * 4);
            void     *q = zeroed(rk_quant_act_bytes(m, k));
            double    worst = 0, bound;
            rk_quant_scalar.quantise(a, m, k, q);
            rk_quant_scalar.dot(t->q, w.image.p, k, q, m, 0, 2, c, 32);
            for (int o = 0; o < n; o++) {
                rk_ggml_dequant(t->ggml, w.stored + 1 + o * w.row_bytes, k, weight);
                for (int i = 0; i < m; i++) {
                    double want = dot_double(&w, weight, a, i, &bound);
                    double off = fabs((double)c[i * 32 + o] - want) / bound;
                    if (i % 6 == 2 && bound > 1e31) continue; /* partial sums may be infinite */
                    worst = off > worst || !(off == off) ? off : worst;
                }
            }
            CHECK(worst <= 1, "%s: k %lld off by %.3g bounds", t->name, (long long)k, worst);
            rk_mem_free(weight);
            rk_mem_free(c);
            rk_mem_free(q);
            rk_mem_free(a);
            drop_matrix(&w);
        }
}

/* Rows [0, m) and groups [g0, g1) by every instruction set equal `want` [17][ld], and nothing else
 * is written. */
static void dot_like(const matrix *w, const uint16_t *a, int m, int g0, int g1, const float *want,
                     int64_t ld) {
    int64_t ldc = 16 * (g1 - g0) + 16;
    void   *q = zeroed(rk_quant_act_bytes(m, w->k));
    rk_quant_scalar.quantise(a, m, w->k, q);
    for (int i = 0; i < n_isas; i++) {
        banded c = banded_of(m * ldc * 4, POISON);
        float *got = (float *)(void *)c.p;
        int    bad = 0;
        isas[i]->dot(w->t->q, w->image.p, w->k, q, m, g0, g1, got, ldc);
        for (int r = 0; r < m; r++) {
            bad += memcmp(got + r * ldc, want + r * ld + 16 * g0, (size_t)(g1 - g0) * 64) != 0;
            for (int j = 16 * (g1 - g0); j < ldc; j++) bad += got[r * ldc + j] == got[r * ldc + j];
        }
        CHECK(bad == 0, "%s %s: m %d k %lld groups %d-%d: %d rows differ", isas[i]->name,
              w->t->name, m, (long long)w->k, g0, g1, bad);
        drop(&c, "dot", isas[i]->name);
    }
    rk_mem_free(q);
}

/* Every instruction set, number of rows and range of groups gives the bits of one row at a time by
 * the scalar kernels: so a row does not see the others. */
static void test_dot(void) {
    static const int     blocks_of[] = {1, 2, 3, 34, 75};
    static const uint8_t ranges[][2] = {{0, 1}, {0, 5}, {1, 2}, {1, 4}, {2, 2}};
    for (const struct type *t = types; t < types + N_TYPES; t++)
        for (size_t bi = 0; bi < sizeof blocks_of / sizeof *blocks_of; bi++) {
            int64_t k = blocks_of[bi] * rk_quant_block(t->q);
            if (k > 4096) k = 9 * 256;
            matrix    w = matrix_of(t, 75, k);
            uint16_t *a = activations(17, k), *one = zeroed(rk_act_count(1, k, 1) * 2);
            float    *want = zeroed(17 * 80 * 4);
            void     *q = zeroed(rk_quant_act_bytes(1, k));
            for (int r = 0; r < 17; r++) {
                for (int64_t j = 0; j < k; j++)
                    one[rk_act_at(0, j, k, 1, 0)] = a[rk_act_at(r, j, k, 1, 0)];
                rk_quant_scalar.quantise(one, 1, k, q);
                rk_quant_scalar.dot(t->q, w.image.p, k, q, 1, 0, 5, want + r * 80, 80);
            }
            for (int mi = 0; mi < N_MS; mi++)
                for (size_t g = 0; g < sizeof ranges / sizeof *ranges; g++)
                    dot_like(&w, a, ms[mi], ranges[g][0], ranges[g][1], want, 80);
            rk_mem_free(q);
            rk_mem_free(want);
            rk_mem_free(one);
            rk_mem_free(a);
            drop_matrix(&w);
        }
}

/* Codes and activations at their ends, where narrower sums would saturate. */
static void test_dot_extremes(void) {
    for (const struct type *t = types; t < types + N_TYPES; t++)
        for (int fill = 0; fill < 4; fill++) {
            int64_t   k = 2 * rk_quant_block(t->q), by = rk_quant_block_bytes(t->q);
            matrix    w = matrix_of(t, 16, k);
            uint16_t *a = zeroed(rk_act_count(2, k, 1) * 2);
            float     want[32];
            void     *q = zeroed(rk_quant_act_bytes(2, k));
            for (int64_t i = 0; i < w.n * w.row_bytes; i++) {
                bool f16 = i % by / 2 == t->f16_at[0] / 2 || i % by / 2 == t->f16_at[1] / 2;
                int  byte = t->q == RK_QUANT_Q8_0 && fill < 2 ? 0x80 : fill % 2 ? 0x00 : 0xff;
                if (!f16) w.stored[1 + i] = (uint8_t)byte;
            }
            for (int r = 0; r < 16; r++)
                rk_quant_pack_row(t->q, w.image.p, k, r, w.stored + 1 + r * w.row_bytes);
            for (int64_t j = 0; j < k; j++) {
                a[rk_act_at(0, j, k, 1, 0)] = rk_f32_to_bf16(fill / 2 ? 1 : -1);
                a[rk_act_at(1, j, k, 1, 0)] = rk_f32_to_bf16(j % 2 ? 1 : -1);
            }
            rk_quant_scalar.quantise(a, 2, k, q);
            rk_quant_scalar.dot(t->q, w.image.p, k, q, 2, 0, 1, want, 16);
            dot_like(&w, a, 2, 0, 1, want, 16);
            float *weight = zeroed(k * 4);
            double bound, sum = 0;
            rk_ggml_dequant(t->ggml, w.stored + 1, k, weight);
            sum = dot_double(&w, weight, a, 0, &bound);
            CHECK(fabs((double)want[0] - sum) <= bound, "%s: %g is not %g", t->name,
                  (double)want[0], sum);
            rk_mem_free(weight);
            rk_mem_free(q);
            rk_mem_free(a);
            drop_matrix(&w);
        }
}

/* An infinite or NaN activation is seen in every output of its row, and in no other row. */
static void test_not_finite(void) {
    for (const struct type *t = types; t < types + N_TYPES; t++)
        for (int i = 0; i < n_isas; i++) {
            int64_t   k = 2 * rk_quant_block(t->q);
            matrix    w = matrix_of(t, 16, k);
            uint16_t *a = activations(3, k);
            float     c[48];
            void     *q = zeroed(rk_quant_act_bytes(3, k));
            int       bad = 0;
            for (int64_t j = 0; j < k; j++) a[rk_act_at(2, j, k, 1, 0)] = 0x3f80;
            a[rk_act_at(0, 5, k, 1, 0)] = 0x7f80;
            a[rk_act_at(1, k - 1, k, 1, 0)] = 0xffc1;
            isas[i]->quantise(a, 3, k, q);
            isas[i]->dot(t->q, w.image.p, k, q, 3, 0, 1, c, 16);
            for (int j = 0; j < 32; j++) bad += isfinite(c[j]) != 0;
            for (int j = 32; j < 48; j++) bad += isfinite(c[j]) == 0;
            CHECK(bad == 0, "%s %s: %d outputs", isas[i]->name, t->name, bad);
            rk_mem_free(q);
            rk_mem_free(a);
            drop_matrix(&w);
        }
}

/* ---- weights as bf16 ---- */

/* NaNs need not agree in sign and payload. */
static bool same_bf16(uint16_t x, uint16_t y) {
    return x == y || ((x & 0x7fff) > 0x7f80 && (y & 0x7fff) > 0x7f80);
}

static void tiles_like(const matrix *w, const float *want, int64_t g, int64_t b0, int64_t b1,
                       int isa) {
    int64_t   step = 512 + 64;
    banded    t = banded_of(((b1 - b0 - 1) * step + 512) * 2, POISON);
    uint16_t *got = (uint16_t *)(void *)t.p;
    int       bad = 0;
    isas[isa]->to_bf16(w->t->q, w->image.p, w->k, (int)g, b0, b1, step, got);
    for (int64_t b = b0; b < b1; b++) {
        for (int k = 0; k < 32; k++)
            for (int o = 0; o < 16; o++)
                bad += !same_bf16(got[(b - b0) * step + k / 2 * 32 + o * 2 + k % 2],
                                  rk_f32_to_bf16(want[(g * 16 + o) * w->k + b * 32 + k]));
        for (int64_t i = 512; b < b1 - 1 && i < step; i++)
            bad += got[(b - b0) * step + i] != 0xffff;
    }
    CHECK(bad == 0, "%s %s: group %lld blocks %lld-%lld: %d differ", isas[isa]->name, w->t->name,
          (long long)g, (long long)b0, (long long)b1, bad);
    drop(&t, "to_bf16", isas[isa]->name);
}

static void test_to_bf16(void) {
    for (const struct type *t = types; t < types + N_TYPES; t++)
        for (int special = 0; special < 3; special++) {
            int64_t k = 3 * rk_quant_block(t->q), kb = k / 32;
            matrix  w = matrix_of(t, 48, k);
            if (special) { /* an infinite factor, or NaN, in row 18 */
                uint8_t *p = w.stored + 1 + 18 * w.row_bytes + rk_quant_block_bytes(t->q);
                memcpy(p + t->f16_at[special == 2], (uint16_t[]){special == 1 ? 0xfc00 : 0x7fff},
                       2);
                rk_quant_pack_row(t->q, w.image.p, k, 18, w.stored + 1 + 18 * w.row_bytes);
            }
            float *want = zeroed(48 * k * 4);
            for (int64_t r = 0; r < 48; r++)
                rk_quant_unpack_row(t->q, w.image.p, k, r, want + r * k);
            for (int i = 0; i < n_isas; i++)
                for (int64_t g = 0; g < 3; g++) {
                    tiles_like(&w, want, g, 0, kb, i);
                    tiles_like(&w, want, g, 1, 2, i);
                    tiles_like(&w, want, g, kb - 2, kb, i);
                }
            rk_mem_free(want);
            drop_matrix(&w);
        }
}

int rk_suite_quant(void) {
    CU_pSuite s = CU_add_suite("quant", set_up, tear_down);
    if (s == NULL) return 1;
    CU_ADD_TEST(s, test_types);
    CU_ADD_TEST(s, test_rows);
    CU_ADD_TEST(s, test_rows_apart);
    CU_ADD_TEST(s, test_quantise);
    CU_ADD_TEST(s, test_against_double);
    CU_ADD_TEST(s, test_dot);
    CU_ADD_TEST(s, test_dot_extremes);
    CU_ADD_TEST(s, test_not_finite);
    CU_ADD_TEST(s, test_to_bf16);
    return 0;
}
