/* topk.h - the k largest of n scores. Pure, any thread, no allocation. */
#ifndef CLB_TOPK_H
#define CLB_TOPK_H

#include <stdint.h>

/* Writes the indices of the k largest scores, ascending by index. Equal scores: the lowest index wins
 * (0.0 and -0.0 are equal). NaN ranks below everything. 0 <= k <= n. O(n), n up to 2^31-1. */
void clb_topk(const float *scores, int32_t n, int32_t k, int32_t *out);

#endif
