/* tensor.c - see tensor.h. */
#include "base/tensor.h"

#include <math.h>

int64_t rk_dtype_bytes(rk_dtype t) {
    switch (t) {
    case RK_U8: return 1;
    case RK_BF16:
    case RK_F16: return 2;
    case RK_F32:
    case RK_BF16X2:
    case RK_I32: return 4;
    case RK_F64:
    case RK_I64: return 8;
    }
    return 0;
}

const char *rk_dtype_name(rk_dtype t) {
    static const char *const names[] = {"f32", "bf16", "bf16x2", "f16", "i32", "u8", "f64", "i64"};
    return names[t];
}

float rk_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 0x1fu, man = h & 0x3ffu, u;
    float    f;
    if (exp == 0x1fu) {
        u = sign | 0x7f800000u | (man << 13);
    } else if (exp != 0) {
        u = sign | ((exp + 112u) << 23) | (man << 13);
    } else {
        f = ldexpf((float)man, -24); /* zero and subnormals, exact */
        return sign ? -f : f;
    }
    memcpy(&f, &u, sizeof f);
    return f;
}

uint16_t rk_f32_to_f16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
    uint32_t a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65536 or above */
    if (a < 0x38800000u) {                                   /* subnormal half: units of 2^-24 */
        float x;
        memcpy(&x, &a, sizeof x);
        return (uint16_t)(sign | (uint16_t)nearbyintf(ldexpf(x, 24)));
    }
    uint32_t r = a + 0xfffu + ((a >> 13) & 1u) - (112u << 23);
    return (uint16_t)(sign | (uint16_t)(r >> 13));
}

int64_t rk_tensor_count(const rk_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->dim[i];
    return n;
}
