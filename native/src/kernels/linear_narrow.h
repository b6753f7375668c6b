/* linear_narrow.h - what AVX2 and NEON share around linear_narrow_tile.h: kinds of scales and the six
 * tile widths. Included by linear_avx2.c and linear_neon.c after they have defined their primitives
 * (listed in linear_narrow_tile.h).
 */
#ifndef CLB_LINEAR_NARROW_H
#define CLB_LINEAR_NARROW_H

/* The compiler would unroll, reorder and then spill. */
#define UNROLL_1 _Pragma("GCC unroll 1")
#define COLUMNS 128 /* columns between two visits of the sums in memory */

/* Where a dot product without offset starts. */
static const uint8_t zeros[CLB_TILE * 4];

ALWAYS_INLINE int scale_bytes(const scale_kind kind)
{
    return kind == SCALE_ROW ? 0 : kind == SCALE_F16 ? 64 : 128;
}

/* Writes the live rows of `tokens` tokens to y, times the row scales if there are any. */
static void finish(const clb_tile_args *args, const float *sums, int tokens, const float *row_scale)
{
    for (int t = 0; t < tokens; t++) {
        float *y = args->y + t * args->ldy;
        for (int32_t r = 0; r < 32; r += LANES) {
            fvec v = load_f32(sums + t * 32 + r);
            if (row_scale != NULL)
                v = mul_f32(v, load_f32(row_scale + r));
            if (r + LANES <= args->live) {
                if (args->flags & CLB_LINEAR_ADD)
                    v = add_f32(load_f32(y + r), v);
                store_f32(y + r, v);
                continue;
            }
            float part[LANES];
            store_f32(part, v);
            for (int32_t i = 0; r + i < args->live; i++)
                y[r + i] = args->flags & CLB_LINEAR_ADD ? y[r + i] + part[i] : part[i];
        }
    }
}

#define CLB_T 1
#include "linear_narrow_tile.h"
#define CLB_T 2
#include "linear_narrow_tile.h"
#define CLB_T 3
#include "linear_narrow_tile.h"
#define CLB_T 4
#include "linear_narrow_tile.h"
#define CLB_T 5
#include "linear_narrow_tile.h"
#define CLB_T 6
#include "linear_narrow_tile.h"

CLB_DEFINE_TILES_FOR()

#endif
