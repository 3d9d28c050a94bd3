/* options.c - the parser, and which options go together. */
#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options_table.h"

enum { SHOWN = 80 }; /* characters of a user's text in a message */

const char *rk_command_name(rk_command c) {
    return c < RK_CMDS ? rk_command_rows[c].name : "";
}

const char *rk_options_name(rk_opt id) { return rk_option_rows[id].name; }

bool rk_command_has_model(rk_command c) {
    return c == RK_CMD_PROFILE || c == RK_CMD_GENERATE || c == RK_CMD_BENCH || c == RK_CMD_EVAL;
}

bool rk_options_is_cache(rk_opt id) { return rk_option_rows[id].group == RK_GROUP_CACHE; }

bool rk_options_full_cache(const rk_options *o) {
    return !o->given[RK_OPT_RATIO] && !o->given[RK_OPT_BUDGET];
}

/* ---- near misses ---- */

/* Edit distance, neighbours swapped counting one. Names longer than the table's are far. */
static int distance(const char *a, size_t na, const char *b, size_t nb) {
    enum { MAX = 24 };
    int d[MAX + 1][MAX + 1];
    if (na > MAX || nb > MAX) return MAX;
    for (size_t i = 0; i <= na; i++) {
        for (size_t j = 0; j <= nb; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = (int)(i + j);
                continue;
            }
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[na][nb];
}

/* Near enough to be a slip of the hand: by edits, or a beginning of at least three letters. */
static int slip(const char *typed, size_t n, const char *name) {
    size_t len = strlen(name);
    int    far = distance(typed, n, name, len), limit = n < 4 ? 1 : 2;
    if (far <= limit) return far;
    return n >= 3 && n < len && strncmp(typed, name, n) == 0 ? limit : -1;
}

static const char *nearest_option(rk_command c, const char *typed, size_t n) {
    const char *best = NULL;
    int         least = 99;
    for (int i = 0; i < RK_OPTS; i++) {
        const rk_option_row *row = &rk_option_rows[i];
        int                  s = row->commands & 1u << c ? slip(typed, n, row->name) : -1;
        if (s < 0 || s >= least) continue;
        best = row->name;
        least = s;
    }
    return best;
}

/* ---- words to rows ---- */

static rk_status find_command(const char *word, rk_command *out) {
    const char *near = NULL;
    int         least = 99;
    for (int c = 0; c < RK_CMDS; c++) {
        const char *name = rk_command_rows[c].name;
        int         s = slip(word, strlen(word), name);
        if (strcmp(word, name) == 0) {
            *out = (rk_command)c;
            return RK_OK;
        }
        if (s >= 0 && s < least) {
            near = name;
            least = s;
        }
    }
    if (near)
        return RK_FAIL(RK_E_USAGE, "unknown command \"%.*s\"; did you mean \"%s\"?", SHOWN, word,
                       near);
    return RK_FAIL(RK_E_USAGE,
                   "unknown command \"%.*s\"; there are profile, budget, generate, eval, bench, "
                   "inspect, version, help",
                   SHOWN, word);
}

/* Names of the commands that have an option of this name, "generate, budget"; "" if none. */
static void list_users(const char *name, size_t n, char *buf, size_t cap) {
    unsigned seen = 0;
    buf[0] = 0;
    for (int i = 0; i < RK_OPTS; i++)
        if (strlen(rk_option_rows[i].name) == n && strncmp(rk_option_rows[i].name, name, n) == 0)
            seen |= rk_option_rows[i].commands;
    for (int c = 0; c < RK_CMDS; c++) {
        size_t used = strlen(buf);
        if (seen & 1u << c)
            snprintf(buf + used, cap - used, "%s%s", used ? ", " : "", rk_command_rows[c].name);
    }
}

static rk_status find_option(rk_command c, const char *name, size_t n, rk_opt *out) {
    char users[96];
    for (int i = 0; i < RK_OPTS; i++) {
        const rk_option_row *row = &rk_option_rows[i];
        if (!(row->commands & 1u << c) || strlen(row->name) != n ||
            strncmp(row->name, name, n) != 0)
            continue;
        *out = (rk_opt)i;
        return RK_OK;
    }
    int shown = n < SHOWN ? (int)n : SHOWN;
    list_users(name, n, users, sizeof users);
    if (users[0])
        return RK_FAIL(RK_E_USAGE, "--%.*s is not an option of %s (it belongs to %s)", shown, name,
                       rk_command_name(c), users);
    const char *near = nearest_option(c, name, n);
    if (near)
        return RK_FAIL(RK_E_USAGE, "unknown option --%.*s; did you mean --%s?", shown, name, near);
    return RK_FAIL(RK_E_USAGE, "unknown option --%.*s; ripplekv %s --help lists the options", shown,
                   name, rk_command_name(c));
}

/* ---- values ---- */

static void range_text(const rk_option_row *row, char buf[96]) {
    const char *low = row->min_open ? "above" : "from";
    if (row->max >= 2147483647.0 || row->max >= 1e6)
        snprintf(buf, 96, row->min_open ? "above %g" : "%g or more", row->min);
    else
        snprintf(buf, 96, "%s %.10g to %.10g", low, row->min, row->max);
}

static rk_status bad_number(const rk_option_row *row, const char *text, const char *kind) {
    char range[96];
    range_text(row, range);
    return RK_FAIL(RK_E_USAGE, "--%s %.*s: must be %s %s%s", row->name, SHOWN, text, kind, range,
                   row->type == RK_OPTION_INT_OR_AUTO ? ", or auto" : "");
}

static rk_status parse_int(const rk_option_row *row, const char *text, int64_t *out) {
    char *end;
    if (row->type == RK_OPTION_INT_OR_AUTO && strcmp(text, "auto") == 0) {
        *out = 0;
        return RK_OK;
    }
    errno = 0;
    long long v = strtoll(text, &end, 10);
    bool      clean = *text && *end == 0 && errno == 0 && strspn(text, " \t\n\v\f\r") == 0;
    if (!clean || (double)v < row->min || (double)v > row->max)
        return bad_number(row, text, "a whole number");
    *out = v;
    return RK_OK;
}

static rk_status parse_seed(const rk_option_row *row, const char *text, uint64_t *out) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno)
        return RK_FAIL(RK_E_USAGE, "--%s %.*s: must be a whole number from 0 to 2^64 - 1",
                       row->name, SHOWN, text);
    *out = v;
    return RK_OK;
}

/* A number that ends at stop (a character or the end of the text); *text is moved there. whole is
 * what was typed. */
static rk_status parse_real(const rk_option_row *row, const char *whole, const char **text,
                            char stop, double *out) {
    const char *p = *text;
    char       *end;
    double      v = strtod(p, &end);
    bool        clean = end != p && (*end == 0 || *end == stop) && strspn(p, "+-0123456789.") > 0;
    bool        below = row->min_open ? !(v > row->min) : !(v >= row->min);
    if (!clean || !isfinite(v) || below || v > row->max) return bad_number(row, whole, "a number");
    *out = v;
    *text = end;
    return RK_OK;
}

static rk_status parse_reals(const rk_option_row *row, const char *text, rk_real_list *out) {
    const char *p = text;
    for (out->n = 0;; p++) {
        if (out->n == RK_OPT_LIST_MAX)
            return RK_FAIL(RK_E_USAGE, "--%s %.*s: at most %d values", row->name, SHOWN, text,
                           RK_OPT_LIST_MAX);
        RK_TRY(parse_real(row, text, &p, ',', &out->v[out->n++]));
        if (*p == 0) return RK_OK;
    }
}

static rk_status parse_ints(const rk_option_row *row, const char *text, rk_int_list *out) {
    char part[24];
    out->n = 0;
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, ",");
        if (out->n == RK_OPT_LIST_MAX)
            return RK_FAIL(RK_E_USAGE, "--%s %.*s: at most %d values", row->name, SHOWN, text,
                           RK_OPT_LIST_MAX);
        if (n >= sizeof part) return bad_number(row, text, "whole numbers");
        snprintf(part, sizeof part, "%.*s", (int)n, p);
        if (parse_int(row, part, &out->v[out->n++]) != RK_OK)
            return bad_number(row, text, "whole numbers");
        p += n;
        if (*p == 0) return RK_OK;
    }
}

static rk_status check_choice(const rk_option_row *row, const char *text) {
    for (const char *v = row->values; *v;) {
        size_t      n = strcspn(v, "|");
        const char *colon = memchr(v, ':', n);
        size_t      head = colon ? (size_t)(colon - v) + 1 : n;
        bool        same = strncmp(text, v, head) == 0;
        if (same && (colon ? text[head] != 0 : text[head] == 0)) return RK_OK;
        v += n + (v[n] == '|');
    }
    char list[128];
    snprintf(list, sizeof list, "%s", row->values);
    for (char *p = list; *p; p++)
        if (*p == '|') *p = ' ';
    return RK_FAIL(RK_E_USAGE, "--%s %.*s: unknown value; possible: %s", row->name, SHOWN, text,
                   list);
}

/* Write a row's value; text is NULL for a flag. */
static rk_status store(const rk_option_row *row, const char *text, rk_options *o) {
    char *at = (char *)o + row->offset;
    switch (row->type) {
    case RK_OPTION_FLAG:
        memcpy(at, &(bool){true}, sizeof(bool));
        return RK_OK;
    case RK_OPTION_CHOICE:
        RK_TRY(check_choice(row, text));
        break;
    case RK_OPTION_TEXT:
        break;
    case RK_OPTION_TEXTS:
        if (o->stop.n == RK_OPT_LIST_MAX)
            return RK_FAIL(RK_E_USAGE, "--%s: at most %d times", row->name, RK_OPT_LIST_MAX);
        o->stop.v[o->stop.n++] = text;
        return RK_OK;
    case RK_OPTION_INT:
    case RK_OPTION_INT_OR_AUTO: {
        int64_t v = 0;
        RK_TRY(parse_int(row, text, &v));
        memcpy(at, &v, sizeof v);
        return RK_OK;
    }
    case RK_OPTION_SEED: {
        uint64_t v = 0;
        RK_TRY(parse_seed(row, text, &v));
        memcpy(at, &v, sizeof v);
        return RK_OK;
    }
    case RK_OPTION_REAL: {
        double v = 0;
        RK_TRY(parse_real(row, text, &text, 0, &v));
        memcpy(at, &v, sizeof v);
        return RK_OK;
    }
    case RK_OPTION_REALS:
        return parse_reals(row, text, (rk_real_list *)(void *)at);
    case RK_OPTION_INTS:
        return parse_ints(row, text, (rk_int_list *)(void *)at);
    }
    memcpy(at, &text, sizeof text);
    return RK_OK;
}

/* Defaults of the rows whose commands are among `commands`; rows of two commands may share a place. */
static rk_status set_defaults(rk_options *o, unsigned commands) {
    for (int i = 0; i < RK_OPTS; i++) {
        const rk_option_row *row = &rk_option_rows[i];
        if (row->dflt && row->commands & commands) RK_TRY(store(row, row->dflt, o));
    }
    return RK_OK;
}

/* One option at argv[*i]; *i is moved over its value. */
static rk_status take_option(int argc, char *const *argv, int *i, rk_options *o) {
    const char *word = argv[*i] + 2, *eq = strchr(word, '='), *value = eq ? eq + 1 : NULL;
    size_t      n = eq ? (size_t)(eq - word) : strlen(word);
    rk_opt      id = RK_OPTS;
    RK_TRY(find_option(o->command, word, n, &id));
    const rk_option_row *row = &rk_option_rows[id];
    if (row->type == RK_OPTION_FLAG) {
        if (value) return RK_FAIL(RK_E_USAGE, "--%s takes no value", row->name);
    } else if (!value) {
        if (*i + 1 >= argc) return RK_FAIL(RK_E_USAGE, "--%s needs a value", row->name);
        value = argv[++*i];
        if (strncmp(value, "--", 2) == 0)
            return RK_FAIL(RK_E_USAGE,
                           "--%s needs a value, but %.*s follows; --%s=%.*s if that is "
                           "the value",
                           row->name, SHOWN, value, row->name, SHOWN, value);
    }
    /* An empty prompt is bad input, found with the other prompts. */
    if (value && !*value && id != RK_OPT_PROMPT)
        return RK_FAIL(RK_E_USAGE, "--%s: the value is empty", row->name);
    if (o->given[id] && row->type != RK_OPTION_TEXTS)
        return RK_FAIL(RK_E_USAGE, "--%s is given twice", row->name);
    o->given[id] = true;
    return store(row, value, o);
}

static rk_status take_words(int argc, char *const *argv, int from, rk_options *o) {
    for (int i = from; i < argc; i++) {
        const char *w = argv[i];
        if (strcmp(w, "--help") == 0 || strcmp(w, "-h") == 0) {
            o->help = true;
            return RK_OK;
        }
        if (strncmp(w, "--", 2) == 0 && w[2]) {
            RK_TRY(take_option(argc, argv, &i, o));
        } else if (w[0] == '-' && w[1]) {
            return RK_FAIL(RK_E_USAGE, "unknown option \"%.*s\"; options begin with two dashes",
                           SHOWN, w);
        } else if (!rk_command_rows[o->command].positional) {
            return RK_FAIL(RK_E_USAGE, "unexpected argument \"%.*s\" of %s", SHOWN, w,
                           rk_command_name(o->command));
        } else if (o->positional) {
            return RK_FAIL(RK_E_USAGE, "one argument too many: \"%.*s\"", SHOWN, w);
        } else {
            o->positional = w;
        }
    }
    return RK_OK;
}

/* ---- what goes together ---- */

bool rk_options_signal(const rk_options *o, const char *name) {
    size_t n = strlen(name);
    for (const char *p = o->signal; p && *p; p += strcspn(p, ","), p += *p == ',')
        if (strncmp(p, name, n) == 0 && (p[n] == 0 || p[n] == ',')) return true;
    return false;
}

static bool is_task(const rk_options *o, const char *name) {
    return o->command == RK_CMD_EVAL && o->positional && strcmp(o->positional, name) == 0;
}

/* Are its prompts made by the program? Does it answer prompts? */
static bool is_synth(const rk_options *o) { return is_task(o, "ruler") || is_task(o, "needle"); }
static bool generates(const rk_options *o) { return is_synth(o) || is_task(o, "longbench"); }

/* Is each layer cut alone, at --levels? */
static bool is_damage(const rk_options *o) {
    if (o->command == RK_CMD_PROFILE) return rk_options_signal(o, "damage");
    return o->command == RK_CMD_EVAL && o->positional && strcmp(o->positional, "damage") == 0;
}

const char *rk_options_unused(const rk_options *o, rk_opt id) {
    bool              cake = o->allocator && strcmp(o->allocator, "cake") == 0;
    bool              curve = o->allocator && strcmp(o->allocator, "curve") == 0;
    bool              profile = o->command == RK_CMD_PROFILE;
    bool              damage = is_damage(o);
    bool              reads_policy = damage || rk_options_signal(o, "attention");
    bool              full = rk_options_full_cache(o) && !damage; /* damage cuts at levels of its own */
    bool              ripple = o->allocator && (strcmp(o->allocator, "ripple") == 0 ||
                                   strcmp(o->allocator, "local") == 0);
    bool              pyramid = o->allocator && strcmp(o->allocator, "pyramid") == 0;
    bool              snapkv = strcmp(o->policy, "snapkv") == 0, h2o = strcmp(o->policy, "h2o") == 0;
    bool              no_heads = strcmp(o->policy, "streaming") == 0 || strcmp(o->policy, "full") == 0;
    static const char keeps_all[] = "without --ratio or --budget the whole cache is kept";
    static const char no_damage[] = "there is no --signal damage or attention";
    static const char levels_say[] = "eval damage cuts at --levels";
    static const char none_decoded[] = "--decode 0 leaves the decoding out";
    switch (id) {
    case RK_OPT_ALLOCATOR:
        return damage ? levels_say : full ? keeps_all : NULL;
    case RK_OPT_SENSITIVITY:
        if (o->command == RK_CMD_BUDGET) return NULL; /* it says how many layers there are */
        return full ? keeps_all : ripple || curve || cake ? NULL : "--allocator does not read it";
    case RK_OPT_TAU1:
    case RK_OPT_TAU2:
        return damage ? levels_say : full ? keeps_all : cake ? NULL : "only --allocator cake reads it";
    case RK_OPT_CURVE_MEAN:
    case RK_OPT_SHRINK:
        return damage ? levels_say : full && !o->explain ? keeps_all
               : curve || o->explain ? NULL : "only --allocator curve reads it";
    case RK_OPT_R:
    case RK_OPT_GAMMA:
        return damage ? levels_say : full ? keeps_all : ripple ? NULL : "only --allocator ripple and local read it";
    case RK_OPT_BETA:
        return full ? keeps_all : pyramid ? NULL : "only --allocator pyramid reads it";
    case RK_OPT_POLICY:
        if (profile && !reads_policy) return no_damage;
        return full && strcmp(o->policy, "full") != 0 ? keeps_all : NULL;
    case RK_OPT_POOL:
    case RK_OPT_KERNEL:
    case RK_OPT_POOL_FIRST:
        if (profile && !reads_policy) return no_damage;
        return full ? keeps_all : snapkv ? NULL : "only --policy snapkv reads it";
    case RK_OPT_GROUP_REDUCE:
        if (profile && !reads_policy) return no_damage;
        return full ? keeps_all : snapkv || h2o ? NULL : "only --policy snapkv and h2o read it";
    case RK_OPT_RECENT:
        if (profile && !reads_policy) return no_damage;
        return full ? keeps_all : h2o ? NULL : "only --policy h2o reads it";
    case RK_OPT_HEAD_MODE:
        if (profile && !reads_policy) return no_damage;
        return full ? keeps_all : no_heads ? "--policy keeps the same tokens in all heads" : NULL;
    case RK_OPT_ALPHA:
        if (profile && !reads_policy) return no_damage;
        return full ? keeps_all : strcmp(o->head_mode, "kv") ? NULL : "--head-mode kv does not read it";
    case RK_OPT_PRESET:
        if (profile && !reads_policy) return no_damage;
        return full ? keeps_all : NULL;
    case RK_OPT_FIRST_TOKEN:
        return full ? keeps_all : NULL;
    case RK_OPT_LONGBENCH:
    case RK_OPT_DATA:
    case RK_OPT_DATASETS:
    case RK_OPT_LONGBENCH_E:
    case RK_OPT_MAX_PROMPT:
    case RK_OPT_CLEANUP:
    case RK_OPT_PREDICTIONS:
        return is_task(o, "longbench") ? NULL : "only eval longbench reads it";
    case RK_OPT_TASKS:
        return is_task(o, "ruler") ? NULL : "only eval ruler reads it";
    case RK_OPT_HAYSTACK:
        return is_synth(o) ? NULL : "only eval ruler and needle read it";
    case RK_OPT_EVAL_INPUT:
        if (is_synth(o)) return "the program makes the prompts; --haystack gives prose";
        return is_task(o, "longbench") ? "eval longbench reads --data" : NULL;
    case RK_OPT_EVAL_CONTEXT:
        return is_task(o, "longbench") ? "eval longbench reads --data" : NULL;
    case RK_OPT_CHAT:
        if (o->command == RK_CMD_EVAL) return generates(o) ? NULL : "documents are no chats";
        return o->input ? "each line of --input says what it is" : NULL;
    case RK_OPT_CHAT_TEMPLATE:
        return o->chat || o->input ? NULL : "the prompt is no --chat";
    case RK_OPT_BATCH:
        return o->input ? NULL : "there is one prompt";
    case RK_OPT_RESPONSE:
        if (generates(o)) return "this task generates answers";
        return o->command == RK_CMD_BENCH && !o->bench_profile ? "there is no --profile" : NULL;
    case RK_OPT_BENCH_BATCH:
        return o->bench_decode ? NULL : none_decoded;
    case RK_OPT_BENCH_CONTEXT:
        return o->bench_decode || o->bench_profile ? NULL : none_decoded;
    case RK_OPT_LEVELS:
        return damage ? NULL : profile ? no_damage : "only eval damage reads it";
    case RK_OPT_WINDOW:
    case RK_OPT_SINKS:
        return profile && !reads_policy ? no_damage : NULL;
    case RK_OPT_RESUME:
        return o->command == RK_CMD_EVAL && !o->output ? "there is no --output" : NULL;
    case RK_OPT_RATIO:
    case RK_OPT_BUDGET:
        if (damage) return levels_say;
        return o->command == RK_CMD_BENCH && !o->bench_decode ? none_decoded : NULL;
    case RK_OPT_REPEAT:
        return o->bench_prefill.v[0] || o->bench_profile ? NULL : "only prefill and profile repeat";
    case RK_OPT_TOP_P:
        return o->temperature > 0 ? NULL : "--temperature is 0";
    default:
        return NULL;
    }
}

static rk_status check_required(const rk_options *o) {
    if (o->command == RK_CMD_EVAL && !o->positional)
        return RK_FAIL(RK_E_USAGE, "eval needs a TASK: fidelity, perplexity, damage, longbench, "
                                   "ruler or needle");
    for (int i = 0; i < RK_OPTS; i++) {
        const rk_option_row *row = &rk_option_rows[i];
        if ((row->required & 1u << o->command) && !o->given[i])
            return RK_FAIL(RK_E_USAGE, "%s needs --%s %s: %s", rk_command_name(o->command),
                           row->name, row->arg, row->help);
    }
    if (o->command == RK_CMD_INSPECT && !o->positional)
        return RK_FAIL(RK_E_USAGE, "inspect needs the PATH of a model or a sensitivity file");
    if (o->command == RK_CMD_BUDGET && !o->sensitivity && !o->model)
        return RK_FAIL(RK_E_USAGE,
                       "budget needs --sensitivity FILE.h5, or --model PATH to know the "
                       "number of layers");
    return RK_OK;
}

static rk_status check_cache(const rk_options *o) {
    if (!rk_options_full_cache(o) && strcmp(o->policy, "full") == 0)
        return RK_FAIL(RK_E_USAGE, "--policy full keeps every token: drop it or --%s",
                       o->given[RK_OPT_RATIO] ? "ratio" : "budget");
    if (!rk_options_full_cache(o) && o->kernel % 2 == 0)
        return RK_FAIL(RK_E_USAGE, "--kernel %lld must be odd", (long long)o->kernel);
    if (!rk_options_full_cache(o) && strcmp(o->policy, "snapkv") == 0 && o->window < 1)
        return RK_FAIL(RK_E_USAGE, "--window 0: --policy snapkv needs at least 1");
    return RK_OK;
}

static rk_status check_generate(const rk_options *o) {
    int sources = (o->prompt != NULL) + (o->prompt_file != NULL) + (o->input != NULL);
    if (sources != 1)
        return RK_FAIL(RK_E_USAGE, "generate needs %s of --prompt, --prompt-file and --input",
                       sources ? "only one" : "one");
    if (o->replicas > 1)
        return RK_FAIL(RK_E_USAGE,
                       "--replicas %lld: generate runs one replica over all ranks; start it once "
                       "for each part of the input instead",
                       (long long)o->replicas);
    return check_cache(o);
}

static rk_status check_bench(const rk_options *o) {
    const rk_int_list *p = &o->bench_prefill;
    for (int i = 0; i < p->n; i++)
        if (p->v[i] == 0 && p->n > 1)
            return RK_FAIL(RK_E_USAGE, "--prefill: 0 leaves prefill out and stands alone");
    if (p->v[0] == 0 && o->bench_decode == 0 && !o->bench_profile)
        return RK_FAIL(RK_E_USAGE, "--prefill 0, --decode 0 and no --profile: nothing is left to "
                                   "measure");
    return check_cache(o);
}

static rk_status check_levels(const rk_options *o) {
    for (int i = 1; i < o->levels.n; i++)
        if (!(o->levels.v[i] > o->levels.v[i - 1])) return RK_FAIL(RK_E_USAGE, "--levels: must ascend");
    return RK_OK;
}

/* A list of known names, kl among them, each once. */
static rk_status check_signal(const rk_options *o) {
    static const char *const known[] = {"kl", "local", "attention", "damage"};
    size_t                   n = strlen(o->signal), sum = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (rk_options_signal(o, known[i])) sum += strlen(known[i]) + 1;
    if (sum != n + 1)
        return RK_FAIL(RK_E_USAGE, "--signal %.40s: known are kl, local, attention and damage, each once", o->signal);
    if (!rk_options_signal(o, "kl"))
        return RK_FAIL(RK_E_USAGE, "--signal %.40s: kl, the sensitivity itself, is always among them", o->signal);
    if (rk_options_signal(o, "attention") && (strcmp(o->policy, "snapkv") != 0 || o->window < 1))
        return RK_FAIL(RK_E_USAGE, "--signal attention is of a window: it needs --policy snapkv");
    if (is_damage(o) && strcmp(o->policy, "full") == 0)
        return RK_FAIL(RK_E_USAGE, "--policy full cuts nothing: --signal damage needs another");
    return check_levels(o);
}

static rk_status check_eval(const rk_options *o) {
    RK_TRY(check_levels(o));
    bool longbench = is_task(o, "longbench");
    if (longbench && (!o->longbench || !o->data || !o->datasets))
        return RK_FAIL(RK_E_USAGE, "eval longbench needs --longbench, --data and --datasets");
    if (!generates(o) && !o->input) return RK_FAIL(RK_E_USAGE, "eval needs --input FILE.jsonl: documents");
    if (!is_damage(o) && !generates(o) && !o->sweep && rk_options_full_cache(o))
        return RK_FAIL(RK_E_USAGE,
                       "eval %.40s compares a cut cache with the full one: give --ratio, --budget or "
                       "--sweep", o->positional);
    return check_cache(o);
}

static rk_status check_backend(const rk_options *o) {
    bool        ref = strcmp(o->backend, "ref") == 0;
    const char *dtype = ref ? "f32" : "bf16";
    if (o->dtype && strcmp(o->dtype, dtype) != 0)
        return RK_FAIL(RK_E_USAGE, "--dtype %s: --backend %s computes in %s", o->dtype, o->backend,
                       dtype);
    if (ref && strcmp(o->numerics, "auto") != 0)
        return RK_FAIL(RK_E_USAGE, "--numerics %s: --backend ref has one order of its own",
                       o->numerics);
    if (ref && o->weights)
        return RK_FAIL(RK_E_USAGE, "--weights %s: --backend ref holds f32", o->weights);
    return RK_OK;
}

/* Settings that published numbers were made with (reference code of each). What is given stays. */
static const struct preset {
    const char *name, *pool, *head_mode;
    int         window, kernel;
    bool        pool_first;
} presets[] = {
    {"paper-snapkv", "max", "kv", 32, 7, false},
    {"kvcache-factory", "max", "kv", 8, 7, false},
    {"kvpress", "avg", "kv", 64, 5, true},
    {"adakv", "max", "blend", 32, 7, false},
};

static void apply_preset(rk_options *o) {
    enum { KVF_RECENT = 8 };
    for (size_t i = 0; o->preset && i < sizeof presets / sizeof *presets; i++) {
        const struct preset *p = &presets[i];
        if (strcmp(o->preset, p->name) != 0) continue;
        if (!o->given[RK_OPT_WINDOW]) o->window = p->window;
        if (!o->given[RK_OPT_POOL]) o->pool = p->pool;
        if (!o->given[RK_OPT_KERNEL]) o->kernel = p->kernel;
        if (!o->given[RK_OPT_POOL_FIRST]) o->pool_first = p->pool_first;
        if (!o->given[RK_OPT_HEAD_MODE]) o->head_mode = p->head_mode;
        if (!o->given[RK_OPT_RECENT] && strcmp(p->name, "kvcache-factory") == 0) o->recent = KVF_RECENT;
    }
}

static rk_status check(rk_options *o) {
    RK_TRY(check_required(o));
    if (!o->recent) o->recent = -1; /* auto */
    apply_preset(o);
    if (o->given[RK_OPT_RATIO] && o->given[RK_OPT_BUDGET])
        return RK_FAIL(RK_E_USAGE, "--ratio and --budget say the same thing: give one");
    if (!o->allocator) o->allocator = o->sensitivity ? "ripple" : "uniform";
    static const char *const reads[] = {"ripple", "local", "cake", "curve"};
    for (size_t i = 0; i < sizeof reads / sizeof *reads; i++)
        if (strcmp(o->allocator, reads[i]) == 0 && !o->sensitivity)
            return RK_FAIL(RK_E_USAGE, "--allocator %s needs --sensitivity FILE.h5", reads[i]);
    if (o->explain && !o->sensitivity)
        return RK_FAIL(RK_E_USAGE, "--explain needs --sensitivity FILE.h5 with damages");
    if (rk_command_has_model(o->command)) RK_TRY(check_backend(o));
    if (o->command == RK_CMD_GENERATE) RK_TRY(check_generate(o));
    if (o->command == RK_CMD_PROFILE) RK_TRY(check_signal(o));
    if (o->command == RK_CMD_BENCH) RK_TRY(check_bench(o));
    if (o->command == RK_CMD_EVAL) RK_TRY(check_eval(o));
    for (int i = 0; i < RK_OPTS; i++) {
        const char *why = o->given[i] ? rk_options_unused(o, (rk_opt)i) : NULL;
        if (why) return RK_FAIL(RK_E_USAGE, "--%s has no effect: %s", rk_option_rows[i].name, why);
    }
    return RK_OK;
}

rk_status rk_options_parse(int argc, char *const *argv, rk_options *out) {
    rk_options o;
    memset(&o, 0, sizeof o);
    RK_TRY(set_defaults(&o, ~0u));
    if (argc < 2)
        return RK_FAIL(RK_E_USAGE,
                       "no command; there are profile, budget, generate, eval, bench, inspect, "
                       "version, help");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        o.command = RK_CMD_HELP;
        *out = o;
        return RK_OK;
    }
    if (argv[1][0] == '-')
        return RK_FAIL(RK_E_USAGE, "the command comes first, before %.*s; ripplekv help lists them",
                       SHOWN, argv[1]);
    RK_TRY(find_command(argv[1], &o.command));
    RK_TRY(set_defaults(&o, 1u << o.command));
    RK_TRY(take_words(argc, argv, 2, &o));
    if (o.command == RK_CMD_HELP && o.positional && !o.help) {
        rk_command about;
        RK_TRY(find_command(o.positional, &about));
    }
    if (!o.help) RK_TRY(check(&o));
    *out = o;
    return RK_OK;
}
