/* simd.h - the few vector operations that vec_body.h and attn_body.h are written in.
 *
 * Included by exactly the kernel files, once each, after one of CLB_SIMD_BASELINE, CLB_SIMD_AVX2,
 * CLB_SIMD_AVX512, CLB_SIMD_NEON is defined. Vectors are the compiler's vector extension, so plain
 * arithmetic is written with operators; only what has no operator is named here. Everything is
 * static: the same name means another width in each file.
 */
#ifndef CLB_SIMD_H
#define CLB_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(CLB_SIMD_AVX512)
#include <immintrin.h>
#define VW 16
#elif defined(CLB_SIMD_AVX2)
#include <immintrin.h>
#define VW 8
#else
#define VW 4
#if defined(CLB_SIMD_NEON)
#include <arm_neon.h>
#elif !defined(CLB_SIMD_BASELINE)
#error "define the instruction set before including simd.h"
#endif
#endif

#define CLB_INLINE static inline __attribute__((always_inline, unused))

typedef float vf __attribute__((vector_size(VW * 4)));
typedef int32_t vi __attribute__((vector_size(VW * 4)));
typedef uint32_t vu __attribute__((vector_size(VW * 4)));

CLB_INLINE vf v_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

CLB_INLINE vu v_load_u32(const uint32_t *p)
{
    vu v;
    memcpy(&v, p, sizeof v);
    return v;
}

CLB_INLINE void v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

CLB_INLINE vf v_set1(float x)
{
    return x - (vf){0};
}

/* a*b+c: fused where the set has it, else two roundings. s_fma is the same for one number. */
CLB_INLINE vf v_fma(vf a, vf b, vf c)
{
#if defined(CLB_SIMD_AVX512)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(CLB_SIMD_AVX2)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(CLB_SIMD_NEON)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

CLB_INLINE float s_fma(float a, float b, float c)
{
#if defined(CLB_SIMD_BASELINE)
    return a * b + c;
#else
    return __builtin_fmaf(a, b, c);
#endif
}

/* a > b ? a : b in each lane, so a NaN in either gives b. */
CLB_INLINE vf v_max(vf a, vf b)
{
#if defined(CLB_SIMD_AVX512)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(CLB_SIMD_AVX2)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    vi m = (vi)(a > b);
    return (vf)(((vi)a & m) | ((vi)b & ~m));
#endif
}

CLB_INLINE float v_sum(vf v) /* halves folded together until one is left */
{
    float t[VW];
    memcpy(t, &v, sizeof t);
    for (int half = VW / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            t[i] += t[i + half];
    return t[0];
}

/* The bf16 of even (low half) and odd (high half) elements of 32-bit pairs as f32. */
CLB_INLINE vf v_low_bf16(vu pairs)
{
    return (vf)(pairs << 16);
}

CLB_INLINE vf v_high_bf16(vu pairs)
{
    return (vf)(pairs & 0xffff0000u);
}

/* p * 2^n for n in [-252, 254], in two exact steps so that the last one alone rounds. */
CLB_INLINE vf v_scale2(vf p, vi n)
{
    vi half = n >> 1;
    return p * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
}

/* Rounding to an integer: adding 1.5 * 2^23 leaves it in the low bits of the sum. */
#define ROUND_MAGIC 12582912.0f

/* 2^y, relative error below 2e-7; polynomial 1 + f*q(f) on [-0.5, 0.5], minimax in relative error.
 * NaN gives NaN, y < -150 gives 0, y > 128 gives infinity. */
CLB_INLINE vf v_exp2(vf y)
{
    y = v_max(v_set1(-152.0f), y);
    y = -v_max(v_set1(-130.0f), -y);
    vf t = y + ROUND_MAGIC;
    vf f = y - (t - ROUND_MAGIC);
    vi n = (vi)t - (vi)v_set1(ROUND_MAGIC);
    vf q = v_set1(0.00015403512f);
    q = v_fma(q, f, v_set1(0.0013390759f));
    q = v_fma(q, f, v_set1(0.009618238f));
    q = v_fma(q, f, v_set1(0.055503573f));
    q = v_fma(q, f, v_set1(0.24022649f));
    q = v_fma(q, f, v_set1(0.6931472f));
    return v_scale2(v_fma(q, f, v_set1(1.0f)), n);
}

/* e^x, error below 2 units in the last place; polynomial 1 + f + f*f*q(f) on [-ln2/2, ln2/2]. The
 * upper part of ln 2 has 10 bits, so that n times it is exact. */
CLB_INLINE vf v_exp(vf x)
{
    x = v_max(v_set1(-106.0f), x);
    x = -v_max(v_set1(-90.0f), -x);
    vf t = v_fma(x, v_set1(1.44269504f), v_set1(ROUND_MAGIC));
    vf n = t - ROUND_MAGIC;
    vf f = v_fma(n, v_set1(-0.693359375f), x);
    f = v_fma(n, v_set1(2.12194440e-4f), f);
    vf q = v_set1(0.0013901287f);
    q = v_fma(q, f, v_set1(0.008363146f));
    q = v_fma(q, f, v_set1(0.041666854f));
    q = v_fma(q, f, v_set1(0.16666578f));
    q = v_fma(q, f, v_set1(0.5f));
    return v_scale2(v_fma(f * f, q, f) + 1.0f, (vi)t - (vi)v_set1(ROUND_MAGIC));
}

CLB_INLINE uint16_t s_bf16(float x) /* round to nearest even, NaN kept quiet */
{
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Rows wanted soon, fetched into the second-level cache a few lines at a time between pieces of other
 * work: more at once would be dropped by the processor. */
typedef struct {
    const uint32_t *const *rows;
    int32_t n, row;
    int32_t bytes, offset; /* of a row */
} row_prefetch;

CLB_INLINE void prefetch_lines(row_prefetch *p, int lines)
{
    for (; p && lines > 0 && p->row < p->n; lines--) {
        __builtin_prefetch((const char *)p->rows[p->row] + p->offset, 0, 2);
        p->offset += 64;
        if (p->offset >= p->bytes) {
            p->offset = 0;
            p->row++;
        }
    }
}

#endif
