/* host.c - see host.h. */
#include "kernels/host.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

rk_status rk_host_open(const rk_backend_ops *ops, int n_threads, rk_backend **out) {
    void *p;
    *out = NULL;
    RK_TRY(rk_mem_alloc(1, sizeof(rk_host), "backend", &p));
    rk_host *h = p;
    h->be.ops = ops;
    h->be.n_threads = n_threads > 0 ? n_threads : rk_pool_cpus();
    rk_status st = rk_pool_open(h->be.n_threads, &h->pool);
    if (st != RK_OK) {
        rk_mem_free(h);
        return rk_err_via(st, __FILE__, __LINE__, __func__);
    }
    *out = &h->be;
    return RK_OK;
}

void rk_host_close(rk_backend *be) {
    if (!be) return;
    rk_host *h = rk_host_of(be);
    rk_pool_close(h->pool);
    for (int i = 0; i < RK_SCRATCH_SLOTS; i++) rk_mem_free(h->scratch[i]);
    rk_mem_free(h);
}

rk_status rk_host_alloc(rk_backend *be, int64_t bytes, const char *what, void **dev) {
    (void)be;
    return rk_mem_alloc(bytes, 1, what, dev);
}

void rk_host_release(rk_backend *be, void *dev) {
    (void)be;
    rk_mem_free(dev);
}

rk_status rk_host_copy_in(rk_backend *be, void *dev, const void *host, int64_t bytes) {
    (void)be;
    memcpy(dev, host, (size_t)bytes);
    return RK_OK;
}

rk_status rk_host_copy_out(rk_backend *be, void *host, const void *dev, int64_t bytes) {
    (void)be;
    memcpy(host, dev, (size_t)bytes);
    return RK_OK;
}

rk_status rk_host_zero(rk_backend *be, void *dev, int64_t bytes) {
    (void)be;
    memset(dev, 0, (size_t)bytes);
    return RK_OK;
}

rk_status rk_host_sync(rk_backend *be) {
    (void)be;
    return RK_OK;
}

rk_status rk_host_scratch(rk_host *h, int slot, int64_t bytes, void **out) {
    if (bytes > h->scratch_bytes[slot]) {
        rk_mem_free(h->scratch[slot]);
        h->scratch[slot] = NULL;
        h->scratch_bytes[slot] = 0;
        RK_TRY(rk_mem_alloc(bytes, 1, "kernel scratch", &h->scratch[slot]));
        h->scratch_bytes[slot] = bytes;
    }
    *out = h->scratch[slot];
    return RK_OK;
}

void rk_page_put(void *page, rk_dtype t, int64_t at, int64_t page_count, float value) {
    if (t == RK_F32) {
        ((float *)page)[at] = value;
        return;
    }
    uint16_t *p = page, hi = rk_f32_to_bf16(value);
    p[at] = hi;
    if (t == RK_BF16X2) p[page_count + at] = rk_f32_to_bf16(value - rk_bf16_to_f32(hi));
}

rk_status rk_host_embed(rk_backend *be, const rk_mat *table, const int32_t *tokens, int n, float *x) {
    (void)be;
    for (int i = 0; i < n; i++) {
        float *row = x + (int64_t)i * table->k;
        if (table->quant != RK_QUANT_NONE)
            rk_quant_unpack_row(table->quant, table->dev, table->k, tokens[i], row);
        for (int k = 0; k < table->k; k++) {
            int64_t at = rk_mat_at(tokens[i], k, table->k);
            row[k] = table->quant != RK_QUANT_NONE ? rk_bf16_to_f32(rk_f32_to_bf16(row[k]))
                     : table->dtype == RK_F32      ? ((const float *)table->dev)[at]
                                                   : rk_bf16_to_f32(((const uint16_t *)table->dev)[at]);
        }
    }
    return RK_OK;
}

rk_status rk_host_take_rows(rk_backend *be, const float *src, const int32_t *index, int n, int width,
                            float *dst) {
    (void)be;
    for (int i = 0; i < n; i++)
        memcpy(dst + (int64_t)i * width, src + (int64_t)index[i] * width,
               (size_t)width * sizeof(float));
    return RK_OK;
}

/* ---- rotation and append ---- */

typedef struct rope_job {
    const rk_attn_shape *sh;
    float               *qkv;
    const int32_t       *pos;
    const float         *table;
    const rk_seq_rows   *sets;
    int                  m, n_sets;
} rope_job;

static void rotate_row(const rk_attn_shape *sh, float *row, const float *cs) {
    int d = sh->head_dim, half = d / 2;
    for (int h = 0; h < sh->n_heads + sh->n_kv_heads; h++) {
        float *x = row + (int64_t)h * d;
        for (int j = 0; j < half; j++) {
            float a = x[j], b = x[j + half], c = cs[j], s = cs[j + half];
            x[j] = a * c - b * s;
            x[j + half] = b * c + a * s;
        }
    }
}

static void append_row(const rk_attn_shape *sh, const float *row, const rk_span *last, int back) {
    int d = sh->head_dim, H = sh->n_heads, G = sh->n_kv_heads;
    for (int g = 0; g < G; g++) {
        const rk_span *s = &last[g];
        int64_t        i = s->n - back, count = rk_page_count(d), page = rk_span_page(s, i);
        int            slot = rk_span_slot(s, i);
        char *kp = (char *)s->k + page * rk_page_bytes(d, s->k_dtype);
        char *vp = (char *)s->v + page * rk_page_bytes(d, s->v_dtype);
        const float *k = row + (int64_t)(H + g) * d, *v = row + (int64_t)(H + G + g) * d;
        for (int j = 0; j < d; j++) {
            rk_page_put(kp, s->k_dtype, rk_kpage_at(slot, j, d), count, k[j]);
            rk_page_put(vp, s->v_dtype, rk_vpage_at(slot, j, d), count, v[j]);
        }
    }
}

static void rope_part(void *arg, int piece, int n_pieces, int thread) {
    const rope_job *j = arg;
    int64_t         width = (int64_t)(j->sh->n_heads + 2 * j->sh->n_kv_heads) * j->sh->head_dim;
    int64_t         begin, end;
    (void)thread;
    rk_pool_share(j->m, piece, n_pieces, &begin, &end);
    for (int k = 0; k < j->n_sets; k++) {
        const rk_seq_rows *s = &j->sets[k];
        const rk_span     *last = s->spans + (int64_t)(s->n_spans - 1) * j->sh->n_kv_heads;
        for (int r = 0; r < s->n_rows; r++) {
            int64_t i = s->row0 + r;
            if (i < begin || i >= end) continue;
            float *row = j->qkv + i * width;
            rotate_row(j->sh, row, j->table + (int64_t)j->pos[i] * j->sh->head_dim);
            append_row(j->sh, row, last, s->n_rows - r);
        }
    }
}

rk_status rk_host_rope_append(rk_backend *be, const rk_attn_shape *sh, float *qkv, int m,
                              const int32_t *pos, const float *table, const rk_seq_rows *sets,
                              int n_sets) {
    rope_job j = {sh, qkv, pos, table, sets, m, n_sets};
    rk_pool *pool = rk_host_of(be)->pool;
    rk_pool_run(pool, rk_pool_pieces(pool, m, RK_FEW_ROWS), rope_part, &j);
    return RK_OK;
}

/* ---- compaction ---- */

/* Limb by limb: the sum of two limbs, split again, need not give the same two (ties of the hi limb). */
static void page_copy(void *to, int64_t to_at, const void *from, int64_t from_at, rk_dtype t,
                      int64_t page_count) {
    if (t == RK_F32) {
        ((float *)to)[to_at] = ((const float *)from)[from_at];
        return;
    }
    uint16_t       *a = to;
    const uint16_t *b = from;
    a[to_at] = b[from_at];
    if (t == RK_BF16X2) a[page_count + to_at] = b[page_count + from_at];
}

typedef struct gather_job {
    int            d, n_spans;
    const rk_span *chain, *dst;
    const int32_t *slot;
} gather_job;

static void copy_slot(int d, const rk_span *from, int64_t i, const rk_span *to, int64_t j) {
    int64_t     count = rk_page_count(d);
    int         a = rk_span_slot(from, i), b = rk_span_slot(to, j);
    const char *k = (const char *)from->k + rk_span_page(from, i) * rk_page_bytes(d, from->k_dtype);
    const char *v = (const char *)from->v + rk_span_page(from, i) * rk_page_bytes(d, from->v_dtype);
    char       *tk = (char *)to->k + rk_span_page(to, j) * rk_page_bytes(d, to->k_dtype);
    char       *tv = (char *)to->v + rk_span_page(to, j) * rk_page_bytes(d, to->v_dtype);
    for (int e = 0; e < d; e++) {
        page_copy(tk, rk_kpage_at(b, e, d), k, rk_kpage_at(a, e, d), from->k_dtype, count);
        page_copy(tv, rk_vpage_at(b, e, d), v, rk_vpage_at(a, e, d), from->v_dtype, count);
    }
}

/* A piece is a page of dst, so that no two threads write into one cache line. */
static void gather_page(void *arg, int piece, int n_pieces, int thread) {
    const gather_job *j = arg;
    int32_t           i = piece * RK_PAGE_KEYS, end = i + RK_PAGE_KEYS;
    int               at = 0;
    int64_t           before = 0; /* slots of the spans before `at` */
    (void)n_pieces, (void)thread;
    if (end > j->dst->n) end = j->dst->n;
    for (; i < end; i++) {
        while (at < j->n_spans && j->slot[i] >= before + j->chain[at].n) before += j->chain[at++].n;
        RK_ASSERT(at < j->n_spans);
        copy_slot(j->d, &j->chain[at], j->slot[i] - before, j->dst, i);
    }
}

rk_status rk_host_kv_gather(rk_backend *be, int head_dim, const rk_span *chain, int n_spans,
                            const int32_t *slot, int32_t n, const rk_span *dst) {
    gather_job j = {head_dim, n_spans, chain, dst, slot};
    RK_ASSERT(dst->first == 0 && dst->n == n);
    for (int i = 0; i < n_spans; i++)
        RK_ASSERT(chain[i].k_dtype == dst->k_dtype && chain[i].v_dtype == dst->v_dtype);
    rk_pool_run(rk_host_of(be)->pool, (n + RK_PAGE_KEYS - 1) / RK_PAGE_KEYS, gather_page, &j);
    return RK_OK;
}

static float page_get(const void *page, rk_dtype t, int64_t at, int64_t page_count) {
    if (t == RK_F32) return ((const float *)page)[at];
    const uint16_t *p = page;
    float           hi = rk_bf16_to_f32(p[at]);
    return t == RK_BF16X2 ? hi + rk_bf16_to_f32(p[page_count + at]) : hi;
}

rk_status rk_host_kv_read(rk_backend *be, int head_dim, const rk_span *chain, int n_spans, float *k,
                          float *v) {
    int     d = head_dim;
    int64_t count = rk_page_count(d), row = 0;
    (void)be;
    for (int c = 0; c < n_spans; c++)
        for (int64_t i = 0; i < chain[c].n; i++, row++) {
            const rk_span *s = &chain[c];
            int            slot = rk_span_slot(s, i);
            const char    *kp = (const char *)s->k + rk_span_page(s, i) * rk_page_bytes(d, s->k_dtype);
            const char    *vp = (const char *)s->v + rk_span_page(s, i) * rk_page_bytes(d, s->v_dtype);
            for (int j = 0; j < d; j++) {
                if (k) k[row * d + j] = page_get(kp, s->k_dtype, rk_kpage_at(slot, j, d), count);
                if (v) v[row * d + j] = page_get(vp, s->v_dtype, rk_vpage_at(slot, j, d), count);
            }
        }
    return RK_OK;
}

/* ---- rows of logits beside their reference ---- */

typedef struct score_job {
    const float   *ref, *rows;
    int            n_ref, n, V;
    const int32_t *next;
    double        *p, *log_ref; /* [n_ref][V] probabilities, [n_ref] log of the normaliser */
    rk_row_score  *out;
} score_job;

/* log sum exp of a row; *top is the index of its largest value. */
static double log_normaliser(const float *row, int V, int *top) {
    double sum = 0;
    *top = 0;
    for (int i = 1; i < V; i++)
        if (row[i] > row[*top]) *top = i;
    double max = row[*top];
    for (int i = 0; i < V; i++) sum += exp((double)row[i] - max);
    return max + log(sum);
}

static void score_ref_part(void *arg, int piece, int n_pieces, int thread) {
    score_job *j = arg;
    int64_t    begin, end;
    int        top;
    (void)thread;
    rk_pool_share(j->n_ref, piece, n_pieces, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const float *row = j->ref + r * j->V;
        j->log_ref[r] = log_normaliser(row, j->V, &top);
        for (int i = 0; i < j->V; i++) j->p[r * j->V + i] = exp((double)row[i] - j->log_ref[r]);
    }
}

static void score_part(void *arg, int piece, int n_pieces, int thread) {
    score_job *j = arg;
    int64_t    begin, end;
    (void)thread;
    rk_pool_share(j->n, piece, n_pieces, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        int64_t       q = r % j->n_ref;
        const float  *a = j->ref + q * j->V, *b = j->rows + r * j->V;
        const double *p = j->p + q * j->V;
        int           top, top_ref = 0;
        double        la = j->log_ref[q], lb = log_normaliser(b, j->V, &top), kl = 0;
        for (int i = 1; i < j->V; i++)
            if (a[i] > a[top_ref]) top_ref = i;
        for (int i = 0; i < j->V; i++) kl += p[i] * (((double)a[i] - la) - ((double)b[i] - lb));
        int32_t next = j->next ? j->next[q] : -1;
        j->out[r] = (rk_row_score){
            .kl = kl, .nll = next < 0 ? 0 : lb - (double)b[next], .same = top == top_ref};
    }
}

rk_status rk_host_score_rows(rk_backend *be, const float *ref, int n_ref, const float *rows, int n,
                             int n_vocab, const int32_t *next, rk_row_score *out) {
    rk_host *h = rk_host_of(be);
    void    *p = NULL;
    RK_TRY(rk_host_scratch(h, 0, n_ref * ((int64_t)n_vocab + 1) * (int64_t)sizeof(double), &p));
    score_job j = {.ref = ref, .rows = rows, .n_ref = n_ref, .n = n, .V = n_vocab, .next = next,
                   .p = p, .log_ref = (double *)p + (int64_t)n_ref * n_vocab, .out = out};
    rk_pool_run(h->pool, n_ref, score_ref_part, &j);
    rk_pool_run(h->pool, n, score_part, &j);
    return RK_OK;
}
