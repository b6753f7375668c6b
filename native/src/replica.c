/* replica.c - see replica.h. */
#include "replica.h"

#include <string.h>

/* From this much outstanding on, a drive shows what it can do; less, and latency is measured instead. */
#define LOAD_BYTES ((int64_t)4 << 20)
/* A measurement under load is this large, and if the load goes on this long, so that it is not one lucky
 * read ... */
#define MEASURED_BYTES ((int64_t)16 << 20)
#define MEASURED_SECONDS 0.05
/* ... and moves the average by this share. */
#define NEW_SHARE 0.25
/* A replica that was not measured for this many times as long as a read from it takes is sent one: a bad
 * measurement is soon made good, and a slow drive costs a fiftieth of the time. */
#define STALE_READS 50.0
#define LEAST_STALE_SECONDS 1.0
#define MOST_STALE_SECONDS 120.0
#define FIRST_RETRY_SECONDS 1.0
#define LAST_RETRY_SECONDS 120.0

void clb_replica_init(clb_replica *replicas, int32_t n, double now)
{
    memset(replicas, 0, (size_t)n * sizeof *replicas);
    for (int32_t i = 0; i < n; i++)
        replicas[i].measured_at = now;
}

static int is_allowed(uint32_t allowed, int32_t i)
{
    return (allowed >> i & 1) != 0;
}

/* An unmeasured replica counts as fast as the fastest, so that it gets work and is measured. */
static double assumed_rate(const clb_replica *replicas, int32_t n, int32_t i)
{
    double rate = replicas[i].rate;
    if (rate > 0)
        return rate;
    for (int32_t k = 0; k < n; k++)
        if (replicas[k].rate > rate)
            rate = replicas[k].rate;
    return rate > 0 ? rate : 1.0;
}

static int is_stale(const clb_replica *r, int64_t bytes, double now)
{
    double seconds = r->rate > 0 ? STALE_READS * (double)bytes / r->rate : 0;
    if (seconds < LEAST_STALE_SECONDS)
        seconds = LEAST_STALE_SECONDS;
    if (seconds > MOST_STALE_SECONDS)
        seconds = MOST_STALE_SECONDS;
    return now - r->measured_at >= seconds;
}

int32_t clb_replica_choose(const clb_replica *replicas, int32_t n, uint32_t allowed, int64_t bytes,
                           double now)
{
    int32_t best = -1, last_resort = -1;
    double best_end = 0;
    for (int32_t i = 0; i < n && i < CLB_REPLICA_MOST; i++) {
        const clb_replica *r = &replicas[i];
        if (!is_allowed(allowed, i))
            continue;
        if (r->failures > 0) {
            if (now >= r->retry_at && !r->trying)
                return i;
            if (last_resort < 0 || r->retry_at < replicas[last_resort].retry_at)
                last_resort = i;
            continue;
        }
        if (r->outstanding == 0 && is_stale(r, bytes, now))
            return i;
        const double end = (double)(r->outstanding + bytes) / assumed_rate(replicas, n, i);
        const int wins_tie = best >= 0 && end == best_end && r->rate <= 0 && replicas[best].rate > 0;
        if (best < 0 || end < best_end || wins_tie) {
            best = i;
            best_end = end;
        }
    }
    return best >= 0 ? best : last_resort;
}

void clb_replica_started(clb_replica *replica, int64_t bytes, double now)
{
    clb_replica *r = replica;
    if (r->outstanding == 0) {
        r->loaded = 0;
        r->period_bytes = 0;
        r->period_since = now;
    }
    r->outstanding += bytes;
    r->loaded |= r->outstanding >= LOAD_BYTES;
    r->trying = r->failures > 0;
    if (is_stale(r, bytes, now)) /* one read is enough to find out */
        r->measured_at = now;
}

static void learn(clb_replica *r, double rate, double now)
{
    r->rate = r->rate <= 0 ? rate : r->rate + NEW_SHARE * (rate - r->rate);
    r->measured_at = now;
}

/* A light load shows latency more than speed: it may set the first rate and raise a later one, not lower
 * it. Loaded periods are added up until they are large enough. */
static void measure(clb_replica *r, double now)
{
    const double seconds = now - r->period_since;
    const int ends = r->outstanding == 0;
    if (!r->loaded) {
        const double rate = ends && seconds > 0 ? (double)r->period_bytes / seconds : 0;
        if (rate > r->rate)
            learn(r, rate, now);
        return;
    }
    const int64_t bytes = r->measured_bytes + r->period_bytes;
    const double all_seconds = r->measured_seconds + seconds;
    const int enough = bytes >= MEASURED_BYTES && (ends || all_seconds >= MEASURED_SECONDS);
    if (all_seconds > 0 && (enough || (ends && r->rate <= 0))) {
        learn(r, (double)bytes / all_seconds, now);
        r->measured_bytes = 0;
        r->measured_seconds = 0;
    } else if (ends) {
        r->measured_bytes = bytes;
        r->measured_seconds = all_seconds;
    } else {
        return;
    }
    r->period_bytes = 0;
    r->period_since = now;
}

void clb_replica_delivered(clb_replica *replica, int64_t bytes, double now)
{
    clb_replica *r = replica;
    r->outstanding -= bytes;
    r->total += bytes;
    if (r->trying) { /* a read begun before the failure proves nothing */
        r->trying = 0;
        r->failures = 0;
    }
    r->period_bytes += bytes;
    measure(r, now);
}

void clb_replica_failed(clb_replica *replica, int64_t bytes, double now)
{
    clb_replica *r = replica;
    r->outstanding -= bytes;
    /* Reads that were under way when the first one failed are no further evidence. */
    if (r->failures > 0 && !r->trying)
        return;
    double wait = FIRST_RETRY_SECONDS;
    for (int32_t i = 0; i < r->failures && wait < LAST_RETRY_SECONDS; i++)
        wait *= 2;
    r->trying = 0;
    r->failures++;
    r->retry_at = now + (wait < LAST_RETRY_SECONDS ? wait : LAST_RETRY_SECONDS);
}
