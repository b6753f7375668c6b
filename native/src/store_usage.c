/* store_usage.c - what a store has learnt and what it does with it while idle: use counts, warm-up, trace,
 * shrinking; see store.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "os.h"
#include "store_internal.h"

int64_t clb_store_uses(const clb_store *store, int32_t layer, int32_t expert)
{
    const clb_store_item *item = &store->items[(int64_t)layer * store->n_experts + expert];
    return (int64_t)atomic_load_explicit(&item->uses, memory_order_relaxed);
}

uint32_t clb_store_asked(const clb_store *store, int32_t layer, int32_t expert)
{
    const clb_store_item *item = &store->items[(int64_t)layer * store->n_experts + expert];
    return atomic_load_explicit(&item->asked, memory_order_relaxed);
}

int32_t clb_store_tier(const clb_store *store, int32_t layer, int32_t expert)
{
    const clb_store_item *item = &store->items[(int64_t)layer * store->n_experts + expert];
    if (!store->streaming)
        return COLIBRI_TIER_RAM;
    switch (atomic_load_explicit(&item->seen, memory_order_relaxed)) {
    case ITEM_READY:
        return COLIBRI_TIER_RAM;
    case ITEM_READING:
        return COLIBRI_TIER_READING;
    default:
        return COLIBRI_TIER_DISK;
    }
}

/* ---- warm-up ------------------------------------------------------------------------------- */

typedef struct {
    float heat;
    int32_t item;
} ranked;

static int hotter_first(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->heat != y->heat)
        return x->heat > y->heat ? -1 : 1;
    return x->item < y->item ? -1 : 1;
}

int32_t clb_store_recall(clb_store *store, const int64_t *counts, const double *steps, const clb_error *error)
{
    if (!store->streaming)
        return COLIBRI_OK;
    int64_t n = (int64_t)store->n_layers * store->n_experts;
    ranked *order = malloc((size_t)n * sizeof *order);
    int32_t *warm = store->warm != NULL ? store->warm : malloc((size_t)n * sizeof *warm);
    if (order == NULL || warm == NULL) {
        free(order);
        if (store->warm == NULL)
            free(warm);
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the use counts of %" PRId64 " experts",
                        n);
    }
    clb_policy_recall(&store->policy, counts, steps);
    store->warm = warm;
    store->n_warm = store->next_warm = 0;
    for (int32_t i = 0; i < (int32_t)n; i++)
        if (counts[i] > 0)
            order[store->n_warm++] = (ranked){store->policy.heat[i].chance, i};
    qsort(order, (size_t)store->n_warm, sizeof *order, hotter_first);
    for (int64_t i = 0; i < store->n_warm; i++)
        warm[i] = order[i].item;
    free(order);
    return COLIBRI_OK;
}

/* Starts as many reads as fit. Returns 0 once none is left to start. */
static int start_warming(clb_store *store)
{
    for (; store->next_warm < store->n_warm; store->next_warm++) {
        int32_t number = store->warm[store->next_warm];
        const clb_store_item *item = &store->items[number];
        const clb_store_class *class = &store->classes[item->class_index];
        /* Sizes fill up one by one; experts of a full one are passed over. */
        if (item->state != ITEM_ABSENT || class->n_used - class->n_guessed >= class->n_slots - class->pool)
            continue;
        if (!clb_store_start_read(store, number, CLB_ORDER_WARM))
            return 1;
    }
    return 0;
}

int clb_store_warm(clb_store *store, int32_t max_ms)
{
    if (!store->streaming || store->n_warm == 0)
        return 1;
    double stop = clb_os_seconds() + (double)max_ms * 1e-3;
    /* What an interrupted request still reads comes in here too. */
    clb_store_collect(store, 0);
    for (;;) {
        int more = !clb_store_retry(store) || start_warming(store);
        if (!more && clb_io_in_flight(store->io) == 0)
            return 1;
        if (clb_os_seconds() >= stop)
            return 0;
        clb_store_collect(store, 1);
    }
}

/* ---- shrinking ----------------------------------------------------------------------------- */

static void shrink_class(clb_store *store, clb_store_class *class, int32_t slots)
{
    int32_t fewer = class->n_slots - slots;
    for (int32_t s = slots; s < class->n_slots; s++)
        if (class->owner[s] >= 0)
            clb_store_give_up(store, class->owner[s]);
    clb_os_release(class->arena + class->bytes * slots, (size_t)(class->bytes * fewer));
    atomic_fetch_sub(&store->slot_bytes, class->bytes * fewer);
    atomic_fetch_sub(&store->n_slots, fewer);
    class->n_slots = slots;
    class->pool = store->options.prefetch ? clb_policy_pool(slots) : 0;
    int32_t n_free = 0;
    for (int32_t s = slots - 1; s >= 0; s--)
        if (class->owner[s] < 0)
            class->vacant[n_free++] = s;
}

void clb_store_shrink(clb_store *store, int64_t bytes)
{
    double share = (double)bytes / (double)atomic_load(&store->slot_bytes);
    if (!store->streaming || share >= 1)
        return;
    while (clb_io_in_flight(store->io) > 0 || store->n_retries > 0) {
        clb_store_retry(store);
        clb_store_collect(store, 1);
    }
    for (int32_t c = 0; c < store->n_classes; c++) {
        int32_t slots = (int32_t)((double)store->classes[c].n_slots * share);
        shrink_class(store, &store->classes[c], slots < 1 ? 1 : slots);
    }
}

/* ---- trace --------------------------------------------------------------------------------- */

int32_t clb_store_trace(clb_store *store, int64_t words, const clb_error *error)
{
    free(store->trace);
    store->trace = words > 0 ? calloc((size_t)words, sizeof *store->trace) : NULL;
    store->trace_room = store->trace != NULL ? words : 0;
    store->trace_begin = store->trace_words = store->trace_lost = 0;
    if (words > 0 && store->trace == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for a trace of %" PRId64 " words", words);
    return COLIBRI_OK;
}

void clb_store_record(clb_store *store, int32_t layer, const int32_t *experts, int32_t n, int32_t rows)
{
    if (store->trace_words + CLB_TRACE_HEAD + n > store->trace_room) {
        store->trace_lost++;
        return;
    }
    const int32_t head[CLB_TRACE_HEAD] = {(int32_t)store->trace_steps, layer, rows, n};
    for (int32_t i = 0; i < CLB_TRACE_HEAD + n; i++) {
        int64_t at = (store->trace_begin + store->trace_words++) % store->trace_room;
        store->trace[at] = i < CLB_TRACE_HEAD ? head[i] : experts[i - CLB_TRACE_HEAD];
    }
}

int64_t clb_store_take_record(clb_store *store, int32_t *out, int64_t room)
{
    if (store->trace_words == 0)
        return 0;
    int64_t words =
        CLB_TRACE_HEAD + store->trace[(store->trace_begin + CLB_TRACE_HEAD - 1) % store->trace_room];
    if (words > room)
        return 0;
    for (int64_t i = 0; i < words; i++)
        out[i] = store->trace[(store->trace_begin + i) % store->trace_room];
    store->trace_begin = (store->trace_begin + words) % store->trace_room;
    store->trace_words -= words;
    return words;
}
