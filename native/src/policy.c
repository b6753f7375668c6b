/* policy.c - see policy.h. */
#include "policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Half-lives in steps; the last scale is the mean over everything. */
static const float half_lives[CLB_SCALES - 1] = {1, 4, 16, 64, 512};
/* The long scales: what pins are made of. */
#define FIRST_LONG (CLB_SCALES - 2)
/* Before anything is learnt all scales count, the long ones most. */
static const float first_weights[CLB_FEATURES] = {0.05f, 0.1f, 0.15f, 0.2f, 0.2f, 0.3f, 0};
/* Steps that the mean over everything starts with: little without a past, and never so much that a past
 * outweighs what is seen now for long. */
#define LEAST_PRIOR 2.0f
#define MOST_PRIOR 1024.0f
/* Experts learnt from per step, at most about this many. */
#define SAMPLE 2048
#define FIT_STEPS 8
#define FIT_ROUNDS 60
/* Steps after which an observation counts half. */
#define OBSERVATION_HALF_LIFE 1024.0
/* Steps without a request that pass one by one; the fit, with nothing to learn from, has settled then. */
#define MOST_IDLE (8 * FIT_STEPS)
/* Pull towards the first weights, in units of squared features: gone after a few hundred experts' uses. */
#define RIDGE 0.5
#define LEAST_CHANCE 1e-5f
/* Hysteresis of pins, in units of the chance of what is given up. */
#define PIN_FROM 4.0f
#define PIN_UNTIL 2.0f
#define GIVEN_UP_RATE 0.02f
#define MOST_POOL 24

int64_t clb_policy_bytes(int32_t n_layers, int32_t n_experts)
{
    int64_t n = (int64_t)n_layers * n_experts;
    return n * (int64_t)(sizeof(clb_heat) + 1) + n_experts +
           n_layers * (int64_t)(sizeof(int64_t) + sizeof(clb_policy_top));
}

int clb_policy_open(clb_policy *policy, int32_t n_layers, int32_t n_experts)
{
    memset(policy, 0, sizeof *policy);
    size_t n = (size_t)n_layers * (size_t)n_experts;
    policy->n_layers = n_layers;
    policy->n_experts = n_experts;
    policy->heat = calloc(n + 1, sizeof *policy->heat);
    policy->pinned = calloc(n + 1, 1);
    policy->used = calloc((size_t)n_experts + 1, 1);
    policy->due = calloc((size_t)n_layers + 1, sizeof *policy->due);
    policy->tops = malloc(((size_t)n_layers + 1) * sizeof *policy->tops);
    if (!policy->heat || !policy->pinned || !policy->used || !policy->due || !policy->tops)
        return 0;
    for (int32_t l = 0; l < n_layers; l++) {
        policy->tops[l].class = -1;
        policy->due[l] = l;
    }
    for (size_t i = 0; i < n; i++)
        policy->heat[i].chance = LEAST_CHANCE;
    policy->scan_layer = -1;
    policy->stride = (int32_t)((n + SAMPLE - 1) / SAMPLE);
    if (policy->stride < 1)
        policy->stride = 1;
    memcpy(policy->weight, first_weights, sizeof first_weights);
    for (int i = 0; i < CLB_SCALES - 1; i++)
        for (int age = 0; age < CLB_POLICY_AGES; age++)
            policy->left[i][age] = exp2f((float)-age / half_lives[i]);
    policy->prior = LEAST_PRIOR;
    policy->until_fit = FIT_STEPS;
    return 1;
}

void clb_policy_close(clb_policy *policy)
{
    free(policy->heat);
    free(policy->pinned);
    free(policy->used);
    free(policy->due);
    free(policy->tops);
    memset(policy, 0, sizeof *policy);
}

/* ---- forecast ------------------------------------------------------------------------------ */

static void features(const clb_policy *policy, const clb_heat *heat, float out[CLB_FEATURES])
{
    uint32_t age = policy->step - heat->when;
    for (int i = 0; i < CLB_SCALES - 1; i++)
        out[i] = heat->use[i] *
                 (age < CLB_POLICY_AGES ? policy->left[i][age] : exp2f(-(float)age / half_lives[i]));
    out[CLB_SCALES - 1] = heat->use[CLB_SCALES - 1] * ((float)heat->when + policy->prior) /
                          ((float)policy->step + policy->prior);
    out[CLB_SCALES] = 1;
}

static float forecast(const clb_policy *policy, const float x[CLB_FEATURES])
{
    float sum = 0;
    for (int i = 0; i < CLB_FEATURES; i++)
        sum += policy->weight[i] * x[i];
    return sum < LEAST_CHANCE ? LEAST_CHANCE : sum > 1 ? 1 : sum;
}

static void count_use(const clb_policy *policy, clb_heat *heat, float x[CLB_FEATURES])
{
    for (int i = 0; i < CLB_SCALES - 1; i++)
        x[i] += 1 - policy->left[i][1];
    x[CLB_SCALES - 1] += 1 / ((float)policy->step + policy->prior);
    memcpy(heat->use, x, sizeof heat->use);
    heat->when = policy->step;
}

/* ---- learning ------------------------------------------------------------------------------ */

static void observe(clb_policy *policy, const float x[CLB_FEATURES], int used)
{
    for (int i = 0; i < CLB_FEATURES; i++) {
        for (int j = 0; j <= i; j++)
            policy->gram[i][j] += (double)x[i] * (double)x[j];
        if (used)
            policy->moment[i] += (double)x[i];
    }
}

/* What was seen counts less after so many steps. */
static void forget(clb_policy *policy, double steps)
{
    double left = exp2(-steps / OBSERVATION_HALF_LIFE);
    for (int i = 0; i < CLB_FEATURES; i++) {
        for (int j = 0; j <= i; j++)
            policy->gram[i][j] *= left;
        policy->moment[i] *= left;
    }
}

/* Coordinate descent; scales count positively, the constant freely. */
static void fit(clb_policy *policy)
{
    double w[CLB_FEATURES];
    for (int i = 0; i < CLB_FEATURES; i++)
        w[i] = (double)policy->weight[i];
    for (int round = 0; round < FIT_ROUNDS; round++)
        for (int i = CLB_FEATURES - 1; i >= 0; i--) {
            double rest = policy->moment[i], ridge = RIDGE;
            for (int j = 0; j < CLB_FEATURES; j++)
                if (j != i)
                    rest -= (i > j ? policy->gram[i][j] : policy->gram[j][i]) * w[j];
            w[i] = (rest + ridge * (double)first_weights[i]) / (policy->gram[i][i] + ridge);
            if (w[i] < 0 && i < CLB_SCALES)
                w[i] = 0;
        }
    for (int i = 0; i < CLB_FEATURES; i++)
        policy->weight[i] = (float)w[i];
    forget(policy, FIT_STEPS);
}

/* ---- events -------------------------------------------------------------------------------- */

void clb_policy_recall(clb_policy *policy, const int64_t *counts, const double *steps)
{
    double most = 0;
    for (int32_t l = 0; l < policy->n_layers; l++) {
        most = steps[l] > most ? steps[l] : most;
        for (int32_t e = 0; e < policy->n_experts; e++) {
            int64_t item = (int64_t)l * policy->n_experts + e;
            double mean = steps[l] > 0 ? (double)counts[item] / steps[l] : 0;
            clb_heat *heat = &policy->heat[item];
            for (int i = 0; i < CLB_SCALES; i++)
                heat->use[i] = mean > 1 ? 1.0f : (float)mean;
            heat->when = policy->step;
            float x[CLB_FEATURES];
            features(policy, heat, x);
            heat->chance = forecast(policy, x);
        }
        policy->tops[l].class = -1;
    }
    policy->prior =
        most<(double)LEAST_PRIOR ? LEAST_PRIOR : most>(double) MOST_PRIOR ? MOST_PRIOR : (float)most;
}

void clb_policy_tick(clb_policy *policy)
{
    policy->step++;
    policy->turn++;
    if (--policy->until_fit <= 0) {
        policy->until_fit = FIT_STEPS;
        fit(policy);
    }
}

void clb_policy_pass(clb_policy *policy, int64_t steps)
{
    if (steps > MOST_IDLE) {
        int64_t rest = steps - MOST_IDLE;
        policy->step += (uint32_t)rest;
        policy->turn += rest;
        forget(policy, (double)rest);
        steps = MOST_IDLE;
    }
    for (; steps > 0; steps--)
        clb_policy_tick(policy);
}

int clb_policy_is_scan(int32_t n_experts, int32_t n, int32_t rows)
{
    return rows > CLB_POLICY_STEP_ROWS || (rows > 1 && n > n_experts / 2);
}

static void renew_pin(const clb_policy *policy, uint8_t *pinned, const float x[CLB_FEATURES])
{
    float lasting = policy->weight[CLB_SCALES];
    for (int i = FIRST_LONG; i < CLB_SCALES; i++)
        lasting += policy->weight[i] * x[i];
    *pinned = policy->given_up > 0 && lasting >= (*pinned ? PIN_UNTIL : PIN_FROM) * policy->given_up;
}

void clb_policy_use(clb_policy *policy, int32_t layer, const int32_t *experts, int32_t n, int32_t rows)
{
    int64_t first = (int64_t)layer * policy->n_experts;
    int scan = clb_policy_is_scan(policy->n_experts, n, rows);
    policy->tops[layer].class = -1;
    if (scan) {
        policy->turn += layer < policy->scan_layer;
        policy->scan_layer = layer;
    }
    policy->due[layer] = (policy->turn + 1) * policy->n_layers + layer;
    if (scan)
        return;
    int learn = (layer + (int32_t)(policy->step % (uint32_t)policy->stride)) % policy->stride == 0;
    for (int32_t i = 0; i < n; i++)
        policy->used[experts[i]] = 1;
    for (int32_t e = 0; e < policy->n_experts; e++) {
        clb_heat *heat = &policy->heat[first + e];
        float x[CLB_FEATURES];
        features(policy, heat, x);
        if (learn)
            observe(policy, x, policy->used[e]);
        if (policy->used[e])
            count_use(policy, heat, x);
        heat->chance = forecast(policy, x);
        renew_pin(policy, &policy->pinned[first + e], x);
    }
    for (int32_t i = 0; i < n; i++)
        policy->used[experts[i]] = 0;
}

void clb_policy_changed(clb_policy *policy, int32_t layer)
{
    policy->tops[layer].class = -1;
}

/* ---- giving up ----------------------------------------------------------------------------- */

/* Whether a goes before b, both of one layer. */
static int goes_before(const clb_policy *policy, int32_t a, int32_t b)
{
    const clb_heat *x = &policy->heat[a], *y = &policy->heat[b];
    if (policy->pinned[a] != policy->pinned[b])
        return policy->pinned[b];
    return x->chance != y->chance ? x->chance < y->chance : x->when < y->when;
}

static int32_t layer_victim(const clb_policy *policy, int32_t layer, int32_t class, clb_policy_may_go may_go,
                            const void *context)
{
    int32_t first = layer * policy->n_experts, best = -1;
    for (int32_t item = first; item < first + policy->n_experts; item++)
        if ((best < 0 || goes_before(policy, item, best)) && may_go(context, item, class))
            best = item;
    return best;
}

int32_t clb_policy_victim(clb_policy *policy, int32_t class, clb_policy_may_go may_go, const void *context)
{
    int32_t best = -1;
    double latest = 0;
    for (int32_t l = 0; l < policy->n_layers; l++) {
        clb_policy_top *top = &policy->tops[l];
        if (top->class != class || (top->item >= 0 && !may_go(context, top->item, class)))
            *top = (clb_policy_top){layer_victim(policy, l, class, may_go, context), class};
        if (top->item < 0)
            continue;
        /* When its next use is expected, in layers: its layer's turn, then the mean of further turns. */
        double next =
            (double)policy->due[l] + (double)policy->n_layers / (double)policy->heat[top->item].chance;
        int free = !policy->pinned[top->item];
        if (best < 0 || free > !policy->pinned[best] || (free == !policy->pinned[best] && next > latest)) {
            best = top->item;
            latest = next;
        }
    }
    if (best >= 0) {
        float chance = policy->heat[best].chance;
        policy->given_up += (chance - policy->given_up) * (policy->given_up > 0 ? GIVEN_UP_RATE : 1);
    }
    return best;
}

int32_t clb_policy_pool(int32_t slots)
{
    int32_t pool = slots / 8;
    return slots < 4 ? 0 : pool < 1 ? 1 : pool > MOST_POOL ? MOST_POOL : pool;
}
