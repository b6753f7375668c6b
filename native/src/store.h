/* store.h - where routed experts are: the contract between graph and memory hierarchy.
 *
 *   bind      every expert's three matrices and where they lie in the files
 *   load      resident: all in memory; streaming: a cache of slots, filled on demand
 *   request   the graph announces the experts of a layer, then takes them with next as they become
 *             ready and gives each back with release exactly once; what next returned stays valid
 *             until then. forget ends a request early.
 *   prefetch  advisory: a guess for a later layer. It is read when what was asked for leaves the disk
 *             idle, into free or cold slots, never one that is leased or asked for.
 *
 * The graph never learns where an expert was, so placement cannot change a result.
 *
 *   request ----> pending ----> reading (io.h) ----> ready ----> leased ----> ready (evictable)
 *                   |  slot + staging free?   pack on arrival     next     release
 *
 * Slots come in classes by size, packed inside huge-page arenas: experts of another precision (the
 * MTP head's) never take the wide slots of others. A packed, aligned expert is read straight into its
 * slot; any other is read into a staging buffer (merged ranges) and interleaved on arrival.
 * With mirrors (table.h) an expert is read whole from one replica, chosen by measured speed (replica.h);
 * a read that fails is made again from another one, and the request fails only when none is left.
 * Thread rule: the engine's calling thread; counters are atomic; leased views may be read anywhere.
 */
#ifndef CLB_STORE_H
#define CLB_STORE_H

#include <stdatomic.h>

#include "clock.h"
#include "error.h"
#include "io.h"
#include "policy.h"
#include "pool.h"
#include "replica.h"
#include "table.h"
#include "weight.h"

typedef struct {
    clb_weight gate; /* [expert_ffn, hidden] */
    clb_weight up;   /* [expert_ffn, hidden] */
    clb_weight down; /* [hidden, expert_ffn] */
} clb_expert;

typedef struct {
    int32_t io_mode;  /* clb_io_mode */
    int32_t direct;   /* 1 = direct I/O where possible */
    int32_t prefetch; /* 1 = act on guesses */
    int32_t fault;    /* tests, see fault.h */
} clb_store_options;

/* How good a guess is. */
enum {
    CLB_GUESS_MAYBE = 0, /* right more often than not: only as much as keeps the disk from idling */
    CLB_GUESS_SURE = 1   /* a prompt that will touch nearly all: the queue may be filled */
};

/* How next returns experts. */
enum {
    CLB_NEXT_ANY = 0,     /* as they become ready; waits for the first */
    CLB_NEXT_ORDER = 1,   /* in the order of the request; waits */
    CLB_NEXT_IF_READY = 2 /* in the order of the request; 0 if the next one is not ready yet */
};

#define CLB_FOUND 5 /* colibri_found */

struct clb_store_item;
struct clb_store_class;

/* What any thread may know of a replica. */
typedef struct {
    _Atomic int64_t bytes;
    _Atomic int64_t reads;
    _Atomic int64_t failures;
    _Atomic int64_t rate; /* bytes per second, 0 = not measured yet */
    _Atomic int32_t failed;
} clb_store_replica;

typedef struct {
    struct clb_store_item *items; /* [n_layers][n_experts] */
    int32_t n_layers;             /* layers with routed experts only */
    int32_t n_experts;
    int32_t streaming;
    int64_t leases; /* not yet released */

    /* streaming only */
    clb_store_options options;
    const clb_table *table;
    clb_pool *pool;
    clb_io *io;
    struct clb_store_class *classes;
    int32_t n_classes;
    struct clb_store_read *reads;
    int32_t n_reads;
    uint8_t **staging; /* free buffers */
    int32_t n_staging;
    int64_t staging_bytes; /* of one buffer */
    uint8_t *staging_arena;
    size_t staging_arena_bytes;
    clb_policy policy;
    int32_t *unused; /* [n_unused] items that hold or await a guess nobody has asked for yet */
    int32_t n_unused;
    int32_t *warm; /* [n_warm] items to load while idle, hottest first; [next_warm, n_warm) are left */
    int64_t n_warm, next_warm;

    /* trace, off unless it has room */
    int32_t *trace; /* ring of words, see colibri_engine_trace */
    int64_t trace_room, trace_begin, trace_words;
    int64_t trace_lost;  /* records that found no room */
    int64_t trace_steps; /* decode steps, also while it is off */

    /* the request in progress */
    int32_t *wanted; /* item numbers */
    int32_t n_wanted;
    int32_t next_wanted; /* order modes: first not handed out */
    int32_t n_handed;
    uint32_t n_requests;
    int32_t *guesses; /* last one first */
    int32_t n_guesses;
    int32_t guess_kind;  /* of the list */
    uint32_t scan;       /* number of the prompt that passes, see clb_store_end_scan */
    int64_t guess_bytes; /* of one read on a guess */
    int32_t failed;      /* item whose read failed, -1 = none */
    clb_io_completion failure;
    uint32_t failed_on;          /* replicas that were tried for it */
    clb_io_completion *failures; /* [n_replicas] what each of them said; NULL = only `failure` is known */

    clb_replica replicas[CLB_REPLICA_MOST];
    clb_store_replica seen[CLB_REPLICA_MOST];
    int32_t *retries; /* [n_reads] items to be read again from another replica */
    int32_t n_retries;
    struct clb_store_fault *fault; /* tests */

    _Atomic int64_t slot_bytes; /* all slots */
    _Atomic int32_t n_slots;
    _Atomic int32_t n_cached; /* slots that hold or await an expert */
    int32_t phase;            /* colibri_phase of the step that asks */
    int32_t quiet;            /* 1 = the step that asks leaves no use counts */
    _Atomic int64_t found[CLB_PHASES][CLB_FOUND];
    _Atomic int64_t lookups;
    _Atomic int64_t misses;
    _Atomic int64_t bytes_read;
    _Atomic int64_t guessed_bytes; /* read on a guess */
    _Atomic int64_t useful_bytes;  /* of those, asked for before they were given up */
    _Atomic int64_t wasted_bytes;  /* of those, given up unused */
    _Atomic int64_t wait_ns;       /* time that next spent waiting for the disk */
} clb_store;

/* layer counts the sparse layers from 0. */
int32_t clb_store_open(clb_store *store, int32_t n_layers, int32_t n_experts, const clb_error *error);
/* The expert's descriptors, for binding weights while the engine opens. */
clb_expert *clb_store_slot(clb_store *store, int32_t layer, int32_t expert);
/* Where its matrices lie; the table must outlive a streaming store. */
void clb_store_bind(clb_store *store, int32_t layer, int32_t expert, const clb_entry *gate,
                    const clb_entry *up, const clb_entry *down);
/* Packed bytes of all experts, of the largest slot, and of the staging buffers a streaming store needs. */
int64_t clb_store_total_bytes(const clb_store *store);
int64_t clb_store_largest_slot(const clb_store *store);
int64_t clb_store_staging_bytes(const clb_store *store);
/* Memory of the store's own lists. */
int64_t clb_store_table_bytes(const clb_store *store);
/* Sorts bound experts into classes by size. */
int32_t clb_store_classify(clb_store *store, const clb_error *error);
/* Shares cache_bytes among the classes by the bytes of their experts, or gives each exactly `slots` if
 * that is not 0; each gets at least one slot. Pure but for the numbers of slots. */
void clb_store_size(clb_store *store, int64_t cache_bytes, int32_t slots);
/* Memory of one slot of each class, and of the slots that clb_store_size chose. */
int64_t clb_store_least_cache(const clb_store *store);
int64_t clb_store_cache_bytes(const clb_store *store);
void clb_store_class_info(const clb_store *store, int32_t class_index, int64_t *slot_bytes, int64_t *experts,
                          int64_t *slots);
/* Experts that fit in memory together. */
int32_t clb_store_slots(const clb_store *store);
/* Turns to streaming, with the slots that clb_store_size chose. */
int32_t clb_store_stream(clb_store *store, const clb_table *table, clb_pool *pool,
                         const clb_store_options *options, const clb_error *error);

/* Announces n different experts of a layer; `rows` tells how many tokens share the request (1 per
 * decoded sequence, a chunk's length in prefill); 0 = the rest of a request that was interrupted, which is
 * not counted again. */
int32_t clb_store_request(clb_store *store, int32_t layer, const int32_t *experts, int32_t n, int32_t rows,
                          const clb_error *error);
/* Up to max ready experts of the request with their numbers. 0 = none left (or CLB_NEXT_IF_READY: not
 * ready); negative = -status. */
int32_t clb_store_next(clb_store *store, int32_t mode, const clb_expert **out, int32_t *ids, int32_t max,
                       const clb_error *error);
/* Waits until the next expert in the order of the request can be taken with clb_store_next without
 * waiting (or none is left, or its read failed), but no longer than to `until` (clb_os_seconds): 0 = not
 * ready by then. */
int clb_store_wait(clb_store *store, double until);
void clb_store_release(clb_store *store, const clb_expert *expert);
/* Ends the request; reads in flight are kept. Nothing may be leased from it. */
void clb_store_forget(clb_store *store);
/* Guesses for a later layer, most probable first; they replace the guesses not started yet. */
void clb_store_prefetch(clb_store *store, int32_t layer, const int32_t *experts, int32_t n);
/* The same of the SURE kind, first wanted first; NULL = all experts of the layer, ascending. */
void clb_store_prefetch_sure(clb_store *store, int32_t layer, const int32_t *experts, int32_t n);
/* The prompt that sure guesses were made for has ended or stopped: what is left of them may go. Until then
 * the steps of other sessions in between leave them alone. */
void clb_store_end_scan(clb_store *store);
/* Goes on reading what is asked for or guessed, without waiting: between two slices of work. */
void clb_store_read_on(clb_store *store);
/* One decode step has begun: the clock of heat. */
void clb_store_tick(clb_store *store);
/* Decode steps that asked for an expert; layer as in clb_store_slot. Any thread. */
int64_t clb_store_uses(const clb_store *store, int32_t layer, int32_t expert);
/* Requests that asked for an expert, and where it is now (colibri_tier). Any thread. */
uint32_t clb_store_asked(const clb_store *store, int32_t layer, int32_t expert);
int32_t clb_store_tier(const clb_store *store, int32_t layer, int32_t expert);
/* What was learnt before, as clb_policy_recall takes it: forecast and warm-up start from it. */
int32_t clb_store_recall(clb_store *store, const int64_t *counts, const double *steps,
                         const clb_error *error);
/* Loads the hottest experts into free slots for about max_ms; only between requests. Returns 1 when nothing
 * is left to do. */
int clb_store_warm(clb_store *store, int32_t max_ms);
/* Gives up slots for good until the cache takes no more than so many bytes, at least one slot per size;
 * their memory goes back to the system. Nothing may be leased or asked for. */
void clb_store_shrink(clb_store *store, int64_t bytes);
/* Trace of requests in a ring of so many words, 0 = off; see colibri_engine_trace. */
int32_t clb_store_trace(clb_store *store, int64_t words, const clb_error *error);
/* Appends a record; one that finds no room is lost. */
void clb_store_record(clb_store *store, int32_t layer, const int32_t *experts, int32_t n, int32_t rows);
/* Moves the oldest record out. Returns its words, 0 = none, or no room for it. */
int64_t clb_store_take_record(clb_store *store, int32_t *out, int64_t room);
void clb_store_close(clb_store *store);

#endif
