/* hash.c - over libxxhash, whose header stays here. */
#include "base/hash.h"

#include <stdio.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

_Static_assert(sizeof(XXH64_state_t) <= sizeof(rk_hash_state), "state fits");

uint64_t rk_hash(const void *data, size_t n) { return XXH64(data, n, 0); }

void rk_hash_init(rk_hash_state *s) {
    XXH64_state_t x;
    memset(s, 0, sizeof *s);
    memset(&x, 0, sizeof x);
    XXH64_reset(&x, 0);
    memcpy(s, &x, sizeof x);
}

void rk_hash_add(rk_hash_state *s, const void *data, size_t n) {
    XXH64_state_t x;
    memcpy(&x, s, sizeof x);
    XXH64_update(&x, data, n);
    memcpy(s, &x, sizeof x);
}

uint64_t rk_hash_digest(const rk_hash_state *s) {
    XXH64_state_t x;
    memcpy(&x, s, sizeof x);
    return XXH64_digest(&x);
}

const char *rk_hash_hex(uint64_t h, char buf[17]) {
    snprintf(buf, 17, "%016llx", (unsigned long long)h);
    return buf;
}
