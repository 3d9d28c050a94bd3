/* err.h - one way to fail: a status that travels, and a record that says why.
 *
 * A function that can fail returns rk_status. Who detects the failure calls RK_FAIL once; it fills
 * this thread's record (code, place, text) and yields the code. Callers pass it on with RK_TRY, or
 * with RK_TRY_OUT where resources are held. Results leave through trailing out-pointers, which stay
 * untouched (or NULL) on failure. Nothing below main prints a failure or exits.
 * The status number is the process's exit code and the MPI_Abort code. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__clang__)
#define RK_CHECKED __attribute__((warn_unused_result))
#else
#define RK_CHECKED
#endif

typedef enum RK_CHECKED rk_status {
    RK_OK = 0,
    RK_E_NO = 1,       /* the answer is no */
    RK_E_USAGE = 2,    /* option or configuration */
    RK_E_MEM = 3,      /* does not fit in memory */
    RK_E_INPUT = 4,    /* model or input file */
    RK_E_OUTPUT = 5,   /* output file or disk */
    RK_E_BUG = 70,     /* broken invariant */
    RK_E_PEER = 71,    /* peer lost or timeout */
    RK_E_DEVICE = 72,  /* accelerator */
    RK_E_STOPPED = 75, /* stopped on request, resume possible */
} rk_status;

enum { RK_ERR_TEXT = 768, RK_ERR_FRAMES = 8 };

/* What failed and where, of the thread's latest RK_FAIL. */
typedef struct rk_err_record {
    rk_status   code;
    const char *file, *func;
    int         line;
    char        text[RK_ERR_TEXT];
    struct {
        const char *file, *func;
        int         line;
    } via[RK_ERR_FRAMES]; /* callers it came through, innermost first */
    int n_via;
} rk_err_record;

/* The calling thread's record; valid until its next RK_FAIL. code is RK_OK when nothing failed. */
const rk_err_record *rk_err_last(void);
void                 rk_err_clear(void);

/* Short upper-case name of a code, e.g. "USAGE". */
const char *rk_status_name(rk_status code);

/* Write the record and its frames to stderr as one write(2); rank-tagged like the log. */
void rk_err_print(const rk_err_record *rec);

/* Replace what a broken invariant ends in (default: print, then _Exit(70)). It must not return. */
void rk_err_set_abort_hook(void (*hook)(rk_status code));

rk_status rk_err_fail(rk_status code, const char *file, int line, const char *func, const char *fmt,
                      ...) __attribute__((format(printf, 5, 6)));
rk_status rk_err_via(rk_status code, const char *file, int line, const char *func);
void rk_err_assert(const char *file, int line, const char *func, const char *what)
    __attribute__((noreturn));

#define RK_FAIL(code, ...) rk_err_fail((code), __FILE__, __LINE__, __func__, __VA_ARGS__)

#define RK_TRY(e)                                                                                  \
    do {                                                                                           \
        rk_status rk_try_ = (e);                                                                   \
        if (rk_try_ != RK_OK) return rk_err_via(rk_try_, __FILE__, __LINE__, __func__);            \
    } while (0)

/* Set st and go to the label out on failure. */
#define RK_TRY_OUT(st, e)                                                                          \
    do {                                                                                           \
        (st) = (e);                                                                                \
        if ((st) != RK_OK) {                                                                       \
            (st) = rk_err_via((st), __FILE__, __LINE__, __func__);                                 \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

/* On in release. cond must have no side effect. */
#define RK_ASSERT(cond) ((cond) ? (void)0 : rk_err_assert(__FILE__, __LINE__, __func__, #cond))
