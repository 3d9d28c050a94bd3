/* cpu_tile_avx2.c - the kernels of cpu_isa.h on avx2 lanes, sums in the tile order. */
#include "kernels/vec_avx2.inc"
#define ORDER_PAIR 0
#define KERNELS rk_cpu_tile_avx2
#define KERNELS_NAME "avx2"
#include "kernels/cpu_kernels.inc"
