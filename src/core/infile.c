/* infile.c - see infile.h. */
#include "core/infile.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

rk_status rk_infile_open(const char *path, rk_infile *out) {
    *out = (rk_infile){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us */
    if (fd < 0) return RK_FAIL(RK_E_INPUT, "%s: cannot open: %m", path);
    struct stat s;
    rk_status   st = RK_OK;
    void       *m;
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
        st = RK_FAIL(RK_E_INPUT, "%s: not a regular file", path);
    } else if (s.st_size == 0) {
        st = RK_FAIL(RK_E_INPUT, "%s: the file is empty", path);
    } else if ((m = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0)) == MAP_FAILED) {
        st = RK_FAIL(RK_E_INPUT, "%s: cannot map %lld bytes: %m", path, (long long)s.st_size);
    } else {
        out->data = m;
        out->bytes = s.st_size;
    }
    close(fd);
    return st;
}

void rk_infile_close(rk_infile *f) {
    if (!f->data) return;
    union {
        const uint8_t *c;
        void          *p;
    } u = {.c = f->data};
    munmap(u.p, (size_t)f->bytes);
    *f = (rk_infile){0};
}

bool rk_infile_is_file(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

bool rk_infile_is_folder(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

rk_status rk_infile_join(const char *folder, const char *name, char out[RK_PATH_LEN]) {
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/') n--;
    int shown = (int)(n < RK_PATH_LEN ? n : RK_PATH_LEN);
    if (snprintf(out, RK_PATH_LEN, "%.*s/%s", shown, folder, name) >= RK_PATH_LEN)
        return RK_FAIL(RK_E_INPUT, "%.200s...: the path is longer than %d bytes", folder,
                       RK_PATH_LEN - 1);
    return RK_OK;
}

const char *rk_infile_shown(const char *s, char buf[RK_SHOWN]) {
    size_t i = 0;
    for (; s[i] && i < RK_SHOWN - 4; i++) buf[i] = s[i] >= 0x20 && s[i] < 0x7f ? s[i] : '?';
    memcpy(buf + i, s[i] ? "..." : "", s[i] ? 4 : 1);
    return buf;
}

bool rk_infile_is_name(const char *s, size_t n, size_t max) {
    if (n < 1 || n > max) return false;
    for (size_t i = 0; i < n; i++)
        if (s[i] <= 0x20 || s[i] >= 0x7f) return false;
    return true;
}
