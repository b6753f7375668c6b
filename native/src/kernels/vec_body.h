/* vec_body.h - the vector functions, written once over simd.h.
 *
 * Included by vec_baseline.c, vec_avx2.c, vec_avx512.c and vec_neon.c after simd.h and CLB_VEC(name),
 * the macro that makes the public names. Tails are computed in a padded vector, so an element's value
 * does not depend on where in the row it lies. Pure, any thread.
 */
#include "vec.h"

/* The last n % VW elements of p, other lanes 0. */
CLB_INLINE vf load_part(const float *p, int32_t n)
{
    float t[VW] = {0};
    memcpy(t, p, (size_t)n * 4);
    return v_load(t);
}

CLB_INLINE void store_part(float *p, vf v, int32_t n)
{
    float t[VW];
    v_store(t, v);
    memcpy(p, t, (size_t)n * 4);
}

/* Sum of (x[i]-mean)^2 over n values: four chains of vectors, then their tree. */
static float square_sum(const float *x, float mean, int32_t n)
{
    vf a = {0}, b = {0}, c = {0}, d = {0};
    int32_t i = 0;
    for (; i + 4 * VW <= n; i += 4 * VW) {
        vf p = v_load(x + i) - mean, q = v_load(x + i + VW) - mean;
        vf r = v_load(x + i + 2 * VW) - mean, s = v_load(x + i + 3 * VW) - mean;
        a = v_fma(p, p, a);
        b = v_fma(q, q, b);
        c = v_fma(r, r, c);
        d = v_fma(s, s, d);
    }
    for (; i + VW <= n; i += VW) {
        vf p = v_load(x + i) - mean;
        a = v_fma(p, p, a);
    }
    float sum = v_sum((a + b) + (c + d));
    for (; i < n; i++)
        sum = s_fma(x[i] - mean, x[i] - mean, sum);
    return sum;
}

void CLB_VEC(rms_norm)(float *out, const float *x, const float *weight, int32_t n, float eps)
{
    float r = 1.0f / sqrtf(square_sum(x, 0.0f, n) / (float)n + eps);
    int32_t i = 0;
    for (; i + VW <= n; i += VW)
        v_store(out + i, v_load(x + i) * r * v_load(weight + i));
    for (; i < n; i++)
        out[i] = x[i] * r * weight[i];
}

void CLB_VEC(layer_norm)(float *out, const float *x, const float *weight, const float *bias, int32_t n,
                         float eps)
{
    vf a = {0}, b = {0};
    int32_t i = 0;
    for (; i + 2 * VW <= n; i += 2 * VW) {
        a += v_load(x + i);
        b += v_load(x + i + VW);
    }
    float sum = v_sum(a + b);
    for (; i < n; i++)
        sum += x[i];
    float mean = sum / (float)n;
    float r = 1.0f / sqrtf(square_sum(x, mean, n) / (float)n + eps);
    for (i = 0; i + VW <= n; i += VW)
        v_store(out + i, v_fma((v_load(x + i) - mean) * r, v_load(weight + i), v_load(bias + i)));
    for (; i < n; i++)
        out[i] = s_fma((x[i] - mean) * r, weight[i], bias[i]);
}

CLB_INLINE vf silu_times(vf gate, vf up)
{
    return gate / (v_exp(-gate) + 1.0f) * up;
}

void CLB_VEC(swiglu)(float *out, const float *gate, const float *up, int32_t n)
{
    int32_t i = 0;
    for (; i + VW <= n; i += VW)
        v_store(out + i, silu_times(v_load(gate + i), v_load(up + i)));
    if (i < n)
        store_part(out + i, silu_times(load_part(gate + i, n - i), load_part(up + i, n - i)), n - i);
}

void CLB_VEC(exp)(float *y, const float *x, int32_t n)
{
    int32_t i = 0;
    for (; i + VW <= n; i += VW)
        v_store(y + i, v_exp(v_load(x + i)));
    if (i < n)
        store_part(y + i, v_exp(load_part(x + i, n - i)), n - i);
}

void CLB_VEC(add)(float *y, const float *x, int32_t n)
{
    int32_t i = 0;
    for (; i + VW <= n; i += VW)
        v_store(y + i, v_load(y + i) + v_load(x + i));
    for (; i < n; i++)
        y[i] += x[i];
}

void CLB_VEC(axpy)(float *y, float a, const float *x, int32_t n)
{
    int32_t i = 0;
    for (; i + VW <= n; i += VW)
        v_store(y + i, v_fma(v_set1(a), v_load(x + i), v_load(y + i)));
    for (; i < n; i++)
        y[i] = s_fma(a, x[i], y[i]);
}

/* Rotations are short (a head's worth) and run once per token: the compiler's own vectors do. */
void CLB_VEC(rope_pairs)(float *x, const float *cs, int32_t n)
{
    for (int32_t i = 0; i < n; i += 2) {
        float a = x[i], b = x[i + 1], c = cs[i], s = cs[i + 1];
        x[i] = a * c - b * s;
        x[i + 1] = b * c + a * s;
    }
}

void CLB_VEC(rope_half)(float *x, const float *cs, int32_t n)
{
    int32_t half = n / 2;
    for (int32_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half], c = cs[2 * i], s = cs[2 * i + 1];
        x[i] = a * c - b * s;
        x[i + half] = b * c + a * s;
    }
}
