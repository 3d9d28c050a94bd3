/* quant_layout.h - where the bytes of a packed quantised matrix and of int8 activations lie.
 *
 * A matrix is an array of groups of 16 outputs. A group is a run of blocks of 32 inputs in units:
 * a header for `unit` blocks, then their codes, block by block. All is a multiple of 64 bytes and
 * linear in memory and read in ascending order, so that a walk along k, and on to the next group,
 * is one stream (in another order within a block DRAM gives half). A last unit of fewer blocks has
 * the whole header and its own blocks' codes only.
 *
 *   header of   Q8_0 Q4_0 Q5_0          2 blocks: f16 d [2 blocks][16 outputs]
 *               Q4_1 Q5_1               1 block:  f16 d [16], f16 m [16]
 *               Q4_K Q5_K               8 blocks: f16 d [16], f16 dmin [16]; before the codes of
 *                                       each 2 blocks, bytes [2 blocks][scale, min][16]
 *               Q6_K                    8 blocks: f16 d [16], 32 unused; before the codes of each 2
 *                                       blocks, signed bytes scale [2 blocks][2 halves][16]
 *   codes       unsigned (bias subtracted by the reader). A plane is 64 bytes: byte 4 o + i is of
 *               output o, input i of a quad of inputs; quad j is inputs 4 j .. 4 j + 3.
 *               8 bits: plane j is quad j
 *               4 bits: low half-bytes of plane p are quad 2 p, high half-bytes quad 2 p + 1
 *               5 bits: a plane of which bit j is bit 4 of quad j, then planes as of 4 bits
 *               6 bits: a plane of which bits 2 j, 2 j + 1 are bits 4, 5 of quad j, two planes as
 *                       of 4 bits; the same for quads 4 to 7
 *
 * One output's bytes are its own in every plane: rows may be packed by several threads. */
#pragma once
#include <string.h>

#include "base/tensor.h"
#include "kernels/quant.h"

typedef struct rk_quant_form {
    const char *name;
    int         stored, stored_bytes; /* inputs and bytes of a block in the file */
    int         unit;                 /* blocks that share a header */
    int         bits, codes;          /* of one code; bytes of a block's codes */
    int         bias;                 /* a code stands for code - bias */
    int         halves;               /* scales per block */
    bool        has_min;
} rk_quant_form;

static const rk_quant_form rk_quant_forms[RK_QUANTS] = {
    [RK_QUANT_Q8_0] = {"Q8_0", 32, 34, 2, 8, 512, 128, 1, false},
    [RK_QUANT_Q4_0] = {"Q4_0", 32, 18, 2, 4, 256, 8, 1, false},
    [RK_QUANT_Q4_1] = {"Q4_1", 32, 20, 1, 4, 256, 0, 1, true},
    [RK_QUANT_Q5_0] = {"Q5_0", 32, 22, 2, 5, 320, 16, 1, false},
    [RK_QUANT_Q5_1] = {"Q5_1", 32, 24, 1, 5, 320, 0, 1, true},
    [RK_QUANT_Q4_K] = {"Q4_K", 256, 144, 8, 4, 256, 0, 1, true},
    [RK_QUANT_Q5_K] = {"Q5_K", 256, 176, 8, 5, 320, 0, 1, true},
    [RK_QUANT_Q6_K] = {"Q6_K", 256, 210, 8, 6, 384, 32, 2, false},
};

static inline bool rk_quant_is_k(rk_quant t) { return rk_quant_forms[t].unit == 8; }

enum { RK_QUANT_HEADER = 64 };

/* In a unit: a K type's scales and minima (bytes) of the i-th block, and the i-th block's codes. */
static inline int rk_quant_bytes_at(rk_quant t, int i) {
    return RK_QUANT_HEADER + i / 2 * (64 + 2 * rk_quant_forms[t].codes) + i % 2 * 32;
}
static inline int rk_quant_codes_at(rk_quant t, int i) {
    int lines = rk_quant_is_k(t) ? i / 2 + 1 : 0;
    return RK_QUANT_HEADER + 64 * lines + i * rk_quant_forms[t].codes;
}

/* In a group: the unit that block b lies in. */
static inline int64_t rk_quant_unit_at(rk_quant t, int64_t b) {
    int last = rk_quant_forms[t].unit - 1;
    return b / (last + 1) * (rk_quant_codes_at(t, last) + rk_quant_forms[t].codes);
}
static inline int64_t rk_quant_group_bytes(rk_quant t, int64_t n_blocks) {
    int last = (int)((n_blocks - 1) % rk_quant_forms[t].unit);
    return rk_quant_unit_at(t, n_blocks - 1) + rk_quant_codes_at(t, last) + rk_quant_forms[t].codes;
}

/* Where a block's low half-bytes of quad j lie, and its upper bits with the first one's place. */
static inline int rk_quant_low_at(rk_quant t, int j) {
    int bits = rk_quant_forms[t].bits;
    return 64 * (j / 2 + (bits == 5) + (bits == 6) * (1 + j / 4));
}
static inline int rk_quant_high_at(rk_quant t, int j) {
    return rk_quant_forms[t].bits == 5 ? 0 : 192 * (j / 4);
}
static inline int rk_quant_high_bit(rk_quant t, int j) {
    return rk_quant_forms[t].bits == 5 ? j : j % 4 * 2;
}

/* Code of output o, input k of a block. */
static inline int rk_quant_code(rk_quant t, const uint8_t *codes, int o, int k) {
    int j = k / 4, at = 4 * o + k % 4, bits = rk_quant_forms[t].bits;
    if (bits == 8) return codes[64 * j + at];
    int low = codes[rk_quant_low_at(t, j) + at] >> (j % 2 * 4) & 15;
    if (bits == 4) return low;
    int high = codes[rk_quant_high_at(t, j) + at] >> rk_quant_high_bit(t, j);
    return low | (high & (bits == 5 ? 1 : 3)) << 4;
}

static inline float rk_quant_f16_at(const uint8_t *header, int i) {
    uint16_t h;
    memcpy(&h, header + 2 * i, sizeof h);
    return rk_f16_to_f32(h);
}

/* dw and mw of output o, i-th block of a unit, half of Q6_K's block: w = dw (code - bias) + mw. */
static inline float rk_quant_dw(rk_quant t, const uint8_t *unit, int i, int half, int o) {
    if (!rk_quant_is_k(t)) return rk_quant_f16_at(unit, i * 16 + o);
    float d = rk_quant_f16_at(unit, o);
    if (t == RK_QUANT_Q6_K) {
        int8_t s;
        memcpy(&s, unit + rk_quant_bytes_at(t, i) + 16 * half + o, 1);
        return d * (float)s;
    }
    return d * (float)unit[rk_quant_bytes_at(t, i) + o];
}
static inline float rk_quant_mw(rk_quant t, const uint8_t *unit, int i, int o) {
    if (!rk_quant_forms[t].has_min) return 0;
    float m = rk_quant_f16_at(unit, 16 + o);
    return rk_quant_is_k(t) ? -(m * (float)unit[rk_quant_bytes_at(t, i) + 16 + o]) : m;
}

/* Weight of output o, input k of a block: products and sums rounded as core's dequantiser does. */
static inline float rk_quant_weight(rk_quant t, const uint8_t *unit, int i, int o, int k) {
    const rk_quant_form *f = &rk_quant_forms[t];
    int                  q = rk_quant_code(t, unit + rk_quant_codes_at(t, i), o, k) - f->bias;
    float                p = rk_quant_dw(t, unit, i, k * f->halves / 32, o) * (float)q;
    return f->has_min ? p + rk_quant_mw(t, unit, i, o) : p;
}

/* A block as a bf16 tile ([16 k pairs][16 outputs][2]), whatever its scales hold. */
static inline void rk_quant_tile(rk_quant t, const uint8_t *unit, int i, uint16_t *out) {
    for (int k = 0; k < 32; k++)
        for (int o = 0; o < 16; o++)
            out[k / 2 * 32 + o * 2 + k % 2] = rk_f32_to_bf16(rk_quant_weight(t, unit, i, o, k));
}

/* One row's block of int8 activations. Records lie as [panels of 8 rows][blocks][rows of the
 * panel]: a last panel of fewer rows is narrower. */
typedef struct rk_quant_act {
    int8_t  q[32];
    float   da, sum;     /* sum of q */
    int32_t neg, neg_lo; /* minus the sum of all, and of the first 16: an accumulator starts from
                            bias times it */
} rk_quant_act;

enum {
    RK_QUANT_PANEL = 8,
    /* Bytes that dot asks for ahead of its place. Measured on Zen 5, k = 1536, one thread: with
     * several rows too few loads are in flight to hide memory (Q4_1, 8 rows: 18 GB/s without, 23 at
     * 4 KiB, 27 at 8 KiB, 26 at 12 KiB); one row gains 2 to 6 %, a K type a half. */
    RK_QUANT_AHEAD = 8192,
};

static inline int rk_quant_panel_rows(int m, int row) {
    int left = m - row / RK_QUANT_PANEL * RK_QUANT_PANEL;
    return left < RK_QUANT_PANEL ? left : RK_QUANT_PANEL;
}
static inline int64_t rk_quant_act_at(int m, int row, int64_t b, int64_t n_blocks) {
    int64_t first = row / RK_QUANT_PANEL * RK_QUANT_PANEL;
    return first * n_blocks + b * rk_quant_panel_rows(m, row) + row % RK_QUANT_PANEL;
}
