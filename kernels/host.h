/* host.h - what the two host backends share: the handle, chains of spans, kernels per instruction
 * set.
 *
 * Kernels come as one table per instruction set (cpu_scalar.c, cpu_avx2.c, cpu_avx512.c), all from
 * the same source, and give the same bits. A kernel does one task of an op: cpu.c and ref.c decide
 * the tasks and the scratch. */
#pragma once
#include "kernels/backend.h"
#include "kernels/pool.h"

typedef enum rk_isa { RK_ISA_SCALAR, RK_ISA_AVX2, RK_ISA_AVX512, RK_ISA_COUNT } rk_isa;

enum {
    RK_STRIP_ROWS = 12,  /* rows that one product keeps in registers */
    RK_TILE_ROWS = 24,   /* rows of one attention task */
    RK_PART_BLOCKS = 16, /* 1024 slots */
    RK_REF_ROWS = 32,    /* rows of one attention task of ref */
};

/* The chain of one stored head: span s is at[s * stride]. */
typedef struct rk_chain {
    const rk_span *at;
    int            n_spans, stride;
} rk_chain;

typedef struct rk_gemm_job {
    const void  *act;
    int          limbs, m;
    const rk_mat *w;
    const float *bias; /* or NULL */
    bool         add;
    float       *out;
    int          ld_out;
    int          task_rows, task_panels, n_row_tasks; /* task = panel task * n_row_tasks + row task */
    char        *scratch;
    int64_t      scratch_stride; /* bytes per thread */
} rk_gemm_job;

typedef struct rk_attend_job {
    rk_attn_shape      sh;
    const float       *qkv;
    const rk_seq_rows *sets;
    int                n_sets, limbs;
    void              *out;
    const int32_t     *first_task; /* [n_sets + 1] of (G x tiles) */
    bool               split;      /* each part is a task of its own; states at state */
    const int32_t     *first_part; /* [n_tasks + 1], if split */
    float             *state;
    char              *scratch;
    int64_t            scratch_stride;
} rk_attend_job;

typedef struct rk_window_job {
    rk_attn_shape  sh;
    const float   *q;
    int            w, n_spans;
    const rk_span *spans;
    int32_t        n;
    float         *mass;
    char          *scratch;
    int64_t        scratch_stride;
} rk_window_job;

typedef struct rk_rows_job {
    const float *x, *w; /* rmsnorm: rows and weights; silu: gate and up */
    float        eps;
    int          m, width, limbs, task_rows;
    void        *act;
} rk_rows_job;

typedef struct rk_rope_job {
    rk_attn_shape      sh;
    float             *qkv;
    const int32_t     *pos;
    const float       *table;
    const rk_seq_rows *sets;
    int                n_sets, m, task_rows;
} rk_rope_job;

typedef struct rk_perturb_job {
    int            head_dim;
    const rk_span *src, *dst;
    float          eps;
    uint64_t       seed;
    uint32_t       layer, kv_head, sample, draw;
    char          *scratch;
    int64_t        scratch_stride;
} rk_perturb_job;

/* Each kernel is an rk_pool_fn; arg is the job of its name. */
typedef struct rk_kernels {
    const char *isa;
    /* bf16, "tile" order */
    rk_pool_fn gemm, attend, attend_merge, window, rmsnorm, silu, rope, perturb;
    /* f32, ascending sums */
    rk_pool_fn ref_gemm, ref_attend, ref_window, ref_perturb;
    void (*exp2)(const float *x, int n, float *y); /* for tests; flushes nothing by itself */
} rk_kernels;
extern const rk_kernels rk_kernels_scalar, rk_kernels_avx2, rk_kernels_avx512;

typedef struct rk_host {
    rk_backend        be; /* first */
    rk_pool          *pool;
    const rk_kernels *kern;
    void             *scratch;
    int64_t           scratch_bytes;
} rk_host;

/* The op tables, one per instruction set. */
extern const rk_backend_ops rk_cpu_ops[RK_ISA_COUNT], rk_ref_ops[RK_ISA_COUNT];

/* Scratch sizes in bytes, as the kernels lay it out. */
int64_t rk_gemm_scratch(int k, int limbs);
int64_t rk_attend_scratch(int head_dim, int limbs);
int64_t rk_attend_state(int head_dim); /* floats of one part's m, l, O */
int64_t rk_window_scratch(int head_dim, int w);
int64_t rk_perturb_scratch(int head_dim);
int64_t rk_ref_gemm_scratch(int k);
int64_t rk_ref_attend_scratch(int head_dim, int64_t n_slots);

static inline rk_host *rk_host_of(rk_backend *be) {
    return (rk_host *)(void *)be;
}

/* Ops that both tables share. */
rk_status rk_host_open(const rk_backend_ops *ops, int n_threads, rk_isa isa, bool bf16, rk_backend **out);
void      rk_host_close(rk_backend *be);
rk_status rk_host_alloc(rk_backend *be, int64_t bytes, const char *what, void **dev);
void      rk_host_release(rk_backend *be, void *dev);
rk_status rk_host_upload(rk_backend *be, void *dev, const void *host, int64_t bytes);
rk_status rk_host_download(rk_backend *be, void *host, const void *dev, int64_t bytes);
rk_status rk_host_zero(rk_backend *be, void *dev, int64_t bytes);
rk_status rk_host_sync(rk_backend *be);
rk_status rk_host_embed(rk_backend *be, const rk_mat *table, const int32_t *tokens, int n, float *x);
rk_status rk_host_take_rows(rk_backend *be, const float *src, const int32_t *index, int n, int width,
                            float *dst);
rk_status rk_host_kv_gather(rk_backend *be, int head_dim, const rk_span *chain, int n_spans,
                            const int32_t *slot, int32_t n, const rk_span *dst);
rk_status rk_host_kl_rows(rk_backend *be, const float *ref, int n_ref, const float *pert, int n,
                          int n_vocab, double *out);

/* At least bytes of scratch that lives until the next call; grows, never shrinks. */
rk_status rk_host_scratch(rk_host *h, int64_t bytes, void **out);

/* Rows per task so that a thread gets several tasks, each of at least min_work units. */
int rk_host_task_rows(const rk_host *h, int m, int64_t work_per_row);

/* Shapes that the kernels rely on. Errors: RK_E_BUG */
rk_status rk_host_check_attn(const rk_attn_shape *sh);
rk_status rk_host_check_chain(const rk_backend *be, rk_chain c, int64_t at_least);

/* Slots of a chain. */
static inline int64_t rk_chain_slots(rk_chain c) {
    int64_t n = 0;
    for (int s = 0; s < c.n_spans; s++) n += c.at[s * c.stride].n;
    return n;
}

static inline rk_chain rk_set_chain(const rk_seq_rows *set, int kv_head, int n_kv_heads) {
    return (rk_chain){.at = set->spans + kv_head, .n_spans = set->n_spans, .stride = n_kv_heads};
}
