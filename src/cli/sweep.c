/* sweep.c - see sweep.h. */
#include "cli/sweep.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { MOST_WORDS = 64, MOST_ENTRIES = 256 };

/* The command line, then the line's words. */
static rk_status join(const rk_cli *c, char *words, char ***argv, int *argc) {
    int n = c->argc;
    RK_TRY(rk_mem_alloc_to(c->argc + MOST_WORDS + 1, sizeof(char *), "sweep options", argv));
    memcpy(*argv, c->argv, (size_t)c->argc * sizeof(char *));
    for (char *w = strtok(words, " \t\r"); w; w = strtok(NULL, " \t\r")) {
        if (n >= c->argc + MOST_WORDS) return RK_FAIL(RK_E_USAGE, "more than %d words", MOST_WORDS);
        (*argv)[n++] = w;
    }
    *argc = n;
    return RK_OK;
}

/* Options of a line may be those of the cache only: the rest is of the whole run. */
static rk_status check_words(const rk_cli *c, const rk_options *line) {
    for (int i = 0; i < RK_OPTS; i++)
        if (line->given[i] && !c->o->given[i] && !rk_options_is_cache((rk_opt)i))
            return RK_FAIL(RK_E_USAGE, "--%s is an option of the whole run, not of one line",
                           rk_options_name((rk_opt)i));
    return RK_OK;
}

static rk_status parse_words(const rk_cli *c, char *words, rk_sweep_entry *e) {
    int argc = 0;
    RK_TRY(join(c, words, &e->argv, &argc));
    RK_TRY(rk_options_parse(argc, e->argv, &e->o));
    RK_TRY(check_words(c, &e->o));
    e->select = rk_cli_select(&e->o);
    return rk_select_check(&e->select);
}

/* Put file and line before what failed. */
static rk_status at_line(rk_status st, const char *path, int line) {
    char text[RK_ERR_TEXT];
    if (st == RK_OK) return st;
    snprintf(text, sizeof text, "%s", rk_err_last()->text);
    return RK_FAIL(st, "%.300s line %d: %.400s", path, line, text);
}

static char *trim(char *s) {
    s += strspn(s, " \t\r");
    size_t n = strlen(s);
    while (n && strchr(" \t\r", s[n - 1])) s[--n] = 0;
    return s;
}

static rk_status add_line(const rk_cli *c, rk_sweep *s, char *line) {
    char *hash = strchr(line, '#');
    if (hash) *hash = 0;
    line = trim(line);
    if (!*line) return RK_OK;
    char *colon = strchr(line, ':');
    if (!colon || colon == line || line[0] == '-')
        return RK_FAIL(RK_E_INPUT, "\"%.60s\": a line is NAME: --option value ...", line);
    *colon = 0;
    const char *name = trim(line);
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->at[i].name, name) == 0)
            return RK_FAIL(RK_E_INPUT, "the name \"%.60s\" is there twice", name);
    if (s->n == MOST_ENTRIES)
        return RK_FAIL(RK_E_INPUT, "more than %d configurations", MOST_ENTRIES);
    rk_sweep_entry *e = &s->at[s->n++];
    RK_TRY(rk_mem_strdup(name, &e->name));
    RK_TRY(rk_mem_strdup(colon + 1, &e->text));
    return parse_words(c, e->text, e);
}

static rk_status parse_file(const rk_cli *c, const char *path, rk_sweep *s) {
    char     *text = NULL;
    int64_t   n;
    int       number = 1;
    rk_status st = RK_OK;
    RK_TRY(rk_cli_read_file(path, &text, &n));
    for (char *line = text; line && st == RK_OK; number++) {
        char *nl = strchr(line, '\n');
        if (nl) *nl = 0;
        st = at_line(add_line(c, s, line), path, number);
        line = nl ? nl + 1 : NULL;
    }
    rk_mem_free(text);
    RK_TRY(st);
    return s->n ? RK_OK : RK_FAIL(RK_E_INPUT, "%s: holds no configuration", path);
}

rk_status rk_sweep_parse(const rk_cli *c, rk_sweep *out) {
    *out = (rk_sweep){0};
    RK_TRY(rk_mem_alloc_to(MOST_ENTRIES, sizeof *out->at, "sweep", &out->at));
    if (c->o->sweep) return parse_file(c, c->o->sweep, out);
    out->n = 1;
    out->at[0].o = *c->o;
    out->at[0].select = rk_cli_select(c->o);
    RK_TRY(rk_mem_strdup("cache", &out->at[0].name));
    return rk_select_check(&out->at[0].select);
}

rk_status rk_sweep_open(rk_sweep *s, const rk_config *model) {
    for (int i = 0; i < s->n; i++) {
        rk_sweep_entry *e = &s->at[i];
        if (rk_options_full_cache(&e->o) && !e->o.sensitivity) continue;
        rk_status st = rk_cache_plan_open(&e->o, model, &e->cache);
        if (st == RK_OK) continue;
        char text[RK_ERR_TEXT];
        snprintf(text, sizeof text, "%s", rk_err_last()->text);
        return RK_FAIL(st, "configuration %.60s: %.600s", e->name, text);
    }
    return RK_OK;
}

void rk_sweep_close(rk_sweep *s) {
    for (int i = 0; s->at && i < s->n; i++) {
        rk_cache_plan_close(&s->at[i].cache);
        rk_mem_free(s->at[i].name);
        rk_mem_free(s->at[i].text);
        rk_mem_free(s->at[i].argv);
    }
    rk_mem_free(s->at);
    *s = (rk_sweep){0};
}

rk_status rk_sweep_observe(const rk_sweep *s, rk_observation *out) {
    *out = (rk_observation){0};
    for (int i = 0; i < s->n; i++) RK_TRY(rk_observation_add(out, &s->at[i].select));
    return RK_OK;
}

rk_status rk_sweep_split(const rk_sweep_entry *e, int n_layers, int64_t n, int32_t *budget) {
    rk_budget_result r;
    if (!rk_options_full_cache(&e->o)) return rk_cache_plan_split(&e->cache, n, budget, &r);
    for (int l = 0; l < n_layers; l++) budget[l] = (int32_t)n;
    return RK_OK;
}
