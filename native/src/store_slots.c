/* store_slots.c - which slot of the expert cache the next expert takes; see store.h and policy.h. */
#include "store_internal.h"

void clb_store_give_up(clb_store *store, clb_store_item *item)
{
    if (item->guessed) {
        item->guessed = 0;
        store->n_unused--;
        atomic_fetch_add_explicit(&store->wasted_bytes, clb_item_bytes(item), memory_order_relaxed);
    }
    item->state = ITEM_ABSENT;
    item->slot = -1;
    item->expert.gate.data = item->expert.up.data = item->expert.down.data = NULL;
}

/* Slot of the expert of this class that the request needs last, behind place `order`; -1 = none. Keeps a
 * cache of very few slots from being filled by experts whose turn comes later. */
static int32_t latest_wanted(const clb_store *store, int32_t class_index, int32_t order)
{
    for (int32_t i = store->n_wanted - 1; i > order; i--) {
        const clb_store_item *item = &store->items[store->wanted[i]];
        if (item->class_index == class_index && item->wanted && item->state == ITEM_READY &&
            item->leases == 0)
            return item->slot;
    }
    return -1;
}

int32_t clb_store_take_slot(clb_store *store, int32_t class_index, int32_t order)
{
    clb_store_class *class = &store->classes[class_index];
    int guess = order < 0;
    if (class->n_used < class->n_slots)
        return class->n_used++;
    int32_t best = -1, unused = -1;
    for (int32_t s = 0; s < class->n_slots; s++) {
        if (class->owner[s] < 0)
            return s;
        const clb_store_item *item = &store->items[class->owner[s]];
        if (item->state != ITEM_READY || item->leases > 0 || item->wanted)
            continue;
        /* A guess is kept until the request that it was made for. */
        if (item->guessed && item->request == store->n_requests)
            unused = s;
        else if (best < 0 ||
                 clb_heat_compare(item->heat, class->owner[s], store->items[class->owner[best]].heat,
                                  class->owner[best], store->step) < 0)
            best = s;
    }
    if (best < 0 && !guess)
        best = unused >= 0 ? unused : latest_wanted(store, class_index, order);
    if (best < 0)
        return -1;
    clb_store_item *item = &store->items[class->owner[best]];
    /* What a prompt is sure to ask for would take the same slot a moment later. */
    if (guess && store->guess_kind == CLB_GUESS_MAYBE &&
        clb_heat_at(item->heat, store->step) >= CLB_HEAT_COLD)
        return -1;
    clb_store_give_up(store, item);
    class->owner[best] = -1;
    return best;
}
