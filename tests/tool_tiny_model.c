/* tool_tiny_model.c - make_tiny OUT [--layers L] [--seed S] [--type T] [--damage KIND]: a model for the shell
 * suites, a .gguf file or (a name without .gguf) a folder, whole or damaged in one known way. */
#define _GNU_SOURCE /* memmem */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/tiny_model.h"

static const char victim[] = "blk.1.ffn_up.weight"; /* the tensor that damage meets */

/* Place of the victim's entry: name, u32 rank, u64 dims[rank], u32 type, u64 offset. */
static uint8_t *find_victim(uint8_t *bytes, int64_t n) {
    size_t len = strlen(victim);
    for (int64_t i = 0; i + (int64_t)len + 64 < n; i++)
        if (memcmp(bytes + i, victim, len) == 0) return bytes + i;
    return NULL;
}

static rk_status damage(const char *kind, uint8_t *bytes, int64_t *n) {
    uint8_t *at = find_victim(bytes, *n), *dims = at ? at + strlen(victim) + 4 : NULL;
    if (!at) return RK_FAIL(RK_E_BUG, "the model has no %s", victim);
    if (strcmp(kind, "truncated-head") == 0)
        *n = 100;
    else if (strcmp(kind, "truncated-data") == 0)
        *n -= 1000;
    else if (strcmp(kind, "magic") == 0)
        bytes[0] = 'X';
    else if (strcmp(kind, "version") == 0)
        bytes[4] = 99;
    else if (strcmp(kind, "tensor-count") == 0)
        memset(bytes + 8, 0x7f, 8);
    else if (strcmp(kind, "offset") == 0)
        memset(dims + 20, 0x60, 8); /* a multiple of the alignment */
    else if (strcmp(kind, "type") == 0)
        dims[16] = 77;
    else if (strcmp(kind, "huge-shape") == 0)
        memset(dims, 0x7f, 8);
    else if (strcmp(kind, "shape") == 0)
        dims[8] = (uint8_t)(dims[8] - 1); /* one row less */
    else if (strcmp(kind, "twice") == 0)
        at[4] = '3'; /* blk.1 -> blk.3 */
    else if (strcmp(kind, "unknown") == 0)
        at[strlen("blk.1.ffn_")] = 'x';
    else
        return RK_FAIL(RK_E_USAGE, "unknown damage %s", kind);
    return RK_OK;
}

/* A folder whose safetensors lack a tensor: its entry in the header becomes blanks. */
static rk_status write_folder_without(const char *path, const rk_tiny_spec *spec) {
    static const char name[] = "\"model.layers.1.mlp.up_proj.weight\":";
    char              file[4096];
    uint8_t          *bytes;
    int64_t           n;
    RK_TRY(rk_tiny_model_write_folder(path, spec));
    RK_TRY(rk_tiny_model_safetensors_bytes(spec, &bytes, &n));
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    rk_status st = RK_OK;
    uint8_t  *at = memmem(bytes, (size_t)n, name, strlen(name));
    uint8_t  *end = at ? memchr(at, '}', (size_t)(bytes + n - at)) : NULL;
    if (!end || end[1] != ',')
        st = RK_FAIL(RK_E_BUG, "the header does not look as expected");
    else
        memset(at, ' ', (size_t)(end + 2 - at));
    if (st == RK_OK) st = rk_tiny_write_file(file, bytes, n);
    rk_mem_free(bytes);
    return st;
}

static rk_status make(const char *path, const rk_tiny_spec *spec, const char *kind) {
    size_t   len = strlen(path);
    bool     gguf = len > 5 && strcmp(path + len - 5, ".gguf") == 0;
    uint8_t *bytes;
    int64_t  n;
    if (!gguf && kind) return write_folder_without(path, spec);
    if (!gguf) return rk_tiny_model_write_folder(path, spec);
    RK_TRY(rk_tiny_model_gguf_bytes(spec, &bytes, &n));
    rk_status st = kind ? damage(kind, bytes, &n) : RK_OK;
    if (st == RK_OK) st = rk_tiny_write_file(path, bytes, n);
    rk_mem_free(bytes);
    return st;
}

int main(int argc, char **argv) {
    rk_tiny_spec spec = rk_tiny_default();
    const char  *kind = NULL;
    for (int i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--layers") == 0) spec.n_layers = atoi(argv[i + 1]);
        if (strcmp(argv[i], "--seed") == 0) spec.seed = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--damage") == 0) kind = argv[i + 1];
        for (int t = 0; strcmp(argv[i], "--type") == 0 && t < 64; t++)
            if (strcmp(argv[i + 1], rk_ggml_type_name(t)) == 0) spec.type = t;
    }
    if (argc < 2 || argc % 2 != 0) {
        fprintf(stderr, "make_tiny OUT [--layers L] [--seed S] [--type T] [--damage KIND]\n");
        return 2;
    }
    rk_status st = make(argv[1], &spec, kind);
    if (st != RK_OK) rk_err_print(rk_err_last());
    return (int)st;
}
