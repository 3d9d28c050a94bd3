/* synth.h - long-context tasks that are built from a seed: RULER's retrieval, tracing and counting
 * tasks and a needle in a haystack, with their scores.
 *
 * Tasks, parameters, answer counts and lengths follow RULER (hsiehjackson/RULER; Hsieh et al.
 * 2024); wording, word lists and the prose that hides the needles are this program's own. A sample
 * depends on (task, seed, index, length, tokenizer, haystack) alone. */
#pragma once
#include "core/tokenizer.h"
#include "eval/metrics.h"

typedef enum rk_synth {
    RK_SYNTH_NIAH_SINGLE_1,   /* one key, a number, among repeated sentences */
    RK_SYNTH_NIAH_SINGLE_2,   /* one key, a number, in prose */
    RK_SYNTH_NIAH_SINGLE_3,   /* one key, a UUID, in prose */
    RK_SYNTH_NIAH_MULTIKEY_1, /* four keys, one asked for, in prose */
    RK_SYNTH_NIAH_MULTIKEY_2, /* the haystack is made of other needles */
    RK_SYNTH_NIAH_MULTIKEY_3, /* the same with UUIDs for keys and values */
    RK_SYNTH_NIAH_MULTIVALUE, /* one key with four values, all asked for */
    RK_SYNTH_NIAH_MULTIQUERY, /* four keys, all asked for */
    RK_SYNTH_VT,              /* variable tracking: one chain of four hops, with an example */
    RK_SYNTH_CWE,    /* ten common words, 30 times each among others 3 times, with an example */
    RK_SYNTH_FWE,    /* coded words by a zeta law of 2: the three most frequent */
    RK_SYNTH_NEEDLE, /* one sentence at a chosen depth of prose */
    RK_SYNTHS,
} rk_synth;

const char *rk_synth_name(rk_synth t);
rk_status   rk_synth_parse(const char *name, rk_synth *out); /* RK_E_USAGE */
int         rk_synth_max_new(rk_synth t);                    /* tokens of an answer */

enum { RK_SYNTH_REFERENCES = 10 };

typedef struct rk_synth_sample {
    char   *text; /* context, question, beginning of the answer; from rk_mem */
    size_t  n;
    size_t  question; /* byte at which the question begins */
    int64_t tokens;   /* of text, special ones included */
    char   *reference[RK_SYNTH_REFERENCES];
    int     n_references;
} rk_synth_sample;

/* A sample whose tokens and answer fit in target tokens and come as near as whole sentences allow.
 * depth in [0, 1]: where a single needle stands, of the haystack; < 0: drawn. haystack: a user's
 * prose, or NULL. Owner: rk_synth_free Errors: RK_E_USAGE target below the least that the task
 * needs, which it names */
rk_status rk_synth_make(rk_synth t, const rk_tokenizer *tok, int64_t target, uint64_t seed,
                        int index, double depth, const char *haystack, rk_synth_sample *out);
void      rk_synth_free(rk_synth_sample *s);

/* Share of the references that are in the prediction, letter case aside (RULER's string_match_all;
 * control characters become line ends). */
rk_status rk_synth_score(const rk_synth_sample *s, rk_str prediction, double *out);
/* Share of the distinct words of all references that are words of the prediction, letter case
 * aside. */
rk_status rk_synth_overlap(const rk_synth_sample *s, rk_str prediction, double *out);
