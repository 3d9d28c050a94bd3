/* bench.h - what ripplekv bench measures, and how it is shown. Leader only. */
#pragma once
#include "cli/cache.h"
#include "kernels/roof.h"
#include "pipeline/engine.h"

/* Prompts of n tokens, from submission to the first new token. */
typedef struct rk_bench_prefill {
    int64_t  n;
    double   s, min_s, max_s; /* of the repetitions; s: median */
    int64_t  peak_bytes;      /* this rank's memory while it ran */
    uint64_t hash;            /* of the row that the new token was drawn from */
} rk_bench_prefill;

/* Sequences that are prefilled one after the other, compressed, and decoded together. */
typedef struct rk_bench_decode {
    int64_t  context, n_new; /* of each sequence */
    int      batch;
    bool     compressed;            /* by the cache options; else all is kept */
    double   prefill_s, compress_s; /* medians over the sequences */
    double   step_s;                /* median: one new token for every sequence */
    double   all_s;                 /* all steps */
    int64_t  kv_bytes;              /* stored of all prompts */
    double   kv_tokens;             /* stored of a prompt, mean over layers */
    int64_t  peak_bytes;
    uint64_t hash; /* of the sequence; of the sequences' hashes where batch > 1 */
} rk_bench_decode;

/* One calibration sample: its prefill, then the reference and a variant of each layer. */
typedef struct rk_bench_profile {
    int64_t  context, response;
    double   prefill_s, profile_s; /* medians; profile_s: prefill and measurement */
    int64_t  peak_bytes;
    uint64_t hash; /* of the reference rows */
} rk_bench_profile;

/* A prompt's cache under the allocator asked for, and under uniform at the same total, decoded in turn,
 * step by step: ratio is the median over the steps of the one's time by the other's. */
typedef struct rk_bench_pair {
    int64_t context, n_new;
    int64_t kept[2];              /* tokens over all layers: asked for, uniform */
    double  step_s[2];            /* medians */
    double  ratio, ratio_low, ratio_high; /* median and quartiles */
} rk_bench_pair;

typedef struct rk_bench {
    const rk_options    *o;
    const rk_cache_plan *cache; /* NULL: the full cache only */
    const rk_weights    *w;
    rk_engine           *e;
    int                  n_prefill, n_decode, n_pair, n_profile;
    rk_bench_prefill    *prefill;
    rk_bench_decode     *decode; /* context by context, batch by batch, the full cache first */
    rk_bench_pair       *pair;   /* of each context, where the allocator is not uniform */
    rk_bench_profile    *profile;
    int64_t              peak_bytes; /* most so far, this rank */
    /* filled by the command after the run */
    rk_roofs             roofs;  /* of all ranks together */
    rk_stage_stats      *stages; /* [P] */
} rk_bench;

/* Sequences that a measurement needs beside those of --batch. */
int rk_bench_sequences(const rk_options *o);

/* Measure everything that the options ask for, with the engine open. rk_bench_free in any case. */
rk_status rk_bench_run(rk_bench *b);
void      rk_bench_free(rk_bench *b);

/* The result as text, or as one JSON object, on stdout. */
void rk_bench_show(const rk_bench *b);
void rk_bench_show_json(const rk_bench *b);
