/* linear_avx512.c - linear layers on AVX-512 with VNNI, BF16 and VBMI: GEMV, small batches and
 * GEMM, one algorithm for all.
 *
 * WHY IT LOOKS LIKE THIS
 *
 * A weight matrix is read at most once from memory per token chunk, and a batch of one is bound by
 * that read. So the packed layout (weight.h) is one ascending stream per block of 32 rows, scales
 * inline: nothing competes with the hardware prefetcher. "Lanes are rows": a 512-bit vector holds 4
 * columns of 16 rows, one activation dword is broadcast to all lanes, and the integer dot product of
 * a segment grows in place. There is no horizontal sum anywhere, and a scale vector is loaded as is.
 *
 * From about 4 tokens on the multiplier is the limit. A tile of 32 rows x 6 tokens holds 12 integer
 * and 12 float accumulators in registers; per 8 columns of nibbles it issues 24 vpdpbusd for 2 weight
 * loads and 12 broadcasts. vpdpbusd, multiply and fma share two pipes, so a 64-column segment with
 * exact group scales costs 16 + 2 instructions per accumulator: 89 % of the peak is the ceiling,
 * 73 % for Q4_1 with its minimum, 94 % for row-scaled formats.
 *
 * One tile function serves every width because the order of reduction must not depend on it: a sum
 * over a segment is an integer (any order), segments are added by ascending fma. Hence a token has
 * equal bits alone, in a batch, and in prefill.
 *
 *   format            multiplier   per segment
 *   nibbles, bytes    vpdpbusd     sum = fma(float(dot), w_scale * a_scale, sum)
 *   BF16, FP8         vdpbf16ps    chain over pairs; FP8: chain per 128 columns, then fma with the scale
 *   F16, F32          vfmadd       chain over columns
 *
 * The high nibbles are taken by shift and mask: one GFNI instruction would do, but it competes with
 * vpdpbusd for a pipe (82 % instead of 87 % of the peak on Zen 4). FP8 is turned into BF16 (exact: 3
 * mantissa bits, and its subnormals are BF16 normals) by two 128-entry byte tables.
 *
 * Called through dispatch.c only. Pure functions, any thread, disjoint outputs. Compiled with its own
 * flags; empty on other architectures.
 */
#if defined(__AVX512F__)

#include <immintrin.h>
#include <math.h>

#include "linear_tiled.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

typedef enum { SCALE_ROW, SCALE_F32, SCALE_F16, SCALE_F16_MIN } scale_kind;

ALWAYS_INLINE __m512i broadcast(const uint8_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}

ALWAYS_INLINE __m512 broadcast_f32(const uint8_t *p)
{
    float v;
    memcpy(&v, p, sizeof v);
    return _mm512_set1_ps(v);
}

ALWAYS_INLINE __m512 load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)p));
}

/* acc += dot products of 4 bytes. As asm, because gcc 12 keeps second copies of accumulators that it
 * updates through the intrinsic and then runs out of registers. */
#define DOT_U8S8(acc, w, x) __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x))

/* Writes one token's 32 sums to y; masked only where the matrix ends. */
ALWAYS_INLINE void finish(const clb_tile_args *args, int token, __m512 a, __m512 b)
{
    float *y = args->y + token * args->ldy;
    if (args->live == CLB_ROWS) {
        if (args->flags & CLB_LINEAR_ADD) {
            a = _mm512_add_ps(_mm512_loadu_ps(y), a);
            b = _mm512_add_ps(_mm512_loadu_ps(y + 16), b);
        }
        _mm512_storeu_ps(y, a);
        _mm512_storeu_ps(y + 16, b);
        return;
    }
    const uint32_t mask = (UINT32_C(1) << args->live) - 1;
    const __mmask16 ka = (__mmask16)mask;
    const __mmask16 kb = (__mmask16)(mask >> 16);
    if (args->flags & CLB_LINEAR_ADD) {
        a = _mm512_add_ps(_mm512_maskz_loadu_ps(ka, y), a);
        b = _mm512_add_ps(_mm512_maskz_loadu_ps(kb, y + 16), b);
    }
    _mm512_mask_storeu_ps(y, ka, a);
    _mm512_mask_storeu_ps(y + 16, kb, b);
}

/* ---- FP8 to BF16 ----------------------------------------------------------------------------- */

/* Low and high byte of the bf16 pattern of every e4m3 magnitude. */
typedef struct {
    __m512i low0, low1, high0, high1;
} fp8_tables;

/* Columns (0,1) and (2,3) of each row: weight.h stores the four bytes as 0 2 1 3. */
typedef struct {
    __m512i even, odd;
} bf16_pairs;

/* bf16 bits of magnitude v. Normals: exponent bias 7 becomes 127. Subnormals m * 2^-9: the exponent is
 * that of the leading bit. 127 is NaN. */
#define FP8_SUBNORMAL(v)                                                                                     \
    ((v) == 0 ? 0 : (v) >= 4 ? 0x3c00 | ((v) & 3) << 5 : (v) >= 2 ? 0x3b80 | ((v) & 1) << 6 : 0x3b00)
#define FP8_BITS(v) ((v) == 127 ? 0x7fc0 : (v) >= 8 ? ((v) << 4) + 0x3c00 : FP8_SUBNORMAL(v))
#define FP8_LOW(v) FP8_BITS(v) & 0xff
#define FP8_HIGH(v) FP8_BITS(v) >> 8
#define FP8_4(f, v) f(v), f((v) + 1), f((v) + 2), f((v) + 3)
#define FP8_16(f, v) FP8_4(f, v), FP8_4(f, (v) + 4), FP8_4(f, (v) + 8), FP8_4(f, (v) + 12)
#define FP8_64(f, v) FP8_16(f, v), FP8_16(f, (v) + 16), FP8_16(f, (v) + 32), FP8_16(f, (v) + 48)
static const _Alignas(64) uint8_t fp8_low[128] = {FP8_64(FP8_LOW, 0), FP8_64(FP8_LOW, 64)};
static const _Alignas(64) uint8_t fp8_high[128] = {FP8_64(FP8_HIGH, 0), FP8_64(FP8_HIGH, 64)};

ALWAYS_INLINE bf16_pairs widen_fp8(__m512i v, const fp8_tables *t)
{
    const __mmask64 odd_bytes = UINT64_C(0xaaaaaaaaaaaaaaaa);
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    const __m512i low = _mm512_permutex2var_epi8(t->low0, v, t->low1); /* looks at bits 0-6 only */
    const __m512i high = _mm512_permutex2var_epi8(t->high0, v, t->high1);
    const __m512i signed_high = _mm512_ternarylogic_epi32(high, v, sign, 0xf8); /* high | (v & sign) */
    bf16_pairs out;
    out.even = _mm512_mask_mov_epi8(low, odd_bytes, _mm512_slli_epi16(signed_high, 8));
    out.odd = _mm512_mask_mov_epi8(_mm512_srli_epi16(low, 8), odd_bytes, signed_high);
    return out;
}

/* ---- tiles ----------------------------------------------------------------------------------- */

#define CLB_T 1
#include "linear_avx512_tile.h"
#define CLB_T 2
#include "linear_avx512_tile.h"
#define CLB_T 3
#include "linear_avx512_tile.h"
#define CLB_T 4
#include "linear_avx512_tile.h"
#define CLB_T 5
#include "linear_avx512_tile.h"
#define CLB_T 6
#include "linear_avx512_tile.h"

CLB_DEFINE_TILES_FOR()

void clb_linear_avx512_linear(const clb_weight *w, const void *act, int32_t n, int32_t t0, int32_t t1,
                              float *y, int64_t ldy, int32_t block0, int32_t block1, int32_t flags)
{
    clb_linear_tiled(tiles_for(w), w, act, n, t0, t1, y, ldy, block0, block1, flags);
}

/* ---- activations ----------------------------------------------------------------------------- */

ALWAYS_INLINE __mmask16 lanes(int32_t n)
{
    return (__mmask16)(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u);
}

/* Reductions of up to 16 vectors at once: a tree of shuffles that ends with the result of vector i in
 * lane i. One vector at a time would take 8 dependent steps each. */
#define COMBINE(op, a, b, lo, hi) op(lo(a, b), hi(a, b))
#define SHUFFLE_44(a, b) _mm512_shuffle_i32x4(a, b, 0x44)
#define SHUFFLE_EE(a, b) _mm512_shuffle_i32x4(a, b, 0xee)
#define SHUFFLE_88(a, b) _mm512_shuffle_i32x4(a, b, 0x88)
#define SHUFFLE_DD(a, b) _mm512_shuffle_i32x4(a, b, 0xdd)
/* Within 128 bits: vectors 0-3 to one vector of quarters [0 1 2 3]. */
#define REDUCE_4(op, v)                                                                                      \
    COMBINE(op, COMBINE(op, v[0], v[1], _mm512_unpacklo_epi32, _mm512_unpackhi_epi32),                       \
            COMBINE(op, v[2], v[3], _mm512_unpacklo_epi32, _mm512_unpackhi_epi32), _mm512_unpacklo_epi64,    \
            _mm512_unpackhi_epi64)
/* Across the 128-bit quarters of four such vectors. */
#define REDUCE_16(op, v)                                                                                     \
    COMBINE(op, COMBINE(op, v[0], v[1], SHUFFLE_44, SHUFFLE_EE),                                             \
            COMBINE(op, v[2], v[3], SHUFFLE_44, SHUFFLE_EE), SHUFFLE_88, SHUFFLE_DD)

/* clb_quantize_fn for whole segments of `seg` columns, known at compile time. */
ALWAYS_INLINE void quantize_segments(const float *x, const int seg, int32_t n_seg, clb_quantized *out)
{
    /* Magnitudes compare as integers, which also ranks infinity and NaN above everything finite. */
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i group[4];
    for (int32_t g = 0; g < 4; g++) {
        __m512i top[4];
        for (int32_t k = 0; k < 4; k++) {
            top[k] = _mm512_setzero_si512();
            if (g * 4 + k < n_seg)
                for (int i = 0; i < seg; i += 16) {
                    const __m512i v = _mm512_loadu_si512(x + (g * 4 + k) * seg + i);
                    top[k] = _mm512_max_epu32(top[k], _mm512_and_si512(v, magnitude));
                }
        }
        group[g] = REDUCE_4(_mm512_max_epu32, top);
    }
    const __m512i bits = REDUCE_16(_mm512_max_epu32, group);
    const __m512 absmax = _mm512_castsi512_ps(bits);
    const __m512 largest = _mm512_set1_ps(127.0f);
    const __mmask16 odd = _mm512_cmpge_epu32_mask(bits, _mm512_set1_epi32(0x7f800000));
    const __mmask16 live =
        _mm512_cmp_ps_mask(absmax, _mm512_set1_ps(CLB_ACT_TINY), _CMP_GE_OQ) & (__mmask16)~odd;
    _Alignas(64) float inverse[CLB_QUANTIZE_SEGS];
    _mm512_store_ps(inverse, _mm512_maskz_div_ps(live, largest, absmax));
    const __m512 scale = _mm512_maskz_div_ps(live, absmax, largest);
    _mm512_store_ps(out->scale, _mm512_mask_mov_ps(scale, odd, _mm512_set1_ps(NAN)));

    for (int32_t g = 0; g < 4; g++) {
        __m512i sum[4];
        for (int32_t k = 0; k < 4; k++) {
            const int32_t s = g * 4 + k;
            sum[k] = _mm512_setzero_si512();
            if (s >= n_seg)
                continue;
            const __m512 factor = _mm512_set1_ps(inverse[s]);
            for (int i = 0; i < seg; i += 16) {
                const __m512 v = _mm512_loadu_ps(x + s * seg + i);
                const __m512i r = _mm512_cvtps_epi32(_mm512_mul_ps(v, factor)); /* to nearest, ties to even */
                sum[k] = _mm512_add_epi32(sum[k], r);
                /* what is not finite becomes INT32_MIN, whose low byte is 0 */
                _mm_store_si128((__m128i *)(void *)(out->q + s * seg + i), _mm512_cvtepi32_epi8(r));
            }
        }
        group[g] = REDUCE_4(_mm512_add_epi32, sum);
    }
    _mm512_store_si512(out->sum, _mm512_maskz_mov_epi32(live, REDUCE_16(_mm512_add_epi32, group)));
}

static void quantize(const float *x, int32_t n, int32_t seg, int32_t n_seg, clb_quantized *out)
{
    float padded[CLB_QUANTIZE_SEGS * 64];
    if (n < n_seg * seg) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, x, (size_t)n * sizeof *x);
        x = padded;
    }
    if (seg == 16)
        quantize_segments(x, 16, n_seg, out);
    else if (seg == 32)
        quantize_segments(x, 32, n_seg, out);
    else
        quantize_segments(x, 64, n_seg, out);
}

static void round_bf16(const float *x, int32_t n, uint16_t *out)
{
    for (int32_t i = 0; i < 128; i += 32) {
        const __m512 low = _mm512_maskz_loadu_ps(lanes(n - i), x + i);
        const __m512 high = _mm512_maskz_loadu_ps(lanes(n - i - 16), x + i + 16);
        _mm512_store_si512(out + i, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

int64_t clb_linear_avx512_act_bytes(int32_t kind, int32_t cols, int32_t n)
{
    return clb_act_token_bytes(kind, cols) * n;
}

void clb_linear_avx512_act_prepare(int32_t kind, int32_t cols, int32_t n, const float *x, int64_t ldx,
                                   const int32_t *index, void *out, int32_t t0, int32_t t1)
{
    clb_act_prepare_tiled(quantize, round_bf16, kind, cols, n, x, ldx, index, out, t0, t1);
}

#else
typedef int clb_linear_avx512_is_empty; /* C wants a declaration per file */
#endif
