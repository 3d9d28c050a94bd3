/* tokenizer_added.c - added tokens in text: leftmost, then longest, by a byte trie. */
#include <string.h>

#include "base/mem.h"
#include "core/tokenizer_impl.h"

static rk_status new_node(rk_trie *t, uint8_t byte, int32_t *index) {
    if (t->n == t->cap) {
        int32_t cap = t->cap ? t->cap * 2 : 256;
        void   *p = t->node;
        RK_TRY(rk_mem_resize(&p, cap, sizeof *t->node, "added tokens"));
        t->node = p;
        t->cap = cap;
    }
    t->node[t->n] = (rk_trie_node){.added = -1, .byte = byte};
    *index = t->n++;
    return RK_OK;
}

static int32_t child_of(const rk_trie *t, int32_t at, uint8_t byte) {
    if (at == 0) return t->first[byte];
    int32_t c = t->node[at].child;
    while (c && t->node[c].byte != byte) c = t->node[c].next;
    return c;
}

rk_status rk_trie_add(rk_trie *t, const char *bytes, size_t n, int32_t added) {
    int32_t at = 0, fresh;
    if (t->n == 0) RK_TRY(new_node(t, 0, &fresh)); /* the root */
    for (size_t i = 0; i < n; i++) {
        uint8_t b = (uint8_t)bytes[i];
        int32_t c = child_of(t, at, b);
        if (!c) {
            RK_TRY(new_node(t, b, &c));
            if (at == 0) {
                t->first[b] = c;
            } else {
                t->node[c].next = t->node[at].child;
                t->node[at].child = c;
            }
        }
        at = c;
    }
    if (at) t->node[at].added = added;
    return RK_OK;
}

void rk_cutter_begin(rk_cutter *c, const rk_trie *trie, const rk_added *added,
                     const rk_marked *text, size_t lo, size_t hi) {
    *c = (rk_cutter){.trie = trie, .added = added, .text = text, .lo = lo, .hi = hi};
    c->scan = c->done = trie->n ? lo : hi;
}

/* The longest token at position at that ends by limit: its index, or -1. */
static int32_t longest_at(const rk_cutter *c, size_t at, size_t limit, size_t *end) {
    const char *p = c->text->p;
    int32_t     best = -1, node = c->trie->first[(uint8_t)p[at]];
    for (size_t i = at; node; node = child_of(c->trie, node, (uint8_t)p[i])) {
        i++;
        if (c->trie->node[node].added >= 0) {
            best = c->trie->node[node].added;
            *end = i;
        }
        if (i == limit) break;
    }
    return best;
}

/* The character that ends at position at, which is above lo. */
static uint32_t code_before(const char *p, size_t lo, size_t at, size_t *begin) {
    size_t b = at - 1;
    while (b > lo && ((unsigned char)p[b] & 0xc0) == 0x80) b--;
    *begin = b;
    return rk_utf8_code(p + b, at - b);
}
static uint32_t code_at(const char *p, size_t at, size_t hi, size_t *len) {
    (void)rk_utf8_scan(p + at, hi - at, len);
    return rk_utf8_code(p + at, *len);
}

static bool stands_alone(const rk_cutter *c, const rk_range *m) {
    size_t unused;
    if (m->begin > c->lo && rk_is_word(code_before(c->text->p, c->lo, m->begin, &unused)))
        return false;
    return m->end == c->hi || !rk_is_word(code_at(c->text->p, m->end, c->hi, &unused));
}

/* Take whitespace beside the token with it, as far as [lo, hi). */
static void strip(const rk_cutter *c, const rk_added *a, rk_range *m, size_t lo, size_t hi) {
    size_t at;
    while (a->lstrip && m->begin > lo && rk_is_space(code_before(c->text->p, lo, m->begin, &at)))
        m->begin = at;
    while (a->rstrip && m->end < hi && rk_is_space(code_at(c->text->p, m->end, hi, &at)))
        m->end += at;
}

bool rk_cutter_next(rk_cutter *c, rk_range *found, int32_t *id) {
    const rk_marked *x = c->text;
    while (c->scan < c->hi) {
        while (c->lit < x->n_literal && x->literal[c->lit].end <= c->scan) c->lit++;
        size_t limit = c->hi; /* a token and its whitespace stay outside literal stretches */
        if (c->lit < x->n_literal && x->literal[c->lit].begin < limit)
            limit = x->literal[c->lit].begin;
        if (limit <= c->scan) {
            c->scan = x->literal[c->lit].end;
            continue;
        }
        rk_range m = {c->scan, 0};
        int32_t  k = longest_at(c, c->scan, limit, &m.end);
        if (k < 0) {
            c->scan++;
            continue;
        }
        c->scan = m.end;
        if (c->added[k].single_word && !stands_alone(c, &m)) continue;
        size_t lo =
            c->lit && x->literal[c->lit - 1].end > c->done ? x->literal[c->lit - 1].end : c->done;
        if (m.begin < c->done) m.begin = c->done; /* rstrip of the one before took some of it */
        if (m.end < c->done) m.end = c->done;
        strip(c, &c->added[k], &m, lo, limit);
        c->done = m.end;
        *found = m;
        *id = c->added[k].id;
        return true;
    }
    return false;
}
