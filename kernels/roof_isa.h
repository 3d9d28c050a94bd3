/* roof_isa.h - loops that do nothing but one kind of instruction, for roof.c.
 *
 * They are written in assembly: a compiler would spill 24 accumulators, or drop a sum that nobody
 * reads. Each needs an instruction set that has says this CPU and system have. */
#pragma once
#include "base/err.h"

typedef struct rk_roof_loop {
    const char *instruction; /* for people */
    bool (*has)(void);
    void (*run)(int64_t rounds); /* rounds >= 1; registers only */
    double per_round;            /* multiplications and additions */
} rk_roof_loop;

extern const rk_roof_loop rk_roof_sse; /* mulps and addps: what plain C compiles to */
extern const rk_roof_loop rk_roof_ss;  /* mulss and addss */
extern const rk_roof_loop rk_roof_fma_ss;
extern const rk_roof_loop rk_roof_fma_ymm;
extern const rk_roof_loop rk_roof_fma_zmm;
extern const rk_roof_loop rk_roof_bf16; /* VDPBF16PS */
extern const rk_roof_loop rk_roof_vnni; /* VPDPBUSD, int8 */
extern const rk_roof_loop rk_roof_amx;  /* TDPBF16PS; has asks for the tiles */

/* Load n bytes (a multiple of RK_ROOF_BLOCK, 64-byte aligned) with the widest registers there are.
 */
enum { RK_ROOF_BLOCK = 512 };
void rk_roof_read(const void *p, int64_t n);
