/* linear.h - the linear kernels of every instruction set, for dispatch.c only.
 *
 * Each instruction set owns its activation layout: what one act_prepare wrote only the same set's
 * linear can read. Contracts: kernels.h (calls) and weight.h (layout, order of reduction).
 */
#ifndef CLB_LINEAR_H
#define CLB_LINEAR_H

#include "kernels.h"

#define CLB_DECLARE_LINEAR(isa)                                                                              \
    int64_t clb_linear_##isa##_act_bytes(int32_t kind, int32_t cols, int32_t n);                             \
    void clb_linear_##isa##_act_prepare(int32_t kind, int32_t cols, int32_t n, const float *x, int64_t ldx,  \
                                        const int32_t *index, void *out, int32_t t0, int32_t t1);            \
    void clb_linear_##isa##_linear(const clb_weight *w, const void *act, int32_t n, int32_t t0, int32_t t1,  \
                                   float *y, int64_t ldy, int32_t block0, int32_t block1, int32_t flags)

/* A segment whose largest magnitude is below this counts as zero: its inverse scale would overflow. */
#define CLB_ACT_TINY 0x1p-120f

/* Tokens at which callers may cut [0, n) (clb_kernels.act_align). */
#define CLB_LINEAR_ROWMAJOR_ALIGN 1
#define CLB_LINEAR_TILED_ALIGN 12

CLB_DECLARE_LINEAR(ref); /* F32 weights only */
CLB_DECLARE_LINEAR(baseline);
#if defined(__x86_64__)
CLB_DECLARE_LINEAR(avx2);
CLB_DECLARE_LINEAR(avx512);
#endif
#if defined(__aarch64__)
CLB_DECLARE_LINEAR(neon);
#endif

#endif
