/* dequant.c - blocks of the ggml types to f32.
 *
 * Source: the block layouts of the GGUF specification. 32 values a block:
 *   Q8_0  f16 d, 32 signed bytes                v = d q
 *   Q4_0  f16 d, 16 bytes                       v = d (q - 8)
 *   Q4_1  f16 d, f16 m, 16 bytes                v = d q + m
 *   Q5_0  f16 d, u32 h, 16 bytes                v = d (q - 16)
 *   Q5_1  f16 d, f16 m, u32 h, 16 bytes         v = d q + m
 * byte i of a 4-bit block holds value i (low half) and value i + 16 (high half); bit i of h is bit
 * 4 of value i. 256 values a block, s and t small integers of each 32 (Q6_K: 16) values:
 *   Q4_K  f16 d, f16 e, 12 bytes s t, 128 bytes                    v = (d s) q - e t
 *   Q5_K  f16 d, f16 e, 12 bytes s t, 32 bytes h, 128 bytes        v = (d s) q - e t
 *   Q6_K  128 bytes, 64 bytes h, 16 signed bytes s, f16 d          v = (d s) (q - 32)
 * with low halves, high halves and bits of h walking along runs of 32 values. Sources may lie at
 * any address. */
#include "core/dequant.h"

#include <stdio.h>

enum { BLOCK = 32, SUPER = 256 };

static uint16_t load16(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

static void from_f32(const uint8_t *src, int64_t n, float *dst) {
    memcpy(dst, src, (size_t)n * sizeof *dst);
}

static void from_f16(const uint8_t *src, int64_t n, float *dst) {
    for (int64_t i = 0; i < n; i++) dst[i] = rk_f16_to_f32(load16(src + 2 * i));
}

static void from_bf16(const uint8_t *src, int64_t n, float *dst) {
    for (int64_t i = 0; i < n; i++) dst[i] = rk_bf16_to_f32(load16(src + 2 * i));
}

static void from_q8_0(const uint8_t *src, int64_t n, float *dst) {
    for (int64_t b = 0; b < n / BLOCK; b++, src += 2 + BLOCK, dst += BLOCK) {
        float  d = rk_f16_to_f32(load16(src));
        int8_t q[BLOCK];
        memcpy(q, src + 2, sizeof q);
        for (int i = 0; i < BLOCK; i++) dst[i] = d * (float)q[i];
    }
}

static void from_q4_0(const uint8_t *src, int64_t n, float *dst) {
    for (int64_t b = 0; b < n / BLOCK; b++, src += 2 + BLOCK / 2, dst += BLOCK) {
        float d = rk_f16_to_f32(load16(src));
        for (int i = 0; i < BLOCK / 2; i++) {
            dst[i] = d * (float)((src[2 + i] & 15) - 8);
            dst[i + BLOCK / 2] = d * (float)((src[2 + i] >> 4) - 8);
        }
    }
}

static void from_q4_1(const uint8_t *src, int64_t n, float *dst) {
    for (int64_t b = 0; b < n / BLOCK; b++, src += 4 + BLOCK / 2, dst += BLOCK) {
        float d = rk_f16_to_f32(load16(src)), m = rk_f16_to_f32(load16(src + 2));
        for (int i = 0; i < BLOCK / 2; i++) {
            dst[i] = d * (float)(src[4 + i] & 15) + m;
            dst[i + BLOCK / 2] = d * (float)(src[4 + i] >> 4) + m;
        }
    }
}

/* Bit 4 of value i of a Q5_0 or Q5_1 block. */
static int fifth_bit(const uint8_t *h, int i) { return (h[i / 8] >> i % 8 & 1) << 4; }

static void from_q5_0(const uint8_t *src, int64_t n, float *dst) {
    for (int64_t b = 0; b < n / BLOCK; b++, src += 6 + BLOCK / 2, dst += BLOCK) {
        float          d = rk_f16_to_f32(load16(src));
        const uint8_t *h = src + 2, *q = src + 6;
        for (int i = 0; i < BLOCK / 2; i++) {
            dst[i] = d * (float)(((q[i] & 15) | fifth_bit(h, i)) - 16);
            dst[i + BLOCK / 2] = d * (float)((q[i] >> 4 | fifth_bit(h, i + BLOCK / 2)) - 16);
        }
    }
}

static void from_q5_1(const uint8_t *src, int64_t n, float *dst) {
    for (int64_t b = 0; b < n / BLOCK; b++, src += 8 + BLOCK / 2, dst += BLOCK) {
        float          d = rk_f16_to_f32(load16(src)), m = rk_f16_to_f32(load16(src + 2));
        const uint8_t *h = src + 4, *q = src + 8;
        for (int i = 0; i < BLOCK / 2; i++) {
            dst[i] = d * (float)((q[i] & 15) | fifth_bit(h, i)) + m;
            dst[i + BLOCK / 2] = d * (float)(q[i] >> 4 | fifth_bit(h, i + BLOCK / 2)) + m;
        }
    }
}

/* The 8 scales and 8 minima (6 bits each) of a Q4_K or Q5_K block: bytes 0-3 and 4-7 hold the first
 * four of each; of the last four, bytes 8-11 hold the low halves, the upper two bits of bytes 0-7
 * the rest. */
static void scales_of(const uint8_t *p, int s[8], int t[8]) {
    for (int i = 0; i < 4; i++) {
        s[i] = p[i] & 63;
        t[i] = p[4 + i] & 63;
        s[4 + i] = (p[8 + i] & 15) | (p[i] >> 6) << 4;
        t[4 + i] = p[8 + i] >> 4 | (p[4 + i] >> 6) << 4;
    }
}

static void from_q4_k(const uint8_t *src, int64_t n, float *dst) {
    int s[8], t[8];
    for (int64_t b = 0; b < n / SUPER; b++, src += 16 + SUPER / 2) {
        float d = rk_f16_to_f32(load16(src)), e = rk_f16_to_f32(load16(src + 2));
        scales_of(src + 4, s, t);
        for (int r = 0; r < 8; r++) { /* runs of 32: low halves of 32 bytes, then high */
            const uint8_t *q = src + 16 + r / 2 * 32;
            float          ds = d * (float)s[r], et = e * (float)t[r];
            for (int i = 0; i < 32; i++) *dst++ = ds * (float)(q[i] >> r % 2 * 4 & 15) - et;
        }
    }
}

static void from_q5_k(const uint8_t *src, int64_t n, float *dst) {
    int s[8], t[8];
    for (int64_t b = 0; b < n / SUPER; b++, src += 48 + SUPER / 2) {
        float d = rk_f16_to_f32(load16(src)), e = rk_f16_to_f32(load16(src + 2));
        scales_of(src + 4, s, t);
        for (int r = 0; r < 8; r++) { /* and bit r of the 32 bytes h */
            const uint8_t *h = src + 16, *q = src + 48 + r / 2 * 32;
            float          ds = d * (float)s[r], et = e * (float)t[r];
            for (int i = 0; i < 32; i++)
                *dst++ = ds * (float)((q[i] >> r % 2 * 4 & 15) | (h[i] >> r & 1) << 4) - et;
        }
    }
}

static void from_q6_k(const uint8_t *src, int64_t n, float *dst) {
    for (int64_t b = 0; b < n / SUPER; b++, src += 82 + SUPER / 2) {
        float  d = rk_f16_to_f32(load16(src + 208));
        int8_t s[16];
        memcpy(s, src + 192, sizeof s);
        for (int r = 0; r < 8; r++) { /* each half: low halves of 64 bytes, then high */
            const uint8_t *q = src + r / 4 * 64 + r % 2 * 32, *h = src + 128 + r / 4 * 32;
            for (int i = 0; i < 32; i++) {
                int v = (q[i] >> r % 4 / 2 * 4 & 15) | (h[i] >> r % 4 * 2 & 3) << 4;
                *dst++ = d * (float)s[2 * r + i / 16] * (float)(v - 32);
            }
        }
    }
}

/* Types without a function are known by name only, so that a refusal can name them. */
static const struct {
    const char *name;
    int         type, elements, bytes;
    void (*to_f32)(const uint8_t *src, int64_t n, float *dst);
} types[] = {
    {"F32", RK_GGML_F32, 1, 4, from_f32},
    {"F16", RK_GGML_F16, 1, 2, from_f16},
    {"BF16", RK_GGML_BF16, 1, 2, from_bf16},
    {"Q8_0", RK_GGML_Q8_0, BLOCK, 2 + BLOCK, from_q8_0},
    {"Q4_0", RK_GGML_Q4_0, BLOCK, 2 + BLOCK / 2, from_q4_0},
    {"Q4_1", RK_GGML_Q4_1, BLOCK, 4 + BLOCK / 2, from_q4_1},
    {"Q5_0", RK_GGML_Q5_0, BLOCK, 6 + BLOCK / 2, from_q5_0},
    {"Q5_1", RK_GGML_Q5_1, BLOCK, 8 + BLOCK / 2, from_q5_1},
    {"Q4_K", RK_GGML_Q4_K, SUPER, 16 + SUPER / 2, from_q4_k},
    {"Q5_K", RK_GGML_Q5_K, SUPER, 48 + SUPER / 2, from_q5_k},
    {"Q6_K", RK_GGML_Q6_K, SUPER, 82 + SUPER / 2, from_q6_k},
    {"Q8_1", 9, 0, 0, NULL},
    {"Q2_K", 10, 0, 0, NULL},
    {"Q3_K", 11, 0, 0, NULL},
    {"Q8_K", 15, 0, 0, NULL},
    {"IQ2_XXS", 16, 0, 0, NULL},
    {"IQ2_XS", 17, 0, 0, NULL},
    {"IQ3_XXS", 18, 0, 0, NULL},
    {"IQ1_S", 19, 0, 0, NULL},
    {"IQ4_NL", 20, 0, 0, NULL},
    {"IQ3_S", 21, 0, 0, NULL},
    {"IQ2_S", 22, 0, 0, NULL},
    {"IQ4_XS", 23, 0, 0, NULL},
    {"I8", 24, 0, 0, NULL},
    {"I16", 25, 0, 0, NULL},
    {"I32", 26, 0, 0, NULL},
    {"I64", 27, 0, 0, NULL},
    {"F64", 28, 0, 0, NULL},
    {"IQ1_M", 29, 0, 0, NULL},
    {"TQ1_0", 34, 0, 0, NULL},
    {"TQ2_0", 35, 0, 0, NULL},
    {"MXFP4", 39, 0, 0, NULL},
};
enum { N_TYPES = sizeof types / sizeof types[0] };

static int find(int type) {
    for (int i = 0; i < N_TYPES; i++)
        if (types[i].type == type) return i;
    return -1;
}

bool rk_ggml_block(int type, int *elements, int *bytes) {
    int i = find(type);
    if (i < 0 || !types[i].to_f32) return false;
    *elements = types[i].elements;
    *bytes = types[i].bytes;
    return true;
}

void rk_ggml_dequant(int type, const void *src, int64_t n, float *dst) {
    int i = find(type);
    RK_ASSERT(i >= 0 && types[i].to_f32 && n >= 0 && n % types[i].elements == 0);
    types[i].to_f32(src, n, dst);
}

const char *rk_ggml_type_name(int type) {
    static _Thread_local char other[24];
    int                       i = find(type);
    if (i >= 0) return types[i].name;
    snprintf(other, sizeof other, "type %d", type);
    return other;
}
