/* engine_fixture.h - an engine of one rank over a model, for golden tests and the like. */
#pragma once
#include "pipeline/engine.h"

typedef struct rk_fixture {
    rk_weights *weights;
    rk_engine  *engine;
} rk_fixture;

/* SnapKV, window 32, max pool 7, mean: the goldens' own. */
rk_select_params rk_fixture_snap(void);

/* This process as a communicator of one rank; MPI starts at the first call and ends at exit. */
rk_comm *rk_fixture_comm(void);

/* A config with room for one sequence; change it, then open. */
rk_engine_config rk_fixture_config(const char *backend, int64_t max_prompt, int64_t max_new);

/* Open model and engine; on failure prints the record and returns false. */
bool rk_fixture_open(const char *model_path, const rk_engine_config *cfg, rk_fixture *f);
void rk_fixture_close(rk_fixture *f);

/* Index of the largest value, the lowest on ties. */
int rk_argmax(const float *row, int n);
/* KL(softmax(a) || softmax(b)) in f64. */
double rk_row_kl(const float *a, const float *b, int n);
