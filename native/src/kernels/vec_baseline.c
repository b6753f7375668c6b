/* vec_baseline.c - the vector functions of vec_body.h for portable C, for every processor. */
#define CLB_SIMD_BASELINE
#define CLB_VEC(name) clb_vec_baseline_##name
#include "simd.h"
#include "vec_body.h"
