/* io.c - the read queue of io.h: requests are cut into pieces, a backend reads the pieces, and what is
 * done is handed out as completions.
 *
 * A large request is cut so that even one alone keeps a drive busy. Pieces are issued in the order of
 * the requests; the requests that still have pieces to issue stand in `waiting`, and only its head is
 * partly issued. Backends never touch this state: whatever they finish is worked in by the calling
 * thread (submit and wait).
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* O_DIRECT, statx */
#endif
#include "io_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os.h"

#define MAX_DEPTH 256
/* Requests are cut near this size. */
#define PIECE_BYTES ((int64_t)1 << 20)
/* Reads turned away in a row (EAGAIN, ENOMEM), a millisecond apart, before a piece is given up. */
#define MAX_STALLS 2000

typedef struct {
    clb_io_request request;
    int64_t next;        /* first byte not yet issued; == end when all is */
    int64_t end;         /* of the aligned superset */
    int64_t piece_bytes; /* of every piece but the last */
    int32_t open;        /* pieces with the backend */
    int32_t failed;
    int32_t error;
    int64_t failed_at; /* the lowest offset that failed */
} slot;

struct clb_io {
    clb_io_file *files;
    int32_t n_files;
    int32_t mode;
    int32_t depth;
    const clb_io_backend *backend;
    void *backend_self;
    const clb_io_test_hooks *hooks;

    slot *slots;         /* [depth] */
    int32_t *free_slots; /* stack */
    int32_t n_free_slots;
    int32_t *waiting; /* ring [depth] of slots with pieces to issue */
    int32_t waiting_head;
    int32_t n_waiting;
    clb_io_completion *ready; /* ring [depth] */
    int32_t ready_head;
    int32_t n_ready;
    int32_t active; /* requests that are neither ready nor handed out */

    clb_io_piece *pieces; /* [CLB_IO_PIECES] */
    clb_io_piece *free_pieces;

    int64_t bytes;
    double busy_seconds;
    double busy_since; /* while active > 0 */
};

/* ---- files ----------------------------------------------------------------------------------------- */

static int set_direct(int handle, int on)
{
#if defined(O_DIRECT)
    int flags = fcntl(handle, F_GETFL);
    return flags < 0 ? -1 : fcntl(handle, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT);
#elif defined(F_NOCACHE)
    return fcntl(handle, F_NOCACHE, on);
#else
    (void)handle;
    (void)on;
    errno = EINVAL;
    return -1;
#endif
}

/* What the file system says of itself; 1 where it says nothing. */
static int alignment_suffices(int handle)
{
#if defined(__linux__) && defined(STATX_DIOALIGN)
    struct statx info;
    if (statx(handle, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 && (info.stx_mask & STATX_DIOALIGN) != 0)
        return info.stx_dio_offset_align > 0 && info.stx_dio_offset_align <= CLB_IO_ALIGN &&
               info.stx_dio_mem_align <= CLB_IO_ALIGN;
#else
    (void)handle;
#endif
    return 1;
}

/* Switches a file to direct I/O if that works here: the flag may be accepted and reads refused. */
static int try_direct(int handle)
{
    if (!alignment_suffices(handle) || set_direct(handle, 1) < 0)
        return 0;
    void *block;
    if (posix_memalign(&block, CLB_IO_ALIGN, CLB_IO_ALIGN) == 0) {
        ssize_t got = pread(handle, block, CLB_IO_ALIGN, 0);
        int refused = got < 0 && (errno == EINVAL || errno == ENOTSUP);
        free(block);
        if (!refused) /* another error is the device's and will be reported by whoever reads there */
            return 1;
    }
    set_direct(handle, 0);
    return 0;
}

static int32_t open_file(clb_io_file *file, const char *path, int direct, const clb_error *error)
{
    int64_t size;
    file->path = strdup(path != NULL ? path : "");
    if (file->path == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "out of memory for the list of files to read");
    if (path == NULL)
        return COLIBRI_OK;
    file->handle = clb_os_open(path, &size);
    if (file->handle < 0)
        return clb_fail(error, COLIBRI_ERROR_IO, "%s: cannot be opened for reading: %s", path,
                        strerror(errno));
    file->direct = direct && try_direct(file->handle);
    return COLIBRI_OK;
}

/* ---- one piece --------------------------------------------------------------------------------------- */

static clb_io_step fail_piece(clb_io_piece *piece, int32_t error)
{
    piece->failed = 1;
    piece->error = error;
    return CLB_IO_STEP_DONE;
}

/* Direct I/O turned out not to work for this file. Reads under way are not disturbed. */
static void fall_back_to_buffered(clb_io_file *file)
{
    set_direct(file->handle, 0);
    atomic_store_explicit(&file->direct, 0, memory_order_relaxed);
}

clb_io_step clb_io_piece_advance(clb_io_piece *piece, int64_t result)
{
    if (piece->hooks != NULL)
        result = piece->hooks->result(piece->hooks->context, piece->file_index, piece->offset,
                                      piece->end - piece->offset,
                                      piece->buffer + (piece->offset - piece->start), result);
    if (result < 0) {
        int32_t reason = (int32_t)-result;
        if (reason == EINTR)
            return CLB_IO_STEP_READ;
        if ((reason == EAGAIN || reason == ENOMEM) && ++piece->stalls < MAX_STALLS)
            return CLB_IO_STEP_PAUSE;
        if (reason == EINVAL && piece->direct) {
            fall_back_to_buffered(piece->file);
            return CLB_IO_STEP_READ;
        }
        return fail_piece(piece, reason);
    }
    if (result == 0)
        return fail_piece(piece, 0);
    piece->stalls = 0;
    piece->bytes += result;
    piece->offset += result;
    if (piece->offset >= piece->need)
        return CLB_IO_STEP_DONE;

    /* A short read. Direct I/O cannot go on from the middle of a block: either the file ends here, or
     * the block is read again. */
    int64_t rest = piece->offset % CLB_IO_ALIGN;
    if (piece->direct && rest != 0) {
        struct stat info;
        if (fstat(piece->file->handle, &info) == 0 && piece->offset >= (int64_t)info.st_size)
            return fail_piece(piece, 0);
        piece->offset -= rest;
        if (result <= rest) /* not even one block at a time */
            fall_back_to_buffered(piece->file);
    }
    return CLB_IO_STEP_READ;
}

/* ---- requests and pieces ------------------------------------------------------------------------------ */

/* Equal pieces of about PIECE_BYTES: one up to a quarter more, so that the ends of an aligned superset do
 * not cost a read of their own. */
static int64_t choose_piece_bytes(int64_t bytes)
{
    int64_t n = (bytes + PIECE_BYTES * 3 / 4 - 1) / PIECE_BYTES;
    if (n < 1)
        n = 1;
    int64_t each = (bytes + n - 1) / n;
    return (each + CLB_IO_ALIGN - 1) / CLB_IO_ALIGN * CLB_IO_ALIGN;
}

static void issue(clb_io *io)
{
    int started = 0;
    while (io->n_waiting > 0 && io->free_pieces != NULL) {
        int32_t index = io->waiting[io->waiting_head];
        slot *s = &io->slots[index];
        const clb_io_request *q = &s->request;
        const int64_t first = q->offset / CLB_IO_ALIGN * CLB_IO_ALIGN;
        const int64_t asked_end = q->offset + q->bytes;
        clb_io_piece *piece = io->free_pieces;
        io->free_pieces = piece->next;
        int64_t end = s->end - s->next > s->piece_bytes ? s->next + s->piece_bytes : s->end;
        *piece = (clb_io_piece){
            .file = &io->files[q->file],
            .hooks = io->hooks,
            .buffer = q->buffer + (s->next - first),
            .start = s->next,
            .offset = s->next,
            .end = end,
            .need = end < asked_end ? end : asked_end,
            .file_index = q->file,
            .slot = index,
        };
        s->next = end;
        s->open++;
        if (s->next == s->end) {
            io->waiting_head = (io->waiting_head + 1) % io->depth;
            io->n_waiting--;
        }
        io->backend->start(io->backend_self, piece);
        started = 1;
    }
    if (started)
        io->backend->flush(io->backend_self);
}

static void complete(clb_io *io, int32_t index, double now)
{
    slot *s = &io->slots[index];
    clb_io_completion *c = &io->ready[(io->ready_head + io->n_ready++) % io->depth];
    *c = (clb_io_completion){
        .tag = s->request.tag,
        .status = s->failed ? COLIBRI_ERROR_IO : COLIBRI_OK,
        .error = s->failed ? s->error : 0,
        .file = s->request.file,
        .offset = s->failed ? s->failed_at : s->request.offset,
        .wanted = s->request.bytes,
        .got = s->request.bytes,
    };
    if (s->failed)
        c->got = s->failed_at > s->request.offset ? s->failed_at - s->request.offset : 0;
    io->free_slots[io->n_free_slots++] = index;
    if (--io->active == 0)
        io->busy_seconds += now - io->busy_since;
}

/* Works a list of finished pieces in. */
static void absorb(clb_io *io, clb_io_piece *list)
{
    while (list != NULL) {
        clb_io_piece *piece = list;
        list = piece->next;
        slot *s = &io->slots[piece->slot];
        io->bytes += piece->bytes;
        if (piece->failed) {
            if (!s->failed || piece->offset < s->failed_at) {
                s->error = piece->error;
                s->failed_at = piece->offset;
            }
            s->failed = 1;
            if (s->next < s->end) { /* the head of `waiting`: the rest is not read any more */
                s->next = s->end;
                io->waiting_head = (io->waiting_head + 1) % io->depth;
                io->n_waiting--;
            }
        }
        s->open--;
        if (s->open == 0 && s->next == s->end)
            complete(io, piece->slot, piece->finished);
        piece->next = io->free_pieces;
        io->free_pieces = piece;
    }
}

/* ---- the queue ----------------------------------------------------------------------------------------- */

static int all_direct(const clb_io *io)
{
    int all = io->n_files > 0;
    for (int32_t i = 0; i < io->n_files; i++)
        all &= io->files[i].handle < 0 || atomic_load_explicit(&io->files[i].direct, memory_order_relaxed);
    return all;
}

/* Without direct I/O, io_uring would copy out of the page cache on the calling thread: threads do it
 * beside it. */
static int32_t open_backend(clb_io *io, int32_t mode, const clb_error *error)
{
    if (mode == CLB_IO_URING || (mode == CLB_IO_AUTO && all_direct(io))) {
        int32_t status = clb_io_uring_open(&io->backend_self, &io->backend, error);
        io->mode = CLB_IO_URING;
        if (status == COLIBRI_OK || mode == CLB_IO_URING)
            return status;
    }
    io->mode = mode == CLB_IO_BUFFERED ? CLB_IO_BUFFERED : CLB_IO_THREADS;
    return clb_io_threads_open(&io->backend_self, &io->backend, error);
}

static int32_t open_parts(clb_io *io, const char *const *paths, int32_t n_paths, int32_t mode, int32_t direct,
                          const clb_error *error)
{
    const size_t depth = (size_t)io->depth;
    io->files = calloc((size_t)n_paths + 1, sizeof *io->files);
    io->slots = calloc(depth, sizeof *io->slots);
    io->free_slots = calloc(depth, sizeof *io->free_slots);
    io->waiting = calloc(depth, sizeof *io->waiting);
    io->ready = calloc(depth, sizeof *io->ready);
    io->pieces = calloc(CLB_IO_PIECES, sizeof *io->pieces);
    if (io->files == NULL || io->slots == NULL || io->free_slots == NULL || io->waiting == NULL ||
        io->ready == NULL || io->pieces == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY,
                        "out of memory for a read queue of %d files and depth %d", (int)n_paths,
                        (int)io->depth);
    for (int32_t i = 0; i < io->depth; i++)
        io->free_slots[io->n_free_slots++] = i;
    for (int32_t i = 0; i < CLB_IO_PIECES; i++) {
        io->pieces[i].next = io->free_pieces;
        io->free_pieces = &io->pieces[i];
    }
    for (int32_t i = 0; i < n_paths; i++) {
        io->files[io->n_files++].handle = -1;
        int32_t status = open_file(&io->files[i], paths[i], direct && mode != CLB_IO_BUFFERED, error);
        if (status != COLIBRI_OK)
            return status;
    }
    return open_backend(io, mode, error);
}

int32_t clb_io_open(clb_io **out, const char *const *paths, int32_t n_paths, int32_t mode, int32_t direct,
                    int32_t depth, const clb_error *error)
{
    *out = NULL;
    if (n_paths < 0 || depth < 1 || depth > MAX_DEPTH || mode < CLB_IO_AUTO || mode > CLB_IO_BUFFERED)
        return clb_fail(error, COLIBRI_ERROR_INVALID,
                        "a read queue takes a depth of 1 to %d and one of the modes 0 to %d, not %d and %d",
                        MAX_DEPTH, CLB_IO_BUFFERED, (int)depth, (int)mode);
    clb_io *io = calloc(1, sizeof *io);
    if (io == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "out of memory for a read queue");
    io->depth = depth;
    int32_t status = open_parts(io, paths, n_paths, mode, direct, error);
    if (status != COLIBRI_OK) {
        clb_io_close(io);
        return status;
    }
    *out = io;
    return COLIBRI_OK;
}

void clb_io_close(clb_io *io)
{
    if (io == NULL)
        return;
    for (; io->n_waiting > 0; io->n_waiting--) { /* not begun, or not all of it: not begun any more */
        slot *s = &io->slots[io->waiting[io->waiting_head]];
        io->waiting_head = (io->waiting_head + 1) % io->depth;
        s->next = s->end;
        if (s->open == 0)
            io->active--;
    }
    while (io->active > 0)
        absorb(io, io->backend->collect(io->backend_self, 1));
    if (io->backend != NULL)
        io->backend->close(io->backend_self);
    for (int32_t i = 0; i < io->n_files; i++) {
        clb_os_close(io->files[i].handle);
        free((void *)(uintptr_t)io->files[i].path);
    }
    free(io->files);
    free(io->slots);
    free(io->free_slots);
    free(io->waiting);
    free(io->ready);
    free(io->pieces);
    free(io);
}

int32_t clb_io_submit(clb_io *io, const clb_io_request *request, const clb_error *error)
{
    const clb_io_request *q = request;
    if (q->file < 0 || q->file >= io->n_files)
        return clb_fail(error, COLIBRI_ERROR_INVALID, "read of file %d, but the queue has %d files",
                        (int)q->file, (int)io->n_files);
    if (q->offset < 0 || q->bytes < 1 || q->bytes > INT64_MAX - CLB_IO_ALIGN - q->offset ||
        q->buffer == NULL || (uintptr_t)q->buffer % CLB_IO_ALIGN != 0)
        return clb_fail(
            error, COLIBRI_ERROR_INVALID,
            "%s: a read of %lld bytes at offset %lld into %p: offset and bytes must be in range and the "
            "buffer aligned to %d",
            io->files[q->file].path, (long long)q->bytes, (long long)q->offset, (void *)q->buffer,
            CLB_IO_ALIGN);
    if (clb_io_in_flight(io) >= io->depth)
        return clb_fail(error, COLIBRI_ERROR_INVALID, "%s: %d reads are in flight already, the queue's depth",
                        io->files[q->file].path, (int)io->depth);
    int32_t index = io->free_slots[--io->n_free_slots];
    int64_t first = q->offset / CLB_IO_ALIGN * CLB_IO_ALIGN;
    int64_t length = clb_io_buffer_bytes(q->offset, q->bytes);
    io->slots[index] = (slot){
        .request = *q, .next = first, .end = first + length, .piece_bytes = choose_piece_bytes(length)};
    io->waiting[(io->waiting_head + io->n_waiting++) % io->depth] = index;
    if (io->active++ == 0)
        io->busy_since = clb_os_seconds();
    issue(io);
    return COLIBRI_OK;
}

int32_t clb_io_in_flight(const clb_io *io)
{
    return io->active + io->n_ready;
}

int32_t clb_io_wait(clb_io *io, int32_t min, clb_io_completion *out, int32_t max)
{
    const int32_t in_flight = clb_io_in_flight(io);
    if (max > in_flight)
        max = in_flight;
    if (min > max)
        min = max;
    if (io->active > 0) {
        int wait = io->n_ready < min;
        do {
            absorb(io, io->backend->collect(io->backend_self, wait));
            issue(io);
            wait = 1;
        } while (io->n_ready < min);
    }
    int32_t n = 0;
    for (; n < max && io->n_ready > 0; n++) {
        out[n] = io->ready[io->ready_head];
        io->ready_head = (io->ready_head + 1) % io->depth;
        io->n_ready--;
    }
    return n;
}

void clb_io_get_stats(const clb_io *io, clb_io_stats *out)
{
    *out = (clb_io_stats){.mode = io->mode,
                          .direct = all_direct(io),
                          .depth = io->depth,
                          .bytes = io->bytes,
                          .busy_seconds = io->busy_seconds};
    if (io->active > 0)
        out->busy_seconds += clb_os_seconds() - io->busy_since;
}

static int is_device_problem(int32_t error)
{
    switch (error) {
    case EIO:
    case ENXIO:
    case ENODEV:
    case ETIMEDOUT:
#if defined(ESTALE)
    case ESTALE:
#endif
#if defined(EREMOTEIO)
    case EREMOTEIO:
#endif
        return 1;
    default:
        return 0;
    }
}

void clb_io_describe(const clb_io *io, const clb_io_completion *completion, const clb_error *error)
{
    const clb_io_completion *c = completion;
    const char *path = c->file >= 0 && c->file < io->n_files ? io->files[c->file].path : "unknown file";
    const long long offset = c->offset, wanted = c->wanted, got = c->got;
    if (c->status == COLIBRI_OK)
        clb_fail(error, c->status, "%s: %lld bytes at offset %lld were read", path, wanted, offset);
    else if (c->error == 0)
        clb_fail(
            error, c->status,
            "%s: the file ends at offset %lld, %lld of %lld bytes of this read were there: it was cut off or "
            "replaced while in use; check it with `coli verify`",
            path, offset, got, wanted);
    else if (is_device_problem(c->error))
        clb_fail(
            error, c->status,
            "%s: reading at offset %lld failed (%lld of %lld bytes read): %s. This is a problem of the "
            "device or "
            "the mount, not of the download: do not download again; check cable, drive and system log, and "
            "that the drive is mounted",
            path, offset, got, wanted, strerror(c->error));
    else
        clb_fail(error, c->status, "%s: reading at offset %lld failed (%lld of %lld bytes read): %s", path,
                 offset, got, wanted, strerror(c->error));
}

void clb_io_set_test_hooks(clb_io *io, const clb_io_test_hooks *hooks)
{
    io->hooks = hooks;
}
