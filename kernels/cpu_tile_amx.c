/* cpu_tile_amx.c - the kernels of cpu_isa.h on AVX-512 lanes with AMX tiles, sums in the tile
 * order. Compiled without AMX the table is empty, and backend.c takes the path for absent. */
#if defined(__AMX_BF16__) || defined(__AMXBF16__) /* gcc, clang */
#include "kernels/vec_avx512.inc"
#define ORDER_PAIR 0
#define ORDER_AMX  1
#define KERNELS rk_cpu_tile_amx
#define KERNELS_NAME "amx"
#include "kernels/cpu_kernels.inc"
#else
#include "kernels/cpu_isa.h"
const rk_cpu_isa rk_cpu_tile_amx = {.name = "amx", .numerics = "tile"};
#endif
