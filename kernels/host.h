/* host.h - what the two host backends (ref, cpu) share: the handle, memory ops, chains of spans, and
 * ops that move or rotate rows the same way for every element type. */
#pragma once
#include "kernels/backend.h"
#include "kernels/pool.h"

enum {
    RK_SCRATCH_SLOTS = 4,
    RK_FEW_ROWS = 4, /* rows of light work in a piece at least: one is done sooner than told of */
};

typedef struct rk_host {
    rk_backend        be; /* first: a backend handle is a host handle */
    rk_pool          *pool;
    const struct rk_cpu_isa *isa; /* cpu only */
    const rk_quant_isa      *quant;
    void   *scratch[RK_SCRATCH_SLOTS];
    int64_t scratch_bytes[RK_SCRATCH_SLOTS];
} rk_host;

static inline rk_host *rk_host_of(rk_backend *be) { return (rk_host *)(void *)be; }

rk_status rk_host_open(const rk_backend_ops *ops, int n_threads, rk_backend **out);
void      rk_host_close(rk_backend *be);
rk_status rk_host_alloc(rk_backend *be, int64_t bytes, const char *what, void **dev);
void      rk_host_release(rk_backend *be, void *dev);
rk_status rk_host_copy_in(rk_backend *be, void *dev, const void *host, int64_t bytes);
rk_status rk_host_copy_out(rk_backend *be, void *host, const void *dev, int64_t bytes);
rk_status rk_host_zero(rk_backend *be, void *dev, int64_t bytes);
rk_status rk_host_sync(rk_backend *be);
rk_status rk_host_embed(rk_backend *be, const rk_mat *table, const int32_t *tokens, int n, float *x);
rk_status rk_host_take_rows(rk_backend *be, const float *src, const int32_t *index, int n, int width,
                            float *dst);
rk_status rk_host_rope_append(rk_backend *be, const rk_attn_shape *sh, float *qkv, int m,
                              const int32_t *pos, const float *table, const rk_seq_rows *sets,
                              int n_sets);
rk_status rk_host_kv_gather(rk_backend *be, int head_dim, const rk_span *chain, int n_spans,
                            const int32_t *slot, int32_t n, const rk_span *dst);
rk_status rk_host_kv_read(rk_backend *be, int head_dim, const rk_span *chain, int n_spans, float *k,
                          float *v);
rk_status rk_host_score_rows(rk_backend *be, const float *ref, int n_ref, const float *rows, int n,
                             int n_vocab, const int32_t *next, rk_row_score *out);

/* Grow-only scratch; contents are lost when it grows. */
rk_status rk_host_scratch(rk_host *h, int slot, int64_t bytes, void **out);

/* Store one value of a page, split into limbs where its type has two. */
void rk_page_put(void *page, rk_dtype t, int64_t at, int64_t page_count, float value);

/* Page that holds slot i of a span, and the slot within it. */
static inline int64_t rk_span_page(const rk_span *s, int64_t i) { return (s->first + i) / RK_PAGE_KEYS; }
static inline int     rk_span_slot(const rk_span *s, int64_t i) {
    return (int)((s->first + i) % RK_PAGE_KEYS);
}
