/* schedule.h - who does what in which order, as data. Pure: no ranks, no clock, no memory of its
 * own beyond the lists.
 *
 * Rank 0 turns work into numbered slots (steps). From a slot's shape follow, for every stage, its
 * rows in and out and the ops that it performs: the engine executes these lists, plan prices them,
 * and the checker proves them free of deadlock. A stage owns groups of layers; with v groups each,
 * a slot passes every stage v times, group g on stage g % P (v = 1: once, contiguous layers). */
#pragma once
#include "base/err.h"
#include "pipeline/link.h"

typedef enum rk_slot_kind {
    RK_SLOT_PREFILL,  /* a chunk of a prompt */
    RK_SLOT_COMPRESS, /* evict to the budgets; no rows */
    RK_SLOT_DECODE,   /* one new row per sequence */
    RK_SLOT_MEASURE,  /* reference rows and forked variants over a prompt's cache */
    RK_SLOT_ATTEND,   /* statistics of a prompt's attention; no rows */
    RK_SLOT_FREE,     /* forget a sequence; no rows */
    RK_SLOT_STOP,     /* leave the loop */
} rk_slot_kind;

/* Shape of a slot: all that the schedule needs to know. */
typedef struct rk_slot {
    rk_slot_kind   kind;
    int32_t        n_rows;     /* rows that enter layer 0 (0: none) */
    int32_t        n_forks;    /* variants, each of n_rows rows */
    const int32_t *fork_layer; /* [n_forks] ascending: the variant exists from this layer on */
    int64_t        back_bytes; /* what the last stage returns to rank 0 (0: nothing) */
    int64_t        stat_bytes; /* what every stage but rank 0's returns to rank 0 (0: nothing) */
    int32_t        after;      /* rank 0 must hold the result of this slot first; -1: none */
} rk_slot;

typedef struct rk_schedule {
    int        n_stages, n_groups, n_layers; /* P; v per stage; L */
    int        d_model;                      /* a row is 4 * d_model bytes */
    const int *begin; /* [P * v + 1] first layer of each group in layer order; borrowed */
    int        plan_bytes; /* size of a plan message, as a constant for the checker */
} rk_schedule;

typedef enum rk_op_kind {
    RK_OP_POST_RECV,
    RK_OP_WAIT_RECV,
    RK_OP_RUN, /* layers of a group */
    RK_OP_POST_SEND,
    RK_OP_WAIT_SEND,
} rk_op_kind;

typedef struct rk_op {
    rk_op_kind kind;
    rk_channel channel;
    int32_t    peer, slot, group; /* group: of the RUN; for rows, the group they enter; for
                                     results an rk_back */
    int64_t    bytes;
} rk_op;

/* The two messages of a slot that return to rank 0, told apart in rk_op.group. */
typedef enum rk_back { RK_BACK_RESULT, RK_BACK_STATS } rk_back;

/* The number of an op's message on its channel (rk_link's step): no two messages of a pair of
 * stages share it. Plans have the slot's number. */
int rk_schedule_step(const rk_schedule *s, const rk_op *op);

/* Check fields. Errors: RK_E_USAGE naming groups, stages or layers */
rk_status rk_schedule_check(const rk_schedule *s);

/* Rows that enter a layer: n_rows * (1 + forks with fork_layer < layer); the variants that begin at
 * the layer itself are copied from the reference there. layer = L gives the rows of the head. */
int64_t rk_schedule_rows(const rk_slot *slot, int layer);

/* Ops of one slot on one stage, in order. Returns how many there are and writes the first cap of
 * them to out [cap]. There are at most rk_schedule_max_ops, except at STOP on rank 0, which waits
 * for every result that no slot named. Looks at slots 0 .. which only; on stages other than rank
 * 0's at which - 2 .. which only.
 * The program of a stage is the concatenation over slots. Receives are posted ahead: the plan of
 * slot s + 1 when that of s has arrived, rows of s before anything of s is sent; sends of rows are
 * double-buffered (slot s waits for the send of s - 2 first). Rank 0 posts the receive of a result
 * when it issues the slot and waits for it only before the slot that names it in `after`, and for
 * the rest at STOP. slots [n_slots] is the whole list; which is the slot asked for. */
int rk_schedule_ops(const rk_schedule *s, int stage, const rk_slot *slots, int n_slots, int which,
                    rk_op *out, int cap);
int rk_schedule_max_ops(const rk_schedule *s);

typedef struct rk_schedule_report {
    bool   deadlock;
    int    stuck_stage, stuck_slot; /* where, when deadlock */
    double makespan_s;
    double busy_s;                  /* summed over stages */
    int    max_in_flight;           /* messages posted and not received, at any time */
} rk_schedule_report;

/* Simulate all stages with zero buffering: a send completes only when its receive is posted; a
 * message of n bytes takes latency_s + n / bytes_per_s; RUN of rows r in group g takes
 * layer_s * layers * rows + overhead_s. Also checks that every send has exactly one receive of the
 * same size and slot. Errors: RK_E_BUG mismatch; a deadlock is reported, not an error */
typedef struct rk_schedule_cost {
    double latency_s, bytes_per_s, layer_row_s, overhead_s;
} rk_schedule_cost;
rk_status rk_schedule_simulate(const rk_schedule *s, const rk_slot *slots, int n_slots,
                               const rk_schedule_cost *cost, rk_schedule_report *out);

/* The same over given programs, whatever made them: ops [P] lists of n_ops [P]. */
rk_status rk_schedule_simulate_ops(const rk_schedule *s, const rk_slot *slots, int n_slots,
                                   const rk_op *const *ops, const int *n_ops,
                                   const rk_schedule_cost *cost, rk_schedule_report *out);
