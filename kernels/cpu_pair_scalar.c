/* cpu_pair_scalar.c - the kernels of cpu_isa.h on scalar lanes, sums in the pair order. */
#include "kernels/vec_scalar.inc"
#define ORDER_PAIR 1
#define KERNELS rk_cpu_pair_scalar
#define KERNELS_NAME "scalar"
#include "kernels/cpu_kernels.inc"
