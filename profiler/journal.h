/* journal.h - append-only record of finished work, the truth of a running profile.
 *
 * One file per replica (OUTPUT.journal.<replica>). A header binds it to the job (job_hash); each
 * record is length, payload, XXH64. A torn or damaged tail is cut at open; everything before it
 * counts. Records reach the disk (fdatasync) before append returns. */
#pragma once
#include "base/err.h"

typedef struct rk_journal rk_journal;

/* Result of one work item: values [first, first + n) of a sample, layer by layer as profiler.c
 * orders them, and the noise-floor KL where the item held it (else NaN). */
typedef struct rk_journal_record {
    int32_t  sample, first, n;
    uint64_t sample_hash;
    double   floor_kl;
    uint64_t ref_hash; /* XXH64 of the reference's logits rows */
    const double *kl; /* [n] */
} rk_journal_record;

/* Open for appending. resume: keep valid records; else start anew. job_hash of an existing file
 * must match when resuming. Errors: RK_E_OUTPUT; RK_E_USAGE other job (names the remedy) */
rk_status rk_journal_open(const char *path, uint64_t job_hash, bool resume, rk_journal **out);
void      rk_journal_close(rk_journal *j);
rk_status rk_journal_append(rk_journal *j, const rk_journal_record *r);
/* Visit the valid records of a file (absent file: none). kl is valid during the call.
 * Errors: RK_E_USAGE other job; what fn returns */
rk_status rk_journal_read(const char *path, uint64_t job_hash,
                          rk_status (*fn)(void *arg, const rk_journal_record *r), void *arg);
rk_status rk_journal_remove(const char *path);
