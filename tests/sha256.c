/* sha256.c - see sha256.h. The constants are the fractional parts of cube and square roots of
 * primes, computed when first needed. */
#include "tests/sha256.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static uint32_t k[64], h0[8];

static uint32_t fraction(long double x) {
    return (uint32_t)((x - floorl(x)) * 4294967296.0L);
}

static void constants(void) {
    int n = 0;
    for (int p = 2; n < 64; p++) {
        int prime = 1;
        for (int d = 2; d * d <= p; d++) prime = prime && p % d;
        if (!prime) continue;
        if (n < 8) h0[n] = fraction(sqrtl(p));
        k[n++] = fraction(cbrtl(p));
    }
}

static uint32_t rot(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static void block(uint32_t h[8], const unsigned char *p) {
    uint32_t w[64], a[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + (rot(w[i - 15], 7) ^ rot(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
               (rot(w[i - 2], 17) ^ rot(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(a, h, sizeof a);
    for (int i = 0; i < 64; i++) {
        uint32_t t1 = a[7] + (rot(a[4], 6) ^ rot(a[4], 11) ^ rot(a[4], 25)) +
                      ((a[4] & a[5]) ^ (~a[4] & a[6])) + k[i] + w[i];
        uint32_t t2 = (rot(a[0], 2) ^ rot(a[0], 13) ^ rot(a[0], 22)) +
                      ((a[0] & a[1]) ^ (a[0] & a[2]) ^ (a[1] & a[2]));
        memmove(a + 1, a, 7 * sizeof *a);
        a[4] += t1;
        a[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += a[i];
}

void rk_sha256_hex(const void *data, size_t n, char hex[65]) {
    const unsigned char *p = data;
    unsigned char        last[128] = {0};
    uint32_t             h[8];
    size_t               whole = n / 64 * 64, rest = n - whole, end = rest < 56 ? 64 : 128;
    if (!k[0]) constants();
    memcpy(h, h0, sizeof h);
    for (size_t i = 0; i < whole; i += 64) block(h, p + i);
    if (rest) memcpy(last, p + whole, rest);
    last[rest] = 0x80;
    for (int i = 0; i < 8; i++)
        last[end - 1 - (size_t)i] = (unsigned char)((uint64_t)n * 8 >> 8 * i);
    for (size_t i = 0; i < end; i += 64) block(h, last + i);
    for (int i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08x", h[i]);
}
