/* scratch.c - see scratch.h. */
#include "scratch.h"

#include <string.h>

#include "os.h"

void *clb_scratch_get(clb_scratch *scratch, size_t bytes)
{
    bytes = (bytes + 63) & ~(size_t)63;
    int last = scratch->n_blocks - 1;
    if (last < 0 || scratch->sizes[last] - scratch->used < bytes) {
        if (scratch->n_blocks == CLB_SCRATCH_BLOCKS)
            return NULL;
        size_t size = bytes > CLB_SCRATCH_MIN ? bytes : CLB_SCRATCH_MIN;
        if (size < scratch->total)
            size = scratch->total;
        uint8_t *block = clb_os_alloc(size);
        if (block == NULL)
            return NULL;
        last = scratch->n_blocks++;
        scratch->blocks[last] = block;
        scratch->sizes[last] = size;
        scratch->total += size;
        scratch->used = 0;
    }
    void *out = scratch->blocks[last] + scratch->used;
    scratch->used += bytes;
    return out;
}

void clb_scratch_reset(clb_scratch *scratch)
{
    if (scratch->n_blocks > 1) {
        size_t total = scratch->total;
        clb_scratch_free(scratch);
        uint8_t *block = clb_os_alloc(total);
        if (block != NULL) {
            scratch->blocks[0] = block;
            scratch->sizes[0] = total;
            scratch->n_blocks = 1;
            scratch->total = total;
        }
    }
    scratch->used = 0;
}

void clb_scratch_free(clb_scratch *scratch)
{
    for (int i = 0; i < scratch->n_blocks; i++)
        clb_os_free(scratch->blocks[i], scratch->sizes[i]);
    memset(scratch, 0, sizeof *scratch);
}
