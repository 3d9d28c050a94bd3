/* cpu_tile_scalar.c - the kernels of cpu_isa.h on scalar lanes, sums in the tile order. */
#include "kernels/vec_scalar.inc"
#define ORDER_PAIR 0
#define KERNELS rk_cpu_tile_scalar
#define KERNELS_NAME "scalar"
#include "kernels/cpu_kernels.inc"
