/* profile.c - see profile.h. */
#include "profiler/profile.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

static rk_status new_array(int64_t n, size_t size, const char *what, void *out) {
    void *p;
    RK_TRY(rk_mem_alloc(n, (int64_t)size, what, &p));
    memcpy(out, &p, sizeof p);
    return RK_OK;
}

rk_status rk_profile_init(rk_profile *p, int n_layers, int n_samples, int n_epsilon, int n_draws) {
    rk_status st = RK_OK;
    int64_t   n = n_samples, all = (int64_t)n_layers * n_epsilon;
    memset(p, 0, sizeof *p);
    if (n_layers < 1 || n_samples < 1 || n_epsilon < 1 || n_draws < 1)
        return RK_FAIL(RK_E_BUG, "a profile of %d layers, %d samples, %d epsilons and %d draws",
                       n_layers, n_samples, n_epsilon, n_draws);
    if (__builtin_mul_overflow(all, (int64_t)n_draws, &all) || __builtin_mul_overflow(all, n, &all))
        return RK_FAIL(RK_E_MEM, "a profile of %d layers x %d samples x %d epsilons x %d draws",
                       n_layers, n_samples, n_epsilon, n_draws);
    p->n_layers = n_layers;
    p->n_samples = n_samples;
    p->n_epsilon = n_epsilon;
    p->n_draws = n_draws;
    RK_TRY_OUT(st, new_array(all, sizeof *p->kl, "profile values", &p->kl));
    RK_TRY_OUT(st, new_array(n, sizeof *p->done, "profile samples", &p->done));
    RK_TRY_OUT(st, new_array(n, sizeof *p->prompt_tokens, "profile samples", &p->prompt_tokens));
    RK_TRY_OUT(st, new_array(n, sizeof *p->hash, "profile samples", &p->hash));
    RK_TRY_OUT(st, new_array(n, sizeof *p->floor_kl, "profile samples", &p->floor_kl));
    RK_TRY_OUT(st, new_array(n_layers, sizeof(double), "sensitivity", &p->sensitivity));
    RK_TRY_OUT(st, new_array(n_layers, sizeof(double), "sensitivity", &p->sensitivity_std));
    RK_TRY_OUT(st, new_array(n_epsilon, sizeof(double), "profile epsilons", &p->epsilon));
    for (int64_t i = 0; i < all; i++) p->kl[i] = NAN;
    for (int64_t i = 0; i < n; i++) p->floor_kl[i] = NAN;
    for (int l = 0; l < n_layers; l++) p->sensitivity[l] = p->sensitivity_std[l] = NAN;
    p->noise_floor = NAN;
out:
    if (st != RK_OK) rk_profile_free(p);
    return st;
}

void rk_profile_free(rk_profile *p) {
    rk_mem_free(p->kl);
    rk_mem_free(p->done);
    rk_mem_free(p->prompt_tokens);
    rk_mem_free(p->hash);
    rk_mem_free(p->floor_kl);
    rk_mem_free(p->sensitivity);
    rk_mem_free(p->sensitivity_std);
    rk_mem_free(p->epsilon);
    rk_mem_free(p->command);
    rk_mem_free(p->local);
    rk_mem_free(p->entropy);
    rk_mem_free(p->variance);
    rk_mem_free(p->damage);
    rk_mem_free(p->levels);
    memset(p, 0, sizeof *p);
}

/* Sum over the draws of sample i at the first epsilon, layer l. */
static double draw_sum(const rk_profile *p, int i, int l) {
    const double *kl = p->kl + (int64_t)i * p->n_epsilon * p->n_draws * p->n_layers;
    double        sum = 0;
    for (int d = 0; d < p->n_draws; d++) sum += kl[(int64_t)d * p->n_layers + l];
    return sum;
}

rk_status rk_profile_reduce(rk_profile *p) {
    int    n = 0, n_floor = 0;
    double floor_sum = 0;
    for (int i = 0; i < p->n_samples; i++) {
        if (!p->done[i]) continue;
        n++;
        if (isnan(p->floor_kl[i])) continue; /* this sample held no epsilon 1e-3 variant */
        floor_sum += p->floor_kl[i];
        n_floor++;
    }
    if (n == 0)
        return RK_FAIL(RK_E_NO, "no sample of %d is done: there is no sensitivity yet",
                       p->n_samples);
    for (int l = 0; l < p->n_layers; l++) {
        double sum = 0, square = 0;
        for (int i = 0; i < p->n_samples; i++)
            if (p->done[i]) sum += draw_sum(p, i, l);
        double mean = sum / ((double)n * p->n_draws);
        for (int i = 0; i < p->n_samples; i++) {
            double off = p->done[i] ? draw_sum(p, i, l) / p->n_draws - mean : 0;
            square += off * off;
        }
        p->sensitivity[l] = mean;
        p->sensitivity_std[l] = n > 1 ? sqrt(square / (n - 1)) : 0;
    }
    p->noise_floor = n_floor ? floor_sum / n_floor : NAN;
    return RK_OK;
}

static rk_status new_values(int64_t n, const char *what, double **out) {
    RK_TRY(new_array(n, sizeof(double), what, out));
    for (int64_t i = 0; i < n; i++) (*out)[i] = NAN;
    return RK_OK;
}

rk_status rk_profile_add_local(rk_profile *p) {
    return new_values((int64_t)p->n_samples * p->n_layers, "local responses", &p->local);
}

rk_status rk_profile_add_attention(rk_profile *p) {
    int64_t n = (int64_t)p->n_samples * p->n_layers;
    RK_TRY(new_values(n, "attention entropies", &p->entropy));
    return new_values(n, "attention variances", &p->variance);
}

rk_status rk_profile_add_damage(rk_profile *p, const double *levels, int n_levels) {
    int64_t n;
    RK_ASSERT(n_levels > 0);
    if (__builtin_mul_overflow((int64_t)p->n_samples * p->n_layers, (int64_t)n_levels, &n))
        return RK_FAIL(RK_E_MEM, "damages of %d levels", n_levels);
    RK_TRY(new_values(n, "damages", &p->damage));
    RK_TRY(new_array(n_levels, sizeof(double), "levels", &p->levels));
    memcpy(p->levels, levels, (size_t)n_levels * sizeof *levels);
    p->n_levels = n_levels;
    return RK_OK;
}

/* Mean over done samples of n values each. */
static rk_status mean_values(const rk_profile *p, const double *x, int64_t n, double *out) {
    int done = 0;
    for (int64_t k = 0; k < n; k++) out[k] = 0;
    for (int i = 0; i < p->n_samples; i++) {
        if (!p->done[i]) continue;
        done++;
        for (int64_t k = 0; k < n; k++) out[k] += x[i * n + k];
    }
    if (done == 0) return RK_FAIL(RK_E_NO, "no sample of %d is done", p->n_samples);
    for (int64_t k = 0; k < n; k++) out[k] /= done;
    return RK_OK;
}

rk_status rk_profile_mean(const rk_profile *p, const double *values, double *out) {
    return mean_values(p, values, p->n_layers, out);
}

rk_status rk_profile_mean_damage(const rk_profile *p, double *out) {
    return mean_values(p, p->damage, (int64_t)p->n_levels * p->n_layers, out);
}
