/* profile_h5.h - the sensitivity file (HDF5) and nothing else about profiling.
 *
 * Serial HDF5, rank 0 only, locking off, no object times: equal profiles are equal bytes but for the
 * attributes ranks, replicas, threads and command. Written as temporary + fsync + rename. */
#pragma once
#include "profiler/profile.h"

/* Errors: RK_E_OUTPUT naming path and reason; no partial file stays */
rk_status rk_profile_write(const rk_profile *p, const char *path);

/* Check before work starts that path's folder is writable. RK_E_OUTPUT */
rk_status rk_profile_probe(const char *path);

/* Read and verify format, version, every dataset's shape.
 * Errors: RK_E_INPUT not HDF5, not a sensitivity file, newer version, damaged; names the path */
rk_status rk_profile_read(const char *path, rk_profile *out);
