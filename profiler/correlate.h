/* correlate.h - rank correlation for profiles. */
#pragma once
#include "base/err.h"

/* Spearman's rho with mean ranks for ties; NaN for n < 2 or a constant side. */
double rk_spearman(const double *a, const double *b, int n);

/* Spearman's rho between the mean over rows of x and y, and its 95 % percentile interval when rows
 * (documents) are drawn anew with replacement.
 * Shapes: x [n_rows][n], y [n]; ci [2] out. Errors: RK_E_MEM */
rk_status rk_spearman_bootstrap(const double *x, int n_rows, const double *y, int n, int n_resamples,
                                uint64_t seed, double *rho, double ci[2]);
