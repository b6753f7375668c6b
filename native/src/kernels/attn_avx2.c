/* attn_avx2.c - attention (attn_body.h) for AVX2 and FMA. */
#if defined(__x86_64__)
#define CLB_SIMD_AVX2
#define CLB_ATTN(name) clb_attn_avx2_##name
#include "simd.h"

#include "attn.h"
#include "attn_f32.h"
#include "attn_body.h"
#else
typedef int clb_no_attn_avx2; /* a file may not be empty */
#endif
