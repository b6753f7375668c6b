/* linear_baseline.c - linear kernels for a processor about which nothing is known (x86-64-v2, plain
 * AArch64): portable C on 16-byte vectors that every such machine has.
 *
 * What it is for: it always runs. What it is not: tuned; the AVX2, AVX-512 and NEON files are. Each
 * segment of a block is widened once into a small buffer [column][32 rows] and then multiplied with up
 * to TOKENS tokens, so a batch costs far less than separate vectors. Pure functions; see kernels.h.
 *
 * Activations are row-major: token t starts at t * token_bytes.
 *   Q8:   per segment {f32 a_scale, f32 sum of x, int32 1 = has a second plane}, then q1 int8
 *         [n_seg * seg], then q2 alike
 *   BF16: f32 [cols], rounded to bf16;   F32: f32 [cols]
 *
 * Order of reduction: as in weight.h, with every fma replaced by a multiply and an add (such a
 * processor may lack fma, and emulating it is slow).
 */
#include <math.h>
#include <string.h>

#include "linear.h"

#define ROWS CLB_BLOCK_ROWS
#define TOKENS 32 /* tokens that share one widened segment */
#define MAX_SEG 128
#define FLOAT_COLS 64 /* columns widened at once for formats without segments of their own */

/* Four vectors of 8 (int16) or eight of 4 (float) cover the 32 rows. */
typedef int16_t i16x8 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));
typedef float f32x4 __attribute__((vector_size(16)));

typedef struct {
    float scale;
    float sum;
    int32_t planes;
} seg_scale;

static int is_quantized(int32_t kind)
{
    return kind >= CLB_ACT_Q8_16;
}

static int64_t token_bytes(int32_t kind, int32_t cols)
{
    if (!is_quantized(kind))
        return (int64_t)cols * 4;
    int64_t seg = clb_quantized_seg(kind);
    int64_t n_seg = (cols + seg - 1) / seg;
    /* and 8 bytes a segment for choosing the second planes */
    return n_seg * (2 * seg + (int64_t)sizeof(seg_scale) + 8);
}

int64_t clb_linear_baseline_act_bytes(int32_t kind, int32_t cols, int32_t n)
{
    return token_bytes(kind, cols) * n;
}

/* Quantizes n <= seg values; the rest of the segment becomes 0. A segment that holds a value that is
 * not finite gets a NaN scale and thereby a NaN result. */
static seg_scale quantize_segment(const float *x, int32_t n, int32_t seg, int second, int8_t *q, int8_t *rest)
{
    float absmax = 0;
    float finite = 0; /* stays 0 unless a value is infinite or NaN */
    for (int32_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        absmax = a > absmax ? a : absmax;
        finite += x[i] * 0.0f;
    }
    seg_scale out = {0, 0, 0};
    memset(q, 0, (size_t)seg);
    memset(rest, 0, (size_t)seg);
    if (finite != 0) { /* only NaN differs from 0 here */
        out.scale = out.sum = finite;
        return out;
    }
    if (absmax < CLB_ACT_TINY)
        return out;
    float inverse = 127.0f / absmax;
    int32_t sum = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t v = (int32_t)lrintf(x[i] * inverse);
        q[i] = (int8_t)v;
        sum += v;
    }
    out.scale = absmax / 127.0f;
    if (second) {
        sum = sum * 256 + clb_quantize_rest(x, n, seg, out.scale, q, rest);
        out.scale *= 1.0f / 256;
        out.planes = 1;
    }
    out.sum = out.scale * (float)sum;
    return out;
}

/* Segments with a second plane, ascending; NULL = all. `memory`: 8 bytes a segment. */
static const int32_t *choose_planes(int32_t kind, int32_t cols, const float *x, int32_t n_seg, int32_t planes,
                                    void *memory)
{
    const int32_t seg = clb_quantized_seg(kind);
    float *absmax = memory;
    int32_t *list = (int32_t *)(void *)(absmax + n_seg);
    if (clb_kind_full(kind))
        return NULL;
    for (int32_t s = 0; s < n_seg; s++) {
        const int32_t n = cols - s * seg < seg ? cols - s * seg : seg;
        absmax[s] = 0;
        for (int32_t c = 0; c < n; c++) {
            float a = fabsf(x[s * seg + c]);
            absmax[s] = a > absmax[s] || a != a ? a : absmax[s];
        }
    }
    clb_topk(absmax, n_seg, planes, list);
    return list;
}

void clb_linear_baseline_act_prepare(int32_t kind, int32_t cols, int32_t n, const float *x, int64_t ldx,
                                     const int32_t *index, void *out, int32_t t0, int32_t t1)
{
    (void)n;
    const int64_t stride = token_bytes(kind, cols);
    for (int32_t t = t0; t < t1; t++) {
        const float *src = x + (index != NULL ? index[t] : t) * ldx;
        uint8_t *dst = (uint8_t *)out + t * stride;
        if (kind == CLB_ACT_F32) {
            memcpy(dst, src, (size_t)cols * 4);
        } else if (kind == CLB_ACT_BF16) {
            float *rounded = (float *)(void *)dst;
            for (int32_t c = 0; c < cols; c++)
                rounded[c] = clb_bf16_to_f32(clb_f32_to_bf16(src[c]));
        } else {
            const int32_t seg = clb_quantized_seg(kind);
            const int32_t n_seg = (cols + seg - 1) / seg;
            seg_scale *scales = (seg_scale *)(void *)dst;
            int8_t *q = (int8_t *)(scales + n_seg);
            const int32_t planes = clb_second_planes(kind, n_seg);
            const int32_t *list = choose_planes(kind, cols, src, n_seg, planes, q + 2 * (int64_t)n_seg * seg);
            for (int32_t s = 0, next = 0; s < n_seg; s++) {
                int32_t first = s * seg;
                int32_t live = cols - first < seg ? cols - first : seg;
                int second = list == NULL || (next < planes && list[next] == s);
                next += second;
                scales[s] = quantize_segment(src + first, live, seg, second, q + first,
                                             q + (n_seg + s) * (int64_t)seg);
            }
        }
    }
}

/* ---- quantized weights ----------------------------------------------------------------------- */

/* Widens the nibbles of a segment to value - offset, [column][32 rows]. */
static void widen_nibbles(const uint8_t *data, int32_t seg, int16_t offset, int16_t out[][ROWS])
{
    for (int32_t j = 0; j < seg / 8; j++)
        for (int32_t c = 0; c < 4; c++)
            for (int32_t r = 0; r < ROWS; r++) {
                uint8_t v = data[(j * ROWS + r) * 4 + c];
                out[4 * j + c][r] = (int16_t)((v & 15) - offset);
                out[seg / 2 + 4 * j + c][r] = (int16_t)((v >> 4) - offset);
            }
}

static void widen_bytes(const uint8_t *data, int32_t seg, int16_t out[][ROWS])
{
    for (int32_t j = 0; j < seg / 4; j++)
        for (int32_t c = 0; c < 4; c++)
            for (int32_t r = 0; r < ROWS; r++)
                out[4 * j + c][r] = (int16_t)(data[(j * ROWS + r) * 4 + c] - 128);
}

/* dot[r] = sum over the segment of w[c][r] * x[c]. `run` columns are summed in 16 bits before they are
 * widened: 16 for nibbles (16*15*127 < 2^15), 2 for bytes (2*128*127 < 2^15). */
static inline void dot_segment(const int16_t w[][ROWS], const int8_t *x, int32_t seg, int32_t run,
                               int32_t *dot)
{
    for (int32_t g = 0; g < ROWS / 8; g++) {
        i32x4 even = {0};
        i32x4 odd = {0};
        for (int32_t c = 0; c < seg; c += run) {
            i16x8 acc = {0};
            for (int32_t k = c; k < c + run; k++) {
                i16x8 v;
                memcpy(&v, &w[k][g * 8], sizeof v);
                acc += v * (int16_t)x[k];
            }
            even += (i32x4)((u32x4)acc << 16) >> 16;
            odd += (i32x4)acc >> 16;
        }
        for (int32_t i = 0; i < 4; i++) {
            dot[g * 8 + 2 * i] = even[i];
            dot[g * 8 + 2 * i + 1] = odd[i];
        }
    }
}

/* Scales of one segment as f32; row-scaled formats have none here. */
static void segment_scales(const clb_weight *w, const uint8_t *segment, float *scale, float *minimum)
{
    const int64_t nibble_bytes = (int64_t)w->seg * ROWS / 2;
    if (w->format == COLIBRI_FORMAT_I4_GROUP) {
        memcpy(scale, segment + nibble_bytes, ROWS * sizeof *scale);
        return;
    }
    const uint8_t *p = segment + (w->format == COLIBRI_FORMAT_Q8_0 ? 2 * nibble_bytes : nibble_bytes);
    uint16_t half[2 * ROWS];
    const int32_t n = w->format == COLIBRI_FORMAT_Q4_1 ? 2 * ROWS : ROWS;
    memcpy(half, p, (size_t)n * sizeof *half);
    for (int32_t r = 0; r < ROWS; r++) {
        scale[r] = clb_f16_to_f32(half[r]);
        if (w->format == COLIBRI_FORMAT_Q4_1)
            minimum[r] = clb_f16_to_f32(half[ROWS + r]);
    }
}

/* One block times tokens [t0, t0 + n). */
static void block_quantized(const clb_weight *w, const uint8_t *block, const uint8_t *act, int32_t t0,
                            int32_t n, float sum[][ROWS])
{
    const int32_t seg = w->seg;
    const int64_t stride = token_bytes(w->act, w->cols);
    const int bytes = w->format == COLIBRI_FORMAT_I8_ROW || w->format == COLIBRI_FORMAT_Q8_0;
    const int by_row = w->format == COLIBRI_FORMAT_I8_ROW || w->format == COLIBRI_FORMAT_I4_ROW;
    for (int32_t s = 0; s < w->n_seg; s++) {
        const uint8_t *segment = block + s * w->seg_bytes;
        int16_t wide[64][ROWS];
        float scale[ROWS];
        float minimum[ROWS];
        if (bytes)
            widen_bytes(segment, seg, wide);
        else
            widen_nibbles(segment, seg, w->format == COLIBRI_FORMAT_Q4_1 ? 0 : 8, wide);
        if (!by_row)
            segment_scales(w, segment, scale, minimum);
        for (int32_t t = 0; t < n; t++) {
            const uint8_t *token = act + (t0 + t) * stride;
            seg_scale a;
            memcpy(&a, token + s * (int64_t)sizeof a, sizeof a);
            const int8_t *x = (const int8_t *)token + w->n_seg * (int64_t)sizeof a + (int64_t)s * seg;
            int32_t dot[ROWS];
            dot_segment((const int16_t (*)[ROWS])wide, x, seg, bytes ? 2 : 16, dot);
            if (a.planes) {
                int32_t rest[ROWS];
                dot_segment((const int16_t (*)[ROWS])wide, x + w->n_seg * (int64_t)seg, seg, bytes ? 2 : 16,
                            rest);
                for (int32_t r = 0; r < ROWS; r++)
                    dot[r] = dot[r] * 256 + rest[r];
            }
            if (by_row)
                for (int32_t r = 0; r < ROWS; r++)
                    sum[t][r] += (float)dot[r] * a.scale;
            else
                for (int32_t r = 0; r < ROWS; r++)
                    sum[t][r] += (float)dot[r] * (scale[r] * a.scale);
            if (w->format == COLIBRI_FORMAT_Q4_1)
                for (int32_t r = 0; r < ROWS; r++)
                    sum[t][r] += minimum[r] * a.sum;
        }
    }
    if (by_row) {
        float scale[ROWS];
        memcpy(scale, block + w->n_seg * w->seg_bytes, sizeof scale);
        for (int32_t t = 0; t < n; t++)
            for (int32_t r = 0; r < ROWS; r++)
                sum[t][r] *= scale[r];
    }
}

/* ---- floating-point weights ------------------------------------------------------------------ */

/* Widens columns [first, first + n) of a block to f32 [column][32 rows], fp8 without its scale. */
static void widen_floats(const clb_weight *w, const uint8_t *block, int32_t first, int32_t n,
                         float out[][ROWS])
{
    static const int32_t fp8_place[4] = {0, 2, 1, 3};
    for (int32_t c = 0; c < n; c++) {
        const int32_t col = first + c;
        const uint8_t *p = block + col / w->seg * w->seg_bytes;
        if (w->format == COLIBRI_FORMAT_F32) {
            memcpy(out[c], p, sizeof out[c]);
        } else if (w->format == COLIBRI_FORMAT_FP8_BLOCK) {
            p += (int64_t)(col % w->seg / 4) * ROWS * 4 + fp8_place[col % 4];
            for (int32_t r = 0; r < ROWS; r++)
                out[c][r] = clb_fp8_to_f32(p[r * 4]);
        } else {
            uint16_t pair[ROWS * 2];
            memcpy(pair, p, sizeof pair);
            const uint16_t *v = pair + col % 2;
            if (w->format == COLIBRI_FORMAT_BF16)
                for (int32_t r = 0; r < ROWS; r++)
                    out[c][r] = clb_bf16_to_f32(v[r * 2]);
            else
                for (int32_t r = 0; r < ROWS; r++)
                    out[c][r] = clb_f16_to_f32(v[r * 2]);
        }
    }
}

/* sum[r] continues its chain over n columns. */
static void chain(const float w[][ROWS], const float *x, int32_t n, float *sum)
{
    f32x4 acc[ROWS / 4];
    memcpy(acc, sum, sizeof acc);
    for (int32_t c = 0; c < n; c++)
        for (int32_t g = 0; g < ROWS / 4; g++) {
            f32x4 v;
            memcpy(&v, &w[c][g * 4], sizeof v);
            acc[g] += v * x[c];
        }
    memcpy(sum, acc, sizeof acc);
}

static void block_float(const clb_weight *w, const uint8_t *block, const uint8_t *act, int32_t t0, int32_t n,
                        float sum[][ROWS])
{
    const int fp8 = w->format == COLIBRI_FORMAT_FP8_BLOCK;
    const int32_t step = fp8 ? w->seg : FLOAT_COLS;
    const float *x = (const float *)(const void *)act;
    float wide[MAX_SEG][ROWS];
    for (int32_t first = 0; first < w->cols; first += step) {
        const int32_t live = w->cols - first < step ? w->cols - first : step;
        widen_floats(w, block, first, live, wide);
        float scale = 1;
        if (fp8)
            memcpy(&scale, block + first / w->seg * w->seg_bytes + (int64_t)w->seg * ROWS, sizeof scale);
        for (int32_t t = 0; t < n; t++) {
            const float *xt = x + (int64_t)(t0 + t) * w->cols + first;
            if (fp8) {
                float part[ROWS] = {0};
                chain((const float (*)[ROWS])wide, xt, live, part);
                for (int32_t r = 0; r < ROWS; r++)
                    sum[t][r] += part[r] * scale;
            } else {
                chain((const float (*)[ROWS])wide, xt, live, sum[t]);
            }
        }
    }
}

void clb_linear_baseline_linear(const clb_weight *w, const void *act, int32_t n, int32_t t0, int32_t t1,
                                float *y, int64_t ldy, int32_t block0, int32_t block1, int32_t flags)
{
    (void)n;
    for (int32_t b = block0; b < block1; b++) {
        const uint8_t *block = w->data + b * w->block_bytes;
        const int32_t live = w->rows - b * ROWS < ROWS ? w->rows - b * ROWS : ROWS;
        for (int32_t t = t0; t < t1; t += TOKENS) {
            const int32_t count = t1 - t < TOKENS ? t1 - t : TOKENS;
            float sum[TOKENS][ROWS];
            memset(sum, 0, (size_t)count * sizeof sum[0]);
            if (is_quantized(w->act))
                block_quantized(w, block, act, t, count, sum);
            else
                block_float(w, block, act, t, count, sum);
            for (int32_t i = 0; i < count; i++) {
                float *out = y + (t + i) * ldy + (int64_t)b * ROWS;
                for (int32_t r = 0; r < live; r++)
                    out[r] = flags & CLB_LINEAR_ADD ? out[r] + sum[i][r] : sum[i][r];
            }
        }
    }
}
