/* quant.c - the types of quant.h, and rows into and out of packed matrices (quant_layout.h says
 * where every byte lies).
 *
 * Source: the block layouts of the GGUF specification; 4-bit codes are pairs of half-bytes whose
 * values stand 16 (blocks of 32) or 32 (K types) apart. */
#include "kernels/quant_layout.h"

enum { BLOCK = 32 };

const char *rk_quant_name(rk_quant q) {
    return q > RK_QUANT_NONE && q < RK_QUANTS ? rk_quant_forms[q].name : "none";
}

rk_quant rk_quant_of_name(const char *name) {
    for (int q = RK_QUANT_NONE + 1; q < RK_QUANTS; q++)
        if (strcmp(rk_quant_forms[q].name, name) == 0) return (rk_quant)q;
    return RK_QUANT_NONE;
}

int rk_quant_block(rk_quant q) { return rk_quant_forms[q].stored; }

int64_t rk_quant_block_bytes(rk_quant q) { return rk_quant_forms[q].stored_bytes; }

int64_t rk_quant_bytes(rk_quant q, int64_t n, int64_t k) {
    return rk_round_up(n, 32) / 16 * rk_quant_group_bytes(q, k / BLOCK);
}

int64_t rk_quant_act_bytes(int64_t m, int64_t k) {
    return m * (rk_round_up(k, BLOCK) / BLOCK) * (int64_t)sizeof(rk_quant_act);
}

/* ---- stored blocks ---- */

static void halves(const uint8_t *src, uint8_t *q) {
    for (int k = 0; k < 16; k++) {
        q[k] = src[k] & 15;
        q[16 + k] = src[k] >> 4;
    }
}

static void add_bit4(const uint8_t *src, uint8_t *q) {
    for (int k = 0; k < BLOCK; k++) q[k] |= (uint8_t)((src[k / 8] >> k % 8 & 1) << 4);
}

/* Unsigned codes of the i-th 32 inputs of a stored block. */
static void stored_codes(rk_quant t, const uint8_t *src, int i, uint8_t q[BLOCK]) {
    switch (t) {
    case RK_QUANT_Q8_0:
        for (int k = 0; k < BLOCK; k++) q[k] = src[2 + k] ^ 0x80;
        break;
    case RK_QUANT_Q4_0: halves(src + 2, q); break;
    case RK_QUANT_Q4_1: halves(src + 4, q); break;
    case RK_QUANT_Q5_0:
        halves(src + 6, q);
        add_bit4(src + 2, q);
        break;
    case RK_QUANT_Q5_1:
        halves(src + 8, q);
        add_bit4(src + 4, q);
        break;
    case RK_QUANT_Q4_K:
        for (int k = 0; k < BLOCK; k++) q[k] = src[16 + i / 2 * 32 + k] >> (i % 2 * 4) & 15;
        break;
    case RK_QUANT_Q5_K:
        for (int k = 0; k < BLOCK; k++) {
            int low = src[48 + i / 2 * 32 + k] >> (i % 2 * 4) & 15;
            q[k] = (uint8_t)(low | (src[16 + k] >> i & 1) << 4);
        }
        break;
    default: /* Q6_K: halves of 128, quarters of 32 in them */
        for (int k = 0; k < BLOCK; k++) {
            int low = src[i / 4 * 64 + i % 2 * 32 + k] >> (i % 4 / 2 * 4) & 15;
            q[k] = (uint8_t)(low | (src[128 + i / 4 * 32 + k] >> (i % 4 * 2) & 3) << 4);
        }
    }
}

/* Scale and minimum i of a K block: six bits each; the upper two of the last four lie in the upper
 * bits of the first eight bytes. */
static void six_bits(const uint8_t *s, int i, uint8_t *scale, uint8_t *min) {
    if (i < 4) {
        *scale = s[i] & 63;
        *min = s[i + 4] & 63;
    } else {
        *scale = (uint8_t)((s[i + 4] & 15) | s[i - 4] >> 6 << 4);
        *min = (uint8_t)(s[i + 4] >> 4 | s[i] >> 6 << 4);
    }
}

/* ---- rows ---- */

static void put_codes(rk_quant t, const uint8_t q[BLOCK], uint8_t *at) {
    int     bits = rk_quant_forms[t].bits;
    uint8_t low[4];
    for (int j = 0; bits == 8 && j < 8; j++) memcpy(at + 64 * j, q + 4 * j, 4);
    for (int j = 0; bits < 8 && j < 8; j += 2) {
        for (int i = 0; i < 4; i++) low[i] = (uint8_t)((q[4 * j + i] & 15) | q[4 * j + 4 + i] << 4);
        memcpy(at + rk_quant_low_at(t, j), low, 4);
    }
    for (int part = 0; part < bits - 4 && bits < 8; part++) /* planes of upper bits */
        for (int i = 0; i < 4; i++) {
            int high = 0, quads = 8 / (bits - 4);
            for (int j = part * quads; j < (part + 1) * quads; j++)
                high |= q[4 * j + i] >> 4 << rk_quant_high_bit(t, j);
            at[rk_quant_high_at(t, part * quads) + i] = (uint8_t)high;
        }
}

/* What the header keeps of a stored block, the i-th of its unit (the only one for K types). */
static void put_header(rk_quant t, const uint8_t *src, int i, int o, uint8_t *unit) {
    if (t == RK_QUANT_Q6_K) {
        memcpy(unit + 2 * o, src + 208, 2);
        for (int s = 0; s < 16; s++)
            unit[rk_quant_bytes_at(t, s / 2) + s % 2 * 16 + o] = src[192 + s];
        return;
    }
    memcpy(unit + 2 * (16 * i + o), src, 2);
    if (rk_quant_forms[t].has_min) memcpy(unit + 2 * (16 + o), src + 2, 2);
    for (int s = 0; rk_quant_is_k(t) && s < 8; s++)
        six_bits(src + 4, s, &unit[rk_quant_bytes_at(t, s) + o],
                 &unit[rk_quant_bytes_at(t, s) + 16 + o]);
}

void rk_quant_pack_row(rk_quant q, void *image, int64_t k, int64_t row, const void *src) {
    const rk_quant_form *f = &rk_quant_forms[q];
    int                  o = (int)(row % 16), per = f->stored / BLOCK;
    uint8_t             *group = (uint8_t *)image + row / 16 * rk_quant_group_bytes(q, k / BLOCK);
    const uint8_t       *from = src;
    for (int64_t b = 0; b < k / BLOCK; b += per, from += f->stored_bytes) {
        uint8_t *unit = group + rk_quant_unit_at(q, b), codes[BLOCK];
        int      first = (int)(b % f->unit);
        put_header(q, from, first, o, unit);
        for (int i = 0; i < per; i++) {
            stored_codes(q, from, i, codes);
            put_codes(q, codes, unit + rk_quant_codes_at(q, first + i) + 4 * o);
        }
    }
}

void rk_quant_unpack_row(rk_quant q, const void *image, int64_t k, int64_t row, float *dst) {
    const uint8_t *group = (const uint8_t *)image + row / 16 * rk_quant_group_bytes(q, k / BLOCK);
    for (int64_t b = 0; b < k / BLOCK; b++) {
        const uint8_t *unit = group + rk_quant_unit_at(q, b);
        for (int i = 0; i < BLOCK; i++)
            dst[b * BLOCK + i] =
                rk_quant_weight(q, unit, (int)(b % rk_quant_forms[q].unit), (int)(row % 16), i);
    }
}
