/* store.c - requests and leases of the expert store; see store.h. Slots: store_slots.c; sizes:
 * store_size.c; reads: store_read.c.
 */
#include "store.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "os.h"
#include "store_internal.h"

/* Bytes in flight that keep a fast drive busy, and the bounds of what that means in experts. */
#define FLIGHT_BYTES ((int64_t)64 << 20)
#define MIN_STAGING 4
#define MAX_STAGING 32
/* A guess of the MAYBE kind is started while less than this is in flight: what a drive of 1 to 4 GB/s reads
 * while a layer computes. More would only delay what is asked for next. */
#define GUESS_BYTES ((int64_t)6 << 20)
/* Other drives: what the slowest and the fastest of those take for it, within bounds. */
#define SLOW_GUESS_SECONDS 0.006
#define FAST_GUESS_SECONDS 0.0015
#define LEAST_GUESS_BYTES ((int64_t)1 << 20)
#define MOST_GUESS_BYTES ((int64_t)32 << 20)
/* Between two looks at the disk while something else may end the waiting: far below the time of a read. */
#define WAIT_SECONDS 2e-4

int32_t clb_store_open(clb_store *store, int32_t n_layers, int32_t n_experts, const clb_error *error)
{
    memset(store, 0, sizeof *store);
    store->failed = -1;
    store->scan = 1;
    store->items = calloc((size_t)n_layers * (size_t)n_experts + 1, sizeof *store->items);
    store->wanted = malloc(((size_t)n_experts + 1) * sizeof *store->wanted);
    store->guesses = malloc(((size_t)n_experts + 1) * sizeof *store->guesses);
    if (!store->items || !store->wanted || !store->guesses)
        return clb_fail(error, COLIBRI_ERROR_MEMORY,
                        "no memory for the list of %" PRId32 " x %" PRId32 " experts", n_layers, n_experts);
    store->n_layers = n_layers;
    store->n_experts = n_experts;
    for (int64_t i = 0; i < (int64_t)n_layers * n_experts; i++)
        store->items[i].slot = -1;
    return COLIBRI_OK;
}

static int32_t item_number(const clb_store *store, int32_t layer, int32_t expert)
{
    return layer * store->n_experts + expert;
}

clb_expert *clb_store_slot(clb_store *store, int32_t layer, int32_t expert)
{
    return &store->items[item_number(store, layer, expert)].expert;
}

void clb_store_bind(clb_store *store, int32_t layer, int32_t expert, const clb_entry *gate,
                    const clb_entry *up, const clb_entry *down)
{
    clb_store_item *item = &store->items[item_number(store, layer, expert)];
    item->entries[0] = gate;
    item->entries[1] = up;
    item->entries[2] = down;
}

int64_t clb_item_bytes(const clb_store_item *item)
{
    return item->expert.gate.bytes + item->expert.up.bytes + item->expert.down.bytes;
}

static int64_t n_items(const clb_store *store)
{
    return (int64_t)store->n_layers * store->n_experts;
}

int64_t clb_store_total_bytes(const clb_store *store)
{
    int64_t total = 0;
    for (int64_t i = 0; i < n_items(store); i++)
        total += clb_item_bytes(&store->items[i]);
    return total;
}

int64_t clb_store_table_bytes(const clb_store *store)
{
    /* Lists of slots hold at most one entry per expert: owner, vacant, unused, warm. */
    return n_items(store) * (int64_t)(sizeof *store->items + 4 * sizeof(int32_t)) +
           clb_policy_bytes(store->n_layers, store->n_experts);
}

int32_t clb_store_slots(const clb_store *store)
{
    return store->streaming ? atomic_load(&store->n_slots) : (int32_t)n_items(store);
}

/* ---- streaming set-up ---------------------------------------------------------------------- */

/* Bytes of one staging buffer: the most that any expert's ranges take as aligned supersets. */
static int64_t staging_need(const clb_store *store, int *all_direct)
{
    int64_t most = 0;
    *all_direct = 1;
    for (int64_t i = 0; i < n_items(store); i++) {
        const clb_store_item *item = &store->items[i];
        if (item->entries[0] == NULL || clb_item_is_direct(item))
            continue;
        *all_direct = 0;
        clb_range ranges[CLB_MAX_RANGES];
        int32_t n = clb_item_ranges(item, ranges);
        int64_t bytes = ranges[n - 1].at + clb_io_buffer_bytes(ranges[n - 1].offset, ranges[n - 1].bytes);
        if (bytes > most)
            most = bytes;
    }
    return most;
}

static int32_t flight_experts(int64_t bytes)
{
    int64_t n = bytes > 0 ? FLIGHT_BYTES / bytes : MAX_STAGING;
    return n < MIN_STAGING ? MIN_STAGING : n > MAX_STAGING ? MAX_STAGING : (int32_t)n;
}

int64_t clb_store_staging_bytes(const clb_store *store)
{
    int all_direct;
    int64_t bytes = staging_need(store, &all_direct);
    return all_direct ? 0 : bytes * flight_experts(bytes);
}

static int32_t make_arenas(clb_store *store, const clb_error *error)
{
    for (int32_t c = 0; c < store->n_classes; c++) {
        clb_store_class *class = &store->classes[c];
        class->n_allocated = class->n_slots;
        class->owner = malloc((size_t)class->n_slots * sizeof *class->owner);
        class->vacant = malloc((size_t)class->n_slots * sizeof *class->vacant);
        class->arena = clb_os_alloc((size_t)(class->bytes * class->n_slots));
        if (class->owner == NULL || class->vacant == NULL || class->arena == NULL)
            return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for %" PRId32 " experts of %.1f MB",
                            class->n_slots, (double)class->bytes / 1e6);
        clb_store_init_slots(class, store->options.prefetch);
        atomic_fetch_add(&store->slot_bytes, class->bytes * class->n_slots);
        atomic_fetch_add(&store->n_slots, class->n_slots);
    }
    store->unused = malloc((size_t)store->n_slots * sizeof *store->unused);
    if (store->unused == NULL || !clb_policy_open(&store->policy, store->n_layers, store->n_experts))
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the lists of the expert cache");
    return COLIBRI_OK;
}

static int32_t make_staging(clb_store *store, const clb_error *error)
{
    int all_direct;
    int64_t bytes = staging_need(store, &all_direct);
    int32_t n = flight_experts(all_direct ? clb_store_largest_slot(store) : bytes);
    store->n_reads = n * (all_direct ? 1 : CLB_MAX_RANGES);
    store->guess_bytes = all_direct ? clb_store_largest_slot(store) : bytes;
    store->reads = malloc((size_t)store->n_reads * sizeof *store->reads);
    store->retries = malloc((size_t)store->n_reads * sizeof *store->retries);
    store->staging = malloc((size_t)n * sizeof *store->staging);
    store->staging_bytes = bytes;
    store->staging_arena_bytes = all_direct ? 64 : (size_t)(bytes * n);
    store->staging_arena = clb_os_alloc(store->staging_arena_bytes);
    if (!store->reads || !store->retries || !store->staging || !store->staging_arena)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the staging buffers of the expert cache");
    for (int32_t i = 0; i < store->n_reads; i++)
        store->reads[i].item = -1;
    for (int32_t i = 0; i < n && !all_direct; i++)
        store->staging[store->n_staging++] = store->staging_arena + i * bytes;
    return COLIBRI_OK;
}

int32_t clb_store_stream(clb_store *store, const clb_table *table, clb_pool *pool,
                         const clb_store_options *options, const clb_error *error)
{
    store->options = *options;
    store->table = table;
    store->pool = pool;
    store->streaming = 1;
    int32_t status = make_arenas(store, error);
    if (status == COLIBRI_OK)
        status = make_staging(store, error);
    if (status == COLIBRI_OK)
        status =
            clb_io_open(&store->io, (const char *const *)table->paths, table->n_replicas * table->n_files,
                        options->io_mode, options->direct, store->n_reads, error);
    clb_replica_init(store->replicas, table->n_replicas, clb_os_seconds());
    if (status == COLIBRI_OK && options->fault >= CLB_FAULT_MIRROR_EIO)
        clb_store_plant_fault(store);
    return status;
}

/* ---- requests ------------------------------------------------------------------------------ */

/* Where an expert is at the moment in which it is asked for. */
static int32_t where_found(const clb_store *store, const clb_store_item *item)
{
    if (!store->streaming)
        return COLIBRI_FOUND_RESIDENT;
    if (item->guessed)
        return COLIBRI_FOUND_GUESSED;
    /* One that is still on its way without a guess was begun for a request that has failed. */
    if (item->state != ITEM_READY)
        return item->state == ITEM_READING && item->warmed ? COLIBRI_FOUND_WARM : COLIBRI_FOUND_DISK;
    return item->warmed ? COLIBRI_FOUND_WARM : COLIBRI_FOUND_CACHED;
}

static void count_lookup(clb_store *store, int32_t number)
{
    clb_store_item *item = &store->items[number];
    atomic_fetch_add_explicit(&item->asked, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&store->lookups, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&store->found[store->phase][where_found(store, item)], 1, memory_order_relaxed);
    if (store->streaming && item->state == ITEM_ABSENT)
        atomic_fetch_add_explicit(&store->misses, 1, memory_order_relaxed);
}

/* A guess has come true. */
static void count_useful(clb_store *store, int32_t number)
{
    clb_store_item *item = &store->items[number];
    if (item->guessed) {
        clb_store_set_guessed(store, number, 0);
        atomic_fetch_add_explicit(&store->useful_bytes, clb_item_bytes(item), memory_order_relaxed);
    }
}

int32_t clb_store_guess_reads(const clb_store *store)
{
    double rate = 0;
    for (int32_t r = 0; r < store->table->n_replicas; r++)
        if (store->replicas[r].failures == 0)
            rate += store->replicas[r].rate;
    int64_t bytes = GUESS_BYTES;
    if (rate > 0 && rate * SLOW_GUESS_SECONDS < (double)bytes)
        bytes = (int64_t)(rate * SLOW_GUESS_SECONDS);
    if (rate * FAST_GUESS_SECONDS > (double)bytes)
        bytes = (int64_t)(rate * FAST_GUESS_SECONDS);
    if (bytes < LEAST_GUESS_BYTES)
        bytes = LEAST_GUESS_BYTES;
    if (bytes > MOST_GUESS_BYTES)
        bytes = MOST_GUESS_BYTES;
    return 1 + (int32_t)(bytes / store->guess_bytes);
}

/* Starts as many reads as fit: what has to be read again, what was asked for, then guesses. */
static void start_reads(clb_store *store)
{
    if (!clb_store_retry(store))
        return;
    for (int32_t i = store->next_wanted; i < store->n_wanted; i++) {
        clb_store_item *item = &store->items[store->wanted[i]];
        if (item->wanted && item->state == ITEM_ABSENT && !clb_store_start_read(store, store->wanted[i], i))
            return;
    }
    int32_t most = store->guess_kind == CLB_GUESS_SURE ? store->n_reads : clb_store_guess_reads(store);
    while (store->n_guesses > 0 && clb_io_in_flight(store->io) < most) {
        int32_t guess = store->guesses[store->n_guesses - 1];
        const clb_store_item *item = &store->items[guess];
        /* Half of the slots stay for what is asked for. */
        const clb_store_class *class = &store->classes[item->class_index];
        if (item->state == ITEM_ABSENT &&
            (class->n_guessed >= class->n_slots / 2 || !clb_store_start_read(store, guess, CLB_ORDER_GUESS)))
            return;
        store->n_guesses--;
    }
}

int32_t clb_store_request(clb_store *store, int32_t layer, const int32_t *experts, int32_t n, int32_t rows,
                          const clb_error *error)
{
    if (store->n_wanted > 0)
        return clb_fail(error, COLIBRI_ERROR_INVALID, "the expert store already serves a request");
    store->n_wanted = n;
    store->next_wanted = 0;
    store->n_handed = 0;
    /* Reads that a failure has left in flight belong to the past: they may fail without harm. */
    store->n_requests += rows > 0 || store->failed >= 0;
    store->failed = -1;
    int counts = rows > 0 && !store->quiet && !clb_policy_is_scan(store->n_experts, n, rows);
    if (rows > 0 && store->trace_room > 0)
        clb_store_record(store, layer, experts, n, rows);
    if (rows > 0 && store->streaming)
        clb_policy_use(&store->policy, layer, experts, n, rows);
    for (int32_t i = 0; i < n; i++) {
        int32_t number = item_number(store, layer, experts[i]);
        store->wanted[i] = number;
        store->items[number].wanted = 1;
        if (counts)
            atomic_fetch_add_explicit(&store->items[number].uses, 1, memory_order_relaxed);
        if (rows > 0)
            count_lookup(store, number);
        count_useful(store, number);
    }
    if (store->streaming) {
        clb_store_collect(store, 0);
        start_reads(store);
    }
    return COLIBRI_OK;
}

static void hand_out(clb_store *store, int32_t number, const clb_expert **out, int32_t *id)
{
    clb_store_item *item = &store->items[number];
    item->wanted = 0;
    item->leases++;
    store->leases++;
    store->n_handed++;
    *out = &item->expert;
    *id = number % store->n_experts;
}

static int is_ready(const clb_store *store, int32_t number)
{
    return !store->streaming || store->items[number].state == ITEM_READY;
}

static int32_t take_ready(clb_store *store, int32_t mode, const clb_expert **out, int32_t *ids, int32_t max)
{
    int32_t n = 0;
    for (int32_t i = store->next_wanted; i < store->n_wanted && n < max; i++) {
        int32_t number = store->wanted[i];
        if (store->items[number].wanted) {
            if (is_ready(store, number)) {
                hand_out(store, number, out + n, ids + n);
                n++;
            } else if (mode != CLB_NEXT_ANY) {
                break;
            }
        }
        if (i == store->next_wanted && !store->items[number].wanted)
            store->next_wanted++;
    }
    return n;
}

int32_t clb_store_next(clb_store *store, int32_t mode, const clb_expert **out, int32_t *ids, int32_t max,
                       const clb_error *error)
{
    for (;;) {
        if (store->n_handed == store->n_wanted)
            return 0;
        if (store->streaming) {
            clb_store_collect(store, 0);
            start_reads(store);
            if (store->failed >= 0) {
                clb_store_describe_failure(store, error);
                return -COLIBRI_ERROR_IO;
            }
        }
        int32_t n = take_ready(store, mode, out, ids, max);
        if (n > 0 || mode == CLB_NEXT_IF_READY)
            return n;
        if (clb_io_in_flight(store->io) == 0)
            return -clb_fail(
                error, COLIBRI_ERROR_MEMORY,
                "the expert cache has no slot left for the next expert; raise the memory budget");
        double start = clb_os_seconds();
        clb_store_collect(store, 1);
        atomic_fetch_add_explicit(&store->wait_ns, (int64_t)((clb_os_seconds() - start) * 1e9),
                                  memory_order_relaxed);
    }
}

/* First expert of the request, in its order, that has not been handed out; -1 = none. */
static int32_t first_left(const clb_store *store)
{
    for (int32_t i = store->next_wanted; i < store->n_wanted; i++)
        if (store->items[store->wanted[i]].wanted)
            return store->wanted[i];
    return -1;
}

int clb_store_wait(clb_store *store, double until)
{
    int32_t next = first_left(store);
    if (!store->streaming || next < 0)
        return 1;
    double start = clb_os_seconds();
    int ready;
    for (;;) {
        clb_store_collect(store, 0);
        start_reads(store);
        ready =
            store->items[next].state == ITEM_READY || store->failed >= 0 || clb_io_in_flight(store->io) == 0;
        if (ready || clb_os_seconds() >= until)
            break;
        clb_os_sleep(WAIT_SECONDS);
    }
    atomic_fetch_add_explicit(&store->wait_ns, (int64_t)((clb_os_seconds() - start) * 1e9),
                              memory_order_relaxed);
    return ready;
}

void clb_store_release(clb_store *store, const clb_expert *expert)
{
    clb_store_item *item = (clb_store_item *)(uintptr_t)expert;
    assert(item->leases > 0 && store->leases > 0);
    item->leases--;
    store->leases--;
    if (store->streaming)
        clb_policy_changed(&store->policy, (int32_t)((item - store->items) / store->n_experts));
}

void clb_store_forget(clb_store *store)
{
    for (int32_t i = 0; i < store->n_wanted; i++)
        store->items[store->wanted[i]].wanted = 0;
    if (store->streaming && store->n_wanted > 0)
        clb_policy_changed(&store->policy, store->wanted[0] / store->n_experts);
    store->n_wanted = store->next_wanted = store->n_handed = 0;
}

static void add_guess(clb_store *store, int32_t number)
{
    if (store->items[number].state == ITEM_ABSENT && store->n_guesses < store->n_experts)
        store->guesses[store->n_guesses++] = number;
}

static void prefetch(clb_store *store, int32_t layer, const int32_t *experts, int32_t n, int32_t kind)
{
    if (!store->streaming || !store->options.prefetch)
        return;
    clb_store_collect(store, 0);
    /* Guesses for an earlier layer that were not started by now come too late. */
    store->n_guesses = 0;
    store->guess_kind = kind;
    for (int32_t i = n - 1; i >= 0; i--)
        add_guess(store, item_number(store, layer, experts == NULL ? i : experts[i]));
    start_reads(store);
}

void clb_store_prefetch(clb_store *store, int32_t layer, const int32_t *experts, int32_t n)
{
    prefetch(store, layer, experts, n, CLB_GUESS_MAYBE);
}

void clb_store_prefetch_sure(clb_store *store, int32_t layer, const int32_t *experts, int32_t n)
{
    prefetch(store, layer, experts, experts == NULL ? store->n_experts : n, CLB_GUESS_SURE);
}

void clb_store_end_scan(clb_store *store)
{
    store->scan++;
}

void clb_store_read_on(clb_store *store)
{
    if (!store->streaming)
        return;
    clb_store_collect(store, 0);
    start_reads(store);
}

void clb_store_tick(clb_store *store)
{
    store->trace_steps++;
    if (store->streaming)
        clb_policy_tick(&store->policy);
}

void clb_store_close(clb_store *store)
{
    assert(store->leases == 0);
    clb_io_close(store->io);
    free(store->fault);
    for (int64_t i = 0; store->items != NULL && i < n_items(store); i++)
        free(store->items[i].failures);
    free(store->failures);
    free(store->retries);
    for (int32_t c = 0; c < store->n_classes; c++) {
        clb_os_free(store->classes[c].arena,
                    (size_t)(store->classes[c].bytes * store->classes[c].n_allocated));
        free(store->classes[c].owner);
        free(store->classes[c].vacant);
    }
    clb_os_free(store->staging_arena, store->staging_arena_bytes);
    free(store->staging);
    free(store->reads);
    free(store->classes);
    free(store->items);
    free(store->wanted);
    free(store->guesses);
    free(store->unused);
    free(store->warm);
    free(store->trace);
    clb_policy_close(&store->policy);
    memset(store, 0, sizeof *store);
}
