/* kvcache.c - see kvcache.h. */
#include "core/kvcache.h"

#include <string.h>

#include "base/mem.h"

/* Pages of one (layer, sequence): every head's K pages, then every head's V pages. */
typedef struct segment {
    void    *pages;    /* dev; NULL: none */
    int64_t  bytes;
    int64_t *room;     /* [G] slots of each head */
    int64_t *page0;    /* [G + 1] first page of each head's, keys and values alike */
    int64_t  capacity; /* largest room */
    int32_t *n_stored; /* [G] */
    int32_t *position; /* [G][capacity] */
    int64_t  n_seen;
} segment;

struct rk_kv {
    rk_backend *be;
    int         layer_begin, n_layers, max_seqs, G, d;
    segment    *seg;    /* [n_layers][max_seqs] */
    bool       *in_use; /* [max_seqs] */
    int64_t     bytes, peak;
};

static segment *at(const rk_kv *kv, int layer, int seq) {
    RK_ASSERT(layer >= kv->layer_begin && layer < kv->layer_begin + kv->n_layers);
    RK_ASSERT(seq >= 0 && seq < kv->max_seqs);
    return &kv->seg[(int64_t)(layer - kv->layer_begin) * kv->max_seqs + seq];
}

rk_status rk_kv_open(rk_backend *be, const rk_config *c, int layer_begin, int layer_end, int max_seqs,
                     rk_kv **out) {
    void *p;
    *out = NULL;
    RK_TRY(rk_mem_alloc(1, sizeof(rk_kv), "cache", &p));
    rk_kv *kv = p;
    kv->be = be;
    kv->layer_begin = layer_begin;
    kv->n_layers = layer_end - layer_begin;
    kv->max_seqs = max_seqs;
    kv->G = c->n_kv_heads;
    kv->d = c->head_dim;
    rk_status st;
    RK_TRY_OUT(st, rk_mem_alloc((int64_t)kv->n_layers * max_seqs, sizeof(segment), "cache table", &p));
    kv->seg = p;
    RK_TRY_OUT(st, rk_mem_alloc(max_seqs, sizeof(bool), "cache table", &p));
    kv->in_use = p;
    *out = kv;
    return RK_OK;
out:
    rk_kv_close(kv);
    return st;
}

void rk_kv_close(rk_kv *kv) {
    if (!kv) return;
    if (kv->seg && kv->in_use)
        for (int s = 0; s < kv->max_seqs; s++) rk_kv_drop(kv, s);
    rk_mem_free(kv->seg);
    rk_mem_free(kv->in_use);
    rk_mem_free(kv);
}

static void segment_close(rk_kv *kv, segment *s) {
    if (s->pages) {
        kv->be->ops->release(kv->be, s->pages);
        kv->bytes -= s->bytes;
    }
    rk_mem_free(s->room);
    rk_mem_free(s->page0);
    rk_mem_free(s->n_stored);
    rk_mem_free(s->position);
    memset(s, 0, sizeof *s);
}

/* A segment with room for count[g] + more slots of head g (count NULL: more for each). */
static rk_status segment_open(rk_kv *kv, const int32_t *count, int64_t more, segment *s) {
    rk_status st;
    memset(s, 0, sizeof *s);
    RK_TRY_OUT(st, rk_mem_alloc_to(kv->G, sizeof(int64_t), "cache counts", &s->room));
    RK_TRY_OUT(st, rk_mem_alloc_to(kv->G + 1, sizeof(int64_t), "cache counts", &s->page0));
    RK_TRY_OUT(st, rk_mem_alloc_to(kv->G, sizeof(int32_t), "cache counts", &s->n_stored));
    for (int g = 0; g < kv->G; g++) {
        s->room[g] = (count ? count[g] : 0) + more;
        s->page0[g + 1] = s->page0[g] + rk_round_up(s->room[g], RK_PAGE_KEYS) / RK_PAGE_KEYS;
        if (s->room[g] > s->capacity) s->capacity = s->room[g];
    }
    s->bytes = 2 * s->page0[kv->G] * rk_page_bytes(kv->d, kv->be->weight_dtype);
    RK_TRY_OUT(st, rk_mem_alloc_to(kv->G * s->capacity, sizeof(int32_t), "cache positions", &s->position));
    RK_TRY_OUT(st, kv->be->ops->alloc(kv->be, s->bytes, "cache pages", &s->pages));
    kv->bytes += s->bytes;
    if (kv->bytes > kv->peak) kv->peak = kv->bytes;
    return RK_OK;
out:
    s->pages = NULL;
    segment_close(kv, s);
    return st;
}

static rk_span span_of(const rk_kv *kv, const segment *s, int head) {
    int64_t page = rk_page_bytes(kv->d, kv->be->weight_dtype);
    return (rk_span){.k = (char *)s->pages + s->page0[head] * page,
                     .v = (char *)s->pages + (s->page0[kv->G] + s->page0[head]) * page,
                     .k_dtype = kv->be->weight_dtype,
                     .v_dtype = kv->be->weight_dtype,
                     .first = 0,
                     .n = s->n_stored[head]};
}

rk_status rk_kv_begin(rk_kv *kv, int seq, const int64_t *capacity) {
    if (seq < 0 || seq >= kv->max_seqs || kv->in_use[seq])
        return RK_FAIL(RK_E_BUG, "cache: sequence %d is not free", seq);
    kv->in_use[seq] = true;
    for (int l = 0; l < kv->n_layers; l++) {
        rk_status st = segment_open(kv, NULL, capacity[l], at(kv, kv->layer_begin + l, seq));
        if (st != RK_OK) {
            rk_kv_drop(kv, seq);
            return rk_err_via(st, __FILE__, __LINE__, __func__);
        }
    }
    return RK_OK;
}

rk_status rk_kv_begin_empty(rk_kv *kv, int seq) {
    if (seq < 0 || seq >= kv->max_seqs || kv->in_use[seq])
        return RK_FAIL(RK_E_BUG, "cache: sequence %d is not free", seq);
    kv->in_use[seq] = true;
    return RK_OK;
}

void rk_kv_drop(rk_kv *kv, int seq) {
    for (int l = 0; l < kv->n_layers; l++) segment_close(kv, at(kv, kv->layer_begin + l, seq));
    kv->in_use[seq] = false;
}

bool rk_kv_in_use(const rk_kv *kv, int seq) {
    return seq >= 0 && seq < kv->max_seqs && kv->in_use[seq];
}

rk_status rk_kv_extend(rk_kv *kv, int layer, int seq, int64_t pos0, int n) {
    segment *s = at(kv, layer, seq);
    if (!s->pages) return RK_FAIL(RK_E_BUG, "cache: layer %d sequence %d holds nothing", layer, seq);
    if (pos0 != s->n_seen)
        return RK_FAIL(RK_E_BUG, "cache: layer %d sequence %d: position %lld after %lld", layer, seq,
                       (long long)pos0, (long long)s->n_seen);
    for (int g = 0; g < kv->G; g++) {
        int32_t have = s->n_stored[g];
        if (have + n > s->room[g])
            return RK_FAIL(RK_E_BUG, "cache: layer %d sequence %d: %d + %d slots over capacity %lld",
                           layer, seq, have, n, (long long)s->room[g]);
        for (int i = 0; i < n; i++) s->position[g * s->capacity + have + i] = (int32_t)(pos0 + i);
        s->n_stored[g] = have + n;
    }
    s->n_seen += n;
    return RK_OK;
}

int rk_kv_chain(const rk_kv *kv, int layer, int seq, rk_span *spans) {
    const segment *s = at(kv, layer, seq);
    RK_ASSERT(s->pages != NULL);
    for (int g = 0; g < kv->G; g++) spans[g] = span_of(kv, s, g);
    return 1;
}

int64_t rk_kv_seen(const rk_kv *kv, int layer, int seq) { return at(kv, layer, seq)->n_seen; }

int32_t rk_kv_stored(const rk_kv *kv, int layer, int seq, int head) {
    const segment *s = at(kv, layer, seq);
    return s->pages ? s->n_stored[head] : 0;
}

const int32_t *rk_kv_positions(const rk_kv *kv, int layer, int seq, int head) {
    const segment *s = at(kv, layer, seq);
    return s->position + head * s->capacity;
}

rk_status rk_kv_compact(rk_kv *kv, int layer, int from, int to, const int32_t *const *slot,
                        const int32_t *count, int64_t n_new) {
    segment *old = at(kv, layer, from), *target = at(kv, layer, to), fresh;
    if (from != to && (!kv->in_use[to] || target->pages))
        return RK_FAIL(RK_E_BUG, "cache: layer %d: sequence %d is no place for a copy", layer, to);
    for (int g = 0; g < kv->G; g++) {
        if (count[g] < 1 || count[g] > old->n_stored[g])
            return RK_FAIL(RK_E_BUG, "cache: layer %d head %d: keep %d of %d slots", layer, g, count[g],
                           old->n_stored[g]);
        for (int i = 0; i < count[g]; i++)
            if (slot[g][i] < (i ? slot[g][i - 1] + 1 : 0) || slot[g][i] >= old->n_stored[g])
                return RK_FAIL(RK_E_BUG, "cache: layer %d head %d: slot list is not ascending in [0, %d)",
                               layer, g, old->n_stored[g]);
    }
    RK_TRY(segment_open(kv, count, n_new, &fresh));
    fresh.n_seen = old->n_seen;
    for (int g = 0; g < kv->G; g++) {
        rk_span source = span_of(kv, old, g);
        fresh.n_stored[g] = count[g];
        rk_span   dst = span_of(kv, &fresh, g);
        rk_status st = kv->be->ops->kv_gather(kv->be, kv->d, &source, 1, slot[g], count[g], &dst);
        if (st != RK_OK) {
            segment_close(kv, &fresh);
            return rk_err_via(st, __FILE__, __LINE__, __func__);
        }
        for (int i = 0; i < count[g]; i++)
            fresh.position[g * fresh.capacity + i] = old->position[g * old->capacity + slot[g][i]];
    }
    segment_close(kv, target);
    *target = fresh;
    return RK_OK;
}

int64_t rk_kv_stored_bytes(const rk_kv *kv, int seq) {
    int64_t slots = 0;
    for (int l = 0; l < kv->n_layers; l++)
        for (int g = 0; g < kv->G; g++) slots += rk_kv_stored(kv, kv->layer_begin + l, seq, g);
    return slots * 2 * kv->d * rk_dtype_bytes(kv->be->weight_dtype);
}

int64_t rk_kv_bytes(const rk_kv *kv) { return kv->bytes; }
int64_t rk_kv_peak_bytes(const rk_kv *kv) { return kv->peak; }

rk_status rk_kv_check(const rk_kv *kv) {
    int64_t bytes = 0;
    for (int l = kv->layer_begin; l < kv->layer_begin + kv->n_layers; l++)
        for (int s = 0; s < kv->max_seqs; s++) {
            const segment *g = at(kv, l, s);
            if (!g->pages) continue;
            bytes += g->bytes;
            if (!kv->in_use[s]) return RK_FAIL(RK_E_BUG, "cache: free sequence %d holds pages", s);
            for (int h = 0; h < kv->G; h++) {
                const int32_t *p = g->position + h * g->capacity;
                int32_t        n = g->n_stored[h];
                if (n > g->room[h] || n > g->n_seen)
                    return RK_FAIL(RK_E_BUG, "cache: layer %d sequence %d head %d stores %d slots", l,
                                   s, h, n);
                for (int i = 0; i < n; i++)
                    if (p[i] < (i ? p[i - 1] + 1 : 0) || p[i] >= g->n_seen)
                        return RK_FAIL(RK_E_BUG, "cache: layer %d sequence %d head %d: positions do "
                                       "not ascend at slot %d", l, s, h, i);
            }
        }
    return bytes == kv->bytes ? RK_OK
                              : RK_FAIL(RK_E_BUG, "cache: %lld bytes held, %lld counted",
                                        (long long)bytes, (long long)kv->bytes);
}
