/* attn_ref.c - plain loops for attention over f32 KV; sums in double.
 *
 * What it is for: the F32 precision and the yardstick of the fast sets. It keeps the span order of
 * the contract, so it has the same bit-equality, and nothing else in common with them. Pure, any
 * thread.
 */
#include <math.h>
#include <string.h>

#include "attn.h"

#define LOG2E 1.4426950408889634

int64_t clb_attn_ref_gqa_scratch(int32_t dim, int32_t n_heads)
{
    (void)n_heads;
    return (int64_t)dim * 4;
}

int64_t clb_attn_ref_mla_scratch(int32_t n_heads, int32_t rank, int32_t rope)
{
    (void)n_heads, (void)rope;
    return (int64_t)rank * 4;
}

int64_t clb_attn_ref_index_scratch(int32_t heads, int32_t dim)
{
    (void)heads, (void)dim;
    return 0;
}

void clb_attn_ref_gqa_store(uint8_t *head_block, int32_t dim, int32_t token_in_block, const float *k,
                            const float *v)
{
    float *keys = (float *)(void *)head_block;
    memcpy(keys + (size_t)token_in_block * (size_t)dim, k, (size_t)dim * 4);
    memcpy(keys + (size_t)(CLB_SPAN + token_in_block) * (size_t)dim, v, (size_t)dim * 4);
}

void clb_attn_ref_rows_store_bf16(uint16_t *dst, const float *src, int32_t n)
{
    memcpy(dst, src, (size_t)n * 4);
}

void clb_attn_ref_softmax_merge(clb_softmax *a, float *a_out, const clb_softmax *b, const float *b_out,
                                int32_t n, int32_t width)
{
    for (int32_t r = 0; r < n; r++, a_out += width, b_out += width) {
        int a_empty = a[r].max == -INFINITY && a[r].sum == 0.0f;
        int b_empty = b[r].max == -INFINITY && b[r].sum == 0.0f;
        if (b_empty)
            continue;
        if (a_empty) {
            a[r] = b[r];
            memcpy(a_out, b_out, (size_t)width * 4);
            continue;
        }
        float max = a[r].max > b[r].max ? a[r].max : b[r].max;
        double keep = exp2((double)a[r].max - max), gain = exp2((double)b[r].max - max);
        a[r].max = max;
        a[r].sum = (float)(a[r].sum * keep + b[r].sum * gain);
        for (int32_t i = 0; i < width; i++)
            a_out[i] = (float)(a_out[i] * keep + b_out[i] * gain);
    }
}

void clb_attn_ref_softmax_finish(const clb_softmax *softmax, float *out, int32_t n, int32_t width)
{
    for (int32_t r = 0; r < n; r++)
        for (int32_t i = 0; i < width; i++)
            out[(size_t)r * (size_t)width + (size_t)i] /= softmax[r].sum;
}

/* One query row over up to CLB_SPAN keys and values given by pointers, merged into state and out. */
static void attend(const float *q, int32_t q_width, const float *const *keys, const float *const *values,
                   int32_t width, int32_t n, float scale, clb_softmax *state, float *out, float *part)
{
    double s[CLB_SPAN];
    double max = -INFINITY, sum = 0;
    for (int32_t t = 0; t < n; t++) {
        s[t] = 0;
        for (int32_t i = 0; i < q_width; i++)
            s[t] += (double)q[i] * keys[t][i];
        s[t] *= (double)scale * LOG2E;
        if (s[t] > max)
            max = s[t];
    }
    clb_softmax mine = {(float)max, 0};
    for (int32_t t = 0; t < n; t++) {
        s[t] = exp2(s[t] - mine.max);
        sum += s[t];
    }
    mine.sum = (float)sum;
    for (int32_t i = 0; i < width; i++) {
        double o = 0;
        for (int32_t t = 0; t < n; t++)
            o += s[t] * values[t][i];
        part[i] = (float)o;
    }
    clb_attn_ref_softmax_merge(state, out, &mine, part, 1, width);
}

void clb_attn_ref_gqa_attend(const clb_gqa_args *args, int32_t t0, int32_t t1, int32_t span0, int32_t span1,
                             clb_softmax *softmax, float *out, void *scratch)
{
    size_t dim = (size_t)args->dim;
    const float *keys[CLB_SPAN], *values[CLB_SPAN];
    for (int32_t span = span0; span < span1; span++) {
        const float *k = (const float *)(const void *)(args->blocks[span] +
                                                       (size_t)args->kv_head * 2 * CLB_GQA_HEAD_BYTES(dim));
        for (size_t t = 0; t < CLB_SPAN; t++) {
            keys[t] = k + t * dim;
            values[t] = k + (CLB_SPAN + t) * dim;
        }
        for (int32_t t = t0; t < t1; t++) {
            int32_t n = args->first_position + t + 1 - span * CLB_SPAN;
            int32_t hidden = args->window > 0 && n > args->window ? n - args->window : 0;
            if (n > CLB_SPAN)
                n = CLB_SPAN;
            if (n <= hidden)
                continue;
            for (int32_t h = 0; h < args->n_heads; h++) {
                size_t row = (size_t)t * (size_t)args->n_heads + (size_t)h;
                attend(args->q + t * args->q_stride + (size_t)h * dim, args->dim, keys + hidden,
                       values + hidden, args->dim, n - hidden, args->scale, softmax + row, out + row * dim,
                       scratch);
            }
        }
    }
}

void clb_attn_ref_mla_attend(const clb_mla_args *args, int32_t h0, int32_t h1, int32_t span0, int32_t span1,
                             clb_softmax *softmax, float *out, void *scratch)
{
    size_t width = (size_t)(args->rank + args->rope);
    const float *rows[CLB_SPAN];
    if (h1 > args->n_heads)
        h1 = args->n_heads;
    for (int32_t span = span0; span < span1; span++) {
        int32_t first = span * CLB_SPAN;
        int32_t n = args->n_selected - first < CLB_SPAN ? args->n_selected - first : CLB_SPAN;
        for (int32_t i = 0; i < n; i++) {
            int32_t p = args->selected ? args->selected[first + i] : first + i;
            const float *block = (const float *)(const void *)args->blocks[p / CLB_SPAN];
            rows[i] = block + (size_t)(p % CLB_SPAN) * width;
        }
        for (int32_t h = h0; h < h1 && n > 0; h++)
            attend(args->q + (size_t)h * width, (int32_t)width, rows, rows, args->rank, n, args->scale,
                   softmax + h, out + (size_t)h * (size_t)args->rank, scratch);
    }
}

void clb_attn_ref_index_scores(const uint16_t *const *blocks, const float *iq, const float *w, int32_t heads,
                               int32_t dim, float scale, int32_t s0, int32_t s1, float *scores, void *scratch)
{
    (void)scratch;
    for (int32_t s = s0; s < s1; s++) {
        const float *key =
            (const float *)(const void *)blocks[s / CLB_SPAN] + (size_t)(s % CLB_SPAN) * (size_t)dim;
        double sum = 0;
        for (int32_t j = 0; j < heads; j++) {
            double dot = 0;
            for (int32_t i = 0; i < dim; i++)
                dot += (double)iq[(size_t)j * (size_t)dim + (size_t)i] * key[i];
            dot *= (double)scale;
            sum += dot < 0 ? 0.0 : w[j] * dot;
        }
        scores[s] = (float)sum;
    }
}
