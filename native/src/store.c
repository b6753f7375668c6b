/* store.c - see store.h: all experts resident. */
#include "store.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int32_t clb_store_open(clb_store *store, int32_t n_layers, int32_t n_experts, const clb_error *error)
{
    memset(store, 0, sizeof *store);
    store->experts = calloc((size_t)n_layers * (size_t)n_experts + 1, sizeof *store->experts);
    if (store->experts == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the list of %" PRId32 " x %" PRId32 " experts",
                        n_layers, n_experts);
    store->n_layers = n_layers;
    store->n_experts = n_experts;
    return COLIBRI_OK;
}

clb_expert *clb_store_slot(clb_store *store, int32_t layer, int32_t expert)
{
    return &store->experts[(int64_t)layer * store->n_experts + expert];
}

const clb_expert *clb_store_acquire(clb_store *store, int32_t layer, int32_t expert, const clb_error *error)
{
    (void)error; /* a resident expert cannot fail to arrive */
    atomic_fetch_add_explicit(&store->lookups, 1, memory_order_relaxed);
    store->leases++;
    return clb_store_slot(store, layer, expert);
}

void clb_store_release(clb_store *store, const clb_expert *expert)
{
    (void)expert;
    assert(store->leases > 0);
    store->leases--;
}

void clb_store_prefetch(clb_store *store, int32_t layer, const int32_t *experts, int32_t n)
{
    (void)store;
    (void)layer;
    (void)experts;
    (void)n; /* nothing to fetch: every expert is resident */
}

void clb_store_close(clb_store *store)
{
    assert(store->leases == 0);
    free(store->experts);
    memset(store, 0, sizeof *store);
}
