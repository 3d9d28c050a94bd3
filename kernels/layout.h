/* layout.h - where an element lies in packed weights, activations and cache pages.
 *
 * One layout for every backend and instruction set; only the element type differs (bf16 on the fast
 * path, f32 on ref). All sizes are in elements. A "tile" is 512 elements: 16 pairs x 16 columns x 2
 * for a right-hand operand, 16 rows x 32 for a left-hand one (1 KiB in bf16, one AMX tile).
 *
 *   weights      [N/32][K/32][2 halves][16 k pairs][16 columns][2]
 *   activations  [M/16][K/32][limbs][16 rows][32]
 *   K page       [4 key groups][d/32][16 dim pairs][16 keys][2]       64 keys
 *   V page       [2 key groups of 32][d/16][16 key pairs][16 dims][2] 64 keys
 *
 * Dimensions round up to the tile; what lies beyond is zero and stays zero. A page of RK_BF16X2 is
 * the page of the hi parts followed by the page of the lo parts; limbs = 2 likewise, per k block. */
#pragma once
#include <stdint.h>

enum { RK_TILE = 512, RK_PAGE_KEYS = 64 };

static inline int64_t rk_round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* Weight of output n, input k; K inputs. */
static inline int64_t rk_mat_at(int64_t n, int64_t k, int64_t K) {
    int64_t kb = rk_round_up(K, 32) / 32;
    return ((n / 32 * kb + k / 32) * 2 + n % 32 / 16) * RK_TILE + k % 32 / 2 * 32 + n % 16 * 2 + k % 2;
}
static inline int64_t rk_mat_count(int64_t N, int64_t K) {
    return rk_round_up(N, 32) * rk_round_up(K, 32);
}

/* Limb (0 hi, 1 lo) of activation row m, column k. */
static inline int64_t rk_act_at(int64_t m, int64_t k, int64_t K, int limbs, int limb) {
    int64_t kb = rk_round_up(K, 32) / 32;
    return ((m / 16 * kb + k / 32) * limbs + limb) * RK_TILE + m % 16 * 32 + k % 32;
}
static inline int64_t rk_act_count(int64_t M, int64_t K, int limbs) {
    return rk_round_up(M, 16) * rk_round_up(K, 32) * limbs;
}

/* Key slot (0..63) and dim within a K page; d a multiple of 32. */
static inline int64_t rk_kpage_at(int slot, int dim, int d) {
    return (slot / 16 * (d / 32) + dim / 32) * RK_TILE + dim % 32 / 2 * 32 + slot % 16 * 2 + dim % 2;
}
static inline int64_t rk_vpage_at(int slot, int dim, int d) {
    return (slot / 32 * (d / 16) + dim / 16) * RK_TILE + slot % 32 / 2 * 32 + dim % 16 * 2 + slot % 2;
}
static inline int64_t rk_page_count(int d) { return (int64_t)RK_PAGE_KEYS * d; }
