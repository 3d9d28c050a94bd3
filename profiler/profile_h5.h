/* profile_h5.h - the sensitivity file (HDF5) and nothing else about profiling.
 *
 * Serial HDF5, rank 0 only, locking off, no object times: equal profiles are equal bytes but for the
 * attributes ranks, replicas, threads and command. Written as temporary + fsync + rename. */
#pragma once
#include "base/err.h"

typedef struct rk_profile {
    /* sizes */
    int n_layers, n_samples, n_epsilon, n_draws; /* L, N, E, D */
    /* results */
    double  *kl;            /* [N][E][D][L] nats; NaN: not done */
    uint8_t *done;          /* [N] */
    int32_t *prompt_tokens; /* [N] */
    uint64_t *hash;         /* [N] of the sample's tokens */
    double  *sensitivity, *sensitivity_std; /* [L], by rk_profile_reduce */
    double   noise_floor;   /* mean KL of the epsilon 1e-3 variants; NaN: none */
    double  *floor_kl;      /* [N] its per-sample values; NaN: not done (not stored) */
    /* root attributes */
    double  *epsilon;       /* [E] */
    uint64_t seed;
    int64_t  context, response;
    int      n_kv_heads, head_dim, ranks, replicas, threads;
    uint64_t model_shape_hash, weights_hash, calibration_hash;
    char     model_name[128], backend[16], dtype[16], numerics[16], weights[16], signal[32];
    char    *command;       /* from rk_mem */
    char     version[64];
} rk_profile;

/* Allocate the arrays (kl and floor NaN, done 0). */
rk_status rk_profile_init(rk_profile *p, int n_layers, int n_samples, int n_epsilon, int n_draws);
void      rk_profile_free(rk_profile *p);

/* sensitivity[l] = mean over done samples and draws at the first epsilon; std over samples (of the
 * draws' means, n - 1; 0 with one sample); noise_floor = mean over done samples. Sums in index
 * order, f64. Errors: RK_E_NO no sample is done */
rk_status rk_profile_reduce(rk_profile *p);

/* Errors: RK_E_OUTPUT naming path and reason; no partial file stays */
rk_status rk_profile_write(const rk_profile *p, const char *path);

/* Check before work starts that path's folder is writable. RK_E_OUTPUT */
rk_status rk_profile_probe(const char *path);

/* Read and verify format, version, every dataset's shape.
 * Errors: RK_E_INPUT not HDF5, not a sensitivity file, newer version, damaged; names the path */
rk_status rk_profile_read(const char *path, rk_profile *out);
