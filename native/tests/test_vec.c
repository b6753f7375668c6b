/* test_vec.c - the vector functions of every instruction set against plain sums in double.
 *
 * Tolerances, relative to the largest value of a result: norms 1e-6 (a sum in f32 over n <= 6144),
 * swiglu 5e-7, rotations 2e-7, exp 2 units in the last place. add is exact, axpy one rounding more or
 * less (the baseline has no fused multiply-add).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/vec.h"
#include "test.h"

typedef struct {
    int32_t isa; /* -1 = the f32 reference */
    const char *name;
    void (*rms_norm)(float *, const float *, const float *, int32_t, float);
    void (*layer_norm)(float *, const float *, const float *, const float *, int32_t, float);
    void (*swiglu)(float *, const float *, const float *, int32_t);
    void (*add)(float *, const float *, int32_t);
    void (*axpy)(float *, float, const float *, int32_t);
    void (*rope_pairs)(float *, const float *, int32_t);
    void (*rope_half)(float *, const float *, int32_t);
    void (*exp)(float *, const float *, int32_t);
} vec;

#define SET(id, set)                                                                                         \
    {id,                                                                                                     \
     #set,                                                                                                   \
     clb_vec_##set##_rms_norm,                                                                               \
     clb_vec_##set##_layer_norm,                                                                             \
     clb_vec_##set##_swiglu,                                                                                 \
     clb_vec_##set##_add,                                                                                    \
     clb_vec_##set##_axpy,                                                                                   \
     clb_vec_##set##_rope_pairs,                                                                             \
     clb_vec_##set##_rope_half,                                                                              \
     clb_vec_##set##_exp}

static const vec sets[] = {
    SET(-1, ref),
    SET(COLIBRI_ISA_BASELINE, baseline),
#if defined(__x86_64__)
    SET(COLIBRI_ISA_AVX2, avx2),
    SET(COLIBRI_ISA_AVX512, avx512),
#endif
#if defined(__aarch64__)
    SET(COLIBRI_ISA_NEON, neon),
#endif
};

enum { MOST = 6144 };

static uint64_t seed = 0x853c49e6748fea9bu;
static float x[MOST], y[MOST], z[MOST], weight[MOST], bias[MOST], out[MOST + 1];
static double expected[MOST];

static void fill(float *p, int32_t n, float size)
{
    for (int32_t i = 0; i < n; i++)
        p[i] = test_uniform(&seed) * size;
}

/* Largest difference from `expected`, relative to its largest value; infinite if one is NaN alone. */
static double error(const float *got, int32_t n)
{
    double worst = 0, largest = 1e-30;
    for (int32_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs(expected[i]));
        double d = fabs(got[i] - expected[i]);
        worst = d >= 0 ? fmax(worst, d) : INFINITY;
    }
    return worst / largest;
}

static void test_norms(const vec *v, int32_t n)
{
    double sum = 0, square = 0, mean = 0;
    fill(x, n, 3.0f), fill(weight, n, 2.0f), fill(bias, n, 1.0f);
    for (int32_t i = 0; i < n; i++) {
        square += (double)x[i] * x[i];
        mean += x[i];
    }
    mean /= n;
    for (int32_t i = 0; i < n; i++)
        expected[i] = weight[i] * x[i] / sqrt(square / n + 1e-5);
    out[n] = 77;
    v->rms_norm(out, x, weight, n, 1e-5f);
    CHECK_MSG(error(out, n) < 1e-6, "%s rms_norm n %d: %g", v->name, n, error(out, n));
    memcpy(y, x, (size_t)n * sizeof *y);
    v->rms_norm(y, y, weight, n, 1e-5f);
    CHECK_MSG(memcmp(y, out, (size_t)n * sizeof *y) == 0, "%s rms_norm n %d in place differs", v->name, n);
    for (int32_t i = 0; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    for (int32_t i = 0; i < n; i++)
        expected[i] = weight[i] * (x[i] - mean) / sqrt(sum / n + 1e-6) + bias[i];
    v->layer_norm(out, x, weight, bias, n, 1e-6f);
    CHECK_MSG(error(out, n) < 1e-6 || n == 1, "%s layer_norm n %d: %g", v->name, n, error(out, n));
    CHECK_MSG(out[n] == 77, "%s norms n %d wrote past the end", v->name, n);
    x[n - 1] = NAN;
    v->rms_norm(out, x, weight, n, 1e-5f);
    CHECK_MSG(isnan(out[0]), "%s rms_norm n %d loses a NaN", v->name, n);
    v->layer_norm(out, x, weight, bias, n, 1e-6f);
    CHECK_MSG(isnan(out[0]), "%s layer_norm n %d loses a NaN", v->name, n);
}

/* Zero rows are where eps inside the root matters. */
static void test_zero_norm(const vec *v)
{
    memset(x, 0, sizeof x);
    fill(weight, 64, 1.0f);
    v->rms_norm(out, x, weight, 64, 1e-5f);
    int zero = 1;
    for (int32_t i = 0; i < 64; i++)
        zero &= out[i] == 0.0f;
    CHECK_MSG(zero, "%s rms_norm of zeros is not zero", v->name);
}

static void test_elementwise(const vec *v, int32_t n)
{
    fill(x, n, 20.0f), fill(y, n, 3.0f);
    for (int32_t i = 0; i < n; i++)
        expected[i] = x[i] / (1 + exp(-(double)x[i])) * y[i];
    out[n] = 77;
    v->swiglu(out, x, y, n);
    CHECK_MSG(error(out, n) < 5e-7, "%s swiglu n %d: %g", v->name, n, error(out, n));
    int same = 1;
    for (int32_t i = 0; i < n; i++) { /* an element's value does not depend on its place */
        float one;
        v->swiglu(&one, x + i, y + i, 1);
        same &= memcmp(&one, out + i, 4) == 0;
    }
    CHECK_MSG(same, "%s swiglu n %d depends on the place", v->name, n);
    for (int32_t i = 0; i < n; i++)
        expected[i] = x[i] + y[i];
    memcpy(out, x, (size_t)n * sizeof *out);
    v->add(out, y, n);
    same = 1;
    for (int32_t i = 0; i < n; i++)
        same &= out[i] == x[i] + y[i];
    CHECK_MSG(same, "%s add n %d", v->name, n);
    for (int32_t i = 0; i < n; i++)
        expected[i] = (double)x[i] + 0.37f * (double)y[i];
    memcpy(out, x, (size_t)n * sizeof *out);
    v->axpy(out, 0.37f, y, n);
    CHECK_MSG(error(out, n) < 1.2e-7, "%s axpy n %d: %g", v->name, n, error(out, n));
    same = 1;
    for (int32_t i = 0; i < n; i++) {
        float one = x[i];
        v->axpy(&one, 0.37f, y + i, 1);
        same &= memcmp(&one, out + i, 4) == 0;
    }
    CHECK_MSG(same, "%s axpy n %d depends on the place", v->name, n);
    CHECK_MSG(out[n] == 77, "%s elementwise n %d wrote past the end", v->name, n);
}

static void test_rope(const vec *v, int32_t n)
{
    fill(x, n, 2.0f);
    for (int32_t i = 0; i < n; i += 2) {
        double angle = (double)(i + 1) * 1.37;
        y[i] = (float)cos(angle);
        y[i + 1] = (float)sin(angle);
        expected[i] = (double)x[i] * y[i] - (double)x[i + 1] * y[i + 1];
        expected[i + 1] = (double)x[i + 1] * y[i] + (double)x[i] * y[i + 1];
    }
    memcpy(out, x, (size_t)n * sizeof *out);
    out[n] = 77;
    v->rope_pairs(out, y, n);
    CHECK_MSG(error(out, n) < 2e-7, "%s rope_pairs n %d: %g", v->name, n, error(out, n));
    int32_t half = n / 2;
    for (int32_t i = 0; i < half; i++) {
        expected[i] = (double)x[i] * y[2 * i] - (double)x[i + half] * y[2 * i + 1];
        expected[i + half] = (double)x[i + half] * y[2 * i] + (double)x[i] * y[2 * i + 1];
    }
    memcpy(out, x, (size_t)n * sizeof *out);
    v->rope_half(out, y, n);
    CHECK_MSG(error(out, n) < 2e-7, "%s rope_half n %d: %g", v->name, n, error(out, n));
    CHECK_MSG(out[n] == 77, "%s rope n %d wrote past the end", v->name, n);
}

static double ulp(double value) /* of f32 at this size, denormals included */
{
    int exponent;
    frexp(value, &exponent);
    return ldexp(1.0, (exponent < -125 ? -125 : exponent) - 24);
}

static void test_exp(const vec *v)
{
    double worst = 0, at = 0;
    for (int round = 0; round < 40; round++) {
        for (int32_t i = 0; i < MOST; i++)
            x[i] =
                round < 30 ? test_uniform(&seed) * 88.0f : test_uniform(&seed) * (round % 2 ? 1.0f : 104.0f);
        v->exp(z, x, MOST);
        for (int32_t i = 0; i < MOST; i++) {
            double e = exp(x[i]);
            if (e > 3.4028234e38) {
                CHECK_MSG(z[i] == INFINITY || z[i] > 3.4e38f, "%s exp(%g) = %g", v->name, (double)x[i],
                          (double)z[i]);
                continue;
            }
            double d = fabs(z[i] - e) / ulp(e);
            d = d >= 0 ? d : INFINITY;
            if (d > worst) {
                worst = d;
                at = x[i];
            }
        }
    }
    CHECK_MSG(worst <= 2.0, "%s exp is off by %g units in the last place at %g", v->name, worst, at);
    const float in[] = {0.0f, -0.0f, -INFINITY, INFINITY, NAN, -1000.0f, 1000.0f, -104.5f, 88.8f, -NAN};
    v->exp(out, in, 10);
    CHECK_MSG(out[0] == 1.0f && out[1] == 1.0f, "%s exp(0) = %g", v->name, (double)out[0]);
    CHECK_MSG(out[2] == 0.0f && out[5] == 0.0f && out[7] == 0.0f, "%s exp of very negative numbers", v->name);
    CHECK_MSG(out[3] == INFINITY && out[6] == INFINITY && out[8] == INFINITY, "%s exp of large numbers",
              v->name);
    CHECK_MSG(isnan(out[4]) && isnan(out[9]), "%s exp(NaN) = %g", v->name, (double)out[4]);
    int same = 1;
    for (int32_t i = 0; i < 300; i++) {
        float one;
        v->exp(&one, x + i, 1);
        same &= memcmp(&one, z + i, 4) == 0;
    }
    CHECK_MSG(same, "%s exp depends on the place", v->name);
    const float gate[] = {NAN, 1.0f, INFINITY, -200.0f}, up[] = {1.0f, NAN, 1.0f, 2.0f};
    v->swiglu(out, gate, up, 4);
    CHECK_MSG(isnan(out[0]) && isnan(out[1]) && out[2] == INFINITY && out[3] == 0.0f,
              "%s swiglu of special values", v->name);
}

int main(void)
{
    static const int32_t sizes[] = {1,  2,  3,  7,   8,   15,  16,  17,   31,   33,
                                    63, 64, 65, 127, 128, 200, 576, 1536, 2050, 6144};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const vec *v = sets + i;
        if (v->isa > 0 && !colibri_cpu_has_isa(v->isa)) {
            printf("%s: not on this processor\n", v->name);
            continue;
        }
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            test_norms(v, sizes[s]);
            test_elementwise(v, sizes[s]);
            if (sizes[s] % 2 == 0)
                test_rope(v, sizes[s]);
        }
        test_zero_norm(v);
        test_exp(v);
    }
    return test_report();
}
