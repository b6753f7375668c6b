/* store_slots.c - which slot of the expert cache the next expert takes; see store.h and policy.h. */
#include "store_internal.h"

void clb_store_init_slots(clb_store_class *class, int prefetch)
{
    class->n_used = class->n_guessed = 0;
    class->pool = prefetch ? clb_policy_pool(class->n_slots) : 0;
    for (int32_t s = 0; s < class->n_slots; s++) {
        class->owner[s] = -1;
        class->vacant[class->n_slots - 1 - s] = s;
    }
}

void clb_store_set_guessed(clb_store *store, int32_t number, int guessed)
{
    clb_store_item *item = &store->items[number];
    if (guessed) {
        store->unused[store->n_unused++] = number;
        item->guessed = store->n_unused;
    } else {
        int32_t last = store->unused[--store->n_unused];
        store->unused[item->guessed - 1] = last;
        store->items[last].guessed = item->guessed;
        item->guessed = 0;
    }
    store->classes[item->class_index].n_guessed += guessed ? 1 : -1;
}

void clb_store_give_up(clb_store *store, int32_t number)
{
    clb_store_item *item = &store->items[number];
    clb_store_class *class = &store->classes[item->class_index];
    if (item->guessed) {
        clb_store_set_guessed(store, number, 0);
        atomic_fetch_add_explicit(&store->wasted_bytes, clb_item_bytes(item), memory_order_relaxed);
    }
    class->owner[item->slot] = -1;
    class->n_used--;
    class->vacant[class->n_slots - class->n_used - 1] = item->slot;
    atomic_fetch_sub_explicit(&store->n_cached, 1, memory_order_relaxed);
    clb_item_set_state(item, ITEM_ABSENT);
    item->slot = -1;
    item->expert.gate.data = item->expert.up.data = item->expert.down.data = NULL;
    clb_policy_changed(&store->policy, number / store->n_experts);
}

/* ---- what may go --------------------------------------------------------------------------- */

static int is_evictable(const clb_store *store, int32_t number, int32_t class_index)
{
    const clb_store_item *item = &store->items[number];
    return item->state == ITEM_READY && item->leases == 0 && !item->wanted &&
           item->class_index == class_index;
}

static int may_go(const void *context, int32_t number, int32_t class_index)
{
    const clb_store *store = context;
    return !store->items[number].guessed && is_evictable(store, number, class_index);
}

/* Whether a guess may still come true: its request has not come, or the prompt goes on that will ask for
 * it. */
static int is_open(const clb_store *store, const clb_store_item *item)
{
    return item->request == store->n_requests || item->scan == store->scan;
}

/* A guess whose request has come without asking for it, the one most probably never asked for; -1 = none.
 * Guesses are few. With `any`, also one that may still come true. */
static int32_t wrong_guess(const clb_store *store, int32_t class_index, int any)
{
    int32_t best = -1;
    for (int32_t i = 0; i < store->n_unused; i++) {
        int32_t number = store->unused[i];
        if (!is_evictable(store, number, class_index) || (!any && is_open(store, &store->items[number])))
            continue;
        if (best < 0 || store->policy.heat[number].chance < store->policy.heat[best].chance)
            best = number;
    }
    return best;
}

/* The expert of this class that the request needs last, behind place `order`; -1 = none. Keeps a
 * cache of very few slots from being filled by experts whose turn comes later. */
static int32_t latest_wanted(const clb_store *store, int32_t class_index, int32_t order)
{
    for (int32_t i = store->n_wanted - 1; i > order; i--) {
        const clb_store_item *item = &store->items[store->wanted[i]];
        if (item->class_index == class_index && item->wanted && item->state == ITEM_READY &&
            item->leases == 0)
            return store->wanted[i];
    }
    return -1;
}

/* The expert whose place a guess may take, -1 = none. */
static int32_t for_guess(clb_store *store, int32_t class_index)
{
    const clb_store_class *class = &store->classes[class_index];
    int32_t wrong = wrong_guess(store, class_index, 0);
    if (wrong >= 0)
        return wrong;
    int sure = store->guess_kind == CLB_GUESS_SURE;
    /* With all slots taken and guesses in fewer than their pool, what was asked for has gained slots by
     * guesses that came true, and owes them. */
    if (!sure && class->n_guessed >= class->pool)
        return -1;
    int32_t victim = clb_policy_victim(&store->policy, class_index, may_go, store);
    /* What a prompt is sure to ask for would take the same slot a moment later. */
    if (sure || victim < 0)
        return victim;
    return store->policy.heat[victim].chance < CLB_POLICY_COLD ? victim : -1;
}

static int32_t for_request(clb_store *store, int32_t class_index, int32_t order)
{
    int32_t victim = clb_policy_victim(&store->policy, class_index, may_go, store);
    if (victim < 0)
        victim = wrong_guess(store, class_index, 1);
    return victim >= 0 ? victim : latest_wanted(store, class_index, order);
}

int32_t clb_store_take_slot(clb_store *store, int32_t number, int32_t order)
{
    clb_store_item *item = &store->items[number];
    clb_store_class *class = &store->classes[item->class_index];
    int free = class->n_used < class->n_slots, guess = order == CLB_ORDER_GUESS;
    /* The pool's slots are left to guesses as long as something else can go. */
    int own = class->n_used - class->n_guessed < class->n_slots - class->pool;
    if (order == CLB_ORDER_WARM && !(free && own))
        return -1;
    if (!free || !(own || guess)) {
        int32_t victim =
            guess ? for_guess(store, item->class_index) : for_request(store, item->class_index, order);
        if (victim >= 0)
            clb_store_give_up(store, victim);
        else if (!free)
            return -1;
    }
    int32_t slot = class->vacant[class->n_slots - class->n_used - 1];
    class->n_used++;
    class->owner[slot] = number;
    atomic_fetch_add_explicit(&store->n_cached, 1, memory_order_relaxed);
    item->slot = slot;
    item->scan = guess && store->guess_kind == CLB_GUESS_SURE ? store->scan : 0;
    if (guess)
        clb_store_set_guessed(store, number, 1);
    return slot;
}
