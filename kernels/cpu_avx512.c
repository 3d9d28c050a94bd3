/* cpu_avx512.c - the kernels of cpu_isa.h for avx512. */
#include "kernels/vec_avx512.inc"
#define KERNELS rk_cpu_avx512
#define KERNELS_NAME "avx512"
#include "kernels/cpu_kernels.inc"
