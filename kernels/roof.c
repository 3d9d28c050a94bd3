/* roof.c - see roof.h. */
#include "kernels/roof.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "kernels/host.h"
#include "kernels/roof_isa.h"

enum { RUNS = 15, MIB = 1 << 20 };
static const double RUN_S = 4e-3; /* short: most runs are then undisturbed on a shared machine */

static const struct {
    const char         *path;
    const rk_roof_loop *loop;
    bool                int8; /* quantised weights use VNNI on this path */
} paths[] = {
    {"amx", &rk_roof_amx, true},        {"avx512bf16", &rk_roof_bf16, true},
    {"avx512", &rk_roof_fma_zmm, true}, {"avx2", &rk_roof_fma_ymm, false},
    {"scalar", &rk_roof_fma_ss, false},
};

static rk_status loop_of(const rk_backend *be, const rk_roof_loop **loop, bool *int8) {
    *int8 = false;
    if (strcmp(be->numerics, "f32") == 0) {
        *loop = &rk_roof_sse;
        return RK_OK;
    }
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        if (strcmp(be->path, paths[i].path) != 0) continue;
        *loop = paths[i].loop;
        if (strcmp(be->path, "scalar") == 0 && !rk_roof_fma_ss.has()) *loop = &rk_roof_ss;
        if (!(*loop)->has())
            return RK_FAIL(RK_E_BUG, "path %s: this CPU has no %s", be->path, (*loop)->instruction);
        *int8 = paths[i].int8 && rk_roof_vnni.has();
        return RK_OK;
    }
    return RK_FAIL(RK_E_BUG, "no roof is known for path %s", be->path);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Equal pieces that threads take as they come; several of each, so that they end together. */
enum { PIECES = 8 };

typedef struct job {
    rk_pool_fn         *piece;
    int64_t             n_pieces;
    const rk_roof_loop *loop;
    int64_t             rounds;
    char               *buffer;
    int64_t             bytes; /* of the buffer, or of each thread's part of it */
} job;

static double seconds(rk_pool *pool, job *j) {
    double t = rk_now_s();
    rk_pool_run(pool, j->n_pieces, j->piece, j);
    return rk_now_s() - t;
}

/* Median time of j; rounds are first raised until its best of a few runs is long enough to be
 * timed: a single one may only have waited for a thread. */
static double median_s(rk_pool *pool, job *j) {
    enum { MOST = 1 << 30, TRIES = 3 };
    double s[RUNS], best;
    for (;; j->rounds *= 2) {
        best = seconds(pool, j);
        for (int i = 1; i < TRIES && best > RUN_S / 2; i++) best = fmin(best, seconds(pool, j));
        if (best > RUN_S / 2 || j->rounds >= MOST) break;
    }
    for (int i = 0; i < RUNS; i++) s[i] = seconds(pool, j);
    qsort(s, RUNS, sizeof *s, by_value);
    return s[RUNS / 2];
}

static void compute_piece(void *arg, int piece, int n_pieces, int thread) {
    const job *j = arg;
    (void)piece;
    (void)n_pieces;
    (void)thread;
    j->loop->run(j->rounds);
}
static double compute_rate(rk_pool *pool, const rk_roof_loop *loop) {
    job    j = {.piece = compute_piece,
                .n_pieces = (int64_t)PIECES * rk_pool_size(pool),
                .loop = loop,
                .rounds = 200};
    double s = median_s(pool, &j);
    return (double)(j.n_pieces * j.rounds) * loop->per_round / s;
}

/* A piece's part of the buffer, in whole blocks. */
static char *part_of(const job *j, int piece, int n_pieces, int64_t *bytes) {
    int64_t begin, end;
    rk_pool_share(j->bytes / RK_ROOF_BLOCK, piece, n_pieces, &begin, &end);
    *bytes = (end - begin) * RK_ROOF_BLOCK;
    return j->buffer + begin * RK_ROOF_BLOCK;
}
static void touch_piece(void *arg, int piece, int n_pieces, int thread) {
    int64_t n;
    char   *p = part_of(arg, piece, n_pieces, &n);
    (void)thread;
    memset(p, 1, (size_t)n);
}
static void read_piece(void *arg, int piece, int n_pieces, int thread) {
    int64_t     n;
    const char *p = part_of(arg, piece, n_pieces, &n);
    (void)thread;
    rk_roof_read(p, n);
}
/* The thread's own part, again and again. */
static void reread_piece(void *arg, int piece, int n_pieces, int thread) {
    const job  *j = arg;
    const char *p = j->buffer + thread * j->bytes;
    (void)piece;
    (void)n_pieces;
    for (int64_t i = 0; i < j->rounds; i++) rk_roof_read(p, j->bytes);
}

static int64_t l2_half(void) {
    enum { USUAL = 512 << 10 };
    long n = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return (n > 0 ? n : USUAL) / 2 / RK_ROOF_BLOCK * RK_ROOF_BLOCK;
}

/* All of a large buffer in turn, then half a second-level cache by each thread. */
static rk_status read_rates(rk_pool *pool, int64_t wanted, rk_roofs *out) {
    enum { PIECE = 8 * MIB };
    int64_t free_bytes = rk_mem_available(), l2 = l2_half(), least = l2 * rk_pool_size(pool);
    if (wanted > free_bytes / 2) wanted = free_bytes / 2 / MIB * MIB;
    bool enough = wanted >= 8 * least && wanted >= PIECE; /* else the caches would be measured */
    job  j = {.piece = touch_piece, .bytes = enough ? wanted : least, .rounds = 1};
    j.n_pieces = enough ? j.bytes / PIECE : rk_pool_size(pool);
    RK_TRY(rk_mem_alloc_to(j.bytes, 1, "buffer to measure memory with", &j.buffer));
    rk_pool_run(pool, j.n_pieces, j.piece, &j);
    if (enough) {
        double s[RUNS];
        j.piece = read_piece;
        for (int i = 0; i < RUNS; i++) s[i] = seconds(pool, &j);
        qsort(s, RUNS, sizeof *s, by_value);
        out->memory_bytes = j.bytes;
        out->memory_read_s = (double)j.bytes / s[RUNS / 2];
    }
    j = (job){.piece = reread_piece,
              .n_pieces = (int64_t)PIECES * rk_pool_size(pool),
              .bytes = l2,
              .rounds = 4,
              .buffer = j.buffer};
    out->l2_bytes = least;
    out->l2_read_s = (double)(j.bytes * j.n_pieces) / (median_s(pool, &j) / (double)j.rounds);
    rk_mem_free(j.buffer);
    return RK_OK;
}

rk_status rk_roof_measure(rk_backend *be, int64_t memory_bytes, rk_roofs *out) {
    enum { USUAL = 512 };
    const rk_roof_loop *loop = NULL;
    bool                int8;
    rk_roofs            r = {.n_threads = be->n_threads};
    RK_TRY(loop_of(be, &loop, &int8));
    rk_pool *pool = rk_host_of(be)->pool;
    r.flop_kind = loop->instruction;
    r.flop_s = compute_rate(pool, loop);
    if (int8) {
        r.int8_kind = rk_roof_vnni.instruction;
        r.int8_op_s = compute_rate(pool, &rk_roof_vnni);
    }
    RK_TRY(read_rates(pool, memory_bytes > 0 ? memory_bytes : (int64_t)USUAL * MIB, &r));
    *out = r;
    return RK_OK;
}
