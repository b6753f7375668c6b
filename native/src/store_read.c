/* store_read.c - reads of a streaming expert store and what arrives; see store.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "os.h"
#include "store_internal.h"

typedef struct {
    int32_t file;
    int64_t offset;
    int64_t bytes;
} span;

static void sort_spans(span *spans, int32_t n)
{
    for (int32_t i = 1; i < n; i++)
        for (int32_t j = i;
             j > 0 && (spans[j].file < spans[j - 1].file ||
                       (spans[j].file == spans[j - 1].file && spans[j].offset < spans[j - 1].offset));
             j--) {
            span t = spans[j];
            spans[j] = spans[j - 1];
            spans[j - 1] = t;
        }
}

int32_t clb_item_ranges(const clb_store_item *item, clb_range out[CLB_MAX_RANGES])
{
    span spans[CLB_MAX_RANGES];
    int32_t n = 0, ranges = 0;
    for (int i = 0; i < 3; i++) {
        const colibri_tensor *t = &item->entries[i]->t;
        spans[n++] = (span){t->file, t->offset, t->bytes};
        if (t->scale_file >= 0)
            spans[n++] = (span){t->scale_file, t->scale_offset, t->scale_bytes};
    }
    sort_spans(spans, n);
    for (int32_t i = 0; i < n; i++) {
        clb_range *last = ranges > 0 ? &out[ranges - 1] : NULL;
        /* A gap smaller than a page costs nothing: the page is read anyway. */
        if (last != NULL && last->file == spans[i].file &&
            spans[i].offset - (last->offset + last->bytes) < CLB_IO_ALIGN) {
            last->bytes = spans[i].offset + spans[i].bytes - last->offset;
            continue;
        }
        int64_t at = last == NULL ? 0 : last->at + clb_io_buffer_bytes(last->offset, last->bytes);
        out[ranges++] = (clb_range){spans[i].file, spans[i].offset, spans[i].bytes, at};
    }
    return ranges;
}

int clb_item_is_direct(const clb_store_item *item)
{
    const clb_expert *e = &item->expert;
    const clb_weight *weights[] = {&e->gate, &e->up, &e->down};
    int64_t end = 0;
    for (int i = 0; i < 3; i++) {
        if (item->entries[i] == NULL)
            return 0;
        const colibri_tensor *t = &item->entries[i]->t;
        if (t->layout != COLIBRI_LAYOUT_PACKED || t->format != weights[i]->format)
            return 0;
        if (i == 0 ? t->offset % CLB_IO_ALIGN != 0 : t->offset != end || t->file != item->entries[0]->t.file)
            return 0;
        end = t->offset + t->bytes;
    }
    return 1;
}

/* ---- arrival ------------------------------------------------------------------------------- */

static void place(clb_store_item *item, uint8_t *at)
{
    item->expert.gate.data = at;
    item->expert.up.data = at + item->expert.gate.bytes;
    item->expert.down.data = at + item->expert.gate.bytes + item->expert.up.bytes;
}

typedef struct {
    const clb_weight *weights[3];
    const uint8_t *data[3];
    const uint8_t *scales[3];
    int packed[3];
    int32_t step; /* blocks of a chunk */
} arrival;

static void pack_part(void *context, int chunk, int worker)
{
    (void)worker;
    const arrival *a = context;
    int32_t at = chunk;
    for (int i = 0; i < 3; i++) {
        const clb_weight *w = a->weights[i];
        int32_t chunks = (w->n_blocks + a->step - 1) / a->step;
        if (at >= chunks) {
            at -= chunks;
            continue;
        }
        int32_t b0 = at * a->step, b1 = b0 + a->step < w->n_blocks ? b0 + a->step : w->n_blocks;
        uint8_t *out = (uint8_t *)(uintptr_t)w->data;
        if (a->packed[i])
            memcpy(out + b0 * w->block_bytes, a->data[i] + b0 * w->block_bytes,
                   (size_t)((b1 - b0) * w->block_bytes));
        else
            clb_weight_pack(w, a->data[i], a->scales[i], out, b0, b1);
        return;
    }
}

static const uint8_t *in_staging(const clb_store_item *item, const clb_range *ranges, int32_t n, int32_t file,
                                 int64_t offset)
{
    for (int32_t i = 0; i < n; i++)
        if (ranges[i].file == file && offset >= ranges[i].offset &&
            offset < ranges[i].offset + ranges[i].bytes)
            return item->staging + ranges[i].at + ranges[i].offset % CLB_IO_ALIGN +
                   (offset - ranges[i].offset);
    return NULL;
}

/* Interleaves what arrived in staging into the slot. */
static void unpack_arrival(clb_store *store, clb_store_item *item)
{
    clb_range ranges[CLB_MAX_RANGES];
    int32_t n = clb_item_ranges(item, ranges), chunks = 0;
    arrival a = {.weights = {&item->expert.gate, &item->expert.up, &item->expert.down}, .step = 8};
    for (int i = 0; i < 3; i++) {
        const colibri_tensor *t = &item->entries[i]->t;
        a.packed[i] = t->layout == COLIBRI_LAYOUT_PACKED;
        a.data[i] = in_staging(item, ranges, n, t->file, t->offset);
        a.scales[i] = t->scale_file >= 0 ? in_staging(item, ranges, n, t->scale_file, t->scale_offset) : NULL;
        chunks += (a.weights[i]->n_blocks + a.step - 1) / a.step;
    }
    clb_pool_run(store->pool, pack_part, &a, chunks);
}

/* ---- replicas ------------------------------------------------------------------------------ */

/* Where each range of an expert is read next: all of it from one replica if one is left that has all of
 * it, else (a model split over drives, or damage in several places) each range from any that has it. */
static int choose_replicas(const clb_store *store, const clb_store_item *item, const clb_range *ranges,
                           int32_t n, int32_t out[CLB_MAX_RANGES])
{
    const clb_table *table = store->table;
    const double now = clb_os_seconds();
    uint32_t whole = UINT32_MAX;
    int64_t bytes = 0;
    for (int32_t i = 0; i < n; i++) {
        whole &= table->holders[ranges[i].file] & ~item->failed_on[i];
        bytes += ranges[i].bytes;
    }
    for (int32_t i = 0; i < n; i++) {
        if (whole != 0 && i > 0) {
            out[i] = out[0];
            continue;
        }
        uint32_t allowed = whole != 0 ? whole : table->holders[ranges[i].file] & ~item->failed_on[i];
        out[i] = clb_replica_choose(store->replicas, table->n_replicas, allowed,
                                    whole != 0 ? bytes : ranges[i].bytes, now);
        if (out[i] < 0)
            return 0;
    }
    return 1;
}

static void publish(clb_store *store, int32_t replica)
{
    const clb_replica *r = &store->replicas[replica];
    clb_store_replica *seen = &store->seen[replica];
    atomic_store_explicit(&seen->bytes, r->total, memory_order_relaxed);
    atomic_store_explicit(&seen->rate, (int64_t)r->rate, memory_order_relaxed);
    atomic_store_explicit(&seen->failed, r->failures > 0, memory_order_relaxed);
}

static void note_failure(clb_store *store, clb_store_item *item, int32_t range, int32_t replica,
                         const clb_io_completion *failure)
{
    item->failed = 1;
    item->failed_on[range] |= (uint32_t)1 << replica;
    store->failure = *failure;
    if (item->failures == NULL)
        item->failures = calloc((size_t)store->table->n_replicas, sizeof *item->failures);
    if (item->failures != NULL)
        item->failures[replica] = *failure;
    atomic_fetch_add_explicit(&store->seen[replica].failures, 1, memory_order_relaxed);
}

static uint32_t failed_replicas(const clb_store_item *item)
{
    uint32_t failed = 0;
    for (int32_t i = 0; i < CLB_MAX_RANGES; i++)
        failed |= item->failed_on[i];
    return failed;
}

void clb_store_describe_failure(const clb_store *store, const clb_error *error)
{
    char text[1024];
    size_t used = 0;
    const clb_error part = {text, sizeof text};
    if (store->failures == NULL) {
        clb_io_describe(store->io, &store->failure, error);
        return;
    }
    for (int32_t r = 0; r < store->table->n_replicas; r++) {
        if ((store->failed_on >> r & 1) == 0)
            continue;
        const clb_io_completion *failure = &store->failures[r];
        const char *path = store->table->paths[(int64_t)failure->file];
        if (used == 0)
            clb_io_describe(store->io, failure, &part);
        else
            snprintf(text + used, sizeof text - used, "; its copy %s failed too, at offset %" PRId64 ": %s",
                     path, failure->offset,
                     failure->error == 0 ? "the file ends there" : strerror(failure->error));
        used = strlen(text);
    }
    clb_fail(error, COLIBRI_ERROR_IO, "%s", text);
}

/* ---- arrival and reading --------------------------------------------------------------------- */

static void end_of_read(clb_store *store, clb_store_item *item)
{
    if (item->staging != NULL)
        store->staging[store->n_staging++] = item->staging;
    item->staging = NULL;
    memset(item->failed_on, 0, sizeof item->failed_on);
    free(item->failures);
    item->failures = NULL;
}

static void fail_item(clb_store *store, int32_t number)
{
    clb_store_item *item = &store->items[number];
    /* A read left over from an earlier request is simply tried again. */
    if (item->wanted && item->request == store->n_requests) {
        store->failed = number;
        store->failed_on = failed_replicas(item);
        free(store->failures);
        store->failures = item->failures;
        item->failures = NULL;
    }
    end_of_read(store, item);
    clb_store_give_up(store, number);
}

/* All ranges of an expert have been delivered or have failed. */
static void arrive(clb_store *store, int32_t number)
{
    clb_store_item *item = &store->items[number];
    if (item->failed) {
        clb_range ranges[CLB_MAX_RANGES];
        int32_t n = clb_item_ranges(item, ranges), unused[CLB_MAX_RANGES];
        if (choose_replicas(store, item, ranges, n, unused))
            store->retries[store->n_retries++] = number;
        else
            fail_item(store, number);
        return;
    }
    if (item->staging != NULL)
        unpack_arrival(store, item);
    end_of_read(store, item);
    if (store->options.fault == CLB_FAULT_EXPERT_BYTE ||
        (store->options.fault == CLB_FAULT_WARM_BYTE && item->warmed))
        *(uint8_t *)(uintptr_t)item->expert.gate.data ^= 0x5a;
    clb_item_set_state(item, ITEM_READY);
    clb_policy_changed(&store->policy, number / store->n_experts);
    atomic_fetch_add_explicit(&store->bytes_read, clb_item_bytes(item), memory_order_relaxed);
}

static int32_t free_read(const clb_store *store)
{
    for (int32_t i = 0; i < store->n_reads; i++)
        if (store->reads[i].item < 0)
            return i;
    return -1;
}

/* Queues the ranges of an expert that has its slot; the queue has room for them. */
static void submit_ranges(clb_store *store, int32_t number, const clb_range *ranges, int32_t n)
{
    clb_store_item *item = &store->items[number];
    uint8_t *target = item->staging != NULL ? item->staging : (uint8_t *)(uintptr_t)item->expert.gate.data;
    int32_t replicas[CLB_MAX_RANGES];
    item->failed = 0;
    item->pending = n;
    if (!choose_replicas(store, item, ranges, n, replicas)) { /* no replica has it: refused at open */
        fail_item(store, number);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        const int32_t read = free_read(store), file = replicas[i] * store->table->n_files + ranges[i].file;
        store->reads[read] = (clb_store_read){number, i, replicas[i], ranges[i].bytes};
        clb_io_request request = {file, read, ranges[i].offset, ranges[i].bytes, target + ranges[i].at};
        clb_error silent = {NULL, 0};
        /* Before the read can be under way: submitting may take long, and a read be done with it. */
        clb_replica_started(&store->replicas[replicas[i]], ranges[i].bytes, clb_os_seconds());
        if (clb_io_submit(store->io, &request, &silent) == COLIBRI_OK)
            continue;
        clb_replica_failed(&store->replicas[replicas[i]], ranges[i].bytes, clb_os_seconds());
        store->reads[read].item = -1;
        const clb_io_completion failure = {
            .tag = read, .status = COLIBRI_ERROR_IO, .file = file, .offset = ranges[i].offset};
        note_failure(store, item, i, replicas[i], &failure);
        item->pending--;
    }
    if (item->pending == 0)
        arrive(store, number);
}

int clb_store_retry(clb_store *store)
{
    while (store->n_retries > 0) {
        const int32_t number = store->retries[store->n_retries - 1];
        clb_range ranges[CLB_MAX_RANGES];
        int32_t n = clb_item_ranges(&store->items[number], ranges);
        if (clb_io_in_flight(store->io) + n > store->n_reads)
            return 0;
        store->n_retries--;
        submit_ranges(store, number, ranges, n);
    }
    return 1;
}

int clb_store_start_read(clb_store *store, int32_t number, int32_t order)
{
    clb_store_item *item = &store->items[number];
    clb_store_class *class = &store->classes[item->class_index];
    int direct = clb_item_is_direct(item);
    clb_range ranges[CLB_MAX_RANGES];
    int32_t n = clb_item_ranges(item, ranges);
    if (clb_io_in_flight(store->io) + n > store->n_reads || (!direct && store->n_staging == 0))
        return 0;
    int32_t slot = clb_store_take_slot(store, number, order);
    if (slot < 0)
        return 0;
    clb_item_set_state(item, ITEM_READING);
    item->request = store->n_requests;
    item->warmed = order == CLB_ORDER_WARM;
    item->staging = direct ? NULL : store->staging[--store->n_staging];
    place(item, class->arena + slot * class->bytes);
    if (order == CLB_ORDER_GUESS)
        atomic_fetch_add_explicit(&store->guessed_bytes, clb_item_bytes(item), memory_order_relaxed);
    submit_ranges(store, number, ranges, n);
    return 1;
}

void clb_store_collect(clb_store *store, int wait)
{
    clb_io_completion done[32];
    int32_t min = wait && clb_io_in_flight(store->io) > 0 ? 1 : 0;
    int32_t n = clb_io_wait(store->io, min, done, 32);
    const double now = clb_os_seconds();
    for (int32_t i = 0; i < n; i++) {
        const clb_store_read read = store->reads[done[i].tag];
        store->reads[done[i].tag].item = -1;
        clb_store_item *item = &store->items[read.item];
        if (done[i].status == COLIBRI_OK) {
            clb_replica_delivered(&store->replicas[read.replica], read.bytes, now);
            atomic_fetch_add_explicit(&store->seen[read.replica].reads, 1, memory_order_relaxed);
        } else {
            clb_replica_failed(&store->replicas[read.replica], read.bytes, now);
            note_failure(store, item, read.range, read.replica, &done[i]);
        }
        publish(store, read.replica);
        if (--item->pending == 0)
            arrive(store, read.item);
    }
}
