/* roof_isa.c - see roof_isa.h. */
#define _GNU_SOURCE /* syscall */
#include "kernels/roof_isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EACH_12(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)
#define EACH_24(f)                                                                                 \
    EACH_12(f) f(12) f(13) f(14) f(15) f(16) f(17) f(18) f(19) f(20) f(21) f(22) f(23)

#define LOW_REGISTERS                                                                              \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
#define HIGH_REGISTERS                                                                             \
    "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm30", "xmm31"

/* Two ones in bf16, about 1 in f32: sums grow and never become denormal or NaN. */
static const uint32_t one = 0x3f803f80;

static bool always(void) {
    return true;
}
static bool has_fma(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
static bool has_avx512(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f");
}
static bool has_bf16(void) {
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}
static bool has_vnni(void) {
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}

/* The system must allow the tiles to this process; asking twice does no harm. */
static bool has_amx(void) {
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18, TILE = 1 << 24, TILE_BF16 = 1 << 22 };
    unsigned a, b, c, d;
    if (!has_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    return (d & TILE) && (d & TILE_BF16) &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

/* ---- baseline registers: products and sums are instructions of their own ---- */

#define CLEAR_XMM(i) "xorps %%xmm" #i ", %%xmm" #i "\n\t"
/* Products do not wait for sums: one register is the product of constants again and again. */
#define MUL_ADD(kind, i)                                                                           \
    "movaps %%xmm15, %%xmm14\n\tmul" kind " %%xmm15, %%xmm14\n\t"                                  \
    "add" kind " %%xmm15, %%xmm" #i "\n\t"
#define MUL_ADD_PS(i) MUL_ADD("ps", i)
#define MUL_ADD_SS(i) MUL_ADD("ss", i)

static void mul_add_ps(int64_t n) {
    __asm__ volatile("movss %1, %%xmm15\n\tshufps $0, %%xmm15, %%xmm15\n\t" EACH_12(CLEAR_XMM)
                     "1:\n\t" EACH_12(MUL_ADD_PS) "dec %0\n\tjnz 1b"
                     : "+r"(n)
                     : "m"(one)
                     : LOW_REGISTERS, "cc");
}
static void mul_add_ss(int64_t n) {
    __asm__ volatile("movss %1, %%xmm15\n\t" EACH_12(CLEAR_XMM) "1:\n\t" EACH_12(MUL_ADD_SS)
                     "dec %0\n\tjnz 1b"
                     : "+r"(n)
                     : "m"(one)
                     : LOW_REGISTERS, "cc");
}
const rk_roof_loop rk_roof_sse = {"mulps + addps xmm", always, mul_add_ps, 12 * 2 * 4};
const rk_roof_loop rk_roof_ss = {"mulss + addss", always, mul_add_ss, 12 * 2};

/* ---- FMA ---- */

#define CLEAR_YMM(i) "vxorps %%ymm" #i ", %%ymm" #i ", %%ymm" #i "\n\t"
#define FMA_SS(i)    "vfmadd231ss %%xmm15, %%xmm15, %%xmm" #i "\n\t"
#define FMA_YMM(i)   "vfmadd231ps %%ymm15, %%ymm15, %%ymm" #i "\n\t"

__attribute__((target("avx2,fma"))) static void fma_ss(int64_t n) {
    __asm__ volatile("vbroadcastss %1, %%ymm15\n\t" EACH_12(CLEAR_YMM) "1:\n\t" EACH_12(FMA_SS)
                     "dec %0\n\tjnz 1b\n\tvzeroupper"
                     : "+r"(n)
                     : "m"(one)
                     : LOW_REGISTERS, "cc");
}
__attribute__((target("avx2,fma"))) static void fma_ymm(int64_t n) {
    __asm__ volatile("vbroadcastss %1, %%ymm15\n\t" EACH_12(CLEAR_YMM) "1:\n\t" EACH_12(FMA_YMM)
                     "dec %0\n\tjnz 1b\n\tvzeroupper"
                     : "+r"(n)
                     : "m"(one)
                     : LOW_REGISTERS, "cc");
}
const rk_roof_loop rk_roof_fma_ss = {"vfmadd231ss", has_fma, fma_ss, 12 * 2};
const rk_roof_loop rk_roof_fma_ymm = {"vfmadd231ps ymm", has_fma, fma_ymm, 12 * 2 * 8};

/* ---- 512 bits ---- */

#define CLEAR_ZMM(i) "vpxorq %%zmm" #i ", %%zmm" #i ", %%zmm" #i "\n\t"
#define FMA_ZMM(i)   "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #i "\n\t"
#define BF16_ZMM(i)  "vdpbf16ps %%zmm30, %%zmm31, %%zmm" #i "\n\t"
#define VNNI_ZMM(i)  "vpdpbusd %%zmm30, %%zmm31, %%zmm" #i "\n\t"

#define LOOP_512(name, features, step)                                                             \
    __attribute__((target(features))) static void name(int64_t n) {                                \
        __asm__ volatile("vbroadcastss %1, %%zmm30\n\tvbroadcastss %1, %%zmm31\n\t" EACH_24(       \
                             CLEAR_ZMM) "1:\n\t" EACH_24(step) "dec %0\n\tjnz 1b\n\tvzeroupper"    \
                         : "+r"(n)                                                                 \
                         : "m"(one)                                                                \
                         : LOW_REGISTERS, HIGH_REGISTERS, "cc");                                   \
    }
LOOP_512(fma_zmm, "avx512f", FMA_ZMM)
LOOP_512(bf16_zmm, "avx512f,avx512bf16", BF16_ZMM)
LOOP_512(vnni_zmm, "avx512f,avx512vnni", VNNI_ZMM)

const rk_roof_loop rk_roof_fma_zmm = {"vfmadd231ps zmm", has_avx512, fma_zmm, 24 * 2 * 16};
const rk_roof_loop rk_roof_bf16 = {"vdpbf16ps zmm", has_bf16, bf16_zmm, 24 * 2 * 32};
const rk_roof_loop rk_roof_vnni = {"vpdpbusd zmm", has_vnni, vnni_zmm, 24 * 2 * 64};

/* ---- tiles: 4 sums of 16 x 16 from 2 left and 2 right operands of 16 x 32 ---- */

typedef struct tile_config {
    uint8_t  palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t  rows[16];
} tile_config;
_Static_assert(sizeof(tile_config) == 64, "what ldtilecfg reads");

/* Configured and released here, on the thread that runs: nothing of it outlives the call. Compilers
 * keep no values of their own in tiles, so that none is named as overwritten. */
static void amx(int64_t n) {
    static const tile_config cfg = {.palette = 1,
                                    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                    .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    uint32_t data[16 * 16];
    for (int i = 0; i < 16 * 16; i++) data[i] = one;
    __asm__ volatile("ldtilecfg %1\n\t"
                     "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"
                     "tileloadd (%2,%3,1), %%tmm4\n\ttileloadd (%2,%3,1), %%tmm5\n\t"
                     "tileloadd (%2,%3,1), %%tmm6\n\ttileloadd (%2,%3,1), %%tmm7\n\t"
                     "1:\n\t"
                     "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
                     "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
                     "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t"
                     "tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n\t"
                     "dec %0\n\tjnz 1b\n\ttilerelease"
                     : "+r"(n)
                     : "m"(cfg), "r"(data), "r"((int64_t)64)
                     : "memory", "cc");
}
const rk_roof_loop rk_roof_amx = {"tdpbf16ps", has_amx, amx, 4 * 2 * 16 * 16 * 32};

/* ---- reading ---- */

#define LOAD_XMM(i) "movaps 16*" #i "(%0), %%xmm" #i "\n\t"
#define LOAD_YMM(i) "vmovaps 32*" #i "(%0), %%ymm" #i "\n\t"
#define LOAD_ZMM(i) "vmovaps 64*" #i "(%0), %%zmm" #i "\n\t"
#define EACH_8(f)   f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7)
#define EACH_16(f)  EACH_12(f) f(12) f(13) f(14) f(15)

static void read_xmm(const char *p, int64_t n) {
    for (const char *end = p + n; p < end; p += 256)
        __asm__ volatile(EACH_16(LOAD_XMM)::"r"(p) : LOW_REGISTERS, "memory");
}
__attribute__((target("avx2"))) static void read_ymm(const char *p, int64_t n) {
    for (const char *end = p + n; p < end; p += 512)
        __asm__ volatile(EACH_16(LOAD_YMM)::"r"(p) : LOW_REGISTERS, "memory");
}
__attribute__((target("avx512f"))) static void read_zmm(const char *p, int64_t n) {
    for (const char *end = p + n; p < end; p += 512)
        __asm__ volatile(EACH_8(LOAD_ZMM)::"r"(p) : LOW_REGISTERS, "memory");
}

void rk_roof_read(const void *p, int64_t n) {
    RK_ASSERT(n % RK_ROOF_BLOCK == 0 && (uintptr_t)p % 64 == 0);
    (has_avx512() ? read_zmm : has_fma() ? read_ymm : read_xmm)(p, n);
}
