/* xz.h - reading the compressed test data. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* Unpack a .xz file into *bytes (NUL-terminated, from rk_mem); false where it cannot be read. */
bool        rk_test_unxz(const char *path, char **bytes, size_t *n);
/* A whole file as it is, in the same way. */
bool        rk_test_read(const char *path, char **bytes, size_t *n);
/* Unpack xz_path as tmpdir/name; gives the path in buf (of 512). */
bool        rk_test_unpack(const char *xz_path, const char *name, char *buf);
/* Write n bytes as tmpdir/name; gives the path in buf (of 512). */
const char *rk_test_write(const char *name, const void *bytes, size_t n, char *buf);
