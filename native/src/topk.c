/* topk.c - see topk.h.
 *
 * Selection by radix: scores map to integers of the same order, three counting passes over 11, 11 and
 * 10 bits find the k-th largest integer, one last pass collects. Unlike a heap or quickselect the cost
 * does not depend on the data, and nothing is moved or allocated. */
#include "topk.h"

#include <string.h>

/* From here on counting beats looking for the maximum k times. */
#define SMALL_WORK 16384

/* Larger float <=> larger integer; NaN = 0. */
static uint32_t order_of(float score)
{
    if (score != score)
        return 0;
    score += 0.0f; /* -0.0 becomes 0.0 */
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Key of the k-th largest, and how many of its equals belong to the k. */
static uint32_t threshold(const float *scores, int32_t n, int32_t k, int32_t *equals)
{
    static const int shifts[] = {21, 10, 0}, widths[] = {11, 11, 10};
    uint32_t prefix = 0, prefix_mask = 0;
    int32_t wanted = k;
    for (int pass = 0; pass < 3; pass++) {
        int32_t counts[2048] = {0};
        uint32_t digits = (1u << widths[pass]) - 1;
        for (int32_t i = 0; i < n; i++) {
            uint32_t key = order_of(scores[i]);
            if ((key & prefix_mask) == prefix)
                counts[key >> shifts[pass] & digits]++;
        }
        uint32_t digit = digits;
        while (counts[digit] < wanted)
            wanted -= counts[digit--];
        prefix |= digit << shifts[pass];
        prefix_mask |= digits << shifts[pass];
    }
    *equals = wanted;
    return prefix;
}

/* k-th largest by looking for the maximum k times; for the few hundred scores of a router. */
static uint32_t threshold_small(const float *scores, int32_t n, int32_t k, int32_t *equals)
{
    uint64_t above = UINT64_C(1) << 32;
    int32_t left = k;
    for (;;) {
        uint32_t best = 0;
        int32_t count = 0;
        for (int32_t i = 0; i < n; i++) {
            uint32_t key = order_of(scores[i]);
            if (key >= above)
                continue;
            if (key > best) {
                best = key;
                count = 1;
            } else if (key == best) {
                count++;
            }
        }
        if (count >= left) {
            *equals = left;
            return best;
        }
        left -= count;
        above = best;
    }
}

void clb_topk(const float *scores, int32_t n, int32_t k, int32_t *out)
{
    if (k <= 0)
        return;
    int32_t equals;
    uint32_t limit = (int64_t)n * k <= SMALL_WORK ? threshold_small(scores, n, k, &equals)
                                                  : threshold(scores, n, k, &equals);
    int32_t m = 0;
    for (int32_t i = 0; i < n && m < k; i++) {
        uint32_t key = order_of(scores[i]);
        if (key > limit || (key == limit && equals-- > 0))
            out[m++] = i;
    }
}
