/* vec_avx512.c - the vector functions of vec_body.h for AVX-512. */
#if defined(__x86_64__)
#define CLB_SIMD_AVX512
#define CLB_VEC(name) clb_vec_avx512_##name
#include "simd.h"
#include "vec_body.h"
#else
typedef int clb_no_vec_avx512; /* a file may not be empty */
#endif
