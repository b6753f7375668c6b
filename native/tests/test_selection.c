/* test_selection.c - top-k and the sigmoid router against sorting everything, ties included. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "route.h"
#include "test.h"
#include "topk.h"

static uint64_t seed = 0x2545f4914f6cdd1du;

static const float *sorted_scores;

/* Larger first, NaN last, equal by index. */
static int by_rank(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    float x = sorted_scores[i], y = sorted_scores[j];
    if (isnan(x) || isnan(y)) {
        if (isnan(x) && isnan(y))
            return i - j;
        return isnan(x) ? 1 : -1;
    }
    return x > y ? -1 : x < y ? 1 : i - j;
}

static int ascending(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

static void sort_topk(const float *scores, int32_t n, int32_t k, int32_t *out)
{
    int32_t *all = malloc((size_t)n * sizeof *all);
    if (!all)
        abort();
    for (int32_t i = 0; i < n; i++)
        all[i] = i;
    sorted_scores = scores;
    qsort(all, (size_t)n, sizeof *all, by_rank);
    qsort(all, (size_t)k, sizeof *all, ascending);
    memcpy(out, all, (size_t)k * sizeof *out);
    free(all);
}

enum { SMOOTH, TIES, MOSTLY_ZERO, EQUAL, SPECIAL, KINDS };

static float make_score(int kind)
{
    static const float special[] = {0.0f,   -0.0f,   NAN,     INFINITY, -INFINITY,
                                    1e-45f, -1e-45f, 3.4e38f, -3.4e38f, 1.0f};
    switch (kind) {
    case SMOOTH:
        return test_uniform(&seed);
    case TIES:
        return (float)(int)(test_uniform(&seed) * 5);
    case MOSTLY_ZERO:
        return test_random(&seed) % 8 ? 0.0f : test_uniform(&seed);
    case EQUAL:
        return 0.25f;
    default:
        return special[test_random(&seed) % 10];
    }
}

static void topk_equals_sorting(int32_t n, int32_t k, int kind)
{
    float *scores = calloc((size_t)n + 1, sizeof *scores);
    int32_t *got = calloc((size_t)k + 1, sizeof *got), *expected = calloc((size_t)k + 1, sizeof *expected);
    if (!scores || !got || !expected)
        abort();
    for (int32_t i = 0; i < n; i++)
        scores[i] = make_score(kind);
    got[k] = -7;
    clb_topk(scores, n, k, got);
    sort_topk(scores, n, k, expected);
    CHECK_MSG(memcmp(got, expected, (size_t)k * sizeof *got) == 0, "topk n %d k %d kind %d", n, k, kind);
    CHECK_MSG(got[k] == -7, "topk n %d k %d kind %d wrote past its end", n, k, kind);
    free(scores), free(got), free(expected);
}

static void test_topk(void)
{
    static const int32_t sizes[][2] = {{1, 1},       {1, 0},       {2, 1},     {7, 3},     {256, 8},
                                       {256, 1},     {256, 255},   {256, 256}, {500, 33},  {2048, 2048},
                                       {2049, 2048}, {5000, 2048}, {3000, 5},  {20000, 1}, {70000, 2048}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int kind = 0; kind < KINDS; kind++)
            topk_equals_sorting(sizes[s][0], sizes[s][1], kind);
    for (int i = 0; i < 300; i++) {
        int32_t n = 1 + (int32_t)(test_random(&seed) % 700);
        topk_equals_sorting(n, (int32_t)(test_random(&seed) % (uint64_t)(n + 1)), i % KINDS);
    }
}

/* The rule of the model's specification, written down with sorting. */
static void sort_route(const clb_route_params *p, const float *logits, const float *bias, int32_t *ids,
                       float *weights)
{
    int32_t n = p->n_experts, size = n / p->n_group;
    float *choice = malloc((size_t)n * sizeof *choice), *group = malloc((size_t)p->n_group * sizeof *group);
    int32_t *kept = malloc((size_t)p->n_group * sizeof *kept);
    if (!choice || !group || !kept)
        abort();
    for (int32_t e = 0; e < n; e++)
        choice[e] = 1.0f / (1.0f + expf(-logits[e])) + bias[e];
    if (p->n_group > 1) {
        for (int32_t g = 0; g < p->n_group; g++) {
            int32_t top[2];
            sort_topk(choice + g * size, size, 2, top);
            group[g] = choice[g * size + top[0]] + choice[g * size + top[1]];
        }
        sort_topk(group, p->n_group, p->topk_group, kept);
        for (int32_t e = 0; e < n; e++) {
            int keep = 0;
            for (int32_t i = 0; i < p->topk_group; i++)
                keep |= kept[i] == e / size;
            if (!keep)
                choice[e] = -INFINITY;
        }
    }
    sort_topk(choice, n, p->top_k, ids);
    double sum = 0;
    for (int32_t i = 0; i < p->top_k; i++)
        sum += 1 / (1 + exp(-(double)logits[ids[i]]));
    for (int32_t i = 0; i < p->top_k; i++) {
        double s = 1 / (1 + exp(-(double)logits[ids[i]]));
        weights[i] = (float)((p->norm_topk ? s / (sum + 1e-20) : s) * p->scale);
    }
    free(choice), free(group), free(kept);
}

static void route_equals_sorting(const clb_route_params *p, int kind)
{
    int32_t n = p->n_experts, k = p->top_k, ids[64], expected_ids[64];
    float weights[64], expected[64];
    float *logits = malloc((size_t)n * sizeof *logits), *bias = malloc((size_t)n * sizeof *bias);
    float *scratch = malloc((size_t)clb_route_scratch(p) * sizeof *scratch);
    if (!logits || !bias || !scratch)
        abort();
    for (int32_t e = 0; e < n; e++) {
        logits[e] = make_score(kind) * 3;
        bias[e] = kind == SMOOTH ? test_uniform(&seed) * 0.1f : 0.5f;
    }
    clb_route_sigmoid(p, logits, bias, ids, weights, scratch);
    sort_route(p, logits, bias, expected_ids, expected);
    CHECK_MSG(memcmp(ids, expected_ids, (size_t)k * sizeof *ids) == 0,
              "route n %d k %d groups %d kind %d: experts", n, k, p->n_group, kind);
    float worst = 0, total = 0;
    for (int32_t i = 0; i < k; i++) {
        worst = fmaxf(worst, fabsf(weights[i] - expected[i]));
        total += weights[i];
    }
    CHECK_MSG(worst <= 1e-6f * p->scale, "route n %d k %d groups %d kind %d: weights differ by %g", n, k,
              p->n_group, kind, (double)worst);
    if (p->norm_topk)
        CHECK_MSG(fabsf(total - p->scale) < 1e-5f * p->scale, "route n %d k %d: weights sum to %g", n, k,
                  (double)total);
    free(logits), free(bias), free(scratch);
}

static void test_route(void)
{
    static const clb_route_params rules[] = {
        {256, 8, 1, 1, 1, 2.5f}, {256, 8, 8, 4, 1, 2.5f}, {64, 6, 1, 1, 0, 1.0f}, {16, 2, 4, 2, 1, 2.0f},
        {8, 8, 1, 1, 1, 1.0f},   {8, 1, 1, 1, 1, 2.5f},   {12, 3, 6, 3, 0, 0.5f}, {512, 22, 16, 3, 1, 3.0f}};
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
        for (int repeat = 0; repeat < 20; repeat++)
            for (int kind = SMOOTH; kind <= EQUAL; kind++)
                route_equals_sorting(rules + r, kind);
}

/* The bias decides who is chosen but not with what weight. */
static void test_route_bias(void)
{
    const clb_route_params p = {4, 2, 1, 1, 0, 1.0f};
    const float logits[] = {2.0f, 1.0f, 0.0f, -1.0f}, bias[] = {0.0f, 0.0f, 1.0f, 1.0f};
    int32_t ids[2];
    float weights[2], scratch[64];
    clb_route_sigmoid(&p, logits, bias, ids, weights, scratch);
    CHECK(ids[0] == 2 && ids[1] == 3);
    CHECK(fabsf(weights[0] - 0.5f) < 1e-7f && fabsf(weights[1] - 0.26894142f) < 1e-7f);
}

/* Router logits that are all NaN still name valid experts, and the weights show it. */
static void test_route_nan(void)
{
    const clb_route_params p = {16, 3, 4, 2, 1, 1.0f};
    float logits[16], bias[16] = {0}, weights[3], scratch[64];
    int32_t ids[3];
    for (int i = 0; i < 16; i++)
        logits[i] = NAN;
    clb_route_sigmoid(&p, logits, bias, ids, weights, scratch);
    for (int i = 0; i < 3; i++)
        CHECK(ids[i] >= 0 && ids[i] < 16 && isnan(weights[i]));
}

int main(void)
{
    test_topk();
    test_route();
    test_route_bias();
    test_route_nan();
    return test_report();
}
