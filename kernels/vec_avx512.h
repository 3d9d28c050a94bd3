/* vec_avx512.h - 16 floats as one register, and the lanes of the product kernels. */
#pragma once
#include <immintrin.h>
#include <stdint.h>

#define RK_FN static inline __attribute__((always_inline, unused))
#define RK_ISA_NAME "avx512"
#define RK_KERNELS rk_kernels_avx512

typedef struct v16 {
    __m512 a;
} v16;

RK_FN v16 v_load(const float *p) { return (v16){_mm512_loadu_ps(p)}; }
RK_FN void v_store(float *p, v16 x) { _mm512_storeu_ps(p, x.a); }
RK_FN __mmask16 first_lanes(int n) { return (__mmask16)((1u << n) - 1u); }
/* n in 0 .. 16; the other lanes read 0, or are not written */
RK_FN v16 v_load_n(const float *p, int n) { return (v16){_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
RK_FN void v_store_n(float *p, v16 x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x.a); }
RK_FN v16 v_set1(float x) { return (v16){_mm512_set1_ps(x)}; }
RK_FN v16 v_zero(void) { return (v16){_mm512_setzero_ps()}; }
RK_FN v16 v_add(v16 x, v16 y) { return (v16){_mm512_add_ps(x.a, y.a)}; }
RK_FN v16 v_sub(v16 x, v16 y) { return (v16){_mm512_sub_ps(x.a, y.a)}; }
RK_FN v16 v_mul(v16 x, v16 y) { return (v16){_mm512_mul_ps(x.a, y.a)}; }
RK_FN v16 v_div(v16 x, v16 y) { return (v16){_mm512_div_ps(x.a, y.a)}; }
RK_FN v16 v_fma(v16 x, v16 y, v16 z) { return (v16){_mm512_fmadd_ps(x.a, y.a, z.a)}; }
/* The second where either is NaN. */
RK_FN v16 v_max(v16 x, v16 y) { return (v16){_mm512_max_ps(x.a, y.a)}; }
RK_FN v16 v_min(v16 x, v16 y) { return (v16){_mm512_min_ps(x.a, y.a)}; }
RK_FN v16 v_floor(v16 x) {
    return (v16){_mm512_roundscale_ps(x.a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
}
/* x 2^f for whole f, by the exponent's bits */
RK_FN v16 v_scale(v16 x, v16 f) {
    __m512i e = _mm512_slli_epi32(_mm512_cvttps_epi32(f.a), 23);
    return (v16){_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x.a), e))};
}
/* 0 where x < limit, else y (also where x is NaN) */
RK_FN v16 v_zero_below(v16 x, float limit, v16 y) {
    return (v16){_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.a, _mm512_set1_ps(limit), _CMP_NLT_UQ), y.a)};
}
/* lanes from n on become y's */
RK_FN v16 v_first(v16 x, int n, v16 y) {
    return (v16){_mm512_mask_mov_ps(y.a, first_lanes(n), x.a)};
}
/* To the nearest bf16, ties to even, as a float; NaN stays NaN. */
RK_FN v16 v_bf16(v16 x) {
    __m512i   u = _mm512_castps_si512(x.a), hi = _mm512_set1_epi32((int)0xffff0000);
    __m512i   odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i   r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x.a, x.a, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
    return (v16){_mm512_castsi512_ps(_mm512_and_si512(r, hi))};
}
/* Halves of values that are bf16 already. */
RK_FN void v_store_bf16(uint16_t *p, v16 x) {
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(x.a), 16)));
}
RK_FN v16 v_load_bf16(const uint16_t *p) {
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return (v16){_mm512_castsi512_ps(_mm512_slli_epi32(u, 16))};
}
RK_FN __m256 upper_half(v16 x) { return _mm512_extractf32x8_ps(x.a, 1); }
RK_FN float v_hmax(v16 x) {
    __m256 m8 = _mm256_max_ps(_mm512_castps512_ps256(x.a), upper_half(x));
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
/* Lane i with i + 8, then + 4, + 2, + 1. */
RK_FN float v_hsum(v16 x) {
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(x.a), upper_half(x));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* Product kernels: the widest register, how many rows fit, a weight row's even and odd elements. */
#define RK_LANES 16
#define RK_KERNEL_ROWS 12
#define RK_KERNEL_ROWS_WIDE 6
typedef __m512 vn;
RK_FN vn vn_zero(void) { return _mm512_setzero_ps(); }
RK_FN vn vn_set1(float x) { return _mm512_set1_ps(x); }
RK_FN vn vn_load(const float *p) { return _mm512_loadu_ps(p); }
RK_FN void vn_store(float *p, vn x) { _mm512_storeu_ps(p, x); }
RK_FN vn vn_add(vn x, vn y) { return _mm512_add_ps(x, y); }
RK_FN vn vn_fma(vn x, vn y, vn z) { return _mm512_fmadd_ps(x, y, z); }
RK_FN vn vn_even(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
RK_FN vn vn_odd(const uint16_t *p) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32((int)0xffff0000)));
}
