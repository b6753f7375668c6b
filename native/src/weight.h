/* weight.h - a weight matrix as the kernels read it ("packed"), and the activations that go with it.
 *
 * Layout. Rows are cut into blocks of CLB_BLOCK_ROWS = 32 (the last one padded with rows of value 0);
 * a block is one ascending stream of bytes, blocks follow each other. Columns are cut into segments
 * of `seg` columns (the last one padded with columns of value 0). Within a block:
 *
 *   segment 0 | scales of segment 0 | segment 1 | scales of segment 1 | ... | row scales (if any)
 *
 * and within a segment "32-bit lanes are rows": 4 bytes = consecutive columns of one row.
 *   8-bit  : seg/4 steps of [32 rows][4 columns]; fp8 stores columns 0 2 1 3, so that widening the
 *            even and the odd bytes to 16 bits yields the column pairs (0,1) and (2,3)
 *   4-bit  : seg/8 steps of [32 rows][4 columns]; low nibble = column 4*step+b, high = seg/2 + 4*step+b
 *   16-bit : seg/2 steps of [32 rows][2 columns]
 *   32-bit : seg steps of [32 rows]
 *
 *   format     seg                data        scales
 *   F32        1                  f32         none
 *   BF16/F16   2                  16-bit      none
 *   I8_ROW     64                 byte ^ 0x80 row: f32[32] after the last segment
 *   I4_ROW     64                 nibble      row: f32[32] after the last segment
 *   I4_GROUP   gcd(group, 64)     nibble      segment: f32[32] (a group wider than seg repeats its scale)
 *   FP8_BLOCK  128                e4m3 byte   segment: f32[1] padded to 64 bytes (128x128 blocks never
 *                                             split a row block)
 *   Q4_0       32                 nibble      segment: f16[32] d
 *   Q4_1       32                 nibble      segment: f16[32] d, f16[32] m
 *   Q8_0       32                 byte ^ 0x80 segment: f16[32] d
 *
 * Activations. Quantized formats multiply int8 activations quantized per `seg` columns: x = s * (q1 +
 * q2/256) with s = absmax/127, q1 rounded half to even, and a SECOND PLANE q2 in [-127, 127] that refines
 * it. One plane costs as much accuracy as int4 weights do on models with a few large channels; those sit in
 * few segments. So 4-bit weights use q2 for the sixth of a row's segments with the largest absmax
 * (ties: lower index) and take it as 0 elsewhere; 8-bit weights use it everywhere (the FULL kinds).
 * 16-bit and fp8 formats multiply bf16-rounded activations, F32 multiplies f32. Two matrices with the
 * same clb_act_kind() and cols share one prepared activation.
 *
 * Order of reduction (the bit-equality contract): one output element is
 *   sum = 0; for each segment in ascending order: sum = fma((float)dot, w_scale*a_scale, sum)
 * with dot = dot(w, q1) and a_scale = s, or dot = 256*dot(w, q1) + dot(w, q2) and a_scale = s/256 where a
 * second plane is used. Both give equal bits when q2 = 0 (powers of two are exact; CLB_ACT_TINY keeps
 * scales away from denormals), so a tile may use the second form for all its tokens.
 * Row-scaled: fma((float)dot, a_scale, sum), times w_scale at the end; Q4_1 then adds
 * fma(m, sum of x, sum) per segment. 16-bit formats: one chain over column pairs, or over columns where
 * the instruction set has no product of pairs; fp8: one such chain per 128 columns, then fma with the
 * block scale. The baseline rounds each multiply and add instead of fma. Within one instruction set
 * every tile shape and batch width uses exactly one order, so GEMV and GEMM give equal bits; between
 * instruction sets results agree within a tolerance.
 */
#ifndef CLB_WEIGHT_H
#define CLB_WEIGHT_H

#include <stddef.h>
#include <stdint.h>

#include "colibri.h"

#define CLB_BLOCK_ROWS 32
#define CLB_MAX_ROWS (INT64_C(1) << 24)
#define CLB_MAX_COLS (INT64_C(1) << 20)

/* How activations must be prepared for a weight. */
typedef enum {
    CLB_ACT_F32 = 0,
    CLB_ACT_BF16 = 1,
    CLB_ACT_Q8_16 = 2,
    CLB_ACT_Q8_32 = 3,
    CLB_ACT_Q8_64 = 4,
    CLB_ACT_Q8_32_FULL = 5, /* both planes for every segment: 8-bit weights */
    CLB_ACT_Q8_64_FULL = 6
} clb_act_kind;

typedef struct {
    const uint8_t *data; /* 64-byte aligned; owned by whoever allocated it */
    int32_t format;      /* colibri_format */
    int32_t group;
    int32_t rows;
    int32_t cols;
    int32_t seg;         /* columns per segment */
    int32_t n_seg;       /* ceil(cols / seg) */
    int32_t n_blocks;    /* ceil(rows / 32) */
    int32_t act;         /* clb_act_kind */
    int64_t seg_bytes;   /* bytes of one segment of one block, scales included */
    int64_t block_bytes; /* bytes of one block, row scales included */
    int64_t bytes;       /* whole matrix */
} clb_weight;

/* Fills everything but `data`. Returns 0, or -1 if format, group or shape is invalid or overflows. */
int clb_weight_describe(int32_t format, int32_t group, int64_t rows, int64_t cols, clb_weight *w);
/* Bytes of the plain layout; -1 if invalid. */
int64_t clb_plain_bytes(int32_t format, int64_t rows, int64_t cols);
int64_t clb_scale_bytes(int32_t format, int32_t group, int64_t rows, int64_t cols);
/* Packs blocks [block0, block1) from plain data/scales that start at row 0 of the matrix into `out`
 * (start of the whole packed matrix). Lossless. Any thread; disjoint ranges may run in parallel. */
void clb_weight_pack(const clb_weight *w, const void *data, const void *scales, uint8_t *out, int32_t block0,
                     int32_t block1);
/* Dequantizes one row (embedding lookup, reference kernels): out f32 [cols]. */
void clb_weight_row(const clb_weight *w, int32_t row, float *out);

float clb_f16_to_f32(uint16_t h);
uint16_t clb_f32_to_f16(float f);
float clb_fp8_to_f32(uint8_t v); /* e4m3fn: 0x7f and 0xff are NaN */
static inline float clb_bf16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)h << 16};
    return v.f;
}
uint16_t clb_f32_to_bf16(float f); /* round to nearest even, NaN kept quiet */

#endif
