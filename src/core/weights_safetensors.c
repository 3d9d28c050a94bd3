/* weights_safetensors.c - tensor directory of a Hugging Face folder: one safetensors file, or
 * shards with an index.
 *
 * File: u64 length of a JSON object, the object, the data. The object maps a name to dtype, shape
 * and data_offsets [begin, end) within the data; "__metadata__" holds strings. */
#include <stdio.h>

#include "base/mem.h"
#include "core/weights_internal.h"

enum { LENGTH_BYTES = 8, MAX_HEADER = 100 * 1000 * 1000 /* the format's limit */, MAX_NAME = 512 };

/* Tensors that some writers store and no computation reads: the table of rotation speeds, and a
 * head that is the embedding table again. */
static bool is_redundant(const rk_config *c, const char *name) {
    static const char ending[] = ".rotary_emb.inv_freq";
    size_t            n = strlen(name), m = sizeof ending - 1;
    return (n > m && strcmp(name + n - m, ending) == 0) ||
           (c->tied && strcmp(name, "lm_head.weight") == 0);
}

static const struct {
    const char *name;
    int         type, bytes;
} dtypes[] = {{"F32", RK_GGML_F32, 4}, {"F16", RK_GGML_F16, 2}, {"BF16", RK_GGML_BF16, 2}};

typedef struct reading {
    rk_weights *w;
    rk_shard   *s;
    int64_t     data_at;
} reading;

static rk_status take_dtype(const rk_shard *f, const char *name, const rk_json *j, int *which) {
    const char *dtype = rk_json_str(j, NULL);
    char        shown[RK_SHOWN];
    if (!dtype)
        return RK_FAIL(RK_E_INPUT, "%s: tensor %s: dtype is %s, expected a string", f->path, name,
                       rk_json_kind_name(j));
    for (int i = 0; i < (int)(sizeof dtypes / sizeof dtypes[0]); i++) {
        if (strcmp(dtypes[i].name, dtype) != 0) continue;
        *which = i;
        return RK_OK;
    }
    return RK_FAIL(RK_E_INPUT, "%s: tensor %s is of dtype %s; F32, F16 and BF16 are read", f->path,
                   name, rk_infile_shown(dtype, shown));
}

static rk_status take_shape(const rk_shard *f, const rk_json *j, rk_weights_entry *e,
                            int64_t *count) {
    *count = 1;
    if (rk_json_kind_of(j) != RK_JSON_ARRAY || rk_json_len(j) > 4)
        return RK_FAIL(RK_E_INPUT, "%s: tensor %s: shape is no list of up to 4 numbers", f->path,
                       e->name);
    e->rank = (int)rk_json_len(j);
    for (int i = 0; i < e->rank; i++) {
        e->dim[i] = rk_json_int(rk_json_at(j, (size_t)i), -1);
        if (e->dim[i] < 1 || __builtin_mul_overflow(*count, e->dim[i], count))
            return RK_FAIL(RK_E_INPUT, "%s: tensor %s: shape holds an absurd dimension", f->path,
                           e->name);
    }
    return RK_OK;
}

static rk_status take_tensor(void *arg, const char *name, const rk_json *value) {
    reading    *r = arg;
    const char *path = r->s->path;
    rk_stored   s = {.entry = {.name = name, .role = RK_W_ROLES, .layer = -1}};
    char        shown[RK_SHOWN];
    int         which = 0;
    int64_t     count = 0, bytes;
    if (strcmp(name, "__metadata__") == 0 || is_redundant(&r->w->config, name)) return RK_OK;
    if (!rk_infile_is_name(name, strlen(name), MAX_NAME))
        return RK_FAIL(RK_E_INPUT, "%s: \"%s\" is not a printable tensor name", path,
                       rk_infile_shown(name, shown));
    if (rk_json_kind_of(value) != RK_JSON_OBJECT)
        return RK_FAIL(RK_E_INPUT, "%s: tensor %s is %s, expected an object", path, name,
                       rk_json_kind_name(value));
    RK_TRY(take_dtype(r->s, name, rk_json_get(value, "dtype"), &which));
    RK_TRY(take_shape(r->s, rk_json_get(value, "shape"), &s.entry, &count));
    const rk_json *at = rk_json_get(value, "data_offsets");
    int64_t        begin = rk_json_int(rk_json_at(at, 0), -1);
    int64_t        end = rk_json_int(rk_json_at(at, 1), -1);
    int64_t        room = r->s->file.bytes - r->data_at;
    if (rk_json_kind_of(at) != RK_JSON_ARRAY || rk_json_len(at) != 2 || begin < 0 || end < begin)
        return RK_FAIL(RK_E_INPUT, "%s: tensor %s: data_offsets is no [begin, end]", path, name);
    if (end > room)
        return RK_FAIL(RK_E_INPUT,
                       "%s: tensor %s ends at byte %lld of the data, the file has %lld: truncated "
                       "or incomplete file",
                       path, name, (long long)end, (long long)room);
    if (__builtin_mul_overflow(count, (int64_t)dtypes[which].bytes, &bytes) || bytes != end - begin)
        return RK_FAIL(RK_E_INPUT, "%s: tensor %s: %lld bytes do not hold its shape in %s", path,
                       name, (long long)(end - begin), dtypes[which].name);
    s.entry.dtype = dtypes[which].name;
    s.entry.bytes = bytes;
    s.type = dtypes[which].type;
    s.data = r->s->file.data + r->data_at + begin;
    return rk_weights_add_stored(r->w, &s);
}

rk_status rk_weights_load_shard(rk_weights *w, rk_shard *s) {
    uint64_t n;
    RK_TRY(rk_infile_open(s->path, &s->file));
    if (s->file.bytes < LENGTH_BYTES)
        return RK_FAIL(RK_E_INPUT, "%s: not a safetensors file (%lld bytes)", s->path,
                       (long long)s->file.bytes);
    memcpy(&n, s->file.data, sizeof n);
    if (n > MAX_HEADER || n > (uint64_t)(s->file.bytes - LENGTH_BYTES))
        return RK_FAIL(RK_E_INPUT,
                       "%s: a header of %llu bytes is not in the file's %lld: truncated, or not a "
                       "safetensors file",
                       s->path, (unsigned long long)n, (long long)s->file.bytes);
    RK_TRY(rk_json_parse((const char *)s->file.data + LENGTH_BYTES, (size_t)n, s->path, &s->head));
    if (rk_json_kind_of(s->head) != RK_JSON_OBJECT)
        return RK_FAIL(RK_E_INPUT, "%s: the header is %s, expected an object", s->path,
                       rk_json_kind_name(s->head));
    reading r = {w, s, LENGTH_BYTES + (int64_t)n};
    return rk_json_each(s->head, take_tensor, &r);
}

/* ---- shards ---------------------------------------------------------------------------------- */

/* Add the file of one weight_map member to the shards, once. */
static rk_status take_shard_name(void *arg, const char *tensor, const rk_json *value) {
    rk_weights *w = arg;
    const char *file = rk_json_str(value, NULL);
    char        path[RK_PATH_LEN], shown[RK_SHOWN];
    if (!file || !file[0] || strchr(file, '/'))
        return RK_FAIL(RK_E_INPUT,
                       "%s/model.safetensors.index.json: %s is not mapped to a file of "
                       "the folder",
                       w->path, rk_infile_shown(tensor, shown));
    RK_TRY(rk_infile_join(w->path, file, path));
    for (int i = w->n_shards - 1; i >= 0; i--)
        if (strcmp(w->shards[i].path, path) == 0) return RK_OK;
    void *p = w->shards;
    RK_TRY(rk_mem_resize(&p, w->n_shards + 1, sizeof *w->shards, "shards"));
    w->shards = p;
    memcpy(w->shards[w->n_shards++].path, path, sizeof path);
    return RK_OK;
}

/* The index and the shards must tell the same: a tensor of a shard that the index does not name is
 * a leftover of another download. */
static rk_status check_index(const rk_weights *w, const rk_json *map, const char *path) {
    char shown[RK_SHOWN];
    for (int i = 0; i < w->n_shards; i++)
        for (int64_t j = 0; j < w->n_stored; j++) {
            const rk_stored *s = &w->stored[j];
            const uint8_t   *begin = w->shards[i].file.data;
            if (s->data < begin || s->data >= begin + w->shards[i].file.bytes) continue;
            const char *file = rk_json_str(rk_json_get(map, s->entry.name), NULL);
            const char *own = strrchr(w->shards[i].path, '/') + 1;
            if (!file || strcmp(file, own) != 0)
                return RK_FAIL(RK_E_INPUT, "%s: tensor %s lies in %s, but is mapped to %s", path,
                               s->entry.name, rk_infile_shown(own, shown), file ? file : "nothing");
        }
    return RK_OK;
}

static rk_status load_indexed(rk_weights *w, const char *path) {
    rk_json  *index = NULL;
    rk_status st;
    RK_TRY_OUT(st, rk_json_load(path, &index));
    const rk_json *map = rk_json_get(index, "weight_map");
    if (rk_json_kind_of(map) != RK_JSON_OBJECT)
        RK_TRY_OUT(st, RK_FAIL(RK_E_INPUT, "%s: weight_map is %s, expected an object", path,
                               rk_json_kind_name(map)));
    RK_TRY_OUT(st, rk_json_each(map, take_shard_name, w));
    for (int i = 0; i < w->n_shards; i++) RK_TRY_OUT(st, rk_weights_load_shard(w, &w->shards[i]));
    RK_TRY_OUT(st, check_index(w, map, path));
out:
    rk_json_close(index);
    return st;
}

rk_status rk_weights_load_folder(rk_weights *w) {
    char path[RK_PATH_LEN], index[RK_PATH_LEN];
    RK_TRY(rk_weights_read_hf_config(w));
    RK_TRY(rk_infile_join(w->path, "model.safetensors", path));
    RK_TRY(rk_infile_join(w->path, "model.safetensors.index.json", index));
    if (!rk_infile_is_file(path) && rk_infile_is_file(index)) return load_indexed(w, index);
    if (!rk_infile_is_file(path))
        return RK_FAIL(RK_E_INPUT, "%s: neither model.safetensors nor its index is in the folder",
                       w->path);
    void *p;
    RK_TRY(rk_mem_alloc(1, sizeof *w->shards, "shards", &p));
    w->shards = p;
    w->n_shards = 1;
    memcpy(w->shards[0].path, path, sizeof path);
    return rk_weights_load_shard(w, &w->shards[0]);
}
