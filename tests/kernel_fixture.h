/* kernel_fixture.h - what the suites of kernels/ share: every cpu backend of one order of sums
 * (instruction sets x 1 to 3 threads) and ref, checks that name their case, and data. A suite runs
 * once in each order. Included by a suite's file only. */
#pragma once
#include <CUnit/CUnit.h>
#include <CUnit/TestDB.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/backend.h"
#include "kernels/host.h"

enum { MAX_CPU = 12, BAND = 256 };

static const char *const isa_names[] = {"scalar", "avx2", "avx512", "amx", "avx512bf16"};
enum { N_ISAS = sizeof isa_names / sizeof *isa_names };

static const char *order; /* "tile" or "pair" */
static rk_backend *cpus[MAX_CPU], *ref; /* cpus[0]: scalar, 1 thread */
static int         n_cpus;

static int open_backends(const char *numerics) {
    order = numerics;
    n_cpus = 0;
    for (int i = 0; i < N_ISAS; i++)
        for (int t = 1; t <= 3 && rk_backend_has_isa(isa_names[i], order); t++)
            if (rk_backend_open("cpu", t, isa_names[i], order, &cpus[n_cpus++]) != RK_OK) return 1;
    return rk_backend_open("ref", 2, NULL, NULL, &ref) != RK_OK;
}
static int open_tile(void) { return open_backends("tile"); }
static int open_pair(void) { return open_backends("pair"); }

static int close_backends(void) {
    for (int i = 0; i < n_cpus; i++) rk_backend_close(cpus[i]);
    rk_backend_close(ref);
    return 0;
}

/* A check whose text names the case. */
__attribute__((format(printf, 3, 4))) static void check(bool ok, int line, const char *fmt, ...) {
    char    text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    CU_assertImplementation(ok, (unsigned)line, text, __FILE__, "", CU_FALSE);
}
#define CHECK(ok, ...) check((ok), __LINE__, __VA_ARGS__)
#define OK(call)       CU_ASSERT_EQUAL((call), RK_OK)

static void *zeroed(int64_t bytes) {
    void *p = NULL;
    CU_ASSERT_EQUAL_FATAL(rk_mem_alloc(bytes + 1, 1, "test", &p), RK_OK);
    return p;
}

/* n normals, a function of seed and id, times scale; rk_mem_free them. */
static float *seeded_normals(uint64_t seed, int64_t n, uint32_t id, float scale) {
    float *x = zeroed((n + 3) * 4);
    for (int64_t i = 0; i < n; i += 4) rk_rng_noise4(seed, (uint32_t)(i / 4), id, 0, 0, x + i);
    for (int64_t i = 0; i < n; i++) x[i] *= scale;
    return x;
}
