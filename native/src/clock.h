/* clock.h - where the time of an engine's steps goes, by phase and kind of work.
 *
 * A step starts the clock; after each kind of work a lap books the time since the last one, what was spent
 * waiting for the disk apart. The laps of a step are gapless, so the kinds of a phase sum up to the time its
 * steps took. Two clock readings a layer, nothing per row. What a session does outside of steps (drawing
 * tokens, moving KV) is not counted.
 * Thread rule: the engine's calling thread; the counters are atomic. */
#ifndef CLB_CLOCK_H
#define CLB_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>

#define CLB_PHASES 2 /* colibri_phase */
#define CLB_TIMES 5  /* colibri_time */

typedef struct {
    _Atomic int64_t ns[CLB_PHASES][CLB_TIMES];
    _Atomic int64_t step_ns[CLB_PHASES]; /* whole steps, measured apart from their laps */
    double begun;                        /* of the step, clb_os_seconds */
    double at;                           /* of the last lap */
    int64_t waited;                      /* for the disk, by then */
    int32_t phase;
} clb_clock;

struct colibri_engine;

/* A step of `phase` begins; the expert store counts for this phase from now on. */
void clb_clock_start(struct colibri_engine *engine, int32_t phase);
/* What was done since the last lap was of this kind (a colibri_time other than COLIBRI_TIME_DISK). */
void clb_clock_lap(struct colibri_engine *engine, int32_t kind);
/* The step ends; what was done since the last lap is COLIBRI_TIME_OTHER. */
void clb_clock_stop(struct colibri_engine *engine);

#endif
