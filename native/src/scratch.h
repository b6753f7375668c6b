/* scratch.h - bump allocator for the temporaries of one layer.
 *
 * Memory comes in blocks and is kept from layer to layer: after the first step nothing is allocated
 * any more. clb_scratch_reset joins what was needed into one block. One thread. */
#ifndef CLB_SCRATCH_H
#define CLB_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

#define CLB_SCRATCH_BLOCKS 16
/* The least that is allocated at a time. */
#define CLB_SCRATCH_MIN ((size_t)256 << 10)

typedef struct {
    uint8_t *blocks[CLB_SCRATCH_BLOCKS];
    size_t sizes[CLB_SCRATCH_BLOCKS];
    int n_blocks;
    size_t used; /* of the last block */
    size_t total;
} clb_scratch;

/* 64-byte aligned, not cleared; NULL when out of memory. Valid until the next reset. */
void *clb_scratch_get(clb_scratch *scratch, size_t bytes);
void clb_scratch_reset(clb_scratch *scratch);
void clb_scratch_free(clb_scratch *scratch);

#endif
