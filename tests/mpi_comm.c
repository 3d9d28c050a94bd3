/* mpi_comm.c - the ranks themselves, run with 1 to 4 of them: collectives, agreement, deadlines.
 * No check leaves early, so that no rank skips a collective; the verdict is shared by all. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "pipeline/comm.h"

static int64_t failures;
static int     rank, size;

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            failures++;                                                                            \
            fprintf(stderr, "mpi_comm: rank %d of %d, line %d: %s [%s]\n", rank, size, __LINE__,   \
                    #cond, rk_err_last()->text);                                                   \
        }                                                                                          \
    } while (0)

static unsigned char pattern(int64_t i, int seed) {
    return (unsigned char)(i * 31 + seed * 7 + i / 251);
}

static void test_bcast(rk_comm *c) {
    static const int64_t sizes[] = {0, 1, 7, 4096, 100001};
    for (int root = 0; root < size; root++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            void *p = NULL;
            CHECK(rk_mem_alloc(sizes[k] + 1, 1, "test", &p) == RK_OK);
            unsigned char *b = p;
            for (int64_t i = 0; i < sizes[k]; i++) b[i] = rank == root ? pattern(i, root) : 0;
            b[sizes[k]] = 0xa5;
            CHECK(rk_comm_bcast(c, b, sizes[k], root) == RK_OK);
            int64_t bad = 0;
            for (int64_t i = 0; i < sizes[k]; i++) bad += b[i] != pattern(i, root);
            CHECK(bad == 0);
            CHECK(b[sizes[k]] == 0xa5);
            rk_mem_free(p);
        }
}

/* One byte more than a part. */
static void test_bcast_parts(rk_comm *c) {
    int64_t bytes = ((int64_t)256 << 20) + 1;
    void   *p = NULL;
    CHECK(rk_mem_alloc(bytes, 1, "test", &p) == RK_OK);
    unsigned char *b = p;
    if (rank == 0) b[0] = 1, b[bytes - 2] = 2, b[bytes - 1] = 3;
    CHECK(rk_comm_bcast(c, b, bytes, 0) == RK_OK);
    CHECK(b[0] == 1 && b[bytes - 2] == 2 && b[bytes - 1] == 3);
    rk_mem_free(p);
}

static void test_reductions(rk_comm *c) {
    int64_t sum[3] = {rank, 1, INT64_C(1) << (40 + rank)};
    CHECK(rk_comm_sum_i64(c, sum, 3) == RK_OK);
    int64_t bits = 0;
    for (int r = 0; r < size; r++) bits += INT64_C(1) << (40 + r);
    CHECK(sum[0] == size * (size - 1) / 2 && sum[1] == size && sum[2] == bits);

    double most[2] = {-1.5 - rank, rank * 0.25};
    CHECK(rk_comm_max_f64(c, most, 2) == RK_OK);
    CHECK(most[0] == -1.5 && most[1] == (size - 1) * 0.25);

    uint64_t any[2] = {UINT64_C(1) << (rank * 20), 0};
    CHECK(rk_comm_or_u64(c, any, 2) == RK_OK);
    uint64_t all = 0;
    for (int r = 0; r < size; r++) all |= UINT64_C(1) << (r * 20);
    CHECK(any[0] == all && any[1] == 0);
    CHECK(rk_comm_sum_i64(c, NULL, 0) == RK_OK);
}

static void test_gather(rk_comm *c) {
    static const int64_t sizes[] = {0, 1, 24, 70001};
    for (int root = 0; root < size; root++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            int64_t n = sizes[k];
            void   *mine = NULL, *all = NULL;
            CHECK(rk_mem_alloc(n + 1, 1, "test", &mine) == RK_OK);
            for (int64_t i = 0; i < n; i++) ((unsigned char *)mine)[i] = pattern(i, rank);
            if (rank == root) CHECK(rk_mem_alloc(n * size + 1, 1, "test", &all) == RK_OK);
            CHECK(rk_comm_gather(c, mine, n, all, root) == RK_OK);
            int64_t bad = 0;
            if (rank == root)
                for (int64_t i = 0; i < n * size; i++)
                    bad += ((unsigned char *)all)[i] != pattern(i % n, (int)(i / n));
            CHECK(bad == 0);
            rk_mem_free(mine);
            rk_mem_free(all);
        }
}

static rk_status fail_as(rk_status code) { return RK_FAIL(code, "rank %d cannot do it", rank); }

/* Every set of failing ranks: the lowest one's code and text reach everybody. */
static void test_agree(rk_comm *c) {
    static const rk_status codes[] = {RK_E_USAGE, RK_E_MEM, RK_E_INPUT, RK_E_STOPPED};
    for (int set = 0; set < 1 << size; set++) {
        rk_err_clear();
        rk_status mine = set >> rank & 1 ? fail_as(codes[rank % 4]) : RK_OK;
        int       first = 0;
        while (first < size && !(set >> first & 1)) first++;
        bool      reporter = true;
        rk_status st = rk_comm_agree(c, mine, &reporter);
        if (first == size) {
            CHECK(st == RK_OK && !reporter);
            continue;
        }
        char text[64];
        snprintf(text, sizeof text, first == rank ? "rank %d cannot" : "rank %d: rank ", first);
        CHECK(st == codes[first % 4]);
        CHECK(reporter == (first == rank));
        CHECK(rk_err_last()->code == st);
        CHECK(strncmp(rk_err_last()->text, text, strlen(text)) == 0);
        CHECK(strstr(rk_err_last()->text, "cannot do it") != NULL);
    }
    rk_status st = rk_comm_agree(c, RK_OK, NULL);
    CHECK(st == RK_OK);
}

static void test_split(rk_comm *c) {
    rk_comm *half = NULL;
    CHECK(rk_comm_split(c, rank % 2, &half) == RK_OK);
    if (!half) return;
    CHECK(rk_comm_rank(half) == rank / 2);
    CHECK(rk_comm_size(half) == (size + (rank % 2 == 0)) / 2);
    int64_t sum = rank;
    CHECK(rk_comm_sum_i64(half, &sum, 1) == RK_OK);
    int64_t want = 0;
    for (int r = rank % 2; r < size; r += 2) want += r;
    CHECK(sum == want);
    CHECK(rk_comm_timeout(half) == rk_comm_timeout(c)); /* the parent's until it has its own */
    double before = rk_comm_timeout(c);
    rk_comm_set_timeout(c, 77);
    CHECK(rk_comm_timeout(half) == 77);
    rk_comm_set_timeout(half, 5);
    CHECK(rk_comm_timeout(half) == 5 && rk_comm_timeout(c) == 77);
    rk_comm_set_timeout(c, before);
    rk_comm_close(half);
}

/* A rank without memory must not leave the others in the split. */
static void test_split_no_memory(rk_comm *c) {
    rk_comm *part = NULL;
    if (rank == size - 1) rk_mem_fail_at(1);
    rk_status st = rk_comm_split(c, 0, &part);
    rk_mem_fail_at(0);
    CHECK(st == RK_E_MEM && part == NULL);
}

/* Rank 0 comes late: the others give up in time and say what they waited for. */
static void test_deadline(rk_comm *c) {
    rk_comm *part = NULL;
    CHECK(rk_comm_split(c, 0, &part) == RK_OK);
    if (!part) return;
    if (rank != 0) {
        rk_comm_set_timeout(part, 0.5);
        double start = rk_now_s();
        CHECK(rk_comm_barrier(part) == RK_E_PEER);
        double waited = rk_now_s() - start;
        CHECK(waited >= 0.5 && waited < 5);
        char who[32];
        snprintf(who, sizeof who, "rank %d waits", rank);
        CHECK(strstr(rk_err_last()->text, who) && strstr(rk_err_last()->text, "barrier"));
    }
    CHECK(rk_comm_barrier(c) == RK_OK);
    if (rank == 0) CHECK(rk_comm_barrier(part) == RK_OK);
    CHECK(rk_comm_barrier(c) == RK_OK);
    rk_comm_close(part);
}

int main(int argc, char **argv) {
    rk_comm *c = NULL;
    CHECK(!rk_comm_started());
    if (rk_comm_start(&argc, &argv, &c) != RK_OK) {
        rk_err_print(rk_err_last());
        return (int)rk_err_last()->code;
    }
    rank = rk_comm_rank(c);
    size = rk_comm_size(c);
    /* "abort R CODE": rank R ends the job while the others wait for it. */
    if (argc == 4 && strcmp(argv[1], "abort") == 0) {
        if (rank == argv[2][0] - '0') {
            int code = 0;
            for (const char *s = argv[3]; *s; s++) code = code * 10 + (*s - '0');
            rk_comm_abort((rk_status)code);
        }
        (void)!rk_comm_barrier(c);
        return 1;
    }
    CHECK(rk_comm_started());
    CHECK(rank >= 0 && rank < size);
    CHECK(rk_comm_local_size(c) >= 1 && rk_comm_local_size(c) <= size);
    CHECK(rk_comm_timeout(c) == 120);
    rk_comm_set_timeout(c, 60);
    test_bcast(c);
    test_bcast_parts(c);
    test_reductions(c);
    test_gather(c);
    test_agree(c);
    test_split(c);
    test_split_no_memory(c);
    test_deadline(c);
    CHECK(rk_mem_blocks() == 1); /* the world itself */

    CHECK(rk_comm_sum_i64(c, &failures, 1) == RK_OK);
    bool ok = failures == 0;
    if (rank == 0) fprintf(stderr, "mpi_comm: %d ranks: %s\n", size, ok ? "passed" : "FAILED");
    rk_comm_finish(c);
    return ok ? 0 : 1;
}
