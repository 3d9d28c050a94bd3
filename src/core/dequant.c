/* dequant.c - blocks of the ggml types to f32.
 *
 * Source: the block layouts of the GGUF specification. 32 values a block:
 *   Q8_0  f16 d, 32 signed bytes                v = d q
 *   Q4_0  f16 d, 16 bytes                       v = d (q - 8)
 *   Q4_1  f16 d, f16 m, 16 bytes                v = d q + m
 * byte i of a 4-bit block holds value i (low half) and value i + 16 (high half). Sources may lie at
 * any address. */
#include "core/dequant.h"

#include <stdio.h>

enum { BLOCK = 32 };

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
    {"Q5_0", 6, 0, 0, NULL},
    {"Q5_1", 7, 0, 0, NULL},
    {"Q8_1", 9, 0, 0, NULL},
    {"Q2_K", 10, 0, 0, NULL},
    {"Q3_K", 11, 0, 0, NULL},
    {"Q4_K", 12, 0, 0, NULL},
    {"Q5_K", 13, 0, 0, NULL},
    {"Q6_K", 14, 0, 0, NULL},
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
