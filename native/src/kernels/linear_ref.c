/* linear_ref.c - the f32 reference: y = W x in the simplest order there is.
 *
 * What it is for: COLIBRI_PRECISION_F32, where every weight has been repacked as F32; the oracle tests
 * measure against it. It stays beside the fast kernels for good and is compiled for the baseline
 * instruction set only, so that its bits do not depend on the processor. What it is not: fast in
 * prefill. Pure functions; see kernels.h.
 *
 * Activations: f32 [n][cols], nothing else. One output = one chain over ascending columns, multiply
 * and add rounded separately, whatever the batch.
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

typedef float f32x4 __attribute__((vector_size(16)));

static f32x4 load(const float *p)
{
    f32x4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Two tokens times 16 rows: 8 accumulators and 4 weights fit the 16 registers of every machine.
 * w: first of the rows in column 0; x0, x1: [cols]; sum0, sum1: [16]. */
static void two_tokens(const float *w, const float *x0, const float *x1, int32_t cols, float *sum0,
                       float *sum1)
{
    f32x4 a0 = {0}, a1 = a0, a2 = a0, a3 = a0;
    f32x4 b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (int32_t c = 0; c < cols; c++, w += ROWS) {
        const f32x4 w0 = load(w), w1 = load(w + 4), w2 = load(w + 8), w3 = load(w + 12);
        a0 += w0 * x0[c];
        a1 += w1 * x0[c];
        a2 += w2 * x0[c];
        a3 += w3 * x0[c];
        b0 += w0 * x1[c];
        b1 += w1 * x1[c];
        b2 += w2 * x1[c];
        b3 += w3 * x1[c];
    }
    const f32x4 a[4] = {a0, a1, a2, a3};
    const f32x4 b[4] = {b0, b1, b2, b3};
    memcpy(sum0, a, sizeof a);
    memcpy(sum1, b, sizeof b);
}

static void one_token(const float *w, const float *x, int32_t cols, float *sum)
{
    f32x4 acc[ROWS / 4] = {{0}};
    for (int32_t c = 0; c < cols; c++)
        for (int32_t g = 0; g < ROWS / 4; g++)
            acc[g] += load(w + (int64_t)c * ROWS + g * 4) * x[c];
    memcpy(sum, acc, sizeof acc);
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
        float sum[2][ROWS];
        for (; t + 2 <= t1; t += 2) { /* two tokens share one read of the weights */
            const float *x0 = x + (int64_t)t * cols;
            two_tokens(block, x0, x0 + cols, cols, sum[0], sum[1]);
            two_tokens(block + 16, x0, x0 + cols, cols, sum[0] + 16, sum[1] + 16);
            store(sum[0], y + t * ldy + (int64_t)b * ROWS, live, flags);
            store(sum[1], y + (t + 1) * ldy + (int64_t)b * ROWS, live, flags);
        }
        if (t < t1) {
            one_token(block, x + (int64_t)t * cols, cols, sum[0]);
            store(sum[0], y + t * ldy + (int64_t)b * ROWS, live, flags);
        }
    }
}
