/* pool.h - threads of a host backend: fork, join, nothing else.
 *
 * Workers spin for a while, then yield, then sleep, so that ranks may share cores. Denormals are zero
 * (FTZ, DAZ) while a job runs, on every thread of it, and as the caller had them before and after. */
#pragma once
#include "base/err.h"

typedef struct rk_pool rk_pool;

/* n >= 1 threads, the caller included. Errors: RK_E_MEM */
rk_status rk_pool_open(int n, rk_pool **out);
void      rk_pool_close(rk_pool *p);
int       rk_pool_size(const rk_pool *p);

/* Run fn(arg, thread, n_threads) once on every thread and wait for all. */
void rk_pool_run(rk_pool *p, void (*fn)(void *arg, int thread, int n_threads), void *arg);

/* Share of thread t of n in [0, total): *begin .. *end. */
static inline void rk_pool_share(int64_t total, int t, int n, int64_t *begin, int64_t *end) {
    *begin = total * t / n;
    *end = total * (t + 1) / n;
}

/* Threads that the affinity mask allows. */
int rk_pool_cpus(void);
