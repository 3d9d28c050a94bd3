/* options_table.h - rows of the option table, shared by the parser and the help texts. */
#pragma once
#include "cli/options.h"

typedef enum rk_option_type {
    RK_OPTION_FLAG,
    RK_OPTION_TEXT,
    RK_OPTION_TEXTS,  /* may be given several times */
    RK_OPTION_CHOICE, /* one of values, "a|b|list:FILE": the last is any text after "list:" */
    RK_OPTION_INT,
    RK_OPTION_INT_OR_AUTO, /* "auto" is stored as 0 */
    RK_OPTION_SEED,
    RK_OPTION_REAL,
    RK_OPTION_REALS, /* comma list */
    RK_OPTION_INTS,  /* comma list */
} rk_option_type;

typedef struct rk_option_row {
    const char    *name; /* without the dashes */
    rk_option_type type;
    unsigned       commands; /* 1 << rk_command */
    unsigned       required; /* of these commands */
    const char    *arg;      /* how help calls the value */
    const char    *values;   /* CHOICE */
    const char    *dflt;     /* parsed like a given one; NULL: none */
    const char    *unit, *help;
    double         min, max; /* numbers; min_open: min itself is not allowed */
    bool           min_open;
    size_t         offset; /* in rk_options */
    int            group;  /* rk_option_group: heading in help */
} rk_option_row;

typedef struct rk_command_row {
    const char *name, *synopsis, *help;
    const char *positional; /* name of the argument; NULL: none */
} rk_command_row;

enum rk_option_group {
    RK_GROUP_RUN,
    RK_GROUP_CACHE,
    RK_GROUP_PROFILE,
    RK_GROUP_GENERATE,
    RK_GROUP_EVAL,
    RK_GROUP_BENCH,
    RK_GROUP_OTHER,
};

extern const rk_option_row  rk_option_rows[RK_OPTS];
extern const char *const    rk_option_groups[];
extern const rk_command_row rk_command_rows[RK_CMDS];
