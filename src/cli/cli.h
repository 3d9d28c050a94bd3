/* cli.h - what the commands share: the surroundings of a run, and results as text.
 *
 * A command returns its status; main prints the record of a failure and ends the process. What all
 * ranks find alike or agree on through rk_cli_phase ends with every rank leaving in order; any
 * other failure is printed by the rank that has it, which then ends the job for all. */
#pragma once
#include "base/json.h"
#include "cli/options.h"
#include "core/select.h"
#include "pipeline/engine.h"

typedef struct rk_cli {
    const rk_options *o;
    int               argc;
    char *const      *argv;
    rk_comm          *world;    /* NULL: started without MPI */
    bool              leader;   /* world rank 0 */
    bool              agreed;   /* the failure is known to all ranks */
    bool              reporter; /* and this one prints it */
} rk_cli;

rk_status rk_cmd_profile(rk_cli *c);
rk_status rk_cmd_budget(rk_cli *c);
rk_status rk_cmd_generate(rk_cli *c);
rk_status rk_cmd_bench(rk_cli *c);
rk_status rk_cmd_eval(rk_cli *c);
rk_status rk_cmd_inspect(rk_cli *c);
rk_status rk_cmd_version(rk_cli *c);

/* Ranks: collective. The border of a phase: all ranks get the status of the first that failed. A
 * lost peer is not discussed with the others. */
rk_status rk_cli_phase(rk_cli *c, rk_status mine);

/* From now on SIGTERM, SIGINT and SIGUSR1 ask to stop: the value pointed to becomes 1 at the first; a
 * second one ends the program. */
const volatile int *rk_cli_catch_signals(void);

/* Ranks: collective. Wait for replicas, which end at different times, each after many steps: the
 * deadline is that of a job. */
rk_status rk_cli_wait_for_replicas(rk_cli *c);

/* One line with every setting in effect. */
void rk_cli_log_settings(const rk_options *o);

/* Threads of this rank: --threads, or its share of the cores of its node when it is not bound. */
int rk_cli_threads(const rk_options *o, const rk_comm *comm);

/* Rows of a prefill slot: --chunk, or for "auto" 512 on one stage and smaller ones on several, so
 * that a prompt fills the pipeline. */
int64_t rk_cli_chunk(const rk_options *o, int64_t n_prompt, int n_stages);

/* Ranks: collective. The engine's order of sums: --numerics, or what suits all ranks of the run; and
 * its instruction set: NULL for the best, or for tests what RIPPLEKV_ISA says.
 * Errors: RK_E_USAGE this CPU lacks that path */
rk_status rk_cli_path(rk_cli *c, rk_engine_config *cfg);

/* Whether quantised matrices stay so: as --weights says, else where the file has them; and what a
 * result says of it. Errors: RK_E_USAGE native is asked of a model that has none */
bool        rk_cli_native(const rk_options *o, const rk_weights *w);
rk_status   rk_cli_check_weights(const rk_options *o, const rk_weights *w);
const char *rk_cli_weights_form(rk_engine *e);

/* What a result's numbers depend on: backend, numerics, weights, and the leader's path. */
void rk_cli_set_numbers(rk_json *o, rk_engine *e);

/* The policy of a run: full where the cache is kept whole; and the one that the options name even
 * so, for commands that cut at levels of their own. */
rk_select_params rk_cli_select(const rk_options *o);
rk_select_params rk_cli_policy(const rk_options *o);

/* Memory of a run that is not started, as text or as JSON's `stages`.
 * Shapes: begin [n_stages + 1] of rk_engine_partition_of */
rk_json  *rk_cli_dry_stages(const rk_weights *w, const rk_engine_config *e, int n_stages,
                            const int *begin);
void      rk_cli_show_stages(const rk_json *stages);

/* Times and bytes of each stage of a finished run. Shapes: s [n] */
rk_json *rk_cli_stages(const rk_engine *e);
rk_json *rk_cli_stages_of(const rk_stage_stats *s, int n);

/* "######    " of `width` characters for value out of top; returns buf. */
enum { RK_BAR_CAP = 128 };
const char *rk_cli_bar(double value, double top, int width, char buf[RK_BAR_CAP]);

/* Layer, value and bar of each layer, with tokens where budget is not NULL. std may be NULL. */
void rk_cli_show_layers(int n_layers, const double *sensitivity, const double *std,
                        const int32_t *budget);

/* A whole file; one byte 0 follows. Errors: RK_E_INPUT. Owner: *text from rk_mem */
rk_status rk_cli_read_file(const char *path, char **text, int64_t *n);

/* Print a value as one line on stdout and free it. */
void rk_cli_print_json(rk_json *j);

/* Flush stdout. Errors: RK_E_OUTPUT what was written did not all arrive */
rk_status rk_cli_flush_stdout(void);

/* Hash as 16 hex digits under a key. */
void rk_cli_set_hash(rk_json *o, const char *key, uint64_t hash);
