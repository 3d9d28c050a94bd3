/* engine_internal.h - state shared by engine.c (open, driver) and engine_leader.c (submissions). */
#pragma once
#include "base/log.h"
#include "pipeline/engine.h"
#include "pipeline/link.h"
#include "pipeline/record.h"
#include "pipeline/schedule.h"
#include "pipeline/stage.h"

enum { RK_PLAN_BUFFERS = 4, RK_ROW_BUFFERS = 2 };

/* A result on its way to the leader. Lives at its address until taken. */
typedef struct rk_pending {
    int         step, n_parts;
    int64_t     part_bytes;
    char       *data; /* [n_parts][part_bytes] */
    rk_link_op *op;   /* [n_parts] idle where local or arrived */
    struct rk_pending *next;
} rk_pending;

struct rk_engine {
    rk_comm         *comm;
    rk_weights      *weights;
    rk_engine_config cfg;
    rk_link         *link;
    rk_backend      *be;
    rk_stage        *stage;
    int              P, me;
    int             *begin; /* [P + 1] */
    rk_schedule      schedule;
    int64_t          max_rows, plan_bytes;
    uint64_t         weights_hash;

    rk_slot *slots;
    int      n_slots, cap_slots;
    rk_op   *ops;     /* of the slot at hand */
    int      cap_ops;

    void      *plan[RK_PLAN_BUFFERS];
    rk_link_op plan_recv[RK_PLAN_BUFFERS], plan_send[RK_PLAN_BUFFERS];
    float     *x[RK_ROW_BUFFERS]; /* dev [max_rows][D] */
    rk_link_op rows_recv[RK_ROW_BUFFERS], rows_send[RK_ROW_BUFFERS];
    void      *back[RK_ROW_BUFFERS]; /* what this rank returns to the leader */
    int64_t    back_cap[RK_ROW_BUFFERS];
    rk_link_op back_send[RK_ROW_BUFFERS];

    rk_pending *pending; /* leader */
    int64_t    *n_prompt; /* leader: [max_sequences], of live sequences; 0: free */
    int64_t    *n_seen;
    rk_stage_stats *stats; /* leader [P] after stop */
    double     compute_s;
    bool       stopped;
    rk_progress load; /* the bar while weights load */
    bool        loading;
};

/* Append a slot (fork layers are copied) and run this rank's ops of it. On the leader r is encoded
 * for the others; pend receives the result (NULL where there is none). */
rk_status rk_engine_run_slot(rk_engine *e, const rk_slot *slot, const rk_record *r, rk_pending *pend);
