/* sampler.h - the next token from a row of logits.
 *
 * Random numbers are a pure function of (seed, sequence, step) by Philox4x32-10, so a result does
 * not depend on batch mates, ranks or order. */
#pragma once
#include "base/err.h"

typedef struct rk_sampler {
    double   temperature; /* 0: greedy (argmax, lowest id on ties) */
    double   top_p;       /* 1: off; the smallest set of best tokens with this mass stays */
    uint64_t seed;
} rk_sampler;

rk_status rk_sampler_check(const rk_sampler *s); /* RK_E_USAGE names the option */

/* Shapes: logits [n_vocab] f32; n_usable <= n_vocab ids may be drawn (rows without a token never)
 * Errors: RK_E_BUG no finite logit */
rk_status rk_sampler_draw(const rk_sampler *s, const float *logits, int n_usable, uint64_t sequence,
                          uint64_t step, int32_t *token);
