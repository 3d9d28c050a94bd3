/* link.h - messages between stages: posted receives, non-blocking sends, deadlines.
 *
 * Each channel is a communicator of its own, so traffic of different kinds never matches wrongly.
 * A message is numbered (step); receiver and sender must agree on it, and on its exact size.
 * Messages over 256 MiB travel in parts. Buffers stay untouched until the op is waited for. */
#pragma once
#include "pipeline/comm.h"

typedef struct rk_link rk_link;

typedef enum rk_channel {
    RK_CH_PLAN,  /* plan records, to the next stage */
    RK_CH_ROWS,  /* residual rows, to the next stage */
    RK_CH_BACK,  /* tokens, logits, KL, statistics, to rank 0 */
    RK_CHANNELS,
} rk_channel;

/* An operation in flight; a plain value, idle when zero. Must stay at its address until waited. */
typedef struct rk_link_op {
    void   *request[8];
    int     n_requests;
    int     peer, step;
    rk_channel channel;
    bool    is_send;
    int64_t bytes;
    double  posted_s;
    int64_t arrived; /* bytes of the parts that are here */
    int     error;   /* what MPI said of a part that failed; wait reports it */
    struct rk_link_op *prev, *next; /* the link's list of ops in flight */
} rk_link_op;

typedef struct rk_link_stats {
    double  wait_recv_s, wait_send_s;
    int64_t bytes_sent, bytes_received, messages_sent;
} rk_link_stats;

/* Ranks: collective. */
rk_status rk_link_open(rk_comm *c, rk_link **out);
/* Local: cancels what is in flight. */
void rk_link_close(rk_link *l);

/* Post. peer may be the own rank. Errors: RK_E_PEER from MPI */
rk_status rk_link_recv(rk_link *l, rk_channel ch, int peer, int step, void *buf, int64_t bytes,
                       rk_link_op *op);
rk_status rk_link_send(rk_link *l, rk_channel ch, int peer, int step, const void *buf,
                       int64_t bytes, rk_link_op *op);
/* Wait until op is done (idle ops are). Polls, yields after a while, gives up at the deadline:
 * RK_E_PEER "stage 1 waits for rows of step 17 from stage 0 since 120 s". what: "rows", "plan".
 * A message of another size than posted is RK_E_BUG. */
rk_status rk_link_wait(rk_link *l, rk_link_op *op, const char *what);
/* Wait without a deadline's failure while idle_ok: for a stage that waits for the next plan record
 * between jobs (rank 0 may be reading input); still bounded by 30 x timeout. */
rk_status rk_link_wait_idle(rk_link *l, rk_link_op *op, const char *what);
/* True once op is done; progresses MPI. wait must still be called (returns at once, reports). */
bool rk_link_test(rk_link *l, rk_link_op *op);
/* Let MPI progress (Open MPI moves data only inside calls); cheap, call it between layers. */
void rk_link_poll(rk_link *l);

const rk_link_stats *rk_link_stats_of(const rk_link *l);
