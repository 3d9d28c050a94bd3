/* err.c - the error record of each thread. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static _Thread_local rk_err_record record;
static void (*abort_hook)(rk_status code);

const rk_err_record *rk_err_last(void) { return &record; }

void rk_err_clear(void) { memset(&record, 0, sizeof record); }

const char *rk_status_name(rk_status code) {
    switch (code) {
    case RK_OK: return "OK";
    case RK_E_NO: return "NO";
    case RK_E_USAGE: return "USAGE";
    case RK_E_MEM: return "MEMORY";
    case RK_E_INPUT: return "INPUT";
    case RK_E_OUTPUT: return "OUTPUT";
    case RK_E_BUG: return "BUG";
    case RK_E_PEER: return "PEER";
    case RK_E_DEVICE: return "DEVICE";
    case RK_E_STOPPED: return "STOPPED";
    }
    return "UNKNOWN";
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

rk_status rk_err_fail(rk_status code, const char *file, int line, const char *func, const char *fmt,
                      ...) {
    memset(&record, 0, sizeof record);
    record.code = code;
    record.file = base_name(file);
    record.line = line;
    record.func = func;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(record.text, sizeof record.text, fmt, ap);
    va_end(ap);
    return code;
}

rk_status rk_err_via(rk_status code, const char *file, int line, const char *func) {
    if (record.n_via < RK_ERR_FRAMES) {
        record.via[record.n_via].file = base_name(file);
        record.via[record.n_via].line = line;
        record.via[record.n_via].func = func;
        record.n_via++;
    }
    return code;
}

void rk_err_print(const rk_err_record *rec) {
    char   buf[RK_ERR_TEXT + 1024];
    size_t n = 0, cap = sizeof buf;
    /* What the user did (usage, files, memory) needs the text alone; our own faults also the place. */
    bool place = rec->code == RK_E_BUG || rec->code == RK_E_DEVICE;
    n += (size_t)snprintf(buf, cap, "%s", rec->text[0] ? rec->text : rk_status_name(rec->code));
    if (place && rec->file) {
        n += (size_t)snprintf(buf + n, n < cap ? cap - n : 0, " [%s:%d %s]", rec->file, rec->line,
                              rec->func);
        for (int i = 0; i < rec->n_via && n < cap; i++)
            n += (size_t)snprintf(buf + n, cap - n, " via %s:%d %s", rec->via[i].file,
                                  rec->via[i].line, rec->via[i].func);
    }
    rk_log_raw(RK_LOG_ERROR, rk_status_name(rec->code), buf);
}

void rk_err_set_abort_hook(void (*hook)(rk_status code)) { abort_hook = hook; }

void rk_err_assert(const char *file, int line, const char *func, const char *what) {
    rk_status code = rk_err_fail(RK_E_BUG, file, line, func, "broken invariant: %s", what);
    rk_err_print(&record);
    if (abort_hook) abort_hook(code);
    _Exit((int)code);
}
