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

enum { SPINS = 20000, YIELDS = 200 };

struct rk_pool {
    int              n;
    pthread_t       *thread; /* [n - 1] */
    int              started;
    _Atomic uint64_t job;    /* number of the latest job */
    _Atomic int      left;   /* workers still at it */
    _Atomic int      asleep;
    void (*fn)(void *arg, int thread, int n_threads);
    void           *arg;
    bool            quit;
    pthread_mutex_t lock;
    pthread_cond_t  wake;
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

/* Wait until job differs from seen: spin, yield, sleep. */
static void wait_job(rk_pool *p, uint64_t seen) {
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&p->job, memory_order_acquire) != seen) return;
        pause_cpu();
    }
    for (int i = 0; i < YIELDS; i++) {
        if (atomic_load_explicit(&p->job, memory_order_acquire) != seen) return;
        sched_yield();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->asleep, 1);
    while (atomic_load(&p->job) == seen) pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->asleep, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *work(void *arg) {
    worker_arg w = *(worker_arg *)arg;
    rk_mem_free(arg);
    uint64_t seen = 0;
    (void)flush_denormals();
    for (;;) {
        wait_job(w.p, seen);
        seen++;
        if (w.p->quit) return NULL;
        w.p->fn(w.p->arg, w.index, w.p->n);
        atomic_fetch_sub_explicit(&w.p->left, 1, memory_order_release);
    }
}

static void post(rk_pool *p) {
    atomic_store(&p->left, p->started);
    atomic_fetch_add(&p->job, 1);
    if (atomic_load(&p->asleep)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
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
    p->quit = true;
    post(p);
    for (int i = 0; i < p->started; i++) pthread_join(p->thread[i], NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    rk_mem_free(p->thread);
    rk_mem_free(p);
}

int rk_pool_size(const rk_pool *p) { return p->n; }

void rk_pool_run(rk_pool *p, void (*fn)(void *arg, int thread, int n_threads), void *arg) {
    unsigned old = flush_denormals();
    if (p->n > 1) {
        p->fn = fn;
        p->arg = arg;
        post(p);
    }
    fn(arg, 0, p->n);
    for (int i = 0; p->n > 1 && atomic_load_explicit(&p->left, memory_order_acquire) > 0; i++) {
        if (i < SPINS)
            pause_cpu();
        else
            sched_yield();
    }
    restore(old);
}

int rk_pool_cpus(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}
