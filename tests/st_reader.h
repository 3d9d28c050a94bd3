/* st_reader.h - tensors of a safetensors file, for tests.
 *
 * The file is mapped and checked when opened: header, dtypes, shapes, byte ranges, alignment. */
#pragma once
#include "base/err.h"
#include "base/tensor.h"

typedef struct rk_st rk_st;

/* Errors: RK_E_INPUT naming file and tensor */
rk_status rk_st_open(const char *path, rk_st **out);
void      rk_st_close(rk_st *s); /* NULL is fine */

/* A tensor's elements, valid until close, and its shape, outermost first (1 beyond its rank; dim
 * may be NULL). NULL where s is NULL or no tensor has this name, dtype and rank. */
const void *rk_st_get(const rk_st *s, const char *name, rk_dtype dtype, int rank, int64_t dim[4]);

/* Names in file order. */
int         rk_st_count(const rk_st *s);
const char *rk_st_name(const rk_st *s, int i);
