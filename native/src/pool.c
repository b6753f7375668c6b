/* pool.c - a team of threads that computes one parallel region at a time (see pool.h).
 *
 * A region is published as one 64-bit ticket: generation above, chunks not yet claimed below. Whoever
 * is free lowers the count by compare-and-swap and owns chunk n_chunks - count. The function, its
 * context and n_chunks are read only after a successful claim: from then until the claimer reports
 * its chunk done the region cannot end, so the caller cannot be writing them. A worker that slept
 * through a region therefore never delays it; the caller waits only for chunks in flight.
 *
 * Sleeping. Both sides announce that they are about to sleep, look once more, and only then sleep on
 * the word the other side changes; the other side changes the word before it looks for sleepers. With
 * sequentially consistent operations one of the two always sees the other.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Futex where there is one; POOL_PORTABLE forces the condition variable of the other systems. */
#if defined(__linux__) && !defined(POOL_PORTABLE)
#define POOL_FUTEX 1
#else
#define POOL_FUTEX 0
#endif

#define SPIN_NANOSECONDS                                                                                     \
    100000 /* longer than the serial gaps within a token, far below a scheduler slice                        \
            */
#define LINE 64

typedef struct {
    clb_pool *pool;
    pthread_t thread;
    int index;
    int cpu; /* -1 = not bound */
} worker_slot;

struct clb_pool {
    int threads;
    worker_slot *workers; /* [threads - 1]; worker i + 1 */
#if !POOL_FUTEX
    pthread_mutex_t mutex;
    pthread_cond_t changed;
#endif
    /* the region: written by the caller between regions, read by claimers */
    clb_pool_fn fn;
    void *ctx;
    uint32_t n_chunks;
    uint32_t generation;
    /* what several threads write, a cache line each */
    char gap0[LINE];
    _Atomic uint64_t ticket;
    char gap1[LINE];
    _Atomic uint32_t unfinished; /* chunks of the region; the caller sleeps on it */
    char gap2[LINE];
    _Atomic uint32_t caller_sleeps;
    char gap3[LINE];
    _Atomic uint32_t wakeups; /* workers sleep on it */
    _Atomic uint32_t sleepers;
    _Atomic uint32_t stop;
};

/* The region this thread is inside of, if any. */
static _Thread_local struct {
    const clb_pool *pool;
    int worker;
} inside;

/* ---- sleeping -------------------------------------------------------------------------------- */

/* Sleeps while *word == seen; may return early. */
static void word_wait(clb_pool *pool, _Atomic uint32_t *word, uint32_t seen)
{
#if POOL_FUTEX
    (void)pool;
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
#else
    pthread_mutex_lock(&pool->mutex);
    while (atomic_load(word) == seen)
        pthread_cond_wait(&pool->changed, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
#endif
}

/* Wakes up to `count` threads that sleep on the word; call after changing it. */
static void word_wake(clb_pool *pool, _Atomic uint32_t *word, int count)
{
#if POOL_FUTEX
    (void)pool;
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
#else
    (void)word, (void)count;
    /* Passing through the mutex closes the gap between a sleeper's look and its wait. */
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->mutex);
#endif
}

static void relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* a real pause; yield is a no-op on most cores */
#endif
}

static int64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- regions ---------------------------------------------------------------------------------- */

/* Computes chunks of whatever region is open until none is left to claim; 0 if there was none. */
static int work(clb_pool *pool, int index)
{
    int did = 0;
    uint64_t t = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    while ((uint32_t)t != 0) {
        if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &t, t - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        inside.pool = pool;
        inside.worker = index;
        pool->fn(pool->ctx, (int)(pool->n_chunks - (uint32_t)t), index);
        inside.pool = NULL;
        did = 1;
        if (atomic_fetch_sub(&pool->unfinished, 1) == 1 && atomic_load(&pool->caller_sleeps))
            word_wake(pool, &pool->unfinished, 1);
        t = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    }
    return did;
}

static int has_work(clb_pool *pool)
{
    return (uint32_t)atomic_load(&pool->ticket) != 0;
}

static void sleep_until_work(clb_pool *pool)
{
    uint32_t seen = atomic_load(&pool->wakeups);
    atomic_fetch_add(&pool->sleepers, 1);
    if (!has_work(pool) && !atomic_load(&pool->stop))
        word_wait(pool, &pool->wakeups, seen);
    atomic_fetch_sub(&pool->sleepers, 1);
}

static void bind_self(int cpu)
{
#if defined(__linux__)
    if (cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    }
#else
    (void)cpu;
#endif
}

static void *worker_main(void *arg)
{
    worker_slot *self = arg;
    clb_pool *pool = self->pool;
    bind_self(self->cpu);
    int64_t idle_since = nanoseconds();
    for (unsigned turn = 0; !atomic_load_explicit(&pool->stop, memory_order_acquire); turn++) {
        if (work(pool, self->index)) {
            idle_since = nanoseconds();
        } else if (turn % 32 == 0 && nanoseconds() - idle_since > SPIN_NANOSECONDS) {
            sleep_until_work(pool);
            idle_since = nanoseconds();
        } else {
            relax();
        }
    }
    return NULL;
}

static void wait_finished(clb_pool *pool)
{
    int64_t since = nanoseconds();
    for (unsigned turn = 1; atomic_load_explicit(&pool->unfinished, memory_order_acquire) != 0; turn++) {
        if (turn % 32 != 0 || nanoseconds() - since < SPIN_NANOSECONDS) {
            relax();
            continue;
        }
        atomic_store(&pool->caller_sleeps, 1);
        for (uint32_t left; (left = atomic_load(&pool->unfinished)) != 0;)
            word_wait(pool, &pool->unfinished, left);
        atomic_store(&pool->caller_sleeps, 0);
        return;
    }
}

static void run_inline(clb_pool *pool, clb_pool_fn fn, void *ctx, int n_chunks)
{
    const clb_pool *outer = inside.pool;
    int index = outer && outer == pool ? inside.worker : 0, outer_index = inside.worker;
    inside.pool = pool;
    inside.worker = index;
    for (int i = 0; i < n_chunks; i++)
        fn(ctx, i, index);
    inside.pool = outer;
    inside.worker = outer_index;
}

void clb_pool_run(clb_pool *pool, clb_pool_fn fn, void *ctx, int n_chunks)
{
    if (n_chunks <= 0)
        return;
    if (!pool || pool->threads == 1 || n_chunks == 1 || inside.pool) {
        run_inline(pool, fn, ctx, n_chunks);
        return;
    }
    pool->fn = fn;
    pool->ctx = ctx;
    pool->n_chunks = (uint32_t)n_chunks;
    pool->generation++;
    atomic_store(&pool->unfinished, (uint32_t)n_chunks);
    atomic_store(&pool->ticket, (uint64_t)pool->generation << 32 | (uint32_t)n_chunks);
    if (atomic_load(&pool->sleepers)) {
        atomic_fetch_add(&pool->wakeups, 1);
        word_wake(pool, &pool->wakeups, pool->threads < n_chunks ? pool->threads : n_chunks - 1);
    }
    work(pool, 0);
    wait_finished(pool);
}

/* ---- life --------------------------------------------------------------------------------------- */

/* The i-th processor this process may use, wrapping around; -1 if unknown. */
static int nth_cpu(int i)
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) == 0)
        return -1;
    i %= CPU_COUNT(&set);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set) && i-- == 0)
            return cpu;
#else
    (void)i;
#endif
    return -1;
}

static int start_worker(worker_slot *slot)
{
    /* Signals belong to the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&slot->thread, NULL, worker_main, slot);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

clb_pool *clb_pool_create(int threads, int pin)
{
    if (threads < 1)
        return NULL;
    if (threads > CLB_POOL_MAX_THREADS)
        threads = CLB_POOL_MAX_THREADS;
    clb_pool *pool = calloc(1, sizeof *pool);
    worker_slot *workers = calloc((size_t)threads, sizeof *workers);
    if (!pool || !workers) {
        free(pool);
        free(workers);
        return NULL;
    }
    pool->workers = workers;
    pool->threads = 1;
#if !POOL_FUTEX
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->changed, NULL);
#endif
    for (int i = 1; i < threads; i++) {
        worker_slot *slot = workers + i - 1;
        *slot = (worker_slot){.pool = pool, .index = i, .cpu = pin ? nth_cpu(i) : -1};
        if (start_worker(slot) != 0)
            break;
        pool->threads++;
    }
    return pool;
}

void clb_pool_destroy(clb_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stop, 1);
    atomic_fetch_add(&pool->wakeups, 1);
    word_wake(pool, &pool->wakeups, pool->threads);
    for (int i = 0; i + 1 < pool->threads; i++)
        pthread_join(pool->workers[i].thread, NULL);
#if !POOL_FUTEX
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->mutex);
#endif
    free(pool->workers);
    free(pool);
}

int clb_pool_threads(const clb_pool *pool)
{
    return pool ? pool->threads : 1;
}
