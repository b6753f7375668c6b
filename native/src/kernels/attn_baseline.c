/* attn_baseline.c - attention (attn_body.h) for portable C, for every processor. */
#define CLB_SIMD_BASELINE
#define CLB_ATTN(name) clb_attn_baseline_##name
#include "simd.h"

#include "attn.h"
#include "attn_f32.h"
#include "attn_body.h"
