/* cpu_avx2.c - the kernels of cpu_isa.h for avx2. */
#include "kernels/vec_avx2.inc"
#define KERNELS rk_cpu_avx2
#define KERNELS_NAME "avx2"
#include "kernels/cpu_kernels.inc"
