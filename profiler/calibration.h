/* calibration.h - texts to (prompt, response) token samples.
 *
 * A text file is cut into consecutive windows of context + response tokens; in JSONL each `text`
 * gives its first window; a `prompt`/`response` pair is used as it is (cut to context and response
 * from the prompt's end and the response's start). Items that are too short are skipped and
 * counted. The calibration_hash is over the token ids of all used samples. */
#pragma once
#include "base/err.h"
#include "core/tokenizer.h"

typedef struct rk_sample {
    int32_t *tokens;    /* [n_prompt + n_response] */
    int64_t  n_prompt, n_response;
    uint64_t hash;      /* of tokens and lengths */
    char     id[48];    /* `id` or `_id` of a JSONL line, else "line 3"; of a text "window 0" */
} rk_sample;

typedef struct rk_calibration {
    rk_sample *samples;
    int        n_samples, n_skipped;
    uint64_t   hash;
} rk_calibration;

/* Load at most max_samples (0: all). add_special: the tokenizer's BOS stands in front of each.
 * Errors: RK_E_INPUT unreadable, not UTF-8, bad JSONL (file and line), or no sample long enough
 *         (says how many tokens the longest item has); RK_E_USAGE context or response < 1 */
rk_status rk_calibration_load(const char *path, const rk_tokenizer *t, int64_t context,
                              int64_t response, int max_samples, rk_calibration *out);
void      rk_calibration_free(rk_calibration *c);
