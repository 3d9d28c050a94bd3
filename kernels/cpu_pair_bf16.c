/* cpu_pair_bf16.c - the kernels of cpu_isa.h on AVX-512 lanes with VDPBF16PS, sums in the pair order. */
#include "kernels/vec_avx512.inc"
#define ORDER_PAIR 1
#define KERNELS rk_cpu_pair_bf16
#define KERNELS_NAME "avx512bf16"
#include "kernels/cpu_kernels.inc"
