/* quant_avx512vnni.c - the kernels of quant.h with VPDPBUSD: one 64-byte plane of weights (16
 * outputs x 4 inputs, unsigned) times 4 activations (signed) broadcast. */
#include <immintrin.h>

#include "kernels/quant_layout.h"

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

INLINE void quantise_block(const uint16_t *a, rk_quant_act *q) {
    __m512i   x = _mm512_loadu_si512(a), m = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
    __m256i   m16 = _mm256_max_epu16(_mm512_castsi512_si256(m), _mm512_extracti64x4_epi64(m, 1));
    __m128i   m8 = _mm_max_epu16(_mm256_castsi256_si128(m16), _mm256_extracti128_si256(m16, 1));
    __m128i   least = _mm_minpos_epu16(_mm_xor_si128(m8, _mm_set1_epi16(-1)));
    uint16_t  max = (uint16_t)~_mm_extract_epi16(least, 0);
    float     da = rk_bf16_to_f32(max < 0x80 ? 0 : max) / 127.0f;
    __mmask16 some = da > 0 && max < 0x7f80 ? 0xffff : 0; /* infinite and NaN reach C through da */
    __m512    by = _mm512_set1_ps(da);
    __m512i   w[2] = {_mm512_cvtepu16_epi32(_mm512_castsi512_si256(x)),
                      _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(x, 1))};
    int32_t   sum[2];
    UNROLL for (int h = 0; h < 2; h++) {
        __m512  f = _mm512_castsi512_ps(_mm512_slli_epi32(w[h], 16));
        __m512i v = _mm512_maskz_cvtps_epi32(some, _mm512_maskz_div_ps(some, f, by));
        _mm_storeu_si128((__m128i *)(void *)(q->q + 16 * h), _mm512_cvtepi32_epi8(v));
        sum[h] = _mm512_reduce_add_epi32(v);
    }
    q->da = da;
    q->sum = (float)(sum[0] + sum[1]);
    q->neg = -(sum[0] + sum[1]);
    q->neg_lo = -sum[0];
}

INLINE __m512i plane(const uint8_t *p) { return _mm512_loadu_si512(p); }

/* x (a bit field at `from` of every byte) moved to bit 4; other bits are garbage. Shift counts are
 * literals because the intrinsics' types for them differ between compilers. */
INLINE __m512i to_bit4(__m512i x, const int from) {
    switch (from) {
    case 0: return _mm512_slli_epi16(x, 4);
    case 1: return _mm512_slli_epi16(x, 3);
    case 2: return _mm512_slli_epi16(x, 2);
    case 3: return _mm512_slli_epi16(x, 1);
    case 5: return _mm512_srli_epi16(x, 1);
    case 6: return _mm512_srli_epi16(x, 2);
    case 7: return _mm512_srli_epi16(x, 3);
    default: return x;
    }
}

/* Byte i of every dword. */
INLINE __m512i byte_of(__m512i x, const int i) {
    const __m512i byte = _mm512_set1_epi32(255);
    switch (i) {
    case 0: return _mm512_and_si512(x, byte);
    case 1: return _mm512_and_si512(_mm512_srli_epi32(x, 8), byte);
    case 2: return _mm512_and_si512(_mm512_srli_epi32(x, 16), byte);
    default: return _mm512_srli_epi32(x, 24);
    }
}

/* Quad j of a block's codes: dword o holds output o's four. */
INLINE __m512i quad(const rk_quant t, const uint8_t *codes, const int j) {
    const int bits = rk_quant_forms[t].bits;
    if (bits == 8) return plane(codes + 64 * j);
    __m512i w = plane(codes + rk_quant_low_at(t, j));
    w = _mm512_and_si512(j % 2 ? _mm512_srli_epi16(w, 4) : w, _mm512_set1_epi8(15));
    if (bits == 4) return w;
    __m512i h = to_bit4(plane(codes + rk_quant_high_at(t, j)), rk_quant_high_bit(t, j));
    return _mm512_ternarylogic_epi32(w, h, _mm512_set1_epi8(bits == 5 ? 0x10 : 0x30), 0xf8);
}

INLINE __m512 f16s(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
INLINE __m128i bytes16(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

INLINE __m512 dw_of(const rk_quant t, const uint8_t *unit, int i, int half) {
    if (!rk_quant_is_k(t)) return f16s(unit + 32 * i);
    __m128i b = bytes16(unit + rk_quant_bytes_at(t, i) + 16 * half);
    __m512i s = t == RK_QUANT_Q6_K ? _mm512_cvtepi8_epi32(b) : _mm512_cvtepu8_epi32(b);
    return _mm512_mul_ps(f16s(unit), _mm512_cvtepi32_ps(s));
}
INLINE __m512 mw_of(const rk_quant t, const uint8_t *unit, int i) {
    __m512 m = f16s(unit + 32);
    if (!rk_quant_is_k(t)) return m;
    __m512i s = _mm512_cvtepu8_epi32(bytes16(unit + rk_quant_bytes_at(t, i) + 16));
    return _mm512_xor_ps(_mm512_mul_ps(m, _mm512_cvtepi32_ps(s)), _mm512_set1_ps(-0.0f));
}

INLINE __m512i start(const rk_quant t, const rk_quant_act *a, const int half) {
    const rk_quant_form *f = &rk_quant_forms[t];
    int32_t              n = f->halves == 1 ? a->neg : half ? a->neg - a->neg_lo : a->neg_lo;
    return f->bias ? _mm512_set1_epi32(n * f->bias) : _mm512_setzero_si512();
}

INLINE __m512i four(const int8_t *q) {
    int32_t v;
    memcpy(&v, q, sizeof v);
    return _mm512_set1_epi32(v);
}

INLINE void dot_panel(const rk_quant t, const int rows, const uint8_t *group, int64_t b0,
                      int64_t b1, const rk_quant_act *a, float *c, int64_t ldc) {
    const rk_quant_form *f = &rk_quant_forms[t];
    const int            quads = 8 / f->halves;
    __m512               acc[RK_QUANT_PANEL];
    UNROLL for (int r = 0; r < rows; r++)
        acc[r] = b0 ? _mm512_loadu_ps(c + r * ldc) : _mm512_setzero_ps();
    for (int64_t b = b0; b < b1; b++, a += rows) {
        const uint8_t *unit = group + rk_quant_unit_at(t, b);
        const int      i = (int)(b % f->unit);
        const uint8_t *codes = unit + rk_quant_codes_at(t, i);
        __m512         mw = f->has_min ? mw_of(t, unit, i) : _mm512_setzero_ps();
        UNROLL for (int l = 0; l < f->codes; l += 64)
            _mm_prefetch((const char *)codes + RK_QUANT_AHEAD + l, _MM_HINT_T0);
        UNROLL for (int half = 0; half < f->halves; half++) {
            __m512  dw = dw_of(t, unit, i, half);
            __m512i s[RK_QUANT_PANEL];
            UNROLL for (int r = 0; r < rows; r++) s[r] = start(t, a + r, half);
            UNROLL for (int j = half * quads; j < (half + 1) * quads; j++) {
                __m512i w = quad(t, codes, j);
                UNROLL for (int r = 0; r < rows; r++)
                    s[r] = _mm512_dpbusd_epi32(s[r], w, four(a[r].q + 4 * j));
            }
            UNROLL for (int r = 0; r < rows; r++)
                acc[r] = _mm512_fmadd_ps(_mm512_mul_ps(dw, _mm512_set1_ps(a[r].da)),
                                         _mm512_cvtepi32_ps(s[r]), acc[r]);
        }
        if (f->has_min) {
            UNROLL for (int r = 0; r < rows; r++)
                acc[r] = _mm512_fmadd_ps(_mm512_mul_ps(mw, _mm512_set1_ps(a[r].da)),
                                         _mm512_set1_ps(a[r].sum), acc[r]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) _mm512_storeu_ps(c + r * ldc, acc[r]);
}

/* Rounded to bf16 in the upper half; finite only. */
INLINE __m512i rounded(__m512 x) {
    __m512i u = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}

INLINE bool finite16(__m512 x) {
    return _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ) ==
           0xffff;
}

INLINE void to_tile(const rk_quant t, const uint8_t *unit, int i, uint16_t *out) {
    const rk_quant_form *f = &rk_quant_forms[t];
    const __m512i        bias = _mm512_set1_epi32(f->bias);
    __m512               dw[2] = {dw_of(t, unit, i, 0), dw_of(t, unit, i, f->halves - 1)};
    __m512               mw = f->has_min ? mw_of(t, unit, i) : _mm512_setzero_ps();
    if (!finite16(dw[0]) || !finite16(mw)) {
        rk_quant_tile(t, unit, i, out);
        return;
    }
    UNROLL for (int j = 0; j < 8; j++) {
        __m512i q = quad(t, unit + rk_quant_codes_at(t, i), j), w[4];
        UNROLL for (int k = 0; k < 4; k++) {
            __m512i v = byte_of(q, k);
            __m512  x = _mm512_cvtepi32_ps(f->bias ? _mm512_sub_epi32(v, bias) : v);
            x = _mm512_mul_ps(x, dw[j * f->halves / 8]);
            w[k] = rounded(f->has_min ? _mm512_add_ps(x, mw) : x);
        }
        UNROLL for (int k = 0; k < 4; k += 2)
            _mm512_storeu_si512(
                out + 32 * (2 * j + k / 2),
                _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(w[k], 16), w[k + 1]));
    }
}

#define QUANT_NAME  "avx512vnni"
#define QUANT_TABLE rk_quant_avx512vnni
#include "kernels/quant.inc"
