/* tokenizer_bpe.c - byte-level BPE: the vocabulary, the merges, and one piece to ids. */
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "core/tokenizer_impl.h"

enum { SHORT_PIECE = 48 }; /* up to here a plain scan beats the heap */

static uint32_t slots_for(int64_t n) {
    uint32_t cap = 16;
    while ((int64_t)cap < n + n / 2) cap *= 2;
    return cap;
}

rk_status rk_ids_reserve(rk_ids *v, int64_t more) {
    if (v->n + more <= v->cap) return RK_OK;
    int64_t cap = v->cap ? v->cap * 2 : 64;
    while (cap < v->n + more) cap *= 2;
    void *p = v->at;
    RK_TRY(rk_mem_resize(&p, cap, sizeof *v->at, "token ids"));
    v->at = p;
    v->cap = cap;
    return RK_OK;
}

rk_status rk_vocab_open(rk_vocab *v, int64_t n_ids, int64_t n_tokens, int64_t bytes_cap) {
    uint32_t cap = slots_for(n_tokens);
    void    *p;
    RK_TRY(rk_mem_alloc(bytes_cap + 1, 1, "token text", &p));
    v->bytes = p;
    v->bytes_cap = bytes_cap;
    RK_TRY(rk_mem_alloc(n_ids, sizeof *v->at, "token offsets", &p));
    v->at = p;
    RK_TRY(rk_mem_alloc(n_ids, sizeof *v->len, "token lengths", &p));
    v->len = p;
    RK_TRY(rk_mem_alloc(cap, sizeof *v->slot, "token lookup", &p));
    v->slot = p;
    v->mask = cap - 1;
    v->n_ids = (int32_t)n_ids;
    for (int32_t i = 0; i < v->n_ids; i++) v->len[i] = -1;
    return RK_OK;
}

static bool same(const rk_vocab *v, int32_t id, const char *bytes, size_t n) {
    return (size_t)v->len[id] == n && memcmp(v->bytes + v->at[id], bytes, n) == 0;
}

int32_t rk_vocab_find(const rk_vocab *v, const char *bytes, size_t n) {
    for (uint32_t i = (uint32_t)rk_hash(bytes, n) & v->mask; v->slot[i]; i = (i + 1) & v->mask)
        if (same(v, v->slot[i] - 1, bytes, n)) return v->slot[i] - 1;
    return RK_TOK_NONE;
}

void rk_vocab_put(rk_vocab *v, int32_t id, const char *bytes, size_t n, bool of_model) {
    RK_ASSERT(id >= 0 && id < v->n_ids && v->n_bytes + (int64_t)n <= v->bytes_cap);
    memcpy(v->bytes + v->n_bytes, bytes, n);
    v->at[id] = (uint32_t)v->n_bytes;
    v->len[id] = (int32_t)n;
    v->n_bytes += (int64_t)n;
    if ((int32_t)n > v->max_len) v->max_len = (int32_t)n;
    if (!of_model) return;
    uint32_t i = (uint32_t)rk_hash(bytes, n) & v->mask;
    while (v->slot[i]) i = (i + 1) & v->mask;
    v->slot[i] = id + 1;
}

static uint32_t pair_hash(int32_t left, int32_t right) {
    uint64_t k = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    k *= 0x9e3779b97f4a7c15ull; /* 2^64 / golden ratio: spreads both ids over the high bits */
    return (uint32_t)(k >> 32) ^ (uint32_t)(k >> 20);
}

static rk_merge *merge_slot(const rk_bpe *b, int32_t left, int32_t right) {
    uint32_t i = pair_hash(left, right) & b->merge_mask;
    while (b->merge[i].left >= 0 && (b->merge[i].left != left || b->merge[i].right != right))
        i = (i + 1) & b->merge_mask;
    return &b->merge[i];
}

rk_status rk_bpe_open_merges(rk_bpe *b, int64_t n_merges) {
    uint32_t cap = slots_for(n_merges);
    void    *p;
    RK_TRY(rk_mem_alloc(cap, sizeof *b->merge, "merges", &p));
    b->merge = p;
    b->merge_mask = cap - 1;
    for (uint32_t i = 0; i < cap; i++) b->merge[i].left = -1;
    return RK_OK;
}

void rk_bpe_put_merge(rk_bpe *b, int32_t left, int32_t right, int32_t rank, int32_t merged) {
    *merge_slot(b, left, right) = (rk_merge){left, right, rank, merged};
}

void rk_bpe_index_bytes(rk_bpe *b) {
    for (int i = 0; i < 256; i++) {
        char c = (char)i;
        b->byte_id[i] = rk_vocab_find(&b->vocab, &c, 1);
    }
}

void rk_bpe_close(rk_bpe *b) {
    rk_mem_free(b->vocab.bytes);
    rk_mem_free(b->vocab.at);
    rk_mem_free(b->vocab.len);
    rk_mem_free(b->vocab.slot);
    rk_mem_free(b->merge);
}

/* First symbols of a piece, one a byte; returns how many. */
static int32_t symbols_of(const rk_bpe *b, const char *piece, size_t n, int32_t *sym) {
    int32_t k = 0;
    bool    was_unk = false;
    for (size_t i = 0; i < n; i++) {
        int32_t id = b->byte_id[(unsigned char)piece[i]];
        bool    unk = id == RK_TOK_NONE;
        if (unk) id = b->fuse_unk && was_unk ? RK_TOK_NONE : b->unk;
        if (id != RK_TOK_NONE) sym[k++] = id;
        was_unk = unk;
    }
    return k;
}

/* Rank of joining sym i with the one after it; INT32_MAX where they do not join. */
static int32_t rank_of(const rk_bpe *b, int32_t left, int32_t right) {
    const rk_merge *m = merge_slot(b, left, right);
    return m->left >= 0 ? m->rank : INT32_MAX;
}

static int32_t merge_short(const rk_bpe *b, int32_t *sym, int32_t n) {
    int32_t rank[SHORT_PIECE];
    for (int32_t i = 0; i + 1 < n; i++) rank[i] = rank_of(b, sym[i], sym[i + 1]);
    while (n > 1) {
        int32_t best = 0;
        for (int32_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == INT32_MAX) break;
        sym[best] = merge_slot(b, sym[best], sym[best + 1])->merged;
        size_t tail = (size_t)(n - best - 2);
        memmove(sym + best + 1, sym + best + 2, tail * sizeof *sym);
        if (tail) memmove(rank + best + 1, rank + best + 2, (tail - 1) * sizeof *rank);
        n--;
        if (best > 0) rank[best - 1] = rank_of(b, sym[best - 1], sym[best]);
        if (best + 1 < n) rank[best] = rank_of(b, sym[best], sym[best + 1]);
    }
    return n;
}

/* A binary min-heap of rank << 32 | position: lowest rank first, ties to the left. */
static void sift_down(uint64_t *heap, int64_t n, int64_t i) {
    uint64_t v = heap[i];
    for (int64_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && heap[c + 1] < heap[c]) c++;
        if (heap[c] >= v) break;
        heap[i] = heap[c];
    }
    heap[i] = v;
}
static void sift_up(uint64_t *heap, int64_t i) {
    uint64_t v = heap[i];
    for (int64_t p; i > 0 && heap[p = (i - 1) / 2] > v; i = p) heap[i] = heap[p];
    heap[i] = v;
}

/* Symbols in a doubly linked list over their first positions. A merge leaves the heap entries of
 * its old neighbours behind; an entry counts only while its pair still has its rank. The heap
 * never holds more than 2n: n - 1 pairs at first, and each of at most n - 1 merges takes one
 * entry out and puts at most two in. */
static int32_t merge_long(const rk_bpe *b, int32_t *sym, int32_t *prev, int32_t *next,
                          uint64_t *heap, int32_t n) {
    int64_t size = 0;
    for (int32_t i = 0; i < n; i++) {
        prev[i] = i - 1;
        next[i] = i + 1 < n ? i + 1 : -1;
        int32_t r = i + 1 < n ? rank_of(b, sym[i], sym[i + 1]) : INT32_MAX;
        if (r != INT32_MAX) heap[size++] = (uint64_t)r << 32 | (uint32_t)i;
    }
    for (int64_t i = size / 2; i-- > 0;) sift_down(heap, size, i);
    while (size > 0) {
        int32_t rank = (int32_t)(heap[0] >> 32), i = (int32_t)(heap[0] & 0xffffffffu);
        heap[0] = heap[--size];
        if (size) sift_down(heap, size, 0);
        int32_t j = sym[i] < 0 ? -1 : next[i];
        if (j < 0) continue;
        const rk_merge *m = merge_slot(b, sym[i], sym[j]);
        if (m->left < 0 || m->rank != rank) continue;
        sym[i] = m->merged;
        sym[j] = -1; /* joined to the left */
        next[i] = next[j];
        if (next[i] >= 0) prev[next[i]] = i;
        int32_t from[2] = {prev[i], i};
        for (int k = 0; k < 2; k++) {
            if (from[k] < 0 || next[from[k]] < 0) continue;
            int32_t r = rank_of(b, sym[from[k]], sym[next[from[k]]]);
            if (r == INT32_MAX) continue;
            heap[size] = (uint64_t)r << 32 | (uint32_t)from[k];
            sift_up(heap, size++);
        }
    }
    int32_t k = 0;
    for (int32_t i = 0; i >= 0; i = next[i]) sym[k++] = sym[i];
    return k;
}

static rk_status scratch_for(rk_bpe_scratch *s, int64_t n) {
    if (n <= s->cap) return RK_OK;
    int64_t cap = n + n / 2;
    RK_TRY(rk_mem_resize(&s->block, cap, 2 * sizeof(uint64_t) + 2 * sizeof(int32_t),
                         "merging of a long piece"));
    s->cap = cap;
    return RK_OK;
}

rk_status rk_bpe_piece(const rk_bpe *b, rk_bpe_scratch *s, const char *piece, size_t n,
                       rk_ids *out) {
    RK_TRY(rk_ids_reserve(out, (int64_t)n));
    if (b->ignore_merges) {
        int32_t whole = rk_vocab_find(&b->vocab, piece, n);
        if (whole != RK_TOK_NONE) {
            out->at[out->n++] = whole;
            return RK_OK;
        }
    }
    int32_t *sym = out->at + out->n; /* merged in place: a piece has at most one id a byte */
    int32_t  k = symbols_of(b, piece, n, sym);
    if (k <= SHORT_PIECE) {
        out->n += merge_short(b, sym, k);
        return RK_OK;
    }
    RK_TRY(scratch_for(s, k));
    uint64_t *heap = s->block;
    int32_t  *prev = (int32_t *)(void *)(heap + 2 * s->cap);
    out->n += merge_long(b, sym, prev, prev + s->cap, heap, k);
    return RK_OK;
}
