/* batch.h - many prompts through an engine: prefill back to back, then decode in micro-batches.
 *
 * Leader only. Up to max_sequences prompts are alive at once; they are prefilled one after the
 * other (the pipeline stays full between prompts), then decoded together in
 * min(stages, alive) micro-batches round the ring; then the next prompts. Results do not depend on
 * the batching. */
#pragma once
#include "pipeline/engine.h"

typedef struct rk_request {
    const int32_t *tokens; /* prompt; borrowed */
    int64_t        n_tokens;
    int64_t        max_new;
    const int32_t *budget; /* [L] for this prompt's length, or NULL: all kept; borrowed */
    rk_sampler     sampler;
    const int32_t *stop;   /* ids that end the generation; borrowed */
    int            n_stop;
} rk_request;

typedef struct rk_completion {
    int32_t *tokens;       /* [n_new], the stop token included; from rk_mem */
    int64_t  n_new;
    bool     stopped;      /* finish_reason stop, else length */
    uint64_t logits_hash;
    int32_t *kv_tokens;    /* [L] stored after compression; from rk_mem */
    int64_t  kv_bytes;     /* of these */
    double   ttft_s;       /* from the start of its prefill to its first token */
    double   decode_s;     /* from its first token to its last */
    double   prefill_s;    /* from the start of its prefill to its compression's end */
} rk_completion;

typedef struct rk_batch_options {
    int  n_usable;            /* token ids that may be drawn */
    bool first_compressed;    /* --first-token compressed: the last prompt token is fed after
                                 compression of those before it, and the first new token is its;
                                 budgets then are for n_tokens - 1 (one-token prompts: as usual) */
    /* Called on each new token (may be NULL). index of the request. RK_E_NO ends that request there
       (finish_reason stop); any other failure ends the run. */
    rk_status (*on_token)(void *arg, int index, int32_t token);
    /* Called once per request, in input order, as soon as all before it are done (may be NULL). */
    rk_status (*on_done)(void *arg, int index, const rk_completion *c);
    void *arg;
} rk_batch_options;

/* Shapes: req [n], out [n] (zeroed by the call; free with rk_completion_free) */
rk_status rk_batch_run(rk_engine *e, const rk_batch_options *o, const rk_request *req, int n,
                       rk_completion *out);
void      rk_completion_free(rk_completion *c);

/* One way to cut a prompt's cache. */
typedef struct rk_cut {
    rk_select_params select;
    const int32_t   *budget; /* [L], or NULL: all kept; borrowed */
} rk_cut;

/* One prompt under n cuts of its cache: prefilled once, forked for each, decoded together, as many at
 * once as the engine has sequences besides the prompt's own (at least 2 in all). Each answer is what
 * rk_batch_run would give under that cut alone; the random numbers of all are those of stream.
 * req->budget is not read. ttft_s and prefill_s count the one prefill and the own fork.
 * Shapes: cut [n], out [n] (zeroed by the call; free with rk_completion_free) */
rk_status rk_batch_sweep(rk_engine *e, const rk_batch_options *o, const rk_request *req,
                         uint64_t stream, const rk_cut *cut, int n, rk_completion *out);
