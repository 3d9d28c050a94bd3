/* quant.h - weights that stay quantised in device memory, and int8 activations against them.
 *
 * The types are GGUF's (names and formulas: the GGUF specification): w = d q [+ m], with d and m
 * per block of 32 inputs (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1), or made of a super-block's f16 factors and
 * small integers (Q4_K, Q5_K: per 32; Q6_K: per 16). A packed matrix is an array of groups of 16
 * outputs, each a run of blocks along k that quant.c documents; no type grows by more than an
 * eighth over its stored bytes.
 *
 * Numbers. Activations a of one row (the bf16 values of layout.h) are quantised per block of 32:
 * da = max |a| / 127 in f32; qa = a / da rounded to nearest, ties to even (0 where da is 0). A dot
 * product of a block is an exact integer s = sum qw qa; per output, blocks ascending,
 *   C = fma(dw * da, (float)s, C)   then, where the type has a minimum,   C = fma(mw * da, (float)sum qa, C)
 * from C = 0, with dw and mw the f32 values (products of the super-block's factors rounded once
 * each); Q6_K has two halves of 16 per block, each its own fma. Denormals are zero. Every
 * instruction set gives the same bits; a row's bits do not depend on the other rows. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "kernels/layout.h"

typedef enum rk_quant {
    RK_QUANT_NONE, /* elements of a dtype */
    RK_QUANT_Q8_0,
    RK_QUANT_Q4_0,
    RK_QUANT_Q4_1,
    RK_QUANT_Q5_0,
    RK_QUANT_Q5_1,
    RK_QUANT_Q4_K,
    RK_QUANT_Q5_K,
    RK_QUANT_Q6_K,
    RK_QUANTS,
} rk_quant;

const char *rk_quant_name(rk_quant q);          /* "Q4_K" */
rk_quant    rk_quant_of_name(const char *name); /* RK_QUANT_NONE where there is none */
/* Inputs and bytes of one stored block: 32 or 256 inputs. A matrix can stay quantised when its k is a
 * multiple of this. */
int     rk_quant_block(rk_quant q);
int64_t rk_quant_block_bytes(rk_quant q);

/* Bytes of a packed matrix; outputs round up to 32. */
int64_t rk_quant_bytes(rk_quant q, int64_t n, int64_t k);

/* Put one output's stored row (k / block blocks, any alignment) into a packed image.
 * Shapes: image rk_quant_bytes, zero where no row was put */
void rk_quant_pack_row(rk_quant q, void *image, int64_t k, int64_t row, const void *src);

/* One output's row out of a packed matrix, f32, as rk_ggml_dequant of core makes it from the file.
 * Shapes: dst [k] */
void rk_quant_unpack_row(rk_quant q, const void *image, int64_t k, int64_t row, float *dst);

/* m rows of int8 activations: what quantise fills and dot reads. */
int64_t rk_quant_act_bytes(int64_t m, int64_t k);

/* Once per instruction set. */
typedef struct rk_quant_isa {
    const char *name; /* "scalar", "avx2", "avx512vnni" */

    /* Rows [0, m) of packed one-limb bf16 activations (m, k) to int8.
     * Shapes: q rk_quant_act_bytes(m, k), 64-byte aligned */
    void (*quantise)(const uint16_t *act, int m, int64_t k, void *q);

    /* c[i][j] = C of row i and output 16 g0 + j, for groups [g0, g1). Any m >= 1, the same that
     * quantise had; reads each weight once from memory for up to 16 rows.
     * Shapes: c [m][ldc], ldc >= 16 (g1 - g0) */
    void (*dot)(rk_quant t, const void *image, int64_t k, const void *q, int m, int g0, int g1,
                float *c, int64_t ldc);

    /* Group g of the matrix, k blocks [b0, b1) of 32, as bf16 tiles: rounded from unpack_row's f32.
     * Shapes: out [b1 - b0] tiles of 512, b_step elements apart ([16 k pairs][16 outputs][2]) */
    void (*to_bf16)(rk_quant t, const void *image, int64_t k, int g, int64_t b0, int64_t b1,
                    int64_t b_step, uint16_t *out);
} rk_quant_isa;

extern const rk_quant_isa rk_quant_scalar, rk_quant_avx2, rk_quant_avx512vnni;
