/* io_uring.c - reading through Linux io_uring (5.6 or later), with the bare system calls.
 *
 * Two rings are shared with the kernel: submission entries that we write and it consumes, completion
 * entries that it writes and we consume. There is one entry per piece that may be taken, so neither
 * ring can overflow. The kernel (or a sandbox's system-call filter) may refuse all of it: opening then
 * says why, and the queue falls back to threads.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "io_internal.h"

#if defined(__linux__) && defined(__has_include)
#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#include <sys/syscall.h>
#endif
#endif

#if defined(IORING_FEAT_RW_CUR_POS) && defined(SYS_io_uring_setup) /* headers of 5.6 or later */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "os.h"

/* Calls refused in a row for want of memory, a millisecond apart, before pieces are given up. */
#define MAX_REFUSALS 2000

typedef struct {
    int handle;
    uint8_t *rings; /* both rings in one mapping */
    size_t rings_bytes;
    struct io_uring_sqe *entries;
    size_t entries_bytes;
    uint32_t mask;
    _Atomic uint32_t *tail; /* of the submission ring; written by us */
    uint32_t done_mask;
    _Atomic uint32_t *done_head; /* of the completion ring; written by us */
    _Atomic uint32_t *done_tail;
    const struct io_uring_cqe *done;
    uint32_t queued;    /* entries written and not yet consumed by the kernel */
    uint32_t in_kernel; /* consumed and not yet completed */
    clb_io_piece *finished;
} ring;

static int enter(const ring *r, uint32_t to_submit, uint32_t min_complete)
{
    return (int)syscall(SYS_io_uring_enter, r->handle, to_submit, min_complete,
                        min_complete > 0 ? IORING_ENTER_GETEVENTS : 0, NULL, 0);
}

static void pause_briefly(void)
{
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static void finish(ring *r, clb_io_piece *piece)
{
    piece->finished = clb_os_seconds();
    piece->next = r->finished;
    r->finished = piece;
}

/* Writes the entry for a piece. `patient`: from a kernel thread that may sleep, after a read that was
 * turned away. */
static void enqueue(ring *r, clb_io_piece *piece, int patient)
{
    uint32_t tail = atomic_load_explicit(r->tail, memory_order_relaxed);
    clb_io_piece_begin(piece);
    struct io_uring_sqe *e = &r->entries[tail & r->mask];
    memset(e, 0, sizeof *e);
    e->opcode = IORING_OP_READ;
    e->flags = patient ? IOSQE_ASYNC : 0;
    e->fd = piece->file->handle;
    e->off = (uint64_t)piece->offset;
    e->addr = (uint64_t)(uintptr_t)(piece->buffer + (piece->offset - piece->start));
    e->len = (uint32_t)(piece->end - piece->offset);
    e->user_data = (uint64_t)(uintptr_t)piece;
    atomic_store_explicit(r->tail, tail + 1, memory_order_release);
    r->queued++;
}

/* The kernel wants no more entries at all (a filter set after opening, for example): what it has not
 * consumed fails. */
static void reject_queued(ring *r, int reason)
{
    uint32_t tail = atomic_load_explicit(r->tail, memory_order_relaxed);
    for (; r->queued > 0; r->queued--) {
        clb_io_piece *piece = (clb_io_piece *)(uintptr_t)r->entries[--tail & r->mask].user_data;
        piece->failed = 1;
        piece->error = reason;
        finish(r, piece);
    }
    atomic_store_explicit(r->tail, tail, memory_order_release);
}

/* Hands over what is queued; with `wait`, returns once a completion is there or might be. */
static void submit(ring *r, int wait)
{
    int refusals = 0;
    while (r->queued > 0 || wait) {
        int n = enter(r, r->queued, wait && r->queued + r->in_kernel > 0);
        if (n >= 0) {
            r->queued -= (uint32_t)n;
            r->in_kernel += (uint32_t)n;
            if (r->queued == 0)
                return;
            /* Consumed in part: the kernel met an error that it reports as the next result. */
        } else if (errno == EINTR) {
            if (wait)
                return; /* maybe after a completion */
        } else if ((errno == EAGAIN || errno == EBUSY || errno == ENOMEM) && ++refusals < MAX_REFUSALS) {
            pause_briefly();
            if (r->in_kernel > 0)
                return; /* later, when something has completed */
        } else {
            reject_queued(r, errno);
            if (r->in_kernel > 0)
                pause_briefly(); /* the ring itself can still be looked at */
            return;
        }
    }
}

/* Takes the completions that are there; reads that are not at their end are queued again. */
static void reap(ring *r)
{
    uint32_t head = atomic_load_explicit(r->done_head, memory_order_relaxed);
    uint32_t tail = atomic_load_explicit(r->done_tail, memory_order_acquire);
    for (; head != tail; head++) {
        const struct io_uring_cqe *c = &r->done[head & r->done_mask];
        clb_io_piece *piece = (clb_io_piece *)(uintptr_t)c->user_data;
        const int64_t result = c->res;
        atomic_store_explicit(r->done_head, head + 1, memory_order_release);
        r->in_kernel--;
        clb_io_step step = clb_io_piece_advance(piece, result);
        if (step == CLB_IO_STEP_PAUSE)
            pause_briefly();
        if (step == CLB_IO_STEP_DONE)
            finish(r, piece);
        else
            enqueue(r, piece, step == CLB_IO_STEP_PAUSE);
    }
}

static void uring_start(void *self, clb_io_piece *piece)
{
    enqueue(self, piece, 0);
}

static void uring_flush(void *self)
{
    submit(self, 0);
}

static clb_io_piece *uring_collect(void *self, int wait)
{
    ring *r = self;
    for (;;) {
        reap(r);
        submit(r, 0);
        if (r->finished != NULL || !wait)
            break;
        submit(r, 1);
    }
    clb_io_piece *list = r->finished;
    r->finished = NULL;
    return list;
}

static void uring_close(void *self)
{
    ring *r = self;
    if (r->entries != NULL)
        munmap(r->entries, r->entries_bytes);
    if (r->rings != NULL)
        munmap(r->rings, r->rings_bytes);
    if (r->handle >= 0)
        close(r->handle);
    free(r);
}

static int knows_read(int handle)
{
    enum { OPERATIONS = 64 };
    struct io_uring_probe *probe =
        calloc(1, sizeof(struct io_uring_probe) + OPERATIONS * sizeof(struct io_uring_probe_op));
    int known = probe != NULL &&
                syscall(SYS_io_uring_register, handle, IORING_REGISTER_PROBE, probe, OPERATIONS) >= 0 &&
                probe->last_op >= IORING_OP_READ &&
                (probe->ops[IORING_OP_READ].flags & IO_URING_OP_SUPPORTED) != 0;
    free(probe);
    return known;
}

static void *map(int handle, size_t bytes, int64_t what)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, handle, (off_t)what);
    return p == MAP_FAILED ? NULL : p;
}

static int32_t map_rings(ring *r, const struct io_uring_params *p, const clb_error *error)
{
    size_t submission = p->sq_off.array + p->sq_entries * sizeof(uint32_t);
    size_t completion = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    r->rings_bytes = submission > completion ? submission : completion;
    r->entries_bytes = p->sq_entries * sizeof(struct io_uring_sqe);
    r->rings = map(r->handle, r->rings_bytes, IORING_OFF_SQ_RING);
    r->entries = map(r->handle, r->entries_bytes, IORING_OFF_SQES);
    if (r->rings == NULL || r->entries == NULL)
        return clb_fail(error, COLIBRI_ERROR_IO, "the rings of io_uring cannot be mapped: %s",
                        strerror(errno));
    r->mask = *(const uint32_t *)(r->rings + p->sq_off.ring_mask);
    r->tail = (_Atomic uint32_t *)(r->rings + p->sq_off.tail);
    r->done_mask = *(const uint32_t *)(r->rings + p->cq_off.ring_mask);
    r->done_head = (_Atomic uint32_t *)(r->rings + p->cq_off.head);
    r->done_tail = (_Atomic uint32_t *)(r->rings + p->cq_off.tail);
    r->done = (const struct io_uring_cqe *)(r->rings + p->cq_off.cqes);
    uint32_t *order = (uint32_t *)(r->rings + p->sq_off.array); /* entries are used in ring order */
    for (uint32_t i = 0; i < p->sq_entries; i++)
        order[i] = i;
    return COLIBRI_OK;
}

int32_t clb_io_uring_open(void **self, const clb_io_backend **backend, const clb_error *error)
{
    static const clb_io_backend methods = {uring_start, uring_flush, uring_collect, uring_close};
    ring *r = calloc(1, sizeof *r);
    if (r == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "out of memory for io_uring");
    struct io_uring_params params = {0};
    r->handle = (int)syscall(SYS_io_uring_setup, CLB_IO_PIECES, &params);
    int32_t status = COLIBRI_OK;
    if (r->handle < 0)
        status = clb_fail(
            error, COLIBRI_ERROR_UNSUPPORTED,
            "io_uring is not available: the kernel or a sandbox refuses it (%s); reading with threads "
            "works everywhere",
            strerror(errno));
    else if ((params.features & IORING_FEAT_SINGLE_MMAP) == 0 ||
             (params.features & IORING_FEAT_NODROP) == 0 || !knows_read(r->handle))
        status = clb_fail(
            error, COLIBRI_ERROR_UNSUPPORTED,
            "io_uring of this kernel is older than Linux 5.6; reading with threads works everywhere");
    else
        status = map_rings(r, &params, error);
    if (status != COLIBRI_OK) {
        uring_close(r);
        return status;
    }
    *self = r;
    *backend = &methods;
    return COLIBRI_OK;
}

#else

int32_t clb_io_uring_open(void **self, const clb_io_backend **backend, const clb_error *error)
{
    (void)self;
    (void)backend;
    return clb_fail(error, COLIBRI_ERROR_UNSUPPORTED,
                    "this build has no io_uring (Linux only); reading with threads works everywhere");
}

#endif
