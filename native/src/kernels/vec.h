/* vec.h - vector functions of every instruction set, for the dispatcher and the tests only.
 *
 * The contracts are those of the function pointers in kernels.h. Names: clb_vec_<isa>_<function>.
 * Sums of the norms run in an order that depends on n alone. `exp` is the exponential the set uses
 * inside swiglu: y[i] = e^x[i] within 2 units in the last place, 0 for -INFINITY, NaN for NaN; the
 * result of an element does not depend on its place. In and out may be the same pointer everywhere.
 */
#ifndef CLB_VEC_H
#define CLB_VEC_H

#include "kernels.h"

#define CLB_VEC_DECLARE(isa)                                                                                 \
    void clb_vec_##isa##_rms_norm(float *out, const float *x, const float *weight, int32_t n, float eps);    \
    void clb_vec_##isa##_layer_norm(float *out, const float *x, const float *weight, const float *bias,      \
                                    int32_t n, float eps);                                                   \
    void clb_vec_##isa##_swiglu(float *out, const float *gate, const float *up, int32_t n);                  \
    void clb_vec_##isa##_add(float *y, const float *x, int32_t n);                                           \
    void clb_vec_##isa##_axpy(float *y, float a, const float *x, int32_t n);                                 \
    void clb_vec_##isa##_rope_pairs(float *x, const float *cs, int32_t n);                                   \
    void clb_vec_##isa##_rope_half(float *x, const float *cs, int32_t n);                                    \
    void clb_vec_##isa##_exp(float *y, const float *x, int32_t n);

CLB_VEC_DECLARE(ref)
CLB_VEC_DECLARE(baseline)
#if defined(__x86_64__)
CLB_VEC_DECLARE(avx2)
CLB_VEC_DECLARE(avx512)
#endif
#if defined(__aarch64__)
CLB_VEC_DECLARE(neon)
#endif

#endif
