/* engine.h - a model over the stages of one replica; hides that there are ranks.
 *
 * All ranks of a communicator open the engine together. Then rank 0 (the leader) submits slots of
 * work through the functions below while every other rank sits in rk_engine_serve; rk_engine_stop
 * ends both. Slots run in the order of submission; a submission returns when this stage has done
 * its own part, so that stages work at the same time; a result is fetched by its ticket later.
 * Sequences are numbered 0 .. max_sequences - 1 by the caller. */
#pragma once
#include "core/budget.h"
#include "core/config.h"
#include "core/kvcache.h"
#include "core/model.h"
#include "core/plan.h"
#include "core/sampler.h"
#include "core/select.h"
#include "core/weights.h"
#include "kernels/backend.h"
#include "pipeline/comm.h"
#include "pipeline/variant.h"

typedef struct rk_engine rk_engine;

typedef struct rk_engine_config {
    const char      *backend;       /* "cpu", "ref" */
    const char      *isa;           /* NULL: best */
    const char      *numerics;      /* "tile", "pair"; NULL: the best that suits every rank */
    int              n_threads;     /* 0: affinity mask */
    const char      *partition;     /* "auto", "uniform", "10,10,10" */
    bool             for_profile;   /* the job is measurement: weighs later layers more */
    int64_t          chunk;         /* prefill rows in one slot, > 0 */
    int              max_sequences; /* caches alive at once */
    int64_t          max_prompt, max_new; /* longest prompt and new tokens of any sequence */
    int64_t          row_cap;       /* rows of a measurement wave, >= 2 T; 0: no measurement */
    int64_t          max_response;  /* T of measurement */
    rk_select_params select;        /* the policy of rk_engine_compress and of damages */
    rk_observation   observe;       /* what the policies of forks need beside it */
    const int32_t   *budget;        /* [L] for the memory estimate at max_prompt, or NULL: all kept */
    bool             hash_weights;  /* compute weights_hash while loading */
    bool             quiet;         /* no memory table */
    bool             native;        /* quantised matrices of the file stay quantised */
} rk_engine_config;

/* Without an engine, ranks or weights: rows of the widest slot; layers of each stage
 * (begin [n_stages + 1] out); what a stage will hold.
 * Errors: RK_E_USAGE more stages than layers, or a --partition that does not fit */
int64_t   rk_engine_rows_of(const rk_engine_config *cfg);
rk_status rk_engine_partition_of(const rk_config *c, const rk_engine_config *cfg, int n_stages,
                                 int *begin);
void      rk_engine_memory_of(const rk_weights *w, const rk_engine_config *cfg, int n_stages,
                              const int *begin, int stage, rk_plan_memory *out);

/* Ranks: collective. The order of sums that suits the CPUs of all ranks of a communicator (the
 * world, where replicas are to agree). Owner: *numerics static */
rk_status rk_engine_agree_numerics(rk_comm *c, const char **numerics);

/* Ranks: collective. Prints the memory table (rank 0), refuses with RK_E_MEM and the binding stage
 * before any weight is read, then loads each rank's layers. w is borrowed and must outlive.
 * Errors agreed over the ranks. */
rk_status rk_engine_open(rk_comm *c, rk_weights *w, const rk_engine_config *cfg, rk_engine **out);
void      rk_engine_close(rk_engine *e); /* local */

/* Ranks other than the leader: work until the leader stops. */
rk_status rk_engine_serve(rk_engine *e);
/* Leader: let the other ranks leave serve, and collect their statistics. */
rk_status rk_engine_stop(rk_engine *e);

const rk_config *rk_engine_model(const rk_engine *e);
rk_backend      *rk_engine_backend(rk_engine *e);
bool             rk_engine_native(const rk_engine *e); /* of the configuration */
int              rk_engine_stages(const rk_engine *e);
int              rk_engine_max_sequences(const rk_engine *e);
const int       *rk_engine_partition(const rk_engine *e); /* [P + 1] */
uint64_t         rk_engine_weights_hash(const rk_engine *e); /* 0 unless asked for; all ranks */
/* Names a slot with a result to be fetched. */
typedef int rk_ticket;

/* One sequence's row of a decode slot, and how its token is drawn. */
typedef struct rk_draw {
    int        seq;
    int32_t    token;       /* the row's input token (decode) */
    rk_sampler sampler;
    int32_t    n_usable;    /* token ids that may be drawn */
    uint64_t   stream, step; /* random numbers: sequence id of the job, index of the new token */
} rk_draw;

/* What came of a row: the drawn token, and XXH64 over all logits rows drawn from so far. */
typedef struct rk_drawn {
    int32_t  token;
    uint64_t logits_hash;
} rk_drawn;

/* Leader. Prefill n tokens of a free sequence in chunks, each a slot. budget [L] (NULL: all kept)
 * says what rk_engine_compress will keep; n_new how many tokens may follow. The last chunk draws
 * the first new token by draw (NULL: no result, *ticket = -1). */
rk_status rk_engine_prefill(rk_engine *e, int seq, const int32_t *tokens, int64_t n, int64_t n_new,
                            const int32_t *budget, const rk_draw *draw, rk_ticket *ticket);

/* Leader. Evict a prefilled sequence to the budget given at prefill (all kept: nothing moves) and
 * fetch what is stored; waits for all stages.
 * Shapes: stored [L] out, tokens per stored head averaged over the heads (exact while heads agree);
 *         *kv_bytes bytes of the stored slots; either may be NULL */
rk_status rk_engine_compress(rk_engine *e, int seq, int32_t *stored, int64_t *kv_bytes);

/* The same in two steps, so that other slots can follow before the wait. */
rk_status rk_engine_compress_post(rk_engine *e, int seq, rk_ticket *ticket);
rk_status rk_engine_compress_take(rk_engine *e, rk_ticket ticket, int32_t *stored,
                                  int64_t *kv_bytes);

/* Leader. Statistics of a prefilled sequence's attention from the window of the policy (observe.h);
 * waits for all stages. Shapes: entropy, variance [L] out
 * Errors: RK_E_BUG the configuration's policies keep no window */
rk_status rk_engine_attention(rk_engine *e, int seq, double *entropy, double *variance);

/* Leader. Make the free sequence `to` what compressing the prefilled sequence `from` by this policy
 * and these budgets would leave; `from` keeps its whole cache, so that many configurations share one
 * prefill. The policy must be among those that the configuration's observe was made for.
 * Shapes: budget [L] (NULL: a copy); stored, kv_bytes as of rk_engine_compress
 * Errors: RK_E_MEM; RK_E_BUG */
rk_status rk_engine_fork(rk_engine *e, int from, int to, const rk_select_params *select,
                         const int32_t *budget, int64_t n_new, int32_t *stored, int64_t *kv_bytes);

/* Leader. One new row for each of n sequences; result: n rk_drawn in order. */
rk_status rk_engine_decode(rk_engine *e, const rk_draw *draws, int n, rk_ticket *ticket);

/* Leader. Wait for a slot's drawn tokens. out [n] of the slot (1 for a prefill). */
rk_status rk_engine_result(rk_engine *e, rk_ticket ticket, rk_drawn *out);

/* Leader. Teacher-forced measurement over a prefilled sequence: T response rows as reference and as
 * n variants, variants ascending by layer, in waves under row_cap. No sequence is changed. Waits
 * for the result.
 * Shapes: out [n]; *reference (may be NULL) its nll, kl 0, agreement 1; *ref_hash (may be NULL)
 *         XXH64 of the reference's logits rows */
rk_status rk_engine_measure(rk_engine *e, int seq, const int32_t *response, int T, uint64_t seed,
                            const rk_variant *variants, int n, rk_measured *out,
                            rk_measured *reference, uint64_t *ref_hash);

/* Leader, for tests and evaluation: rows of logits. Feeds n tokens to a sequence as plain rows in
 * one slot per chunk (prefill when the sequence is fresh: n_prompt = n; else appended at the true
 * positions, computed as decode's rows are) and returns the logits of rows want [n_want] (ascending, relative to the first fed
 * token). Shapes: logits [n_want][V] out */
rk_status rk_engine_logits(rk_engine *e, int seq, const int32_t *tokens, int64_t n,
                           const int32_t *budget, int64_t n_new, const int32_t *want, int n_want,
                           float *logits);

/* Leader, for tests and sweeps; one stage only: kept positions of a layer's head after compress,
 * and compaction to a given list. */
rk_kv *rk_engine_kv(rk_engine *e);

/* Leader. Forget a sequence on all stages. */
rk_status rk_engine_free(rk_engine *e, int seq);

typedef struct rk_stage_stats {
    int     rank, layer_begin, layer_end;
    double  compute_s, wait_recv_s, wait_send_s;
    int64_t weight_bytes, kv_peak_bytes, peak_bytes, bytes_sent, bytes_read;
} rk_stage_stats;
/* Leader, after stop: [P]. */
const rk_stage_stats *rk_engine_stats(const rk_engine *e);
