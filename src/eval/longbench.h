/* longbench.h - LongBench v1 as a user has it: prompts of a checkout, samples of its data folder.
 *
 * Facts: THUDM/LongBench at 2e00731, LongBench/pred.py and eval.py. */
#pragma once
#include "core/tokenizer.h"
#include "eval/metrics.h"

typedef struct rk_lb_dataset {
    const char *name, *category;
    rk_metric   metric;
    int         max_new;    /* tokens, where the checkout says nothing else */
    bool        chat;       /* the prompt is a user's message */
    bool        first_line; /* of the prediction counts, behind leading line ends */
    bool        papers;     /* one of the 16 that papers average */
} rk_lb_dataset;

extern const rk_lb_dataset rk_lb_datasets[];
extern const int           rk_lb_n_datasets;
const rk_lb_dataset       *rk_lb_find(const char *name); /* NULL: unknown */

/* Prompts and lengths of a checkout. */
typedef struct rk_longbench rk_longbench;

/* From CHECKOUT/LongBench/config or, in older checkouts, CHECKOUT/config.
 * Errors: RK_E_INPUT no such files, or those of LongBench v2 */
rk_status rk_longbench_open(const char *checkout, rk_longbench **out);
void      rk_longbench_close(rk_longbench *b);
int       rk_longbench_max_new(const rk_longbench *b, const rk_lb_dataset *d);

/* One sample. Texts from rk_mem. */
typedef struct rk_lb_sample {
    char   *id;
    rk_str  context, input;
    rk_str *answers, *classes; /* classes: NULL where there are none */
    int     n_answers, n_classes;
    int64_t length; /* words, or characters, as the file says */
} rk_lb_sample;

typedef struct rk_lb_samples {
    rk_lb_sample    *at;
    int              n;
    struct rk_json **line; /* what the samples' strings lie in */
} rk_lb_samples;

/* FOLDER/NAME.jsonl, or NAME_e.jsonl. most 0: all.
 * Errors: RK_E_INPUT with file, line and field */
rk_status rk_longbench_load(const char *folder, const rk_lb_dataset *d, bool e, int most,
                            rk_lb_samples *out);
void      rk_longbench_free(rk_lb_samples *s);

/* A sample's prompt: the template filled, cut in the middle to max_tokens (0: not) as pred.py does
 * - both halves are decoded without special tokens and joined - before any chat template. cleanup:
 * both halves pass transformers 4's clean_up_tokenization. name is of the template (NULL: the
 * dataset's). Owner: *text from rk_mem. Errors: RK_E_INPUT the checkout has no such template */
rk_status rk_longbench_prompt(const rk_longbench *b, const char *name, const rk_lb_sample *s,
                              const rk_tokenizer *t, int64_t max_tokens, bool cleanup, char **text,
                              size_t *n, bool *truncated);

/* What of a prediction counts. */
rk_str rk_longbench_counted(const rk_lb_dataset *d, rk_str prediction);

/* Best score over a sample's answers. */
rk_status rk_longbench_score(const rk_lb_dataset *d, rk_similarity s, rk_str prediction,
                             const rk_lb_sample *x, double *out);

/* Averages of dataset scores (NaN: not run): the unweighted mean of the 16, as in papers, and the
 * official mean of category means; NaN where nothing went in. Shapes: score [rk_lb_n_datasets] */
void rk_longbench_average(const double *score, double *of_papers, double *of_categories);
