/* test_roof.c - rates of the machine: there is one for every path of this CPU, it is a number that
 * a machine can have, and nothing is left behind. */
#include "kernels/roof.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "kernels/roof_isa.h"
#include "tests/suites.h"

enum { BUFFER = 64 << 20 };
static const double LEAST = 1e6, MOST = 1e15; /* a second, of one thread: wrong units show */

static bool plausible(double rate, int n_threads) {
    return isfinite(rate) && rate > LEAST && rate < MOST * n_threads;
}

static rk_backend *open_backend(const char *name, int n_threads) {
    rk_backend *be = NULL;
    CU_ASSERT_EQUAL_FATAL(rk_backend_open(name, n_threads, NULL, NULL, &be), RK_OK);
    return be;
}

static void check_roofs(const rk_backend *be, const rk_roofs *r) {
    CU_ASSERT_EQUAL(r->n_threads, be->n_threads);
    CU_ASSERT_PTR_NOT_NULL(r->flop_kind);
    CU_ASSERT(plausible(r->flop_s, r->n_threads));
    CU_ASSERT((r->int8_kind != NULL) == (r->int8_op_s > 0));
    if (r->int8_kind) CU_ASSERT(plausible(r->int8_op_s, r->n_threads));
    CU_ASSERT(plausible(r->l2_read_s, r->n_threads) && r->l2_bytes > 0);
    CU_ASSERT((r->memory_read_s > 0) == (r->memory_bytes > 0));
    if (r->memory_bytes) CU_ASSERT(plausible(r->memory_read_s, r->n_threads));
    CU_ASSERT(r->memory_bytes <= BUFFER);
}

static void test_backends(void) {
    static const char *const names[] = {"cpu", "ref"};
    for (int i = 0; i < 2; i++)
        for (int threads = 1; threads <= 2; threads++) {
            rk_backend *be = open_backend(names[i], threads);
            rk_roofs    r;
            CU_ASSERT_EQUAL(rk_roof_measure(be, BUFFER, &r), RK_OK); /* threads have started */
            int64_t blocks = rk_mem_blocks();
            CU_ASSERT_EQUAL(rk_roof_measure(be, BUFFER, &r), RK_OK);
            CU_ASSERT_EQUAL(rk_mem_blocks(), blocks);
            check_roofs(be, &r);
            CU_ASSERT_EQUAL(strcmp(r.flop_kind, "mulps + addps xmm") == 0, i == 1);
            rk_backend_close(be);
        }
}

/* What a path is called decides what is measured; one that the CPU lacks is refused, not tried. */
static void test_paths(void) {
    static const struct {
        const char         *path;
        const rk_roof_loop *loop;
    } paths[] = {{"amx", &rk_roof_amx},
                 {"avx512bf16", &rk_roof_bf16},
                 {"avx512", &rk_roof_fma_zmm},
                 {"avx2", &rk_roof_fma_ymm}};
    rk_backend *be = open_backend("cpu", 1);
    const char *own = be->path;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        rk_roofs r = {0};
        be->path = paths[i].path;
        rk_err_clear();
        rk_status st = rk_roof_measure(be, BUFFER, &r);
        if (paths[i].loop->has()) {
            CU_ASSERT_EQUAL(st, RK_OK);
            CU_ASSERT_STRING_EQUAL(r.flop_kind, paths[i].loop->instruction);
            check_roofs(be, &r);
        } else {
            CU_ASSERT_EQUAL(st, RK_E_BUG);
            CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, paths[i].path));
            CU_ASSERT_PTR_NULL(r.flop_kind);
        }
    }
    be->path = own;
    rk_backend_close(be);
}

static void test_unknown_path(void) {
    rk_backend *be = open_backend("cpu", 1);
    rk_roofs    r = {0};
    const char *own = be->path;
    be->path = "abacus";
    rk_err_clear();
    CU_ASSERT_EQUAL(rk_roof_measure(be, BUFFER, &r), RK_E_BUG);
    CU_ASSERT_PTR_NOT_NULL(strstr(rk_err_last()->text, "abacus"));
    CU_ASSERT_PTR_NULL(r.flop_kind);
    be->path = own;
    rk_backend_close(be);
}

static void test_no_memory(void) {
    rk_backend *be = open_backend("cpu", 1);
    rk_roofs    r = {0};
    rk_mem_fail_at(1);
    CU_ASSERT_EQUAL(rk_roof_measure(be, BUFFER, &r), RK_E_MEM);
    rk_mem_fail_at(0);
    CU_ASSERT_PTR_NULL(r.flop_kind);
    /* too small a buffer would show the caches: no rate is given */
    CU_ASSERT_EQUAL(rk_roof_measure(be, 4096, &r), RK_OK);
    CU_ASSERT(r.memory_read_s == 0 && r.memory_bytes == 0 && r.l2_read_s > 0);
    rk_backend_close(be);
}

/* Reading keeps within its blocks: behind them lies a page that may not be read. */
static void test_read(void) {
    enum { PAGE = 4096 };
    char *p = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(p, MAP_FAILED);
    CU_ASSERT_EQUAL_FATAL(mprotect(p + PAGE, PAGE, PROT_NONE), 0);
    for (int n = 0; n <= PAGE; n += RK_ROOF_BLOCK) rk_roof_read(p + PAGE - n, n);
    munmap(p, 2 * PAGE);
}

int rk_suite_roof(void) {
    CU_pSuite s = CU_add_suite("roof", NULL, NULL);
    if (!s) return -1;
    CU_ADD_TEST(s, test_backends);
    CU_ADD_TEST(s, test_paths);
    CU_ADD_TEST(s, test_unknown_path);
    CU_ADD_TEST(s, test_no_memory);
    CU_ADD_TEST(s, test_read);
    return 0;
}
