/* st_reader.c - see st_reader.h. Format: 8 bytes header length (little-endian), a JSON object of
 * name: {dtype, shape, data_offsets}, then the data that the offsets count from. */
#include "tests/st_reader.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"

typedef struct entry {
    const char *name; /* owned by the header's JSON */
    rk_tensor   t;
} entry;

struct rk_st {
    const char *path; /* valid while opening */
    rk_json    *header;
    const char *map, *data;
    size_t      map_bytes, data_bytes;
    int         n;
    entry      *entries;
};

static const struct {
    const char *name;
    rk_dtype    dtype;
} DTYPES[] = {{"F32", RK_F32}, {"BF16", RK_BF16}, {"F16", RK_F16}, {"F64", RK_F64},
              {"I32", RK_I32}, {"I64", RK_I64},   {"U8", RK_U8}};

static bool dtype_of(const char *name, rk_dtype *out) {
    for (size_t i = 0; i < sizeof DTYPES / sizeof DTYPES[0]; i++)
        if (strcmp(name, DTYPES[i].name) == 0) {
            *out = DTYPES[i].dtype;
            return true;
        }
    return false;
}

static rk_status add_entry(void *arg, const char *key, const rk_json *value) {
    rk_st *s = arg;
    if (strcmp(key, "__metadata__") == 0) return RK_OK;
    const rk_json *shape = rk_json_get(value, "shape"), *off = rk_json_get(value, "data_offsets");
    rk_tensor      t = {.rank = (int)rk_json_len(shape), .dim = {1, 1, 1, 1}};
    if (!dtype_of(rk_json_str(rk_json_get(value, "dtype"), ""), &t.dtype))
        return RK_FAIL(RK_E_INPUT, "%s: tensor %s has an unknown dtype", s->path, key);
    if (rk_json_kind_of(shape) != RK_JSON_ARRAY || t.rank > 4 || rk_json_len(off) != 2)
        return RK_FAIL(RK_E_INPUT, "%s: tensor %s: shape or data_offsets", s->path, key);
    int64_t bytes = rk_dtype_bytes(t.dtype);
    for (int i = 0; i < t.rank; i++) {
        t.dim[i] = rk_json_int(rk_json_at(shape, (size_t)i), -1);
        if (t.dim[i] < 0 || __builtin_mul_overflow(bytes, t.dim[i], &bytes))
            return RK_FAIL(RK_E_INPUT, "%s: tensor %s: dimension %d", s->path, key, i);
    }
    int64_t begin = rk_json_int(rk_json_at(off, 0), -1), end = rk_json_int(rk_json_at(off, 1), -1);
    if (begin < 0 || end < begin || (uint64_t)end > s->data_bytes || end - begin != bytes)
        return RK_FAIL(RK_E_INPUT, "%s: tensor %s: bytes [%lld, %lld) do not fit", s->path, key,
                       (long long)begin, (long long)end);
    t.data = s->data + begin;
    if ((uintptr_t)t.data % (uintptr_t)rk_dtype_bytes(t.dtype) != 0)
        return RK_FAIL(RK_E_INPUT, "%s: tensor %s is not aligned", s->path, key);
    s->entries[s->n++] = (entry){key, t};
    return RK_OK;
}

static rk_status map_file(rk_st *s) {
    int fd = open(s->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return RK_FAIL(RK_E_INPUT, "%s: cannot open", s->path);
    struct stat st;
    void       *map = MAP_FAILED;
    if (fstat(fd, &st) == 0 && st.st_size > 8)
        map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return RK_FAIL(RK_E_INPUT, "%s: too short or cannot be mapped", s->path);
    s->map = map;
    s->map_bytes = (size_t)st.st_size;
    return RK_OK;
}

rk_status rk_st_open(const char *path, rk_st **out) {
    void     *mem = NULL, *entries = NULL;
    rk_status st = RK_OK;
    RK_TRY(rk_mem_alloc(1, sizeof(rk_st), "safetensors handle", &mem));
    rk_st *s = mem;
    s->path = path;
    RK_TRY_OUT(st, map_file(s));
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | (unsigned char)s->map[i];
    if (n > s->map_bytes - 8) {
        st = RK_FAIL(RK_E_INPUT, "%s: header of %llu bytes in a file of %zu", path,
                     (unsigned long long)n, s->map_bytes);
        goto out;
    }
    s->data = s->map + 8 + n;
    s->data_bytes = s->map_bytes - 8 - (size_t)n;
    RK_TRY_OUT(st, rk_json_parse(s->map + 8, (size_t)n, path, &s->header));
    int64_t count = (int64_t)rk_json_len(s->header);
    RK_TRY_OUT(st, rk_mem_alloc(count + 1, sizeof(entry), "safetensors entries", &entries));
    s->entries = entries;
    RK_TRY_OUT(st, rk_json_each(s->header, add_entry, s));
    s->path = NULL;
    *out = s;
    return RK_OK;
out:
    rk_st_close(s);
    return st;
}

void rk_st_close(rk_st *s) {
    if (s == NULL) return;
    rk_json_close(s->header);
    if (s->map != NULL) munmap((void *)(uintptr_t)s->map, s->map_bytes);
    rk_mem_free(s->entries);
    rk_mem_free(s);
}

const void *rk_st_get(const rk_st *s, const char *name, rk_dtype dtype, int rank, int64_t dim[4]) {
    for (int i = 0; s != NULL && i < s->n; i++) {
        const rk_tensor *t = &s->entries[i].t;
        if (strcmp(s->entries[i].name, name) != 0) continue;
        if (t->dtype != dtype || t->rank != rank) return NULL;
        for (int k = 0; dim != NULL && k < 4; k++) dim[k] = t->dim[k];
        return t->data;
    }
    return NULL;
}

int rk_st_count(const rk_st *s) {
    return s->n;
}

const char *rk_st_name(const rk_st *s, int i) {
    return s->entries[i].name;
}
