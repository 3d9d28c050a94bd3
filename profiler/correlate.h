/* correlate.h - rank correlation for profiles. */
#pragma once
#include "base/err.h"

/* Spearman's rho with mean ranks for ties; NaN for n < 2 or a constant side. */
double rk_spearman(const double *a, const double *b, int n);
