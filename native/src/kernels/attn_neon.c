/* attn_neon.c - attention (attn_body.h) for AArch64 Advanced SIMD. */
#if defined(__aarch64__)
#define CLB_SIMD_NEON
#define CLB_ATTN(name) clb_attn_neon_##name
#include "simd.h"

#include "attn.h"
#include "attn_f32.h"
#include "attn_body.h"
#else
typedef int clb_no_attn_neon; /* a file may not be empty */
#endif
