/* store.h - where routed experts are: the lease contract between graph and memory hierarchy.
 *
 * - clb_store_acquire returns a view of one expert that stays valid until it is released exactly once.
 * - clb_store_prefetch is advisory: it may do nothing, and it never evicts a leased expert.
 * - Closing the store needs zero leases.
 * The graph never asks where an expert lies. Today every expert is resident, so acquiring never
 * waits; a streaming store replaces the inside of store.c only.
 * Calling thread of the engine only; the views may be read by any worker.
 */
#ifndef CLB_STORE_H
#define CLB_STORE_H

#include <stdatomic.h>

#include "error.h"
#include "weight.h"

typedef struct {
    clb_weight gate; /* [expert_ffn, hidden] */
    clb_weight up;   /* [expert_ffn, hidden] */
    clb_weight down; /* [hidden, expert_ffn] */
} clb_expert;

typedef struct {
    clb_expert *experts; /* [n_layers][n_experts] */
    int32_t n_layers;    /* layers with routed experts only */
    int32_t n_experts;
    int64_t leases; /* not yet released */
    _Atomic int64_t lookups;
    _Atomic int64_t misses;
    _Atomic int64_t bytes_read;
} clb_store;

/* layer counts the sparse layers from 0. */
int32_t clb_store_open(clb_store *store, int32_t n_layers, int32_t n_experts, const clb_error *error);
/* The expert's descriptors, for binding weights while the engine opens. */
clb_expert *clb_store_slot(clb_store *store, int32_t layer, int32_t expert);
const clb_expert *clb_store_acquire(clb_store *store, int32_t layer, int32_t expert, const clb_error *error);
void clb_store_release(clb_store *store, const clb_expert *expert);
void clb_store_prefetch(clb_store *store, int32_t layer, const int32_t *experts, int32_t n);
void clb_store_close(clb_store *store);

#endif
