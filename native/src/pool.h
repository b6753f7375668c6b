/* pool.h - a team of threads that computes one parallel region at a time.
 *
 * What it is for: cutting one kernel call into chunks. The team spins for about 100 microseconds
 * after its last work and then sleeps, so it costs nothing while idle and wakes at once within a
 * token. What it is not: a queue; there is no background work and no way to wait for something else.
 * Who calls it: the engine. One thread at a time may call clb_pool_run on a pool.
 *
 * Chunks are claimed in ascending order by whoever is free, so nothing may depend on which worker
 * computes a chunk or in which order chunks finish.
 */
#ifndef CLB_POOL_H
#define CLB_POOL_H

#include <stdint.h>

#define CLB_POOL_MAX_THREADS 256

typedef struct clb_pool clb_pool;

/* chunk: 0..n_chunks-1. worker: 0..threads-1, distinct for chunks that run at the same time (index of
 * per-worker scratch); 0 is the calling thread. */
typedef void (*clb_pool_fn)(void *ctx, int chunk, int worker);

/* A team of `threads` (caller included, 1..CLB_POOL_MAX_THREADS). pin != 0 binds worker i to the i-th
 * processor this process may use (never the calling thread); a refused binding is ignored. If the
 * system grants fewer threads the team is smaller. NULL only when memory is exhausted or threads < 1. */
clb_pool *clb_pool_create(int threads, int pin);
/* Stops and joins the team. No region may be running. NULL is allowed. */
void clb_pool_destroy(clb_pool *pool);
/* Threads that really run, caller included. NULL counts as 1. */
int clb_pool_threads(const clb_pool *pool);
/* Calls fn once for each chunk and returns when all have finished; what the chunks wrote is visible
 * to the caller. A region of one chunk, a team of one and pool == NULL run inline as worker 0. A call
 * from inside a running region of the same pool also runs inline, as the worker it came from. */
void clb_pool_run(clb_pool *pool, clb_pool_fn fn, void *ctx, int n_chunks);

#endif
