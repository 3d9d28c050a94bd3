/* roof.h - the most that this machine does of the arithmetic and the reading that a backend needs:
 * what measured speeds are compared with. They are measured themselves, since data sheets know
 * neither virtual cores nor neighbours. */
#pragma once
#include "kernels/backend.h"

typedef struct rk_roofs {
    const char *flop_kind; /* instruction of the path in use, "vdpbf16ps zmm"; static */
    const char *int8_kind; /* "vpdpbusd zmm"; NULL: none on this path */
    int         n_threads;
    double      flop_s;                 /* multiply and add count one each; all threads together */
    double      int8_op_s;              /* likewise; 0: none */
    double      memory_read_s;          /* bytes a second, all threads; 0: no memory to try it */
    double      l2_read_s;              /* bytes a second, each thread in its own cache */
    int64_t     memory_bytes, l2_bytes; /* of the buffers read, all threads */
} rk_roofs;

/* Medians of short runs on all threads of a host backend at once. memory_bytes: of the buffer that
 * memory is read from (0: 512 MiB); less where that would take more than half of what is free.
 * Errors: RK_E_BUG a path without a roof, or one that this CPU lacks; RK_E_MEM
 * Ranks:  local.  Cost: below 1.5 s */
rk_status rk_roof_measure(rk_backend *be, int64_t memory_bytes, rk_roofs *out);
