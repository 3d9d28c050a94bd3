/* answers.h - from new tokens to text and lines of output, for generate. */
#pragma once
#include <stdio.h>

#include "base/json.h"
#include "cli/prompts.h"
#include "pipeline/batch.h"

typedef struct rk_answers rk_answers;

typedef enum rk_answers_mode {
    RK_ANSWERS_STREAM,  /* the one answer's text to stdout as it is made */
    RK_ANSWERS_LINES,   /* a JSON object a line, to out */
    RK_ANSWERS_COLLECT, /* for rk_answers_take */
} rk_answers_mode;

/* stop_ids [n_stop] are the tokens of the model; chat prompts also end at the template's.
 * Owner: o, p, out must outlive; out is not closed; out_name for messages */
rk_status rk_answers_open(const rk_options *o, const rk_prompts *p, const rk_config *m,
                          rk_answers_mode mode, FILE *out, const char *out_name, rk_answers **a);
void      rk_answers_close(rk_answers *a);

/* Stop ids of prompt i; valid while a lives. */
const int32_t *rk_answers_stop(const rk_answers *a, int i, int *n);

/* The callbacks of rk_batch_options; arg is the rk_answers. */
rk_status rk_answers_on_token(void *arg, int index, int32_t token);
rk_status rk_answers_on_done(void *arg, int index, const rk_completion *c);

/* What was collected: the object of a single prompt, of --input an array. The caller takes it. */
rk_json *rk_answers_take(rk_answers *a);
