/* sampler.c - greedy, temperature and nucleus sampling. Pure functions.
 *
 * The draw is a hash of (seed, position), not a stream: it does not depend on what else was sampled,
 * so a restarted or batched generation continues with the same text. */
#include <math.h>
#include <stdlib.h>

#include "engine.h"

/* Probabilities below exp(-BUCKET_RANGE) of the largest cannot be reached by any nucleus in double. */
#define BUCKETS 1024
#define BUCKET_RANGE 40.0

typedef struct {
    double p;
    int32_t id;
} candidate;

/* splitmix64 finaliser (Steele, Lea, Flood 2014): every input bit reaches every output bit. */
static uint64_t mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double uniform(uint64_t seed, int32_t position)
{
    return (double)(mix(mix(seed) ^ (uint64_t)(uint32_t)position) >> 11) * 0x1p-53;
}

static int allowed(const uint32_t *mask, int32_t id)
{
    return mask == NULL || (mask[id / 32] >> (id % 32) & 1u);
}

static int compare(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->p != y->p)
        return x->p > y->p ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int32_t argmax(const float *logits, int32_t n, const uint32_t *mask)
{
    int32_t best = -1;
    float top = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        if (allowed(mask, i) && logits[i] > top) {
            best = i;
            top = logits[i];
        }
    /* Nothing but NaN and -infinity. */
    for (int32_t i = 0; i < n && best < 0; i++)
        if (allowed(mask, i))
            best = i;
    return best;
}

int32_t clb_sample(const float *logits, int32_t vocab, int32_t vocab_used, const colibri_sampling *sampling,
                   int32_t position)
{
    int32_t n = vocab_used < vocab ? vocab_used : vocab;
    const uint32_t *mask = sampling->mask;
    int32_t best = argmax(logits, n, mask);
    if (best < 0)
        return CLB_SAMPLE_MASKED;
    if (!isfinite(logits[best]))
        return CLB_SAMPLE_NOT_FINITE;
    if (sampling->temperature == 0)
        return best;
    double scale = 1.0 / (double)sampling->temperature, top = (double)logits[best];

    /* One pass finds how much probability lies in each band of logits, so that only the bands that the
     * nucleus reaches need sorting. */
    double band[BUCKETS] = {0}, total = 0;
    for (int32_t i = 0; i < n; i++) {
        double depth = (top - (double)logits[i]) * scale;
        if (!allowed(mask, i) || !(depth < BUCKET_RANGE))
            continue;
        double p = exp(-depth);
        band[(int)(depth * (BUCKETS / BUCKET_RANGE))] += p;
        total += p;
    }
    double goal = (double)sampling->top_p * total, reached = 0;
    int last = 0;
    for (; last < BUCKETS - 1; last++) {
        reached += band[last];
        if (reached >= goal)
            break;
    }
    if (sampling->top_p >= 1)
        last = BUCKETS - 1;

    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        double depth = (top - (double)logits[i]) * scale;
        if (allowed(mask, i) && depth < BUCKET_RANGE && (int)(depth * (BUCKETS / BUCKET_RANGE)) <= last)
            count++;
    }
    candidate *list = malloc((size_t)count * sizeof *list);
    if (list == NULL)
        return best; /* out of memory in mid-answer: the likeliest token is the least bad answer */
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++) {
        double depth = (top - (double)logits[i]) * scale;
        if (allowed(mask, i) && depth < BUCKET_RANGE && (int)(depth * (BUCKETS / BUCKET_RANGE)) <= last)
            list[m++] = (candidate){exp(-depth), i};
    }
    double kept = total;
    if (sampling->top_p < 1) {
        qsort(list, (size_t)m, sizeof *list, compare);
        kept = 0;
        int32_t k = 0;
        while (k < m && kept < goal)
            kept += list[k++].p;
        m = k;
    }
    double at = uniform(sampling->seed, position) * kept;
    int32_t pick = list[m - 1].id;
    for (int32_t i = 0; i < m; i++) {
        at -= list[i].p;
        if (at < 0) {
            pick = list[i].id;
            break;
        }
    }
    free(list);
    return pick;
}
