/* mla.h - absorbed multi-head latent attention with the DSA selection, over a batch. */
#ifndef CLB_MLA_H
#define CLB_MLA_H

#include "engine.h"

/* Selects the keys that each row attends to (layers with an indexer of their own).
 * iq [n][heads*dim] roped, iw [n][heads] scaled; keys of all rows are stored already. */
int32_t clb_mla_select(colibri_engine *engine, const clb_batch *batch, const clb_kv_part *part,
                       const float *iq, const float *iw, const clb_error *error);

/* q [n][heads][rank+rope]: absorbed part, then rope part. out [n][heads][rank]. */
int32_t clb_mla_attend(colibri_engine *engine, const clb_batch *batch, const clb_kv_part *part,
                       const float *q, float *out, const clb_error *error);

#endif
