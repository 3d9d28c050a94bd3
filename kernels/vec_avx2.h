/* vec_avx2.h - 16 lanes of f32 as two AVX2 registers. */
#pragma once
#include <immintrin.h>

#include "base/tensor.h"

#define V_ROWS 3
typedef struct v16 {
    __m256 a, b;
} v16;

#define V_2(op, x, y) (v16){op((x).a, (y).a), op((x).b, (y).b)}

static inline v16 v_set1(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline v16 v_load(const float *p) { return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void v_store(float *p, v16 x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
static inline v16 v_add(v16 x, v16 y) { return V_2(_mm256_add_ps, x, y); }
static inline v16 v_sub(v16 x, v16 y) { return V_2(_mm256_sub_ps, x, y); }
static inline v16 v_mul(v16 x, v16 y) { return V_2(_mm256_mul_ps, x, y); }
static inline v16 v_div(v16 x, v16 y) { return V_2(_mm256_div_ps, x, y); }
static inline v16 v_max(v16 x, v16 y) { return V_2(_mm256_max_ps, x, y); }
static inline v16 v_min(v16 x, v16 y) { return V_2(_mm256_min_ps, x, y); }
static inline v16 v_fma(v16 x, v16 y, v16 z) {
    return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
static inline v16 v_floor(v16 x) { return (v16){_mm256_floor_ps(x.a), _mm256_floor_ps(x.b)}; }

static inline __m256i v_words(const uint16_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
static inline __m256 v_even8(__m256i w) { return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)); }
static inline __m256 v_odd8(__m256i w) {
    return _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32((int)0xffff0000u)));
}
static inline v16 v_even(const uint16_t *p) {
    return (v16){v_even8(v_words(p)), v_even8(v_words(p + 16))};
}
static inline v16 v_odd(const uint16_t *p) {
    return (v16){v_odd8(v_words(p)), v_odd8(v_words(p + 16))};
}
static inline __m256 v_bf16_8(const uint16_t *p) {
    __m128i w = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(w), 16));
}
static inline v16     v_bf16(const uint16_t *p) { return (v16){v_bf16_8(p), v_bf16_8(p + 8)}; }
static inline __m256i v_rounded8(__m256 x) {
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}
static inline void v_store_bf16(uint16_t *p, v16 x) {
    __m256i a = _mm256_srli_epi32(v_rounded8(x.a), 16), b = _mm256_srli_epi32(v_rounded8(x.b), 16);
    __m256i w = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
    _mm256_storeu_si256((__m256i *)(void *)p, w);
}
static inline v16 v_round_bf16(v16 x) {
    __m256i m = _mm256_set1_epi32((int)0xffff0000u);
    return (v16){_mm256_castsi256_ps(_mm256_and_si256(v_rounded8(x.a), m)),
                 _mm256_castsi256_ps(_mm256_and_si256(v_rounded8(x.b), m))};
}
static inline __m256 v_scale2_8(__m256 p, __m256 n, __m256 x) {
    __m256  ok = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_GE_OQ);
    __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(_mm256_and_ps(n, ok)), 23);
    __m256  r = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
    return _mm256_and_ps(r, ok);
}
static inline v16 v_scale2(v16 p, v16 n, v16 x) {
    return (v16){v_scale2_8(p.a, n.a, x.a), v_scale2_8(p.b, n.b, x.b)};
}
static inline v16 v_mask_from(v16 x, int n, float value) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256 v = _mm256_set1_ps(value);
    __m256 ka = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane));
    __m256 kb = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane));
    return (v16){_mm256_blendv_ps(v, x.a, ka), _mm256_blendv_ps(v, x.b, kb)};
}
