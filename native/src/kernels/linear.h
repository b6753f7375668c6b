/* linear.h - the linear kernels of every instruction set, for dispatch.c only.
 *
 * Each instruction set owns its activation layout: what one act_prepare wrote only the same set's
 * linear can read. Contracts: kernels.h (calls) and weight.h (layout, order of reduction).
 */
#ifndef CLB_LINEAR_H
#define CLB_LINEAR_H

#include <string.h>

#include "../topk.h"
#include "kernels.h"

#define CLB_DECLARE_LINEAR(isa)                                                                              \
    int64_t clb_linear_##isa##_act_bytes(int32_t kind, int32_t cols, int32_t n);                             \
    void clb_linear_##isa##_act_prepare(int32_t kind, int32_t cols, int32_t n, const float *x, int64_t ldx,  \
                                        const int32_t *index, void *out, int32_t t0, int32_t t1);            \
    void clb_linear_##isa##_linear(const clb_weight *w, const void *act, int32_t n, int32_t t0, int32_t t1,  \
                                   float *y, int64_t ldy, int32_t block0, int32_t block1, int32_t flags)

/* A segment whose largest magnitude is below this counts as zero. Far enough above the smallest normal
 * number that no product of scales becomes denormal (weight.h, order of reduction). */
#define CLB_ACT_TINY 0x1p-80f

/* Columns per segment of a quantized kind. */
static inline int32_t clb_quantized_seg(int32_t kind)
{
    return kind == CLB_ACT_Q8_16 ? 16 : kind == CLB_ACT_Q8_32 || kind == CLB_ACT_Q8_32_FULL ? 32 : 64;
}

static inline int clb_kind_full(int32_t kind)
{
    return kind == CLB_ACT_Q8_32_FULL || kind == CLB_ACT_Q8_64_FULL;
}

/* Segments of a row that get a second plane. A tile of 6 tokens computes it for every segment that one of
 * them chose, so a larger share soon means all of them. On SmolLM2 (AVX-512, prompt of 512 tokens) nothing,
 * an eighth, a sixth and a third give 1180, 955, 945 and 785 tokens per second, and a divergence from f32 of
 * 30, 6, 5 and 3 times 1e-4; with an eighth a near tie of the reference answers hangs on a hair. */
static inline int32_t clb_second_planes(int32_t kind, int32_t n_seg)
{
    return clb_kind_full(kind) ? n_seg : (n_seg + 5) / 6;
}

/* Second plane of a segment: what s * q1 leaves of n <= seg values. Returns the sum of q2. */
static inline int32_t clb_quantize_rest(const float *x, int32_t n, int32_t seg, float scale, const int8_t *q1,
                                        int8_t *q2)
{
    memset(q2, 0, (size_t)seg);
    if (!(scale > 0))
        return 0;
    const float to_steps = 256.0f / scale;
    int32_t sum = 0;
    for (int32_t i = 0; i < n; i++) {
        float v = (x[i] - scale * (float)q1[i]) * to_steps;
        v = v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v;
        /* adding 1.5 * 2^23 rounds to nearest even without a call */
        const float r = (v + 12582912.0f) - 12582912.0f;
        q2[i] = (int8_t)r;
        sum += (int32_t)r;
    }
    return sum;
}

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
