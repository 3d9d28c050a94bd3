/* cpu_kernels.inc.h - the kernels of cpu_isa.h over 16 lanes, compiled once per instruction set
 * after one of vec_*.h; KERNELS names the table. Every operation is one IEEE operation on each lane
 * in the same order everywhere, so all tables give the same bits. */
#include <math.h>
#include <string.h>

#include "kernels/cpu_isa.h"
#include "base/rng.h"

#if defined(__GNUC__) && !defined(__clang__)
#define UNROLL _Pragma("GCC unroll 16")
#else
#define UNROLL _Pragma("unroll")
#endif
#define INLINE static inline __attribute__((always_inline))

/* 2^f on [0, 1), 1 at 0: least relative error of degree 6, 2e-9 before rounding. */
INLINE v16 exp2_16(v16 x) {
    x = v_min(x, v_set1(127.0f));
    v16 n = v_floor(x), f = v_sub(v_max(x, v_set1(-127.0f)), v_max(n, v_set1(-127.0f)));
    v16 p = v_set1(0.00021612917771562934f);
    p = v_fma(p, f, v_set1(0.0012467845808714628f));
    p = v_fma(p, f, v_set1(0.009675451554358006f));
    p = v_fma(p, f, v_set1(0.055485282093286514f));
    p = v_fma(p, f, v_set1(0.2402293086051941f));
    p = v_fma(p, f, v_set1(0.6931470632553101f));
    p = v_fma(p, f, v_set1(1.0f));
    return v_scale2(p, n, x);
}

/* Lanes as a binary tree: i with i + 8, then + 4, + 2, + 1. */
INLINE float tree_sum(v16 a) {
    float s[16];
    v_store(s, a);
    for (int w = 8; w; w /= 2)
        for (int i = 0; i < w; i++) s[i] = s[i] + s[i + w];
    return s[0];
}
INLINE float lanes_max(v16 a) {
    float s[16], m;
    v_store(s, a);
    m = s[0];
    for (int i = 1; i < 16; i++) m = s[i] > m ? s[i] : m;
    return m;
}

/* One tile of the right operand (16 k pairs x 16 columns) times limb rows of the left:
 * c[r] += e + o. a: row r at a + r * lda, 32 values. */
INLINE void tile_step(int rows, const float *a, int64_t lda, const uint16_t *b, float *c, int ldc) {
    v16 e[V_ROWS], o[V_ROWS];
    UNROLL for (int r = 0; r < rows; r++) {
        e[r] = v_set1(0.0f);
        o[r] = v_set1(0.0f);
    }
    for (int j = 0; j < 16; j++) {
        v16 be = v_even(b + j * 32), bo = v_odd(b + j * 32);
        UNROLL for (int r = 0; r < rows; r++) {
            e[r] = v_fma(v_set1(a[r * lda + 2 * j]), be, e[r]);
            o[r] = v_fma(v_set1(a[r * lda + 2 * j + 1]), bo, o[r]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        v_store(c + r * ldc, v_add(v_load(c + r * ldc), v_add(e[r], o[r])));
}

/* c [rows][16] += A B over n_blocks k blocks. a: [row][block][limb][32]; b: tile of block k at
 * b + k * b_step, its lo limb (b_limbs 2) b_lo further on. */
INLINE void panel(int rows, const float *a, int64_t lda, int a_limbs, const uint16_t *b, int64_t b_step,
                  int b_limbs, int64_t b_lo, int n_blocks, float *c, int ldc) {
    for (int k = 0; k < n_blocks; k++)
        for (int la = 0; la < a_limbs; la++)
            for (int lb = 0; lb < b_limbs; lb++)
                tile_step(rows, a + (k * a_limbs + la) * 32, lda, b + k * b_step + lb * b_lo, c, ldc);
}

/* The same for a row count that is known when compiled only up to V_ROWS. */
static void panel_rows(int rows, const float *a, int64_t lda, int a_limbs, const uint16_t *b,
                       int64_t b_step, int b_limbs, int64_t b_lo, int n_blocks, float *c, int ldc) {
#define CASE(n)                                                                                    \
    case n: panel(n, a, lda, a_limbs, b, b_step, b_limbs, b_lo, n_blocks, c, ldc); break
    switch (rows) {
        CASE(1);
        CASE(2);
#if V_ROWS > 2
        CASE(3);
#endif
#if V_ROWS > 3
        CASE(4);
        CASE(5);
        CASE(6);
        CASE(7);
        CASE(8);
        CASE(9);
        CASE(10);
        CASE(11);
        CASE(12);
#endif
    default: break;
    }
#undef CASE
}

/* ---- matrix product ---- */

/* Activation rows [m0, m0 + n) as f32, [row][block][limb][32]. */
static void unpack_rows(const uint16_t *act, int m0, int n, int64_t blocks_limbs, float *out) {
    for (int i = 0; i < n; i++) {
        const uint16_t *p = act + (m0 + i) / 16 * blocks_limbs * RK_TILE + (m0 + i) % 16 * 32;
        float          *o = out + i * blocks_limbs * 32;
        for (int64_t k = 0; k < blocks_limbs; k++) {
            v_store(o + k * 32, v_bf16(p + k * RK_TILE));
            v_store(o + k * 32 + 16, v_bf16(p + k * RK_TILE + 16));
        }
    }
}

static void store_tile(const float *c, int rows, int n, int n_total, const float *bias, bool add,
                       float *out, int64_t ld) {
    int cols = n_total - n < 16 ? n_total - n : 16;
    for (int r = 0; r < rows; r++, out += ld, c += 16) {
        if (cols == 16 && !bias) {
            v16 v = v_load(c);
            v_store(out + n, add ? v_add(v_load(out + n), v) : v);
            continue;
        }
        for (int j = 0; j < cols; j++) {
            float v = bias ? c[j] + bias[n + j] : c[j];
            out[n + j] = add ? out[n + j] + v : v;
        }
    }
}

static void gemm(const void *act, int limbs, int m, const rk_mat *w, const float *bias, bool add,
                 float *out, int ld_out, int n0, int n1, float *scratch) {
    int     blocks = (int)(rk_round_up(w->k, 32) / 32);
    int64_t lda = (int64_t)blocks * limbs * 32;
    for (int m0 = 0; m0 < m; m0 += RK_GEMM_BLOCK) {
        int mb = m - m0 < RK_GEMM_BLOCK ? m - m0 : RK_GEMM_BLOCK;
        unpack_rows(act, m0, mb, (int64_t)blocks * limbs, scratch);
        for (int n = n0; n < n1; n += 16) {
            const uint16_t *b = (const uint16_t *)w->dev +
                                ((int64_t)(n / 32) * blocks * 2 + n % 32 / 16) * RK_TILE;
            for (int r = 0; r < mb; r += V_ROWS) {
                int   rows = mb - r < V_ROWS ? mb - r : V_ROWS;
                float c[V_ROWS * 16] = {0};
                panel_rows(rows, scratch + r * lda, lda, limbs, b, 2 * RK_TILE, 1, 0, blocks, c, 16);
                store_tile(c, rows, n, w->n, bias, add, out + (int64_t)(m0 + r) * ld_out, ld_out);
            }
        }
    }
}

/* ---- rows ---- */

/* 16 values at column k of activation row m: hi, and lo where there are two limbs. */
INLINE void put_act(void *act, int64_t m, int64_t k, int64_t K, int limbs, v16 y) {
    uint16_t *a = act;
    v_store_bf16(a + rk_act_at(m, k, K, limbs, 0), y);
    if (limbs == 2) v_store_bf16(a + rk_act_at(m, k, K, limbs, 1), v_sub(y, v_round_bf16(y)));
}

static void rmsnorm(const float *x, const float *w, float eps, int row0, int row1, int D, int limbs,
                    void *act) {
    for (int r = row0; r < row1; r++) {
        const float *p = x + (int64_t)r * D;
        v16          s = v_set1(0.0f);
        for (int k = 0; k < D; k += 16) s = v_fma(v_load(p + k), v_load(p + k), s);
        v16 inv = v_set1(1.0f / sqrtf(tree_sum(s) / (float)D + eps));
        for (int k = 0; k < D; k += 16)
            put_act(act, r, k, D, limbs, v_mul(v_mul(v_load(p + k), inv), v_load(w + k)));
    }
}

static void silu_mul(const float *gu, int row0, int row1, int F, int limbs, void *act) {
    const v16 one = v_set1(1.0f), minus_log2e = v_set1(-1.44269504088896340736f);
    for (int r = row0; r < row1; r++) {
        const float *g = gu + (int64_t)r * 2 * F, *u = g + F;
        for (int k = 0; k < F; k += 16) {
            v16 x = v_load(g + k), e = exp2_16(v_mul(x, minus_log2e));
            put_act(act, r, k, F, limbs, v_mul(v_div(x, v_add(one, e)), v_load(u + k)));
        }
    }
}

/* ---- attention ---- */

typedef struct block {
    const uint16_t *k, *v;
    int             k_limbs, v_limbs; /* lo pages follow the hi pages */
} block;

static const uint16_t *page_of(const void *base, rk_dtype t, int64_t page, int d) {
    return (const uint16_t *)base + page * rk_page_count(d) * (t == RK_BF16X2 ? 2 : 1);
}

static void merge_page(uint16_t *dst, const uint16_t *src, int limbs, int64_t count) {
    for (int64_t i = 0; i < count * limbs; i++) dst[i] |= src[i];
}

/* Pages of block b (slots 64 b ..) of a chain; where spans meet in it, their or-ed copy in scratch. */
static block find_block(const rk_att_tile *t, int64_t b, uint16_t *merged_k, uint16_t *merged_v) {
    int64_t count = rk_page_count(t->head_dim), before = 0;
    block   out = {0};
    int     found = 0;
    for (int s = 0; s < t->n_spans; s++) {
        const rk_span *sp = &t->spans[s * t->stride];
        int64_t        end = before + sp->n;
        if (sp->n > 0 && before < 64 * (b + 1) && end > 64 * b) {
            int64_t         page = b - before / 64;
            const uint16_t *k = page_of(sp->k, sp->k_dtype, page, t->head_dim);
            const uint16_t *v = page_of(sp->v, sp->v_dtype, page, t->head_dim);
            int             kl = sp->k_dtype == RK_BF16X2 ? 2 : 1, vl = sp->v_dtype == RK_BF16X2 ? 2 : 1;
            if (found == 0) {
                out = (block){k, v, kl, vl};
            } else {
                if (found == 1) { /* the first one's pages move to the scratch too */
                    memset(merged_k, 0, (size_t)count * 2 * sizeof *merged_k);
                    memset(merged_v, 0, (size_t)count * 2 * sizeof *merged_v);
                    merge_page(merged_k, out.k, out.k_limbs, count);
                    merge_page(merged_v, out.v, out.v_limbs, count);
                    out.k = merged_k;
                    out.v = merged_v;
                }
                merge_page(merged_k, k, kl, count);
                merge_page(merged_v, v, vl, count);
                if (kl > out.k_limbs) out.k_limbs = kl;
                if (vl > out.v_limbs) out.v_limbs = vl;
            }
            found++;
        }
        before = end;
    }
    return out;
}

typedef struct work {
    uint16_t *merged_k, *merged_v;
    float    *q, *p, *s; /* [rows][d/32][limb][32], [rows][2][limb][32], [rows][64] */
} work;

static work lay_out(const rk_att_tile *t) {
    int64_t  page = 2 * rk_page_bytes(t->head_dim, RK_BF16);
    char    *m = t->scratch;
    work     w = {.merged_k = (uint16_t *)(void *)m, .merged_v = (uint16_t *)(void *)(m + page)};
    w.q = (float *)(void *)(m + 2 * page);
    w.p = w.q + (int64_t)RK_ATT_ROWS * 2 * t->head_dim;
    w.s = w.p + (int64_t)RK_ATT_ROWS * 2 * RK_PAGE_KEYS;
    return w;
}

/* Split 32-blocks of a row into limbs, as f32 that bf16 holds. */
INLINE void split_limbs(const float *x, int n, int limbs, float *out) {
    for (int k = 0; k < n; k += 16) {
        float *o = out + (int64_t)(k / 32) * limbs * 32 + k % 32;
        v16    y = v_load(x + k), hi = v_round_bf16(y);
        v_store(o, hi);
        if (limbs == 2) v_store(o + 32, v_round_bf16(v_sub(y, hi)));
    }
}

/* Scores of one block, scaled by scale_log2; slots that a row does not see are -inf. */
static void score_block(const rk_att_tile *t, const work *w, const block *b, int64_t slot0) {
    int     d = t->head_dim, kb = d / 32;
    int64_t lda = (int64_t)d * t->limbs, lo = rk_page_count(d);
    v16     scale = v_set1(t->scale_log2);
    memset(w->s, 0, (size_t)t->n_rows * RK_PAGE_KEYS * sizeof *w->s);
    for (int g = 0; g < 4; g++)
        for (int r = 0; r < t->n_rows; r += V_ROWS) {
            int rows = t->n_rows - r < V_ROWS ? t->n_rows - r : V_ROWS;
            panel_rows(rows, w->q + r * lda, lda, t->limbs, b->k + (int64_t)g * kb * RK_TILE, RK_TILE,
                       b->k_limbs, lo, kb, w->s + r * RK_PAGE_KEYS + g * 16, RK_PAGE_KEYS);
        }
    for (int r = 0; r < t->n_rows; r++) {
        int64_t see = t->visible[r] - slot0;
        for (int g = 0; g < 4; g++) {
            float *s = w->s + r * RK_PAGE_KEYS + g * 16;
            v16    x = v_mul(v_load(s), scale);
            v_store(s, see >= 64 ? x : v_mask_from(x, (int)(see - g * 16), -INFINITY));
        }
    }
}

/* Online softmax of a block: state's m and l, p into w->p; alpha[r] for the outputs. */
static void soft_block(const rk_att_tile *t, const work *w, rk_att_state *st, float *alpha) {
    float d[16] = {0};
    for (int r = 0; r < t->n_rows; r++) {
        const float *s = w->s + r * RK_PAGE_KEYS;
        float        m = lanes_max(v_max(v_max(v_load(s), v_load(s + 16)),
                                         v_max(v_load(s + 32), v_load(s + 48))));
        float        next = m > st->m[r] ? m : st->m[r];
        d[r] = next == -INFINITY ? 0.0f : st->m[r] - next;
        st->m[r] = next;
    }
    v_store(alpha, exp2_16(v_load(d)));
    for (int r = 0; r < t->n_rows; r++) {
        const float *s = w->s + r * RK_PAGE_KEYS;
        float       *p = w->p + (int64_t)r * RK_PAGE_KEYS * t->limbs;
        v16          m = v_set1(st->m[r] == -INFINITY ? 0.0f : st->m[r]);
        v16          l = v_mul(v_load(st->l[r]), v_set1(alpha[r]));
        for (int g = 0; g < 4; g++) {
            v16    y = exp2_16(v_sub(v_load(s + g * 16), m)), hi = v_round_bf16(y);
            float *o = p + (int64_t)(g / 2) * t->limbs * 32 + g % 2 * 16;
            l = v_add(l, y);
            v_store(o, hi);
            if (t->limbs == 2) v_store(o + 32, v_round_bf16(v_sub(y, hi)));
        }
        v_store(st->l[r], l);
    }
}

static void output_block(const rk_att_tile *t, const work *w, const block *b, rk_att_state *st,
                         const float *alpha) {
    int     d = t->head_dim;
    int64_t ldp = (int64_t)RK_PAGE_KEYS * t->limbs, lo = rk_page_count(d);
    for (int r = 0; r < t->n_rows; r++) {
        float *o = st->o + (int64_t)r * d;
        if (alpha[r] == 1.0f) continue; /* times one changes nothing */
        for (int k = 0; k < d; k += 16) v_store(o + k, v_mul(v_load(o + k), v_set1(alpha[r])));
    }
    for (int g = 0; g < d / 16; g++)
        for (int r = 0; r < t->n_rows; r += V_ROWS) {
            int rows = t->n_rows - r < V_ROWS ? t->n_rows - r : V_ROWS;
            panel_rows(rows, w->p + r * ldp, ldp, t->limbs, b->v + (int64_t)g * RK_TILE,
                       (int64_t)(d / 16) * RK_TILE, b->v_limbs, lo, 2, st->o + (int64_t)r * d + g * 16, d);
        }
}

static int64_t most_visible(const rk_att_tile *t) {
    int64_t n = 0;
    for (int r = 0; r < t->n_rows; r++)
        if (t->visible[r] > n) n = t->visible[r];
    return n;
}

static void attend_part(const rk_att_tile *t, int part, rk_att_state *st) {
    work    w = lay_out(t);
    int64_t end = most_visible(t), first = (int64_t)part * RK_ATT_PART, last = first + RK_ATT_PART;
    int     d = t->head_dim;
    if (last > end) last = end;
    for (int r = 0; r < t->n_rows; r++) {
        st->m[r] = -INFINITY;
        v_store(st->l[r], v_set1(0.0f));
        split_limbs(t->q[r], d, t->limbs, w.q + (int64_t)r * d * t->limbs);
    }
    memset(st->o, 0, (size_t)t->n_rows * (size_t)d * sizeof *st->o);
    for (int64_t s0 = first; s0 < last; s0 += RK_PAGE_KEYS) {
        float alpha[16];
        block b = find_block(t, s0 / RK_PAGE_KEYS, w.merged_k, w.merged_v);
        score_block(t, &w, &b, s0);
        soft_block(t, &w, st, alpha);
        output_block(t, &w, &b, st, alpha);
    }
}

static void attend_merge(int n_rows, int d, rk_att_state *a, const rk_att_state *b) {
    for (int r = 0; r < n_rows; r++) {
        if (b->m[r] == -INFINITY) continue; /* a part that the row does not see */
        float m = a->m[r] > b->m[r] ? a->m[r] : b->m[r], f[16] = {a->m[r] - m, b->m[r] - m};
        v_store(f, exp2_16(v_load(f)));
        v16 fa = v_set1(f[0]), fb = v_set1(f[1]);
        v_store(a->l[r], v_fma(v_load(b->l[r]), fb, v_mul(v_load(a->l[r]), fa)));
        for (int k = 0; k < d; k += 16) {
            float *o = a->o + (int64_t)r * d + k;
            v_store(o, v_fma(v_load(b->o + (int64_t)r * d + k), fb, v_mul(v_load(o), fa)));
        }
        a->m[r] = m;
    }
}

static void attend_store(int n_rows, int d, const rk_att_state *s, int limbs, int width,
                         const int *act_row, const int *col, void *act) {
    for (int r = 0; r < n_rows; r++) {
        v16 inv = v_set1(1.0f / tree_sum(v_load(s->l[r])));
        for (int k = 0; k < d; k += 16)
            put_act(act, act_row[r], col[r] + k, width, limbs,
                    v_mul(v_load(s->o + (int64_t)r * d + k), inv));
    }
}

/* ---- selection ---- */

static void window_mass(const rk_att_tile *proto, const float *q, int64_t q_stride, int w, int32_t n,
                        float *t, float *mass) {
    rk_att_tile tile = *proto;
    work        k = lay_out(&tile);
    int64_t     ld = rk_round_up(n, RK_PAGE_KEYS);
    for (int r0 = 0; r0 < w; r0 += RK_ATT_ROWS) {
        tile.n_rows = w - r0 < RK_ATT_ROWS ? w - r0 : RK_ATT_ROWS;
        for (int r = 0; r < tile.n_rows; r++) {
            tile.visible[r] = n - w + 1 + r0 + r;
            split_limbs(q + (r0 + r) * q_stride, tile.head_dim, 1, k.q + (int64_t)r * tile.head_dim);
        }
        for (int64_t s0 = 0; s0 < n; s0 += RK_PAGE_KEYS) {
            block b = find_block(&tile, s0 / RK_PAGE_KEYS, k.merged_k, k.merged_v);
            score_block(&tile, &k, &b, s0);
            for (int r = 0; r < tile.n_rows; r++)
                memcpy(t + (r0 + r) * ld + s0, k.s + r * RK_PAGE_KEYS, RK_PAGE_KEYS * sizeof *t);
        }
    }
    memset(mass, 0, (size_t)n * sizeof *mass);
    for (int r = 0; r < w; r++) {
        float *row = t + r * ld;
        v16    m = v_set1(-INFINITY), l = v_set1(0.0f);
        for (int64_t j = 0; j < ld; j += 16) m = v_max(m, v_load(row + j));
        m = v_set1(lanes_max(m));
        for (int64_t j = 0; j < ld; j += 16) {
            v16 p = exp2_16(v_sub(v_load(row + j), m));
            l = v_add(l, p);
            v_store(row + j, p);
        }
        v16 inv = v_set1(1.0f / tree_sum(l));
        int64_t j = 0;
        for (; j + 16 <= n; j += 16)
            v_store(mass + j, v_add(v_load(mass + j), v_mul(v_load(row + j), inv)));
        for (float last[16]; j < n; j = n) {
            v_store(last, v_mul(v_load(row + j), inv));
            for (int i = 0; j + i < n; i++) mass[j + i] = mass[j + i] + last[i];
        }
    }
}

/* ---- perturbation ---- */

static void perturb(int d, const rk_span *src, float eps, uint64_t seed, uint32_t layer,
                    uint32_t kv_head, uint32_t sample, uint32_t draw, const rk_span *dst, int32_t i0,
                    int32_t i1) {
    enum { MAX_D = 1024 };
    float   v[MAX_D], g[MAX_D];
    int64_t count = rk_page_count(d);
    for (int32_t i = i0; i < i1; i++) {
        int64_t         page = (src->first + i) / RK_PAGE_KEYS;
        int             slot = (src->first + i) % RK_PAGE_KEYS;
        const uint16_t *from = page_of(src->v, RK_BF16, page, d);
        uint16_t       *to = (uint16_t *)dst->v + page * count * 2;
        float           vv = 0, gg = 0;
        rk_rng_noise(seed, layer, kv_head, sample, draw, (uint32_t)i, d, g);
        for (int j = 0; j < d; j++) {
            v[j] = rk_bf16_to_f32(from[rk_vpage_at(slot, j, d)]);
            vv = fmaf(v[j], v[j], vv);
            gg = fmaf(g[j], g[j], gg);
        }
        float f = eps * sqrtf(vv) / sqrtf(gg);
        for (int j = 0; j < d; j++) {
            int64_t  at = rk_vpage_at(slot, j, d);
            float    y = eps == 0.0f ? v[j] : fmaf(f, g[j], v[j]);
            uint16_t hi = rk_f32_to_bf16(y);
            to[at] = hi;
            to[count + at] = rk_f32_to_bf16(y - rk_bf16_to_f32(hi));
        }
    }
}

static void exp2_rows(const float *x, int n, float *y) {
    for (int i = 0; i < n; i += 16) {
        float in[16] = {0}, out[16];
        int   k = n - i < 16 ? n - i : 16;
        memcpy(in, x + i, (size_t)k * sizeof *in);
        v_store(out, exp2_16(v_load(in)));
        memcpy(y + i, out, (size_t)k * sizeof *out);
    }
}

const rk_cpu_isa KERNELS = {
    .name = KERNELS_NAME,
    .att_rows = V_ROWS > RK_ATT_ROWS ? RK_ATT_ROWS : V_ROWS * (12 / V_ROWS),
    .gemm = gemm,
    .rmsnorm = rmsnorm,
    .silu_mul = silu_mul,
    .attend_part = attend_part,
    .attend_merge = attend_merge,
    .attend_store = attend_store,
    .window_mass = window_mass,
    .perturb = perturb,
    .exp2 = exp2_rows,
};
