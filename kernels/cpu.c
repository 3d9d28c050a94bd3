/* cpu.c - the fast host backend: bf16 storage, kernels chosen by instruction set, work cut for the
 * pool. How work is cut never changes a bit: pieces are columns, rows, or whole parts of a tile. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu_isa.h"
#include "kernels/host.h"

static const rk_cpu_isa *isa_of(rk_backend *be) { return rk_host_of(be)->isa; }
static int               threads_of(rk_backend *be) { return rk_pool_size(rk_host_of(be)->pool); }

/* ---- matrix product: threads share the columns ---- */

typedef struct gemm_job {
    const rk_cpu_isa *isa;
    const void       *act;
    int               limbs, m;
    const rk_mat     *w;
    const float      *bias;
    bool              add;
    float            *out;
    int               ld_out;
    char             *scratch;
    int64_t           scratch_each;
} gemm_job;

static void gemm_part(void *arg, int t, int n_threads) {
    const gemm_job *j = arg;
    int64_t         begin, end;
    rk_pool_share((j->w->n + 15) / 16, t, n_threads, &begin, &end);
    if (begin == end) return;
    j->isa->gemm(j->act, j->limbs, j->m, j->w, j->bias, j->add, j->out, j->ld_out, (int)begin * 16,
                 (int)end * 16, (float *)(void *)(j->scratch + t * j->scratch_each));
}

static rk_status cpu_gemm(rk_backend *be, const void *act, rk_rows_kind kind, int m, const rk_mat *w,
                          const float *bias, bool add, float *out, int ld_out) {
    int      limbs = rk_limbs(be, kind);
    int64_t  rows = m < RK_GEMM_BLOCK ? m : RK_GEMM_BLOCK;
    gemm_job j = {.isa = isa_of(be), .act = act, .limbs = limbs, .m = m, .w = w, .bias = bias,
                  .add = add, .out = out, .ld_out = ld_out,
                  .scratch_each = rk_round_up(rows * rk_round_up(w->k, 32) * limbs * 4, 64)};
    void    *p;
    if (m == 0) return RK_OK;
    RK_TRY(rk_host_scratch(rk_host_of(be), 0, j.scratch_each * threads_of(be), &p));
    j.scratch = p;
    rk_pool_run(rk_host_of(be)->pool, gemm_part, &j);
    return RK_OK;
}

/* ---- ops over rows: threads share the rows ---- */

typedef struct row_job {
    const rk_cpu_isa *isa;
    const float      *x, *w;
    float             eps;
    int               m, width, limbs;
    void             *act;
} row_job;

static void rmsnorm_part(void *arg, int t, int n_threads) {
    const row_job *j = arg;
    int64_t        begin, end;
    rk_pool_share(j->m, t, n_threads, &begin, &end);
    j->isa->rmsnorm(j->x, j->w, j->eps, (int)begin, (int)end, j->width, j->limbs, j->act);
}

static rk_status cpu_rmsnorm(rk_backend *be, const float *x, const float *w, float eps, int m,
                             int d_model, rk_rows_kind kind, void *act) {
    row_job j = {isa_of(be), x, w, eps, m, d_model, rk_limbs(be, kind), act};
    rk_pool_run(rk_host_of(be)->pool, rmsnorm_part, &j);
    return RK_OK;
}

static void silu_part(void *arg, int t, int n_threads) {
    const row_job *j = arg;
    int64_t        begin, end;
    rk_pool_share(j->m, t, n_threads, &begin, &end);
    j->isa->silu_mul(j->x, (int)begin, (int)end, j->width, j->limbs, j->act);
}

static rk_status cpu_silu_mul(rk_backend *be, const float *gu, int m, int d_ffn, rk_rows_kind kind,
                              void *act) {
    row_job j = {isa_of(be), gu, NULL, 0, m, d_ffn, rk_limbs(be, kind), act};
    rk_pool_run(rk_host_of(be)->pool, silu_part, &j);
    return RK_OK;
}

/* ---- attention ---- */

/* Work is numbered: for each set, stored head and tile of query rows (token x query head of the
 * group). With few tiles (decode) the parts of a tile are pieces of their own, merged afterwards in
 * the same order in which one thread would have. */
typedef struct attend_job {
    const rk_cpu_isa    *isa;
    const rk_attn_shape *sh;
    const float         *qkv;
    const rk_seq_rows   *sets;
    int                  n_sets, limbs, rows_per_tile;
    void                *act;
    int64_t              n_tiles, max_parts; /* by_part: pieces are (tile, part) */
    bool                 by_part;
    char                *scratch, *states;
    int64_t              scratch_each, state_bytes;
    _Atomic int64_t      next;
} attend_job;

typedef struct tile_place {
    const rk_seq_rows *set;
    int                g, first, n_rows; /* stored head; first (token, query head) row */
} tile_place;

static int64_t tiles_of(const attend_job *j, const rk_seq_rows *s) {
    int64_t rows = (int64_t)s->n_rows * (j->sh->n_heads / j->sh->n_kv_heads);
    return (rows + j->rows_per_tile - 1) / j->rows_per_tile;
}

static tile_place place_of(const attend_job *j, int64_t tile) {
    for (int k = 0; k < j->n_sets; k++) {
        int64_t per_head = tiles_of(j, &j->sets[k]), n = per_head * j->sh->n_kv_heads;
        if (tile < n) {
            int rows = j->sets[k].n_rows * (j->sh->n_heads / j->sh->n_kv_heads);
            /* later rows see more: hand them out first */
            int first = (int)(per_head - 1 - tile % per_head) * j->rows_per_tile;
            int left = rows - first;
            return (tile_place){&j->sets[k], (int)(tile / per_head), first,
                                left < j->rows_per_tile ? left : j->rows_per_tile};
        }
        tile -= n;
    }
    return (tile_place){0};
}

static int64_t stored_slots(const attend_job *j, const rk_seq_rows *s, int g) {
    int64_t n = 0;
    for (int i = 0; i < s->n_spans; i++) n += s->spans[(int64_t)i * j->sh->n_kv_heads + g].n;
    return n;
}

static void make_tile(const attend_job *j, const tile_place *p, void *scratch, rk_att_tile *t,
                      int act_row[RK_ATT_ROWS], int col[RK_ATT_ROWS]) {
    int     rep = j->sh->n_heads / j->sh->n_kv_heads, d = j->sh->head_dim;
    int64_t width = (int64_t)(j->sh->n_heads + 2 * j->sh->n_kv_heads) * d;
    int64_t slots = stored_slots(j, p->set, p->g);
    *t = (rk_att_tile){.n_rows = p->n_rows, .head_dim = d, .limbs = j->limbs,
                       .scale_log2 = j->sh->scale * 1.44269504088896340736f,
                       .spans = p->set->spans + p->g, .n_spans = p->set->n_spans,
                       .stride = j->sh->n_kv_heads, .scratch = scratch};
    for (int r = 0; r < p->n_rows; r++) {
        int token = (p->first + r) / rep, head = p->g * rep + (p->first + r) % rep;
        act_row[r] = p->set->row0 + token;
        col[r] = head * d;
        t->q[r] = j->qkv + act_row[r] * width + col[r];
        t->visible[r] = slots - (p->set->n_rows - 1 - token);
    }
}

static int parts_of(const rk_att_tile *t) {
    return (int)((t->visible[t->n_rows - 1] + RK_ATT_PART - 1) / RK_ATT_PART);
}

static void attend_whole_tiles(void *arg, int thread, int n_threads) {
    attend_job   *j = arg;
    char         *mine = j->scratch + thread * j->scratch_each;
    rk_att_state *total = (void *)(mine + j->scratch_each - 2 * j->state_bytes);
    rk_att_state *part = (void *)(mine + j->scratch_each - j->state_bytes);
    (void)n_threads;
    for (int64_t i; (i = atomic_fetch_add(&j->next, 1)) < j->n_tiles;) {
        rk_att_tile t;
        int         act_row[RK_ATT_ROWS], col[RK_ATT_ROWS];
        tile_place  p = place_of(j, i);
        make_tile(j, &p, mine, &t, act_row, col);
        j->isa->attend_part(&t, 0, total);
        for (int k = 1; k < parts_of(&t); k++) {
            j->isa->attend_part(&t, k, part);
            j->isa->attend_merge(t.n_rows, t.head_dim, total, part);
        }
        j->isa->attend_store(t.n_rows, t.head_dim, total, j->limbs, j->sh->n_heads * t.head_dim,
                             act_row, col, j->act);
    }
}

static rk_att_state *state_at(const attend_job *j, int64_t tile, int64_t part) {
    return (void *)(j->states + (tile * j->max_parts + part) * j->state_bytes);
}

static void attend_parts(void *arg, int thread, int n_threads) {
    attend_job *j = arg;
    (void)n_threads;
    for (int64_t i; (i = atomic_fetch_add(&j->next, 1)) < j->n_tiles * j->max_parts;) {
        rk_att_tile t;
        int         act_row[RK_ATT_ROWS], col[RK_ATT_ROWS];
        tile_place  p = place_of(j, i / j->max_parts);
        make_tile(j, &p, j->scratch + thread * j->scratch_each, &t, act_row, col);
        if (i % j->max_parts < parts_of(&t))
            j->isa->attend_part(&t, (int)(i % j->max_parts), state_at(j, i / j->max_parts, i % j->max_parts));
    }
}

static void merge_parts(void *arg, int thread, int n_threads) {
    attend_job *j = arg;
    int64_t     begin, end;
    rk_pool_share(j->n_tiles, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        rk_att_tile   t;
        int           act_row[RK_ATT_ROWS], col[RK_ATT_ROWS];
        tile_place    p = place_of(j, i);
        rk_att_state *total = state_at(j, i, 0);
        make_tile(j, &p, j->scratch + thread * j->scratch_each, &t, act_row, col);
        for (int k = 1; k < parts_of(&t); k++)
            j->isa->attend_merge(t.n_rows, t.head_dim, total, state_at(j, i, k));
        j->isa->attend_store(t.n_rows, t.head_dim, total, j->limbs, j->sh->n_heads * t.head_dim,
                             act_row, col, j->act);
    }
}

static rk_status cpu_attend(rk_backend *be, const rk_attn_shape *sh, const float *qkv, int m,
                            const rk_seq_rows *sets, int n_sets, rk_rows_kind kind, void *out) {
    rk_host   *h = rk_host_of(be);
    attend_job j = {.isa = isa_of(be), .sh = sh, .qkv = qkv, .sets = sets, .n_sets = n_sets,
                    .limbs = rk_limbs(be, kind), .act = out,
                    .state_bytes = rk_att_state_bytes(sh->head_dim)};
    void      *p;
    (void)m;
    j.rows_per_tile = j.isa->att_rows;
    for (int k = 0; k < n_sets; k++) {
        j.n_tiles += tiles_of(&j, &sets[k]) * sh->n_kv_heads;
        for (int g = 0; g < sh->n_kv_heads; g++) {
            int64_t parts = (stored_slots(&j, &sets[k], g) + RK_ATT_PART - 1) / RK_ATT_PART;
            if (parts > j.max_parts) j.max_parts = parts;
        }
    }
    j.by_part = threads_of(be) > 1 && j.n_tiles < 4 * threads_of(be) && j.max_parts > 1;
    j.scratch_each = rk_round_up(rk_att_scratch_bytes(sh->head_dim), 64) + 2 * j.state_bytes;
    RK_TRY(rk_host_scratch(h, 1, j.scratch_each * threads_of(be), &p));
    j.scratch = p;
    if (j.by_part) {
        RK_TRY(rk_host_scratch(h, 2, j.n_tiles * j.max_parts * j.state_bytes, &p));
        j.states = p;
        rk_pool_run(h->pool, attend_parts, &j);
        rk_pool_run(h->pool, merge_parts, &j);
    } else {
        rk_pool_run(h->pool, attend_whole_tiles, &j);
    }
    return RK_OK;
}

/* ---- selection: threads share the query heads ---- */

typedef struct mass_job {
    const rk_cpu_isa    *isa;
    const rk_attn_shape *sh;
    const float         *q;
    int                  w, n_spans;
    const rk_span       *spans;
    int32_t              n;
    float               *mass;
    char                *scratch;
    int64_t              scratch_each, tile_bytes;
} mass_job;

static void mass_part(void *arg, int t, int n_threads) {
    const mass_job *j = arg;
    int             H = j->sh->n_heads, G = j->sh->n_kv_heads, d = j->sh->head_dim;
    char           *mine = j->scratch + t * j->scratch_each;
    int64_t         begin, end;
    rk_pool_share(H, t, n_threads, &begin, &end);
    for (int64_t h = begin; h < end; h++) {
        rk_att_tile proto = {.head_dim = d, .limbs = 1,
                             .scale_log2 = j->sh->scale * 1.44269504088896340736f,
                             .spans = j->spans + h / (H / G), .n_spans = j->n_spans, .stride = G,
                             .scratch = mine};
        j->isa->window_mass(&proto, j->q + h * d, (int64_t)H * d, j->w, j->n,
                            (float *)(void *)(mine + j->tile_bytes), j->mass + h * j->n);
    }
}

static rk_status cpu_window_mass(rk_backend *be, const rk_attn_shape *sh, const float *q, int w,
                                 const rk_span *spans, int n_spans, int32_t n, float *mass) {
    mass_job j = {.isa = isa_of(be), .sh = sh, .q = q, .w = w, .n_spans = n_spans, .spans = spans,
                  .n = n, .mass = mass,
                  .tile_bytes = rk_round_up(rk_att_scratch_bytes(sh->head_dim), 64)};
    void    *p;
    j.scratch_each = j.tile_bytes + w * rk_round_up(n, RK_PAGE_KEYS) * (int64_t)sizeof(float);
    RK_TRY(rk_host_scratch(rk_host_of(be), 3, j.scratch_each * threads_of(be), &p));
    j.scratch = p;
    rk_pool_run(rk_host_of(be)->pool, mass_part, &j);
    return RK_OK;
}

/* ---- perturbation: threads share the slots ---- */

typedef struct perturb_job {
    const rk_cpu_isa *isa;
    int               d;
    const rk_span    *src, *dst;
    float             eps;
    uint64_t          seed;
    uint32_t          layer, kv_head, sample, draw;
} perturb_job;

static void perturb_part(void *arg, int t, int n_threads) {
    const perturb_job *j = arg;
    int64_t            begin, end;
    rk_pool_share(j->src->n, t, n_threads, &begin, &end);
    j->isa->perturb(j->d, j->src, j->eps, j->seed, j->layer, j->kv_head, j->sample, j->draw, j->dst,
                    (int32_t)begin, (int32_t)end);
}

static rk_status cpu_kv_perturb(rk_backend *be, int head_dim, const rk_span *src, float eps,
                                uint64_t seed, uint32_t layer, uint32_t kv_head, uint32_t sample,
                                uint32_t draw, const rk_span *dst) {
    perturb_job j = {isa_of(be), head_dim, src, dst, eps, seed, layer, kv_head, sample, draw};
    RK_ASSERT(src->first == 0 && src->v_dtype == RK_BF16 && dst->v_dtype == RK_BF16X2 &&
              dst->n == src->n && dst->first == 0 && head_dim <= 1024);
    rk_pool_run(rk_host_of(be)->pool, perturb_part, &j);
    return RK_OK;
}

static rk_status cpu_open(const rk_backend_ops *ops, int n_threads, rk_backend **out) {
    RK_TRY(rk_host_open(ops, n_threads, out));
    (*out)->weight_dtype = RK_BF16;
    (*out)->exact_dtype = RK_BF16X2;
    (*out)->numerics = "tile";
    return RK_OK;
}

const rk_backend_ops rk_cpu_ops = {
    .name = "cpu",
    .open = cpu_open,
    .close = rk_host_close,
    .alloc = rk_host_alloc,
    .release = rk_host_release,
    .upload = rk_host_copy_in,
    .download = rk_host_copy_out,
    .zero = rk_host_zero,
    .sync = rk_host_sync,
    .embed = rk_host_embed,
    .take_rows = rk_host_take_rows,
    .rmsnorm = cpu_rmsnorm,
    .gemm = cpu_gemm,
    .rope_append = rk_host_rope_append,
    .attend = cpu_attend,
    .silu_mul = cpu_silu_mul,
    .window_mass = cpu_window_mass,
    .kv_gather = rk_host_kv_gather,
    .kv_perturb = cpu_kv_perturb,
    .kl_rows = rk_host_kl_rows,
};
