/* cpu_scalar.c - the kernels of cpu_isa.h for scalar. */
#include "kernels/vec_scalar.inc"
#define KERNELS rk_cpu_scalar
#define KERNELS_NAME "scalar"
#include "kernels/cpu_kernels.inc"
