/* io_internal.h - what the parts of the read queue share: files, pieces, ways of reading.
 *
 * io.c cuts a request into pieces and hands them to a backend; the backend reads a piece with as many
 * system calls as it takes (clb_io_piece_advance says whether to go on) and gives it back. Included by
 * io.c, io_uring.c, io_threads.c, store_fault.c and tests only; everybody else uses io.h.
 */
#ifndef CLB_IO_INTERNAL_H
#define CLB_IO_INTERNAL_H

#include <stdatomic.h>

#include "io.h"

/* Pieces that may be with the backend at a time. */
#define CLB_IO_PIECES 256

/* Test-only. `result` sees what every read returned (bytes, or a negative errno) and may change it, and
 * the buffer with it; called by the thread that reads. */
typedef struct {
    int64_t (*result)(void *context, int32_t file, int64_t offset, int64_t bytes, uint8_t *buffer,
                      int64_t result);
    void *context;
} clb_io_test_hooks;

typedef struct {
    const char *path; /* owned; "" = a place without a file */
    int handle;
    _Atomic int32_t direct; /* may fall to 0 while reading; never rises */
} clb_io_file;

typedef struct clb_io_piece {
    struct clb_io_piece *next; /* in whatever list it is */
    clb_io_file *file;
    const clb_io_test_hooks *hooks; /* NULL = none */
    uint8_t *buffer;                /* for `start` */
    int64_t start;
    int64_t offset;  /* where the next read begins; start .. end */
    int64_t end;     /* exclusive, aligned: as far as is read */
    int64_t need;    /* as far as has to be there */
    int64_t bytes;   /* delivered by the device so far */
    double finished; /* clb_os_seconds of the end */
    int32_t file_index;
    int32_t slot;   /* of the request */
    int32_t direct; /* the read under way was begun with direct I/O */
    int32_t stalls; /* reads in a row that the system turned away */
    int32_t failed;
    int32_t error; /* of a failure: errno, 0 = end of file at `offset` */
} clb_io_piece;

/* One way of reading. `self` is the backend's own state. Calling thread of the queue only. */
typedef struct {
    /* Takes a piece; at most CLB_IO_PIECES are taken at a time. */
    void (*start)(void *self, clb_io_piece *piece);
    /* Makes sure that what was started is under way. */
    void (*flush)(void *self);
    /* List of finished pieces, maybe NULL. With `wait` (only while pieces are taken) at least one. */
    clb_io_piece *(*collect)(void *self, int wait);
    /* Only while no piece is taken. */
    void (*close)(void *self);
} clb_io_backend;

typedef enum {
    CLB_IO_STEP_DONE = 0, /* finished, well or not (`failed`) */
    CLB_IO_STEP_READ = 1, /* read on from `offset` */
    CLB_IO_STEP_PAUSE = 2 /* the same after a moment: the system is short of something */
} clb_io_step;

/* Before each read. */
static inline void clb_io_piece_begin(clb_io_piece *piece)
{
    piece->direct = atomic_load_explicit(&piece->file->direct, memory_order_relaxed);
}

/* After each read: `result` is bytes or a negative errno. Any thread, for a piece that is its own. */
clb_io_step clb_io_piece_advance(clb_io_piece *piece, int64_t result);

/* Both return a status with a sentence. UNSUPPORTED = not on this system. */
int32_t clb_io_uring_open(void **self, const clb_io_backend **backend, const clb_error *error);
int32_t clb_io_threads_open(void **self, const clb_io_backend **backend, const clb_error *error);

/* Test-only; NULL takes them away. Nothing may be in flight; `hooks` outlives its use. */
void clb_io_set_test_hooks(clb_io *io, const clb_io_test_hooks *hooks);

#endif
