/* options.h - the one table of options.
 *
 * It gives the parser, each command's --help, the line of effective settings and the README's
 * table. An option that its command does not know, or that has no effect beside the others given,
 * is an error. "--name value" and "--name=value" are both read. */
#pragma once
#include "base/err.h"

typedef enum rk_command {
    RK_CMD_PROFILE,
    RK_CMD_BUDGET,
    RK_CMD_GENERATE,
    RK_CMD_EVAL,
    RK_CMD_BENCH,
    RK_CMD_INSPECT,
    RK_CMD_VERSION,
    RK_CMD_HELP,
    RK_CMDS,
} rk_command;

typedef enum rk_opt {
    RK_OPT_MODEL,
    RK_OPT_BACKEND,
    RK_OPT_DTYPE,
    RK_OPT_NUMERICS,
    RK_OPT_WEIGHTS,
    RK_OPT_THREADS,
    RK_OPT_SEED,
    RK_OPT_REPLICAS,
    RK_OPT_PARTITION,
    RK_OPT_CHUNK,
    RK_OPT_TIMEOUT,
    RK_OPT_LOG,
    RK_OPT_DRY_RUN,
    RK_OPT_JSON,
    RK_OPT_BUDGET_CONTEXT,
    RK_OPT_RATIO,
    RK_OPT_BUDGET,
    RK_OPT_ALLOCATOR,
    RK_OPT_SENSITIVITY,
    RK_OPT_R,
    RK_OPT_GAMMA,
    RK_OPT_BETA,
    RK_OPT_TAU1,
    RK_OPT_TAU2,
    RK_OPT_CURVE_MEAN,
    RK_OPT_SHRINK,
    RK_OPT_EXPLAIN,
    RK_OPT_POLICY,
    RK_OPT_WINDOW,
    RK_OPT_SINKS,
    RK_OPT_POOL,
    RK_OPT_KERNEL,
    RK_OPT_GROUP_REDUCE,
    RK_OPT_POOL_FIRST,
    RK_OPT_RECENT,
    RK_OPT_HEAD_MODE,
    RK_OPT_ALPHA,
    RK_OPT_PRESET,
    RK_OPT_FIRST_TOKEN,
    RK_OPT_CALIBRATION,
    RK_OPT_PROFILE_OUTPUT,
    RK_OPT_SAMPLES,
    RK_OPT_CONTEXT,
    RK_OPT_RESPONSE,
    RK_OPT_EPSILON,
    RK_OPT_DRAWS,
    RK_OPT_SIGNAL,
    RK_OPT_RESUME,
    RK_OPT_PROMPT,
    RK_OPT_PROMPT_FILE,
    RK_OPT_INPUT,
    RK_OPT_OUTPUT,
    RK_OPT_CHAT,
    RK_OPT_CHAT_TEMPLATE,
    RK_OPT_MAX_NEW_TOKENS,
    RK_OPT_TEMPERATURE,
    RK_OPT_TOP_P,
    RK_OPT_STOP,
    RK_OPT_BATCH,
    RK_OPT_BENCH_PREFILL,
    RK_OPT_BENCH_CONTEXT,
    RK_OPT_BENCH_BATCH,
    RK_OPT_BENCH_DECODE,
    RK_OPT_BENCH_PROFILE,
    RK_OPT_REPEAT,
    RK_OPT_EVAL_INPUT,
    RK_OPT_EVAL_CONTEXT,
    RK_OPT_EVAL_SAMPLES,
    RK_OPT_EVAL_OUTPUT,
    RK_OPT_SWEEP,
    RK_OPT_LEVELS,
    RK_OPT_LONGBENCH,
    RK_OPT_DATA,
    RK_OPT_DATASETS,
    RK_OPT_LONGBENCH_E,
    RK_OPT_MAX_PROMPT,
    RK_OPT_CLEANUP,
    RK_OPT_PREDICTIONS,
    RK_OPT_TASKS,
    RK_OPT_HAYSTACK,
    RK_OPT_FULL,
    RK_OPT_MARKDOWN,
    RK_OPTS,
} rk_opt;

enum { RK_OPT_LIST_MAX = 16 };

/* "512,2048" */
typedef struct rk_int_list {
    int64_t v[RK_OPT_LIST_MAX];
    int     n;
} rk_int_list;

/* "0.3,0.1" */
typedef struct rk_real_list {
    double v[RK_OPT_LIST_MAX];
    int    n;
} rk_real_list;

/* Values of all options, defaults where not given; texts point into argv or the table. */
typedef struct rk_options {
    rk_command  command;
    bool        help;       /* --help: nothing else was checked */
    const char *positional; /* inspect PATH, help COMMAND, eval TASK; or NULL */
    bool        given[RK_OPTS];

    const char *model, *backend, *dtype, *numerics, *weights; /* dtype, weights: NULL or as given */
    const char *partition, *log;
    int64_t     threads, replicas, chunk; /* threads 0: by affinity; chunk 0: auto */
    uint64_t    seed;
    double      timeout;
    bool        dry_run, json;

    double      ratio;
    int64_t     budget;
    const char *allocator, *sensitivity; /* allocator as in effect, "list:FILE" included */
    double      r, gamma, beta, shrink, tau1, tau2;
    const char *curve_mean;
    bool        explain;
    const char *policy, *pool, *group_reduce, *first_token, *head_mode, *preset;
    int64_t     window, sinks, kernel, recent; /* recent < 0: half of the budget */
    double      alpha;
    bool        pool_first;

    const char *calibration, *signal;
    int64_t     samples, context, response, draws;
    rk_real_list epsilon;
    bool         resume;

    const char *prompt, *prompt_file, *input, *output, *chat_template;
    bool        chat;
    int64_t     max_new_tokens, batch;
    double      temperature, top_p;
    struct {
        const char *v[RK_OPT_LIST_MAX];
        int         n;
    } stop;

    rk_int_list bench_prefill, bench_context, bench_batch;
    int64_t     bench_decode, repeat;
    bool        bench_profile;

    const char *sweep, *longbench, *data, *datasets, *predictions, *tasks, *haystack;
    bool        longbench_e, cleanup;
    int64_t     max_prompt;
    rk_real_list levels;

    bool full, markdown;
} rk_options;

/* Read a command line and check it.
 * Owner:  out borrows from argv, which must outlive it
 * Errors: RK_E_USAGE with one line that names the option, its value and what is possible */
rk_status rk_options_parse(int argc, char *const *argv, rk_options *out);

/* Is the cache kept whole (neither --ratio nor --budget)? */
bool rk_options_full_cache(const rk_options *o);

/* Is name in the list --signal? */
bool rk_options_signal(const rk_options *o, const char *name);

/* Why an option has no effect beside the others; NULL if it has one. */
const char *rk_options_unused(const rk_options *o, rk_opt id);

/* Text for people, to stdout. command RK_CMDS: the list of commands. */
void rk_options_help(rk_command command);
void rk_options_markdown(void);

/* "model=m.gguf backend=cpu ..." of the options that have an effect, cut to fit; returns buf. */
const char *rk_options_settings(const rk_options *o, char *buf, size_t cap);

const char *rk_command_name(rk_command c);
const char *rk_options_name(rk_opt id); /* without the dashes */
bool        rk_options_is_cache(rk_opt id); /* of the group Cache: how a prompt's cache is cut */

/* Does the command run a model, on all ranks? */
bool rk_command_has_model(rk_command c);
