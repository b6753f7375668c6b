/* route.c - see route.h. */
#include "route.h"

#include <math.h>

#include "topk.h"

/* Keeps the division defined when all chosen scores vanish; the value is the models' own. */
#define NORM_EPS 1e-20f

int32_t clb_route_scratch(const clb_route_params *params)
{
    /* scores, choices, group scores, kept groups (int32 in place of floats) */
    return 2 * params->n_experts + 2 * params->n_group;
}

/* Sets the choices outside the best groups to -infinity. A group's score is the sum of its two best. */
static void limit_groups(const clb_route_params *params, float *choice, float *group_score, int32_t *kept)
{
    int32_t size = params->n_experts / params->n_group;
    for (int32_t g = 0; g < params->n_group; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (int32_t i = 0; i < size; i++) {
            float value = choice[g * size + i];
            if (value > first) {
                second = first;
                first = value;
            } else if (value > second) {
                second = value;
            }
        }
        group_score[g] = first + second;
    }
    clb_topk(group_score, params->n_group, params->topk_group, kept);
    int32_t next = 0;
    for (int32_t g = 0; g < params->n_group; g++) {
        if (next < params->topk_group && kept[next] == g) {
            next++;
            continue;
        }
        for (int32_t i = 0; i < size; i++)
            choice[g * size + i] = -INFINITY;
    }
}

void clb_route_sigmoid(const clb_route_params *params, const float *logits, const float *bias, int32_t *ids,
                       float *weights, float *scratch)
{
    float *score = scratch, *choice = score + params->n_experts, *group_score = choice + params->n_experts;
    for (int32_t e = 0; e < params->n_experts; e++) {
        score[e] = 1.0f / (1.0f + expf(-logits[e]));
        choice[e] = score[e] + bias[e];
    }
    if (params->n_group > 1)
        limit_groups(params, choice, group_score, (int32_t *)(void *)(group_score + params->n_group));
    clb_topk(choice, params->n_experts, params->top_k, ids);
    float sum = 0;
    for (int32_t i = 0; i < params->top_k; i++)
        sum += score[ids[i]];
    for (int32_t i = 0; i < params->top_k; i++)
        weights[i] = (params->norm_topk ? score[ids[i]] / (sum + NORM_EPS) : score[ids[i]]) * params->scale;
}
