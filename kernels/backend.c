/* backend.c - which backends there are, which instruction sets the CPU has, and packing. */
#include "kernels/backend.h"

#include <string.h>

#include "base/mem.h"
#include "kernels/cpu_isa.h"
#include "kernels/host.h"

extern const rk_backend_ops rk_ref_ops, rk_cpu_ops;

static bool cpu_has(const rk_cpu_isa *isa) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (isa == &rk_cpu_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("fma");
    if (isa == &rk_cpu_avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return isa == &rk_cpu_scalar;
}

/* Best first. */
static const rk_cpu_isa *const all_isas[] = {&rk_cpu_avx512, &rk_cpu_avx2, &rk_cpu_scalar};
enum { N_ISAS = sizeof all_isas / sizeof *all_isas };

static const rk_cpu_isa *find_isa(const char *name) {
    for (int i = 0; i < N_ISAS; i++)
        if (cpu_has(all_isas[i]) && (!name || strcmp(name, all_isas[i]->name) == 0)) return all_isas[i];
    return NULL;
}

bool rk_backend_has_isa(const char *isa) { return find_isa(isa) != NULL; }

/* Every slot of a table must be filled. */
static void check_table(const rk_backend_ops *ops) {
    const unsigned char *p = (const unsigned char *)ops;
    static const void   *null_pointer = NULL;
    for (size_t i = 0; i < sizeof *ops; i += sizeof(void *))
        RK_ASSERT(memcmp(p + i, &null_pointer, sizeof(void *)) != 0);
}

rk_status rk_backend_open(const char *name, int n_threads, const char *isa, rk_backend **out) {
    bool                  cpu = strcmp(name, "cpu") == 0;
    const rk_backend_ops *ops = cpu ? &rk_cpu_ops : &rk_ref_ops;
    *out = NULL;
    if (!cpu && strcmp(name, "ref") != 0)
        return RK_FAIL(RK_E_USAGE, "no backend \"%s\"; there are cpu and ref", name);
    const rk_cpu_isa *found = find_isa(cpu ? isa : "scalar");
    if (!found)
        return RK_FAIL(RK_E_USAGE, "this CPU has no %s path; there are scalar%s%s", isa,
                       rk_backend_has_isa("avx2") ? ", avx2" : "",
                       rk_backend_has_isa("avx512") ? ", avx512" : "");
    check_table(ops);
    RK_TRY(ops->open(ops, n_threads, out));
    rk_host_of(*out)->isa = found;
    (*out)->path = found->name;
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
