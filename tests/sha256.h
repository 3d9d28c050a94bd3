/* sha256.h - SHA-256 (FIPS 180-4), for comparing with recorded digests. */
#pragma once
#include <stddef.h>

/* 64 hex digits and a NUL. */
void rk_sha256_hex(const void *data, size_t n, char hex[65]);
