/* vec_avx512.h - 16 lanes of f32 as one AVX-512 register. */
#pragma once
#include <immintrin.h>

#include "base/tensor.h"

#define V_ROWS 12
typedef __m512 v16;

static inline v16  v_set1(float x) { return _mm512_set1_ps(x); }
static inline v16  v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, v16 x) { _mm512_storeu_ps(p, x); }
static inline v16  v_add(v16 x, v16 y) { return _mm512_add_ps(x, y); }
static inline v16  v_sub(v16 x, v16 y) { return _mm512_sub_ps(x, y); }
static inline v16  v_mul(v16 x, v16 y) { return _mm512_mul_ps(x, y); }
static inline v16  v_div(v16 x, v16 y) { return _mm512_div_ps(x, y); }
static inline v16  v_max(v16 x, v16 y) { return _mm512_max_ps(x, y); }
static inline v16  v_min(v16 x, v16 y) { return _mm512_min_ps(x, y); }
static inline v16  v_fma(v16 x, v16 y, v16 z) { return _mm512_fmadd_ps(x, y, z); }
static inline v16  v_floor(v16 x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF); }
static inline __m512i v_words(const uint16_t *p) { return _mm512_loadu_si512(p); }
static inline v16     v_even(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(v_words(p), 16));
}
static inline v16 v_odd(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_and_si512(v_words(p), _mm512_set1_epi32((int)0xffff0000u)));
}
static inline v16 v_bf16(const uint16_t *p) {
    __m256i w = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(w), 16));
}
static inline __m512i v_rounded(v16 x) {
    __m512i u = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}
static inline void v_store_bf16(uint16_t *p, v16 x) {
    __m256i w = _mm512_cvtepi32_epi16(_mm512_srli_epi32(v_rounded(x), 16));
    _mm256_storeu_si256((__m256i *)(void *)p, w);
}
static inline v16 v_round_bf16(v16 x) {
    return _mm512_castsi512_ps(_mm512_and_si512(v_rounded(x), _mm512_set1_epi32((int)0xffff0000u)));
}
static inline v16 v_scale2(v16 p, v16 n, v16 x) {
    __mmask16 ok = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_GE_OQ);
    __m512i   e = _mm512_slli_epi32(_mm512_maskz_cvtps_epi32(ok, n), 23);
    return _mm512_maskz_mov_ps(ok, _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), e)));
}
static inline v16 v_mask_from(v16 x, int n, float value) {
    __mmask16 keep = n >= 16 ? (__mmask16)0xffff : n <= 0 ? (__mmask16)0 : (__mmask16)((1u << n) - 1u);
    return _mm512_mask_mov_ps(_mm512_set1_ps(value), keep, x);
}
