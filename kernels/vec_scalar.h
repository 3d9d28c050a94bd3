/* vec_scalar.h - 16 lanes of f32 as plain C: the twin that runs anywhere. */
#pragma once
#include <math.h>
#include <string.h>

#include "base/tensor.h"

#define V_ROWS 2 /* query or activation rows per pass of the inner kernel */
typedef struct v16 {
    float f[16];
} v16;

#define V_EACH(expr)                                                                               \
    v16 r;                                                                                         \
    for (int i = 0; i < 16; i++) r.f[i] = (expr);                                                  \
    return r

static inline v16  v_set1(float x) { V_EACH(x); }
static inline v16  v_load(const float *p) { V_EACH(p[i]); }
static inline void v_store(float *p, v16 a) { memcpy(p, a.f, sizeof a.f); }
static inline v16  v_add(v16 a, v16 b) { V_EACH(a.f[i] + b.f[i]); }
static inline v16  v_sub(v16 a, v16 b) { V_EACH(a.f[i] - b.f[i]); }
static inline v16  v_mul(v16 a, v16 b) { V_EACH(a.f[i] * b.f[i]); }
static inline v16  v_div(v16 a, v16 b) { V_EACH(a.f[i] / b.f[i]); }
static inline v16  v_fma(v16 a, v16 b, v16 c) { V_EACH(fmaf(a.f[i], b.f[i], c.f[i])); }
static inline v16  v_max(v16 a, v16 b) { V_EACH(a.f[i] > b.f[i] ? a.f[i] : b.f[i]); }
static inline v16  v_min(v16 a, v16 b) { V_EACH(a.f[i] < b.f[i] ? a.f[i] : b.f[i]); }
static inline v16  v_floor(v16 a) { V_EACH(floorf(a.f[i])); }
/* Elements 0, 2, 4 .. and 1, 3, 5 .. of 32 bf16. */
static inline v16 v_even(const uint16_t *p) { V_EACH(rk_bf16_to_f32(p[2 * i])); }
static inline v16 v_odd(const uint16_t *p) { V_EACH(rk_bf16_to_f32(p[2 * i + 1])); }
static inline v16 v_bf16(const uint16_t *p) { V_EACH(rk_bf16_to_f32(p[i])); }
/* Round to bf16 (ties to even) and store 16. */
static inline void v_store_bf16(uint16_t *p, v16 a) {
    for (int i = 0; i < 16; i++) {
        uint32_t u;
        memcpy(&u, &a.f[i], 4);
        p[i] = (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
}
/* The same rounding, kept as f32. */
static inline v16 v_round_bf16(v16 a) {
    v16 r;
    for (int i = 0; i < 16; i++) {
        uint32_t u;
        memcpy(&u, &a.f[i], 4);
        u = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
        memcpy(&r.f[i], &u, 4);
    }
    return r;
}
/* p * 2^n for integral n in [-126, 127], p in [1, 2]; 0 where x < -126. */
static inline v16 v_scale2(v16 p, v16 n, v16 x) {
    v16 r;
    for (int i = 0; i < 16; i++) {
        uint32_t u;
        memcpy(&u, &p.f[i], 4);
        u += (uint32_t)(int32_t)(x.f[i] >= -126.0f ? n.f[i] : 0.0f) << 23;
        memcpy(&r.f[i], &u, 4);
        if (!(x.f[i] >= -126.0f)) r.f[i] = 0.0f;
    }
    return r;
}
/* Lanes i >= n become value. */
static inline v16 v_mask_from(v16 a, int n, float value) { V_EACH(i < n ? a.f[i] : value); }
