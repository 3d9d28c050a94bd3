/* backend.h - the op table: everything the engine asks of a device, at transformer grain.
 *
 * A table has no empty slot. Ops are enqueued in order and return before they are done on an
 * asynchronous device; only sync and download block, and errors of earlier ops may surface there.
 * Pointers named "dev" come from alloc of the same backend; other pointers are host memory that is
 * read before the op returns. On ref and cpu device memory is host memory.
 *
 * Numbers. ref: f32 throughout, one fixed order per sum (ascending index, multiply then add).
 * cpu: bf16 weights, cache and activations, f32 accumulation in one of two orders, "tile" or "pair".
 *   tile: per block of 32 along k, e = fma(a[2j], b[2j], e) and o = fma(a[2j+1], b[2j+1], o) for
 *         j = 0..15 from e = o = 0, then C = C + (e + o); blocks ascend. AMX's TDPBF16PS does this.
 *   pair: one chain, C = fma(a[2j+1], b[2j+1], C), then C = fma(a[2j], b[2j], C), j ascending over
 *         the whole of k. AVX512_BF16's VDPBF16PS does this.
 * Denormals are zero (FTZ, DAZ). Scalar fmaf, AVX2 and AVX-512 give the same bits in either order.
 * RK_ROWS_EXACT ("measurement rows", f32 precision) split every left operand into hi + lo bf16
 * limbs: per k block first the hi limb into C, then the lo limb. Where the right operand is
 * RK_BF16X2 too: hi hi, hi lo (left hi, right lo), lo hi, lo lo, each into C in turn.
 * RK_ROWS_DECODE are plain rows, but against quantised weights their activations become int8
 * (quant.h); other rows see such weights as bf16, rounded from what the file says.
 *
 * Attention of one query row and head, on fast paths: slots of the chain are counted across its spans;
 * blocks of 64 slots; t = s * (scale * log2 e); running maximum m, alpha = exp2(m_old - m),
 * p = exp2(t - m); l kept in 16 lanes (lane = slot % 16: lanes += p of slots 0-15, 16-31, 32-47,
 * 48-63 in this order after scaling by alpha), O = O * alpha, then p (rounded to bf16, or hi + lo)
 * times V in two k blocks of 32 slots. l sums the unrounded p. Every 1024 slots start a part with
 * its own m, l, O; parts merge in ascending order: M = max(m_a, m_b), f = exp2(m - M) each,
 * l = l_a f_a + l_b f_b, O likewise (mul, then fma). At the end the lanes add as a binary tree
 * (i with i + 8, then + 4, + 2, + 1) and the row is O * (1 / l). exp2 is the program's own:
 * exact 0 at -inf, 1 at 0, floor and a fixed polynomial by fma on every path.
 * A row's bits depend on its own chain only: not on batch mates, chunking, threads, span cuts. */
#pragma once
#include "base/err.h"
#include "base/tensor.h"
#include "kernels/layout.h"
#include "kernels/quant.h"

typedef struct rk_backend rk_backend;

typedef enum rk_rows_kind {
    RK_ROWS_PLAIN, /* 1 limb */
    RK_ROWS_EXACT, /* 2 limbs (ref: f32, as plain) */
    RK_ROWS_DECODE, /* 1 limb; int8 against quantised weights */
} rk_rows_kind;

/* A packed weight matrix in device memory, layout rk_mat_at. */
typedef struct rk_mat {
    int      n, k; /* outputs, inputs */
    rk_dtype dtype;
    void    *dev;
    rk_quant quant; /* not NONE: packed as quant.h says, dtype is what it stands for (RK_BF16) */
} rk_mat;

/* A run of cached slots of one stored head. Page p of K starts at k + p * page elements; slot i of
 * the span lies at slot (first + i) % 64 of page (first + i) / 64. In a chain each span's first is
 * the number of slots before it, modulo 64, so that no block needs shifting: pages of neighbouring
 * spans complement each other, and lanes that a span does not own hold zeros. */
typedef struct rk_span {
    void    *k, *v; /* dev */
    rk_dtype k_dtype, v_dtype;
    int32_t  first; /* 0..63 */
    int32_t  n;     /* slots */
} rk_span;

/* Rows of one sequence in a batch, and the chain they see. */
typedef struct rk_seq_rows {
    int      row0, n_rows;
    int      n_spans;
    rk_span *spans; /* host, [n_spans][G], span-major. The last span's last n_rows slots are these
                       rows' own (n counts them); row i sees every slot but the last
                       n_rows - 1 - i */
} rk_seq_rows;

typedef struct rk_attn_shape {
    int   n_heads, n_kv_heads, head_dim; /* H, G, d; d a multiple of 32 */
    float scale;                         /* 1 / sqrt(d) */
} rk_attn_shape;

/* Of one row of logits beside its reference. */
typedef struct rk_row_score {
    double kl;   /* KL(softmax(ref) || softmax(row)) in nats; equal rows give 0 */
    double nll;  /* -log of the row's probability of the token that follows; 0 where unknown */
    double same; /* 1 where both rows have the same likeliest token (ties: the lower id), else 0 */
} rk_row_score;

typedef struct rk_backend_ops {
    const char *name;

    rk_status (*open)(const struct rk_backend_ops *ops, int n_threads, rk_backend **out);
    void (*close)(rk_backend *be);

    /* Zeroed device memory, 64-byte aligned. what names the purpose in a failure (RK_E_MEM). */
    rk_status (*alloc)(rk_backend *be, int64_t bytes, const char *what, void **dev);
    void (*release)(rk_backend *be, void *dev);
    rk_status (*upload)(rk_backend *be, void *dev, const void *host, int64_t bytes);
    rk_status (*download)(rk_backend *be, void *host, const void *dev, int64_t bytes);
    rk_status (*zero)(rk_backend *be, void *dev, int64_t bytes);
    rk_status (*sync)(rk_backend *be);

    /* x[i] = row tokens[i] of the table.
     * Shapes: table n = V, k = D; x dev f32 [n][D] */
    rk_status (*embed)(rk_backend *be, const rk_mat *table, const int32_t *tokens, int n, float *x);

    /* dst[i] = src[index[i]]; dst and src do not overlap. Shapes: dev f32 [.][width] */
    rk_status (*take_rows)(rk_backend *be, const float *src, const int32_t *index, int n, int width,
                           float *dst);

    /* act = x / sqrt(mean(x^2) + eps) * w.
     * Shapes: x dev f32 [m][D], w dev f32 [D], act dev activations (m, D) */
    rk_status (*rmsnorm)(rk_backend *be, const float *x, const float *w, float eps, int m, int d_model,
                         rk_rows_kind kind, void *act);

    /* out = act W^T [+ bias], or out += act W^T [+ bias] where add.
     * Shapes: act (m, w->k); out dev f32 [m][ld_out], ld_out >= w->n; bias dev f32 [n] or NULL */
    rk_status (*gemm)(rk_backend *be, const void *act, rk_rows_kind kind, int m, const rk_mat *w,
                      const float *bias, bool add, float *out, int ld_out);

    /* Rotate Q and K in place and append K and V to each set's last span.
     * Shapes: qkv dev f32 [m][(H + 2G) d] (q heads, k heads, v heads); table dev f32 [.][d] (d/2
     *         cosines, d/2 sines) indexed by pos; pos host i32 [m]
     * Eq:     half-split pairs (i, i + d/2) */
    rk_status (*rope_append)(rk_backend *be, const rk_attn_shape *sh, float *qkv, int m,
                             const int32_t *pos, const float *table, const rk_seq_rows *sets,
                             int n_sets);

    /* Causal attention of every row over its set's chain.
     * Shapes: qkv as above (q part is read), out dev activations (m, H d) */
    rk_status (*attend)(rk_backend *be, const rk_attn_shape *sh, const float *qkv, int m,
                        const rk_seq_rows *sets, int n_sets, rk_rows_kind kind, void *out);

    /* act_out = silu(g) * u, where (g, u) = act W^T and the outputs of W alternate: panel p of 32
     * holds gates 16 p .. 16 p + 15, then ups 16 p .. 16 p + 15; what lies beyond F is zero.
     * Shapes: act (m, w->k); w->n = 2 round_up(F, 16); act_out activations (m, w->n / 2), not act */
    rk_status (*gemm_silu_mul)(rk_backend *be, const void *act, rk_rows_kind kind, int m,
                               const rk_mat *w, void *act_out);

    /* Softmax rows of an observation window, summed over the window in ascending row order.
     * Shapes: q dev f32 [w][H d] rotated; spans host [n_spans][G] covering n slots per head, of
     *         which row i of the window sees the first n - w + 1 + i; mass dev f32 [H][n] */
    rk_status (*window_mass)(rk_backend *be, const rk_attn_shape *sh, const float *q, int w,
                             const rk_span *spans, int n_spans, int32_t n, float *mass);

    /* Copy listed slots of one head's chain to slots 0.. of dst (dst->first 0, dst->n = n, same
     * dtypes as the source). Shapes: chain [n_spans]; slot host i32 [n] ascending */
    rk_status (*kv_gather)(rk_backend *be, int head_dim, const rk_span *chain, int n_spans,
                           const int32_t *slot, int32_t n, const rk_span *dst);

    /* Keys and values of one head's chain as rows. Shapes: k, v host f32 [slots of the chain][d]; either
     * may be NULL. Blocks until done */
    rk_status (*kv_read)(rk_backend *be, int head_dim, const rk_span *chain, int n_spans, float *k,
                         float *v);

    /* dst.v = v + eps ||v|| g / ||g||, g the noise of rng.h for slot i at position i; K untouched.
     * Shapes: src one span with first 0 (BF16 or F32); dst same n and first; v RK_BF16X2 (F32 on
     *         ref). Norms: sums in f32 in ascending order by fmaf; eps 0 copies the values */
    rk_status (*kv_perturb)(rk_backend *be, int head_dim, const rk_span *src, float eps,
                            uint64_t seed, uint32_t layer, uint32_t kv_head, uint32_t sample,
                            uint32_t draw, const rk_span *dst);

    /* How rows of logits compare with reference rows, in f64.
     * Shapes: ref dev f32 [n_ref][V], rows dev f32 [n][V], row i against ref[i % n_ref]; next host
     *         i32 [n_ref], token ids that follow (-1: unknown), or NULL; out dev [n] */
    rk_status (*score_rows)(rk_backend *be, const float *ref, int n_ref, const float *rows, int n,
                            int n_vocab, const int32_t *next, rk_row_score *out);
} rk_backend_ops;

struct rk_backend {
    const rk_backend_ops *ops;
    rk_dtype weight_dtype; /* RK_BF16 or RK_F32: elements of rk_mat, of plain cache pages */
    rk_dtype exact_dtype;  /* cache pages of measurement rows: RK_BF16X2 or RK_F32 */
    int      n_threads;
    const char *numerics;  /* "tile", "pair", "f32" */
    const char *path;      /* instructions in use: "amx", "avx512bf16", "avx512", "avx2", "scalar" */
};

/* Limbs of activations. */
static inline int rk_limbs(const rk_backend *be, rk_rows_kind kind) {
    return kind == RK_ROWS_EXACT && be->weight_dtype == RK_BF16 ? 2 : 1;
}
static inline int64_t rk_act_bytes(const rk_backend *be, int64_t m, int64_t k, rk_rows_kind kind) {
    return rk_act_count(m, k, rk_limbs(be, kind)) * rk_dtype_bytes(be->weight_dtype);
}
static inline int64_t rk_mat_bytes(const rk_backend *be, int64_t n, int64_t k) {
    return rk_mat_count(n, k) * rk_dtype_bytes(be->weight_dtype);
}
static inline int64_t rk_page_bytes(int head_dim, rk_dtype t) {
    return rk_page_count(head_dim) * rk_dtype_bytes(t);
}

/* name: "cpu" or "ref". n_threads 0: as many as the affinity mask allows. isa: NULL for the best
 * that the CPU has in that order, or "scalar", "avx2", "avx512", and "amx" (tile) or "avx512bf16"
 * (pair), for tests. numerics: "tile" or "pair"; NULL for rk_backend_best_numerics of this CPU.
 * Errors: RK_E_USAGE unknown name, or isa that the CPU or the order lacks */
rk_status rk_backend_open(const char *name, int n_threads, const char *isa, const char *numerics,
                          rk_backend **out);
void      rk_backend_close(rk_backend *be);
bool      rk_backend_has_isa(const char *isa, const char *numerics);

/* "scalar, avx2": the paths of an order that this CPU has, slowest first; returns buf. */
enum { RK_PATH_LIST = 128 };
const char *rk_backend_list_isas(const char *numerics, char buf[RK_PATH_LIST]);

/* Orders that this CPU has instructions for, as bits; and the order that suits a set of CPUs: the
 * fastest that each has instructions for (AND of their bits), else "pair", which costs the twins
 * least. */
enum { RK_NATIVE_TILE = 1, RK_NATIVE_PAIR = 2 };
unsigned    rk_backend_native_numerics(void);
const char *rk_backend_best_numerics(unsigned native_to_all);

/* Put f32 rows into a packed host image (dtype of the backend), rows [row0, row0 + n) of w.
 * Shapes: src [n][k] row-major; image rk_mat_bytes. Then upload it. */
void rk_mat_pack(rk_dtype dtype, void *image, int n_total, int k, int row0, int n, const float *src);
