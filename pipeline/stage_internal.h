/* stage_internal.h - the stage's state, shared by stage.c and stage_measure.c. */
#pragma once
#include "base/hash.h"
#include "pipeline/stage.h"

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

    float   *qwin;        /* dev [layers][max_sequences][window][H d] */
    int64_t  qwin_stride;
    float   *mass;        /* dev [H][max_prompt] */
    float   *mass_host, *score;
    int32_t *kept;        /* host [G][max_prompt] */

    int64_t logit_rows;   /* last stage: rows of logits, head_rows */
    float  *logits, *head_rows, *logits_host;

    /* measurement; grown on first use */
    float  *ref_logits;   /* dev [T][V] */
    double *kl;           /* dev [logit_rows] */
    void   *tail, *noisy; /* dev: the rows' own pages of one layer; perturbed V pages */
    int64_t ref_bytes, kl_bytes, tail_bytes, noisy_bytes;
};

rk_status rk_stage_dev(rk_stage *s, int64_t bytes, const char *what, void *slot);
/* Logits of listed rows of x. */
rk_status rk_stage_logits(rk_stage *s, const float *x, const int32_t *rows, int n, rk_rows_kind kind,
                          float *logits);
rk_status rk_stage_measure(rk_stage *s, const rk_record *r, float *x, void *back);
