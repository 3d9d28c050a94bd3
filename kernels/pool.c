/* pool.c - see pool.h. */
#define _GNU_SOURCE
#include "kernels/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/mem.h"

/* Pauses before a thread yields: waiting for work, and (shorter: it holds a core that the worker may
 * need) for the last pieces. */
enum { SPINS = 20000, END_SPINS = 1000, YIELDS = 200 };

/* The state word: job number << PIECE_BITS | next piece. Taking a piece is a compare-and-swap of the
 * whole word, so that who read fn, arg and n of one job cannot take a piece of another: success
 * means the job was open, and an open job's fields do not change. */
enum { PIECE_BITS = 25 };
#define PIECE_MASK ((UINT64_C(1) << PIECE_BITS) - 1)
_Static_assert(RK_POOL_MAX_PIECES < (1 << PIECE_BITS), "a closed job is a piece number, too");

struct rk_pool {
    int              n;
    pthread_t       *thread; /* [n - 1] */
    int              started;
    _Atomic uint64_t state;
    _Atomic int      done; /* pieces */
    _Atomic int      n_pieces;
    _Atomic(rk_pool_fn *) fn;
    _Atomic(void *)  arg;
    _Atomic int      asleep;
    _Atomic bool     quit;
    pthread_mutex_t  lock;
    pthread_cond_t   wake;
};

typedef struct worker_arg {
    rk_pool *p;
    int      index;
} worker_arg;

static void pause_cpu(void) {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

#if defined(__x86_64__)
enum { FTZ_DAZ = 0x8040 };
static unsigned flush_denormals(void) {
    unsigned old = _mm_getcsr();
    _mm_setcsr(old | FTZ_DAZ);
    return old;
}
static void restore(unsigned old) { _mm_setcsr(old); }
#else
static unsigned flush_denormals(void) { return 0; }
static void     restore(unsigned old) { (void)old; }
#endif

static uint64_t job_of(uint64_t state) { return state >> PIECE_BITS; }

/* Wait until the job differs from seen: spin, yield, sleep. */
static uint64_t wait_job(rk_pool *p, uint64_t seen) {
    uint64_t s;
    for (int i = 0; i < SPINS; i++) {
        if (job_of(s = atomic_load(&p->state)) != seen) return job_of(s);
        pause_cpu();
    }
    for (int i = 0; i < YIELDS; i++) {
        if (job_of(s = atomic_load(&p->state)) != seen) return job_of(s);
        sched_yield();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->asleep, 1);
    while (job_of(s = atomic_load(&p->state)) == seen) pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->asleep, 1);
    pthread_mutex_unlock(&p->lock);
    return job_of(s);
}

/* Take and do pieces until the job that is open now has none left. */
static void do_pieces(rk_pool *p, uint64_t job, int thread) {
    for (;;) {
        uint64_t    s = atomic_load(&p->state);
        int         n = atomic_load(&p->n_pieces), piece = (int)(s & PIECE_MASK);
        rk_pool_fn *fn = atomic_load(&p->fn);
        void       *arg = atomic_load(&p->arg);
        if (job_of(s) != job || piece >= n) return;
        if (!atomic_compare_exchange_weak(&p->state, &s, s + 1)) continue;
        fn(arg, piece, n, thread);
        atomic_fetch_add(&p->done, 1);
    }
}

static void *work(void *arg) {
    worker_arg w = *(worker_arg *)arg;
    rk_mem_free(arg);
    uint64_t seen = 0;
    (void)flush_denormals();
    for (;;) {
        seen = wait_job(w.p, seen);
        if (atomic_load(&w.p->quit)) return NULL;
        do_pieces(w.p, seen, w.index);
    }
}

/* Open the next job. The last one's pieces are all done. Its word is changed to one that no number of
 * pieces opens before its fields are, or a worker that has read the old word could take it together
 * with the new fields. */
static uint64_t post(rk_pool *p, int n_pieces, rk_pool_fn *fn, void *arg) {
    uint64_t job = job_of(atomic_load(&p->state)) + 1;
    atomic_store(&p->state, (job - 1) << PIECE_BITS | PIECE_MASK);
    atomic_store(&p->done, 0);
    atomic_store(&p->fn, fn);
    atomic_store(&p->arg, arg);
    atomic_store(&p->n_pieces, n_pieces);
    atomic_store(&p->state, job << PIECE_BITS);
    if (atomic_load(&p->asleep)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
    return job;
}

rk_status rk_pool_open(int n, rk_pool **out) {
    void *v;
    *out = NULL;
    RK_TRY(rk_mem_alloc(1, sizeof(rk_pool), "thread pool", &v));
    rk_pool *p = v;
    p->n = n < 1 ? 1 : n;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    rk_status st;
    RK_TRY_OUT(st, rk_mem_alloc(p->n, sizeof(pthread_t), "thread pool", &v));
    p->thread = v;
    for (int i = 1; i < p->n; i++) {
        RK_TRY_OUT(st, rk_mem_alloc(1, sizeof(worker_arg), "thread pool", &v));
        *(worker_arg *)v = (worker_arg){p, i};
        if (pthread_create(&p->thread[i - 1], NULL, work, v) != 0) {
            rk_mem_free(v);
            RK_TRY_OUT(st, RK_FAIL(RK_E_MEM, "cannot start thread %d of %d: use fewer --threads", i + 1,
                                   p->n));
        }
        p->started++;
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
    post(p, 0, NULL, NULL);
    for (int i = 0; i < p->started; i++) pthread_join(p->thread[i], NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    rk_mem_free(p->thread);
    rk_mem_free(p);
}

int rk_pool_size(const rk_pool *p) { return p->n; }

void rk_pool_run(rk_pool *p, int64_t n_pieces, rk_pool_fn *fn, void *arg) {
    RK_ASSERT(n_pieces >= 0 && n_pieces <= RK_POOL_MAX_PIECES);
    int      n = (int)n_pieces;
    unsigned old = flush_denormals();
    if (p->started == 0 || n <= 1) {
        for (int i = 0; i < n; i++) fn(arg, i, n, 0);
    } else {
        do_pieces(p, post(p, n, fn, arg), 0);
        for (int i = 0; atomic_load_explicit(&p->done, memory_order_acquire) < n; i++) {
            if (i < END_SPINS)
                pause_cpu();
            else
                sched_yield();
        }
    }
    restore(old);
}

int rk_pool_cpus(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}
