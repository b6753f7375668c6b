/* linear_neon.c - linear layers on AArch64 with the dot-product extension: the tiles of linear_tiled.h
 * on 32 registers of 4 lanes.
 *
 * sdot multiplies signed bytes: bytes are stored with their sign bit flipped and are flipped back,
 * nibbles 0..15 are positive signed bytes as they are (their offset of 8 is in the start of the sum).
 * BF16 becomes f32 by a shift; F16 and FP8 are widened to a small f32 buffer per 128 columns.
 *
 * Order of reduction: weight.h, for every tile width alike; BF16 and F16 chain over single columns.
 * Called through dispatch.c only. Pure functions, any thread, disjoint outputs. Compiled with its own
 * flags; empty on other architectures.
 */
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)

#define CLB_BF16_AS_F32
#include <arm_neon.h>

#include "linear_tiled.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

typedef enum { SCALE_ROW, SCALE_F32, SCALE_F16, SCALE_F16_MIN } scale_kind;

typedef float32x4_t fvec;
typedef int32x4_t ivec;
#define LANES 4
#define INT_VECTORS_1 8
#define INT_VECTORS_2 8
#define INT_VECTORS_N 4
#define FLOAT_VECTORS_1 8
#define FLOAT_VECTORS_2 8
#define FLOAT_VECTORS_N 4

ALWAYS_INLINE ivec load(const uint8_t *p)
{
    return vreinterpretq_s32_u8(vld1q_u8(p));
}

ALWAYS_INLINE ivec broadcast(const uint8_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return vdupq_n_s32(v);
}

ALWAYS_INLINE fvec broadcast_f32(const uint8_t *p)
{
    float v;
    memcpy(&v, p, sizeof v);
    return vdupq_n_f32(v);
}

ALWAYS_INLINE fvec splat_f32(float v)
{
    return vdupq_n_f32(v);
}

ALWAYS_INLINE fvec load_f32(const float *p)
{
    return vld1q_f32(p);
}

ALWAYS_INLINE void store_f32(float *p, fvec v)
{
    vst1q_f32(p, v);
}

ALWAYS_INLINE fvec add_f32(fvec a, fvec b)
{
    return vaddq_f32(a, b);
}

ALWAYS_INLINE fvec mul_f32(fvec a, fvec b)
{
    return vmulq_f32(a, b);
}

/* sum + a * b */
ALWAYS_INLINE fvec fma_f32(fvec sum, fvec a, fvec b)
{
    return vfmaq_f32(sum, a, b);
}

ALWAYS_INLINE void add_scaled(float *sum, ivec dot, fvec scale)
{
    store_f32(sum, fma_f32(load_f32(sum), vcvtq_f32_s32(dot), scale));
}

/* 256 * dot + offset */
ALWAYS_INLINE ivec shift_plane(ivec dot, ivec offset)
{
    return vaddq_s32(vshlq_n_s32(dot, 8), offset);
}

ALWAYS_INLINE fvec even_bf16(ivec v)
{
    return vreinterpretq_f32_s32(vshlq_n_s32(v, 16));
}

ALWAYS_INLINE fvec odd_bf16(ivec v)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_s32(v), vdupq_n_u32(0xffff0000u)));
}

ALWAYS_INLINE fvec f16_to_f32(uint16x4_t v)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(v));
}

/* Scales of rows [row, row + 4) from a segment's scales. */
ALWAYS_INLINE fvec load_scale(const scale_kind kind, const uint8_t *scales, int row)
{
    if (kind == SCALE_F32)
        return load_f32((const float *)(const void *)(scales + row * 4));
    return f16_to_f32(vld1_u16((const uint16_t *)(const void *)(scales + row * 2)));
}

#define AS_BYTES(v) vreinterpretq_u8_s32(v)
#define LOW4(v) vreinterpretq_s32_u8(vandq_u8(AS_BYTES(v), vdupq_n_u8(15)))
#define HIGH4(v) vreinterpretq_s32_u8(vshrq_n_u8(AS_BYTES(v), 4))
#define BYTES(v) vreinterpretq_s32_u8(veorq_u8(AS_BYTES(v), vdupq_n_u8(0x80)))

/* The activations of four tokens in one register, picked by lane. Loads up to 12 bytes more than the
 * step has: the scales and sums behind every segment make that safe. */
#define LOAD_ACTS(step_x, tokens)                                                                            \
    const int8x16_t acts0 = vreinterpretq_s8_s32(load(step_x));                                              \
    const int8x16_t acts4 = (tokens) > 4 ? vreinterpretq_s8_s32(load((step_x) + 16)) : acts0;                \
    (void)acts4;
#define DOT(c, w, t) c = vdotq_laneq_s32(c, vreinterpretq_s8_s32(w), (t) < 4 ? acts0 : acts4, (t) & 3);

/* Products go straight into 32 bits: no runs of narrow sums. */
#define NIBBLE_RUN 4
#define NIBBLE_BEGIN(h)
#define NIBBLE_STEP(c, h, w, t) DOT(c, w, t)
#define NIBBLE_END(c, h)
#define BYTE_STEP(c, w, t) DOT(c, w, t)

/* Pairs of f16 columns to f32 [2 * pairs][32]. */
static void widen_f16(const uint8_t *w, int32_t pairs, float *out)
{
    for (int32_t p = 0; p < pairs; p++, w += 128, out += 64)
        for (int r = 0; r < 32; r += 4) {
            const uint16x4x2_t v = vld2_u16((const uint16_t *)(const void *)(w + r * 4));
            store_f32(out + r, f16_to_f32(v.val[0]));
            store_f32(out + 32 + r, f16_to_f32(v.val[1]));
        }
}

/* Four e4m3 values in the top bytes of 32-bit lanes to f32, FP8_SCALE times too small: taken for f16,
 * the fields fit and the exponents' biases differ by 8. */
#define FP8_SCALE 256.0f
ALWAYS_INLINE fvec fp8_to_f32(uint32x4_t top)
{
    const uint32x4_t sign = vandq_u32(top, vdupq_n_u32(0x80000000u));
    const uint32x4_t magnitude = vshrq_n_u32(vbicq_u32(top, vdupq_n_u32(0x80000000u)), 24);
    const uint32x4_t nan = vceqq_u32(magnitude, vdupq_n_u32(0x7f));
    const fvec half = f16_to_f32(vmovn_u32(vshlq_n_u32(magnitude, 7)));
    return vreinterpretq_f32_u32(vorrq_u32(vorrq_u32(vreinterpretq_u32_f32(half), sign), nan));
}

/* One fp8 segment to f32 [128][32], without its scale and FP8_SCALE times too small. */
static void widen_fp8(const uint8_t *w, float *out)
{
    for (int step = 0; step < 32; step++, w += 128, out += 128)
        for (int r = 0; r < 32; r += 4) {
            const uint32x4_t v = vreinterpretq_u32_s32(load(w + r * 4));
            const uint32x4_t keep = vdupq_n_u32(0xff000000u);
            /* the bytes of a lane are columns 0 2 1 3 */
            store_f32(out + r, fp8_to_f32(vshlq_n_u32(v, 24)));
            store_f32(out + 64 + r, fp8_to_f32(vandq_u32(vshlq_n_u32(v, 16), keep)));
            store_f32(out + 32 + r, fp8_to_f32(vandq_u32(vshlq_n_u32(v, 8), keep)));
            store_f32(out + 96 + r, fp8_to_f32(vandq_u32(v, keep)));
        }
}

#include "linear_narrow.h"

void clb_linear_neon_linear(const clb_weight *w, const void *act, int32_t n, int32_t t0, int32_t t1, float *y,
                            int64_t ldy, int32_t block0, int32_t block1, int32_t flags)
{
    clb_linear_tiled(tiles_for(w), w, act, n, t0, t1, y, ldy, block0, block1, flags);
}

/* ---- activations ----------------------------------------------------------------------------- */

/* Values [0, n) of 4, the rest 0. */
ALWAYS_INLINE fvec load_part(const float *x, int32_t n)
{
    float part[4] = {0};
    if (n >= 4)
        return load_f32(x);
    for (int32_t i = 0; i < n; i++)
        part[i] = x[i];
    return load_f32(part);
}

/* One segment: returns the scale. */
static float quantize_segment(const float *x, int32_t n, int32_t seg, int8_t *q, int32_t *q_sum)
{
    /* Magnitudes compare as integers, which also ranks infinity and NaN above everything finite. */
    uint32x4_t top = vdupq_n_u32(0);
    for (int32_t i = 0; i < seg; i += 4)
        top = vmaxq_u32(top,
                        vandq_u32(vreinterpretq_u32_f32(load_part(x + i, n - i)), vdupq_n_u32(0x7fffffff)));
    const uint32_t bits = vmaxvq_u32(top);
    *q_sum = 0;
    float absmax;
    memcpy(&absmax, &bits, sizeof absmax);
    if (bits >= 0x7f800000u || absmax < CLB_ACT_TINY) {
        memset(q, 0, (size_t)seg);
        return absmax * 0.0f; /* NaN shall show in the result */
    }
    const float inverse = 127.0f / absmax;
    int32x4_t sum = vdupq_n_s32(0);
    for (int32_t i = 0; i < seg; i += 4) {
        const int32x4_t r = vcvtnq_s32_f32(vmulq_n_f32(load_part(x + i, n - i), inverse)); /* ties to even */
        sum = vaddq_s32(sum, r);
        const int16x4_t words = vmovn_s32(r);
        const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
        const uint32_t four = vget_lane_u32(vreinterpret_u32_s8(bytes), 0);
        memcpy(q + i, &four, 4);
    }
    *q_sum = vaddvq_s32(sum);
    return absmax / 127.0f;
}

static void quantize(const float *x, int32_t n, int32_t seg, int32_t n_seg, clb_quantized *out)
{
    for (int32_t s = 0; s < n_seg; s++)
        out->scale[s] = quantize_segment(x + s * seg, n - s * seg, seg, out->q + s * seg, &out->sum[s]);
}

static void round_bf16(const float *x, int32_t n, float *out)
{
    for (int32_t i = 0; i < 128; i += 4) {
        const fvec f = load_part(x + i, n - i);
        const uint32x4_t v = vreinterpretq_u32_f32(f);
        const uint32x4_t odd = vandq_u32(vshrq_n_u32(v, 16), vdupq_n_u32(1));
        const uint32x4_t up = vaddq_u32(v, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
        const uint32x4_t rounded = vandq_u32(up, vdupq_n_u32(0xffff0000u));
        store_f32(out + i, vbslq_f32(vceqq_f32(f, f), vreinterpretq_f32_u32(rounded), f)); /* NaN as it is */
    }
}

int64_t clb_linear_neon_act_bytes(int32_t kind, int32_t cols, int32_t n)
{
    return clb_act_token_bytes(kind, cols) * n;
}

void clb_linear_neon_act_prepare(int32_t kind, int32_t cols, int32_t n, const float *x, int64_t ldx,
                                 const int32_t *index, void *out, int32_t t0, int32_t t1)
{
    clb_act_prepare_tiled(quantize, round_bf16, kind, cols, n, x, ldx, index, out, t0, t1);
}

#else
typedef int clb_linear_neon_is_empty; /* C wants a declaration per file */
#endif
