/* io.h - asynchronous positioned reads with deep queues: what the expert store reads with.
 *
 * One queue = one set of files and one way of reading. Requests are submitted in any number up to the
 * depth and complete in any order. The store owns the buffers; a request's buffer belongs to the queue
 * from submit to completion.
 *
 *   io_uring   Linux 5.6 and later, through the kernel interface; direct I/O where the file system
 *              allows it
 *   threads    a few threads with pread; direct or buffered
 *   buffered   page cache, for file systems without direct I/O and for tests
 *
 * Short reads and EINTR are continued inside. A request that cannot be completed fails alone, with
 * file, offset and reason; the others go on. One calling thread per queue.
 */
#ifndef CLB_IO_H
#define CLB_IO_H

#include <stddef.h>
#include <stdint.h>

#include "error.h"

/* Alignment of offset, length and buffer that direct I/O asks for. */
#define CLB_IO_ALIGN 4096

typedef enum {
    CLB_IO_AUTO = 0, /* io_uring where it works and every file allows direct I/O, else threads */
    CLB_IO_URING = 1,
    CLB_IO_THREADS = 2,
    CLB_IO_BUFFERED = 3
} clb_io_mode;

typedef struct clb_io clb_io;

typedef struct {
    int32_t file;   /* index into the paths given at open */
    int32_t tag;    /* the caller's; returned with the completion */
    int64_t offset; /* any; what is read is the aligned superset */
    int64_t bytes;
    /* CLB_IO_ALIGN-aligned, clb_io_buffer_bytes(offset, bytes) long. The first byte asked for lies at
     * buffer + offset % CLB_IO_ALIGN. */
    uint8_t *buffer;
} clb_io_request;

typedef struct {
    int32_t tag;
    int32_t status; /* COLIBRI_OK or COLIBRI_ERROR_IO */
    int32_t error;  /* errno of a failure, 0 = end of file before the last byte */
    int32_t file;
    int64_t offset; /* where the failure happened */
    int64_t wanted; /* bytes of the request, and how many of its first bytes are there */
    int64_t got;
} clb_io_completion;

typedef struct {
    int32_t mode;   /* in use */
    int32_t direct; /* 1 = direct I/O in use for every file */
    int32_t depth;
    int64_t bytes;       /* completed so far, as read from the device (aligned supersets) */
    double busy_seconds; /* with a request in flight; io_uring: until a clb_io_wait sees its end */
} clb_io_stats;

static inline int64_t clb_io_buffer_bytes(int64_t offset, int64_t bytes)
{
    int64_t first = offset / CLB_IO_ALIGN * CLB_IO_ALIGN;
    return (offset + bytes - first + CLB_IO_ALIGN - 1) / CLB_IO_ALIGN * CLB_IO_ALIGN;
}

/* depth: most requests in flight, 1..256. A path may be NULL: reads of that file fail. A mode that does not
 * work here is an error that says why; AUTO never fails for that reason. direct = 0 reads through the page
 * cache in every mode. */
int32_t clb_io_open(clb_io **out, const char *const *paths, int32_t n_paths, int32_t mode, int32_t direct,
                    int32_t depth, const clb_error *error);
/* Waits for what is in flight. NULL is allowed. */
void clb_io_close(clb_io *io);
/* Queues a request; refused (COLIBRI_ERROR_INVALID) when `depth` are in flight or it is malformed. */
int32_t clb_io_submit(clb_io *io, const clb_io_request *request, const clb_error *error);
int32_t clb_io_in_flight(const clb_io *io);
/* Collects up to `max` completions; waits until at least `min` are there (0 = only what is ready).
 * Returns how many; never more than are in flight. */
int32_t clb_io_wait(clb_io *io, int32_t min, clb_io_completion *out, int32_t max);
void clb_io_get_stats(const clb_io *io, clb_io_stats *out);
/* Sentence for a failed completion (what, file, offset, what to do; EIO: a device problem, not a
 * damaged download). */
void clb_io_describe(const clb_io *io, const clb_io_completion *completion, const clb_error *error);

#endif
