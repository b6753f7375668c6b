/* kernels.h - the table of compute kernels of one instruction set.
 *
 * Who calls it: the families' graphs and the engine, through `const clb_kernels *`, never by name.
 * One table per instruction set (ref.c is the naive reference that stays beside the fast ones);
 * clb_kernels_get picks at run time. All functions are pure (no allocation, no static state) and may
 * run on any thread on disjoint outputs.
 *
 * Bit-equality contract: each output element is computed in an order that depends only on its own
 * inputs and (for attention) absolute positions, never on n, tile shape or how the caller cut the
 * ranges. Between instruction sets results agree within a stated tolerance only.
 */
#ifndef CLB_KERNELS_H
#define CLB_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "../weight.h"

/* Tokens per KV block = tokens per attention span. Spans lie at fixed positions 0,128,256,... and
 * are merged in ascending order: part of the numerics contract. */
#define CLB_SPAN 128

/* ---- linear ------------------------------------------------------------------------------- */

/* Adds into y instead of overwriting: y = y + sum, one rounding, after the whole sum. */
#define CLB_LINEAR_ADD 1

/* ---- attention ----------------------------------------------------------------------------
 * 16-bit KV (bf16). GQA layers store per KV head and block of 128 tokens
 *   K: [8 token groups][dim/2][16 tokens][2]   (lanes = tokens, a pair of dims per 32-bit lane)
 *   V: [64 token pairs][dim][2]                (lanes = dims, a pair of tokens per 32-bit lane)
 * K part first, then V; one head = CLB_GQA_HEAD_BYTES(dim) bytes; heads follow each other.
 * dim is even, padded by the caller to a multiple of 16 (pad dims hold zero).
 * Latent rows (MLA: kv_lora + qk_rope) and indexer keys are row-major bf16 [128][width].
 * Fresh blocks are zeroed, so every stored bit pattern is finite.
 */
#define CLB_GQA_HEAD_BYTES(dim) ((size_t)CLB_SPAN * (size_t)(dim) * 4)

/* State of one query row's softmax, carried over spans: max, sum, output (not yet divided). */
typedef struct {
    float max; /* -INFINITY = nothing merged yet */
    float sum;
} clb_softmax;

typedef struct {
    int32_t dim;                  /* head dim, padded to a multiple of 16 */
    int32_t n_heads;              /* query heads of this KV head (the GQA group) */
    float scale;                  /* multiplied into the scores */
    const uint8_t *const *blocks; /* [span] start of this layer's KV of that block, head 0 */
    int32_t kv_head;
    const float *q;         /* query rows: q + token*q_stride + head*dim, f32, after rope */
    int64_t q_stride;       /* floats between tokens */
    int32_t first_position; /* absolute position of token 0 of this call; token t sees keys 0..first+t */
    int32_t window;         /* the last so many of them only, the token's own included; 0 = all */
} clb_gqa_args;

typedef struct {
    int32_t n_heads; /* all query heads share the latent */
    int32_t rank;    /* kv_lora: first `rank` values of a row are key and value; even */
    int32_t rope;    /* further key values; even */
    float scale;
    const uint16_t *const *blocks; /* [span] latent rows [128][rank+rope] of this layer */
    const float *q;                /* f32 [n_heads][rank+rope] of one token: absorbed part, then rope part */
    const int32_t *selected;       /* ascending positions, or NULL = all of 0..n_selected-1 */
    int32_t n_selected;
} clb_mla_args;

typedef struct clb_kernels {
    int32_t isa;
    const char *name;

    /* Prepares tokens [t0, t1) of x for weights of this kind. Row t of the source is
     * x + (index ? index[t] : t) * ldx, f32 [cols]. `out` holds act_bytes(kind, cols, n) with n the
     * total number of tokens of the batch; ranges given to different threads start at multiples of
     * act_align tokens (1 or 12). `out` needs 8-byte alignment only. */
    int64_t (*act_bytes)(int32_t kind, int32_t cols, int32_t n);
    int32_t act_align;
    void (*act_prepare)(int32_t kind, int32_t cols, int32_t n, const float *x, int64_t ldx,
                        const int32_t *index, void *out, int32_t t0, int32_t t1);

    /* y[t*ldy + row] for rows of blocks [block0, block1) and tokens [t0, t1); act as prepared for n
     * tokens. t0 is a multiple of act_align. Rows >= w->rows are not written. */
    void (*linear)(const clb_weight *w, const void *act, int32_t n, int32_t t0, int32_t t1, float *y,
                   int64_t ldy, int32_t block0, int32_t block1, int32_t flags);

    /* Writes one token's K and V (f32 [dim], already roped) of one head into its block. */
    void (*gqa_store)(uint8_t *head_block, int32_t dim, int32_t token_in_block, const float *k,
                      const float *v);
    /* Attends tokens [t0, t1) over spans [span0, span1), merging into state (row = t*n_heads + head:
     * softmax[row], out + row*dim f32). Each span is reduced on its own and then merged in ascending
     * order, so cutting [span0, span1) or the tokens differently gives equal bits. Spans that lie
     * wholly after a token's position leave its state unchanged. scratch: gqa_scratch bytes. */
    void (*gqa_attend)(const clb_gqa_args *args, int32_t t0, int32_t t1, int32_t span0, int32_t span1,
                       clb_softmax *softmax, float *out, void *scratch);
    int64_t (*gqa_scratch)(int32_t dim, int32_t n_heads);

    void (*rows_store_bf16)(uint16_t *dst, const float *src, int32_t n); /* round to nearest even */
    /* Attends one token's heads [h0, h1) over spans [span0, span1) of its selection list (span i =
     * list entries 128i..128i+127), merging like gqa_attend. out f32 [n_heads][rank]. h0 is a
     * multiple of 16. scratch: mla_scratch bytes. */
    void (*mla_attend)(const clb_mla_args *args, int32_t h0, int32_t h1, int32_t span0, int32_t span1,
                       clb_softmax *softmax, float *out, void *scratch);
    int64_t (*mla_scratch)(int32_t n_heads, int32_t rank, int32_t rope);
    /* Merges partial (b) into a: rows [0, n), width floats each. b follows a in span order. */
    void (*softmax_merge)(clb_softmax *a, float *a_out, const clb_softmax *b, const float *b_out, int32_t n,
                          int32_t width);
    /* out[row] /= softmax[row].sum */
    void (*softmax_finish)(const clb_softmax *softmax, float *out, int32_t n, int32_t width);

    /* DSA scores of one token: score[s] = sum_j w[j] * max(0, iq_j . ik_s * scale), j ascending in a
     * fixed order, for s in [s0, s1). iq f32 [heads][dim] is rounded to bf16 inside; blocks: bf16
     * [128][dim]. s0 is a multiple of 128. scratch: index_scratch bytes. */
    void (*index_scores)(const uint16_t *const *blocks, const float *iq, const float *w, int32_t heads,
                         int32_t dim, float scale, int32_t s0, int32_t s1, float *scores, void *scratch);
    int64_t (*index_scratch)(int32_t heads, int32_t dim);

    /* ---- vectors (per token, f32) ---- */
    void (*rms_norm)(float *out, const float *x, const float *weight, int32_t n, float eps);
    void (*layer_norm)(float *out, const float *x, const float *weight, const float *bias, int32_t n,
                       float eps);
    void (*swiglu)(float *out, const float *gate, const float *up, int32_t n); /* silu(gate)*up */
    void (*add)(float *y, const float *x, int32_t n);                          /* y += x */
    void (*axpy)(float *y, float a, const float *x, int32_t n);                /* y = fma(a, x, y) */
    /* pairs (2i, 2i+1) rotated by cs[i] = {cos, sin}; n = dims (even) */
    void (*rope_pairs)(float *x, const float *cs, int32_t n);
    /* pairs (i, i+n/2) */
    void (*rope_half)(float *x, const float *cs, int32_t n);
} clb_kernels;

/* Table of an instruction set, or NULL if this build or processor lacks it. AUTO = the best one. */
const clb_kernels *clb_kernels_get(int32_t isa);
/* The naive f32 table (COLIBRI_PRECISION_F32): same functions, plain loops, f32 KV.
 * GQA f32 blocks: per head K [128][dim] f32 then V [128][dim] f32 (twice CLB_GQA_HEAD_BYTES).
 * Latent and indexer rows are f32 (uint16_t pointers are really float pointers). */
const clb_kernels *clb_kernels_reference(void);

#endif
