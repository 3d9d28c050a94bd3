/* engine_fixture.c - see engine_fixture.h. */
#include "tests/engine_fixture.h"

#include <math.h>
#include <stdlib.h>

#include "base/log.h"

static rk_comm *world;

static void end_world(void) {
    rk_comm_finish(world);
    world = NULL;
}

rk_comm *rk_fixture_comm(void) {
    if (world) return world;
    if (rk_comm_start(NULL, NULL, &world) != RK_OK) {
        rk_err_print(rk_err_last());
        exit(1);
    }
    rk_comm_set_timeout(world, 600);
    atexit(end_world);
    return world;
}

rk_select_params rk_fixture_snap(void) {
    return (rk_select_params){.policy = RK_POLICY_SNAPKV,
                              .window = 32,
                              .sinks = 4,
                              .pool = RK_POOL_MAX,
                              .kernel = 7,
                              .group_reduce = RK_REDUCE_MEAN};
}

rk_engine_config rk_fixture_config(const char *backend, int64_t max_prompt, int64_t max_new) {
    return (rk_engine_config){.backend = backend,
                              .chunk = 512,
                              .max_sequences = 1,
                              .max_prompt = max_prompt,
                              .max_new = max_new,
                              .select = rk_fixture_snap(),
                              .quiet = true};
}

bool rk_fixture_open(const char *model_path, const rk_engine_config *cfg, rk_fixture *f) {
    *f = (rk_fixture){0};
    if (rk_weights_open(model_path, &f->weights) == RK_OK &&
        rk_engine_open(rk_fixture_comm(), f->weights, cfg, &f->engine) == RK_OK)
        return true;
    rk_err_print(rk_err_last());
    rk_fixture_close(f);
    return false;
}

void rk_fixture_close(rk_fixture *f) {
    rk_engine_close(f->engine);
    rk_weights_close(f->weights);
    *f = (rk_fixture){0};
}

int rk_argmax(const float *row, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

static double log_sum(const float *row, int n, double max) {
    double s = 0;
    for (int i = 0; i < n; i++) s += exp(row[i] - max);
    return max + log(s);
}

double rk_row_kl(const float *a, const float *b, int n) {
    double la = log_sum(a, n, a[rk_argmax(a, n)]), lb = log_sum(b, n, b[rk_argmax(b, n)]), kl = 0;
    for (int i = 0; i < n; i++) kl += exp(a[i] - la) * ((a[i] - la) - (b[i] - lb));
    return kl;
}
