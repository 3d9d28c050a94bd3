/* journal.c - see journal.h.
 *
 * File, all little-endian:
 *   header:  magic[8], job_hash u64, XXH64 of these 16 bytes
 *   record:  length u32 of the payload, payload, XXH64 of length and payload
 *   payload: sample i32, first i32, n i32, sample_hash u64, floor_kl f64, ref_hash u64, kl f64[n]
 *
 * The first record that is short or does not match its checksum ends the valid part. */
#define _GNU_SOURCE
#include "profiler/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the journal's numbers are written as they lie in memory"
#endif

static const char magic[8] = {'R', 'K', 'J', 'R', 'N', 'L', '1', '\n'};
enum { HEADER = 24, FIXED = 36 /* of the payload, before kl */, FRAME = 12 /* length and hash */ };

struct rk_journal {
    int     fd;
    int64_t end; /* of the valid part; everything from here on is overwritten */
    char   *path;
    void   *buf; /* one framed record */
    int64_t cap;
};

static void make_header(uint64_t job_hash, unsigned char h[HEADER]) {
    memcpy(h, magic, 8);
    memcpy(h + 8, &job_hash, 8);
    uint64_t sum = rk_hash(h, 16);
    memcpy(h + 16, &sum, 8);
}

/* Read n bytes at an offset; *got is less than n only at the file's end. */
static rk_status read_at(int fd, const char *path, void *buf, int64_t n, int64_t at, int64_t *got) {
    *got = 0;
    while (*got < n) {
        ssize_t k = pread(fd, (char *)buf + *got, (size_t)(n - *got), at + *got);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return RK_FAIL(RK_E_OUTPUT, "%s: cannot read the journal: %m", path);
        if (k == 0) break;
        *got += k;
    }
    return RK_OK;
}

/* Parse the framed record of size bytes at buf; false where it is damaged. */
static bool parse(const unsigned char *buf, int64_t payload, rk_journal_record *r) {
    uint64_t sum;
    memcpy(&sum, buf + 4 + payload, 8);
    if (sum != rk_hash(buf, (size_t)(4 + payload))) return false;
    memcpy(&r->sample, buf + 4, 4);
    memcpy(&r->first, buf + 8, 4);
    memcpy(&r->n, buf + 12, 4);
    memcpy(&r->sample_hash, buf + 16, 8);
    memcpy(&r->floor_kl, buf + 24, 8);
    memcpy(&r->ref_hash, buf + 32, 8);
    r->kl = (const double *)(const void *)(buf + 4 + FIXED);
    return r->sample >= 0 && r->first >= 0 && r->n >= 0 && payload == FIXED + 8 * (int64_t)r->n;
}

typedef rk_status (*visit_fn)(void *arg, const rk_journal_record *r);

/* Visit the valid records of an open file with a checked header; *end is where they stop. */
static rk_status scan(int fd, const char *path, int64_t size, visit_fn fn, void *arg,
                      int64_t *end) {
    void     *buf = NULL;
    int64_t   cap = 0, at = HEADER, got;
    rk_status st = RK_OK;
    for (;;) {
        uint32_t payload;
        RK_TRY_OUT(st, read_at(fd, path, &payload, 4, at, &got));
        if (got < 4 || payload < FIXED || FRAME + (int64_t)payload > size - at) break;
        int64_t n = FRAME + (int64_t)payload;
        if (n > cap) {
            RK_TRY_OUT(st, rk_mem_resize(&buf, n, 1, "journal record"));
            cap = n;
        }
        RK_TRY_OUT(st, read_at(fd, path, buf, n, at, &got));
        rk_journal_record r;
        /* The length counts as part of what is checked, so it is taken from the second read. */
        if (got < n || memcmp(buf, &payload, 4) != 0 || !parse(buf, payload, &r)) break;
        if (fn) RK_TRY_OUT(st, fn(arg, &r));
        at += n;
    }
    *end = at;
out:
    rk_mem_free(buf);
    return st;
}

/* Whether the file belongs to the job. A file that ends within or at a bad header holds no record:
 * *fresh tells to begin anew. */
static rk_status check_header(int fd, const char *path, uint64_t job_hash, int64_t size,
                              bool *fresh) {
    unsigned char h[HEADER] = {0}, want[HEADER];
    int64_t       got;
    RK_TRY(read_at(fd, path, h, HEADER, 0, &got));
    uint64_t of_file;
    memcpy(&of_file, h + 8, 8);
    make_header(of_file, want);
    bool sound = got == HEADER && memcmp(h, want, HEADER) == 0;
    *fresh = !sound && size <= HEADER;
    if (*fresh) return RK_OK;
    if (!sound)
        return RK_FAIL(RK_E_USAGE,
                       "%s: not a journal, or its first bytes are damaged: remove it, or run "
                       "without --resume",
                       path);
    if (of_file != job_hash)
        return RK_FAIL(RK_E_USAGE,
                       "%s: journal of another job (%016llx, this one is %016llx): give the same "
                       "model, calibration and options, choose another --output, or run without "
                       "--resume",
                       path, (unsigned long long)of_file, (unsigned long long)job_hash);
    return RK_OK;
}

static rk_status file_size(int fd, const char *path, int64_t *size) {
    struct stat s;
    if (fstat(fd, &s) != 0) return RK_FAIL(RK_E_OUTPUT, "%s: cannot read the journal: %m", path);
    if (!S_ISREG(s.st_mode))
        return RK_FAIL(RK_E_OUTPUT,
                       "%s: the journal is not a regular file: choose another --output", path);
    *size = s.st_size;
    return RK_OK;
}

/* Write all at an offset; on failure the file is cut back to it. */
static rk_status write_at(int fd, const char *path, const void *buf, int64_t n, int64_t at) {
    for (int64_t done = 0; done < n;) {
        ssize_t k = pwrite(fd, (const char *)buf + done, (size_t)(n - done), at + done);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            int e = k < 0 ? errno : ENOSPC;
            if (ftruncate(fd, at) != 0) e = errno;
            return RK_FAIL(RK_E_OUTPUT, "%s: cannot write the journal: %s", path, strerror(e));
        }
        done += k;
    }
    if (fdatasync(fd) != 0) {
        rk_status st = RK_FAIL(RK_E_OUTPUT, "%s: cannot write the journal to disk: %m", path);
        (void)!ftruncate(fd, at); /* if even this fails, the checksum tells a half record apart */
        return st;
    }
    return RK_OK;
}

/* Make a new file's name durable. Some file systems cannot sync a folder: then there is no more to
 * be done. */
static rk_status sync_folder(const char *path) {
    char *copy;
    RK_TRY(rk_mem_strdup(path, &copy));
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    rk_mem_free(copy);
    return RK_OK;
}

static rk_status begin(rk_journal *j, uint64_t job_hash) {
    unsigned char h[HEADER];
    make_header(job_hash, h);
    if (ftruncate(j->fd, 0) != 0)
        return RK_FAIL(RK_E_OUTPUT, "%s: cannot empty the journal: %m", j->path);
    RK_TRY(write_at(j->fd, j->path, h, HEADER, 0));
    RK_TRY(sync_folder(j->path));
    j->end = HEADER;
    return RK_OK;
}

static rk_status resume_at_end(rk_journal *j, uint64_t job_hash) {
    int64_t size;
    bool    fresh;
    RK_TRY(file_size(j->fd, j->path, &size));
    RK_TRY(check_header(j->fd, j->path, job_hash, size, &fresh));
    if (fresh) return begin(j, job_hash);
    RK_TRY(scan(j->fd, j->path, size, NULL, NULL, &j->end));
    if (j->end == size) return RK_OK;
    RK_LOG(RK_LOG_WARN, "journal", "%s: an unfinished or damaged tail of %lld bytes is cut",
           j->path, (long long)(size - j->end));
    if (ftruncate(j->fd, j->end) != 0 || fdatasync(j->fd) != 0)
        return RK_FAIL(RK_E_OUTPUT, "%s: cannot cut the journal's damaged tail: %m", j->path);
    return RK_OK;
}

/* One writer at a time; file systems without locks do without. */
static rk_status lock(int fd, const char *path) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return RK_OK;
    return RK_FAIL(RK_E_OUTPUT,
                   "%s: another run is writing this journal: wait for its end, or choose another "
                   "--output",
                   path);
}

rk_status rk_journal_open(const char *path, uint64_t job_hash, bool resume, rk_journal **out) {
    void     *p;
    int64_t   size;
    rk_status st = RK_OK;
    *out = NULL;
    RK_TRY(rk_mem_alloc(1, sizeof(rk_journal), "journal", &p));
    rk_journal *j = p;
    j->fd = -1;
    RK_TRY_OUT(st, rk_mem_strdup(path, &j->path));
    j->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (j->fd < 0) {
        st = RK_FAIL(RK_E_OUTPUT, "%s: cannot open the journal for writing: %m", path);
        goto out;
    }
    RK_TRY_OUT(st, file_size(j->fd, path, &size));
    RK_TRY_OUT(st, lock(j->fd, path));
    RK_TRY_OUT(st, resume ? resume_at_end(j, job_hash) : begin(j, job_hash));
    *out = j;
    return RK_OK;
out:
    rk_journal_close(j);
    return st;
}

void rk_journal_close(rk_journal *j) {
    if (!j) return;
    if (j->fd >= 0) close(j->fd); /* every record was synced by append */
    rk_mem_free(j->path);
    rk_mem_free(j->buf);
    rk_mem_free(j);
}

rk_status rk_journal_append(rk_journal *j, const rk_journal_record *r) {
    RK_ASSERT(r->sample >= 0 && r->first >= 0 && r->n >= 0);
    int64_t payload = FIXED + 8 * (int64_t)r->n, n = FRAME + payload;
    if (payload > UINT32_MAX)
        return RK_FAIL(RK_E_BUG, "%s: a record of %d values does not fit", j->path, r->n);
    if (n > j->cap) {
        RK_TRY(rk_mem_resize(&j->buf, n, 1, "journal record"));
        j->cap = n;
    }
    unsigned char *b = j->buf;
    uint32_t       length = (uint32_t)payload;
    memcpy(b, &length, 4);
    memcpy(b + 4, &r->sample, 4);
    memcpy(b + 8, &r->first, 4);
    memcpy(b + 12, &r->n, 4);
    memcpy(b + 16, &r->sample_hash, 8);
    memcpy(b + 24, &r->floor_kl, 8);
    memcpy(b + 32, &r->ref_hash, 8);
    if (r->n) memcpy(b + 4 + FIXED, r->kl, 8 * (size_t)r->n);
    uint64_t sum = rk_hash(b, (size_t)(4 + payload));
    memcpy(b + 4 + payload, &sum, 8);
    RK_TRY(write_at(j->fd, j->path, b, n, j->end));
    j->end += n;
    return RK_OK;
}

rk_status rk_journal_read(const char *path, uint64_t job_hash, visit_fn fn, void *arg) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) return RK_OK;
    if (fd < 0) return RK_FAIL(RK_E_OUTPUT, "%s: cannot read the journal: %m", path);
    int64_t   size, end;
    bool      fresh;
    rk_status st;
    RK_TRY_OUT(st, file_size(fd, path, &size));
    RK_TRY_OUT(st, check_header(fd, path, job_hash, size, &fresh));
    if (!fresh) RK_TRY_OUT(st, scan(fd, path, size, fn, arg, &end));
out:
    close(fd);
    return st;
}

rk_status rk_journal_remove(const char *path) {
    if (unlink(path) != 0 && errno != ENOENT)
        return RK_FAIL(RK_E_OUTPUT, "%s: cannot remove the journal: %m", path);
    return RK_OK;
}
