/* eval.h - the frame of ripplekv eval: items spread over replicas, a record of each, a report.
 *
 * A task says what its items are, how one is run by the leader of a replica, and what all records
 * together mean. A record is a JSON object; it is kept in memory and, with --output, in a journal
 * beside it (FILE.part.<replica>, one line a record) until the run is complete, so that a job
 * killed at any moment goes on with --resume. Records depend on nothing but the item and the
 * options. */
#pragma once
#include "base/hash.h"
#include "cli/sweep.h"
#include "core/tokenizer.h"

typedef struct rk_eval rk_eval;

typedef struct rk_eval_task {
    const char *name;
    /* Every rank alike: make the items, set the sizes below, add to job_hash what records depend
     * on. */
    rk_status (*load)(rk_eval *v);
    /* Leader of a replica, sequences free before and after. record is an empty object to fill. */
    rk_status (*run)(rk_eval *v, int item, rk_json *record);
    /* World leader: a table on stdout, or with --json results into out. records [n_items] */
    rk_status (*report)(rk_eval *v, rk_json *const *records, rk_json *out);
    void (*unload)(rk_eval *v);
} rk_eval_task;

struct rk_eval {
    rk_cli             *c;
    const rk_eval_task *task;
    rk_weights         *w;
    rk_tokenizer       *tokenizer;
    rk_comm            *replica;
    rk_engine          *e;
    rk_sweep            sweep;
    int                 n_stages, index; /* P; which replica this rank is of */

    /* set by load */
    int      n_items;
    int64_t  max_prompt, max_new, max_response; /* of the engine; max_response 0: no measurement */
    int      max_forks;                         /* sequences alive beside the prompt's own */
    int64_t *item_tokens;                       /* [n_items] prompt lengths; from rk_mem */
    rk_hash_state job_hash;
    void         *data; /* the task's */

    int32_t       *budgets; /* [n_items][n configurations][L], by world rank 0, on all ranks */
    rk_observation observe;
};

extern const rk_eval_task rk_eval_fidelity, rk_eval_perplexity, rk_eval_damage, rk_eval_longbench,
    rk_eval_ruler, rk_eval_needle;

/* Budgets [L] of an item under a configuration. */
const int32_t *rk_eval_budget(const rk_eval *v, int item, int config);
int            rk_eval_layers(const rk_eval *v);

/* Mean, and its standard error over n values (NaN for n < 2). */
double rk_eval_mean(const double *x, int n);
double rk_eval_stderr(const double *x, int n);
/* Median; x is sorted in place. */
double rk_eval_median(double *x, int n);
/* One-sided sign test: probability of at least `won` heads in n fair coins. */
double rk_eval_sign_test(int won, int n);
