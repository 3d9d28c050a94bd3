/* ref.c - the oracle: f32, every sum in ascending order by separate multiply and add. Vectors run
 * across outputs, never along a sum, and threads share outputs; exp is the C library's. */
#include <math.h>
#include <string.h>

#include "kernels/host.h"
#include "base/rng.h"

enum { ROWS = 4 };

/* c[r][16] += a[r][k] w[k] over pairs of k; w: [pairs][16 columns][2], a: row r at a + r * lda. */
static void dot_tile(int rows, const float *a, int64_t lda, const float *w, int pairs, float *c, int ldc) {
    for (int j = 0; j < pairs; j++) {
        float even[16], odd[16];
        for (int i = 0; i < 16; i++) {
            even[i] = w[j * 32 + 2 * i];
            odd[i] = w[j * 32 + 2 * i + 1];
        }
        for (int r = 0; r < rows; r++) {
            float x = a[r * lda + 2 * j], y = a[r * lda + 2 * j + 1];
            float *o = c + (int64_t)r * ldc;
            for (int i = 0; i < 16; i++) o[i] = o[i] + x * even[i];
            for (int i = 0; i < 16; i++) o[i] = o[i] + y * odd[i];
        }
    }
}

typedef struct gemm_job {
    const float  *a; /* [m][K], unpacked */
    int           m;
    const rk_mat *w;
    const float  *bias;
    bool          add;
    float        *out;
    int           ld;
} gemm_job;

static void gemm_part(void *arg, int piece, int n_pieces, int thread) {
    const gemm_job *j = arg;
    int64_t         begin, end, K = rk_round_up(j->w->k, 32);
    (void)thread;
    rk_pool_share((j->w->n + 15) / 16, piece, n_pieces, &begin, &end);
    for (int64_t g = begin; g < end; g++)
        for (int m = 0; m < j->m; m += ROWS) {
            int   rows = j->m - m < ROWS ? j->m - m : ROWS;
            float c[ROWS * 16] = {0};
            for (int64_t k = 0; k < K; k += 32)
                dot_tile(rows, j->a + m * K + k, K,
                         (const float *)j->w->dev + rk_mat_at(g * 16, k, j->w->k), 16, c, 16);
            for (int r = 0; r < rows; r++)
                for (int i = 0; i < 16 && g * 16 + i < j->w->n; i++) {
                    float  v = j->bias ? c[r * 16 + i] + j->bias[g * 16 + i] : c[r * 16 + i];
                    float *o = &j->out[(int64_t)(m + r) * j->ld + g * 16 + i];
                    *o = j->add ? *o + v : v;
                }
        }
}

static rk_status ref_gemm(rk_backend *be, const void *act, rk_rows_kind kind, int m, const rk_mat *w,
                          const float *bias, bool add, float *out, int ld_out) {
    int64_t K = rk_round_up(w->k, 32);
    void   *p;
    (void)kind;
    RK_TRY(rk_host_scratch(rk_host_of(be), 0, m * K * (int64_t)sizeof(float), &p));
    float *a = p;
    for (int i = 0; i < m; i++)
        for (int64_t k = 0; k < K; k += 32)
            memcpy(a + i * K + k, (const float *)act + rk_act_at(i, k, w->k, 1, 0), 32 * sizeof *a);
    gemm_job j = {a, m, w, bias, add, out, ld_out};
    rk_pool *pool = rk_host_of(be)->pool;
    rk_pool_run(pool, rk_pool_pieces(pool, (w->n + 15) / 16, 1), gemm_part, &j);
    return RK_OK;
}

static rk_status ref_rmsnorm(rk_backend *be, const float *x, const float *w, float eps, int m,
                             int d_model, rk_rows_kind kind, void *act) {
    float *a = act;
    (void)be, (void)kind;
    for (int i = 0; i < m; i++) {
        const float *row = x + (int64_t)i * d_model;
        float        s = 0;
        for (int k = 0; k < d_model; k++) s = s + row[k] * row[k];
        float inv = 1.0f / sqrtf(s / (float)d_model + eps);
        for (int k = 0; k < d_model; k++) a[rk_act_at(i, k, d_model, 1, 0)] = row[k] * inv * w[k];
    }
    return RK_OK;
}

static rk_status ref_gemm_silu_mul(rk_backend *be, const void *act, rk_rows_kind kind, int m,
                                   const rk_mat *w, void *act_out) {
    void *p;
    float *a = act_out;
    RK_TRY(rk_host_scratch(rk_host_of(be), 2, (int64_t)m * w->n * (int64_t)sizeof(float), &p));
    RK_TRY(ref_gemm(be, act, kind, m, w, NULL, false, p, w->n));
    for (int i = 0; i < m; i++)
        for (int k = 0; k < w->n / 2; k++) {
            const float *gu = (float *)p + (int64_t)i * w->n + k / 16 * 32 + k % 16;
            a[rk_act_at(i, k, w->n / 2, 1, 0)] = gu[0] / (1.0f + expf(-gu[0])) * gu[16];
        }
    return RK_OK;
}

/* ---- attention ---- */

/* Scores of `rows` query rows against the first n slots of a chain: s [rows][n], scaled. */
static void score_rows(const rk_attn_shape *sh, const rk_span *spans, int n_spans, int64_t n,
                       const float *q, int64_t ldq, int rows, float *s) {
    int     d = sh->head_dim;
    int64_t before = 0;
    for (int k = 0; k < n_spans && before < n; k++) {
        const rk_span *sp = &spans[k * sh->n_kv_heads];
        int64_t        pages = (sp->first + sp->n + RK_PAGE_KEYS - 1) / RK_PAGE_KEYS;
        for (int64_t p = 0; p < pages; p++)
            for (int g = 0; g < 4; g++) {
                float        c[ROWS * 16] = {0};
                const float *tile = (const float *)sp->k + p * rk_page_count(d) + rk_kpage_at(g * 16, 0, d);
                dot_tile(rows, q, ldq, tile, d / 2, c, 16);
                for (int i = 0; i < 16; i++) {
                    int64_t slot = before + p * RK_PAGE_KEYS + g * 16 + i - sp->first;
                    if (slot < before || slot >= before + sp->n || slot >= n) continue;
                    for (int r = 0; r < rows; r++) s[r * n + slot] = c[r * 16 + i] * sh->scale;
                }
            }
        before += sp->n;
    }
}

static void softmax(float *s, int64_t n) {
    float m = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        if (s[i] > m) m = s[i];
    for (int64_t i = 0; i < n; i++) {
        s[i] = expf(s[i] - m);
        sum = sum + s[i];
    }
    for (int64_t i = 0; i < n; i++) s[i] = s[i] / sum;
}

/* o[d] = sum over slots of p v, ascending. */
static void weigh_values(const rk_attn_shape *sh, const rk_span *spans, int n_spans, int64_t n,
                         const float *p, float *o) {
    int     d = sh->head_dim;
    int64_t slot = 0;
    memset(o, 0, (size_t)d * sizeof *o);
    for (int k = 0; k < n_spans; k++) {
        const rk_span *sp = &spans[k * sh->n_kv_heads];
        for (int64_t i = 0; i < sp->n && slot < n; i++, slot++) {
            const float *v = (const float *)sp->v + rk_span_page(sp, i) * rk_page_count(d) +
                             rk_vpage_at(rk_span_slot(sp, i), 0, d);
            for (int j = 0; j < d; j++) o[j] = o[j] + p[slot] * v[j / 16 * RK_TILE + j % 16 * 2];
        }
    }
}

typedef struct attend_job {
    const rk_attn_shape *sh;
    const float         *qkv;
    const rk_seq_rows   *sets;
    int                  n_sets;
    float               *act, *scratch; /* [threads][ROWS][longest] */
    int64_t              longest;
} attend_job;

static int64_t slots_of(const rk_attn_shape *sh, const rk_seq_rows *s, int g) {
    int64_t n = 0;
    for (int k = 0; k < s->n_spans; k++) n += s->spans[k * sh->n_kv_heads + g].n;
    return n;
}

static void attend_set(const attend_job *j, const rk_seq_rows *s, int h, float *scores) {
    int     H = j->sh->n_heads, G = j->sh->n_kv_heads, d = j->sh->head_dim, g = h / (H / G);
    int64_t width = (int64_t)(H + 2 * G) * d, all = slots_of(j->sh, s, g);
    float   o[1024];
    RK_ASSERT(d <= 1024);
    for (int r = 0; r < s->n_rows; r += ROWS) {
        int     rows = s->n_rows - r < ROWS ? s->n_rows - r : ROWS;
        int64_t n = all - (s->n_rows - r - rows); /* what the last of these rows sees */
        score_rows(j->sh, s->spans + g, s->n_spans, n, j->qkv + (s->row0 + r) * width + h * d, width,
                   rows, scores);
        for (int i = 0; i < rows; i++) {
            int64_t see = n - (rows - 1 - i);
            softmax(scores + i * n, see);
            weigh_values(j->sh, s->spans + g, s->n_spans, see, scores + i * n, o);
            for (int k = 0; k < d; k++)
                j->act[rk_act_at(s->row0 + r + i, h * d + k, (int64_t)H * d, 1, 0)] = o[k];
        }
    }
}

static void attend_part(void *arg, int piece, int n_pieces, int thread) {
    const attend_job *j = arg;
    int               H = j->sh->n_heads;
    (void)n_pieces;
    attend_set(j, &j->sets[piece / H], piece % H, j->scratch + thread * ROWS * j->longest);
}

static rk_status ref_attend(rk_backend *be, const rk_attn_shape *sh, const float *qkv, int m,
                            const rk_seq_rows *sets, int n_sets, rk_rows_kind kind, void *out) {
    rk_host   *h = rk_host_of(be);
    attend_job j = {.sh = sh, .qkv = qkv, .sets = sets, .n_sets = n_sets, .act = out};
    void      *p;
    (void)m, (void)kind;
    for (int k = 0; k < n_sets; k++)
        for (int g = 0; g < sh->n_kv_heads; g++) {
            int64_t n = slots_of(sh, &sets[k], g);
            if (n > j.longest) j.longest = n;
        }
    RK_TRY(rk_host_scratch(h, 1, rk_pool_size(h->pool) * ROWS * j.longest * (int64_t)sizeof(float), &p));
    j.scratch = p;
    rk_pool_run(h->pool, (int64_t)n_sets * sh->n_heads, attend_part, &j);
    return RK_OK;
}

/* ---- selection and perturbation ---- */

static rk_status ref_window_mass(rk_backend *be, const rk_attn_shape *sh, const float *q, int w,
                                 const rk_span *spans, int n_spans, int32_t n, float *mass) {
    int   d = sh->head_dim, H = sh->n_heads;
    void *p;
    RK_TRY(rk_host_scratch(rk_host_of(be), 1, n * (int64_t)sizeof(float), &p));
    float *s = p;
    memset(mass, 0, (size_t)H * (size_t)n * sizeof *mass);
    for (int h = 0; h < H; h++)
        for (int r = 0; r < w; r++) {
            int64_t see = n - w + 1 + r;
            score_rows(sh, spans + h / (H / sh->n_kv_heads), n_spans, see, q + ((int64_t)r * H + h) * d, 0, 1, s);
            softmax(s, see);
            for (int64_t i = 0; i < see; i++) mass[(int64_t)h * n + i] += s[i];
        }
    return RK_OK;
}

static rk_status ref_kv_perturb(rk_backend *be, int head_dim, const rk_span *src, float eps,
                                uint64_t seed, uint32_t layer, uint32_t kv_head, uint32_t sample,
                                uint32_t draw, const rk_span *dst) {
    int64_t count = rk_page_count(head_dim);
    float   g[1024];
    (void)be;
    RK_ASSERT(head_dim <= 1024 && src->first == 0 && dst->first == 0 && src->n == dst->n);
    for (int32_t i = 0; i < src->n; i++) {
        const float *from = (const float *)src->v + rk_span_page(src, i) * count;
        float       *to = (float *)dst->v + rk_span_page(dst, i) * count;
        int          slot = rk_span_slot(src, i);
        float        vv = 0, gg = 0;
        rk_rng_noise(seed, layer, kv_head, sample, draw, (uint32_t)i, head_dim, g);
        for (int k = 0; k < head_dim; k++) {
            float v = from[rk_vpage_at(slot, k, head_dim)];
            vv = fmaf(v, v, vv);
            gg = fmaf(g[k], g[k], gg);
        }
        float f = eps * sqrtf(vv) / sqrtf(gg);
        for (int k = 0; k < head_dim; k++) {
            int64_t at = rk_vpage_at(slot, k, head_dim);
            to[at] = eps == 0.0f ? from[at] : fmaf(f, g[k], from[at]);
        }
    }
    return RK_OK;
}

static rk_status ref_open(const rk_backend_ops *ops, int n_threads, rk_backend **out) {
    RK_TRY(rk_host_open(ops, n_threads, out));
    (*out)->weight_dtype = RK_F32;
    (*out)->exact_dtype = RK_F32;
    (*out)->numerics = "f32";
    return RK_OK;
}

const rk_backend_ops rk_ref_ops = {
    .name = "ref",
    .open = ref_open,
    .close = rk_host_close,
    .alloc = rk_host_alloc,
    .release = rk_host_release,
    .upload = rk_host_copy_in,
    .download = rk_host_copy_out,
    .zero = rk_host_zero,
    .sync = rk_host_sync,
    .embed = rk_host_embed,
    .take_rows = rk_host_take_rows,
    .rmsnorm = ref_rmsnorm,
    .gemm = ref_gemm,
    .rope_append = rk_host_rope_append,
    .attend = ref_attend,
    .gemm_silu_mul = ref_gemm_silu_mul,
    .window_mass = ref_window_mass,
    .kv_gather = rk_host_kv_gather,
    .kv_perturb = ref_kv_perturb,
    .kv_read = rk_host_kv_read,
    .score_rows = rk_host_score_rows,
};
