/* xz.c - over liblzma, see xz.h. */
#include "tests/xz.h"

#include <lzma.h>
#include <stdio.h>

#include "base/mem.h"
#include "tests/harness.h"

bool rk_test_read(const char *path, char **bytes, size_t *n) {
    FILE *f = fopen(path, "rb");
    void *buf = NULL;
    bool  ok = f && fseek(f, 0, SEEK_END) == 0;
    long  size = ok ? ftell(f) : -1;
    ok = ok && size >= 0 && fseek(f, 0, SEEK_SET) == 0 &&
         rk_mem_alloc(size + 1, 1, path, &buf) == RK_OK &&
         fread(buf, 1, (size_t)size, f) == (size_t)size;
    if (f) fclose(f);
    if (!ok) rk_mem_free(buf);
    *bytes = ok ? buf : NULL;
    *n = ok ? (size_t)size : 0;
    return ok;
}

bool rk_test_unxz(const char *path, char **bytes, size_t *n) {
    char  *packed;
    size_t n_packed;
    *bytes = NULL;
    *n = 0;
    if (!rk_test_read(path, &packed, &n_packed)) return false;
    lzma_stream s = LZMA_STREAM_INIT;
    int64_t     cap = (int64_t)n_packed * 4 + 64;
    void       *out = NULL;
    lzma_ret    rc = lzma_stream_decoder(&s, UINT64_MAX, LZMA_CONCATENATED);
    s.next_in = (const uint8_t *)packed;
    s.avail_in = n_packed;
    while (rc == LZMA_OK) {
        if (s.avail_out == 0) { /* one byte stays free for the 0 */
            size_t done = s.total_out;
            cap *= 2;
            if (rk_mem_resize(&out, cap, 1, path) != RK_OK) break;
            s.next_out = (uint8_t *)out + done;
            s.avail_out = (size_t)cap - 1 - done;
        }
        rc = lzma_code(&s, LZMA_FINISH);
    }
    *n = s.total_out;
    lzma_end(&s);
    rk_mem_free(packed);
    if (rc != LZMA_STREAM_END) rk_mem_free(out);
    *bytes = rc == LZMA_STREAM_END ? out : NULL;
    return *bytes != NULL;
}

const char *rk_test_write(const char *name, const void *bytes, size_t n, char *buf) {
    snprintf(buf, 512, "%s/%s", rk_test_tmpdir(), name);
    FILE *f = fopen(buf, "wb");
    CU_ASSERT_FATAL(f != NULL);
    size_t done = fwrite(bytes, 1, n, f);
    CU_ASSERT_FATAL(fclose(f) == 0 && done == n);
    return buf;
}

bool rk_test_unpack(const char *xz_path, const char *name, char *buf) {
    char  *bytes;
    size_t n;
    if (!rk_test_unxz(xz_path, &bytes, &n)) return false;
    rk_test_write(name, bytes, n, buf);
    rk_mem_free(bytes);
    return true;
}
