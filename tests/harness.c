/* harness.c - see harness.h. */
#define _GNU_SOURCE /* nftw */
#include "tests/harness.h"

#include <CUnit/TestRun.h>
#include <dirent.h>
#include <ftw.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct {
    int      n_skips, n_idle; /* idle: tests that checked and skipped nothing */
    int      skips_before;    /* at the running test's start */
    unsigned checks_before;
    pid_t    tmpdir_owner;
    char     goldens[PATH_MAX];
    char     model[PATH_MAX];
    char     tmpdir[PATH_MAX];
} state;

/* A failure of the surroundings: of the running test, or of a program without CUnit. */
static void fail_here(const char *what) {
    fprintf(stderr, "FAILED: %s\n", what);
    if (CU_get_current_test() == NULL) exit(1);
    CU_assertImplementation(CU_FALSE, __LINE__, what, __FILE__, "", CU_FALSE);
}

static bool is_empty_folder(const char *path) {
    DIR *d = opendir(path);
    if (d == NULL) return true;
    int n = 0;
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) n += e->d_name[0] != '.';
    closedir(d);
    return n == 0;
}

const char *rk_test_root(void) {
    const char *root = getenv("RIPPLEKV_ROOT");
    return root != NULL && root[0] != 0 ? root : RK_SOURCE_ROOT;
}

const char *rk_test_goldens(void) {
    const char *given = getenv("RIPPLEKV_GOLDENS");
    bool        is_set = given != NULL;
    int         n = is_set ? snprintf(state.goldens, sizeof state.goldens, "%s", given)
                           : snprintf(state.goldens, sizeof state.goldens, "%s/../shared/goldens",
                                      rk_test_root());
    if (n < 0 || n >= PATH_MAX) {
        fail_here("the path of the goldens is too long");
        return NULL;
    }
    struct stat st;
    if (!is_set && stat(state.goldens, &st) != 0) return NULL;
    if (!is_empty_folder(state.goldens)) return state.goldens;
    char text[PATH_MAX + 96];
    snprintf(text, sizeof text, "the folder of goldens \"%s\" is missing or empty%s", state.goldens,
             is_set ? " (RIPPLEKV_GOLDENS)" : "");
    fail_here(text);
    return NULL;
}

const char *rk_test_model(void) {
    const char *given = getenv("RIPPLEKV_MODEL");
    if (given == NULL || given[0] == 0) return NULL;
    if (access(given, R_OK) == 0) {
        snprintf(state.model, sizeof state.model, "%s", given);
        return state.model;
    }
    char text[PATH_MAX + 64];
    snprintf(text, sizeof text, "RIPPLEKV_MODEL names \"%.4000s\", which cannot be read", given);
    fail_here(text);
    return NULL;
}

void rk_test_skip(const char *reason) {
    const CU_pTest test = CU_get_current_test();
    state.n_skips++;
    printf("  skip  %s: %s\n", test != NULL ? test->pName : "program", reason);
}

int rk_test_skips(void) {
    return state.n_skips;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static void remove_tmpdir(void) {
    if (state.tmpdir_owner != getpid()) return; /* a forked child leaves its parent's alone */
    nftw(state.tmpdir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *rk_test_tmpdir(void) {
    if (state.tmpdir_owner == getpid()) return state.tmpdir; /* a forked child makes its own */
    const char *base = getenv("TMPDIR");
    snprintf(state.tmpdir, sizeof state.tmpdir, "%.4000s/rk-test-XXXXXX",
             base != NULL && base[0] != 0 ? base : "/tmp");
    if (mkdtemp(state.tmpdir) == NULL) {
        perror(state.tmpdir);
        exit(1);
    }
    state.tmpdir_owner = getpid();
    atexit(remove_tmpdir);
    return state.tmpdir;
}

/* --- the run --- */

static void on_test_start(const CU_pTest test, const CU_pSuite suite) {
    (void)test;
    (void)suite;
    state.skips_before = state.n_skips;
    state.checks_before = CU_get_number_of_asserts();
}

/* failure is the first record of this test and heads the list of those after it. */
static void on_test_end(const CU_pTest test, const CU_pSuite suite, CU_pFailureRecord failure) {
    (void)suite;
    bool skipped = state.n_skips > state.skips_before;
    bool idle = CU_get_number_of_asserts() == state.checks_before && !skipped;
    for (CU_pFailureRecord f = failure; f != NULL; f = f->pNext)
        fprintf(stderr, "  %s:%u: %s: %s\n", f->strFileName != NULL ? f->strFileName : "?",
                f->uiLineNumber, test->pName, f->strCondition != NULL ? f->strCondition : "failed");
    if (idle) {
        fprintf(stderr, "  %s: checked nothing and skipped nothing\n", test->pName);
        state.n_idle++;
    }
    bool failed = failure != NULL || idle;
    if (failed || !skipped) printf("  %s  %s\n", failed ? "FAIL" : "ok  ", test->pName);
    fflush(stdout);
}

static const rk_test_suite *find(const rk_test_suite *suites, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(suites[i].name, name) == 0) return &suites[i];
    return NULL;
}

static int add_suites(int argc, char **argv, const rk_test_suite *suites, int n_suites) {
    for (int i = 1; i < argc; i++) {
        const rk_test_suite *s = find(suites, n_suites, argv[i]);
        if (s == NULL) {
            fprintf(stderr, "no suite \"%s\"; rk_tests --list prints the names\n", argv[i]);
            return 2;
        }
        if (s->add() != 0) {
            fprintf(stderr, "suite %s could not be added: %s\n", s->name, CU_get_error_msg());
            return 1;
        }
    }
    for (int i = 0; argc < 2 && i < n_suites; i++) {
        if (suites[i].add() == 0) continue;
        fprintf(stderr, "suite %s could not be added: %s\n", suites[i].name, CU_get_error_msg());
        return 1;
    }
    return 0;
}

int rk_test_main(int argc, char **argv, const rk_test_suite *suites, int n_suites) {
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (int i = 0; i < n_suites; i++) printf("%s\n", suites[i].name);
        return 0;
    }
    if (CU_initialize_registry() != CUE_SUCCESS) {
        fprintf(stderr, "CUnit: %s\n", CU_get_error_msg());
        return 1;
    }
    int code = add_suites(argc, argv, suites, n_suites);
    if (code != 0) goto out;
    CU_set_test_start_handler(on_test_start);
    CU_set_test_complete_handler(on_test_end);
    struct timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    CU_ErrorCode ran = CU_run_all_tests();
    clock_gettime(CLOCK_MONOTONIC, &t1);

    unsigned failed = CU_get_number_of_failures(), asserts = CU_get_number_of_asserts();
    printf("%u suites, %u tests, %u checks, %u failed, %d skipped, %.2f s\n",
           CU_get_number_of_suites_run(), CU_get_number_of_tests_run(), asserts, failed,
           state.n_skips,
           (double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec));
    if (ran != CUE_SUCCESS || failed > 0 || CU_get_number_of_suites_failed() > 0 ||
        state.n_idle > 0 || (asserts == 0 && state.n_skips == 0)) {
        fprintf(stderr, asserts == 0 && failed == 0 ? "FAILED: nothing was checked\n" : "FAILED\n");
        code = 1;
    } else if (asserts == 0) {
        code = 77;
    }
out:
    CU_cleanup_registry();
    return code;
}
