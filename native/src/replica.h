/* replica.h - which of several copies the next whole-expert read goes to.
 *
 * A replica is one complete or partial copy of a model's experts on one drive. The rule: the copy that
 * is expected to finish this read first, given what it has still to deliver and how fast it has been
 * under load. With reads always outstanding, the split becomes proportional to speed. An expert is read
 * whole from one replica, so a choice never mixes copies; which one it is never changes a token.
 *
 * A replica that fails is left alone for a while (a second, then twice as long each time) and then given
 * one read to show whether it is back. One that has not been measured for a long time, because faster
 * ones take everything, is given one read too.
 *
 * Speed is bytes over the time in which something was outstanding, so a caller that notices completions
 * late makes a drive look slower than it is, never faster.
 *
 * Pure functions over the caller's array: no clock (the caller passes `now` in seconds, monotonic), no
 * files, no allocation. One thread per array.
 */
#ifndef CLB_REPLICA_H
#define CLB_REPLICA_H

#include <stdint.h>

/* Replicas in one array: as many as a set in 32 bits has room for. */
#define CLB_REPLICA_MOST 32

typedef struct {
    double rate;         /* bytes per second under load, moving average; 0 = not measured yet */
    int64_t outstanding; /* bytes asked for and not yet delivered */
    int64_t total;       /* bytes delivered, for telemetry */
    /* the period that began when something was asked of an idle drive */
    int32_t loaded; /* 1 = at some time in it enough was outstanding to show what the drive can do */
    int64_t period_bytes;
    double period_since;
    /* loaded periods that are not in `rate` yet */
    int64_t measured_bytes;
    double measured_seconds;
    double measured_at; /* last update of rate, or last read sent to find it out */
    int32_t failures;   /* in a row; 0 = in use */
    int32_t trying;     /* a failed replica's one read is under way */
    double retry_at;    /* when a failed replica may have it */
} clb_replica;

void clb_replica_init(clb_replica *replicas, int32_t n, double now);
/* The replica for a read of `bytes`, or -1. `allowed`: bit i = replica i holds this expert and has not
 * failed in this very read. Replicas that have failed are used when no other is allowed: a read is never
 * refused for an earlier read's failure. */
int32_t clb_replica_choose(const clb_replica *replicas, int32_t n, uint32_t allowed, int64_t bytes,
                           double now);
/* The read chosen was submitted, was delivered, or failed; each started read ends in one of the two. */
void clb_replica_started(clb_replica *replica, int64_t bytes, double now);
void clb_replica_delivered(clb_replica *replica, int64_t bytes, double now);
void clb_replica_failed(clb_replica *replica, int64_t bytes, double now);

#endif
