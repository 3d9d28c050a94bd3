/* kvcache.h - keys and values of a stage's layers, per sequence, under per-layer budgets.
 *
 * A (layer, sequence) holds a chain of segments; here one: the prompt's, which decode extends.
 * Slots are packed ascending by position; keys are stored after RoPE at their true position, so
 * eviction moves slots and rewrites none. n_seen (positions) and n_stored (slots, per stored head)
 * are separate. compact writes a new segment and then drops the old one, layer by layer. */
#pragma once
#include "core/config.h"
#include "kernels/backend.h"

typedef struct rk_kv rk_kv;

/* Caches for layers [layer_begin, layer_end) and max_seqs sequences; holds no pages yet.
 * Owner: be must outlive */
rk_status rk_kv_open(rk_backend *be, const rk_config *c, int layer_begin, int layer_end, int max_seqs,
                     rk_kv **out);
void      rk_kv_close(rk_kv *kv);

/* Start a sequence: pages for capacity[l] slots per head in layer layer_begin + l.
 * Errors: RK_E_MEM (the sequence stays free); RK_E_BUG in use */
rk_status rk_kv_begin(rk_kv *kv, int seq, const int64_t *capacity);
/* Start a sequence that holds nothing yet: every layer then comes by compact. RK_E_BUG in use */
rk_status rk_kv_begin_empty(rk_kv *kv, int seq);
void      rk_kv_drop(rk_kv *kv, int seq);
bool      rk_kv_in_use(const rk_kv *kv, int seq);

/* Reserve n slots at the end of every head for positions pos0 .. pos0 + n - 1.
 * Errors: RK_E_BUG over capacity, or pos0 is not n_seen */
rk_status rk_kv_extend(rk_kv *kv, int layer, int seq, int64_t pos0, int n);

/* The chain as spans [n_spans][G]; returns n_spans (1). Borrowed pages: valid until extend,
 * compact or drop of this layer. */
int rk_kv_chain(const rk_kv *kv, int layer, int seq, rk_span *spans);

int64_t        rk_kv_seen(const rk_kv *kv, int layer, int seq);
int32_t        rk_kv_stored(const rk_kv *kv, int layer, int seq, int head);
const int32_t *rk_kv_positions(const rk_kv *kv, int layer, int seq, int head); /* [n_stored] */

/* The listed slots of each head of sequence `from`, with room for n_new more, become the layer of
 * `to`: the same sequence, whose old segment then goes, or one that was begun empty and keeps the
 * source as it is.
 * Shapes: slot[g] [count[g]] host, ascending slot indices of the source's segment
 * Errors: RK_E_MEM; RK_E_BUG bad lists, or a target that holds something */
rk_status rk_kv_compact(rk_kv *kv, int layer, int from, int to, const int32_t *const *slot,
                        const int32_t *count, int64_t n_new);

int64_t rk_kv_stored_bytes(const rk_kv *kv, int seq); /* of the stored slots, K and V, all layers */
int64_t rk_kv_bytes(const rk_kv *kv);                 /* pages held now, all sequences */
int64_t rk_kv_peak_bytes(const rk_kv *kv);            /* most ever held */
rk_status rk_kv_check(const rk_kv *kv);               /* walk the invariants: RK_E_BUG */
