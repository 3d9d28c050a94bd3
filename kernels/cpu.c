/* cpu.c - the fast host backend: bf16 storage, kernels chosen by instruction set, work cut for the
 * pool. How work is cut never changes a bit: pieces are columns, rows, or whole parts of a tile. */
#include <math.h>
#include <string.h>

#include "kernels/cpu_isa.h"
#include "kernels/host.h"

static const rk_cpu_isa *isa_of(rk_backend *be) { return rk_host_of(be)->isa; }
static int               threads_of(rk_backend *be) { return rk_pool_size(rk_host_of(be)->pool); }

/* ---- matrix product: threads share the panels of 32 outputs ---- */

enum { DOT_GROUPS = 8 }; /* groups of quantised weights between dot and what follows it */

typedef struct gemm_job {
    const rk_cpu_isa *isa;
    rk_gemm           g;
    const void       *int8; /* quantised activations, or NULL */
    char             *scratch;
    int64_t           scratch_each;
} gemm_job;

static void dot_groups(const gemm_job *j, int g0, int g1, float *c) {
    const rk_mat *w = j->g.w;
    for (int g = g0; g < g1; g += DOT_GROUPS) {
        int to = g1 - g < DOT_GROUPS ? g1 : g + DOT_GROUPS;
        j->g.quant->dot(w->quant, w->dev, w->k, j->int8, j->g.m, g, to, c, DOT_GROUPS * 16);
        j->isa->gemm_finish(&j->g, c, DOT_GROUPS * 16, g, to);
    }
}

static void gemm_part(void *arg, int piece, int n_pieces, int thread) {
    const gemm_job *j = arg;
    int64_t         begin, end, groups = (j->g.w->n + 15) / 16;
    void           *mine = j->scratch + thread * j->scratch_each;
    rk_pool_share((j->g.w->n + 31) / 32, piece, n_pieces, &begin, &end);
    begin *= 2;
    end = 2 * end < groups ? 2 * end : groups;
    if (begin >= end) return;
    if (j->int8)
        dot_groups(j, (int)begin, (int)end, mine);
    else
        j->isa->gemm(&j->g, (int)begin, (int)end, mine);
}

static void quantise_rows(void *arg, int piece, int n_pieces, int thread) {
    const gemm_job *j = arg;
    union {
        const void *c;
        void       *p;
    } to = {.c = j->int8};
    (void)piece, (void)n_pieces, (void)thread;
    j->g.quant->quantise(j->g.act, j->g.m, j->g.w->k, to.p);
}

static rk_status run_gemm(rk_backend *be, rk_rows_kind kind, const rk_gemm *g) {
    rk_host *h = rk_host_of(be);
    bool     int8 = g->w->quant != RK_QUANT_NONE && kind == RK_ROWS_DECODE;
    gemm_job j = {.isa = isa_of(be), .g = *g};
    void    *p;
    if (g->m == 0) return RK_OK;
    j.g.limbs = rk_limbs(be, kind);
    j.g.quant = h->quant;
    j.scratch_each = int8 ? (int64_t)g->m * DOT_GROUPS * 16 * 4 : rk_gemm_scratch_bytes(g->w, j.g.limbs);
    j.scratch_each = rk_round_up(j.scratch_each, 64);
    RK_TRY(rk_host_scratch(h, 0, j.scratch_each * threads_of(be), &p));
    j.scratch = p;
    if (int8) {
        RK_TRY(rk_host_scratch(h, 1, rk_quant_act_bytes(g->m, g->w->k), &p));
        j.int8 = p;
        rk_pool_run(h->pool, 1, quantise_rows, &j);
    }
    rk_pool_run(h->pool, rk_pool_pieces(h->pool, (g->w->n + 31) / 32, 1), gemm_part, &j);
    return RK_OK;
}

static rk_status cpu_gemm(rk_backend *be, const void *act, rk_rows_kind kind, int m, const rk_mat *w,
                          const float *bias, bool add, float *out, int ld_out) {
    rk_gemm g = {.kind = add ? RK_GEMM_ADD : RK_GEMM_STORE, .act = act, .m = m, .w = w, .bias = bias,
                 .out = out, .ld_out = ld_out};
    return run_gemm(be, kind, &g);
}

static rk_status cpu_gemm_silu_mul(rk_backend *be, const void *act, rk_rows_kind kind, int m,
                                   const rk_mat *w, void *act_out) {
    rk_gemm g = {.kind = RK_GEMM_SILU_MUL, .act = act, .m = m, .w = w, .act_out = act_out};
    return run_gemm(be, kind, &g);
}

/* ---- ops over rows: threads share the rows ---- */

typedef struct row_job {
    const rk_cpu_isa *isa;
    const float      *x, *w;
    float             eps;
    int               m, width, limbs;
    void             *act;
} row_job;

static void rmsnorm_part(void *arg, int piece, int n_pieces, int thread) {
    const row_job *j = arg;
    int64_t        begin, end;
    (void)thread;
    rk_pool_share(j->m, piece, n_pieces, &begin, &end);
    j->isa->rmsnorm(j->x, j->w, j->eps, (int)begin, (int)end, j->width, j->limbs, j->act);
}

static rk_status cpu_rmsnorm(rk_backend *be, const float *x, const float *w, float eps, int m,
                             int d_model, rk_rows_kind kind, void *act) {
    row_job j = {isa_of(be), x, w, eps, m, d_model, rk_limbs(be, kind), act};
    rk_pool *pool = rk_host_of(be)->pool;
    rk_pool_run(pool, rk_pool_pieces(pool, m, RK_FEW_ROWS), rmsnorm_part, &j);
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

static void store_tile(const attend_job *j, const rk_att_tile *t, const rk_att_state *total,
                       const int *act_row, const int *col) {
    j->isa->attend_store(t->n_rows, t->head_dim, total, j->limbs, j->sh->n_heads * t->head_dim, act_row,
                         col, j->act);
}

static void attend_whole_tile(void *arg, int piece, int n_pieces, int thread) {
    attend_job   *j = arg;
    char         *mine = j->scratch + thread * j->scratch_each;
    rk_att_state *total = (void *)(mine + j->scratch_each - 2 * j->state_bytes);
    rk_att_state *part = (void *)(mine + j->scratch_each - j->state_bytes);
    rk_att_tile   t;
    int           act_row[RK_ATT_ROWS], col[RK_ATT_ROWS];
    tile_place    p = place_of(j, piece);
    (void)n_pieces;
    make_tile(j, &p, mine, &t, act_row, col);
    j->isa->attend_part(&t, 0, total);
    for (int k = 1; k < parts_of(&t); k++) {
        j->isa->attend_part(&t, k, part);
        j->isa->attend_merge(t.n_rows, t.head_dim, total, part);
    }
    store_tile(j, &t, total, act_row, col);
}

static rk_att_state *state_at(const attend_job *j, int64_t tile, int64_t part) {
    return (void *)(j->states + (tile * j->max_parts + part) * j->state_bytes);
}

static void attend_one_part(void *arg, int piece, int n_pieces, int thread) {
    attend_job *j = arg;
    int         tile = (int)(piece / j->max_parts), part = (int)(piece % j->max_parts);
    rk_att_tile t;
    int         act_row[RK_ATT_ROWS], col[RK_ATT_ROWS];
    tile_place  p = place_of(j, tile);
    (void)n_pieces;
    make_tile(j, &p, j->scratch + thread * j->scratch_each, &t, act_row, col);
    if (part < parts_of(&t)) j->isa->attend_part(&t, part, state_at(j, tile, part));
}

static void merge_parts(void *arg, int piece, int n_pieces, int thread) {
    attend_job *j = arg;
    int64_t     begin, end;
    rk_pool_share(j->n_tiles, piece, n_pieces, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        rk_att_tile   t;
        int           act_row[RK_ATT_ROWS], col[RK_ATT_ROWS];
        tile_place    p = place_of(j, i);
        rk_att_state *total = state_at(j, i, 0);
        make_tile(j, &p, j->scratch + thread * j->scratch_each, &t, act_row, col);
        for (int k = 1; k < parts_of(&t); k++)
            j->isa->attend_merge(t.n_rows, t.head_dim, total, state_at(j, i, k));
        store_tile(j, &t, total, act_row, col);
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
    j.rows_per_tile = RK_ATT_ROWS;
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
        rk_pool_run(h->pool, j.n_tiles * j.max_parts, attend_one_part, &j);
        rk_pool_run(h->pool, rk_pool_pieces(h->pool, j.n_tiles, RK_FEW_ROWS), merge_parts, &j);
    } else {
        rk_pool_run(h->pool, j.n_tiles, attend_whole_tile, &j);
    }
    return RK_OK;
}

/* ---- selection: a piece is a query head ---- */

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

static void mass_head(void *arg, int piece, int n_pieces, int thread) {
    const mass_job *j = arg;
    int             H = j->sh->n_heads, G = j->sh->n_kv_heads, d = j->sh->head_dim;
    char           *mine = j->scratch + thread * j->scratch_each;
    rk_att_tile     proto = {.head_dim = d, .limbs = 1,
                             .scale_log2 = j->sh->scale * 1.44269504088896340736f,
                             .spans = j->spans + piece / (H / G), .n_spans = j->n_spans, .stride = G,
                             .scratch = mine};
    (void)n_pieces;
    j->isa->window_mass(&proto, j->q + (int64_t)piece * d, (int64_t)H * d, j->w, j->n,
                        (float *)(void *)(mine + j->tile_bytes), j->mass + (int64_t)piece * j->n);
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
    rk_pool_run(rk_host_of(be)->pool, sh->n_heads, mass_head, &j);
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

static void perturb_part(void *arg, int piece, int n_pieces, int thread) {
    const perturb_job *j = arg;
    int64_t            begin, end;
    (void)thread;
    rk_pool_share(j->src->n, piece, n_pieces, &begin, &end);
    j->isa->perturb(j->d, j->src, j->eps, j->seed, j->layer, j->kv_head, j->sample, j->draw, j->dst,
                    (int32_t)begin, (int32_t)end);
}

static rk_status cpu_kv_perturb(rk_backend *be, int head_dim, const rk_span *src, float eps,
                                uint64_t seed, uint32_t layer, uint32_t kv_head, uint32_t sample,
                                uint32_t draw, const rk_span *dst) {
    perturb_job j = {isa_of(be), head_dim, src, dst, eps, seed, layer, kv_head, sample, draw};
    RK_ASSERT(src->first == 0 && src->v_dtype == RK_BF16 && dst->v_dtype == RK_BF16X2 &&
              dst->n == src->n && dst->first == 0 && head_dim <= 1024);
    rk_pool *pool = rk_host_of(be)->pool;
    rk_pool_run(pool, rk_pool_pieces(pool, src->n, 16), perturb_part, &j);
    return RK_OK;
}

static rk_status cpu_open(const rk_backend_ops *ops, int n_threads, rk_backend **out) {
    RK_TRY(rk_host_open(ops, n_threads, out));
    (*out)->weight_dtype = RK_BF16;
    (*out)->exact_dtype = RK_BF16X2;
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
    .gemm_silu_mul = cpu_gemm_silu_mul,
    .window_mass = cpu_window_mass,
    .kv_gather = rk_host_kv_gather,
    .kv_perturb = cpu_kv_perturb,
    .kv_read = rk_host_kv_read,
    .score_rows = rk_host_score_rows,
};
