/* clock.c - see clock.h. */
#include "clock.h"

#include "engine.h"
#include "fault.h"
#include "os.h"

void clb_clock_start(colibri_engine *engine, int32_t phase)
{
    clb_clock *clock = &engine->clock;
    clock->phase = phase;
    engine->store.phase = phase;
    if (engine->options.fault == CLB_FAULT_CLOCK_OFF)
        return;
    clock->begun = clock->at = clb_os_seconds();
    clock->waited = atomic_load_explicit(&engine->store.wait_ns, memory_order_relaxed);
}

void clb_clock_lap(colibri_engine *engine, int32_t kind)
{
    clb_clock *clock = &engine->clock;
    if (engine->options.fault == CLB_FAULT_CLOCK_OFF)
        return;
    double now = clb_os_seconds();
    int64_t waited = atomic_load_explicit(&engine->store.wait_ns, memory_order_relaxed),
            wait = waited - clock->waited, ns = (int64_t)((now - clock->at) * 1e9) - wait;
    clock->at = now;
    clock->waited = waited;
    if (engine->options.fault == CLB_FAULT_CLOCK_GAP && kind == COLIBRI_TIME_ATTENTION)
        return;
    /* Two readings of the clock for one moment may differ. */
    if (ns > 0)
        atomic_fetch_add_explicit(&clock->ns[clock->phase][kind], ns, memory_order_relaxed);
    if (wait > 0)
        atomic_fetch_add_explicit(&clock->ns[clock->phase][COLIBRI_TIME_DISK], wait, memory_order_relaxed);
}

void clb_clock_stop(colibri_engine *engine)
{
    clb_clock *clock = &engine->clock;
    clb_clock_lap(engine, COLIBRI_TIME_OTHER);
    if (engine->options.fault != CLB_FAULT_CLOCK_OFF)
        atomic_fetch_add_explicit(&clock->step_ns[clock->phase], (int64_t)((clock->at - clock->begun) * 1e9),
                                  memory_order_relaxed);
}
