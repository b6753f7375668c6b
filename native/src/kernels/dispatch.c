/* dispatch.c - one table of kernels per instruction set, and the choice among them at run time.
 *
 * The tables join the linear functions (linear.h), the attention functions (attn.h) and the vector
 * functions (vec.h) of one instruction set. Nobody else names those functions. Pure, any thread.
 */
#include "attn.h"
#include "linear.h"
#include "vec.h"

/* The functions of instruction set `set`, in the order of clb_kernels. */
#define CLB_TABLE(id, set, label, align)                                                                     \
    {                                                                                                        \
        .isa = (id),                                                                                         \
        .name = (label),                                                                                     \
        .act_bytes = clb_linear_##set##_act_bytes,                                                           \
        .act_align = (align),                                                                                \
        .act_prepare = clb_linear_##set##_act_prepare,                                                       \
        .linear = clb_linear_##set##_linear,                                                                 \
        .gqa_store = clb_attn_##set##_gqa_store,                                                             \
        .gqa_attend = clb_attn_##set##_gqa_attend,                                                           \
        .gqa_scratch = clb_attn_##set##_gqa_scratch,                                                         \
        .rows_store_bf16 = clb_attn_##set##_rows_store_bf16,                                                 \
        .mla_attend = clb_attn_##set##_mla_attend,                                                           \
        .mla_scratch = clb_attn_##set##_mla_scratch,                                                         \
        .softmax_merge = clb_attn_##set##_softmax_merge,                                                     \
        .softmax_finish = clb_attn_##set##_softmax_finish,                                                   \
        .index_scores = clb_attn_##set##_index_scores,                                                       \
        .index_scratch = clb_attn_##set##_index_scratch,                                                     \
        .rms_norm = clb_vec_##set##_rms_norm,                                                                \
        .layer_norm = clb_vec_##set##_layer_norm,                                                            \
        .swiglu = clb_vec_##set##_swiglu,                                                                    \
        .add = clb_vec_##set##_add,                                                                          \
        .axpy = clb_vec_##set##_axpy,                                                                        \
        .rope_pairs = clb_vec_##set##_rope_pairs,                                                            \
        .rope_half = clb_vec_##set##_rope_half,                                                              \
    }

static const clb_kernels reference =
    CLB_TABLE(COLIBRI_ISA_BASELINE, ref, "reference", CLB_LINEAR_ROWMAJOR_ALIGN);
static const clb_kernels baseline =
    CLB_TABLE(COLIBRI_ISA_BASELINE, baseline, "baseline", CLB_LINEAR_ROWMAJOR_ALIGN);
#if defined(__x86_64__)
static const clb_kernels avx2 = CLB_TABLE(COLIBRI_ISA_AVX2, avx2, "avx2", CLB_LINEAR_TILED_ALIGN);
static const clb_kernels avx512 = CLB_TABLE(COLIBRI_ISA_AVX512, avx512, "avx512", CLB_LINEAR_TILED_ALIGN);
#endif
#if defined(__aarch64__)
static const clb_kernels neon = CLB_TABLE(COLIBRI_ISA_NEON, neon, "neon", CLB_LINEAR_TILED_ALIGN);
#endif

const clb_kernels *clb_kernels_reference(void)
{
    return &reference;
}

const clb_kernels *clb_kernels_get(int32_t isa)
{
    if (isa == COLIBRI_ISA_AUTO)
        isa = colibri_cpu_best_isa();
    if (!colibri_cpu_has_isa(isa))
        return NULL;
    switch (isa) {
    case COLIBRI_ISA_BASELINE:
        return &baseline;
#if defined(__x86_64__)
    case COLIBRI_ISA_AVX2:
        return &avx2;
    case COLIBRI_ISA_AVX512:
        return &avx512;
#endif
#if defined(__aarch64__)
    case COLIBRI_ISA_NEON:
        return &neon;
#endif
    default:
        return NULL;
    }
}
