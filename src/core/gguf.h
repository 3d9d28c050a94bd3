/* gguf.h - GGUF v3 files: metadata and tensor directory over a read-only mapping.
 *
 * Source: the GGUF specification (ggml project, docs/gguf.md). Every offset and count is checked
 * against the file before it is used; a malformed file gives RK_E_INPUT, never a crash. */
#pragma once
#include "base/err.h"
#include "base/tensor.h"

typedef struct rk_gguf rk_gguf;

/* Numbers of the ggml types that are read; others are refused by name. */
typedef enum rk_ggml_type {
    RK_GGML_F32 = 0,
    RK_GGML_F16 = 1,
    RK_GGML_Q4_0 = 2,
    RK_GGML_Q4_1 = 3,
    RK_GGML_Q5_0 = 6,
    RK_GGML_Q5_1 = 7,
    RK_GGML_Q8_0 = 8,
    RK_GGML_Q4_K = 12,
    RK_GGML_Q5_K = 13,
    RK_GGML_Q6_K = 14,
    RK_GGML_BF16 = 30,
} rk_ggml_type;

typedef struct rk_gguf_tensor {
    const char *name;   /* NUL-terminated */
    int         rank;
    int64_t     dim[4]; /* outermost first (the file stores them innermost first) */
    int         type;   /* ggml type number, checked to be one of rk_ggml_type when opened */
    const void *data;   /* in the mapping */
    int64_t     bytes;
} rk_gguf_tensor;

rk_status rk_gguf_open(const char *path, rk_gguf **out);
void      rk_gguf_close(rk_gguf *g);

int                   rk_gguf_n_tensors(const rk_gguf *g);
const rk_gguf_tensor *rk_gguf_tensor_at(const rk_gguf *g, int i);
const rk_gguf_tensor *rk_gguf_find(const rk_gguf *g, const char *name); /* NULL if absent */
const char           *rk_gguf_path(const rk_gguf *g);

/* Metadata. Absent or of another kind: the default. Strings are NUL-terminated copies owned by g;
 * len (may be NULL) is their byte count. Integer getters take any integer type. */
bool        rk_gguf_has(const rk_gguf *g, const char *key);
const char *rk_gguf_str(const rk_gguf *g, const char *key, const char *dflt);
int64_t     rk_gguf_int(const rk_gguf *g, const char *key, int64_t dflt);
double      rk_gguf_num(const rk_gguf *g, const char *key, double dflt);
bool        rk_gguf_bool(const rk_gguf *g, const char *key, bool dflt);
/* Arrays: length (-1 if absent or no array) and elements. */
int64_t     rk_gguf_arr_len(const rk_gguf *g, const char *key);
const char *rk_gguf_arr_str(const rk_gguf *g, const char *key, int64_t i, size_t *len);
int64_t     rk_gguf_arr_int(const rk_gguf *g, const char *key, int64_t i, int64_t dflt);
double      rk_gguf_arr_num(const rk_gguf *g, const char *key, int64_t i, double dflt);

/* Turn n consecutive elements of a ggml type into f32; n a multiple of the type's block.
 * Eq: f32(d) * q [+ f32(m)] per element, products and sums in f32 */
void        rk_ggml_dequant(int type, const void *src, int64_t n, float *dst);
const char *rk_ggml_type_name(int type); /* "Q4_1"; "type 99" for what is not known */
