/* mem.h - counted host memory.
 *
 * All long-lived host memory of the program comes from here, so that "bytes in use" and "peak" are
 * measured and not computed. Blocks are zeroed and 64-byte aligned; large ones lie on their own
 * pages (2 MiB alignment and a request for huge pages) and return to the system when freed.
 * Thread-safe. */
#pragma once
#include "base/err.h"

/* Allocate count * size bytes, zeroed. what names the purpose in the message.
 * Owner:  free with rk_mem_free
 * Errors: RK_E_MEM with *out NULL; RK_E_BUG while frozen; count or size negative, product too big */
rk_status rk_mem_alloc(int64_t count, int64_t size, const char *what, void **out);

/* The same with the pointer stored in *slot, which is a pointer to any type of object. */
rk_status rk_mem_alloc_to(int64_t count, int64_t size, const char *what, void *slot);

/* Grow or shrink; the new part is zeroed. *ptr may be NULL. On failure *ptr stays valid. */
rk_status rk_mem_resize(void **ptr, int64_t count, int64_t size, const char *what);

void rk_mem_free(void *ptr); /* NULL is fine */

/* Copy a string. */
rk_status rk_mem_strdup(const char *s, char **out);

int64_t rk_mem_bytes(void);      /* in use now */
int64_t rk_mem_peak(void);       /* most since start or the last reset */
void    rk_mem_peak_reset(void); /* peak = in use now */
int64_t rk_mem_blocks(void);     /* live blocks: 0 at the end of a clean run */

/* While frozen every allocation fails with RK_E_BUG: steps must not allocate. */
void rk_mem_freeze(bool on);

/* Make the n-th allocation from now fail with RK_E_MEM (0: off). For tests. */
void rk_mem_fail_at(int64_t n);

/* Memory that the machine can still give this process: the least of MemAvailable, what its cgroups
 * (version 2) leave, and what `ulimit -v` leaves; INT64_MAX where unknown. */
int64_t rk_mem_available(void);

/* "1.2 GiB" into a caller's buffer of 32; returns buf. */
const char *rk_mem_human(int64_t bytes, char buf[32]);
