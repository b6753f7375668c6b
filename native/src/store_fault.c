/* store_fault.c - reads of experts that fail, lag or come in parts, for tests (fault.h). Planted below the
 * queue's own handling of short reads and errors, so that all of it is exercised. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "fault.h"
#include "io_internal.h"
#include "store_internal.h"

#define FIRST_FAILING 8
#define LAST_FAILING 71
#define SLOW_NANOSECONDS 1000000

struct clb_store_fault {
    clb_io_test_hooks hooks;
    int32_t kind;
    int32_t n_files;
    _Atomic int64_t reads;
};

static int64_t slowly(int64_t result)
{
    nanosleep(&(struct timespec){0, SLOW_NANOSECONDS}, NULL);
    return result;
}

/* Called by whichever thread reads. */
static int64_t disturb(void *context, int32_t file, int64_t offset, int64_t bytes, uint8_t *buffer,
                       int64_t result)
{
    (void)offset;
    (void)bytes;
    (void)buffer;
    struct clb_store_fault *fault = context;
    const int64_t n = atomic_fetch_add_explicit(&fault->reads, 1, memory_order_relaxed);
    const int mirror = file / fault->n_files > 0;
    switch (fault->kind) {
    case CLB_FAULT_MIRROR_EIO:
        return mirror ? -EIO : result;
    case CLB_FAULT_PRIMARY_EIO:
        return mirror ? result : -EIO;
    case CLB_FAULT_EVERY_EIO:
        return n >= FIRST_FAILING && n <= LAST_FAILING ? -EIO : result;
    case CLB_FAULT_MIRROR_SLOW:
        return mirror ? slowly(result) : result;
    case CLB_FAULT_PRIMARY_SLOW:
        return mirror ? result : slowly(result);
    case CLB_FAULT_SHORT_READ:
        return n % 3 == 0 ? -EINTR : n % 3 == 1 && result > 1 ? result / 2 : result;
    default:
        return result;
    }
}

void clb_store_plant_fault(clb_store *store)
{
    store->fault = calloc(1, sizeof *store->fault);
    if (store->fault == NULL)
        return;
    store->fault->hooks = (clb_io_test_hooks){.result = disturb, .context = store->fault};
    store->fault->kind = store->options.fault;
    store->fault->n_files = store->table->n_files;
    clb_io_set_test_hooks(store->io, &store->fault->hooks);
}
