/* mem.c - see mem.h. Each block carries a 64-byte header before the caller's pointer. */
#define _GNU_SOURCE
#include "base/mem.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { ALIGN = 64, HUGE = 2 << 20, BIG = 4 << 20 };
#define MAGIC 0x524b4d454d4f4b21ull

typedef struct header {
    uint64_t magic;
    int64_t  bytes;    /* the caller's */
    void    *base;     /* what to unmap or free */
    size_t   map_size; /* 0: from malloc */
} header;
_Static_assert(sizeof(header) <= ALIGN, "header fits before the block");

static _Atomic int64_t in_use, peak, blocks, fail_countdown;
static _Atomic bool    frozen;

static void count(int64_t bytes, int64_t n_blocks) {
    int64_t now = atomic_fetch_add(&in_use, bytes) + bytes;
    atomic_fetch_add(&blocks, n_blocks);
    int64_t old = atomic_load(&peak);
    while (now > old && !atomic_compare_exchange_weak(&peak, &old, now)) {}
}

static rk_status check_may_allocate(const char *what, int64_t bytes) {
    if (atomic_load(&frozen))
        return RK_FAIL(RK_E_BUG, "%s: allocation of %lld bytes in a step", what, (long long)bytes);
    if (atomic_load(&fail_countdown) > 0 && atomic_fetch_sub(&fail_countdown, 1) == 1)
        return RK_FAIL(RK_E_MEM, "%s: out of memory (%lld bytes wanted)", what, (long long)bytes);
    return RK_OK;
}

rk_status rk_mem_alloc(int64_t n, int64_t size, const char *what, void **out) {
    *out = NULL;
    int64_t bytes;
    if (n < 0 || size < 0 || __builtin_mul_overflow(n, size, &bytes) ||
        bytes > INT64_MAX - 2 * (int64_t)HUGE)
        return RK_FAIL(RK_E_MEM, "%s: absurd size %lld x %lld", what, (long long)n,
                       (long long)size);
    RK_TRY(check_may_allocate(what, bytes));
    header h = {.magic = MAGIC, .bytes = bytes};
    char  *p;
    if (bytes >= BIG) {
        h.map_size = (size_t)bytes + HUGE + ALIGN;
        void *m = mmap(NULL, h.map_size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (m == MAP_FAILED)
            return RK_FAIL(RK_E_MEM, "%s: out of memory (%lld bytes wanted)", what,
                           (long long)bytes);
        h.base = m;
        uintptr_t at = ((uintptr_t)m + ALIGN + HUGE - 1) & ~(uintptr_t)(HUGE - 1);
        p = (char *)at;
        (void)madvise(p, (size_t)bytes, MADV_HUGEPAGE); /* a hint: refusal costs speed only */
    } else {
        size_t want = ((size_t)bytes + 2 * ALIGN - 1) & ~(size_t)(ALIGN - 1);
        h.base = aligned_alloc(ALIGN, want);
        if (!h.base)
            return RK_FAIL(RK_E_MEM, "%s: out of memory (%lld bytes wanted)", what,
                           (long long)bytes);
        p = (char *)h.base + ALIGN;
        memset(p, 0, want - ALIGN);
    }
    memcpy(p - ALIGN, &h, sizeof h);
    count(bytes, 1);
    *out = p;
    return RK_OK;
}

rk_status rk_mem_alloc_to(int64_t n, int64_t size, const char *what, void *slot) {
    void     *p;
    rk_status st = rk_mem_alloc(n, size, what, &p);
    memcpy(slot, &p, sizeof p);
    return st;
}

static header *header_of(void *ptr) {
    header *h = (header *)(void *)((char *)ptr - ALIGN);
    RK_ASSERT(h->magic == MAGIC);
    return h;
}

void rk_mem_free(void *ptr) {
    if (!ptr) return;
    header h = *header_of(ptr);
    header_of(ptr)->magic = 0;
    count(-h.bytes, -1);
    if (h.map_size)
        munmap(h.base, h.map_size);
    else
        free(h.base);
}

rk_status rk_mem_resize(void **ptr, int64_t n, int64_t size, const char *what) {
    void *fresh;
    RK_TRY(rk_mem_alloc(n, size, what, &fresh));
    if (*ptr) {
        int64_t old = header_of(*ptr)->bytes, now = header_of(fresh)->bytes;
        memcpy(fresh, *ptr, (size_t)(old < now ? old : now));
        rk_mem_free(*ptr);
    }
    *ptr = fresh;
    return RK_OK;
}

rk_status rk_mem_strdup(const char *s, char **out) {
    void *p;
    *out = NULL;
    size_t n = strlen(s) + 1;
    RK_TRY(rk_mem_alloc((int64_t)n, 1, "string", &p));
    memcpy(p, s, n);
    *out = p;
    return RK_OK;
}

int64_t rk_mem_bytes(void) { return atomic_load(&in_use); }
int64_t rk_mem_peak(void) { return atomic_load(&peak); }
void    rk_mem_peak_reset(void) { atomic_store(&peak, atomic_load(&in_use)); }
int64_t rk_mem_blocks(void) { return atomic_load(&blocks); }
void    rk_mem_freeze(bool on) { atomic_store(&frozen, on); }
void    rk_mem_fail_at(int64_t n) { atomic_store(&fail_countdown, n); }

static int64_t read_number(const char *path, const char *key) {
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    char    line[256];
    int64_t value = -1;
    while (fgets(line, sizeof line, f)) {
        size_t k = strlen(key);
        if (strncmp(line, key, k) == 0) {
            char     *end;
            long long v = strtoll(line + k, &end, 10);
            if (end != line + k) value = v;
            break;
        }
    }
    fclose(f);
    return value;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* What the cgroup at a path (below /sys/fs/cgroup, "" for the top) leaves; INT64_MAX: no limit. */
static int64_t cgroup_left(const char *path) {
    char limit_file[1200], used_file[1200];
    snprintf(limit_file, sizeof limit_file, "/sys/fs/cgroup%.1000s/memory.max", path);
    snprintf(used_file, sizeof used_file, "/sys/fs/cgroup%.1000s/memory.current", path);
    int64_t limit = read_number(limit_file, ""), used = read_number(used_file, "");
    if (limit < 0 || used < 0) return INT64_MAX;
    return limit > used ? limit - used : 0;
}

/* The process's own cgroup (version 2) and every one above it. */
static int64_t cgroups_left(void) {
    char    path[1000] = "", line[1100];
    int64_t left = INT64_MAX;
    FILE   *f = fopen("/proc/self/cgroup", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "0::", 3) == 0) snprintf(path, sizeof path, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    if (f) fclose(f);
    for (;;) {
        left = least(left, cgroup_left(path));
        char *slash = strrchr(path, '/');
        if (!slash) return left;
        *slash = 0;
    }
}

/* What `ulimit -v` leaves. */
static int64_t address_space_left(void) {
    struct rlimit r;
    int64_t       pages = read_number("/proc/self/statm", "");
    if (getrlimit(RLIMIT_AS, &r) != 0 || r.rlim_cur == RLIM_INFINITY || pages < 0) return INT64_MAX;
    int64_t used = pages * sysconf(_SC_PAGESIZE), limit = (int64_t)r.rlim_cur;
    return limit > used ? limit - used : 0;
}

int64_t rk_mem_available(void) {
    int64_t kib = read_number("/proc/meminfo", "MemAvailable:");
    int64_t machine = kib >= 0 ? kib * 1024 : INT64_MAX;
    return least(machine, least(cgroups_left(), address_space_left()));
}

const char *rk_mem_human(int64_t bytes, char buf[32]) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double                   v = (double)bytes;
    int                      u = 0;
    while (v >= 1024 && u < 4) {
        v /= 1024;
        u++;
    }
    snprintf(buf, 32, u ? "%.2f %s" : "%.0f %s", v, unit[u]);
    return buf;
}
