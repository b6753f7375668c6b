/* attn.h - attention functions of every instruction set, for the dispatcher and the tests only.
 *
 * The contracts are those of the function pointers in kernels.h. Names: clb_attn_<isa>_<function>;
 * ref = plain loops over f32 KV, baseline = portable C over bf16 KV. A set that the compiled-for
 * architecture lacks is not declared.
 *
 * Common to all sets:
 * - Scores, maxima and sums are kept in base 2 (score * scale * log2(e)), so clb_softmax is private
 *   to the set that wrote it. An empty state is {-INFINITY, 0}; its output row is never read.
 * - A span's keys are reduced without looking at any other span and folded into the state with
 *   softmax_merge's formula. Cutting a call into calls over ascending spans with the same state gives
 *   equal bits. Separate partial states do too if each holds ONE span and they are merged in order.
 * - A key after the query's position contributes exactly nothing as long as what is stored there is
 *   finite.
 * - scratch is aligned as malloc aligns and holds nothing between calls.
 */
#ifndef CLB_ATTN_H
#define CLB_ATTN_H

#include "kernels.h"

#define CLB_ATTN_DECLARE(isa)                                                                                \
    void clb_attn_##isa##_gqa_store(uint8_t *head_block, int32_t dim, int32_t token_in_block,                \
                                    const float *k, const float *v);                                         \
    void clb_attn_##isa##_gqa_attend(const clb_gqa_args *args, int32_t t0, int32_t t1, int32_t span0,        \
                                     int32_t span1, clb_softmax *softmax, float *out, void *scratch);        \
    int64_t clb_attn_##isa##_gqa_scratch(int32_t dim, int32_t n_heads);                                      \
    void clb_attn_##isa##_rows_store_bf16(uint16_t *dst, const float *src, int32_t n);                       \
    void clb_attn_##isa##_mla_attend(const clb_mla_args *args, int32_t h0, int32_t h1, int32_t span0,        \
                                     int32_t span1, clb_softmax *softmax, float *out, void *scratch);        \
    int64_t clb_attn_##isa##_mla_scratch(int32_t n_heads, int32_t rank, int32_t rope);                       \
    void clb_attn_##isa##_softmax_merge(clb_softmax *a, float *a_out, const clb_softmax *b,                  \
                                        const float *b_out, int32_t n, int32_t width);                       \
    void clb_attn_##isa##_softmax_finish(const clb_softmax *softmax, float *out, int32_t n, int32_t width);  \
    void clb_attn_##isa##_index_scores(const uint16_t *const *blocks, const float *iq, const float *w,       \
                                       int32_t heads, int32_t dim, float scale, int32_t s0, int32_t s1,      \
                                       float *scores, void *scratch);                                        \
    int64_t clb_attn_##isa##_index_scratch(int32_t heads, int32_t dim);

CLB_ATTN_DECLARE(ref)
CLB_ATTN_DECLARE(baseline)
#if defined(__x86_64__)
CLB_ATTN_DECLARE(avx2)
CLB_ATTN_DECLARE(avx512)
#endif
#if defined(__aarch64__)
CLB_ATTN_DECLARE(neon)
#endif

#endif
