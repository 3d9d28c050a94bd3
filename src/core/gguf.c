/* gguf.c - the reader of gguf.h.
 *
 * File: magic "GGUF", u32 version, u64 tensor count, u64 key count; the keys (string, u32 kind,
 * value); the tensor infos (string, u32 rank, u64 dims innermost first, u32 type, u64 offset);
 * then, aligned, the data that offsets count from. A string is u64 length and bytes. All numbers
 * are little-endian.
 * Counts are believed only as far as the file has bytes for them, so that memory is bounded by the
 * file's size. */
#define _GNU_SOURCE /* qsort_r */
#include "core/gguf.h"

#include <stdlib.h>

#include "base/mem.h"
#include "core/dequant.h"
#include "core/infile.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are copied as they are");

enum {
    VERSION = 3,
    MAX_RANK = 4,
    MAX_NAME = 255,  /* the format allows 64 for tensors; some writers use more */
    MAX_KEY = 65535, /* the format's limit */
    MAX_NESTING = 8, /* arrays in arrays; no known writer nests at all */
    MIN_KEY_BYTES = 8 + 4 + 1,
    MIN_INFO_BYTES = 8 + 4 + 4 + 8,
    MAX_KEYS = 1 << 16, /* bounds of what is allocated on the word of a count */
    MAX_TENSORS = 1 << 17,
    DEFAULT_ALIGNMENT = 32,
    MAX_ALIGNMENT = 1 << 20,
};

typedef enum kind {
    K_U8,
    K_I8,
    K_U16,
    K_I16,
    K_U32,
    K_I32,
    K_F32,
    K_BOOL,
    K_STRING,
    K_ARRAY,
    K_U64,
    K_I64,
    K_F64,
    K_COUNT,
} kind;
static const int kind_bytes[K_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

typedef struct entry {
    char          *key;
    kind           kind, elem; /* elem: of an array */
    int64_t        n;          /* elements of an array, bytes of a string */
    const uint8_t *raw;        /* a number, or an array of numbers, in the mapping */
    char          *text;       /* the string, or an array's strings one after another */
    int64_t       *at;         /* [n + 1] starts within text; each string ends in a NUL */
} entry;

struct rk_gguf {
    char           *path;
    rk_infile       file;
    int64_t         n_entries;
    entry          *entries; /* sorted by key once all are read */
    int             n_tensors;
    rk_gguf_tensor *tensors; /* in file order */
    char          **names;
    int            *by_name; /* indices of tensors, sorted */
};

/* A place in the file; nothing is read without asking need() first. */
typedef struct cursor {
    const uint8_t *p;
    int64_t        at, size;
    const char    *path;
} cursor;

static rk_status need(const cursor *c, int64_t bytes, const char *what) {
    if (bytes < 0 || bytes > c->size - c->at)
        return RK_FAIL(RK_E_INPUT,
                       "%s: the file ends within %s (at byte %lld of %lld): truncated or damaged",
                       c->path, what, (long long)c->at, (long long)c->size);
    return RK_OK;
}

static rk_status take_u32(cursor *c, const char *what, uint32_t *out) {
    *out = 0;
    RK_TRY(need(c, 4, what));
    memcpy(out, c->p + c->at, 4);
    c->at += 4;
    return RK_OK;
}

static rk_status take_u64(cursor *c, const char *what, uint64_t *out) {
    *out = 0;
    RK_TRY(need(c, 8, what));
    memcpy(out, c->p + c->at, 8);
    c->at += 8;
    return RK_OK;
}

/* A count of things of at least min_bytes each. */
static rk_status take_count(cursor *c, const char *what, int64_t min_bytes, int64_t *out) {
    uint64_t n = 0;
    *out = 0;
    RK_TRY(take_u64(c, what, &n));
    if (n > (uint64_t)((c->size - c->at) / min_bytes))
        return RK_FAIL(RK_E_INPUT, "%s: %s of %llu does not fit in the file's %lld bytes", c->path,
                       what, (unsigned long long)n, (long long)c->size);
    *out = (int64_t)n;
    return RK_OK;
}

/* Bytes of a string, borrowed from the mapping. */
static rk_status take_string(cursor *c, const char *what, const char **s, int64_t *n) {
    *s = "";
    RK_TRY(take_count(c, what, 1, n));
    *s = (const char *)c->p + c->at;
    c->at += *n;
    return RK_OK;
}

/* A string that names something: printable, so that messages can show it. */
static rk_status take_name(cursor *c, const char *what, size_t max, char **out) {
    const char *s = "";
    int64_t     n, at = c->at;
    RK_TRY(take_string(c, what, &s, &n));
    if (!rk_infile_is_name(s, (size_t)n, max))
        return RK_FAIL(RK_E_INPUT, "%s: %s at byte %lld is not a printable name: damaged file",
                       c->path, what, (long long)at);
    void *p;
    RK_TRY(rk_mem_alloc(n + 1, 1, what, &p));
    memcpy(p, s, (size_t)n);
    *out = p;
    return RK_OK;
}

static rk_status check_kind(const cursor *c, const char *key, uint32_t k) {
    char shown[RK_SHOWN];
    if (k >= K_COUNT)
        return RK_FAIL(RK_E_INPUT, "%s: key %s has unknown value kind %u", c->path,
                       rk_infile_shown(key, shown), k);
    return RK_OK;
}

/* Step over an array of arrays: such a value is checked, not kept. */
static rk_status skip_arrays(cursor *c, const char *key, int64_t n, int depth) {
    char shown[RK_SHOWN];
    if (depth > MAX_NESTING)
        return RK_FAIL(RK_E_INPUT, "%s: key %s nests arrays more than %d deep", c->path,
                       rk_infile_shown(key, shown), MAX_NESTING);
    for (int64_t i = 0; i < n; i++) {
        uint32_t k;
        int64_t  m;
        RK_TRY(take_u32(c, "an array's kind", &k));
        RK_TRY(check_kind(c, key, k));
        int64_t least = k == K_ARRAY ? 12 : k == K_STRING ? 8 : kind_bytes[k];
        RK_TRY(take_count(c, "an array's length", least, &m));
        if (k == K_ARRAY) {
            RK_TRY(skip_arrays(c, key, m, depth + 1));
        } else if (k == K_STRING) {
            for (int64_t j = 0; j < m; j++) {
                const char *s;
                int64_t     len;
                RK_TRY(take_string(c, "an array's string", &s, &len));
            }
        } else {
            c->at += m * kind_bytes[k];
        }
    }
    return RK_OK;
}

static rk_status take_string_array(cursor *c, entry *e) {
    cursor      look = *c;
    const char *s = "";
    int64_t     len, total = 0;
    for (int64_t i = 0; i < e->n; i++) {
        RK_TRY(take_string(&look, "an array's string", &s, &len));
        total += len + 1;
    }
    void *p;
    RK_TRY(rk_mem_alloc(e->n + 1, sizeof *e->at, "GGUF strings", &p));
    e->at = p;
    RK_TRY(rk_mem_alloc(total, 1, "GGUF strings", &p));
    e->text = p;
    for (int64_t i = 0; i < e->n; i++) {
        RK_TRY(take_string(c, "an array's string", &s, &len));
        memcpy(e->text + e->at[i], s, (size_t)len);
        e->at[i + 1] = e->at[i] + len + 1;
    }
    return RK_OK;
}

static rk_status take_array(cursor *c, entry *e) {
    uint32_t k;
    RK_TRY(take_u32(c, "an array's kind", &k));
    RK_TRY(check_kind(c, e->key, k));
    e->elem = (kind)k;
    int64_t least = k == K_ARRAY ? 12 : k == K_STRING ? 8 : kind_bytes[k];
    RK_TRY(take_count(c, "an array's length", least, &e->n));
    if (k == K_ARRAY) return skip_arrays(c, e->key, e->n, 1);
    if (k == K_STRING) return take_string_array(c, e);
    e->raw = c->p + c->at;
    c->at += e->n * kind_bytes[k];
    return RK_OK;
}

static rk_status take_entry(cursor *c, entry *e) {
    uint32_t k;
    char     shown[RK_SHOWN];
    RK_TRY(take_name(c, "a key", MAX_KEY, &e->key));
    RK_TRY(take_u32(c, "a value's kind", &k));
    RK_TRY(check_kind(c, e->key, k));
    e->kind = (kind)k;
    if (k == K_ARRAY) return take_array(c, e);
    if (k == K_STRING) {
        const char *s = "";
        void       *p;
        RK_TRY(take_string(c, "a string's length", &s, &e->n));
        RK_TRY(rk_mem_alloc(e->n + 1, 1, "GGUF string", &p));
        e->text = p;
        memcpy(e->text, s, (size_t)e->n);
        return RK_OK;
    }
    RK_TRY(need(c, kind_bytes[k], "a value"));
    e->raw = c->p + c->at;
    c->at += kind_bytes[k];
    if (k == K_BOOL && e->raw[0] > 1)
        return RK_FAIL(RK_E_INPUT, "%s: key %s: %u is not a boolean", c->path,
                       rk_infile_shown(e->key, shown), e->raw[0]);
    return RK_OK;
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const entry *)a)->key, ((const entry *)b)->key);
}

static rk_status take_entries(rk_gguf *g, cursor *c, int64_t n) {
    void *p;
    char  shown[RK_SHOWN];
    RK_TRY(rk_mem_alloc(n, sizeof *g->entries, "GGUF keys", &p));
    g->entries = p;
    g->n_entries = n;
    for (int64_t i = 0; i < n; i++) RK_TRY(take_entry(c, &g->entries[i]));
    qsort(g->entries, (size_t)n, sizeof *g->entries, by_key);
    for (int64_t i = 1; i < n; i++)
        if (strcmp(g->entries[i - 1].key, g->entries[i].key) == 0)
            return RK_FAIL(RK_E_INPUT, "%s: key %s stands twice", c->path,
                           rk_infile_shown(g->entries[i].key, shown));
    return RK_OK;
}

/* Shape and type of one tensor; data_at is left in *offset. */
static rk_status take_info(rk_gguf *g, cursor *c, rk_gguf_tensor *t, char **name,
                           uint64_t *offset) {
    uint32_t rank, type;
    RK_TRY(take_name(c, "a tensor's name", MAX_NAME, name));
    t->name = *name;
    RK_TRY(take_u32(c, "a tensor's rank", &rank));
    if (rank > MAX_RANK)
        return RK_FAIL(RK_E_INPUT, "%s: tensor %s has %u dimensions, at most %d are known", g->path,
                       t->name, rank, MAX_RANK);
    t->rank = (int)rank;
    int64_t count = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        uint64_t d = 0;
        RK_TRY(take_u64(c, "a tensor's dimension", &d));
        if (d == 0 || d > INT64_MAX || __builtin_mul_overflow(count, (int64_t)d, &count))
            return RK_FAIL(RK_E_INPUT, "%s: tensor %s has an absurd dimension %llu", g->path,
                           t->name, (unsigned long long)d);
        t->dim[i] = (int64_t)d;
    }
    RK_TRY(take_u32(c, "a tensor's type", &type));
    RK_TRY(take_u64(c, "a tensor's offset", offset));
    t->type = type > INT32_MAX ? INT32_MAX : (int)type;
    int elements, bytes;
    if (!rk_ggml_block(t->type, &elements, &bytes))
        return RK_FAIL(RK_E_INPUT,
                       "%s: tensor %s is of type %s; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, "
                       "Q5_K and Q6_K are read: "
                       "use a file quantised to one of these",
                       g->path, t->name, rk_ggml_type_name(t->type));
    int64_t inner = t->rank > 0 ? t->dim[t->rank - 1] : 1;
    if (inner % elements != 0)
        return RK_FAIL(RK_E_INPUT,
                       "%s: tensor %s: rows of %lld values are no whole %s blocks of %d", g->path,
                       t->name, (long long)inner, rk_ggml_type_name(t->type), elements);
    if (__builtin_mul_overflow(count / elements, (int64_t)bytes, &t->bytes))
        return RK_FAIL(RK_E_INPUT, "%s: tensor %s is absurdly large", g->path, t->name);
    return RK_OK;
}

static rk_status place(rk_gguf *g, const cursor *c, rk_gguf_tensor *t, int64_t data_at,
                       int64_t alignment, uint64_t offset) {
    int64_t room = c->size - data_at;
    if (offset % (uint64_t)alignment != 0)
        return RK_FAIL(RK_E_INPUT, "%s: tensor %s: offset %llu is not aligned to %lld", g->path,
                       t->name, (unsigned long long)offset, (long long)alignment);
    if (room < 0 || offset > (uint64_t)room || t->bytes > room - (int64_t)offset)
        return RK_FAIL(RK_E_INPUT,
                       "%s: tensor %s (%lld bytes at offset %llu) lies beyond the file's end at "
                       "byte %lld: truncated file",
                       g->path, t->name, (long long)t->bytes, (unsigned long long)offset,
                       (long long)c->size);
    t->data = c->p + data_at + (int64_t)offset;
    return RK_OK;
}

static int by_tensor_name(const void *a, const void *b, void *g) {
    const rk_gguf_tensor *t = ((const rk_gguf *)g)->tensors;
    return strcmp(t[*(const int *)a].name, t[*(const int *)b].name);
}

static rk_status take_alignment(const rk_gguf *g, int64_t *out) {
    const char *key = "general.alignment";
    *out = rk_gguf_has(g, key) ? rk_gguf_int(g, key, -1) : DEFAULT_ALIGNMENT;
    if (*out < 8 || *out > MAX_ALIGNMENT || *out % 8 != 0)
        return RK_FAIL(RK_E_INPUT, "%s: %s is not a multiple of 8 up to %d", g->path, key,
                       MAX_ALIGNMENT);
    return RK_OK;
}

static rk_status take_tensors(rk_gguf *g, cursor *c, int64_t n) {
    rk_status st = RK_OK;
    int64_t   alignment;
    void     *p, *offsets = NULL;
    RK_TRY(take_alignment(g, &alignment));
    RK_TRY_OUT(st, rk_mem_alloc(n, sizeof *g->tensors, "GGUF tensors", &p));
    g->tensors = p;
    RK_TRY_OUT(st, rk_mem_alloc(n, sizeof *g->names, "GGUF tensors", &p));
    g->names = p;
    g->n_tensors = (int)n;
    RK_TRY_OUT(st, rk_mem_alloc(n, sizeof *g->by_name, "GGUF tensors", &p));
    g->by_name = p;
    RK_TRY_OUT(st, rk_mem_alloc(n, 8, "GGUF tensors", &offsets));
    for (int i = 0; i < g->n_tensors; i++) {
        g->by_name[i] = i;
        RK_TRY_OUT(st, take_info(g, c, &g->tensors[i], &g->names[i], (uint64_t *)offsets + i));
    }
    int64_t data_at = (c->at + alignment - 1) / alignment * alignment;
    for (int i = 0; i < g->n_tensors; i++)
        RK_TRY_OUT(st, place(g, c, &g->tensors[i], data_at, alignment, ((uint64_t *)offsets)[i]));
    qsort_r(g->by_name, (size_t)n, sizeof *g->by_name, by_tensor_name, g);
    for (int i = 1; i < g->n_tensors; i++) {
        const char *a = g->tensors[g->by_name[i]].name;
        if (strcmp(g->tensors[g->by_name[i - 1]].name, a) == 0)
            RK_TRY_OUT(st, RK_FAIL(RK_E_INPUT, "%s: tensor %s stands twice", g->path, a));
    }
out:
    rk_mem_free(offsets);
    return st;
}

static rk_status take_head(cursor *c, int64_t *n_tensors, int64_t *n_entries) {
    uint32_t version;
    if (c->size < 4 || memcmp(c->p, "GGUF", 4) != 0)
        return RK_FAIL(RK_E_INPUT,
                       "%s: not a GGUF file (it does not begin with \"GGUF\"); a model is a .gguf "
                       "file or a folder with config.json and safetensors",
                       c->path);
    c->at = 4;
    RK_TRY(take_u32(c, "the header", &version));
    if (version == (uint32_t)VERSION << 24)
        return RK_FAIL(RK_E_INPUT, "%s: a big-endian GGUF file; convert it to little-endian",
                       c->path);
    if (version != VERSION)
        return RK_FAIL(RK_E_INPUT,
                       "%s: GGUF version %u; version %d is read: convert the model anew", c->path,
                       version, VERSION);
    RK_TRY(take_count(c, "a tensor count", MIN_INFO_BYTES, n_tensors));
    RK_TRY(take_count(c, "a key count", MIN_KEY_BYTES, n_entries));
    if (*n_tensors > MAX_TENSORS || *n_entries > MAX_KEYS)
        return RK_FAIL(RK_E_INPUT, "%s: %lld tensors and %lld keys are absurd: damaged file",
                       c->path, (long long)*n_tensors, (long long)*n_entries);
    return RK_OK;
}

rk_status rk_gguf_open(const char *path, rk_gguf **out) {
    *out = NULL;
    void     *p;
    rk_status st;
    int64_t   n_tensors, n_entries;
    RK_TRY(rk_mem_alloc(1, sizeof(rk_gguf), "GGUF file", &p));
    rk_gguf *g = p;
    RK_TRY_OUT(st, rk_mem_strdup(path, &g->path));
    RK_TRY_OUT(st, rk_infile_open(path, &g->file));
    cursor c = {g->file.data, 0, g->file.bytes, g->path};
    RK_TRY_OUT(st, take_head(&c, &n_tensors, &n_entries));
    RK_TRY_OUT(st, take_entries(g, &c, n_entries));
    RK_TRY_OUT(st, take_tensors(g, &c, n_tensors));
    *out = g;
out:
    if (st != RK_OK) rk_gguf_close(g);
    return st;
}

void rk_gguf_close(rk_gguf *g) {
    if (!g) return;
    for (int64_t i = 0; i < g->n_entries; i++) {
        rk_mem_free(g->entries[i].key);
        rk_mem_free(g->entries[i].text);
        rk_mem_free(g->entries[i].at);
    }
    for (int i = 0; i < g->n_tensors; i++) rk_mem_free(g->names[i]);
    rk_mem_free(g->entries);
    rk_mem_free(g->tensors);
    rk_mem_free(g->names);
    rk_mem_free(g->by_name);
    rk_mem_free(g->path);
    rk_infile_close(&g->file);
    rk_mem_free(g);
}

int rk_gguf_n_tensors(const rk_gguf *g) {
    return g->n_tensors;
}

const rk_gguf_tensor *rk_gguf_tensor_at(const rk_gguf *g, int i) {
    RK_ASSERT(i >= 0 && i < g->n_tensors);
    return &g->tensors[i];
}

const rk_gguf_tensor *rk_gguf_find(const rk_gguf *g, const char *name) {
    int lo = 0, hi = g->n_tensors;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2, order = strcmp(g->tensors[g->by_name[mid]].name, name);
        if (order == 0) return &g->tensors[g->by_name[mid]];
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

const char *rk_gguf_path(const rk_gguf *g) {
    return g->path;
}

static const entry *get(const rk_gguf *g, const char *key) {
    int64_t lo = 0, hi = g->n_entries;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        int     order = strcmp(g->entries[mid].key, key);
        if (order == 0) return &g->entries[mid];
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* The number of kind k at p; false where it is no integer, or none that fits. */
static bool read_int(kind k, const uint8_t *p, int64_t *out) {
    uint64_t u = 0;
    switch (k) {
    case K_U8:
    case K_U16:
    case K_U32:
    case K_U64:
        memcpy(&u, p, (size_t)kind_bytes[k]);
        if (u > INT64_MAX) return false;
        *out = (int64_t)u;
        return true;
    case K_I8:
        *out = (int8_t)p[0];
        return true;
    case K_I16: {
        int16_t v;
        memcpy(&v, p, sizeof v);
        *out = v;
        return true;
    }
    case K_I32: {
        int32_t v;
        memcpy(&v, p, sizeof v);
        *out = v;
        return true;
    }
    case K_I64:
        memcpy(out, p, 8);
        return true;
    case K_F32:
    case K_F64:
    case K_BOOL:
    case K_STRING:
    case K_ARRAY:
    case K_COUNT:
        break;
    }
    return false;
}

static bool read_num(kind k, const uint8_t *p, double *out) {
    int64_t i;
    float   f;
    if (k == K_F32) {
        memcpy(&f, p, sizeof f);
        *out = (double)f;
    } else if (k == K_F64) {
        memcpy(out, p, sizeof *out);
    } else if (read_int(k, p, &i)) {
        *out = (double)i;
    } else {
        return false;
    }
    return true;
}

bool rk_gguf_has(const rk_gguf *g, const char *key) {
    return get(g, key) != NULL;
}

const char *rk_gguf_str(const rk_gguf *g, const char *key, const char *dflt) {
    const entry *e = get(g, key);
    return e && e->kind == K_STRING ? e->text : dflt;
}

int64_t rk_gguf_int(const rk_gguf *g, const char *key, int64_t dflt) {
    const entry *e = get(g, key);
    int64_t      v;
    return e && e->kind != K_ARRAY && read_int(e->kind, e->raw, &v) ? v : dflt;
}

double rk_gguf_num(const rk_gguf *g, const char *key, double dflt) {
    const entry *e = get(g, key);
    double       v;
    return e && e->kind != K_ARRAY && read_num(e->kind, e->raw, &v) ? v : dflt;
}

bool rk_gguf_bool(const rk_gguf *g, const char *key, bool dflt) {
    const entry *e = get(g, key);
    return e && e->kind == K_BOOL ? e->raw[0] != 0 : dflt;
}

int64_t rk_gguf_arr_len(const rk_gguf *g, const char *key) {
    const entry *e = get(g, key);
    return e && e->kind == K_ARRAY ? e->n : -1;
}

/* The array under key if it has an element i. */
static const entry *array_with(const rk_gguf *g, const char *key, int64_t i) {
    const entry *e = get(g, key);
    return e && e->kind == K_ARRAY && i >= 0 && i < e->n ? e : NULL;
}

const char *rk_gguf_arr_str(const rk_gguf *g, const char *key, int64_t i, size_t *len) {
    const entry *e = array_with(g, key, i);
    if (!e || e->elem != K_STRING) {
        if (len) *len = 0;
        return NULL;
    }
    if (len) *len = (size_t)(e->at[i + 1] - e->at[i] - 1);
    return e->text + e->at[i];
}

int64_t rk_gguf_arr_int(const rk_gguf *g, const char *key, int64_t i, int64_t dflt) {
    const entry *e = array_with(g, key, i);
    int64_t      v;
    return e && e->raw && read_int(e->elem, e->raw + i * kind_bytes[e->elem], &v) ? v : dflt;
}

double rk_gguf_arr_num(const rk_gguf *g, const char *key, int64_t i, double dflt) {
    const entry *e = array_with(g, key, i);
    double       v;
    return e && e->raw && read_num(e->elem, e->raw + i * kind_bytes[e->elem], &v) ? v : dflt;
}
