/* cpu_tile_avx512.c - the kernels of cpu_isa.h on avx512 lanes, sums in the tile order. */
#include "kernels/vec_avx512.inc"
#define ORDER_PAIR 0
#define KERNELS rk_cpu_tile_avx512
#define KERNELS_NAME "avx512"
#include "kernels/cpu_kernels.inc"
