/* profile.h - what a profile holds, in memory. */
#pragma once
#include "base/err.h"

/* The policy that damage was measured with, as the options name it. */
typedef struct rk_profile_policy {
    char   policy[16], pool[8], group_reduce[8], head_mode[16];
    int    window, sinks, kernel, pool_first;
    double alpha;
} rk_profile_policy;

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
    /* where measured, else NULL; NaN: not done */
    double  *local;         /* [N][L] relative change of the layer's own attention output under the
                               noise of the first epsilon, mean over draws */
    double  *entropy, *variance; /* [N][L] of the window's attention (CAKE's H and V, observe.h) */
    double  *damage;        /* [N][K][L] KL in nats with the layer alone cut to a level by a policy */
    int      n_levels;      /* K; 0: no damage */
    double  *levels;        /* [K] kept shares of the prompt, ascending, in (0, 1] */
    rk_profile_policy policy; /* of the damage */
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
/* Make room for the layers' own responses, and for damages at K levels (copied); all NaN. */
rk_status rk_profile_add_local(rk_profile *p);
rk_status rk_profile_add_attention(rk_profile *p);
rk_status rk_profile_add_damage(rk_profile *p, const double *levels, int n_levels);

/* Mean over done samples of values [N][L] (local, entropy, variance), and of damage at each level.
 * Shapes: out [L]; out [K][L]. Errors: RK_E_NO no sample is done */
rk_status rk_profile_mean(const rk_profile *p, const double *values, double *out);
rk_status rk_profile_mean_damage(const rk_profile *p, double *out);

/* sensitivity[l] = mean over done samples and draws at the first epsilon; std over samples (of the
 * draws' means, n - 1; 0 with one sample); noise_floor = mean over done samples. Sums in index
 * order, f64. Errors: RK_E_NO no sample is done */
rk_status rk_profile_reduce(rk_profile *p);
