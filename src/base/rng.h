/* rng.h - counter-based random numbers whose bits are the same on every machine.
 *
 * Philox4x32-10 (Salmon et al., SC 2011) and a Box-Muller transform in which every floating-point
 * step is one IEEE f32 operation, so that host C and device code agree to the bit. Host files that
 * include it are compiled with -ffp-contract=off. No branch depends on data: loops over the
 * functions vectorise (with -fno-math-errno, which sqrtf needs). */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDA_ARCH__)
#define RK_RNG_MUL(a, b) __fmul_rn((a), (b))
#define RK_RNG_ADD(a, b) __fadd_rn((a), (b))
#define RK_RNG_DIV(a, b) __fdiv_rn((a), (b))
#define RK_RNG_FMA(a, b, c) __fmaf_rn((a), (b), (c))
#define RK_RNG_SQRT(a) __fsqrt_rn(a)
#else
#define RK_RNG_MUL(a, b) ((a) * (b))
#define RK_RNG_ADD(a, b) ((a) + (b))
#define RK_RNG_DIV(a, b) ((a) / (b))
#define RK_RNG_FMA(a, b, c) fmaf((a), (b), (c))
#define RK_RNG_SQRT(a) sqrtf(a)
#endif
#if defined(__CUDACC__)
#define RK_RNG_FN static __host__ __device__ __forceinline__
#else
#define RK_RNG_FN static inline __attribute__((always_inline, unused))
#endif

RK_RNG_FN uint32_t rk_rng_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

RK_RNG_FN float rk_rng_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

RK_RNG_FN void rk_rng_round(uint32_t c[4], uint32_t k0, uint32_t k1) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
    c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
    c[1] = (uint32_t)p1;
    c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
    c[3] = (uint32_t)p0;
}

/* Four random words in place of the counter c, under the key (k0, k1). Written out, since a loop
 * over blocks vectorises only where this inner one is gone. */
RK_RNG_FN void rk_rng_philox(uint32_t c[4], uint32_t k0, uint32_t k1) {
    const uint32_t w0 = 0x9E3779B9u, w1 = 0xBB67AE85u;
    rk_rng_round(c, k0, k1);
    rk_rng_round(c, k0 + 1u * w0, k1 + 1u * w1);
    rk_rng_round(c, k0 + 2u * w0, k1 + 2u * w1);
    rk_rng_round(c, k0 + 3u * w0, k1 + 3u * w1);
    rk_rng_round(c, k0 + 4u * w0, k1 + 4u * w1);
    rk_rng_round(c, k0 + 5u * w0, k1 + 5u * w1);
    rk_rng_round(c, k0 + 6u * w0, k1 + 6u * w1);
    rk_rng_round(c, k0 + 7u * w0, k1 + 7u * w1);
    rk_rng_round(c, k0 + 8u * w0, k1 + 8u * w1);
    rk_rng_round(c, k0 + 9u * w0, k1 + 9u * w1);
}

/* ln(u), u a normal float in (0, 1].
 * u = m 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh(f), f = (m - 1) / (m + 1), |f| < 0.172,
 * odd series to f^9 (the next term is below 3e-9 relative). m - 1 is exact. */
RK_RNG_FN float rk_rng_log(float u) {
    /* 0x3504f3 is the mantissa of sqrt(2): adding its complement carries into the exponent of
     * what lies above. */
    uint32_t i = rk_rng_bits(u) + (0x3f800000u - 0x3f3504f3u);
    int32_t  e = (int32_t)(i >> 23) - 127;
    float    m = rk_rng_float((i & 0x7fffffu) + 0x3f3504f3u);
    float    f = RK_RNG_DIV(RK_RNG_ADD(m, -1.0f), RK_RNG_ADD(m, 1.0f));
    float    s = RK_RNG_MUL(f, f);
    float    p = RK_RNG_FMA(s, 0.111111111f, 0.142857143f);
    p = RK_RNG_FMA(s, p, 0.2f);
    p = RK_RNG_FMA(s, p, 0.333333333f);
    p = RK_RNG_MUL(s, p);
    f = RK_RNG_ADD(f, f);
    p = RK_RNG_FMA(f, p, f);
    return RK_RNG_FMA((float)e, 0.693147181f, p);
}

/* Two normals from two words.
 * Eq: r = sqrt(-2 ln u), u = ((a >> 8) + 1) / 2^24; angle 2 pi (b >> 6) / 2^26;
 *     n0 = r cos, n1 = r sin. The nearest multiple of a quarter turn and the rest, within an eighth
 *     of a turn of it, come from integer bits: the reduction is exact */
RK_RNG_FN void rk_rng_normal2(uint32_t a, uint32_t b, float *n0, float *n1) {
    float    u = RK_RNG_MUL((float)(int32_t)((a >> 8) + 1u), 5.9604644775390625e-8f); /* 2^-24 */
    float    r = RK_RNG_SQRT(RK_RNG_MUL(-2.0f, rk_rng_log(u)));
    uint32_t w = b >> 6, q = (w + 0x800000u) >> 24; /* quarter turns, 0 .. 4 */
    float    t = (float)((int32_t)w - (int32_t)(q << 24)); /* 2^24 to the quarter turn */
    t = RK_RNG_MUL(t, 9.36267571e-8f);                     /* (pi / 2) / 2^24 */
    float z = RK_RNG_MUL(t, t);
    /* Taylor on |t| <= pi / 4: the next terms are below 2e-9 */
    float s = RK_RNG_FMA(z, 2.75573192e-6f, -1.98412698e-4f);
    s = RK_RNG_FMA(z, s, 8.33333333e-3f);
    s = RK_RNG_FMA(z, s, -0.166666667f);
    s = RK_RNG_MUL(z, s);
    s = RK_RNG_FMA(t, s, t);
    float c = RK_RNG_FMA(z, -2.75573192e-7f, 2.48015873e-5f);
    c = RK_RNG_FMA(z, c, -1.38888889e-3f);
    c = RK_RNG_FMA(z, c, 4.16666667e-2f);
    c = RK_RNG_FMA(z, c, -0.5f);
    c = RK_RNG_FMA(z, c, 1.0f);
    /* quarter turns rotate (c, s): swap on odd q; cos is negative for q = 1, 2, sin for q = 2, 3 */
    uint32_t ic = rk_rng_bits(c), is = rk_rng_bits(s), odd = 0u - (q & 1u);
    uint32_t swap = (ic ^ is) & odd;
    float    cs = rk_rng_float((ic ^ swap) ^ (((q + 1u) & 2u) << 30));
    float    sn = rk_rng_float((is ^ swap) ^ ((q & 2u) << 30));
    *n0 = RK_RNG_MUL(r, cs);
    *n1 = RK_RNG_MUL(r, sn);
}

/* Four of the noise values of one cached value vector.
 * Eq: counter (b, position, layer << 16 | kv_head, sample << 16 | draw), key (low, high half of
 *     seed); g[0 .. 3] from word pairs (0, 1) and (2, 3) */
RK_RNG_FN void rk_rng_noise4(uint64_t seed, uint32_t b, uint32_t position, uint32_t c2, uint32_t c3,
                             float *g) {
    uint32_t c[4] = {b, position, c2, c3};
    rk_rng_philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
    rk_rng_normal2(c[0], c[1], &g[0], &g[1]);
    rk_rng_normal2(c[2], c[3], &g[2], &g[3]);
}

/* Standard normal noise of one cached value vector.
 * Shapes: g [head_dim] out, head_dim a multiple of 4
 * Eq:     block b of four values is rk_rng_noise4 (RKV-SENS); layer counts over the whole model,
 *         layer, kv_head, sample and draw are below 2^16 */
RK_RNG_FN void rk_rng_noise(uint64_t seed, uint32_t layer, uint32_t kv_head, uint32_t sample,
                            uint32_t draw, uint32_t position, int head_dim, float *g) {
    uint32_t c2 = (layer << 16) | kv_head, c3 = (sample << 16) | draw;
    for (int b = 0; b < head_dim / 4; b++)
        rk_rng_noise4(seed, (uint32_t)b, position, c2, c3, g + 4 * b);
}
