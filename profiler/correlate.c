/* correlate.c - see correlate.h.
 *
 * The mean rank of a value is (number below) + (number equal + 1) / 2: counting needs no sort and
 * no memory, gives ties their mean by itself, and n is a number of layers. */
#include "profiler/correlate.h"

#include <math.h>

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
