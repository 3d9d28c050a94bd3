/* tokenizer.c - text to ids and back: the pipeline around added tokens, split and BPE. */
#include "core/tokenizer.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "core/tokenizer_impl.h"

/* ---- UTF-8 ---- */

rk_utf8_kind rk_utf8_scan(const char *p, size_t n, size_t *len) {
    const unsigned char *b = (const unsigned char *)p;
    *len = 1;
    if (b[0] < 0x80) return RK_UTF8_VALID;
    if (b[0] < 0xc2 || b[0] > 0xf4) return RK_UTF8_INVALID;
    size_t   want = b[0] < 0xe0 ? 2 : b[0] < 0xf0 ? 3 : 4;
    unsigned lo = b[0] == 0xe0 ? 0xa0 : b[0] == 0xf0 ? 0x90 : 0x80; /* no overlong forms */
    unsigned hi = b[0] == 0xed ? 0x9f : b[0] == 0xf4 ? 0x8f : 0xbf; /* no surrogates, no > 10FFFF */
    for (; *len < want; ++*len, lo = 0x80, hi = 0xbf) {
        if (*len == n) return RK_UTF8_CUT;
        if (b[*len] < lo || b[*len] > hi) return RK_UTF8_INVALID;
    }
    return RK_UTF8_VALID;
}

uint32_t rk_utf8_code(const char *p, size_t len) {
    const unsigned char *b = (const unsigned char *)p;
    static const uint8_t first[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t             c = b[0] & first[len];
    for (size_t i = 1; i < len; i++) c = c << 6 | (b[i] & 0x3f);
    return c;
}

/* ---- marked text ---- */

static void marked_free(rk_marked *x) {
    rk_mem_free(x->p);
    rk_mem_free(x->literal);
    *x = (rk_marked){0};
}

/* Append n bytes; room was allocated, ranges are at most one a call. */
static void marked_put(rk_marked *x, const char *p, size_t n, bool literal) {
    if (n == 0) return;
    memcpy(x->p + x->n, p, n);
    if (literal) {
        rk_range *last = x->n_literal ? &x->literal[x->n_literal - 1] : NULL;
        if (last && last->end == x->n)
            last->end += n;
        else
            x->literal[x->n_literal++] = (rk_range){x->n, x->n + n};
    }
    x->n += n;
}

/* The parts in a row, as valid UTF-8. A character whose bytes lie in two parts is one, and literal
 * if either part is: so the carry of an unfinished character goes from part to part. */
static rk_status join(const rk_text_part *parts, int n_parts, rk_marked *x) {
    size_t total = 0;
    for (int i = 0; i < n_parts; i++) {
        if (parts[i].n > (size_t)INT32_MAX / 4 - total)
            return RK_FAIL(RK_E_INPUT, "a text of more than 512 MB cannot be tokenized at once; "
                                       "split it");
        total += parts[i].n;
    }
    void *p;
    RK_TRY(rk_mem_alloc(3 * (int64_t)total + 4, 1, "text", &p));
    x->p = p;
    RK_TRY(rk_mem_alloc(2 * (int64_t)n_parts + 1, sizeof *x->literal, "text", &p));
    x->literal = p;
    char   held[4];
    size_t n_held = 0;
    bool   held_literal = false;
    for (int i = 0; i < n_parts; i++) {
        const char *t = parts[i].text;
        for (size_t at = 0, len; at < parts[i].n; at += len) {
            if (n_held == 0) {
                rk_utf8_kind kind = rk_utf8_scan(t + at, parts[i].n - at, &len);
                bool         cut = kind == RK_UTF8_CUT;
                if (kind == RK_UTF8_VALID) marked_put(x, t + at, len, parts[i].literal);
                if (kind == RK_UTF8_INVALID) marked_put(x, RK_UTF8_BAD, 3, parts[i].literal);
                if (cut) memcpy(held, t + at, n_held = len);
                held_literal = cut && parts[i].literal;
                continue;
            }
            held[n_held] = t[at];
            size_t       k;
            rk_utf8_kind kind = rk_utf8_scan(held, n_held + 1, &k);
            len = kind != RK_UTF8_INVALID; /* a byte that does not go on is read again */
            if (kind != RK_UTF8_INVALID) held_literal |= parts[i].literal;
            n_held = kind == RK_UTF8_CUT ? n_held + 1 : 0;
            if (kind == RK_UTF8_VALID) marked_put(x, held, k, held_literal);
            if (kind == RK_UTF8_INVALID) marked_put(x, RK_UTF8_BAD, 3, held_literal);
        }
    }
    if (n_held) marked_put(x, RK_UTF8_BAD, 3, held_literal);
    return RK_OK;
}

/* ---- encode ---- */

typedef struct encode_run {
    const rk_tokenizer *t;
    rk_split_run       *split;
    rk_bpe_scratch      scratch;
    rk_ids              ids;
} encode_run;

static rk_status put_id(encode_run *r, int32_t id) {
    RK_TRY(rk_ids_reserve(&r->ids, 1));
    r->ids.at[r->ids.n++] = id;
    return RK_OK;
}

static rk_status put_piece(void *arg, const char *piece, size_t n) {
    encode_run *r = arg;
    return rk_bpe_piece(&r->t->bpe, &r->scratch, piece, n, &r->ids);
}

typedef rk_status (*gap_fn)(encode_run *r, const rk_marked *x, size_t lo, size_t hi);

static rk_status split_gap(encode_run *r, const rk_marked *x, size_t lo, size_t hi) {
    return rk_split_text(r->split, x->p + lo, hi - lo, put_piece, r);
}

/* Put the ids of trie's tokens in x[lo, hi), and hand what lies between to gap. */
static rk_status cut(encode_run *r, const rk_trie *trie, const rk_marked *x, size_t lo, size_t hi,
                     gap_fn gap) {
    rk_cutter c;
    rk_range  m;
    int32_t   id;
    size_t    done = lo;
    rk_cutter_begin(&c, trie, r->t->added, x, lo, hi);
    while (rk_cutter_next(&c, &m, &id)) {
        if (done < m.begin) RK_TRY(gap(r, x, done, m.begin));
        RK_TRY(put_id(r, id));
        done = m.end;
    }
    return done < hi ? gap(r, x, done, hi) : RK_OK;
}

/* x[lo, hi) normalized into y, run by run of literal and other text so that the marks survive. */
static rk_status normalize_runs(const rk_marked *x, size_t lo, size_t hi, rk_marked *y) {
    void *p;
    RK_TRY(rk_mem_alloc(3 * (int64_t)(hi - lo) + 1, 1, "normalized text", &p)); /* NFC: <= 3 x */
    y->p = p;
    RK_TRY(rk_mem_alloc(x->n_literal + 1, sizeof *y->literal, "normalized text", &p));
    y->literal = p;
    int64_t k = 0;
    while (lo < hi) {
        while (k < x->n_literal && x->literal[k].end <= lo) k++;
        bool   literal = k < x->n_literal && x->literal[k].begin <= lo;
        size_t end = k == x->n_literal ? hi : literal ? x->literal[k].end : x->literal[k].begin;
        if (end > hi) end = hi;
        char  *out;
        size_t n;
        RK_TRY(rk_nfc(x->p + lo, end - lo, &out, &n));
        marked_put(y, out ? out : x->p + lo, n, literal);
        rk_mem_free(out);
        lo = end;
    }
    return RK_OK;
}

/* A gap between tokens of the raw text: normalize, cut the other tokens, split. */
static rk_status raw_gap(encode_run *r, const rk_marked *x, size_t lo, size_t hi) {
    const rk_tokenizer *t = r->t;
    if (!t->nfc) return cut(r, &t->normalized, x, lo, hi, split_gap);
    rk_marked y = {0};
    rk_status st;
    if (t->normalized.n) {
        st = normalize_runs(x, lo, hi, &y);
        if (st == RK_OK) st = cut(r, &t->normalized, &y, 0, y.n, split_gap);
    } else {
        st = rk_nfc(x->p + lo, hi - lo, &y.p, &y.n);
        if (st == RK_OK) st = y.p ? split_gap(r, &y, 0, y.n) : split_gap(r, x, lo, hi);
    }
    marked_free(&y);
    RK_TRY(st);
    return RK_OK;
}

rk_status rk_tokenizer_encode(const rk_tokenizer *t, const rk_text_part *parts, int n_parts,
                              bool add_special, int32_t **ids, int64_t *n_ids) {
    encode_run r = {.t = t};
    rk_marked  x = {0};
    rk_status  st;
    *ids = NULL;
    *n_ids = 0;
    RK_TRY_OUT(st, join(parts, n_parts, &x));
    RK_TRY_OUT(st, rk_split_begin(t->split, &r.split));
    RK_TRY_OUT(st, rk_ids_reserve(&r.ids, (int64_t)x.n / 4 + 2 * RK_TOK_TEMPLATE));
    for (int i = 0; add_special && i < t->n_before; i++) RK_TRY_OUT(st, put_id(&r, t->before[i]));
    RK_TRY_OUT(st, cut(&r, &t->raw, &x, 0, x.n, raw_gap));
    for (int i = 0; add_special && i < t->n_after; i++) RK_TRY_OUT(st, put_id(&r, t->after[i]));
    *ids = r.ids.at;
    *n_ids = r.ids.n;
    r.ids.at = NULL;
out:
    marked_free(&x);
    rk_split_end(r.split);
    rk_mem_free(r.scratch.block);
    rk_mem_free(r.ids.at);
    return st;
}

/* ---- decode ---- */

void rk_decode_begin(rk_decode_stream *s, const rk_tokenizer *t, bool skip_special) {
    *s = (rk_decode_stream){.t = t, .skip_special = skip_special};
}

/* Take one more byte; write what is decided to out (at most 3 * 4 bytes); returns how much. */
static size_t push_byte(rk_decode_stream *s, char byte, char *out) {
    char  *held = (char *)s->held;
    size_t k = 0, len;
    held[s->n_held++] = byte;
    while (s->n_held > 0) {
        rk_utf8_kind kind = rk_utf8_scan(held, (size_t)s->n_held, &len);
        if (kind == RK_UTF8_CUT) break;
        bool valid = kind == RK_UTF8_VALID;
        memcpy(out + k, valid ? held : RK_UTF8_BAD, valid ? len : 3);
        k += valid ? len : 3;
        s->n_held -= (int)len;
        memmove(held, held + len, (size_t)s->n_held);
    }
    return k;
}

size_t rk_decode_push(rk_decode_stream *s, int32_t id, char *buf, size_t cap) {
    size_t      n, k = 0;
    const char *p = rk_tokenizer_bytes(s->t, id, &n);
    if (!p || (s->skip_special && rk_tokenizer_is_special(s->t, id))) return 0;
    RK_ASSERT(cap >= 4 * n + 16);
    for (size_t i = 0; i < n; i++) k += push_byte(s, p[i], buf + k);
    return k;
}

size_t rk_decode_end(rk_decode_stream *s, char *buf, size_t cap) {
    if (s->n_held == 0) return 0;
    RK_ASSERT(cap >= 3);
    memcpy(buf, RK_UTF8_BAD, 3);
    s->n_held = 0;
    return 3;
}

rk_status rk_tokenizer_decode(const rk_tokenizer *t, const int32_t *ids, int64_t n,
                              bool skip_special, char **text, size_t *n_bytes) {
    size_t total = 0, len, k = 0;
    *text = NULL;
    *n_bytes = 0;
    for (int64_t i = 0; i < n; i++)
        if (rk_tokenizer_bytes(t, ids[i], &len)) total += len;
    size_t cap = 4 * total + 32; /* push wants more room than the at most 3 bytes a byte */
    void  *p;
    RK_TRY(rk_mem_alloc((int64_t)cap, 1, "decoded text", &p));
    char            *out = p;
    rk_decode_stream s;
    rk_decode_begin(&s, t, skip_special);
    for (int64_t i = 0; i < n; i++) k += rk_decode_push(&s, ids[i], out + k, cap - k);
    k += rk_decode_end(&s, out + k, cap - k);
    out[k] = 0;
    *text = out;
    *n_bytes = k;
    return RK_OK;
}

/* ---- the rest ---- */

int rk_tokenizer_size(const rk_tokenizer *t) {
    return t->bpe.vocab.n_ids;
}
size_t rk_tokenizer_max_bytes(const rk_tokenizer *t) {
    return (size_t)t->bpe.vocab.max_len;
}
int32_t rk_tokenizer_bos(const rk_tokenizer *t) {
    return t->n_before ? t->before[0] : -1;
}
const char *rk_tokenizer_kind(const rk_tokenizer *t) {
    return t->kind;
}

const char *rk_tokenizer_bytes(const rk_tokenizer *t, int32_t id, size_t *n) {
    const rk_vocab *v = &t->bpe.vocab;
    *n = 0;
    if (id < 0 || id >= v->n_ids || v->len[id] < 0) return NULL;
    *n = (size_t)v->len[id];
    return v->bytes + v->at[id];
}

bool rk_tokenizer_is_special(const rk_tokenizer *t, int32_t id) {
    return id >= 0 && id < t->bpe.vocab.n_ids && t->special[id];
}

int32_t rk_tokenizer_find(const rk_tokenizer *t, const char *token) {
    size_t n = strlen(token), len;
    for (int32_t i = 0; i < t->n_added; i++) {
        const char *p = rk_tokenizer_bytes(t, t->added[i].id, &len);
        if (p && len == n && memcmp(p, token, n) == 0) return t->added[i].id;
    }
    return -1;
}

void rk_tokenizer_close(rk_tokenizer *t) {
    if (!t) return;
    rk_bpe_close(&t->bpe);
    rk_splitter_close(t->split);
    rk_mem_free(t->added);
    rk_mem_free(t->raw.node);
    rk_mem_free(t->normalized.node);
    rk_mem_free(t->special);
    rk_mem_free(t);
}

rk_status rk_tokenizer_open_model(const char *model_path, const rk_gguf *g_or_null,
                                  rk_tokenizer **out) {
    *out = NULL;
    if (g_or_null) return rk_tokenizer_open_gguf(g_or_null, out);
    size_t n = strlen(model_path);
    if (n > 5 && strcmp(model_path + n - 5, ".gguf") == 0) {
        rk_gguf *g;
        RK_TRY(rk_gguf_open(model_path, &g));
        rk_status st = rk_tokenizer_open_gguf(g, out);
        rk_gguf_close(g);
        RK_TRY(st);
        return RK_OK;
    }
    void *path;
    RK_TRY(rk_mem_alloc((int64_t)n + 20, 1, "path", &path));
    snprintf(path, n + 20, "%s/tokenizer.json", model_path);
    rk_status st = rk_tokenizer_open_json(path, out);
    rk_mem_free(path);
    RK_TRY(st);
    return RK_OK;
}
