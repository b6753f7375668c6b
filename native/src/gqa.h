/* gqa.h - grouped-query attention of one layer over a batch: rope, KV store, attend. */
#ifndef CLB_GQA_H
#define CLB_GQA_H

#include "engine.h"

typedef struct {
    int32_t n_heads;
    int32_t n_kv_heads;
    int32_t dim;
    int32_t part; /* index of the layer's CLB_KV_GQA or CLB_KV_WINDOW part, which has the window */
    int32_t layer;
} clb_gqa_layer;

/* Head width in the KV blocks and in the kernels: dim padded with zeros. */
static inline int32_t clb_gqa_width(int32_t dim)
{
    return (dim + 15) / 16 * 16;
}

/* While binding, for a family whose geometry does not say that it has such layers: what their workers
 * need. */
void clb_gqa_announce(colibri_engine *engine, int32_t n_heads, int32_t n_kv_heads, int32_t dim);

/* q [n][n_heads*dim], k and v [n][n_kv_heads*dim], all before rope (half-split pairs). out has q's shape. */
int32_t clb_gqa_run(colibri_engine *engine, const clb_batch *batch, const clb_gqa_layer *layer,
                    const float *q, const float *k, const float *v, float *out, const clb_error *error);

#endif
