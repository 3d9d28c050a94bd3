/* stage_internal.h - the stage's state, shared by stage.c, stage_select.c and stage_measure.c. */
#pragma once
#include "base/hash.h"
#include "core/observe.h"
#include "pipeline/stage.h"

enum { RK_STAGE_HEADS = 256 }; /* most stored heads of a layer */

typedef struct rk_stage_seq {
    int64_t       n_prompt, n_new;
    int32_t      *budget; /* [L], n_prompt where all is kept */
    rk_hash_state hash;   /* of the logits rows drawn from */
} rk_stage_seq;

struct rk_stage {
    rk_backend   *be;
    rk_config     cfg;
    rk_stage_spec spec;
    rk_model     *model;
    rk_kv        *kv;
    rk_stage_seq *seq; /* [max_sequences] */

    int32_t     *pos, *index; /* host [max_rows] */
    rk_seq_rows *sets;        /* host [max_rows] */
    rk_span     *spans;       /* host [2 max_rows][G] */

    /* selection */
    rk_observe   *observe;    /* NULL: no policy of the run reads scores */
    rk_observer **observer;   /* [layers][max_sequences]; NULL: not needed yet */
    double       *rope_speed; /* [d/2] */
    float        *q_rows;     /* dev: queries of a chunk; grown on first use */
    int64_t       q_bytes;
    float        *score;      /* [G][n], of scored_layer and scored_seq (-1: none) under scored */
    int           scored_layer, scored_seq;
    rk_select_params scored;
    int32_t      *kept;       /* [G][n] */

    int64_t logit_rows;   /* last stage: rows of logits, head_rows */
    float  *logits, *head_rows, *logits_host;

    /* measurement; grown on first use */
    float        *ref_logits;      /* dev [T][V] */
    rk_row_score *score_rows;      /* dev [logit_rows] */
    void         *tail, *own;      /* dev: the rows' own pages of one layer; variants' prompt pages */
    float        *before;          /* dev [T][D] the reference before attention */
    float        *local_host;      /* [3][T][D] */
    int64_t ref_bytes, score_bytes, tail_bytes, own_bytes, before_bytes, local_bytes;
};

/* Make a device buffer at least this large; what it held is lost when it grows. */
rk_status rk_stage_grow(rk_stage *s, int64_t bytes, const char *what, void *slot, int64_t *have);
rk_status rk_stage_dev(rk_stage *s, int64_t bytes, const char *what, void *slot);
/* Logits of listed rows of x. */
rk_status rk_stage_logits(rk_stage *s, const float *x, const int32_t *rows, int n, rk_rows_kind kind,
                          float *logits);
rk_status rk_stage_measure(rk_stage *s, const rk_record *r, float *x, rk_stage_measured *out);

/* stage_select.c: what selection observes while a prompt passes, and what it keeps. */
rk_status rk_stage_open_selection(rk_stage *s);
void      rk_stage_close_selection(rk_stage *s);
/* Between a layer's qkv and finish of a prefill slot: what later selections need of the rows of a set.
 * Shapes: spans [G] of the set's chain, these rows' keys included */
rk_status rk_stage_observe(rk_stage *s, int layer, const rk_record_set *set, const rk_span *spans);
/* Attention statistics of a prefilled sequence's layers. Shapes: out [2][L] */
rk_status rk_stage_attention(rk_stage *s, int seq, double *out);
/* Slots of a prefilled sequence's layer that a policy keeps under a budget (tokens per stored head;
 * n or more: all). The sequence is not changed.
 * Shapes: slot [G], ascending slot lists in the stage's scratch, valid until the next call; count [G]
 * Errors: RK_E_BUG the policy needs what the stage was not told to observe */
rk_status rk_stage_select(rk_stage *s, const rk_select_params *p, int layer, int seq, int32_t budget,
                          const int32_t **slot, int32_t *count);
