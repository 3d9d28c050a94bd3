/* profiler.h - measures every layer's sensitivity over a calibration set.
 *
 * Each sample is prefilled once; the reference, one variant per (epsilon, draw, layer), and where
 * damage is asked for one per (level, layer), run the response rows over the shared prompt cache
 * (engine measure). The layers' own responses (signal local) come with the noise variants. What is
 * measured beside the KL follows from out: its local and damage arrays. Work items are (sample, layer
 * range): with fewer samples than replicas a sample's layers are split. Item i goes to replica
 * i mod R; results depend on neither. Finished items go to the replica's journal; the HDF5 file is
 * built from the journals by world rank 0. Eq: RKV-SENS. */
#pragma once
#include "pipeline/engine.h"
#include "profiler/calibration.h"
#include "profiler/profile_h5.h"

typedef struct rk_profiler_job {
    const rk_calibration *calibration;
    const double         *epsilon; /* [E] */
    int                   n_epsilon, n_draws;
    const double         *levels;  /* [K] kept shares at which each layer is cut alone by the engine's
                                      policy (signal damage); K 0: not */
    int                   n_levels;
    int                   window, sinks; /* of the policy: the least that a layer keeps */
    uint64_t              seed;
    const char           *output;  /* HDF5 path; journals stand beside it */
    bool                  resume;
    volatile const int   *stop_request; /* set by a signal handler: end after the item in flight */
} rk_profiler_job;

typedef struct rk_profiler_cost {
    double   prefill_s;    /* median over this run's items */
    double   profile_s;    /* median of prefill + measurement of an item that holds all layers */
    double   prefills;     /* profile_s / prefill_s */
    uint64_t logits_hash;  /* over the reference rows' hashes in sample order; 0 if resumed parts
                              were not run again */
    int      n_resumed;    /* items taken from journals */
} rk_profiler_cost;

/* Ranks: collective over world. replica: this rank's communicator (size P) with its engine open;
 * replica_index of n_replicas. On world rank 0 *out is filled, reduced and written to output.
 * out was initialised by the caller (attributes and sizes) on all ranks.
 * Errors: RK_E_STOPPED on request after saving; RK_E_USAGE a journal of another job */
rk_status rk_profiler_run(rk_comm *world, rk_engine *e, rk_comm *replica, int replica_index,
                          int n_replicas, const rk_profiler_job *job, rk_profile *out,
                          rk_profiler_cost *cost);
