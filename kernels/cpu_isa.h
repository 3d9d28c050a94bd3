/* cpu_isa.h - the inner kernels that exist once per instruction set, with equal bits.
 *
 * All work on bf16 in the layouts of layout.h and accumulate in the tile order of backend.h. Each
 * works on its own piece of a job, so that cpu.c can give pieces to threads. */
#pragma once
#include "kernels/backend.h"

enum {
    RK_ATT_ROWS = 16,    /* most query rows of one attention tile */
    RK_ATT_PART = 1024,  /* slots of a part with its own m, l, O */
    RK_GEMM_BLOCK = 96,  /* activation rows unpacked at a time */
};

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
    /* merged K and V pages (hi, lo), unpacked q (2 limbs), p (2 limbs), scores */
    return 4 * rk_page_bytes(d, RK_BF16) + RK_ATT_ROWS * (2 * (int64_t)d + 3 * RK_PAGE_KEYS) * 4;
}

typedef struct rk_cpu_isa {
    const char *name;
    int att_rows; /* rows of a tile that suit the register file */

    /* out[m][n] for n in [n0, n1) multiples of 16. scratch: RK_GEMM_BLOCK * K * limbs floats */
    void (*gemm)(const void *act, int limbs, int m, const rk_mat *w, const float *bias, bool add,
                 float *out, int ld_out, int n0, int n1, float *scratch);
    void (*rmsnorm)(const float *x, const float *w, float eps, int row0, int row1, int d_model,
                    int limbs, void *act);
    void (*silu_mul)(const float *gu, int row0, int row1, int d_ffn, int limbs, void *act);
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

extern const rk_cpu_isa rk_cpu_scalar, rk_cpu_avx2, rk_cpu_avx512;
