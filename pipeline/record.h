/* record.h - a plan record: one slot of work as it travels down the ring ahead of its rows.
 *
 * One message of fixed size for a whole run, so that its receive can be posted ahead: a head, then
 * the arrays in the order of the struct, 8-byte aligned. All ranks run one binary on one kind of
 * machine: native byte order. */
#pragma once
#include "core/sampler.h"
#include "core/select.h"
#include "kernels/backend.h"
#include "pipeline/schedule.h"
#include "pipeline/variant.h"

typedef struct rk_record_set {
    int32_t seq, row0, n_rows;
    int32_t target;          /* of a compression: the sequence that gets its result; else unused */
    int64_t pos0;            /* position of the first row */
    int64_t n_prompt, n_new; /* of the sequence, valid where pos0 is 0; n_new also of a target */
} rk_record_set;

typedef struct rk_record_fork { /* rk_variant */
    int32_t kind, layer, sample, draw;
    float   epsilon;
    int32_t budget, seq, reserved;
} rk_record_fork;

typedef struct rk_record_draw {
    int32_t    row, seq, n_usable, reserved; /* row of the slot whose logits are drawn from */
    rk_sampler sampler;
    uint64_t   stream, step;
} rk_record_draw;

typedef struct rk_record_head {
    uint32_t magic;
    int32_t  step;           /* slot number */
    int32_t  kind;           /* rk_slot_kind */
    int32_t  rows_kind;      /* rk_rows_kind */
    int32_t  n_rows, n_sets, n_forks, n_draws, n_want, n_budget;
    int64_t  back_bytes, stat_bytes;
    uint64_t seed;           /* of the noise */
    rk_select_params select; /* of compressions, and of variants that compress */
} rk_record_head;

/* A record in the form that code uses; arrays point into the message or to the maker's memory. */
typedef struct rk_record {
    rk_record_head        head;
    const rk_record_set  *sets;   /* [n_sets] */
    const rk_record_draw *draws;  /* [n_draws] */
    const rk_record_fork *forks;  /* [n_forks] ascending by layer */
    const int32_t        *tokens; /* [n_rows] */
    const int32_t        *want;   /* [n_want] rows whose logits go back to rank 0 */
    const int32_t        *budget; /* [n_budget] L, or 0 entries: all kept */
} rk_record;

/* Most of each array that a run can need. */
typedef struct rk_record_caps {
    int rows, sets, forks, layers;
} rk_record_caps;

int64_t   rk_record_bytes(const rk_record_caps *caps);
/* Errors: RK_E_BUG does not fit */
rk_status rk_record_write(const rk_record *r, void *message, int64_t bytes);
/* Owner: *out borrows from message. Errors: RK_E_BUG not a record of slot step */
rk_status rk_record_read(const void *message, int64_t bytes, int step, rk_record *out);
