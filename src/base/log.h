/* log.h - rank-tagged lines on stderr, one write(2) each, and progress of long work.
 *
 * A line reads "[rk 2/4 host] LEVEL subsystem: text". stdout is never touched here. */
#pragma once
#include "base/err.h"

typedef enum rk_log_level {
    RK_LOG_ERROR,
    RK_LOG_WARN,
    RK_LOG_INFO,
    RK_LOG_DEBUG,
    RK_LOG_TRACE,
} rk_log_level;

/* Who speaks: rank of n_ranks; with one rank the tag is "[rk]". */
void rk_log_set_rank(int rank, int n_ranks);

/* Set levels from "LEVEL" or a comma list of "subsystem=LEVEL"; levels: error, warn, info, debug,
 * trace. The default is warn on ranks > 0 and info on rank 0.
 * Errors: RK_E_USAGE unknown level */
rk_status rk_log_set_spec(const char *spec);

bool rk_log_on(rk_log_level level, const char *subsystem);
void rk_log_raw(rk_log_level level, const char *subsystem, const char *text);
void rk_log_line(rk_log_level level, const char *subsystem, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Arguments are evaluated only where the level is on. */
#define RK_LOG(level, subsystem, ...)                                                              \
    do {                                                                                           \
        if (rk_log_on((level), (subsystem))) rk_log_line((level), (subsystem), __VA_ARGS__);       \
    } while (0)

/* Progress of work with a known end. On a terminal a bar, rewritten in place; elsewhere a line at
 * most every 10 s with done/total, rate and time left. Silent for work under 3 s.
 * Only rank 0 calls it. */
typedef struct rk_progress {
    const char *what, *unit; /* borrowed, must outlive */
    int64_t     total;
    double      start_s, last_s;
    bool        shown;
} rk_progress;
void rk_progress_begin(rk_progress *p, const char *what, const char *unit, int64_t total);
void rk_progress_set(rk_progress *p, int64_t done);
void rk_progress_end(rk_progress *p);
/* No progress at all from now on (for tests and --log error). */
void rk_progress_disable(void);

/* Monotonic seconds. */
double rk_now_s(void);
