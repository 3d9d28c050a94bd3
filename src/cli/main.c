/* main.c - the start and the only end of the program. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli/cli.h"

static rk_status (*const commands[RK_CMDS])(rk_cli *c) = {
    [RK_CMD_PROFILE] = rk_cmd_profile,   [RK_CMD_BUDGET] = rk_cmd_budget,
    [RK_CMD_GENERATE] = rk_cmd_generate, [RK_CMD_INSPECT] = rk_cmd_inspect,
    [RK_CMD_VERSION] = rk_cmd_version,   [RK_CMD_BENCH] = rk_cmd_bench,
    [RK_CMD_EVAL] = rk_cmd_eval,
};

static rk_status help(const rk_options *o) {
    rk_command about = o->command == RK_CMD_HELP ? RK_CMDS : o->command;
    if (o->command == RK_CMD_HELP && o->positional)
        for (about = 0; strcmp(rk_command_name(about), o->positional) != 0;) about++;
    if (o->markdown)
        rk_options_markdown();
    else
        rk_options_help(about);
    return rk_cli_flush_stdout();
}

/* Does the launcher say that there are several ranks? Commands that work alone then still start
 * MPI, so that rank 0 speaks for all and no rank ends before it has spoken. */
static bool among_others(void) {
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *v = getenv(sizes[i]);
        if (v && atoi(v) > 1) return true;
    }
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
    return getenv("PMIX_RANK") && tasks && atoi(tasks) > 1;
}

static bool needs_ranks(const rk_options *o) {
    return !o->help && rk_command_has_model(o->command);
}

/* Without MPI's help: is this a rank that leaves the talking to rank 0? */
static bool is_other_rank(void) {
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        const char *v = getenv(ranks[i]);
        if (v && *v) return atoi(v) > 0;
    }
    return false;
}

static rk_status run(rk_cli *c) {
    const rk_options *o = c->o;
    if (o->log) RK_TRY(rk_log_set_spec(o->log));
    if (!rk_log_on(RK_LOG_INFO, "progress")) rk_progress_disable();
    if (c->world && needs_ranks(o)) {
        rk_comm_set_timeout(c->world, o->timeout);
        return commands[o->command](c);
    }
    if (!c->leader) return RK_OK;
    if (o->help || o->command == RK_CMD_HELP) return help(o);
    return commands[o->command](c);
}

/* The rank that learned of a failure from another one's agreement stays silent. */
static bool learned(rk_status st) {
    const rk_err_record *r = rk_err_last();
    return st != RK_E_PEER && r->func && strcmp(r->func, "rk_comm_agree") == 0;
}

/* End of a job whose ranks do not all know of a failure: who has it says it and ends the others. */
static void settle(rk_status st) {
    if (learned(st)) return; /* the one who failed speaks, and may end this rank any moment */
    rk_err_print(rk_err_last());
    rk_comm_abort(st);
}

static rk_status run_among_ranks(rk_cli *c, rk_status parsed) {
    rk_status st = parsed;
    c->leader = rk_comm_rank(c->world) == 0;
    if (st == RK_OK) st = run(c);
    bool alike = parsed != RK_OK || !needs_ranks(c->o);
    /* A command for rank 0 alone, bad usage, and a profile stopped or of other journals: found by
     * all ranks at the same place. */
    if (!c->agreed && (alike || st == RK_E_STOPPED || st == RK_E_USAGE)) st = rk_cli_phase(c, st);
    if (c->agreed && c->reporter) rk_err_print(rk_err_last());
    if (st != RK_OK && !c->agreed) settle(st);
    rk_comm_finish(c->world);
    return st;
}

int main(int argc, char **argv) {
    rk_options o = {.command = RK_CMD_HELP};
    rk_cli     c = {.o = &o, .argc = argc, .argv = argv, .leader = true};
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a write that failed */
    rk_status parsed = rk_options_parse(argc, argv, &o), st = parsed;
    if (among_others() || (parsed == RK_OK && needs_ranks(&o))) {
        st = rk_comm_start(&argc, &argv, &c.world);
        if (st == RK_OK) exit((int)run_among_ranks(&c, parsed));
        if (!is_other_rank()) rk_err_print(rk_err_last());
        exit((int)st);
    }
    if (st == RK_OK) st = run(&c);
    if (st != RK_OK) rk_err_print(rk_err_last());
    exit((int)st);
}
