/* harness.h - what tests ask of their surroundings, and the run of one suite.
 *
 * Skips are counted and printed: a run that only skipped exits 77. A test that checked nothing and
 * skipped nothing fails. */
#pragma once
#include <CUnit/CUnit.h>

/* Root of the source tree (RIPPLEKV_ROOT, or where the harness was compiled). */
const char *rk_test_root(void);

/* Folder of golden data: RIPPLEKV_GOLDENS, or ../shared/goldens beside the source tree. NULL where
 * the default is absent: call rk_test_skip. Set but missing or empty is a failure of the running
 * test (outside CUnit: of the program, exit 1).
 * Owner: static, valid for the whole run */
const char *rk_test_goldens(void);

/* A model file or folder for tests: RIPPLEKV_MODEL; NULL if unset: call rk_test_skip. Set but
 * absent is a failure, as above. */
const char *rk_test_model(void);

/* Count a skip of the running test, with its reason; the test then returns. */
void rk_test_skip(const char *reason);

/* A fresh folder of this process, made at the first call and removed with all in it at exit.
 * Owner: static */
const char *rk_test_tmpdir(void);

int rk_test_skips(void); /* so far */

typedef struct rk_test_suite {
    const char *name;
    int (*add)(void);
} rk_test_suite;

/* Run the suites whose names stand in argv (all without one; --list prints the names) and print
 * each failure and a summary. Returns the exit code: 0, 1 on failure or when nothing was checked,
 * 2 for an unknown name, 77 when all was skipped. */
int rk_test_main(int argc, char **argv, const rk_test_suite *suites, int n_suites);
