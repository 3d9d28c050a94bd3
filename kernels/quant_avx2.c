/* quant_avx2.c - the kernels of quant.h with AVX2: VPMADDUBSW on 8 outputs x 4 inputs, widened
 * before its 16-bit sums could saturate. */
#include <immintrin.h>

#include "kernels/quant_layout.h"

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#define ROLLED _Pragma("clang loop unroll(disable)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#define ROLLED _Pragma("GCC unroll 1")
#endif

INLINE __m256i load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

INLINE int32_t sum8(__m256i x) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

INLINE void quantise_block(const uint16_t *a, rk_quant_act *q) {
    __m256i bits = _mm256_set1_epi16(0x7fff);
    __m256i m16 =
        _mm256_max_epu16(_mm256_and_si256(load(a), bits), _mm256_and_si256(load(a + 16), bits));
    __m128i  m8 = _mm_max_epu16(_mm256_castsi256_si128(m16), _mm256_extracti128_si256(m16, 1));
    __m128i  least = _mm_minpos_epu16(_mm_xor_si128(m8, _mm_set1_epi16(-1)));
    uint16_t max = (uint16_t)~_mm_extract_epi16(least, 0);
    float    da = rk_bf16_to_f32(max < 0x80 ? 0 : max) / 127.0f;
    bool     some = da > 0 && max < 0x7f80; /* infinite and NaN reach C through da */
    __m256   by = _mm256_set1_ps(some ? da : 1.0f);
    __m256i  keep = _mm256_set1_epi32(some ? -1 : 0), v[4];
    UNROLL for (int i = 0; i < 4; i++) {
        __m128i w = _mm_loadu_si128((const __m128i *)(const void *)(a + 8 * i));
        __m256  f = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(w), 16));
        v[i] = _mm256_and_si256(keep, _mm256_cvtps_epi32(_mm256_div_ps(f, by)));
    }
    __m256i lo = _mm256_packs_epi32(v[0], v[1]), hi = _mm256_packs_epi32(v[2], v[3]);
    __m256i all = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(lo, hi),
                                              _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)q->q, all);
    int32_t first = sum8(_mm256_add_epi32(v[0], v[1])), rest = sum8(_mm256_add_epi32(v[2], v[3]));
    q->da = da;
    q->sum = (float)(first + rest);
    q->neg = -(first + rest);
    q->neg_lo = -first;
}

/* x (a bit field at `from` of every byte) moved to bit 4; other bits are garbage. */
INLINE __m256i to_bit4(__m256i x, const int from) {
    return from < 4   ? _mm256_slli_epi16(x, 4 - from)
           : from > 4 ? _mm256_srli_epi16(x, from - 4)
                      : x;
}

/* Quad j of a block's codes, of 8 outputs (codes moved to their first). */
INLINE __m256i quad(const rk_quant t, const uint8_t *codes, const int j) {
    const int bits = rk_quant_forms[t].bits;
    if (bits == 8) return load(codes + 64 * j);
    __m256i w = load(codes + rk_quant_low_at(t, j));
    w = _mm256_and_si256(j % 2 ? _mm256_srli_epi16(w, 4) : w, _mm256_set1_epi8(15));
    if (bits == 4) return w;
    __m256i h = to_bit4(load(codes + rk_quant_high_at(t, j)), rk_quant_high_bit(t, j));
    return _mm256_or_si256(w, _mm256_and_si256(h, _mm256_set1_epi8(bits == 5 ? 0x10 : 0x30)));
}

INLINE __m256 f16s(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INLINE __m128i bytes8(const uint8_t *p) {
    return _mm_loadl_epi64((const __m128i *)(const void *)p);
}

/* Outputs [o, o + 8). */
INLINE __m256 dw_of(const rk_quant t, const uint8_t *unit, int i, int half, int o) {
    if (!rk_quant_is_k(t)) return f16s(unit + 32 * i + 2 * o);
    __m128i b = bytes8(unit + rk_quant_bytes_at(t, i) + 16 * half + o);
    __m256i s = t == RK_QUANT_Q6_K ? _mm256_cvtepi8_epi32(b) : _mm256_cvtepu8_epi32(b);
    return _mm256_mul_ps(f16s(unit + 2 * o), _mm256_cvtepi32_ps(s));
}
INLINE __m256 mw_of(const rk_quant t, const uint8_t *unit, int i, int o) {
    __m256 m = f16s(unit + 32 + 2 * o);
    if (!rk_quant_is_k(t)) return m;
    __m256i s = _mm256_cvtepu8_epi32(bytes8(unit + rk_quant_bytes_at(t, i) + 16 + o));
    return _mm256_xor_ps(_mm256_mul_ps(m, _mm256_cvtepi32_ps(s)), _mm256_set1_ps(-0.0f));
}

INLINE __m256i four(const int8_t *q) {
    int32_t v;
    memcpy(&v, q, sizeof v);
    return _mm256_set1_epi32(v);
}

/* s[r] = sum of (code - bias) times activation over one half (or all) of a block. */
INLINE void block_sums(const rk_quant t, const int rows, const uint8_t *codes, const int half,
                       const rk_quant_act *a, __m256i *s) {
    const rk_quant_form *f = &rk_quant_forms[t];
    /* 15 x 127 x 2 x 8 quads, 31 x 127 x 2 x 4 and 63 x 127 x 2 x 2 fit in 16 bits; of 8 bits |w|
     * <= 128 times |a| <= 127 does in pairs */
    const int            widen_after = f->bits == 4 ? 8 : f->bits == 5 ? 4 : f->bits == 6 ? 2 : 1;
    const int            first = half * 8 / f->halves, end = first + 8 / f->halves;
    const __m256i        ones = _mm256_set1_epi16(1);
    __m256i              p[4];
    UNROLL for (int j = first; j < end; j++) {
        __m256i w = quad(t, codes, j), size = w;
        if (f->bits == 8) {
            w = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
            size = _mm256_abs_epi8(w);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            __m256i x = four(a[r].q + 4 * j);
            x = _mm256_maddubs_epi16(size, f->bits == 8 ? _mm256_sign_epi8(x, w) : x);
            p[r] = j % widen_after ? _mm256_add_epi16(p[r], x) : x;
            if ((j + 1) % widen_after) continue;
            x = _mm256_madd_epi16(p[r], ones);
            s[r] = j < first + widen_after ? x : _mm256_add_epi32(s[r], x);
        }
    }
    if (f->bias && f->bits < 8)
        UNROLL for (int r = 0; r < rows; r++) {
            int32_t n = f->halves == 1 ? a[r].neg : half ? a[r].neg - a[r].neg_lo : a[r].neg_lo;
            s[r] = _mm256_add_epi32(s[r], _mm256_set1_epi32(n * f->bias));
        }
}

/* Up to 4 rows of a block, 8 outputs; a row's accumulators lie 2 apart. */
INLINE void add_block(const rk_quant t, const int rows, const uint8_t *unit, int i, const int o,
                      const rk_quant_act *a, __m256 *acc) {
    const rk_quant_form *f = &rk_quant_forms[t];
    __m256               mw = f->has_min ? mw_of(t, unit, i, o) : _mm256_setzero_ps();
    UNROLL for (int half = 0; half < f->halves; half++) {
        __m256  dw = dw_of(t, unit, i, half, o);
        __m256i s[4];
        block_sums(t, rows, unit + rk_quant_codes_at(t, i) + 4 * o, half, a, s);
        UNROLL for (int r = 0; r < rows; r++) {
            __m256 da = _mm256_set1_ps(a[r].da);
            acc[2 * r] =
                _mm256_fmadd_ps(_mm256_mul_ps(dw, da), _mm256_cvtepi32_ps(s[r]), acc[2 * r]);
            if (f->has_min)
                acc[2 * r] =
                    _mm256_fmadd_ps(_mm256_mul_ps(mw, da), _mm256_set1_ps(a[r].sum), acc[2 * r]);
        }
    }
}

INLINE void dot_panel(const rk_quant t, const int rows, const uint8_t *group, int64_t b0,
                      int64_t b1, const rk_quant_act *a, float *c, int64_t ldc) {
    const rk_quant_form *f = &rk_quant_forms[t];
    __m256               acc[RK_QUANT_PANEL][2];
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < 2; h++)
            acc[r][h] = b0 ? _mm256_loadu_ps(c + r * ldc + 8 * h) : _mm256_setzero_ps();
    for (int64_t b = b0; b < b1; b++, a += rows) {
        const uint8_t *unit = group + rk_quant_unit_at(t, b);
        const int      i = (int)(b % f->unit);
        UNROLL for (int l = 0; l < f->codes; l += 64)
            _mm_prefetch((const char *)unit + rk_quant_codes_at(t, i) + RK_QUANT_AHEAD + l,
                         _MM_HINT_T0);
        ROLLED for (int h = 0; h < 2; h++) {
            /* activations are read anew: kept for the other half they would not fit registers */
            __asm__ volatile("" ::: "memory");
            if (rows >= 4) add_block(t, 4, unit, i, 8 * h, a, &acc[0][h]);
            if (rows == 8) add_block(t, 4, unit, i, 8 * h, a + 4, &acc[4][h]);
            if (rows % 4)
                add_block(t, rows % 4, unit, i, 8 * h, a + rows / 4 * 4, &acc[rows / 4 * 4][h]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < 2; h++) _mm256_storeu_ps(c + r * ldc + 8 * h, acc[r][h]);
}

/* Rounded to bf16 in the upper half; finite only. */
INLINE __m256i rounded(__m256 x) {
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}

INLINE bool finite8(__m256 x) {
    __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    return _mm256_movemask_ps(_mm256_cmp_ps(size, _mm256_set1_ps(__builtin_inff()), _CMP_LT_OQ)) ==
           0xff;
}

INLINE void to_tile(const rk_quant t, const uint8_t *unit, int i, uint16_t *out) {
    const rk_quant_form *f = &rk_quant_forms[t];
    const __m256i        byte = _mm256_set1_epi32(255), bias = _mm256_set1_epi32(f->bias);
    UNROLL for (int o = 0; o < 16; o += 8) {
        __m256 dw[2] = {dw_of(t, unit, i, 0, o), dw_of(t, unit, i, f->halves - 1, o)};
        __m256 mw = f->has_min ? mw_of(t, unit, i, o) : _mm256_setzero_ps();
        if (!finite8(dw[0]) || !finite8(mw)) {
            rk_quant_tile(t, unit, i, out);
            return;
        }
        UNROLL for (int j = 0; j < 8; j++) {
            __m256i q = quad(t, unit + rk_quant_codes_at(t, i) + 4 * o, j), w[4];
            UNROLL for (int k = 0; k < 4; k++) {
                __m256i v = k == 3 ? _mm256_srli_epi32(q, 24)
                                   : _mm256_and_si256(_mm256_srli_epi32(q, 8 * k), byte);
                __m256  x = _mm256_cvtepi32_ps(f->bias ? _mm256_sub_epi32(v, bias) : v);
                x = _mm256_mul_ps(x, dw[j * f->halves / 8]);
                w[k] = rounded(f->has_min ? _mm256_add_ps(x, mw) : x);
            }
            UNROLL for (int k = 0; k < 4; k += 2)
                _mm256_storeu_si256(
                    (__m256i *)(void *)(out + 32 * (2 * j + k / 2) + 2 * o),
                    _mm256_blend_epi16(_mm256_srli_epi32(w[k], 16), w[k + 1], 0xaa));
        }
    }
}

#define QUANT_NAME  "avx2"
#define QUANT_TABLE rk_quant_avx2
#include "kernels/quant.inc"
