/* vec_neon.c - the vector functions of vec_body.h for AArch64 Advanced SIMD. */
#if defined(__aarch64__)
#define CLB_SIMD_NEON
#define CLB_VEC(name) clb_vec_neon_##name
#include "simd.h"
#include "vec_body.h"
#else
typedef int clb_no_vec_neon; /* a file may not be empty */
#endif
