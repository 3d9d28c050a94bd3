/* vec_avx2.h - 16 floats as two registers, and the lanes of the product kernels. */
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define RK_FN static inline __attribute__((always_inline, unused))
#define RK_ISA_NAME "avx2"
#define RK_KERNELS rk_kernels_avx2

typedef struct v16 {
    __m256 a, b;
} v16;

RK_FN v16 v_load(const float *p) { return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
RK_FN void v_store(float *p, v16 x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
/* n in 0 .. 16; the other lanes read 0, or are not written */
RK_FN v16 v_load_n(const float *p, int n) {
    float t[16] = {0};
    memcpy(t, p, (size_t)n * sizeof *t);
    return v_load(t);
}
RK_FN void v_store_n(float *p, v16 x, int n) {
    float t[16];
    v_store(t, x);
    memcpy(p, t, (size_t)n * sizeof *t);
}
RK_FN v16 v_set1(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
RK_FN v16 v_zero(void) { return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
RK_FN v16 v_add(v16 x, v16 y) { return (v16){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
RK_FN v16 v_sub(v16 x, v16 y) { return (v16){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
RK_FN v16 v_mul(v16 x, v16 y) { return (v16){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
RK_FN v16 v_div(v16 x, v16 y) { return (v16){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
RK_FN v16 v_fma(v16 x, v16 y, v16 z) {
    return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
/* The second where either is NaN. */
RK_FN v16 v_max(v16 x, v16 y) { return (v16){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
RK_FN v16 v_min(v16 x, v16 y) { return (v16){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
RK_FN v16 v_floor(v16 x) { return (v16){_mm256_floor_ps(x.a), _mm256_floor_ps(x.b)}; }
RK_FN __m256 scale8(__m256 x, __m256 f) {
    __m256i e = _mm256_slli_epi32(_mm256_cvttps_epi32(f), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), e));
}
/* x 2^f for whole f, by the exponent's bits */
RK_FN v16 v_scale(v16 x, v16 f) { return (v16){scale8(x.a, f.a), scale8(x.b, f.b)}; }
/* 0 where x < limit, else y (also where x is NaN) */
RK_FN v16 v_zero_below(v16 x, float limit, v16 y) {
    __m256 l = _mm256_set1_ps(limit);
    return (v16){_mm256_and_ps(_mm256_cmp_ps(x.a, l, _CMP_NLT_UQ), y.a),
                 _mm256_and_ps(_mm256_cmp_ps(x.b, l, _CMP_NLT_UQ), y.b)};
}
RK_FN __m256 lanes_below(int n) {
    __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), i));
}
/* lanes from n on become y's */
RK_FN v16 v_first(v16 x, int n, v16 y) {
    return (v16){_mm256_blendv_ps(y.a, x.a, lanes_below(n)),
                 _mm256_blendv_ps(y.b, x.b, lanes_below(n - 8))};
}
RK_FN __m256 bf16_8(__m256 x) {
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256  nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    __m256  v = _mm256_blendv_ps(_mm256_castsi256_ps(r), _mm256_castsi256_ps(quiet), nan);
    return _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000)));
}
/* To the nearest bf16, ties to even, as a float; NaN stays NaN. */
RK_FN v16 v_bf16(v16 x) { return (v16){bf16_8(x.a), bf16_8(x.b)}; }
/* Halves of values that are bf16 already. */
RK_FN void v_store_bf16(uint16_t *p, v16 x) {
    __m256i a = _mm256_srli_epi32(_mm256_castps_si256(x.a), 16);
    __m256i b = _mm256_srli_epi32(_mm256_castps_si256(x.b), 16);
    __m256i ab = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
    _mm256_storeu_si256((__m256i *)(void *)p, ab);
}
RK_FN __m256 load_bf16_8(const uint16_t *p) {
    __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}
RK_FN v16 v_load_bf16(const uint16_t *p) { return (v16){load_bf16_8(p), load_bf16_8(p + 8)}; }
RK_FN float v_hmax(v16 x) {
    __m256 m8 = _mm256_max_ps(x.a, x.b);
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
/* Lane i with i + 8, then + 4, + 2, + 1. */
RK_FN float v_hsum(v16 x) {
    __m256 s8 = _mm256_add_ps(x.a, x.b);
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* Product kernels: the widest register, how many rows fit, a weight row's even and odd elements. */
#define RK_LANES 8
#define RK_KERNEL_ROWS 6
#define RK_KERNEL_ROWS_WIDE 3
typedef __m256 vn;
RK_FN vn vn_zero(void) { return _mm256_setzero_ps(); }
RK_FN vn vn_set1(float x) { return _mm256_set1_ps(x); }
RK_FN vn vn_load(const float *p) { return _mm256_loadu_ps(p); }
RK_FN void vn_store(float *p, vn x) { _mm256_storeu_ps(p, x); }
RK_FN vn vn_add(vn x, vn y) { return _mm256_add_ps(x, y); }
RK_FN vn vn_fma(vn x, vn y, vn z) { return _mm256_fmadd_ps(x, y, z); }
RK_FN __m256i vn_raw(const uint16_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
RK_FN vn vn_even(const uint16_t *p) { return _mm256_castsi256_ps(_mm256_slli_epi32(vn_raw(p), 16)); }
RK_FN vn vn_odd(const uint16_t *p) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(vn_raw(p), _mm256_set1_epi32((int)0xffff0000)));
}
