/* mpi_link.c - messages between 1 to 4 ranks: rings of many sizes, order, deadlines, wrong sizes.
 * No check leaves early, so that no rank skips a collective; the verdict is shared by all. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "pipeline/link.h"

static int64_t failures;
static int     rank, size;

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            failures++;                                                                            \
            fprintf(stderr, "mpi_link: rank %d of %d, line %d: %s [%s]\n", rank, size, __LINE__,   \
                    #cond, rk_err_last()->text);                                                   \
        }                                                                                          \
    } while (0)

enum { MIB = 1 << 20, GUARD = 16 };

static unsigned char *buffer(int64_t n) {
    void *p = NULL;
    CHECK(rk_mem_alloc(n + GUARD, 1, "test", &p) == RK_OK);
    return p;
}

static void fill(unsigned char *b, int64_t n, int seed) {
    for (int64_t i = 0; i < n; i++) b[i] = (unsigned char)(i * 13 + i / 253 + seed * 101);
}

static bool holds(const unsigned char *b, int64_t n, int seed) {
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad += b[i] != (unsigned char)(i * 13 + i / 253 + seed * 101);
    for (int64_t i = n; i < n + GUARD; i++) bad += b[i] != 0xa5;
    return bad == 0;
}

static int next_rank(void) { return (rank + 1) % size; }
static int last_rank(void) { return (rank + size - 1) % size; }

/* Round the ring: what comes from the left has the sender's pattern, and nothing lies behind it. */
static void ring(rk_link *l, rk_channel ch, int step, int64_t n, unsigned char *in,
                 unsigned char *out) {
    rk_link_op r = {0}, s = {0};
    memset(in, 0xa5, (size_t)(n + GUARD));
    fill(out, n, rank + step % 1000);
    CHECK(rk_link_recv(l, ch, last_rank(), step, in, n, &r) == RK_OK);
    CHECK(rk_link_send(l, ch, next_rank(), step, out, n, &s) == RK_OK);
    CHECK(rk_link_wait(l, &r, "rows") == RK_OK);
    CHECK(rk_link_wait(l, &s, "rows") == RK_OK);
    CHECK(r.n_requests == 0 && s.n_requests == 0);
    CHECK(holds(in, n, last_rank() + step % 1000));
}

/* All sizes to 4 KiB, then with a stride that is odd, and around every power of two to 1 MiB. */
static void test_ring(rk_link *l) {
    unsigned char *in = buffer(MIB + 1), *out = buffer(MIB + 1);
    int            step = 0;
    for (int64_t n = 0; n <= 4096; n++) ring(l, RK_CH_ROWS, step++, n, in, out);
    for (int64_t n = 4097; n <= MIB; n += 26227) ring(l, RK_CH_PLAN, step++, n, in, out);
    for (int64_t p = 4096; p <= MIB; p *= 2)
        for (int64_t n = p - 1; n <= p + 1; n++) ring(l, RK_CH_BACK, step++, n, in, out);
    ring(l, RK_CH_ROWS, INT32_MAX, 1000, in, out); /* steps beyond any tag wrap */
    rk_mem_free(in);
    rk_mem_free(out);
}

/* Steps and channels are told apart whatever the order of posting and waiting. */
static void test_out_of_order(rk_link *l) {
    enum { N = 6, BYTES = 3000 };
    unsigned char *in[RK_CHANNELS][N], *out[RK_CHANNELS][N];
    rk_link_op     r[RK_CHANNELS][N], s[RK_CHANNELS][N];
    memset(r, 0, sizeof r);
    memset(s, 0, sizeof s);
    for (int ch = 0; ch < RK_CHANNELS; ch++)
        for (int i = N - 1; i >= 0; i--) {
            in[ch][i] = buffer(BYTES + i);
            memset(in[ch][i], 0xa5, (size_t)(BYTES + i + GUARD));
            CHECK(rk_link_recv(l, (rk_channel)ch, last_rank(), i, in[ch][i], BYTES + i,
                               &r[ch][i]) == RK_OK);
        }
    for (int i = 0; i < N; i++)
        for (int ch = RK_CHANNELS - 1; ch >= 0; ch--) {
            int k = i ^ 1;
            out[ch][k] = buffer(BYTES + k);
            fill(out[ch][k], BYTES + k, rank * 64 + ch * 8 + k);
            CHECK(rk_link_send(l, (rk_channel)ch, next_rank(), k, out[ch][k], BYTES + k,
                               &s[ch][k]) == RK_OK);
        }
    for (int i = 0; i < N; i++)
        for (int ch = 0; ch < RK_CHANNELS; ch++) {
            int k = (i * 5 + 2) % N;
            CHECK(rk_link_wait(l, &r[ch][k], "rows") == RK_OK);
            CHECK(holds(in[ch][k], BYTES + k, last_rank() * 64 + ch * 8 + k));
        }
    for (int i = 0; i < N; i++)
        for (int ch = 0; ch < RK_CHANNELS; ch++) {
            CHECK(rk_link_wait(l, &s[ch][i], "rows") == RK_OK);
            rk_mem_free(in[ch][i]);
            rk_mem_free(out[ch][i]);
        }
}

static void test_deadline(rk_comm *c, rk_link *l) {
    unsigned char *in = buffer(64);
    rk_link_op     op = {0};
    char           want[96];
    CHECK(rk_link_recv(l, RK_CH_ROWS, next_rank(), 17, in, 64, &op) == RK_OK);
    CHECK(!rk_link_test(l, &op));
    rk_comm_set_timeout(c, 1);
    double start = rk_now_s();
    CHECK(rk_link_wait(l, &op, "rows") == RK_E_PEER);
    double waited = rk_now_s() - start;
    CHECK(waited >= 1 && waited < 6);
    snprintf(want, sizeof want, "stage %d waits for rows of step 17 from stage %d since 1 s", rank,
             next_rank());
    CHECK(strstr(rk_err_last()->text, want) != NULL);
    CHECK(strstr(rk_err_last()->text, "--timeout") != NULL);

    rk_comm_set_timeout(c, 0.02); /* idle waits are thirty times as patient */
    start = rk_now_s();
    CHECK(rk_link_wait_idle(l, &op, "plan") == RK_E_PEER);
    CHECK(rk_now_s() - start >= 0.6);
    CHECK(strstr(rk_err_last()->text, "waits for plan of step 17") != NULL);
    rk_comm_set_timeout(c, 60);
    CHECK(rk_comm_barrier(c) == RK_OK);

    /* What came too late still comes. */
    unsigned char *out = buffer(64);
    rk_link_op     s = {0};
    memset(in + 64, 0xa5, GUARD);
    fill(out, 64, 3);
    CHECK(rk_link_send(l, RK_CH_ROWS, last_rank(), 17, out, 64, &s) == RK_OK);
    CHECK(rk_link_wait(l, &op, "rows") == RK_OK);
    CHECK(rk_link_wait(l, &s, "rows") == RK_OK);
    CHECK(holds(in, 64, 3));
    rk_mem_free(in);
    rk_mem_free(out);
}

/* Sizes that differ by one byte either way are found by the receiver. */
static void test_wrong_size(rk_link *l, int64_t posted, int64_t sent) {
    unsigned char *in = buffer(posted), *out = buffer(sent);
    rk_link_op     r = {0}, s = {0};
    CHECK(rk_link_recv(l, RK_CH_BACK, last_rank(), 5, in, posted, &r) == RK_OK);
    CHECK(rk_link_send(l, RK_CH_BACK, next_rank(), 5, out, sent, &s) == RK_OK);
    while (!rk_link_test(l, &r)) rk_link_poll(l);
    CHECK(rk_link_wait(l, &r, "results") == RK_E_BUG);
    CHECK(strstr(rk_err_last()->text, "results of step 5") != NULL);
    CHECK(r.n_requests == 0);
    CHECK(rk_link_wait(l, &s, "results") == RK_OK);
    rk_mem_free(in);
    rk_mem_free(out);
}

static void test_misuse(rk_comm *c, rk_link *l) {
    unsigned char *b = buffer(8);
    rk_link_op     op = {0}, s = {0};
    CHECK(rk_link_wait(l, &op, "rows") == RK_OK); /* idle */
    CHECK(rk_link_test(l, &op));
    CHECK(rk_link_recv(l, RK_CH_ROWS, size, 0, b, 8, &op) == RK_E_BUG);
    CHECK(rk_link_recv(l, RK_CH_ROWS, 0, -1, b, 8, &op) == RK_E_BUG);
    CHECK(rk_link_recv(l, RK_CH_ROWS, 0, 0, b, INT64_MAX / 2, &op) == RK_E_USAGE);
    CHECK(op.n_requests == 0);
    CHECK(rk_link_recv(l, RK_CH_ROWS, last_rank(), 9, b, 8, &op) == RK_OK);
    CHECK(rk_link_recv(l, RK_CH_ROWS, last_rank(), 10, b, 8, &op) == RK_E_BUG); /* in flight */
    CHECK(rk_comm_barrier(c) == RK_OK);
    CHECK(rk_link_send(l, RK_CH_ROWS, next_rank(), 9, "12345678", 8, &s) == RK_OK);
    CHECK(rk_link_wait(l, &op, "rows") == RK_OK);
    CHECK(rk_link_wait(l, &s, "rows") == RK_OK);
    CHECK(memcmp(b, "12345678", 8) == 0);
    rk_mem_free(b);
}

/* One byte more than a part, between ranks 0 and 1 only (memory). */
static void test_parts(rk_link *l) {
    int64_t        n = ((int64_t)256 << 20) + 1;
    unsigned char *b = rank <= 1 ? buffer(n) : NULL, *in = size == 1 ? buffer(n) : b;
    rk_link_op     r = {0}, s = {0};
    int            from = 0, to = size > 1 ? 1 : 0;
    if (rank == from) b[0] = 11, b[n - 2] = 12, b[n - 1] = 13;
    if (rank == to) CHECK(rk_link_recv(l, RK_CH_ROWS, from, 3, in, n, &r) == RK_OK);
    if (rank == to) CHECK(r.n_requests == 2);
    if (rank == from) CHECK(rk_link_send(l, RK_CH_ROWS, to, 3, b, n, &s) == RK_OK);
    if (rank == to) CHECK(rk_link_wait(l, &r, "rows") == RK_OK);
    if (rank == from) CHECK(rk_link_wait(l, &s, "rows") == RK_OK);
    if (rank == to) CHECK(in[0] == 11 && in[n - 2] == 12 && in[n - 1] == 13);
    if (size == 1) rk_mem_free(in);
    rk_mem_free(b);
}

/* Closing withdraws what is in flight: a later message must not write into freed memory. */
static void test_close(rk_comm *c) {
    rk_link       *l = NULL;
    unsigned char *b = buffer(100000);
    rk_link_op     r[3], s = {0};
    memset(r, 0, sizeof r);
    CHECK(rk_link_open(c, &l) == RK_OK);
    for (int i = 0; i < 3; i++)
        CHECK(rk_link_recv(l, RK_CH_ROWS, last_rank(), i, b, 100000, &r[i]) == RK_OK);
    CHECK(rk_link_send(l, RK_CH_PLAN, next_rank(), 0, "x", 1, &s) == RK_OK); /* never received */
    double start = rk_now_s();
    rk_link_close(l);
    CHECK(rk_now_s() - start < 5);
    CHECK(r[0].n_requests == 0 && r[2].n_requests == 0);
    rk_mem_free(b);
}

static void test_no_memory(rk_comm *c) {
    rk_link *l = NULL;
    if (rank == size - 1) rk_mem_fail_at(1);
    rk_status st = rk_link_open(c, &l);
    rk_mem_fail_at(0);
    CHECK(st == RK_E_MEM && l == NULL);
}

static void test_stats(rk_comm *c) {
    rk_link *l = NULL;
    CHECK(rk_link_open(c, &l) == RK_OK);
    unsigned char *in = buffer(5000), *out = buffer(5000);
    for (int i = 0; i < 10; i++) ring(l, RK_CH_ROWS, i, 500 * i, in, out);
    const rk_link_stats *st = rk_link_stats_of(l);
    CHECK(st->bytes_sent == 22500 && st->bytes_received == 22500 && st->messages_sent == 10);
    CHECK(st->wait_recv_s >= 0 && st->wait_send_s >= 0 && st->wait_recv_s < 60);
    rk_link_close(l);
    rk_mem_free(in);
    rk_mem_free(out);
}

/* A steps loop under a frozen heap: posting, waiting and testing allocate nothing. */
static void test_frozen(rk_link *l) {
    unsigned char *in = buffer(70000), *out = buffer(70000);
    rk_mem_freeze(true);
    for (int i = 0; i < 50; i++) ring(l, RK_CH_ROWS, i, 70000, in, out);
    rk_mem_freeze(false);
    rk_mem_free(in);
    rk_mem_free(out);
}

int main(int argc, char **argv) {
    rk_comm *c = NULL;
    rk_link *l = NULL;
    if (rk_comm_start(&argc, &argv, &c) != RK_OK) {
        rk_err_print(rk_err_last());
        return (int)rk_err_last()->code;
    }
    rank = rk_comm_rank(c);
    size = rk_comm_size(c);
    rk_comm_set_timeout(c, 60);
    CHECK(rk_link_open(c, &l) == RK_OK);
    test_ring(l);
    test_out_of_order(l);
    test_deadline(c, l);
    test_wrong_size(l, 1000, 999);
    test_wrong_size(l, 999, 1000);
    test_wrong_size(l, MIB, MIB + 1);
    test_wrong_size(l, MIB, 0);
    test_misuse(c, l);
    test_parts(l);
    test_frozen(l);
    rk_link_close(l);
    rk_link_close(NULL);
    test_close(c);
    test_no_memory(c);
    test_stats(c);
    CHECK(rk_mem_blocks() == 1); /* the world itself */

    CHECK(rk_comm_sum_i64(c, &failures, 1) == RK_OK);
    bool ok = failures == 0;
    if (rank == 0) fprintf(stderr, "mpi_link: %d ranks: %s\n", size, ok ? "passed" : "FAILED");
    rk_comm_finish(c);
    return ok ? 0 : 1;
}
