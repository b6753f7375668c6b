/* io_threads.c - reading with a few threads that call pread: the way that every POSIX system has.
 *
 * The calling thread puts pieces into one list; whichever thread is free takes the oldest, reads it to
 * its end and puts it into the list of finished ones. Both lists are under one mutex: at a piece of
 * about a megabyte the lock is taken a few thousand times a second at most.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "io_internal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "os.h"

/* As many pieces as are read at the same time. */
#define THREADS 16

typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t work; /* something to read, or stop */
    pthread_cond_t done; /* something finished */
    clb_io_piece *first; /* to be read, oldest first */
    clb_io_piece **last; /* where the next one is hooked in */
    clb_io_piece *finished;
    int stop;
    int n_threads;
    pthread_t threads[THREADS];
} reader;

static void read_piece(clb_io_piece *piece)
{
    for (;;) {
        clb_io_piece_begin(piece);
        ssize_t got = pread(piece->file->handle, piece->buffer + (piece->offset - piece->start),
                            (size_t)(piece->end - piece->offset), (off_t)piece->offset);
        clb_io_step step = clb_io_piece_advance(piece, got >= 0 ? (int64_t)got : -(int64_t)errno);
        if (step == CLB_IO_STEP_DONE)
            break;
        if (step == CLB_IO_STEP_PAUSE)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    piece->finished = clb_os_seconds();
}

static void *work(void *arg)
{
    reader *r = arg;
    pthread_mutex_lock(&r->mutex);
    for (;;) {
        while (r->first == NULL && !r->stop)
            pthread_cond_wait(&r->work, &r->mutex);
        if (r->first == NULL)
            break;
        clb_io_piece *piece = r->first;
        r->first = piece->next;
        if (r->first == NULL)
            r->last = &r->first;
        pthread_mutex_unlock(&r->mutex);
        read_piece(piece);
        pthread_mutex_lock(&r->mutex);
        piece->next = r->finished;
        r->finished = piece;
        pthread_cond_signal(&r->done);
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

static void threads_start(void *self, clb_io_piece *piece)
{
    reader *r = self;
    piece->next = NULL;
    pthread_mutex_lock(&r->mutex);
    *r->last = piece;
    r->last = &piece->next;
    pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->mutex);
}

static void threads_flush(void *self)
{
    (void)self;
}

static clb_io_piece *threads_collect(void *self, int wait)
{
    reader *r = self;
    pthread_mutex_lock(&r->mutex);
    while (wait && r->finished == NULL)
        pthread_cond_wait(&r->done, &r->mutex);
    clb_io_piece *list = r->finished;
    r->finished = NULL;
    pthread_mutex_unlock(&r->mutex);
    return list;
}

static void threads_close(void *self)
{
    reader *r = self;
    pthread_mutex_lock(&r->mutex);
    r->stop = 1;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->mutex);
    for (int i = 0; i < r->n_threads; i++)
        pthread_join(r->threads[i], NULL);
    pthread_cond_destroy(&r->done);
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->mutex);
    free(r);
}

int32_t clb_io_threads_open(void **self, const clb_io_backend **backend, const clb_error *error)
{
    static const clb_io_backend methods = {threads_start, threads_flush, threads_collect, threads_close};
    reader *r = calloc(1, sizeof *r);
    if (r == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "out of memory for the reading threads");
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->work, NULL);
    pthread_cond_init(&r->done, NULL);
    r->last = &r->first;
    /* Signals belong to the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int reason = 0;
    while (r->n_threads < THREADS && reason == 0) {
        reason = pthread_create(&r->threads[r->n_threads], NULL, work, r);
        r->n_threads += reason == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r->n_threads == 0) { /* fewer than wished is slower, not wrong */
        threads_close(r);
        return clb_fail(error, COLIBRI_ERROR_IO, "no thread for reading could be started: %s",
                        strerror(reason));
    }
    *self = r;
    *backend = &methods;
    return COLIBRI_OK;
}
