/* route.h - which experts a token goes to, and with what weight. Pure, any thread.
 *
 * Source: GLM-5.x (DeepSeek-V3 lineage, "noaux_tc"): sigmoid scores; a correction bias takes part in
 * the choice but not in the weight; optional limit to the best groups of experts. */
#ifndef CLB_ROUTE_H
#define CLB_ROUTE_H

#include <stdint.h>

#define CLB_ROUTE_MAX_EXPERTS 65536

typedef struct {
    int32_t n_experts;
    int32_t top_k;
    int32_t n_group;    /* 1 = no groups; divides n_experts, at least 2 experts each otherwise */
    int32_t topk_group; /* groups kept */
    int32_t norm_topk;  /* 1 = weights sum to `scale` */
    float scale;
} clb_route_params;

/* Floats of scratch that a call needs. */
int32_t clb_route_scratch(const clb_route_params *params);
/* logits, bias: f32 [n_experts]. ids [top_k] ascending, weights [top_k] in the same order. Ties go to
 * the lowest index. A NaN logit ranks last; it is the caller's to notice non-finite activations. */
void clb_route_sigmoid(const clb_route_params *params, const float *logits, const float *bias, int32_t *ids,
                       float *weights, float *scratch);

#endif
