/* pool.h - threads of a host backend: pieces of a job, done by whoever is awake.
 *
 * A job is cut into pieces that threads take one after the other, the caller among them. Nobody
 * waits for a thread that has not begun: where cores are shared with other programs, a sleeping
 * worker costs its help, not a time slice per job. Workers spin for a while, then yield, then
 * sleep, so that ranks may share cores. Denormals are zero (FTZ, DAZ) while a job runs, on every
 * thread of it, and as the caller had them before and after. */
#pragma once
#include "base/err.h"

typedef struct rk_pool rk_pool;

/* One piece of a job, 0 <= piece < n_pieces, on a thread 0 <= thread < size: pieces of one thread
 * never overlap in time, so that scratch can be per thread. */
typedef void rk_pool_fn(void *arg, int piece, int n_pieces, int thread);

enum { RK_POOL_MAX_PIECES = 1 << 24 };

/* n >= 1 threads, the caller included. Errors: RK_E_MEM */
rk_status rk_pool_open(int n, rk_pool **out);
void      rk_pool_close(rk_pool *p);
int       rk_pool_size(const rk_pool *p);

/* Run all pieces and return when they are done. One job at a time. */
void rk_pool_run(rk_pool *p, int64_t n_pieces, rk_pool_fn *fn, void *arg);

/* Pieces for `units` equal units of work: enough that threads end together, each of at least
 * `least` units. */
static inline int64_t rk_pool_pieces(const rk_pool *p, int64_t units, int64_t least) {
    enum { PER_THREAD = 4 };
    int64_t most = (units + least - 1) / least, n = (int64_t)PER_THREAD * rk_pool_size(p);
    return rk_pool_size(p) == 1 && most > 0 ? 1 : n < most ? n : most;
}

/* Share of piece t of n in [0, total): *begin .. *end. */
static inline void rk_pool_share(int64_t total, int t, int n, int64_t *begin, int64_t *end) {
    *begin = total * t / n;
    *end = total * (t + 1) / n;
}

/* Threads that the affinity mask allows. */
int rk_pool_cpus(void);
