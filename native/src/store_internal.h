/* store_internal.h - what store.c (requests, leases), store_slots.c, store_read.c and store_fault.c share. */
#ifndef CLB_STORE_INTERNAL_H
#define CLB_STORE_INTERNAL_H

#include "store.h"

/* Ranges of one expert: three matrices with scales, nothing adjacent. */
#define CLB_MAX_RANGES 6

enum { ITEM_ABSENT, ITEM_READING, ITEM_READY };

typedef struct clb_store_item {
    clb_expert expert;           /* first: what is leased is a pointer to it */
    const clb_entry *entries[3]; /* gate, up, down */
    _Atomic uint32_t uses;       /* decode steps that asked for it */
    _Atomic uint32_t asked;      /* requests of any kind that did */
    _Atomic int32_t seen;        /* `state`, for other threads */
    int32_t class_index;
    int32_t slot; /* in its class, -1 = none */
    int32_t state;
    int32_t leases;
    int32_t pending;  /* reads outstanding */
    int32_t failed;   /* one of them failed */
    int32_t wanted;   /* part of the request and not handed out */
    int32_t guessed;  /* read on a guess and not asked for yet: its place in the list of these plus 1 */
    int32_t warmed;   /* its read was started while idle */
    uint32_t request; /* the request during which its read started */
    uint32_t scan;    /* the prompt for which it was guessed surely; 0 = none */
    uint8_t *staging;
    /* of the read under way */
    uint32_t failed_on[CLB_MAX_RANGES]; /* bit r = replica r failed this range */
    clb_io_completion *failures;        /* [n_replicas] of those; NULL = none so far, or no memory for it */
} clb_store_item;

typedef struct clb_store_class {
    int64_t bytes; /* of a slot, a multiple of CLB_IO_ALIGN */
    int64_t n_items;
    int32_t direct; /* 1 = every expert of it is one aligned packed range */
    int32_t n_slots;
    int32_t n_allocated; /* slots of the arena */
    int32_t n_used;      /* slots that have an owner */
    int32_t n_guessed;   /* of those, on a guess nobody has asked for yet */
    int32_t *vacant;     /* [n_slots - n_used] free slots, last one first */
    int32_t pool;        /* slots that what was asked for leaves to guesses */
    int32_t *owner;      /* [n_slots] item or -1 */
    uint8_t *arena;
} clb_store_class;

/* One merged range of an expert on its way. */
typedef struct clb_store_read {
    int32_t item; /* -1 = free */
    int32_t range;
    int32_t replica;
    int64_t bytes;
} clb_store_read;

/* A contiguous piece of a file and where it lands in the staging buffer. */
typedef struct {
    int32_t file;
    int64_t offset;
    int64_t bytes;
    int64_t at; /* of the aligned superset, in the buffer */
} clb_range;

/* The item's state, also as other threads see it. */
static inline void clb_item_set_state(clb_store_item *item, int32_t state)
{
    item->state = state;
    atomic_store_explicit(&item->seen, state, memory_order_relaxed);
}
/* The expert's spans with neighbours merged, ascending. Returns how many. */
int32_t clb_item_ranges(const clb_store_item *item, clb_range out[CLB_MAX_RANGES]);
/* Whether the expert may be read straight into a slot. */
int clb_item_is_direct(const clb_store_item *item);
int64_t clb_item_bytes(const clb_store_item *item);
/* Places in a request that are none. */
enum { CLB_ORDER_GUESS = -1, CLB_ORDER_WARM = -2 };

/* Makes all slots of a class free. The arrays must be there. */
void clb_store_init_slots(clb_store_class *class, int prefetch);
/* A slot of the class, now owned by `item`, which is at place `order` of the request: a free one, or one
 * whose expert has been given up. A guess keeps to its pool, warming to free slots. -1 = none. */
int32_t clb_store_take_slot(clb_store *store, int32_t item, int32_t order);
/* Forgets where the expert was; its slot becomes free. */
void clb_store_give_up(clb_store *store, int32_t item);
/* The expert counts as read on a guess, or no longer (it was asked for). */
void clb_store_set_guessed(clb_store *store, int32_t item, int guessed);
/* Starts reading an absent expert if slot, staging and queue allow. `order` is its place in the request or
 * one of the above. Returns 1 if started. */
int clb_store_start_read(clb_store *store, int32_t item, int32_t order);
/* Collects finished reads; waits for one if `wait` and something is in flight. */
void clb_store_collect(clb_store *store, int wait);
/* A guess for a decode step is started while fewer reads than this are in flight: by the drives' speed. */
int32_t clb_store_guess_reads(const clb_store *store);
/* Starts again what failed on one replica and can be had from another. 0 = the queue has no room for all. */
int clb_store_retry(clb_store *store);
/* Writes the sentence for the failed request: file, offset, and every replica that was tried. */
void clb_store_describe_failure(const clb_store *store, const clb_error *error);
/* Tests: makes reads fail as options.fault says. */
void clb_store_plant_fault(clb_store *store);

#endif
