/* vec_ref.c - plain loops for the vector functions; sums in double.
 *
 * What it is for: the F32 precision and the yardstick of the fast sets. Pure, any thread.
 */
#include <math.h>

#include "vec.h"

void clb_vec_ref_rms_norm(float *out, const float *x, const float *weight, int32_t n, float eps)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    float r = (float)(1.0 / sqrt(sum / n + (double)eps));
    for (int32_t i = 0; i < n; i++)
        out[i] = x[i] * r * weight[i];
}

void clb_vec_ref_layer_norm(float *out, const float *x, const float *weight, const float *bias, int32_t n,
                            float eps)
{
    double sum = 0, square = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i];
    double mean = sum / n;
    for (int32_t i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean);
    double r = 1.0 / sqrt(square / n + (double)eps);
    for (int32_t i = 0; i < n; i++)
        out[i] = (float)((x[i] - mean) * r) * weight[i] + bias[i];
}

void clb_vec_ref_swiglu(float *out, const float *gate, const float *up, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

void clb_vec_ref_add(float *y, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        y[i] += x[i];
}

void clb_vec_ref_axpy(float *y, float a, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        y[i] = fmaf(a, x[i], y[i]);
}

void clb_vec_ref_rope_pairs(float *x, const float *cs, int32_t n)
{
    for (int32_t i = 0; i < n; i += 2) {
        float a = x[i], b = x[i + 1], c = cs[i], s = cs[i + 1];
        x[i] = a * c - b * s;
        x[i + 1] = b * c + a * s;
    }
}

void clb_vec_ref_rope_half(float *x, const float *cs, int32_t n)
{
    int32_t half = n / 2;
    for (int32_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half], c = cs[2 * i], s = cs[2 * i + 1];
        x[i] = a * c - b * s;
        x[i + half] = b * c + a * s;
    }
}

void clb_vec_ref_exp(float *y, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        y[i] = expf(x[i]);
}
