/* test_journal.c - a journal cut or damaged at any byte keeps what came before. */
#define _GNU_SOURCE
#include <CUnit/CUnit.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "profiler/journal.h"
#include "tests/harness.h"
#include "tests/suites.h"

enum { JOB = 77, N = 4, MAX_FILE = 4096, MAX_KL = 16 };

/* The records of the tests: record i has i + 1 values, the second none. */
static rk_journal_record make(int i, double kl[MAX_KL]) {
    rk_journal_record r = {.sample = 10 * i, .first = i, .n = i == 1 ? 0 : i + 1};
    r.sample_hash = 0x123456789abcdef0u + (uint64_t)i;
    r.ref_hash = 0xfedcba9876543210u - (uint64_t)i;
    r.floor_kl = i == 2 ? NAN : 1e-6 * i;
    for (int k = 0; k < r.n; k++) kl[k] = i + 0.25 * k;
    r.kl = kl;
    return r;
}

static bool same(const rk_journal_record *a, const rk_journal_record *b) {
    return a->sample == b->sample && a->first == b->first && a->n == b->n &&
           a->sample_hash == b->sample_hash && a->ref_hash == b->ref_hash &&
           memcmp(&a->floor_kl, &b->floor_kl, sizeof a->floor_kl) == 0 &&
           (a->n == 0 || memcmp(a->kl, b->kl, sizeof *a->kl * (size_t)a->n) == 0);
}

/* Counts records that are make(0), make(1), ... in order. */
typedef struct tally {
    int  n;
    bool wrong;
} tally;

static rk_status count(void *arg, const rk_journal_record *r) {
    tally            *t = arg;
    double            kl[MAX_KL];
    rk_journal_record want = make(t->n++, kl);
    t->wrong = t->wrong || !same(r, &want);
    return RK_OK;
}

/* Number of records, -1 for a failure or a record that is not as made. */
static int records_of(const char *path) {
    tally t = {0};
    if (rk_journal_read(path, JOB, count, &t) != RK_OK || t.wrong) return -1;
    return t.n;
}

static const char *file_at(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", rk_test_tmpdir(), name);
    return path;
}

static bool append(const char *path, bool resume, int from, int to) {
    rk_journal *j;
    double      kl[MAX_KL];
    bool        ok = true;
    if (rk_journal_open(path, JOB, resume, &j) != RK_OK) return false;
    for (int i = from; i < to; i++) {
        rk_journal_record r = make(i, kl);
        ok = ok && rk_journal_append(j, &r) == RK_OK;
    }
    rk_journal_close(j);
    return ok;
}

static size_t load(const char *path, unsigned char buf[MAX_FILE]) {
    FILE *f = fopen(path, "rb");
    if (!f) return 0;
    size_t n = fread(buf, 1, MAX_FILE, f);
    fclose(f);
    return n;
}

static void store(const char *path, const unsigned char *buf, size_t n) {
    FILE *f = fopen(path, "wb");
    CU_ASSERT_FATAL(f != NULL);
    CU_ASSERT(fwrite(buf, 1, n, f) == n);
    CU_ASSERT(fclose(f) == 0);
}

/* End of each record, from the sizes alone: 24 of header, then 48 and 8 a value. */
static size_t end_of(int n_records) {
    size_t end = 24;
    double kl[MAX_KL];
    for (int i = 0; i < n_records; i++) end += 48 + 8 * (size_t)make(i, kl).n;
    return end;
}

static int whole_records(size_t bytes) {
    int n = 0;
    while (n < N && end_of(n + 1) <= bytes) n++;
    return n;
}

static bool clear_message(const char *must_hold) {
    const char *t = rk_err_last()->text;
    return strchr(t, '\n') == NULL && strstr(t, must_hold) != NULL;
}

static void append_and_read(void) {
    const char   *path = file_at("journal.a");
    unsigned char buf[MAX_FILE];
    int64_t       blocks = rk_mem_blocks();
    CU_ASSERT(records_of(path) == 0); /* absent */
    CU_ASSERT(append(path, true, 0, 2));
    CU_ASSERT(records_of(path) == 2);
    CU_ASSERT(append(path, true, 2, N));
    CU_ASSERT(records_of(path) == N);
    CU_ASSERT(load(path, buf) == end_of(N));
    CU_ASSERT(append(path, false, 0, 1)); /* anew */
    CU_ASSERT(records_of(path) == 1);
    CU_ASSERT(rk_journal_remove(path) == RK_OK);
    CU_ASSERT(access(path, F_OK) != 0);
    CU_ASSERT(rk_journal_remove(path) == RK_OK);
    CU_ASSERT(rk_mem_blocks() == blocks);
}

static void records_are_on_file_when_append_returns(void) {
    const char *path = file_at("journal.live");
    rk_journal *j;
    double      kl[MAX_KL];
    CU_ASSERT_FATAL(rk_journal_open(path, JOB, false, &j) == RK_OK);
    for (int i = 0; i < N; i++) {
        rk_journal_record r = make(i, kl);
        CU_ASSERT(rk_journal_append(j, &r) == RK_OK);
        CU_ASSERT(records_of(path) == i + 1);
    }
    rk_journal_close(j);
}

static void cut_at_every_byte(void) {
    const char   *path = file_at("journal.cut");
    unsigned char whole[MAX_FILE], now[MAX_FILE];
    CU_ASSERT_FATAL(append(path, false, 0, N));
    size_t size = load(path, whole);
    CU_ASSERT_FATAL(size == end_of(N));
    CU_ASSERT(rk_log_set_spec("error") == RK_OK);
    for (size_t cut = 0; cut <= size; cut++) {
        int n = whole_records(cut);
        store(path, whole, cut);
        CU_ASSERT(records_of(path) == n);
        /* Appending goes on where the valid part ends, and ends in the same bytes. */
        CU_ASSERT(append(path, true, n, N));
        CU_ASSERT(records_of(path) == N);
        CU_ASSERT(load(path, now) == size && memcmp(now, whole, size) == 0);
    }
    CU_ASSERT(rk_log_set_spec("info") == RK_OK);
}

static void damaged_bytes(void) {
    const char   *path = file_at("journal.flip");
    unsigned char whole[MAX_FILE], bad[MAX_FILE];
    CU_ASSERT_FATAL(append(path, false, 0, N));
    size_t size = load(path, whole);
    for (size_t at = 0; at < size; at++)
        for (int bit = 0; bit < 8; bit += 3) {
            memcpy(bad, whole, size);
            bad[at] ^= (unsigned char)(1 << bit);
            store(path, bad, size);
            tally     t = {0};
            rk_status st = rk_journal_read(path, JOB, count, &t);
            CU_ASSERT(!t.wrong);
            if (at < 24) {
                CU_ASSERT(st == RK_E_USAGE && t.n == 0 && clear_message(path));
            } else {
                CU_ASSERT(st == RK_OK && t.n == whole_records(at));
            }
        }
}

static void junk_tail(void) {
    const char   *path = file_at("journal.tail");
    unsigned char buf[MAX_FILE];
    CU_ASSERT_FATAL(append(path, false, 0, 2));
    size_t size = load(path, buf);
    CU_ASSERT(rk_log_set_spec("error") == RK_OK);
    for (int fill = 0; fill < 256; fill += 85) { /* zeros as after a power cut, then others */
        memset(buf + size, fill, 1000);
        store(path, buf, size + 1000);
        CU_ASSERT(records_of(path) == 2);
        CU_ASSERT(append(path, true, 2, 3));
        CU_ASSERT(records_of(path) == 3);
    }
    CU_ASSERT(rk_log_set_spec("info") == RK_OK);
}

/* What stands behind a damaged record is gone for good, even if the gap is filled exactly. */
static void cut_records_stay_cut(void) {
    const char   *path = file_at("journal.gap");
    unsigned char buf[MAX_FILE];
    CU_ASSERT_FATAL(append(path, false, 0, N));
    size_t size = load(path, buf);
    buf[end_of(1) + 9] ^= 1;
    store(path, buf, size);
    CU_ASSERT(rk_log_set_spec("error") == RK_OK);
    CU_ASSERT(append(path, true, 1, 2));
    CU_ASSERT(rk_log_set_spec("info") == RK_OK);
    CU_ASSERT(records_of(path) == 2);
    CU_ASSERT(load(path, buf) == end_of(2));
}

static void other_job(void) {
    const char *path = file_at("journal.job");
    rk_journal *j;
    tally       t = {0};
    CU_ASSERT_FATAL(append(path, false, 0, 2));
    CU_ASSERT(rk_journal_open(path, JOB + 1, true, &j) == RK_E_USAGE && j == NULL);
    CU_ASSERT(clear_message("--resume") && clear_message(path));
    CU_ASSERT(rk_journal_read(path, JOB + 1, count, &t) == RK_E_USAGE && t.n == 0);
    CU_ASSERT(records_of(path) == 2); /* the refusal left it alone */
    CU_ASSERT_FATAL(rk_journal_open(path, JOB + 1, false, &j) == RK_OK);
    rk_journal_close(j);
    CU_ASSERT(rk_journal_read(path, JOB + 1, count, &t) == RK_OK && t.n == 0);

    store(path, (const unsigned char *)"a shopping list, rather longer than a header\n", 45);
    CU_ASSERT(rk_journal_open(path, JOB, true, &j) == RK_E_USAGE);
    CU_ASSERT(clear_message("not a journal"));
}

static void one_writer(void) {
    const char *path = file_at("journal.lock");
    rk_journal *j, *second;
    CU_ASSERT_FATAL(append(path, false, 0, 2));
    CU_ASSERT_FATAL(rk_journal_open(path, JOB, true, &j) == RK_OK);
    CU_ASSERT(rk_journal_open(path, JOB, false, &second) == RK_E_OUTPUT && second == NULL);
    CU_ASSERT(clear_message("another run"));
    CU_ASSERT(records_of(path) == 2);
    rk_journal_close(j);
    CU_ASSERT(append(path, true, 2, 3));
}

static void unwritable(void) {
    rk_journal *j;
    CU_ASSERT_FATAL(append(file_at("journal.file"), false, 0, 1));
    CU_ASSERT(rk_journal_open(file_at("absent/journal"), JOB, false, &j) == RK_E_OUTPUT && !j);
    CU_ASSERT(clear_message("absent/journal"));
    CU_ASSERT(rk_journal_open(file_at("journal.file/x"), JOB, true, &j) == RK_E_OUTPUT);
    CU_ASSERT(rk_journal_open(rk_test_tmpdir(), JOB, true, &j) == RK_E_OUTPUT);
    CU_ASSERT_FATAL(mkfifo(file_at("journal.fifo"), 0600) == 0);
    CU_ASSERT(rk_journal_open(file_at("journal.fifo"), JOB, false, &j) == RK_E_OUTPUT);
    CU_ASSERT(clear_message("not a regular file"));
    tally t = {0};
    CU_ASSERT(rk_journal_read(rk_test_tmpdir(), JOB, count, &t) == RK_E_OUTPUT);
    CU_ASSERT(rk_journal_remove(file_at("journal.file/x")) == RK_E_OUTPUT);
}

/* With a file size limit as the full disk, in a child since limits are the process's. */
static bool fills_up(const char *path) {
    struct rlimit limit;
    rk_journal   *j;
    double        kl[MAX_KL];
    bool          ok = signal(SIGXFSZ, SIG_IGN) != SIG_ERR && getrlimit(RLIMIT_FSIZE, &limit) == 0;
    rlim_t        unlimited = limit.rlim_cur;
    if (!ok || rk_journal_open(path, JOB, false, &j) != RK_OK) return false;
    for (int i = 0; i < N; i++) {
        rk_journal_record r = make(i, kl);
        limit.rlim_cur = end_of(i) + 11; /* room for a part of the record */
        ok = ok && setrlimit(RLIMIT_FSIZE, &limit) == 0;
        ok = ok && rk_journal_append(j, &r) == RK_E_OUTPUT && records_of(path) == i;
        limit.rlim_cur = unlimited;
        ok = ok && setrlimit(RLIMIT_FSIZE, &limit) == 0;
        ok = ok && rk_journal_append(j, &r) == RK_OK && records_of(path) == i + 1;
    }
    rk_journal_close(j);
    return ok;
}

static void full_disk(void) {
    const char *path = file_at("journal.full");
    int         status = -1;
    pid_t       child = fork();
    if (child == 0) _exit(fills_up(path) ? 0 : 1);
    CU_ASSERT(child > 0 && waitpid(child, &status, 0) == child);
    CU_ASSERT(status == 0);
    CU_ASSERT(records_of(path) == N);
}

static rk_status refuse(void *arg, const rk_journal_record *r) {
    (void)r;
    (*(int *)arg)++;
    return RK_FAIL(RK_E_NO, "enough");
}

static void visitor_stops(void) {
    const char *path = file_at("journal.visit");
    int         calls = 0;
    CU_ASSERT_FATAL(append(path, false, 0, N));
    CU_ASSERT(rk_journal_read(path, JOB, refuse, &calls) == RK_E_NO && calls == 1);
}

static void failing_allocations(void) {
    const char *path = file_at("journal.alloc");
    int64_t     blocks = rk_mem_blocks();
    bool        done = false;
    int         n = 0;
    for (; !done && n < 100; n++) {
        (void)rk_journal_remove(path);
        rk_mem_fail_at(n + 1);
        done = append(path, false, 0, N) && append(path, true, N, N) && records_of(path) == N;
        rk_mem_fail_at(0);
        CU_ASSERT(done || rk_err_last()->code == RK_E_MEM);
        CU_ASSERT(rk_mem_blocks() == blocks);
        rk_err_clear();
    }
    CU_ASSERT(done && n > 4);
}

int rk_suite_journal(void) {
    CU_pSuite s = CU_add_suite("journal", NULL, NULL);
    if (!s || !CU_ADD_TEST(s, append_and_read) ||
        !CU_ADD_TEST(s, records_are_on_file_when_append_returns) ||
        !CU_ADD_TEST(s, cut_at_every_byte) || !CU_ADD_TEST(s, damaged_bytes) ||
        !CU_ADD_TEST(s, junk_tail) || !CU_ADD_TEST(s, cut_records_stay_cut) ||
        !CU_ADD_TEST(s, other_job) || !CU_ADD_TEST(s, one_writer) || !CU_ADD_TEST(s, unwritable) ||
        !CU_ADD_TEST(s, full_disk) || !CU_ADD_TEST(s, visitor_stops) ||
        !CU_ADD_TEST(s, failing_allocations))
        return (int)CU_get_error();
    return 0;
}
