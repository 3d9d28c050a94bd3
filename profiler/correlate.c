/* correlate.c - see correlate.h.
 *
 * The mean rank of a value is (number below) + (number equal + 1) / 2: counting needs no sort and
 * no memory, gives ties their mean by itself, and n is a number of layers. */
#include "profiler/correlate.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/rng.h"

/* Rank of x[i] minus the mean of all ranks; a multiple of 1/2, so exact. */
static double centred_rank(const double *x, int n, int i) {
    int below = 0, equal = 0;
    for (int j = 0; j < n; j++) {
        below += x[j] < x[i];
        equal += x[j] == x[i];
    }
    return below + (equal + 1) / 2.0 - (n + 1) / 2.0;
}

double rk_spearman(const double *a, const double *b, int n) {
    double aa = 0, bb = 0, ab = 0;
    for (int i = 0; i < n; i++) {
        if (isnan(a[i]) || isnan(b[i])) return NAN;
        double u = centred_rank(a, n, i), v = centred_rank(b, n, i);
        aa += u * u;
        bb += v * v;
        ab += u * v;
    }
    return n >= 2 && aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : NAN;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Row drawn i-th in a resampling: a multiply-shift of 32 random bits. */
static int draw_row(uint64_t seed, int resample, int i, int n_rows) {
    uint32_t c[4] = {(uint32_t)i, (uint32_t)resample, 0x626f6f74u /* "boot" */, 0};
    rk_rng_philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
    return (int)((uint64_t)c[0] * (uint64_t)n_rows >> 32);
}

static void percentiles(double *v, int n, double ci[2]) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    ci[0] = v[(int)(0.025 * (n - 1) + 0.5)];
    ci[1] = v[(int)(0.975 * (n - 1) + 0.5)];
}

rk_status rk_spearman_bootstrap(const double *x, int n_rows, const double *y, int n,
                                int n_resamples, uint64_t seed, double *rho, double ci[2]) {
    double *mean = NULL, *all = NULL;
    RK_TRY(rk_mem_alloc_to(n + (int64_t)n_resamples, sizeof(double), "resamples", &mean));
    all = mean + n;
    for (int b = -1; b < n_resamples; b++) { /* -1: the rows as they are */
        for (int j = 0; j < n; j++) mean[j] = 0;
        for (int i = 0; i < n_rows; i++) {
            const double *row = x + (int64_t)(b < 0 ? i : draw_row(seed, b, i, n_rows)) * n;
            for (int j = 0; j < n; j++) mean[j] += row[j] / n_rows;
        }
        double r = rk_spearman(mean, y, n);
        if (b < 0)
            *rho = r;
        else
            all[b] = r;
    }
    ci[0] = ci[1] = NAN;
    if (n_resamples > 0 && !isnan(*rho)) percentiles(all, n_resamples, ci);
    rk_mem_free(mean);
    return RK_OK;
}
