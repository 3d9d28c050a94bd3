/* link_mpi.c - stage-to-stage messages over MPI and host memory.
 *
 * A message is one or more parts with one tag; MPI keeps parts of one tag in order. Requests are
 * kept in the caller's op; the link lists the ops in flight, so that closing can withdraw receives
 * before their buffers are freed. */
#include "pipeline/link.h"

#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"

enum {
    MAX_PARTS = 8,
    SPIN_TESTS = 2000, /* tests before the core is offered to other ranks */
    CLOSE_TESTS = 20000
};
static const double  SLEEP_AFTER_S = 0.02; /* a wait this long can afford the 50 us of a sleep */
static const double  IDLE_FACTOR = 30;
static const int64_t PART_BYTES = (int64_t)256 << 20;
static const int64_t PART_STEP = (int64_t)1 << 20; /* parts that must be larger grow by this */

_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "an op holds requests in pointers");
_Static_assert(sizeof(((rk_link_op *)0)->request) / sizeof(void *) == MAX_PARTS, "parts of an op");

struct rk_link {
    rk_comm      *comm; /* must outlive */
    MPI_Comm      channel[RK_CHANNELS];
    int           tag_limit; /* tags are below it */
    rk_link_op   *first;     /* ops in flight */
    rk_link_stats stats;
};

static rk_status fail_mpi(int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int  n = 0;
    MPI_Error_string(code, text, &n);
    return RK_FAIL(RK_E_PEER, "MPI failed in %s: %s", what, text);
}

static const char *channel_name(rk_channel ch) {
    static const char *const names[RK_CHANNELS] = {"plan", "rows", "results"};
    return names[ch];
}

rk_status rk_link_open(rk_comm *c, rk_link **out) {
    void     *p = NULL;
    rk_status st = rk_mem_alloc(1, (int64_t)sizeof(rk_link), "the link", &p);
    RK_TRY_OUT(st, rk_comm_agree(c, st, NULL));
    rk_link *l = p;
    l->comm = c;
    for (int i = 0; i < RK_CHANNELS; i++) l->channel[i] = MPI_COMM_NULL;

    MPI_Comm parent;
    memcpy(&parent, rk_comm_native(c), sizeof parent);
    int code = MPI_SUCCESS;
    for (int i = 0; i < RK_CHANNELS && code == MPI_SUCCESS; i++) {
        code = MPI_Comm_dup(parent, &l->channel[i]);
        if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(l->channel[i], MPI_ERRORS_RETURN);
    }
    int *upper = NULL, found = 0;
    if (code == MPI_SUCCESS) code = MPI_Comm_get_attr(parent, MPI_TAG_UB, &upper, &found);
    if (code != MPI_SUCCESS) {
        st = fail_mpi(code, "opening the link");
        goto out;
    }
    l->tag_limit = found && *upper > 0 ? *upper : 32767; /* the least that the standard grants */
    *out = l;
    return RK_OK;
out:
    rk_link_close(p);
    return st;
}

/* ---- the list of ops in flight ---- */

static void list_add(rk_link *l, rk_link_op *op) {
    op->prev = NULL;
    op->next = l->first;
    if (l->first) l->first->prev = op;
    l->first = op;
}

static void list_remove(rk_link *l, rk_link_op *op) {
    if (op->prev)
        op->prev->next = op->next;
    else
        l->first = op->next;
    if (op->next) op->next->prev = op->prev;
    op->prev = op->next = NULL;
}

static MPI_Request request_get(const rk_link_op *op, int i) {
    MPI_Request r;
    memcpy(&r, &op->request[i], sizeof r);
    return r;
}

static void request_set(rk_link_op *op, int i, MPI_Request r) {
    memcpy(&op->request[i], &r, sizeof r);
}

/* Give up one request without waiting for the peer. */
static void request_drop(MPI_Request r, bool is_send) {
    int done = 0;
    if (!is_send) MPI_Cancel(&r);
    for (int n = 0; n < CLOSE_TESTS && !done; n++)
        if (MPI_Test(&r, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
    if (!done) MPI_Request_free(&r);
}

void rk_link_close(rk_link *l) {
    if (!l) return;
    while (l->first) {
        rk_link_op *op = l->first;
        for (int i = 0; i < op->n_requests; i++) {
            MPI_Request r = request_get(op, i);
            if (r != MPI_REQUEST_NULL) request_drop(r, op->is_send);
        }
        list_remove(l, op);
        memset(op, 0, sizeof *op);
    }
    for (int i = 0; i < RK_CHANNELS; i++)
        if (l->channel[i] != MPI_COMM_NULL) MPI_Comm_free(&l->channel[i]);
    rk_mem_free(l);
}

/* ---- posting ---- */

/* Bytes of each part but the last: 256 MiB, more only where eight such parts are too few. Both
 * ends derive it from the message's size. */
static int64_t part_bytes(int64_t bytes) {
    if (bytes <= MAX_PARTS * PART_BYTES) return PART_BYTES;
    int64_t each = (bytes + MAX_PARTS - 1) / MAX_PARTS;
    return (each + PART_STEP - 1) / PART_STEP * PART_STEP;
}

static rk_status op_begin(const rk_link *l, rk_channel ch, int peer, int step, int64_t bytes,
                          bool is_send, rk_link_op *op) {
    if (op->n_requests > 0)
        return RK_FAIL(RK_E_BUG, "the op of step %d on channel %s was not waited for", op->step,
                       channel_name(op->channel));
    if (step < 0 || bytes < 0 || peer < 0 || peer >= rk_comm_size(l->comm))
        return RK_FAIL(RK_E_BUG, "message of %lld bytes, step %d, with stage %d of %d",
                       (long long)bytes, step, peer, rk_comm_size(l->comm));
    if (part_bytes(bytes) > INT_MAX)
        return RK_FAIL(RK_E_USAGE,
                       "a message of %lld bytes to one stage is too large: take a smaller --chunk",
                       (long long)bytes);
    memset(op, 0, sizeof *op);
    op->peer = peer;
    op->step = step;
    op->channel = ch;
    op->is_send = is_send;
    op->bytes = bytes;
    op->posted_s = rk_now_s();
    return RK_OK;
}

/* Post all parts. buf is written only by a receive. */
static rk_status op_post(rk_link *l, rk_link_op *op, char *buf) {
    int      tag = op->step % l->tag_limit;
    MPI_Comm comm = l->channel[op->channel];
    int64_t  each = part_bytes(op->bytes), at = 0;
    list_add(l, op);
    do {
        int         n = (int)(op->bytes - at < each ? op->bytes - at : each);
        MPI_Request r = MPI_REQUEST_NULL;
        int code = op->is_send ? MPI_Isend(buf + at, n, MPI_BYTE, op->peer, tag, comm, &r)
                               : MPI_Irecv(buf + at, n, MPI_BYTE, op->peer, tag, comm, &r);
        if (code != MPI_SUCCESS) {
            if (op->n_requests == 0) list_remove(l, op);
            return fail_mpi(code, op->is_send ? "a send" : "a receive");
        }
        request_set(op, op->n_requests++, r);
        at += n;
    } while (at < op->bytes);
    return RK_OK;
}

rk_status rk_link_recv(rk_link *l, rk_channel ch, int peer, int step, void *buf, int64_t bytes,
                       rk_link_op *op) {
    RK_TRY(op_begin(l, ch, peer, step, bytes, false, op));
    RK_TRY(op_post(l, op, buf));
    return RK_OK;
}

rk_status rk_link_send(rk_link *l, rk_channel ch, int peer, int step, const void *buf,
                       int64_t bytes, rk_link_op *op) {
    RK_TRY(op_begin(l, ch, peer, step, bytes, true, op));
    char *from; /* MPI_Isend takes const; op_post serves both directions */
    memcpy(&from, &buf, sizeof from);
    RK_TRY(op_post(l, op, from));
    l->stats.bytes_sent += bytes;
    l->stats.messages_sent++;
    return RK_OK;
}

/* ---- waiting ---- */

bool rk_link_test(rk_link *l, rk_link_op *op) {
    (void)l;
    bool all = true;
    for (int i = 0; i < op->n_requests; i++) {
        MPI_Request r = request_get(op, i);
        if (r == MPI_REQUEST_NULL) continue;
        MPI_Status status;
        int        done = 0, count = 0;
        int        code = MPI_Test(&r, &done, &status);
        if (code != MPI_SUCCESS) {
            if (!op->error) op->error = code;
            done = 1;
            r = MPI_REQUEST_NULL;
        } else if (done && !op->is_send) {
            MPI_Get_count(&status, MPI_BYTE, &count);
            op->arrived += count;
        }
        request_set(op, i, done ? MPI_REQUEST_NULL : r);
        all = all && done;
    }
    return all;
}

/* All requests are done: make the op idle and say what became of it. */
static rk_status op_finish(rk_link *l, rk_link_op *op, const char *what) {
    rk_link_op was = *op;
    list_remove(l, op);
    memset(op, 0, sizeof *op);
    int me = rk_comm_rank(l->comm), class = MPI_SUCCESS;
    if (was.error) MPI_Error_class(was.error, &class);
    if (class == MPI_ERR_TRUNCATE)
        return RK_FAIL(RK_E_BUG,
                       "stage %d expected %lld bytes as %s of step %d from stage %d, but more came",
                       me, (long long)was.bytes, what, was.step, was.peer);
    if (class != MPI_SUCCESS) return fail_mpi(was.error, what);
    if (was.is_send) return RK_OK;
    l->stats.bytes_received += was.arrived;
    if (was.arrived != was.bytes)
        return RK_FAIL(RK_E_BUG,
                       "stage %d expected %lld bytes as %s of step %d from stage %d, but %lld came",
                       me, (long long)was.bytes, what, was.step, was.peer, (long long)was.arrived);
    return RK_OK;
}

static rk_status fail_late(const rk_link *l, const rk_link_op *op, const char *what, double limit) {
    return RK_FAIL(RK_E_PEER,
                   "stage %d waits for %s of step %d %s stage %d since %.0f s: that rank is lost "
                   "or stuck (--timeout SECONDS gives slow work more time)",
                   rk_comm_rank(l->comm), what, op->step, op->is_send ? "to be taken by" : "from",
                   op->peer, limit);
}

static rk_status wait_until(rk_link *l, rk_link_op *op, const char *what, double limit) {
    if (op->n_requests == 0) return RK_OK;
    double start = rk_now_s(), waited = 0;
    double *total = op->is_send ? &l->stats.wait_send_s : &l->stats.wait_recv_s;
    bool    done = rk_link_test(l, op);
    for (int64_t n = 0; !done && waited <= limit; n++) {
        if (n >= SPIN_TESTS) {
            waited = rk_now_s() - start;
            if (waited > SLEEP_AFTER_S)
                nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
            else
                sched_yield();
        }
        done = rk_link_test(l, op);
    }
    *total += rk_now_s() - start;
    if (!done) return fail_late(l, op, what, limit);
    RK_TRY(op_finish(l, op, what));
    return RK_OK;
}

rk_status rk_link_wait(rk_link *l, rk_link_op *op, const char *what) {
    return wait_until(l, op, what, rk_comm_timeout(l->comm));
}

rk_status rk_link_wait_idle(rk_link *l, rk_link_op *op, const char *what) {
    return wait_until(l, op, what, IDLE_FACTOR * rk_comm_timeout(l->comm));
}

void rk_link_poll(rk_link *l) {
    int found = 0; /* a probe progresses everything that is in flight, whatever it looks for */
    MPI_Iprobe(MPI_ANY_SOURCE, l->tag_limit, l->channel[RK_CH_BACK], &found, MPI_STATUS_IGNORE);
}

const rk_link_stats *rk_link_stats_of(const rk_link *l) { return &l->stats; }
