/* budget.h - from layer sensitivities to tokens per layer.
 *
 * Pure arithmetic: all ranks compute the same. Promises, each a test of that name:
 *   exact       the budgets sum to min(max(T, L lo), n L)
 *   bounded     lo <= budget[l] <= n
 *   monotone    a larger share never gets fewer tokens
 *   repeatable  same input, same output; a spare token goes to the lower layer */
#pragma once
#include "core/curve.h"

typedef enum rk_allocator {
    RK_ALLOC_UNIFORM,
    RK_ALLOC_PYRAMID, /* beta */
    RK_ALLOC_RIPPLE,  /* sensitivity, r, gamma */
    RK_ALLOC_LOCAL,   /* the same on the layers' own responses */
    RK_ALLOC_CAKE,    /* entropy, variance, tau */
    RK_ALLOC_CURVE,   /* curve, choice */
    RK_ALLOC_LIST,    /* shares as given */
} rk_allocator;

typedef struct rk_budget_spec {
    int           n_layers;    /* L of the whole model */
    int64_t       n_prompt;    /* n tokens */
    double        ratio;       /* kept share rho in (0, 1]; < 0: use tokens */
    int64_t       tokens;      /* mean per layer */
    rk_allocator  allocator;
    const double *sensitivity; /* [L], ripple; local: the local responses; borrowed */
    const double *entropy, *variance; /* [L], cake; borrowed */
    double        tau[2];      /* cake: of entropy, of variance; > 0 */
    const rk_curve_data *curve; /* curve; borrowed */
    rk_curve_choice      choice;
    const double *shares;      /* [L] >= 0, list; borrowed */
    double        r, gamma, beta;
    int           window, sinks;
} rk_budget_spec;

typedef struct rk_budget_result {
    int64_t lo;    /* floor of every layer */
    int64_t asked; /* T = round(rho n L), or tokens * L */
    int64_t total; /* sum of the budgets */
} rk_budget_result;

/* Budgets of all layers for one prompt.
 * Shapes: budget [L] out. Units: tokens per stored head.
 * Eq:     lo = min(n, max(window, sinks + 1)); ripple: w = clip(r^z, 1/gamma, gamma),
 *         z = (s - min) / (max - min), 0 if constant (RKV-ALLOC); pyramid: a linear ramp; cake:
 *         p = entropy^(1/tau0) variance^(1/tau1), what lies beside the window shared in proportion
 *         (CAKE, whose statistics are of each prompt; here they are means over calibration texts);
 *         curve: curve.h
 * Errors: RK_E_USAGE ratio, r, gamma, beta out of range; RK_E_INPUT NaN or negative sensitivity */
rk_status rk_budget_split(const rk_budget_spec *spec, int32_t *budget, rk_budget_result *result);

/* The one integeriser: the scale c with sum clamp(c share, lo, n) = total, floors, and the rest one
 * each to the largest remainders (tie: lower layer). 1 <= lo and lo L <= total <= n L must hold.
 * Shares of 0 stay at lo until all positive ones are at n; then the rest is spread equally. */
rk_status rk_budget_integerise(int n_layers, const double *share, int64_t lo, int64_t n,
                               int64_t total, int32_t *budget);

/* What every layer keeps at least: min(n, max(window, sinks + 1)). */
int64_t rk_budget_floor(int64_t n, int window, int sinks);

/* Tokens of one layer that is cut alone to a share of the prompt: the share rounded half away from
 * zero, within [lo, n]. */
int32_t rk_budget_of_level(double level, int64_t n, int window, int sinks);

/* Ripple's multipliers before the integeriser. w [L] out. */
rk_status rk_budget_ripple_weights(int n_layers, const double *sensitivity, double r, double gamma,
                                   double *w);

rk_status   rk_allocator_parse(const char *name, rk_allocator *out); /* without "list:FILE" */
const char *rk_allocator_name(rk_allocator a);
/* L numbers from a text file (white space or commas between; '#' comments) or a JSON array. */
rk_status rk_budget_load_list(const char *path, int n_layers, double *shares);
