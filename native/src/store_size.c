/* store_size.c - how many experts of each size the cache holds; see store.h. Numbers only: planning and
 * opening call the same functions, and make_arenas in store.c allocates what they say. */
#include "store_internal.h"

#include <inttypes.h>
#include <stdlib.h>

#include "os.h"

static int64_t n_items(const clb_store *store)
{
    return (int64_t)store->n_layers * store->n_experts;
}

static int64_t item_slot_bytes(const clb_store_item *item)
{
    return (clb_item_bytes(item) + CLB_IO_ALIGN - 1) / CLB_IO_ALIGN * CLB_IO_ALIGN;
}

int32_t clb_store_classify(clb_store *store, const clb_error *error)
{
    for (int64_t i = 0; i < n_items(store); i++) {
        clb_store_item *item = &store->items[i];
        int64_t bytes = item_slot_bytes(item);
        int32_t c = 0;
        while (c < store->n_classes && store->classes[c].bytes != bytes)
            c++;
        if (c == store->n_classes) {
            clb_store_class *classes = realloc(store->classes, (size_t)(c + 1) * sizeof *classes);
            if (classes == NULL)
                return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the expert cache");
            store->classes = classes;
            store->n_classes++;
            classes[c] = (clb_store_class){.bytes = bytes, .direct = 1};
        }
        item->class_index = c;
        store->classes[c].n_items++;
        store->classes[c].direct &= clb_item_is_direct(item);
    }
    return COLIBRI_OK;
}

static int64_t arena_bytes(const clb_store_class *class, int64_t slots)
{
    return (int64_t)clb_os_size((size_t)(class->bytes * slots));
}

/* Most slots, up to the number of experts, whose arena fits in `room`; at least `least`. */
static int64_t slots_within(const clb_store_class *class, int64_t room, int64_t least)
{
    int64_t slots = room > 0 ? room / class->bytes : 0;
    if (slots > class->n_items)
        slots = class->n_items;
    while (slots > least && arena_bytes(class, slots) > room)
        slots--;
    return slots < least ? least : slots;
}

void clb_store_size(clb_store *store, int64_t cache_bytes, int32_t slots)
{
    int64_t total = 0;
    for (int32_t c = 0; c < store->n_classes; c++)
        total += store->classes[c].bytes * store->classes[c].n_items;
    for (int32_t c = 0; c < store->n_classes; c++) {
        clb_store_class *class = &store->classes[c];
        double share = (double)cache_bytes * (double)(class->bytes * class->n_items) / (double)total;
        int64_t n = slots > 0 ? slots : slots_within(class, (int64_t)share, 1);
        class->n_slots = (int32_t)(n < class->n_items ? n : class->n_items);
    }
    if (slots > 0)
        return;
    /* A class with a small share has its one slot all the same: the widest one pays. */
    while (clb_store_cache_bytes(store) > cache_bytes) {
        clb_store_class *widest = NULL;
        for (int32_t c = 0; c < store->n_classes; c++) {
            clb_store_class *class = &store->classes[c];
            if (class->n_slots > 1 &&
                (widest == NULL || class->bytes * class->n_slots > widest->bytes * widest->n_slots))
                widest = class;
        }
        if (widest == NULL)
            return;
        widest->n_slots--;
    }
    /* What rounding, or a class whose experts all fit, has left over. */
    for (int32_t c = 0; c < store->n_classes; c++) {
        clb_store_class *class = &store->classes[c];
        int64_t room = cache_bytes - clb_store_cache_bytes(store) + arena_bytes(class, class->n_slots);
        class->n_slots = (int32_t)slots_within(class, room, class->n_slots);
    }
}

int64_t clb_store_least_cache(const clb_store *store)
{
    int64_t bytes = 0;
    for (int32_t c = 0; c < store->n_classes; c++)
        bytes += arena_bytes(&store->classes[c], 1);
    return bytes;
}

int64_t clb_store_cache_bytes(const clb_store *store)
{
    int64_t bytes = 0;
    for (int32_t c = 0; c < store->n_classes; c++)
        bytes += arena_bytes(&store->classes[c], store->classes[c].n_slots);
    return bytes;
}

void clb_store_class_info(const clb_store *store, int32_t class_index, int64_t *slot_bytes, int64_t *experts,
                          int64_t *slots)
{
    const clb_store_class *class = &store->classes[class_index];
    *slot_bytes = class->bytes;
    *experts = class->n_items;
    *slots = class->n_slots;
}

int64_t clb_store_largest_slot(const clb_store *store)
{
    int64_t largest = 0;
    for (int32_t c = 0; c < store->n_classes; c++)
        if (store->classes[c].bytes > largest)
            largest = store->classes[c].bytes;
    return largest;
}
