/* log.c - see log.h. */
#define _GNU_SOURCE
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RULES = 16, NAME_LEN = 16, LINE_LEN = 2048 };

static struct {
    int          rank, n_ranks;
    char         host[64];
    rk_log_level level;
    bool         level_set;
    struct {
        char         name[NAME_LEN];
        rk_log_level level;
    } rule[MAX_RULES];
    int  n_rules;
    bool no_progress;
} state = {.rank = 0, .n_ranks = 1, .level = RK_LOG_INFO};

static const char *const level_names[] = {"ERROR", "WARN", "INFO", "DEBUG", "TRACE"};

double rk_now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void rk_log_set_rank(int rank, int n_ranks) {
    state.rank = rank;
    state.n_ranks = n_ranks;
    if (gethostname(state.host, sizeof state.host - 1) != 0) strcpy(state.host, "?");
    char *dot = strchr(state.host, '.');
    if (dot) *dot = 0;
    if (!state.level_set) state.level = rank ? RK_LOG_WARN : RK_LOG_INFO;
}

static int parse_level(const char *s, size_t n) {
    for (int i = 0; i <= RK_LOG_TRACE; i++)
        if (strlen(level_names[i]) == n && strncasecmp(level_names[i], s, n) == 0) return i;
    return -1;
}

rk_status rk_log_set_spec(const char *spec) {
    while (*spec) {
        size_t      len = strcspn(spec, ",");
        const char *eq = memchr(spec, '=', len);
        const char *lv = eq ? eq + 1 : spec;
        int         level = parse_level(lv, len - (size_t)(lv - spec));
        size_t      name_len = eq ? (size_t)(eq - spec) : 0;
        if (level < 0 || (eq && (name_len == 0 || name_len >= NAME_LEN)) ||
            state.n_rules == MAX_RULES)
            return RK_FAIL(RK_E_USAGE,
                           "--log: \"%.*s\" is not LEVEL or SUBSYSTEM=LEVEL with a level of error, "
                           "warn, info, debug, trace",
                           (int)len, spec);
        if (eq) {
            memcpy(state.rule[state.n_rules].name, spec, name_len);
            state.rule[state.n_rules].name[name_len] = 0;
            state.rule[state.n_rules++].level = (rk_log_level)level;
        } else {
            state.level = (rk_log_level)level;
            state.level_set = true;
        }
        spec += len;
        if (*spec == ',') spec++;
    }
    return RK_OK;
}

bool rk_log_on(rk_log_level level, const char *subsystem) {
    for (int i = 0; i < state.n_rules; i++)
        if (strcmp(state.rule[i].name, subsystem) == 0) return level <= state.rule[i].level;
    return level <= state.level;
}

void rk_log_raw(rk_log_level level, const char *subsystem, const char *text) {
    char line[LINE_LEN];
    int  n;
    if (state.n_ranks > 1)
        n = snprintf(line, sizeof line, "[rk %d/%d %s] %s %s: %s\n", state.rank, state.n_ranks,
                     state.host, level_names[level], subsystem, text);
    else
        n = snprintf(line, sizeof line, "[rk] %s %s: %s\n", level_names[level], subsystem, text);
    if (n >= (int)sizeof line) {
        n = (int)sizeof line - 1;
        line[n - 1] = '\n';
    }
    ssize_t done = write(STDERR_FILENO, line, (size_t)n);
    (void)done; /* there is nowhere left to report it */
}

void rk_log_line(rk_log_level level, const char *subsystem, const char *fmt, ...) {
    char    text[LINE_LEN - 128];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    rk_log_raw(level, subsystem, text);
}

void rk_progress_disable(void) { state.no_progress = true; }

void rk_progress_begin(rk_progress *p, const char *what, const char *unit, int64_t total) {
    *p = (rk_progress){.what = what, .unit = unit, .total = total, .start_s = rk_now_s()};
    p->last_s = p->start_s;
}

static void draw_bar(const rk_progress *p, int64_t done, double rate, double left) {
    enum { WIDTH = 30 };
    char bar[WIDTH + 1];
    int  full = p->total > 0 ? (int)(WIDTH * done / p->total) : 0;
    for (int i = 0; i < WIDTH; i++) bar[i] = i < full ? '#' : '-';
    bar[WIDTH] = 0;
    char line[256];
    int  n = snprintf(line, sizeof line, "\r%s [%s] %lld/%lld %s, %.3g/s, %.0f s left \033[K",
                      p->what, bar, (long long)done, (long long)p->total, p->unit, rate, left);
    ssize_t ok = write(STDERR_FILENO, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
    (void)ok;
}

void rk_progress_set(rk_progress *p, int64_t done) {
    double now = rk_now_s(), used = now - p->start_s;
    bool   tty = isatty(STDERR_FILENO) == 1;
    if (state.no_progress || used < 3.0) return;
    if (now - p->last_s < (tty ? 0.2 : 10.0) && !(tty && done == p->total)) return;
    p->last_s = now;
    double rate = used > 0 ? (double)done / used : 0;
    double left = rate > 0 ? (double)(p->total - done) / rate : 0;
    if (tty) {
        draw_bar(p, done, rate, left);
        p->shown = true;
    } else {
        RK_LOG(RK_LOG_INFO, "progress", "%s: %lld/%lld %s, %.3g/s, %.0f s left", p->what,
               (long long)done, (long long)p->total, p->unit, rate, left);
    }
}

void rk_progress_end(rk_progress *p) {
    if (p->shown) {
        ssize_t ok = write(STDERR_FILENO, "\r\033[K", 4);
        (void)ok;
    }
    p->shown = false;
}
