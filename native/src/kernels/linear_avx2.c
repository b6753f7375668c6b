/* linear_avx2.c - linear layers on AVX2, FMA and F16C: the tiles of linear_tiled.h on 16 registers of
 * 8 lanes.
 *
 * Without a fused byte product, nibbles use vpmaddubsw (u8 * s8 pairs into 16 bits): 8 such products of
 * nibbles fit 16 bits, so they are added there and widened rarely. Bytes would overflow: the weight's
 * sign is moved to the activation first (|w| * sign(x, w)), after which a pair reaches at most
 * 2*128*127 and is widened at once. BF16 becomes f32 by a shift; F16 and FP8 are widened to a small f32
 * buffer per 128 columns.
 *
 * Order of reduction: weight.h, for every tile width alike; BF16 and F16 chain over single columns.
 * Called through dispatch.c only. Pure functions, any thread, disjoint outputs. Compiled with its own
 * flags; empty on other architectures.
 */
#if defined(__AVX2__)

#define CLB_BF16_AS_F32
#include <immintrin.h>

#include "linear_tiled.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

typedef enum { SCALE_ROW, SCALE_F32, SCALE_F16, SCALE_F16_MIN } scale_kind;

typedef __m256 fvec;
typedef __m256i ivec;
#define LANES 8
#define INT_VECTORS_1 4
#define INT_VECTORS_2 2
#define INT_VECTORS_N 1
#define FLOAT_VECTORS_1 4
#define FLOAT_VECTORS_2 2
#define FLOAT_VECTORS_N 2

ALWAYS_INLINE ivec load(const uint8_t *p)
{
    return _mm256_load_si256((const __m256i *)(const void *)p);
}

ALWAYS_INLINE ivec broadcast(const uint8_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

ALWAYS_INLINE fvec broadcast_f32(const uint8_t *p)
{
    float v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_ps(v);
}

ALWAYS_INLINE fvec splat_f32(float v)
{
    return _mm256_set1_ps(v);
}

ALWAYS_INLINE fvec load_f32(const float *p)
{
    return _mm256_loadu_ps(p);
}

ALWAYS_INLINE void store_f32(float *p, fvec v)
{
    _mm256_storeu_ps(p, v);
}

ALWAYS_INLINE fvec add_f32(fvec a, fvec b)
{
    return _mm256_add_ps(a, b);
}

ALWAYS_INLINE fvec mul_f32(fvec a, fvec b)
{
    return _mm256_mul_ps(a, b);
}

/* sum + a * b */
ALWAYS_INLINE fvec fma_f32(fvec sum, fvec a, fvec b)
{
    return _mm256_fmadd_ps(a, b, sum);
}

ALWAYS_INLINE void add_scaled(float *sum, ivec dot, fvec scale)
{
    store_f32(sum, fma_f32(load_f32(sum), _mm256_cvtepi32_ps(dot), scale));
}

/* 256 * dot + offset */
ALWAYS_INLINE ivec shift_plane(ivec dot, ivec offset)
{
    return _mm256_add_epi32(_mm256_slli_epi32(dot, 8), offset);
}

ALWAYS_INLINE fvec even_bf16(ivec v)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}

ALWAYS_INLINE fvec odd_bf16(ivec v)
{
    /* two shifts: the mask would take the register that the widest tile lacks */
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(v, 16), 16));
}

/* Scales of rows [row, row + 8) from a segment's scales. */
ALWAYS_INLINE fvec load_scale(const scale_kind kind, const uint8_t *scales, int row)
{
    if (kind == SCALE_F32)
        return load_f32((const float *)(const void *)(scales + row * 4));
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)(scales + row * 2)));
}

/* acc += v. As asm, because gcc reorders integer sums across tokens and runs out of registers. */
#define ADD_IN_PLACE(instruction, acc, v) __asm__(instruction " %1, %0, %0" : "+x"(acc) : "x"(v))

#define LOW4(v) _mm256_and_si256(v, _mm256_set1_epi8(15))
#define HIGH4(v) _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15))
#define BYTES(v) _mm256_xor_si256(v, _mm256_set1_epi8((char)0x80))

/* A broadcast from memory is a plain load, so nothing is fetched ahead. */
#define LOAD_ACTS(step_x, tokens)
#define ACT(t) broadcast(step_x + (t) * 4)

/* Steps (of two products) whose 16-bit sums are widened together: 4 * 2 * (2*15*127) < 2^15. */
#define NIBBLE_RUN 4
#define NIBBLE_BEGIN(h) __m256i h = _mm256_setzero_si256();
#define NIBBLE_STEP(c, h, w, t) ADD_IN_PLACE("vpaddw", h, _mm256_maddubs_epi16(w, ACT(t)));
#define NIBBLE_END(c, h) ADD_IN_PLACE("vpaddd", c, _mm256_madd_epi16(h, _mm256_set1_epi16(1)));
#define BYTE_STEP(c, w, t)                                                                                   \
    ADD_IN_PLACE("vpaddd", c,                                                                                \
                 _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(ACT(t), w)),    \
                                   _mm256_set1_epi16(1)));

/* Eight rows of two f16 columns, [row][2], to f32 [2][32 rows]. */
ALWAYS_INLINE void store_f16_pair(__m256i pair, float *out)
{
    /* per 128-bit half: the four values of the even column, then those of the odd one */
    const __m256i split = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5,
                                           8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m256i v = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(pair, split), 0xd8);
    store_f32(out, _mm256_cvtph_ps(_mm256_castsi256_si128(v)));
    store_f32(out + 32, _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)));
}

/* Pairs of f16 columns to f32 [2 * pairs][32]. */
static void widen_f16(const uint8_t *w, int32_t pairs, float *out)
{
    for (int32_t p = 0; p < pairs; p++, w += 128, out += 64)
        for (int r = 0; r < 4; r++)
            store_f16_pair(load(w + r * 32), out + r * 8);
}

/* e4m3 values in the upper bytes of 16-bit words to f16, FP8_SCALE times too small: the fields fit, the
 * exponents' biases differ by 8. */
#define FP8_SCALE 256.0f
ALWAYS_INLINE __m256i fp8_to_f16(__m256i top)
{
    const __m256i sign = _mm256_and_si256(top, _mm256_set1_epi16((int16_t)0x8000));
    const __m256i magnitude = _mm256_srli_epi16(_mm256_slli_epi16(top, 1), 2);
    const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f << 7));
    return _mm256_or_si256(_mm256_or_si256(sign, magnitude), nan);
}

/* One fp8 segment to f32 [128][32], without its scale and FP8_SCALE times too small. */
static void widen_fp8(const uint8_t *w, float *out)
{
    const __m256i upper = _mm256_set1_epi16((int16_t)0xff00);
    for (int step = 0; step < 32; step++, w += 128, out += 128)
        for (int r = 0; r < 4; r++) {
            const __m256i v = load(w + r * 32); /* the bytes of a lane are columns 0 2 1 3 */
            store_f16_pair(fp8_to_f16(_mm256_slli_epi16(v, 8)), out + r * 8);
            store_f16_pair(fp8_to_f16(_mm256_and_si256(v, upper)), out + 64 + r * 8);
        }
}

#include "linear_narrow.h"

void clb_linear_avx2_linear(const clb_weight *w, const void *act, int32_t n, int32_t t0, int32_t t1, float *y,
                            int64_t ldy, int32_t block0, int32_t block1, int32_t flags)
{
    clb_linear_tiled(tiles_for(w), w, act, n, t0, t1, y, ldy, block0, block1, flags);
}

/* ---- activations ----------------------------------------------------------------------------- */

/* Values [0, n) of 8, the rest 0. */
ALWAYS_INLINE __m256 load_part(const float *x, int32_t n)
{
    static const int32_t mask[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    if (n >= 8)
        return _mm256_loadu_ps(x);
    if (n <= 0)
        return _mm256_setzero_ps();
    return _mm256_maskload_ps(x, _mm256_loadu_si256((const __m256i *)(const void *)(mask + 8 - n)));
}

/* One segment: returns the scale. */
static float quantize_segment(const float *x, int32_t n, int32_t seg, int8_t *q, int32_t *q_sum)
{
    /* Magnitudes compare as integers, which also ranks infinity and NaN above everything finite. */
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256();
    for (int32_t i = 0; i < seg; i += 8)
        top =
            _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(load_part(x + i, n - i)), magnitude));
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    const int32_t bits = _mm_cvtsi128_si32(half);
    *q_sum = 0;
    float absmax;
    memcpy(&absmax, &bits, sizeof absmax);
    if (bits >= 0x7f800000 || absmax < CLB_ACT_TINY) {
        memset(q, 0, (size_t)seg);
        return absmax * 0.0f; /* NaN shall show in the result */
    }
    const __m256 inverse = _mm256_set1_ps(127.0f / absmax);
    __m256i sum = _mm256_setzero_si256();
    for (int32_t i = 0; i < seg; i += 8) {
        const __m256i r =
            _mm256_cvtps_epi32(_mm256_mul_ps(load_part(x + i, n - i), inverse)); /* ties to even */
        sum = _mm256_add_epi32(sum, r);
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
        _mm_storel_epi64((__m128i *)(void *)(q + i), _mm_packs_epi16(words, words));
    }
    __m128i total = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    total = _mm_add_epi32(total, _mm_shuffle_epi32(total, 0x4e));
    total = _mm_add_epi32(total, _mm_shuffle_epi32(total, 0xb1));
    *q_sum = _mm_cvtsi128_si32(total);
    return absmax / 127.0f;
}

static void quantize(const float *x, int32_t n, int32_t seg, int32_t n_seg, clb_quantized *out)
{
    for (int32_t s = 0; s < n_seg; s++)
        out->scale[s] = quantize_segment(x + s * seg, n - s * seg, seg, out->q + s * seg, &out->sum[s]);
}

static void round_bf16(const float *x, int32_t n, float *out)
{
    const __m256i high16 = _mm256_set1_epi32((int32_t)0xffff0000u);
    for (int32_t i = 0; i < 128; i += 8) {
        const __m256 f = load_part(x + i, n - i);
        const __m256i v = _mm256_castps_si256(f);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(v, 16), _mm256_set1_epi32(1));
        const __m256i up = _mm256_add_epi32(v, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        const __m256 rounded = _mm256_castsi256_ps(_mm256_and_si256(up, high16));
        _mm256_store_ps(out + i, _mm256_blendv_ps(rounded, f, _mm256_cmp_ps(f, f, _CMP_UNORD_Q)));
    }
}

int64_t clb_linear_avx2_act_bytes(int32_t kind, int32_t cols, int32_t n)
{
    return clb_act_token_bytes(kind, cols) * n;
}

void clb_linear_avx2_act_prepare(int32_t kind, int32_t cols, int32_t n, const float *x, int64_t ldx,
                                 const int32_t *index, void *out, int32_t t0, int32_t t1)
{
    clb_act_prepare_tiled(quantize, round_bf16, kind, cols, n, x, ldx, index, out, t0, t1);
}

#else
typedef int clb_linear_avx2_is_empty; /* C wants a declaration per file */
#endif
