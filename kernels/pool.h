/* pool.h - a few threads that share the tasks of one op at a time.
 *
 * The caller takes part: with one thread no other is made. Tasks are handed out by a counter, in
 * ascending order, so results must not depend on who runs which. A pool opened with flush computes
 * with denormals as zero (FTZ, DAZ) on every thread; the caller's mode is restored afterwards. */
#pragma once
#include "base/err.h"

typedef struct rk_pool rk_pool;
typedef void (*rk_pool_fn)(void *arg, int task, int thread); /* thread: 0 .. n_threads - 1 */

/* Errors: RK_E_MEM, also where the system refuses a thread */
rk_status rk_pool_open(int n_threads, bool flush, rk_pool **out);
void      rk_pool_close(rk_pool *p);

/* Run fn for tasks 0 .. n_tasks - 1 and return when all are done. Not reentrant. */
void rk_pool_run(rk_pool *p, int n_tasks, rk_pool_fn fn, void *arg);

/* The processors that this process may use, at least 1. */
int rk_pool_cores(void);
