/* test_amx.c - the AMX kernels on any x86-64 CPU: their source is compiled here once more over a
 * software model of the tiles, and must give the scalar twin's bits and touch no memory but its
 * own. Where the CPU has AMX, the table that runs on it is held to the same. */
#include <CUnit/CUnit.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/vec_scalar.inc"
#include "tests/amx_emulation.h"
#define ORDER_PAIR   0
#define ORDER_AMX    1
#define KERNELS      rk_cpu_tile_amx_emulated
#define KERNELS_NAME "amx, emulated"
#include "kernels/cpu_kernels.inc"

#include "base/mem.h"
#include "kernels/host.h"
#include "tests/suites.h"

static const rk_cpu_isa *tables[2];
static int               n_tables;
static unsigned          csr_before;

static int suite_begin(void) {
    n_tables = 0;
    tables[n_tables++] = &rk_cpu_tile_amx_emulated;
    if (rk_backend_has_isa("amx", "tile")) tables[n_tables++] = &rk_cpu_tile_amx;
    csr_before = _mm_getcsr();
    _mm_setcsr(csr_before | 0x8040); /* denormals zero, as in the pool's threads */
    return 0;
}
static int suite_end(void) {
    _mm_setcsr(csr_before);
    return 0;
}

__attribute__((format(printf, 3, 4))) static void check(bool ok, int line, const char *fmt, ...) {
    char    text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    CU_assertImplementation(ok, (unsigned)line, text, __FILE__, "", CU_FALSE);
}
#define CHECK(ok, ...) check((ok), __LINE__, __VA_ARGS__)

/* ---- memory that ends where it ends: the byte behind it cannot be read or written ---- */

enum { PAGE = 4096 };

static int64_t fence_bytes(int64_t bytes) {
    return rk_round_up(bytes, PAGE) + PAGE;
}
static void *fenced(int64_t bytes, int fill) {
    char *p = mmap(NULL, (size_t)fence_bytes(bytes), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CU_ASSERT_FATAL(p != MAP_FAILED);
    int64_t used = fence_bytes(bytes) - PAGE;
    memset(p, fill, (size_t)used);
    CU_ASSERT_EQUAL_FATAL(mprotect(p + used, PAGE, PROT_NONE), 0);
    return p + used - bytes;
}
static void unfence(void *p, int64_t bytes) {
    munmap((char *)p + bytes - (fence_bytes(bytes) - PAGE), (size_t)fence_bytes(bytes));
}

/* Values of a fixed sequence between -1 and 1. */
static uint32_t seed;
static float    next_value(void) {
    seed = seed * 1664525u + 1013904223u;
    return (float)(int32_t)seed * 0x1p-31f;
}
static uint16_t *bf16_values(int64_t n) {
    uint16_t *p = fenced(n * 2, 0);
    for (int64_t i = 0; i < n; i++) p[i] = rk_f32_to_bf16(next_value());
    return p;
}

/* ---- the model ---- */

static void no_config(void) {
    amx_zero(0);
}
static void bad_rows(void) {
    unsigned char c[64] = {1};
    c[16] = 64, c[48] = 17;
    amx_loadconfig(c);
}
static void reserved_bytes(void) {
    unsigned char c[64] = {1};
    c[2] = 1;
    amx_loadconfig(c);
}
static void other_shapes(void) {
    mm_begin(5); /* C and A have 5 rows, B 16 */
    amx_dpbf16(0, 5, 4);
}
static void tile_twice(void) {
    mm_begin(16);
    amx_dpbf16(0, 4, 4);
}
static void after_release(void) {
    mm_begin(16);
    mm_end();
    amx_zero(0);
}

/* Does f end the process? */
static bool ends(void (*f)(void)) {
    pid_t pid = fork();
    CU_ASSERT_FATAL(pid >= 0);
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        f();
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void test_model(void) {
    CU_ASSERT(ends(no_config));
    CU_ASSERT(ends(bad_rows));
    CU_ASSERT(ends(reserved_bytes));
    CU_ASSERT(ends(other_shapes));
    CU_ASSERT(ends(tile_twice));
    CU_ASSERT(ends(after_release));
    /* by hand: 1 x 2 + 3 x 4 in column 1 of row 2, and a denormal that counts as zero */
    uint16_t a[16][32] = {{0}}, b[16][32] = {{0}};
    float    c[16][16] = {{0}};
    mm_begin(16);
    a[2][0] = rk_f32_to_bf16(1), a[2][7] = rk_f32_to_bf16(3), a[4][0] = 1;
    b[0][2] = rk_f32_to_bf16(2), b[3][3] = rk_f32_to_bf16(4), b[0][6] = rk_f32_to_bf16(0x1p100f);
    c[2][1] = 100, c[9][9] = 7;
    amx_load(0, c, 64), amx_load(4, a, 64), amx_load(5, b, 64);
    amx_dpbf16(0, 4, 5);
    amx_store(0, c, 64);
    CU_ASSERT_EQUAL(c[2][1], 114.0f);
    CU_ASSERT_EQUAL(c[9][9], 7.0f);
    CU_ASSERT_EQUAL(c[4][3], 0.0f);
    CU_ASSERT_EQUAL(c[2][3], 0x1p100f);
    mm_end();
}

/* ---- mm alone, against the order that backend.h states ---- */

typedef struct mm_case {
    int  rows, groups, n_blocks, left_limbs, right_limbs;
    int  begin; /* rows that mm_begin was told of */
    bool fresh, once;
} mm_case;

/* C of one element, in place. */
static float stated(const mm_case *k, const mm_left *l, const mm_right *r, int i, int col,
                    float c) {
    for (int b = 0; b < k->n_blocks; b++)
        for (int la = 0; la < l->limbs; la++)
            for (int lb = 0; lb < r->limbs; lb++) {
                const uint16_t *x = (const uint16_t *)l->p + i / 16 * l->tile + i % 16 * l->row +
                                    (int64_t)(b * l->limbs + la) * l->block;
                const uint16_t *w = r->p + (int64_t)(col / 32) * r->pair +
                                    col / 16 % 2 * r->single + b * r->block + lb * r->lo +
                                    col % 16 * 2;
                float e = 0, o = 0;
                for (int j = 0; j < 16; j++) {
                    e = fmaf(rk_bf16_to_f32(x[2 * j]), rk_bf16_to_f32(w[j * 32]), e);
                    o = fmaf(rk_bf16_to_f32(x[2 * j + 1]), rk_bf16_to_f32(w[j * 32 + 1]), o);
                }
                c = c + (e + o);
            }
    return c;
}

static void run_mm(const mm_case *k) {
    /* A's rows lie one after the other, in whole tiles only where the kernel may read such */
    int      a_rows = k->begin < 16 ? k->rows : (int)rk_round_up(k->rows, 16);
    int64_t  row = (int64_t)k->n_blocks * k->left_limbs * 32, a_n = a_rows * row;
    int64_t  ldc = k->groups * 16 + 5, c_n = (k->rows - 1) * ldc + k->groups * 16;
    int64_t  one = (int64_t)k->n_blocks * RK_TILE, b_n = (k->groups + k->groups % 2) * one;
    mm_left  left = {bf16_values(a_n), row, 32, 16 * row, k->left_limbs};
    mm_right right = {.p = bf16_values(b_n * k->right_limbs), .single = one, .pair = 2 * one,
                      .block = RK_TILE, .lo = b_n, .limbs = k->right_limbs, .once = k->once};
    float   *c = fenced(c_n * 4, 0), *want = fenced(c_n * 4, 0), scale = k->fresh ? 0.75f : 1.0f;
    for (int64_t i = 0; i < c_n; i++) want[i] = c[i] = next_value();
    for (int i = 0; i < k->rows; i++)
        for (int j = 0; j < k->groups * 16; j++) {
            float *x = &want[i * ldc + j];
            *x = stated(k, &left, &right, i, j, k->fresh ? 0.0f : *x) * scale;
        }
    mm_begin(k->begin);
    if (k->fresh)
        mm_scaled(k->rows, k->groups, &left, &right, k->n_blocks, scale, c, ldc);
    else
        mm(k->rows, k->groups, &left, &right, k->n_blocks, c, ldc);
    mm_end();
    CHECK(memcmp(c, want, (size_t)c_n * 4) == 0,
          "mm %d x %d groups, %d blocks, limbs %d and %d, begun for %d rows%s", k->rows, k->groups,
          k->n_blocks, k->left_limbs, k->right_limbs, k->begin, k->fresh ? ", fresh" : "");
    union {
        const void *c;
        void       *p;
    } a = {left.p}, b = {right.p};
    unfence(a.p, a_n * 2), unfence(b.p, b_n * k->right_limbs * 2);
    unfence(c, c_n * 4), unfence(want, c_n * 4);
}

static void test_mm(void) {
    int turn = 0;
    for (int rows = 1; rows <= 50; rows++)
        for (int groups = 1; groups <= 7; groups++, turn++) {
            mm_case k = {rows,          groups, 1 + turn % 3,  1 + turn / 2 % 2, 1 + turn / 3 % 2,
                         rows + turn % 4 / 2 * 16, turn % 5 < 2, turn % 7 < 3};
            run_mm(&k);
        }
}

/* ---- the table's entries, against the scalar table ---- */

/* A second and third copy of what an op writes to. */
static void *copy_of(const void *p, int64_t bytes) {
    void *q = fenced(bytes, 0);
    memcpy(q, p, (size_t)bytes);
    return q;
}

/* Weights that come out of another form tile by tile, as quantised ones do. */
static void unpack_tiles(rk_quant t, const void *image, int64_t k, int g, int64_t b0, int64_t b1,
                         int64_t b_step, uint16_t *out) {
    (void)t;
    for (int64_t b = b0; b < b1; b++, out += b_step)
        memcpy(out, (const uint16_t *)image + rk_mat_at(16 * (int64_t)g, 32 * b, k), RK_TILE * 2);
}
static const rk_quant_isa unpacking = {.name = "copy", .to_bf16 = unpack_tiles};

typedef struct gemm_run {
    int          m, k, n, g0, limbs;
    rk_gemm_kind kind;
    bool         bias, packed;
} gemm_run;

static void run_gemm(const gemm_run *c) {
    bool      silu = c->kind == RK_GEMM_SILU_MUL;
    int       ld = c->n + 5;
    int64_t   acts = rk_act_count(c->m, c->k, c->limbs), weights = rk_mat_count(c->n, c->k);
    int64_t   bytes = silu ? rk_act_count(c->m, c->n / 2, c->limbs) * 2
                           : ((int64_t)(c->m - 1) * ld + c->n) * 4;
    uint16_t *act = bf16_values(acts), *w = bf16_values(weights);
    float    *bias = fenced(c->n * 4, 0), *first = fenced(bytes, 0x21);
    rk_mat    mat = {.n = c->n, .k = c->k, .dtype = RK_BF16, .dev = w,
                     .quant = c->packed ? RK_QUANT_Q8_0 : RK_QUANT_NONE};
    for (int i = 0; i < c->n; i++) bias[i] = next_value();
    rk_gemm j = {.kind = c->kind, .act = act, .limbs = c->limbs, .m = c->m, .w = &mat,
                 .bias = c->bias ? bias : NULL, .ld_out = ld, .quant = &unpacking};
    int64_t room = rk_round_up(rk_gemm_scratch_bytes(&mat, c->limbs), 64);
    void   *scratch = fenced(room, 0xff), *want = copy_of(first, bytes);
    int     groups = (c->n + 15) / 16;
    j.act_out = want, j.out = want;
    rk_cpu_tile_scalar.gemm(&j, c->g0, groups, scratch);
    for (int t = 0; t < n_tables; t++) {
        void *out = copy_of(first, bytes);
        int   configs = amx.n_configs;
        j.act_out = out, j.out = out;
        memset(scratch, 0xff, (size_t)room);
        tables[t]->gemm(&j, c->g0, groups, scratch);
        CHECK(memcmp(out, want, (size_t)bytes) == 0,
              "gemm %d x %d x %d from group %d, %d limbs, kind %d%s%s: %s is not scalar's", c->m,
              c->k, c->n, c->g0, c->limbs, (int)c->kind, c->bias ? ", bias" : "",
              c->packed ? ", packed" : "", tables[t]->name);
        CHECK(t > 0 || (amx.n_configs == configs + 1 && !amx.configured),
              "gemm configured its tiles %d times", amx.n_configs - configs);
        unfence(out, bytes);
    }
    unfence(act, acts * 2), unfence(w, weights * 2), unfence(bias, c->n * 4);
    unfence(first, bytes), unfence(want, bytes), unfence(scratch, room);
}

static void test_gemm(void) {
    static const int N[] = {32, 48, 16, 70, 160, 80, 96}, K[] = {32, 96, 40};
    int              turn = 0;
    for (int m = 1; m <= 70; m++)
        for (int limbs = 1; limbs <= 2; limbs++, turn++)
            for (int kind = RK_GEMM_STORE; kind <= RK_GEMM_SILU_MUL; kind++) {
                bool     silu = kind == RK_GEMM_SILU_MUL;
                int      n = silu ? 32 + 32 * (turn % 3) : N[turn % 7];
                gemm_run c = {m,     K[turn % 3],        n,
                              n > 32 && turn % 5 == 0 ? 2 : 0,
                              limbs, (rk_gemm_kind)kind, !silu && turn / 2 % 2, turn % 11 < 4};
                run_gemm(&c);
            }
}

/* k in pieces, rows in blocks. */
static void test_gemm_pieces(void) {
    static const gemm_run cases[] = {
        {1, 576, 70, 0, 1, RK_GEMM_STORE, true, false},
        {16, 608, 112, 0, 2, RK_GEMM_ADD, false, false},
        {33, 576, 32, 0, 1, RK_GEMM_SILU_MUL, false, false},
        {47, 608, 48, 0, 1, RK_GEMM_ADD, true, false},
        {33, 1088, 64, 2, 2, RK_GEMM_STORE, false, false},
        {5, 2700, 48, 0, 1, RK_GEMM_STORE, true, false},
        {17, 2700, 16, 0, 2, RK_GEMM_ADD, false, false},
        {70, 2700, 48, 0, 2, RK_GEMM_STORE, false, false},
        {34, 2700, 32, 0, 1, RK_GEMM_SILU_MUL, false, false},
        {257, 64, 48, 0, 1, RK_GEMM_ADD, false, false},
        {150, 2112, 32, 0, 1, RK_GEMM_STORE, false, false},
        {300, 608, 32, 0, 2, RK_GEMM_SILU_MUL, false, false},
        {520, 64, 32, 0, 1, RK_GEMM_STORE, true, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int packed = 0; packed < 2; packed++) {
            gemm_run c = cases[i];
            c.packed = packed;
            run_gemm(&c);
        }
}

/* ---- attention ---- */

enum { SPANS = 3 };

typedef struct att_case {
    int      d, rows, limbs, end[SPANS]; /* slots before the end of each span */
    rk_dtype type[SPANS];
    int      back; /* rows per slot that later rows see more */
} att_case;

static int64_t span_bytes(const rk_span *s, int d) {
    return (s->first + s->n + RK_PAGE_KEYS - 1) / RK_PAGE_KEYS * rk_page_bytes(d, s->k_dtype);
}
/* Returns the number of spans. */
static int open_spans(const att_case *c, rk_span *spans) {
    int n = 0;
    for (int from = 0; n < SPANS && c->end[n] > from; from = c->end[n++]) {
        rk_span *s = &spans[n];
        *s = (rk_span){.k_dtype = c->type[n], .v_dtype = c->type[n], .first = from % RK_PAGE_KEYS,
                       .n = c->end[n] - from};
        s->k = fenced(span_bytes(s, c->d), 0);
        s->v = fenced(span_bytes(s, c->d), 0);
        for (int i = 0; i < s->n; i++)
            for (int j = 0; j < c->d; j++) {
                char *k = (char *)s->k + rk_span_page(s, i) * rk_page_bytes(c->d, s->k_dtype);
                char *v = (char *)s->v + rk_span_page(s, i) * rk_page_bytes(c->d, s->k_dtype);
                int   slot = rk_span_slot(s, i);
                rk_page_put(k, s->k_dtype, rk_kpage_at(slot, j, c->d), rk_page_count(c->d),
                            2 * next_value());
                rk_page_put(v, s->k_dtype, rk_vpage_at(slot, j, c->d), rk_page_count(c->d),
                            next_value());
            }
    }
    return n;
}
static void close_spans(const att_case *c, int n, rk_span *spans) {
    for (int i = 0; i < n; i++)
        unfence(spans[i].k, span_bytes(&spans[i], c->d)),
            unfence(spans[i].v, span_bytes(&spans[i], c->d));
}

/* All parts of a tile, merged, and the rows stored: the final state and the activations. */
static void attend_with(const rk_cpu_isa *isa, const att_case *c, const rk_att_tile *t,
                        rk_att_state *total, rk_att_state *part, uint16_t *act) {
    int act_row[RK_ATT_ROWS], col[RK_ATT_ROWS];
    int parts = (int)((t->visible[t->n_rows - 1] + RK_ATT_PART - 1) / RK_ATT_PART);
    memset(total, 0x21, (size_t)rk_att_state_bytes(c->d));
    memset(part, 0x21, (size_t)rk_att_state_bytes(c->d));
    for (int p = 0; p < parts; p++) {
        memset(t->scratch, 0xff, (size_t)rk_att_scratch_bytes(c->d));
        isa->attend_part(t, p, p ? part : total);
        if (p) isa->attend_merge(t->n_rows, c->d, total, part);
    }
    for (int r = 0; r < t->n_rows; r++) act_row[r] = r / 2, col[r] = r % 2 * c->d;
    isa->attend_store(t->n_rows, c->d, total, c->limbs, 2 * c->d, act_row, col, act);
}

static void run_attend(const att_case *c) {
    rk_span  spans[SPANS];
    int      n = open_spans(c, spans), slots = c->end[n - 1];
    int64_t  room = rk_att_scratch_bytes(c->d), state = rk_att_state_bytes(c->d);
    int64_t  acts = rk_act_count((c->rows + 1) / 2, 2 * c->d, c->limbs) * 2;
    float   *q = fenced((int64_t)c->rows * c->d * 4, 0);
    void    *a[2][3];
    rk_att_tile t = {.n_rows = c->rows, .head_dim = c->d, .limbs = c->limbs, .scale_log2 = 0.3f,
                     .spans = spans, .n_spans = n, .stride = 1, .scratch = fenced(room, 0)};
    for (int i = 0; i < c->rows * c->d; i++) q[i] = 3 * next_value();
    for (int r = 0; r < c->rows; r++) {
        t.q[r] = q + r * c->d;
        t.visible[r] = slots - (c->rows - 1 - r) / c->back;
        if (t.visible[r] < 1) t.visible[r] = 1;
    }
    for (int i = 0; i < 2; i++)
        a[i][0] = fenced(state, 0), a[i][1] = fenced(state, 0), a[i][2] = fenced(acts, 0x21);
    attend_with(&rk_cpu_tile_scalar, c, &t, a[0][0], a[0][1], a[0][2]);
    for (int i = 0; i < n_tables; i++) {
        int configs = amx.n_configs, parts = (slots + RK_ATT_PART - 1) / RK_ATT_PART;
        memset(a[1][2], 0x21, (size_t)acts);
        attend_with(tables[i], c, &t, a[1][0], a[1][1], a[1][2]);
        CHECK(memcmp(a[0][0], a[1][0], (size_t)state) == 0 &&
                  memcmp(a[0][1], a[1][1], (size_t)state) == 0 &&
                  memcmp(a[0][2], a[1][2], (size_t)acts) == 0,
              "attend d %d, %d rows, %d limbs, %d slots in %d spans: %s is not scalar's", c->d,
              c->rows, c->limbs, slots, n, tables[i]->name);
        CHECK(i > 0 || (amx.n_configs == configs + parts && !amx.configured),
              "%d parts of attention configured their tiles %d times", parts,
              amx.n_configs - configs);
    }
    for (int i = 0; i < 2; i++)
        unfence(a[i][0], state), unfence(a[i][1], state), unfence(a[i][2], acts);
    unfence(t.scratch, room), unfence(q, (int64_t)c->rows * c->d * 4);
    close_spans(c, n, spans);
}

#define B1 RK_BF16
#define B2 RK_BF16X2

static void test_attend(void) {
    static const int D[] = {32, 64, 128}, ENDS[] = {48, 65, 100, 64, 200};
    for (int rows = 1; rows <= RK_ATT_ROWS; rows++)
        for (int limbs = 1; limbs <= 2; limbs++) {
            int      i = rows + limbs;
            att_case c = {D[i % 3], rows, limbs, {ENDS[i % 5]}, {i / 2 % 2 ? B2 : B1}, 1 + i % 3};
            run_attend(&c);
        }
}

/* Tails of two limbs, borders within a page, parts. */
static void test_attend_spans(void) {
    static const att_case cases[] = {
        {64, 17, 2, {83, 100}, {B1, B2}, 3},       {128, 2, 2, {3, 60, 66}, {B1, B2, B1}, 1},
        {32, 48, 2, {30, 50, 200}, {B1, B2, B2}, 1}, {64, 33, 1, {20, 40, 90}, {B1, B1, B1}, 2},
        {64, 3, 1, {1030}, {B1}, 3},               {32, 40, 2, {1000, 1060}, {B1, B2}, 1},
        {32, 48, 1, {1025}, {B1}, 1},              {32, 16, 2, {2049}, {B2}, 8},
        {64, 1, 1, {1}, {B1}, 1},                  {32, 7, 1, {2}, {B2}, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_attend(&cases[i]);
}

static void run_mass(const att_case *c) {
    rk_span spans[SPANS];
    int     n_spans = open_spans(c, spans), n = c->end[n_spans - 1], w = c->rows, stride = c->d + 9;
    int64_t room = rk_att_scratch_bytes(c->d), q_n = (int64_t)(w - 1) * stride + c->d;
    int64_t t_bytes = w * rk_round_up(n, RK_PAGE_KEYS) * 4;
    float  *q = fenced(q_n * 4, 0), *t = fenced(t_bytes, 0xff), *mass = fenced(n * 4, 0xff);
    float  *want = fenced(n * 4, 0xff);
    for (int64_t i = 0; i < q_n; i++) q[i] = 3 * next_value();
    rk_att_tile proto = {.head_dim = c->d, .limbs = 1, .scale_log2 = 0.3f, .spans = spans,
                         .n_spans = n_spans, .stride = 1, .scratch = fenced(room, 0xff)};
    rk_cpu_tile_scalar.window_mass(&proto, q, stride, w, n, t, want);
    for (int i = 0; i < n_tables; i++) {
        int configs = amx.n_configs;
        memset(t, 0xff, (size_t)t_bytes), memset(mass, 0xff, (size_t)n * 4);
        memset(proto.scratch, 0xff, (size_t)room);
        tables[i]->window_mass(&proto, q, stride, w, n, t, mass);
        CHECK(memcmp(mass, want, (size_t)n * 4) == 0,
              "window of %d rows over %d slots: %s is not scalar's", w, n, tables[i]->name);
        CHECK(i > 0 || (amx.n_configs == configs + 1 && !amx.configured),
              "window_mass configured its tiles %d times", amx.n_configs - configs);
    }
    unfence(q, q_n * 4), unfence(t, t_bytes), unfence(mass, n * 4), unfence(want, n * 4);
    unfence(proto.scratch, room);
    close_spans(c, n_spans, spans);
}

static void test_window_mass(void) {
    static const att_case cases[] = {
        {64, 32, 1, {100}, {B1}, 0}, {32, 1, 1, {64}, {B1}, 0},   {128, 16, 1, {70}, {B1}, 0},
        {64, 50, 1, {131}, {B1}, 0}, {64, 97, 1, {200}, {B1}, 0}, {64, 8, 1, {1100}, {B1}, 0},
        {32, 33, 1, {40, 77}, {B1, B2}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_mass(&cases[i]);
}

/* ---- dispatch ---- */

/* The path is offered only where Linux lists the instructions; then it opens and comes first. */
static void test_dispatch(void) {
    char  line[8192];
    bool  listed = false, has = rk_backend_has_isa("amx", "tile");
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f))
        listed = listed || (strstr(line, " amx_tile") && strstr(line, " amx_bf16"));
    if (f) fclose(f);
    CU_ASSERT(!has || !f || listed);
    CU_ASSERT_EQUAL(has, (rk_backend_native_numerics() & RK_NATIVE_TILE) != 0);
    CU_ASSERT(!rk_backend_has_isa("amx", "pair"));
    CU_ASSERT_STRING_EQUAL(rk_cpu_tile_amx.name, "amx");
    CU_ASSERT_STRING_EQUAL(rk_cpu_tile_amx.numerics, "tile");
    rk_backend *be = NULL;
    if (!has) {
        CU_ASSERT_EQUAL(rk_backend_open("cpu", 1, "amx", "tile", &be), RK_E_USAGE);
        return;
    }
    CU_ASSERT_EQUAL_FATAL(rk_backend_open("cpu", 2, NULL, "tile", &be), RK_OK);
    CU_ASSERT_STRING_EQUAL(be->path, "amx");
    rk_backend_close(be);
}

int rk_suite_amx(void) {
    CU_pSuite s = CU_add_suite("amx", suite_begin, suite_end);
    if (!s || !CU_ADD_TEST(s, test_model) || !CU_ADD_TEST(s, test_mm) ||
        !CU_ADD_TEST(s, test_gemm) || !CU_ADD_TEST(s, test_gemm_pieces) ||
        !CU_ADD_TEST(s, test_attend) || !CU_ADD_TEST(s, test_attend_spans) ||
        !CU_ADD_TEST(s, test_window_mass) || !CU_ADD_TEST(s, test_dispatch))
        return (int)CU_get_error();
    return 0;
}
