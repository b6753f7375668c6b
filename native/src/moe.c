/* moe.c - see moe.h.
 *
 * Rows are grouped by expert, so that a batch reads each expert once: slot = one (row, expert) pair,
 * slots sorted by expert and then by row. A row's contributions are added in ascending order of the
 * expert's number, which does not depend on who else is in the batch. */
#include "moe.h"

#include <inttypes.h>
#include <string.h>

typedef struct {
    colibri_engine *engine;
    const clb_moe_layer *layer;
    int32_t n;
    int32_t *slot_row;   /* [n*k] */
    float *slot_weight;  /* [n*k] */
    int32_t *row_slots;  /* [n][k], ascending */
    const float *out;    /* [n*k][hidden] */
    const float *shared; /* [n][hidden] or NULL */
    float *sum;          /* [n][hidden] */
    float *x;
} moe_work;

static void combine(void *context, int32_t begin, int32_t end, int worker)
{
    (void)worker;
    const moe_work *work = context;
    const clb_kernels *kernels = work->engine->kernels;
    int32_t hidden = work->layer->hidden, k = work->layer->per_token;
    for (int32_t row = begin; row < end; row++) {
        float *sum = work->sum + (int64_t)row * hidden;
        memset(sum, 0, (size_t)hidden * sizeof *sum);
        for (int32_t i = 0; i < k; i++) {
            int32_t slot = work->row_slots[(int64_t)row * k + i];
            kernels->axpy(sum, work->slot_weight[slot], work->out + (int64_t)slot * hidden, hidden);
        }
        if (work->shared != NULL)
            kernels->add(sum, work->shared + (int64_t)row * hidden, hidden);
        kernels->add(work->x + (int64_t)row * hidden, sum, hidden);
    }
}

/* Counting sort by expert. first[e] becomes the first slot of expert e; first[n_experts] the end. */
static void sort_slots(moe_work *work, const int32_t *ids, const float *weights, int32_t *first, int32_t *cursor,
                       int32_t n_experts)
{
    int32_t k = work->layer->per_token;
    memset(first, 0, (size_t)(n_experts + 1) * sizeof *first);
    for (int64_t i = 0; i < (int64_t)work->n * k; i++)
        first[ids[i] + 1]++;
    for (int32_t e = 0; e < n_experts; e++)
        first[e + 1] += first[e];
    memcpy(cursor, first, (size_t)n_experts * sizeof *cursor);
    for (int32_t row = 0; row < work->n; row++)
        for (int32_t i = 0; i < k; i++) {
            int64_t at = (int64_t)row * k + i;
            int32_t slot = cursor[ids[at]]++;
            work->slot_row[slot] = row;
            work->slot_weight[slot] = weights[at];
        }
    /* Slots ascend by expert, so appending them in order sorts each row's list. */
    int32_t *filled = cursor; /* n entries are free: cursor holds max(n_experts, n) */
    memset(filled, 0, (size_t)work->n * sizeof *filled);
    for (int32_t slot = 0; slot < work->n * k; slot++) {
        int32_t row = work->slot_row[slot];
        work->row_slots[(int64_t)row * k + filled[row]++] = slot;
    }
}

int32_t clb_moe_run(colibri_engine *engine, const clb_moe_layer *layer, const float *h, const int32_t *ids,
                    const float *weights, int32_t n, float *x, const clb_error *error)
{
    clb_scratch *scratch = &engine->scratch;
    int32_t n_experts = engine->store.n_experts, k = layer->per_token, slots = n * k, ffn = layer->ffn, hidden = layer->hidden;
    int32_t cursors = n_experts > n ? n_experts : n;
    moe_work work = {.engine = engine, .layer = layer, .n = n, .x = x};
    work.slot_row = clb_scratch_get(scratch, (size_t)slots * sizeof(int32_t));
    work.slot_weight = clb_scratch_get(scratch, (size_t)slots * sizeof(float));
    work.row_slots = clb_scratch_get(scratch, (size_t)slots * sizeof(int32_t));
    work.sum = clb_scratch_get(scratch, (size_t)n * (size_t)hidden * sizeof(float));
    int32_t *first = clb_scratch_get(scratch, (size_t)(n_experts + 1) * sizeof *first);
    int32_t *cursor = clb_scratch_get(scratch, (size_t)cursors * sizeof *cursor);
    int32_t *active = clb_scratch_get(scratch, (size_t)n_experts * sizeof *active);
    const clb_expert **leases = clb_scratch_get(scratch, (size_t)n_experts * sizeof *leases);
    clb_job *jobs = clb_scratch_get(scratch, (size_t)(2 * n_experts + 2) * sizeof *jobs);
    float *gate = clb_scratch_get(scratch, (size_t)slots * (size_t)ffn * sizeof *gate);
    float *up = clb_scratch_get(scratch, (size_t)slots * (size_t)ffn * sizeof *up);
    float *out = clb_scratch_get(scratch, (size_t)slots * (size_t)hidden * sizeof *out);
    size_t shared_size = layer->shared_gate ? (size_t)n * (size_t)layer->shared_ffn : 0;
    float *shared_gate = clb_scratch_get(scratch, shared_size * sizeof(float));
    float *shared_up = clb_scratch_get(scratch, shared_size * sizeof(float));
    float *shared_out = clb_scratch_get(scratch, (layer->shared_gate ? (size_t)n * (size_t)hidden : 0) * sizeof(float));
    if (!work.slot_row || !work.slot_weight || !work.row_slots || !work.sum || !first || !cursor || !active || !leases ||
        !jobs || !gate || !up || !out || !shared_gate || !shared_up || !shared_out)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the experts of %" PRId32 " tokens; use a smaller prefill chunk", n);
    sort_slots(&work, ids, weights, first, cursor, n_experts);

    int32_t n_active = 0, n_jobs = 0, status = COLIBRI_OK;
    for (int32_t e = 0; e < n_experts; e++)
        if (first[e + 1] > first[e])
            active[n_active++] = e;
    clb_store_prefetch(&engine->store, layer->store_layer, active, n_active);
    int32_t n_leases = 0;
    for (; n_leases < n_active && status == COLIBRI_OK; n_leases++) {
        leases[n_leases] = clb_store_acquire(&engine->store, layer->store_layer, active[n_leases], error);
        if (leases[n_leases] == NULL) {
            status = COLIBRI_ERROR_IO;
            break;
        }
    }
    if (status == COLIBRI_OK) {
        if (layer->shared_gate != NULL) {
            jobs[n_jobs++] = (clb_job){layer->shared_gate, h, hidden, NULL, n, shared_gate, layer->shared_ffn, 0};
            jobs[n_jobs++] = (clb_job){layer->shared_up, h, hidden, NULL, n, shared_up, layer->shared_ffn, 0};
        }
        for (int32_t i = 0; i < n_active; i++) {
            int32_t at = first[active[i]], m = first[active[i] + 1] - at;
            jobs[n_jobs++] = (clb_job){&leases[i]->gate, h, hidden, work.slot_row + at, m, gate + (int64_t)at * ffn, ffn, 0};
            jobs[n_jobs++] = (clb_job){&leases[i]->up, h, hidden, work.slot_row + at, m, up + (int64_t)at * ffn, ffn, 0};
        }
        status = clb_run_jobs(engine, jobs, n_jobs, error);
    }
    if (status == COLIBRI_OK) {
        clb_swiglu_rows(engine, gate, gate, up, slots, ffn);
        n_jobs = 0;
        if (layer->shared_gate != NULL) {
            clb_swiglu_rows(engine, shared_gate, shared_gate, shared_up, n, layer->shared_ffn);
            jobs[n_jobs++] = (clb_job){layer->shared_down, shared_gate, layer->shared_ffn, NULL, n, shared_out, hidden, 0};
        }
        for (int32_t i = 0; i < n_active; i++) {
            int32_t at = first[active[i]], m = first[active[i] + 1] - at;
            jobs[n_jobs++] = (clb_job){&leases[i]->down, gate + (int64_t)at * ffn, ffn, NULL, m, out + (int64_t)at * hidden, hidden, 0};
        }
        status = clb_run_jobs(engine, jobs, n_jobs, error);
    }
    for (int32_t i = 0; i < n_leases; i++)
        clb_store_release(&engine->store, leases[i]);
    if (status != COLIBRI_OK)
        return status;
    work.out = out;
    work.shared = layer->shared_gate ? shared_out : NULL;
    clb_for_range(engine, n, 4, combine, &work);
    return COLIBRI_OK;
}
