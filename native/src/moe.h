/* moe.h - the routed experts of one layer over a batch of rows. */
#ifndef CLB_MOE_H
#define CLB_MOE_H

#include "engine.h"

typedef struct {
    int32_t store_layer;
    int32_t hidden;
    int32_t ffn;
    int32_t per_token;
    /* Always-on expert(s) of this width, or NULL. */
    const clb_weight *shared_gate, *shared_up, *shared_down;
    int32_t shared_ffn;
} clb_moe_layer;

/* x[row] += sum over the row's experts, ascending by expert number, of weight * expert(h[row]),
 * plus the shared expert. ids and weights: [n][per_token]; the order within a row does not matter. */
int32_t clb_moe_run(colibri_engine *engine, const clb_moe_layer *layer, const float *h, const int32_t *ids,
                    const float *weights, int32_t n, float *x, const clb_error *error);

#endif
