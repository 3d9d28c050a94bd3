/* cpu_isa.h - the inner kernels that exist once per instruction set and order of sums; tables of one
 * order give equal bits.
 *
 * All work on bf16 in the layouts of layout.h and accumulate in an order of backend.h. Each works on
 * its own piece of a job, so that cpu.c can give pieces to threads. */
#pragma once
#include "kernels/backend.h"

enum {
    RK_ATT_ROWS = 48,      /* most query rows of one attention tile: with a page they fit the L1 */
    RK_ATT_PART = 1024,    /* slots of a part with its own m, l, O */
    RK_GEMM_BLOCK = 96,    /* activation rows widened at a time (paths on f32 lanes) */
    RK_GEMM_ROWS = 256,    /* activation rows that stay in the second-level cache (bf16 paths) */
    RK_GEMM_K_BLOCKS = 80, /* k blocks of a right-hand panel that stays there too */
    RK_GEMM_C = 2 * RK_GEMM_ROWS * 32,             /* floats of C between pieces of k */
    RK_GEMM_PANEL = RK_GEMM_K_BLOCKS * 4 * RK_TILE, /* bf16 of a panel made from quantised weights */
};

typedef enum rk_gemm_kind {
    RK_GEMM_STORE,
    RK_GEMM_ADD,
    RK_GEMM_SILU_MUL, /* panels of 16 gate and 16 up outputs; activations come out */
} rk_gemm_kind;

/* A matrix product as backend.h's gemm and gemm_silu_mul describe it. */
typedef struct rk_gemm {
    rk_gemm_kind        kind;
    const void         *act;
    int                 limbs, m;
    const rk_mat       *w;
    const float        *bias;
    float              *out;
    int                 ld_out;
    void               *act_out;
    const rk_quant_isa *quant;
} rk_gemm;

/* A part's state for one tile: maxima, lanes of sums, outputs. */
typedef struct rk_att_state {
    float m[RK_ATT_ROWS];
    float l[RK_ATT_ROWS][16];
    float o[]; /* [RK_ATT_ROWS][d] */
} rk_att_state;
static inline int64_t rk_att_state_bytes(int d) {
    return rk_round_up((int64_t)sizeof(rk_att_state) + (int64_t)RK_ATT_ROWS * d * 4, 64);
}

/* One tile of query rows of one stored head over one part of its chain. */
typedef struct rk_att_tile {
    int            n_rows, head_dim, limbs;
    float          scale_log2;   /* scale * log2 e */
    const float   *q[RK_ATT_ROWS];
    int64_t        visible[RK_ATT_ROWS]; /* slots that row i sees, from 0 */
    const rk_span *spans;        /* [n_spans], every stride-th */
    int            n_spans, stride;
    void          *scratch;      /* rk_att_scratch_bytes */
} rk_att_tile;
static inline int64_t rk_att_scratch_bytes(int d) {
    /* merged K and V pages (hi, lo), q and p (2 limbs), scores */
    return 4 * rk_page_bytes(d, RK_BF16) + RK_ATT_ROWS * (2 * (int64_t)d + 3 * RK_PAGE_KEYS) * 4;
}
static inline int64_t rk_gemm_scratch_bytes(const rk_mat *w, int limbs) {
    return RK_GEMM_C * 4 + RK_GEMM_PANEL * 2 + RK_GEMM_BLOCK * rk_round_up(w->k, 32) * limbs * 4;
}

typedef struct rk_cpu_isa {
    const char *name, *numerics;

    /* All rows of groups [g0, g1) of 16 outputs; g0 even. Scratch: rk_gemm_scratch_bytes, 64-byte
     * aligned. */
    void (*gemm)(const rk_gemm *j, int g0, int g1, void *scratch);
    /* What gemm does with a finished product, for one that was made elsewhere.
     * Shapes: c [m][ldc], the outputs of groups [g0, g1) */
    void (*gemm_finish)(const rk_gemm *j, const float *c, int64_t ldc, int g0, int g1);
    void (*rmsnorm)(const float *x, const float *w, float eps, int row0, int row1, int d_model,
                    int limbs, void *act);
    /* Part `part` of a tile; state is overwritten. */
    void (*attend_part)(const rk_att_tile *t, int part, rk_att_state *state);
    /* total = total merged with next (total first when the first part is taken: copied). */
    void (*attend_merge)(int n_rows, int d, rk_att_state *total, const rk_att_state *next);
    /* Rows out of the final state into activations: row i goes to act row act_row[i], columns
     * col[i] .. col[i] + d. */
    void (*attend_store)(int n_rows, int d, const rk_att_state *s, int limbs, int width,
                         const int *act_row, const int *col, void *act);
    /* Window sums of one query head. q [w] rows; t scratch of w * round_up(n, 64) floats; scratch
     * as attention's. mass [n] is overwritten. */
    void (*window_mass)(const rk_att_tile *proto, const float *q, int64_t q_stride, int w, int32_t n,
                        float *t, float *mass);
    void (*perturb)(int head_dim, const rk_span *src, float eps, uint64_t seed, uint32_t layer,
                    uint32_t kv_head, uint32_t sample, uint32_t draw, const rk_span *dst, int32_t i0,
                    int32_t i1);
    /* For tests: y = exp2(x) as the kernels compute it. */
    void (*exp2)(const float *x, int n, float *y);
} rk_cpu_isa;

extern const rk_cpu_isa rk_cpu_tile_scalar, rk_cpu_tile_avx2, rk_cpu_tile_avx512, rk_cpu_tile_amx;
extern const rk_cpu_isa rk_cpu_pair_scalar, rk_cpu_pair_avx2, rk_cpu_pair_avx512, rk_cpu_pair_bf16;
