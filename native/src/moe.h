/* moe.h - the routed experts of one layer: grouping rows by expert, computing, adding up.
 *
 * A slot is one (row, expert) pair; slots are sorted by expert, then by row. A row's contributions are
 * added in ascending order of the expert's number, whoever computes them and whenever: that is what
 * makes a token independent of its batch and of where experts lie.
 *
 * A decode step (clb_moe_begin, clb_moe_run) computes experts in the order in which they become ready and
 * adds up at the end. A prefill chunk walks the experts in ascending order, a group at a time
 * (clb_moe_group), so that it can stop after each and holds no output of more than one group. */
#ifndef CLB_MOE_H
#define CLB_MOE_H

#include "engine.h"

/* A prefill group ends at the first of these: enough rows to fill the team, little enough scratch. */
#define CLB_GROUP_EXPERTS 32
#define CLB_GROUP_ROWS 512
/* Most rows whose outputs are held at once: a full group and an expert of common size. */
#define CLB_PIECE_ROWS 1024

/* Which rows each expert has. */
typedef struct clb_moe_plan {
    int32_t n; /* rows */
    int32_t k; /* experts per row */
    int32_t n_experts;
    int32_t *slot_row;  /* [n*k] */
    float *slot_weight; /* [n*k] */
    int32_t *first;     /* [n_experts+1] first slot of each expert */
} clb_moe_plan;

size_t clb_moe_plan_bytes(int32_t n, int32_t k, int32_t n_experts);
/* Lays the plan out in `memory` and sorts. ids and weights: [n][k], any order within a row.
 * cursor: n_experts ints of scratch. */
void clb_moe_plan_make(clb_moe_plan *plan, void *memory, int32_t n, int32_t k, int32_t n_experts,
                       const int32_t *ids, const float *weights, int32_t *cursor);

/* A decode step, first half: the plan of n rows (in the engine's scratch) and the request for its
 * experts, whose missing ones are on their way when this returns. The caller ends it with
 * clb_store_forget, whatever happens. */
int32_t clb_moe_begin(colibri_engine *engine, const clb_moe_layer *layer, const int32_t *ids,
                      const float *weights, int32_t n, clb_moe_plan *plan, const clb_error *error);
/* Second half: x[row] += sum of weight * expert(h[row]), plus the shared expert. */
int32_t clb_moe_run(colibri_engine *engine, const clb_moe_layer *layer, const clb_moe_plan *plan,
                    const float *h, float *x, const clb_error *error);

/* Announces the experts of a plan from number `from` on, in ascending order. `again` = after an
 * interruption. */
int32_t clb_moe_announce(colibri_engine *engine, const clb_moe_layer *layer, const clb_moe_plan *plan,
                         int32_t from, int again, const clb_error *error);
/* Computes the next few announced experts, at most `most` of them and little more than `most_rows` rows, and
 * adds them to sum [n][hidden]; takes the engine's scratch anew. *next becomes the number of the first expert
 * not yet done; plan->n_experts when all are. */
int32_t clb_moe_group(colibri_engine *engine, const clb_moe_layer *layer, const clb_moe_plan *plan,
                      const float *h, float *sum, int32_t *next, int32_t most, int32_t most_rows,
                      const clb_error *error);
/* x[row] += sum[row] + shared expert(h[row]) for n rows. Changes sum. */
int32_t clb_moe_finish(colibri_engine *engine, const clb_moe_layer *layer, const float *h, float *sum,
                       int32_t n, float *x, const clb_error *error);

#endif
