/* test_pool.c - the thread pool: every chunk exactly once, results visible, nesting inline, idle end. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pool.h"
#include "test.h"

enum { MOST_CHUNKS = 64, WORKERS = 8 };

typedef struct {
    clb_pool *pool;
    uint32_t round;
    uint32_t seen[MOST_CHUNKS]; /* plain on purpose: the pool must order the accesses */
    uint32_t busy[WORKERS];     /* per-worker scratch: never two chunks at once */
    uint32_t by_worker[WORKERS];
    int bad;
    int spin;
} region;

static void pause_ns(long ns)
{
    struct timespec t = {0, ns};
    nanosleep(&t, NULL);
}

static void count_chunk(void *ctx, int chunk, int worker)
{
    region *r = ctx;
    if (r->busy[worker]++ != 0)
        r->bad = 1;
    r->seen[chunk] += r->round;
    for (volatile int i = 0; i < r->spin; i++) {}
    r->by_worker[worker]++;
    r->busy[worker]--;
}

static void every_chunk_runs_exactly_once(int threads, int regions, int rest_every)
{
    clb_pool *pool = clb_pool_create(threads, threads == 2);
    CHECK(pool != NULL);
    CHECK(clb_pool_threads(pool) == threads);
    region r = {.pool = pool};
    uint64_t seed = 77;
    int wrong = 0;
    long chunks = 0;
    for (int i = 1; i <= regions; i++) {
        int n = 1 + (int)(test_random(&seed) % (i % 50 == 0 ? MOST_CHUNKS : 9));
        memset(r.seen, 0, sizeof r.seen);
        r.round = (uint32_t)i;
        r.spin = i % 100 == 0 ? 20000 : (int)(test_random(&seed) % 50);
        clb_pool_run(pool, count_chunk, &r, n);
        for (int c = 0; c < MOST_CHUNKS; c++)
            wrong += r.seen[c] != (c < n ? (uint32_t)i : 0);
        chunks += n;
        if (i % rest_every == 0)
            pause_ns(300000); /* long enough for the workers to fall asleep */
    }
    long counted = 0;
    for (int w = 0; w < WORKERS; w++)
        counted += r.by_worker[w];
    CHECK_MSG(wrong == 0 && !r.bad, "%d threads: %d chunks ran not exactly once or shared a worker", threads,
              wrong);
    CHECK_MSG(counted == chunks, "%d threads: %ld of %ld chunks counted", threads, counted, chunks);
    clb_pool_destroy(pool);
}

typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t here;
    int waiting;
} meeting;

/* Each of two chunks waits for the other: ends only if both run at the same time. */
static void meet(void *ctx, int chunk, int worker)
{
    (void)chunk, (void)worker;
    meeting *m = ctx;
    pthread_mutex_lock(&m->mutex);
    m->waiting++;
    pthread_cond_broadcast(&m->here);
    while (m->waiting < 2)
        pthread_cond_wait(&m->here, &m->mutex);
    pthread_mutex_unlock(&m->mutex);
}

static void two_chunks_run_at_the_same_time(void)
{
    clb_pool *pool = clb_pool_create(2, 0);
    for (int i = 0; i < 20; i++) {
        meeting m = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
        clb_pool_run(pool, meet, &m, 2);
        CHECK(m.waiting == 2);
        if (i % 4 == 0)
            pause_ns(1000000);
    }
    clb_pool_destroy(pool);
}

typedef struct {
    clb_pool *pool;
    int inner[4][4]; /* worker that ran inner chunk j of outer chunk i */
    int outer[4];
} nested;

typedef struct {
    nested *n;
    int outer;
} nested_inner;

static void inner_chunk(void *ctx, int chunk, int worker)
{
    nested_inner *in = ctx;
    in->n->inner[in->outer][chunk] = worker;
}

static void outer_chunk(void *ctx, int chunk, int worker)
{
    nested *n = ctx;
    n->outer[chunk] = worker;
    nested_inner in = {n, chunk};
    clb_pool_run(n->pool, inner_chunk, &in, 4);
}

static void a_nested_region_runs_inline_on_the_same_worker(void)
{
    clb_pool *pool = clb_pool_create(3, 0);
    for (int outer = 1; outer <= 4; outer++) {
        nested n = {.pool = pool};
        memset(n.inner, -1, sizeof n.inner);
        clb_pool_run(pool, outer_chunk, &n, outer);
        int same = 1;
        for (int i = 0; i < outer; i++)
            for (int j = 0; j < 4; j++)
                same &= n.inner[i][j] == n.outer[i];
        CHECK(same);
    }
    clb_pool_destroy(pool);
}

static void edges(void)
{
    CHECK(clb_pool_create(0, 0) == NULL);
    CHECK(clb_pool_create(-3, 1) == NULL);
    CHECK(clb_pool_threads(NULL) == 1);
    clb_pool_destroy(NULL);
    region r = {.round = 1};
    clb_pool_run(NULL, count_chunk, &r, 5);
    CHECK(r.by_worker[0] == 5 && r.seen[4] == 1 && r.seen[5] == 0);
    clb_pool *one = clb_pool_create(1, 1);
    CHECK(clb_pool_threads(one) == 1);
    clb_pool_run(one, count_chunk, &r, 3);
    clb_pool_run(one, count_chunk, &r, 0);
    clb_pool_run(one, count_chunk, &r, -1);
    CHECK(r.by_worker[0] == 8);
    clb_pool_destroy(one);
    for (int i = 0; i < 50; i++) { /* destroyed while spinning, asleep and just started */
        clb_pool *pool = clb_pool_create(1 + i % 4, i % 2);
        if (i % 3)
            clb_pool_run(pool, count_chunk, &r, 4);
        if (i % 5 == 0)
            pause_ns(400000);
        clb_pool_destroy(pool);
    }
}

int main(void)
{
    every_chunk_runs_exactly_once(2, 100000, 1000);
    every_chunk_runs_exactly_once(4, 4000, 40);
    every_chunk_runs_exactly_once(8, 1000, 10);
    two_chunks_run_at_the_same_time();
    a_nested_region_runs_inline_on_the_same_worker();
    edges();
    return test_report();
}
