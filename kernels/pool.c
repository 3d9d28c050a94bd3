/* pool.c - see pool.h.
 *
 * A job is published in the word (number of the job, next task). Whoever wants a task reads the word,
 * then the job, then takes the task by compare-and-swap: this fails if the job has changed since. So
 * nobody waits for a thread that slept through a job. Odd numbers mean that a job is being written. */
#define _GNU_SOURCE
#include "kernels/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xmmintrin.h>

#include "base/mem.h"

enum {
    SPIN_PAUSES = 20000, /* about 0.3 ms: longer than the gaps between the ops of a token */
    SPIN_YIELDS = 100,   /* then let others run, then sleep */
    FTZ_DAZ = 0x8040,
    MAX_THREADS = 1024,
};

typedef struct worker {
    rk_pool  *pool;
    pthread_t id;
    int       index;
} worker;

struct rk_pool {
    _Alignas(64) _Atomic uint64_t word; /* job number << 32 | next task */
    _Atomic(rk_pool_fn) fn;
    _Atomic(void *)     arg;
    _Atomic int         n_tasks;
    _Alignas(64) _Atomic int done;
    _Alignas(64) _Atomic uint32_t wake; /* counts jobs; futex of the sleepers */
    _Atomic int  sleepers;
    _Atomic bool quit;
    int          n_threads, n_started;
    bool         flush;
    worker      *workers;
};

static void futex(_Atomic uint32_t *at, int op, uint32_t value) {
    (void)syscall(SYS_futex, at, op, value, NULL, NULL, 0);
}

/* Take and run tasks until none is left. Returns the word that it gave up at. */
static uint64_t work(rk_pool *p, int thread) {
    for (;;) {
        uint64_t   word = atomic_load(&p->word);
        rk_pool_fn fn = atomic_load(&p->fn);
        void      *arg = atomic_load(&p->arg);
        uint32_t   task = (uint32_t)word;
        if ((word >> 32 & 1) || task >= (uint32_t)atomic_load(&p->n_tasks)) return word;
        if (!atomic_compare_exchange_weak(&p->word, &word, word + 1)) continue;
        fn(arg, (int)task, thread);
        atomic_fetch_add(&p->done, 1);
    }
}

/* Return when the word has left old, or at the end of the pool. */
static void wait_for_job(rk_pool *p, uint64_t old) {
    uint32_t seen = atomic_load(&p->wake);
    for (int i = 0; i < SPIN_PAUSES + SPIN_YIELDS; i++) {
        if (atomic_load_explicit(&p->word, memory_order_acquire) != old || atomic_load(&p->quit))
            return;
        if (i < SPIN_PAUSES)
            _mm_pause();
        else
            sched_yield();
    }
    atomic_fetch_add(&p->sleepers, 1);
    if (atomic_load(&p->word) == old && !atomic_load(&p->quit)) futex(&p->wake, FUTEX_WAIT_PRIVATE, seen);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void set_mode(bool flush) {
    unsigned now = _mm_getcsr();
    _mm_setcsr(flush ? now | FTZ_DAZ : now & ~(unsigned)FTZ_DAZ);
}

static void *worker_main(void *arg) {
    worker  *w = arg;
    rk_pool *p = w->pool;
    set_mode(p->flush);
    while (!atomic_load(&p->quit)) wait_for_job(p, work(p, w->index));
    return NULL;
}

static void call_all(rk_pool *p) {
    atomic_fetch_add(&p->wake, 1);
    if (atomic_load(&p->sleepers) > 0) futex(&p->wake, FUTEX_WAKE_PRIVATE, (uint32_t)p->n_threads);
}

void rk_pool_run(rk_pool *p, int n_tasks, rk_pool_fn fn, void *arg) {
    unsigned mode = _mm_getcsr();
    set_mode(p->flush);
    if (n_tasks <= 1 || p->n_threads == 1) {
        for (int i = 0; i < n_tasks; i++) fn(arg, i, 0);
    } else {
        uint64_t job = (atomic_load(&p->word) >> 32) + 1;
        atomic_store(&p->word, (job | 1) << 32);
        atomic_store(&p->fn, fn);
        atomic_store(&p->arg, arg);
        atomic_store(&p->n_tasks, n_tasks);
        atomic_store(&p->done, 0);
        atomic_store(&p->word, ((job | 1) + 1) << 32);
        call_all(p);
        (void)work(p, 0);
        for (int i = 0; atomic_load_explicit(&p->done, memory_order_acquire) < n_tasks; i++) {
            if (i < SPIN_PAUSES)
                _mm_pause();
            else
                sched_yield();
        }
    }
    _mm_setcsr(mode);
}

rk_status rk_pool_open(int n_threads, bool flush, rk_pool **out) {
    void *mem;
    *out = NULL;
    if (n_threads < 1 || n_threads > MAX_THREADS)
        return RK_FAIL(RK_E_USAGE, "%d threads: between 1 and %d are possible", n_threads, MAX_THREADS);
    RK_TRY(rk_mem_alloc(1, sizeof(rk_pool), "thread pool", &mem));
    rk_pool *p = mem;
    p->n_threads = n_threads;
    p->flush = flush;
    rk_status st;
    RK_TRY_OUT(st, rk_mem_alloc(n_threads, sizeof(worker), "thread pool", &mem));
    p->workers = mem;
    for (int i = 1; i < n_threads; i++) {
        p->workers[i] = (worker){.pool = p, .index = i};
        if (pthread_create(&p->workers[i].id, NULL, worker_main, &p->workers[i]) != 0) {
            st = RK_FAIL(RK_E_MEM, "the system gives no thread %d of %d: lower --threads", i + 1,
                         n_threads);
            goto out;
        }
        p->n_started = i;
    }
    *out = p;
    return RK_OK;
out:
    rk_pool_close(p);
    return st;
}

void rk_pool_close(rk_pool *p) {
    if (!p) return;
    atomic_store(&p->quit, true);
    call_all(p);
    for (int i = 1; i <= p->n_started; i++) pthread_join(p->workers[i].id, NULL);
    rk_mem_free(p->workers);
    rk_mem_free(p);
}

int rk_pool_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
}
