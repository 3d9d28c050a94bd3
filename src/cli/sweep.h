/* sweep.h - the cache configurations that one run compares.
 *
 * Without --sweep there is one, the command line's own, named "cache". A sweep file has one a line,
 *   NAME: --option value ...
 * with the options of the group Cache, over those of the command line; '#' begins a comment. */
#pragma once
#include "cli/cache.h"
#include "cli/cli.h"

typedef struct rk_sweep_entry {
    char            *name;
    rk_options       o; /* the line's options over the command's */
    rk_select_params select;
    rk_cache_plan    cache; /* after rk_sweep_open; nothing where the whole cache is kept */
    char            *text;  /* what o's texts point into */
    char           **argv;
} rk_sweep_entry;

typedef struct rk_sweep {
    rk_sweep_entry *at;
    int             n;
} rk_sweep;

/* Read names and options; rk_sweep_close in any case.
 * Errors: RK_E_INPUT no file, no lines, a line without a name, a name twice; RK_E_USAGE with file
 *         and line what the options' own checks say
 * Ranks:  local, every rank alike */
rk_status rk_sweep_parse(const rk_cli *c, rk_sweep *out);

/* Read the sensitivity files and lists that the entries name. Ranks: world rank 0 only (HDF5) */
rk_status rk_sweep_open(rk_sweep *s, const rk_config *model);
void      rk_sweep_close(rk_sweep *s);

/* What the policies of all entries need, for the engine's configuration.
 * Errors: RK_E_USAGE they cannot share a prefill */
rk_status rk_sweep_observe(const rk_sweep *s, rk_observation *out);

/* Budgets of an entry for a prompt of n tokens. Shapes: budget [L] out */
rk_status rk_sweep_split(const rk_sweep_entry *e, int n_layers, int64_t n, int32_t *budget);
