/* stage.h - one stage's share of a slot: its layers over the slot's rows, its caches, and on the last
 * stage the head, the drawing of tokens and the KL. Knows no other rank. */
#pragma once
#include "core/kvcache.h"
#include "core/model.h"
#include "core/observe.h"
#include "core/select.h"
#include "pipeline/record.h"

enum { RK_STAGE_LOGIT_ROWS = 64 }; /* rows that pass the head at once */

typedef struct rk_stage rk_stage;

typedef struct rk_stage_spec {
    int     layer_begin, layer_end;
    bool    first, last;
    int     max_sequences;
    int64_t max_rows;             /* in one slot on any layer, forks included */
    int64_t max_prompt, max_positions;
    int64_t max_response;         /* T of a measurement; 0: none */
    bool    native;               /* of rk_model_spec */
    rk_observation observe;       /* what the policies of the run need */
    void (*poll)(void *arg);      /* between layers (may be NULL) */
    void (*on_loaded)(void *arg, int64_t done, int64_t total);
    void *arg;
} rk_stage_spec;

rk_observe_spec rk_stage_observe_spec(rk_attn_shape shape, const rk_observation *o, int64_t max_prompt);

rk_status rk_stage_open(rk_backend *be, rk_weights *w, const rk_stage_spec *spec, rk_stage **out);
void      rk_stage_close(rk_stage *s);

/* A measurement's results as they travel; what a stage does not know is 0. */
typedef struct rk_stage_measured {
    uint64_t    ref_hash; /* last stage */
    rk_measured reference;
    rk_measured variant[];
} rk_stage_measured;
static inline int64_t rk_stage_measured_bytes(int n_variants) {
    return (int64_t)(sizeof(rk_stage_measured) + (size_t)n_variants * sizeof(rk_measured));
}

/* Attention statistics as they travel: entropy [L], then variance [L], 0 for layers of other stages. */
static inline int64_t rk_stage_attention_bytes(int n_layers) { return 2 * n_layers * (int64_t)sizeof(double); }

/* Do the stage's part of a record. x holds the rows that enter (the first stage embeds the record's
 * tokens into it), and after the call the rows that leave.
 * Shapes: x dev f32 [max_rows][D]; back (last stage) host, head.back_bytes bytes: rk_stage_drawn
 *         of each draw, or logits rows; stat host, head.stat_bytes bytes: rk_stage_stored,
 *         rk_stage_measured or attention statistics; NULL where 0 */
rk_status rk_stage_run(rk_stage *s, const rk_record *r, float *x, void *back, void *stat);

rk_kv   *rk_stage_kv(rk_stage *s);
int64_t  rk_stage_weight_bytes(const rk_stage *s);
rk_model *rk_stage_model(rk_stage *s);

/* A compression's statistics as they travel. */
typedef struct rk_stage_stored {
    int64_t kv_bytes;
    int32_t stored[]; /* [L], 0 for layers of other stages */
} rk_stage_stored;

/* What a row's draw returns. */
typedef struct rk_stage_drawn {
    uint64_t hash;
    int32_t  token, reserved;
} rk_stage_drawn;
