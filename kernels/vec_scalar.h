/* vec_scalar.h - 16 floats as an array, for any x86-64: the twin that defines the others' bits. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/tensor.h"

#define RK_FN static inline __attribute__((always_inline, unused))
#define RK_ISA_NAME "scalar"
#define RK_KERNELS rk_kernels_scalar

typedef struct v16 {
    float f[16];
} v16;

#define V_EACH(expression)                                                                         \
    v16 r_;                                                                                        \
    for (int i = 0; i < 16; i++) r_.f[i] = (expression);                                           \
    return r_

RK_FN uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
RK_FN float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

RK_FN v16 v_load(const float *p) { V_EACH(p[i]); }
RK_FN void v_store(float *p, v16 x) { memcpy(p, x.f, sizeof x.f); }
/* n in 0 .. 16; the other lanes read 0, or are not written */
RK_FN v16 v_load_n(const float *p, int n) {
    v16 r = {{0}};
    memcpy(r.f, p, (size_t)n * sizeof r.f[0]);
    return r;
}
RK_FN void v_store_n(float *p, v16 x, int n) { memcpy(p, x.f, (size_t)n * sizeof x.f[0]); }
RK_FN v16 v_set1(float x) { V_EACH(x); }
RK_FN v16 v_zero(void) { return (v16){{0}}; }
RK_FN v16 v_add(v16 x, v16 y) { V_EACH(x.f[i] + y.f[i]); }
RK_FN v16 v_sub(v16 x, v16 y) { V_EACH(x.f[i] - y.f[i]); }
RK_FN v16 v_mul(v16 x, v16 y) { V_EACH(x.f[i] * y.f[i]); }
RK_FN v16 v_div(v16 x, v16 y) { V_EACH(x.f[i] / y.f[i]); }
RK_FN v16 v_fma(v16 x, v16 y, v16 z) { V_EACH(fmaf(x.f[i], y.f[i], z.f[i])); }
/* The second where either is NaN. */
RK_FN v16 v_max(v16 x, v16 y) { V_EACH(x.f[i] > y.f[i] ? x.f[i] : y.f[i]); }
RK_FN v16 v_min(v16 x, v16 y) { V_EACH(x.f[i] < y.f[i] ? x.f[i] : y.f[i]); }
RK_FN v16 v_floor(v16 x) { V_EACH(floorf(x.f[i])); }
RK_FN uint32_t exponent_bits(float f) { /* 0 where f is no small whole number */
    return f > -1000.0f && f < 1000.0f ? (uint32_t)(int32_t)f << 23 : 0u;
}
/* x 2^f for whole f, by the exponent's bits */
RK_FN v16 v_scale(v16 x, v16 f) { V_EACH(float_of(bits_of(x.f[i]) + exponent_bits(f.f[i]))); }
/* 0 where x < limit, else y (also where x is NaN) */
RK_FN v16 v_zero_below(v16 x, float limit, v16 y) { V_EACH(x.f[i] < limit ? 0.0f : y.f[i]); }
/* lanes from n on become y's */
RK_FN v16 v_first(v16 x, int n, v16 y) { V_EACH(i < n ? x.f[i] : y.f[i]); }
/* To the nearest bf16, ties to even, as a float; NaN stays NaN. */
RK_FN v16 v_bf16(v16 x) { V_EACH(rk_bf16_to_f32(rk_f32_to_bf16(x.f[i]))); }
/* Halves of values that are bf16 already. */
RK_FN void v_store_bf16(uint16_t *p, v16 x) {
    for (int i = 0; i < 16; i++) p[i] = (uint16_t)(bits_of(x.f[i]) >> 16);
}
RK_FN v16 v_load_bf16(const uint16_t *p) { V_EACH(rk_bf16_to_f32(p[i])); }
RK_FN float v_hmax(v16 x) {
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++) x.f[i] = x.f[i] > x.f[i + n] ? x.f[i] : x.f[i + n];
    return x.f[0];
}
/* Lane i with i + 8, then + 4, + 2, + 1. */
RK_FN float v_hsum(v16 x) {
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++) x.f[i] = x.f[i] + x.f[i + n];
    return x.f[0];
}

/* Product kernels: one lane. */
#define RK_LANES 1
#define RK_KERNEL_ROWS 6
#define RK_KERNEL_ROWS_WIDE 3
typedef float vn;
RK_FN vn vn_zero(void) { return 0.0f; }
RK_FN vn vn_set1(float x) { return x; }
RK_FN vn vn_load(const float *p) { return *p; }
RK_FN void vn_store(float *p, vn x) { *p = x; }
RK_FN vn vn_add(vn x, vn y) { return x + y; }
RK_FN vn vn_fma(vn x, vn y, vn z) { return fmaf(x, y, z); }
RK_FN vn vn_even(const uint16_t *p) { return rk_bf16_to_f32(p[0]); }
RK_FN vn vn_odd(const uint16_t *p) { return rk_bf16_to_f32(p[1]); }
