/* amx_emulation.h - a software model of AMX's eight tiles, for the macros of kernels/mm_amx.inc.
 * What hardware answers with a fault ends the program here: use without a configuration, shapes
 * that do not fit, a malformed configuration. A product is TDPBF16PS's: chains of fused
 * multiply-adds for the even and for the odd elements of a row, each from zero, their sum added to
 * C, denormals zero whatever MXCSR says. Included by one test's file before the kernels. */
#pragma once
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/tensor.h"

#define RK_AMX_EMULATED 1

typedef struct amx_tile {
    int           rows, row_bytes; /* as configured */
    unsigned char row[16][64];
} amx_tile;

/* One thread's registers, and how often they were configured. */
static _Thread_local struct {
    bool     configured;
    int      n_configs;
    int64_t  n_products;
    amx_tile tile[8];
} amx;

static void amx_require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "AMX model: %s\n", what);
    abort();
}

static amx_tile *amx_tile_of(int t) {
    amx_require(amx.configured, "tile instruction without a configuration");
    amx_require(t >= 0 && t < 8 && amx.tile[t].rows > 0, "tile that is not configured");
    return &amx.tile[t];
}

/* The 64 bytes that LDTILECFG reads: palette, start row, 14 reserved, u16 bytes of a row [16], u8
 * rows [16]. */
static void amx_loadconfig(const void *config) {
    unsigned char c[64];
    bool          rest = false;
    memcpy(c, config, sizeof c);
    memset(&amx.tile, 0, sizeof amx.tile);
    amx.n_configs++;
    amx.configured = c[0] != 0;
    amx_require(c[0] <= 1 && c[1] == 0, "palette or start row");
    for (int i = 2; i < 64; i++)
        rest = rest || (c[i] && (i < 16 || (i >= 32 && i < 48) || i >= 56));
    amx_require(!rest, "reserved bytes of a configuration");
    for (int t = 0; amx.configured && t < 8; t++) {
        int rows = c[48 + t], bytes = c[16 + 2 * t] | c[17 + 2 * t] << 8;
        amx_require(rows <= 16 && bytes <= 64 && (rows == 0) == (bytes == 0), "shape of a tile");
        amx.tile[t].rows = rows;
        amx.tile[t].row_bytes = bytes;
    }
}
static void amx_release(void) {
    memset(&amx.tile, 0, sizeof amx.tile);
    amx.configured = false;
}

static void amx_zero(int t) {
    amx_tile *x = amx_tile_of(t);
    memset(x->row, 0, sizeof x->row);
}
static void amx_load(int t, const void *p, int64_t step) {
    amx_tile *x = amx_tile_of(t);
    memset(x->row, 0, sizeof x->row);
    for (int i = 0; i < x->rows; i++)
        memcpy(x->row[i], (const char *)p + i * step, (size_t)x->row_bytes);
}
static void amx_store(int t, void *p, int64_t step) {
    amx_tile *x = amx_tile_of(t);
    for (int i = 0; i < x->rows; i++) memcpy((char *)p + i * step, x->row[i], (size_t)x->row_bytes);
}

/* One row of C: sums over pairs of A's row and B's rows. */
static __attribute__((noinline)) void amx_row(float *c, int columns, const uint16_t *a, int pairs,
                                              const amx_tile *b) {
    float e[16] = {0}, o[16] = {0};
    for (int k = 0; k < pairs; k++)
        for (int n = 0; n < columns; n++) {
            uint16_t w[2];
            memcpy(w, b->row[k] + 4 * n, sizeof w);
            e[n] = fmaf(rk_bf16_to_f32(a[2 * k]), rk_bf16_to_f32(w[0]), e[n]);
            o[n] = fmaf(rk_bf16_to_f32(a[2 * k + 1]), rk_bf16_to_f32(w[1]), o[n]);
        }
    for (int n = 0; n < columns; n++) c[n] = c[n] + (e[n] + o[n]);
}

static void amx_dpbf16(int tc, int ta, int tb) {
    amx_tile *c = amx_tile_of(tc), *a = amx_tile_of(ta), *b = amx_tile_of(tb);
    unsigned  csr = _mm_getcsr();
    amx_require(tc != ta && tc != tb && ta != tb, "one tile twice in a product");
    amx_require(c->rows == a->rows && c->row_bytes == b->row_bytes && a->row_bytes / 4 == b->rows &&
                    c->row_bytes % 4 == 0 && a->row_bytes % 4 == 0,
                "shapes of a product");
    amx.n_products++;
    _mm_setcsr(0x1f80 | 0x8040); /* to nearest, exceptions masked, denormals zero */
    for (int i = 0; i < c->rows; i++) {
        float    sum[16];
        uint16_t left[32];
        memcpy(sum, c->row[i], sizeof sum);
        memcpy(left, a->row[i], sizeof left);
        amx_row(sum, c->row_bytes / 4, left, a->row_bytes / 4, b);
        memcpy(c->row[i], sum, (size_t)c->row_bytes);
    }
    _mm_setcsr(csr);
}

#define AMX_LOADCONFIG(config)         amx_loadconfig(config)
#define AMX_RELEASE()                  amx_release()
#define AMX_ZERO(t)                    amx_zero(t)
#define AMX_LOAD(t, p, row_bytes)      amx_load(t, p, row_bytes)
#define AMX_LOAD_ONCE(t, p, row_bytes) amx_load(t, p, row_bytes)
#define AMX_STORE(t, p, row_bytes)     amx_store(t, p, row_bytes)
#define AMX_DPBF16(c, a, b)            amx_dpbf16(c, a, b)
