/* tensor.h - element types and a borrowed view of numbers.
 *
 * bf16 is the upper half of an f32; conversion to it rounds to nearest, ties to even.
 * RK_BF16X2 holds a value as hi + lo, two bf16 (16 significant bits): hi = bf16(x),
 * lo = bf16(x - hi). It is the "f32 precision" form of the bf16 code paths. */
#pragma once
#include <string.h>

#include "base/err.h"

typedef enum rk_dtype {
    RK_F32,
    RK_BF16,
    RK_BF16X2, /* only inside cache pages and activations: hi part, then lo part */
    RK_F16,
    RK_I32,
    RK_U8,
    RK_F64,
    RK_I64,
} rk_dtype;

int64_t     rk_dtype_bytes(rk_dtype t); /* BF16X2: 4 */
const char *rk_dtype_name(rk_dtype t);

static inline float rk_bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float    f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* NaN stays NaN; values above the largest bf16 become infinite. */
static inline uint16_t rk_f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float    rk_f16_to_f32(uint16_t h);
uint16_t rk_f32_to_f16(float f);

/* A borrowed dense row-major array, outermost dimension first. */
typedef struct rk_tensor {
    const void *data;
    rk_dtype    dtype;
    int         rank;
    int64_t     dim[4];
} rk_tensor;

int64_t rk_tensor_count(const rk_tensor *t); /* product of dims; 1 for rank 0 */
