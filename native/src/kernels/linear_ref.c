/* linear_ref.c - the f32 reference: y = W x in the simplest order there is.
 *
 * What it is for: COLIBRI_PRECISION_F32, where every weight has been repacked as F32; the oracle tests
 * measure against it. It stays beside the fast kernels for good and is compiled for the baseline
 * instruction set only, so that its bits do not depend on the processor. What it is not: fast in
 * prefill. Pure functions; see kernels.h.
 *
 * Activations: f32 [n][cols], nothing else. One output = one chain over ascending columns, multiply
 * and add rounded separately. The compiler vectorizes over the 32 rows of a block.
 */
#include <string.h>

#include "linear.h"

#define ROWS CLB_BLOCK_ROWS

int64_t clb_linear_ref_act_bytes(int32_t kind, int32_t cols, int32_t n)
{
    (void)kind;
    return (int64_t)n * cols * 4;
}

void clb_linear_ref_act_prepare(int32_t kind, int32_t cols, int32_t n, const float *x, int64_t ldx,
                                      const int32_t *index, void *out, int32_t t0, int32_t t1)
{
    (void)kind;
    (void)n;
    for (int32_t t = t0; t < t1; t++) {
        const float *row = x + (index != NULL ? index[t] : t) * ldx;
        memcpy((float *)out + (int64_t)t * cols, row, (size_t)cols * sizeof *row);
    }
}

/* Writes the live rows of one block for one token. */
static void store(const float *sum, float *y, int32_t live, int32_t flags)
{
    for (int32_t r = 0; r < live; r++)
        y[r] = flags & CLB_LINEAR_ADD ? y[r] + sum[r] : sum[r];
}

void clb_linear_ref_linear(const clb_weight *w, const void *act, int32_t n, int32_t t0, int32_t t1, float *y,
                                 int64_t ldy, int32_t block0, int32_t block1, int32_t flags)
{
    const float *x = act;
    const int32_t cols = w->cols;
    (void)n;
    for (int32_t b = block0; b < block1; b++) {
        const float *block = (const float *)(const void *)(w->data + b * w->block_bytes);
        const int32_t live = w->rows - b * ROWS < ROWS ? w->rows - b * ROWS : ROWS;
        int32_t t = t0;
        for (; t + 2 <= t1; t += 2) { /* two tokens share one read of the weights */
            const float *x0 = x + (int64_t)t * cols;
            const float *x1 = x0 + cols;
            float sum0[ROWS] = {0};
            float sum1[ROWS] = {0};
            for (int32_t c = 0; c < cols; c++)
                for (int32_t r = 0; r < ROWS; r++) {
                    sum0[r] += block[(int64_t)c * ROWS + r] * x0[c];
                    sum1[r] += block[(int64_t)c * ROWS + r] * x1[c];
                }
            store(sum0, y + t * ldy + (int64_t)b * ROWS, live, flags);
            store(sum1, y + (t + 1) * ldy + (int64_t)b * ROWS, live, flags);
        }
        if (t < t1) {
            const float *x0 = x + (int64_t)t * cols;
            float sum0[ROWS] = {0};
            for (int32_t c = 0; c < cols; c++)
                for (int32_t r = 0; r < ROWS; r++)
                    sum0[r] += block[(int64_t)c * ROWS + r] * x0[c];
            store(sum0, y + t * ldy + (int64_t)b * ROWS, live, flags);
        }
    }
}
