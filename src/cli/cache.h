/* cache.h - from the cache options to budgets per layer. */
#pragma once
#include "cli/options.h"
#include "core/budget.h"
#include "core/config.h"

typedef struct rk_cache_plan {
    const rk_options *o;
    rk_allocator      allocator;
    int               n_layers;
    double           *sensitivity, *shares; /* [L] or NULL */
    double           *local;                /* [L] where the file has it */
    double           *entropy, *variance;   /* [L] where the file has them */
    rk_curve_data     curve;                /* of the file's damages; n_levels 0: none */
    double           *levels, *damage;      /* what curve borrows */
    rk_curve_choice   choice;               /* --curve-mean and --shrink, or by cross-validation */
    int64_t           context;              /* of the file's samples */
    uint64_t          weights_hash;         /* of the sensitivity file; 0: none was read */
} rk_cache_plan;

/* Read what the options name. model may be NULL (then --sensitivity says how many layers there
 * are).
 * Errors: RK_E_INPUT sensitivity or list of another model, unreadable; RK_E_USAGE a rule's options
 * Ranks:  world rank 0 only (HDF5) */
rk_status rk_cache_plan_open(const rk_options *o, const rk_config *model, rk_cache_plan *out);
void      rk_cache_plan_close(rk_cache_plan *p);

/* The same with another allocator, for comparisons. Shapes: budget [L] out */
rk_status rk_cache_plan_split_by(const rk_cache_plan *p, rk_allocator a, int64_t n, int32_t *budget,
                                 rk_budget_result *result);

/* Budgets of a prompt of n tokens; of a full cache n each. Shapes: budget [L] out */
rk_status rk_cache_plan_split(const rk_cache_plan *p, int64_t n, int32_t *budget,
                              rk_budget_result *result);
