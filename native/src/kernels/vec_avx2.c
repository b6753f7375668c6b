/* vec_avx2.c - the vector functions of vec_body.h for AVX2 and FMA. */
#if defined(__x86_64__)
#define CLB_SIMD_AVX2
#define CLB_VEC(name) clb_vec_avx2_##name
#include "simd.h"
#include "vec_body.h"
#else
typedef int clb_no_vec_avx2; /* a file may not be empty */
#endif
