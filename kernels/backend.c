/* backend.c - which backends there are, which instruction sets the CPU has, and packing. */
#include "kernels/backend.h"

#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/mem.h"
#include "kernels/cpu_isa.h"
#include "kernels/host.h"

extern const rk_backend_ops rk_ref_ops, rk_cpu_ops;

#if defined(__x86_64__)
static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("fma");
}
static bool has_avx2(void) {
    unsigned a, b, c, d; /* not every compiler knows "f16c" by name */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
/* The CPU has AMX for bf16, and Linux lets this process use it: it must be asked before the first
 * tile instruction of any thread, and asking again is free. No where it does not know the question,
 * or where a thread's signal stack is too small for tiles. */
static bool has_amx(void) {
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    return (d & AMX_BF16) && (d & AMX_TILE) &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#endif

static bool cpu_has(const rk_cpu_isa *isa) {
    if (!isa->gemm) return false; /* the compiler lacked the instructions */
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (isa == &rk_cpu_tile_amx)
        return has_avx512() && __builtin_cpu_supports("avx512bf16") && has_amx();
    if (isa == &rk_cpu_pair_bf16) return has_avx512() && __builtin_cpu_supports("avx512bf16");
    if (isa == &rk_cpu_tile_avx512 || isa == &rk_cpu_pair_avx512) return has_avx512();
    if (isa == &rk_cpu_tile_avx2 || isa == &rk_cpu_pair_avx2) return has_avx2();
#endif
    return isa == &rk_cpu_tile_scalar || isa == &rk_cpu_pair_scalar;
}

static const rk_quant_isa *quant_isa(const rk_cpu_isa *isa) {
#if defined(__x86_64__)
    bool scalar = isa == &rk_cpu_tile_scalar || isa == &rk_cpu_pair_scalar;
    bool narrow = isa == &rk_cpu_tile_avx2 || isa == &rk_cpu_pair_avx2;
    if (!scalar && !narrow && __builtin_cpu_supports("avx512vnni")) return &rk_quant_avx512vnni;
    if (!scalar) return &rk_quant_avx2;
#else
    (void)isa;
#endif
    return &rk_quant_scalar;
}

/* Best first within each order. */
static const rk_cpu_isa *const all_isas[] = {
    &rk_cpu_tile_amx, &rk_cpu_tile_avx512, &rk_cpu_tile_avx2, &rk_cpu_tile_scalar,
    &rk_cpu_pair_bf16, &rk_cpu_pair_avx512, &rk_cpu_pair_avx2, &rk_cpu_pair_scalar};
enum { N_ISAS = sizeof all_isas / sizeof *all_isas };

static const rk_cpu_isa *find_isa(const char *name, const char *numerics) {
    for (int i = 0; i < N_ISAS; i++)
        if (strcmp(numerics, all_isas[i]->numerics) == 0 && cpu_has(all_isas[i]) &&
            (!name || strcmp(name, all_isas[i]->name) == 0))
            return all_isas[i];
    return NULL;
}

bool rk_backend_has_isa(const char *isa, const char *numerics) {
    return find_isa(isa, numerics) != NULL;
}

unsigned rk_backend_native_numerics(void) {
    return (rk_backend_has_isa("amx", "tile") ? RK_NATIVE_TILE : 0u) |
           (rk_backend_has_isa("avx512bf16", "pair") ? RK_NATIVE_PAIR : 0u);
}

const char *rk_backend_best_numerics(unsigned native_to_all) {
    return native_to_all & RK_NATIVE_TILE ? "tile" : "pair";
}

const char *rk_backend_list_isas(const char *numerics, char buf[RK_PATH_LIST]) {
    size_t n = 0, cap = RK_PATH_LIST;
    buf[0] = 0;
    for (int i = N_ISAS - 1; i >= 0; i--)
        if (strcmp(numerics, all_isas[i]->numerics) == 0 && cpu_has(all_isas[i]))
            n += (size_t)snprintf(buf + n, cap - n, "%s%s", n ? ", " : "", all_isas[i]->name);
    return buf;
}

/* Every slot of a table must be filled. */
static void check_table(const rk_backend_ops *ops) {
    const unsigned char *p = (const unsigned char *)ops;
    static const void   *null_pointer = NULL;
    for (size_t i = 0; i < sizeof *ops; i += sizeof(void *))
        RK_ASSERT(memcmp(p + i, &null_pointer, sizeof(void *)) != 0);
}

rk_status rk_backend_open(const char *name, int n_threads, const char *isa, const char *numerics,
                          rk_backend **out) {
    bool                  cpu = strcmp(name, "cpu") == 0;
    const rk_backend_ops *ops = cpu ? &rk_cpu_ops : &rk_ref_ops;
    char                  list[RK_PATH_LIST];
    *out = NULL;
    if (!cpu && strcmp(name, "ref") != 0)
        return RK_FAIL(RK_E_USAGE, "no backend \"%s\"; there are cpu and ref", name);
    if (!numerics || !cpu) numerics = rk_backend_best_numerics(rk_backend_native_numerics());
    if (strcmp(numerics, "tile") != 0 && strcmp(numerics, "pair") != 0)
        return RK_FAIL(RK_E_USAGE, "no order of sums \"%s\"; there are tile and pair", numerics);
    const rk_cpu_isa *found = find_isa(cpu ? isa : "scalar", numerics);
    if (!found)
        return RK_FAIL(RK_E_USAGE, "this CPU has no %s path in %s order; there are %s", isa, numerics,
                       rk_backend_list_isas(numerics, list));
    check_table(ops);
    RK_TRY(ops->open(ops, n_threads, out));
    rk_host_of(*out)->isa = found;
    rk_host_of(*out)->quant = quant_isa(found);
    (*out)->path = found->name;
    if (cpu) (*out)->numerics = found->numerics;
    return RK_OK;
}

void rk_backend_close(rk_backend *be) {
    if (be) be->ops->close(be);
}

void rk_mat_pack(rk_dtype dtype, void *image, int n_total, int k, int row0, int n, const float *src) {
    RK_ASSERT(row0 >= 0 && row0 + n <= n_total && (dtype == RK_F32 || dtype == RK_BF16));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < k; j++) {
            int64_t at = rk_mat_at(row0 + i, j, k);
            float   v = src[(int64_t)i * k + j];
            if (dtype == RK_F32)
                ((float *)image)[at] = v;
            else
                ((uint16_t *)image)[at] = rk_f32_to_bf16(v);
        }
}
