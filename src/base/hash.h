/* hash.h - XXH64 with seed 0, the one hash of all results and files. */
#pragma once
#include <stddef.h>
#include <stdint.h>

uint64_t rk_hash(const void *data, size_t n);

/* Streaming form: equal to rk_hash of all parts in a row. The state is a plain value that may be
 * copied; digest does not end the stream. */
typedef struct rk_hash_state {
    uint64_t opaque[12];
} rk_hash_state;
void     rk_hash_init(rk_hash_state *s);
void     rk_hash_add(rk_hash_state *s, const void *data, size_t n);
uint64_t rk_hash_digest(const rk_hash_state *s);

/* 16 lower-case hex digits and a 0 into buf; returns buf. */
const char *rk_hash_hex(uint64_t h, char buf[17]);
