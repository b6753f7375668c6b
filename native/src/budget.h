/* budget.h - where an engine's memory goes: one arithmetic for planning and for opening.
 *
 * For: engine.c, which plans with it and then allocates exactly that. Not for: what is held at the moment
 * (the snapshot) or what the process was measured to hold (the caller). Pure but for the fields it fills in
 * the store's list of sizes; the engine's calling thread. All sizes are as allocated: rounded up to huge
 * pages where the allocation is. */
#ifndef CLB_BUDGET_H
#define CLB_BUDGET_H

#include "engine.h"

/* Scratch of one pool worker when sessions hold up to `context` tokens. */
int64_t clb_worker_bytes(const colibri_engine *engine, int32_t context);
int32_t clb_budget_threads(const colibri_engine *engine);
/* Fills the plan of a bound engine. Fails only when out of memory; a budget that is too small is
 * plan->fits = 0. */
int32_t clb_budget_plan(colibri_engine *engine, const clb_loader *loader, colibri_plan *plan,
                        const clb_error *error);
/* COLIBRI_ERROR_MEMORY with the numbers of a plan that does not fit and the nearest one that does. */
int32_t clb_budget_refuse(const colibri_engine *engine, const colibri_plan *plan, const clb_error *error);

#endif
