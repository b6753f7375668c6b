/* moe.c - see moe.h. */
#include "moe.h"

#include <inttypes.h>
#include <string.h>

typedef struct {
    colibri_engine *engine;
    const clb_moe_plan *plan;
    int32_t hidden;
    const int32_t *order;     /* slots of the range by row, then by expert */
    const int32_t *row_begin; /* [rows+1] where each distinct row starts in `order` */
    int32_t slot0;
    const float *out; /* [slot - slot0][hidden] */
    float *sum;
    const float *shared; /* [n][hidden] or NULL */
    float *x;
} moe_work;

static int32_t no_memory(const clb_error *error, int32_t n)
{
    return clb_fail(error, COLIBRI_ERROR_MEMORY,
                    "no memory for the experts of %" PRId32 " tokens; use a smaller prefill chunk", n);
}

/* ---- plan ---------------------------------------------------------------------------------- */

size_t clb_moe_plan_bytes(int32_t n, int32_t k, int32_t n_experts)
{
    return ((size_t)n * (size_t)k * 2 + (size_t)n_experts + 1) * sizeof(int32_t);
}

void clb_moe_plan_make(clb_moe_plan *plan, void *memory, int32_t n, int32_t k, int32_t n_experts,
                       const int32_t *ids, const float *weights, int32_t *cursor)
{
    int32_t *at = memory;
    *plan =
        (clb_moe_plan){n, k, n_experts, at, (float *)(void *)(at + (int64_t)n * k), at + (int64_t)n * k * 2};
    memset(plan->first, 0, (size_t)(n_experts + 1) * sizeof *plan->first);
    for (int64_t i = 0; i < (int64_t)n * k; i++)
        plan->first[ids[i] + 1]++;
    for (int32_t e = 0; e < n_experts; e++)
        plan->first[e + 1] += plan->first[e];
    memcpy(cursor, plan->first, (size_t)n_experts * sizeof *cursor);
    for (int32_t row = 0; row < n; row++)
        for (int32_t i = 0; i < k; i++) {
            int64_t from = (int64_t)row * k + i;
            int32_t slot = cursor[ids[from]]++;
            plan->slot_row[slot] = row;
            plan->slot_weight[slot] = weights[from];
        }
}

/* ---- adding up ----------------------------------------------------------------------------- */

static void add_rows(void *context, int32_t begin, int32_t end, int worker)
{
    (void)worker;
    const moe_work *work = context;
    const clb_kernels *kernels = work->engine->kernels;
    for (int32_t i = begin; i < end; i++)
        for (int32_t j = work->row_begin[i]; j < work->row_begin[i + 1]; j++) {
            int32_t slot = work->order[j];
            kernels->axpy(work->sum + (int64_t)work->plan->slot_row[slot] * work->hidden,
                          work->plan->slot_weight[slot],
                          work->out + (int64_t)(slot - work->slot0) * work->hidden, work->hidden);
        }
}

/* Adds slots [slot0, slot1) to their rows, each row's in ascending order of experts. */
static int32_t accumulate(colibri_engine *engine, const clb_moe_plan *plan, int32_t slot0, int32_t slot1,
                          const float *out, float *sum, int32_t hidden, const clb_error *error)
{
    int32_t slots = slot1 - slot0;
    int32_t *count = clb_scratch_get(&engine->scratch, (size_t)(plan->n + 1) * sizeof *count);
    int32_t *order = clb_scratch_get(&engine->scratch, (size_t)slots * sizeof *order);
    int32_t *row_begin = clb_scratch_get(&engine->scratch, (size_t)(slots + 1) * sizeof *row_begin);
    if (!count || !order || !row_begin)
        return no_memory(error, plan->n);
    /* A stable counting sort by row keeps the experts' order within a row. */
    memset(count, 0, (size_t)(plan->n + 1) * sizeof *count);
    for (int32_t s = slot0; s < slot1; s++)
        count[plan->slot_row[s] + 1]++;
    int32_t rows = 0;
    for (int32_t r = 0; r < plan->n; r++) {
        if (count[r + 1] > 0)
            row_begin[rows++] = count[r];
        count[r + 1] += count[r];
    }
    row_begin[rows] = slots;
    for (int32_t s = slot0; s < slot1; s++)
        order[count[plan->slot_row[s]]++] = s;
    moe_work work = {.engine = engine,
                     .plan = plan,
                     .hidden = hidden,
                     .order = order,
                     .row_begin = row_begin,
                     .slot0 = slot0,
                     .out = out,
                     .sum = sum};
    clb_for_range(engine, rows, 4, add_rows, &work);
    return COLIBRI_OK;
}

static void finish_rows(void *context, int32_t begin, int32_t end, int worker)
{
    (void)worker;
    const moe_work *work = context;
    const clb_kernels *kernels = work->engine->kernels;
    for (int32_t row = begin; row < end; row++) {
        int64_t at = (int64_t)row * work->hidden;
        if (work->shared != NULL)
            kernels->add(work->sum + at, work->shared + at, work->hidden);
        kernels->add(work->x + at, work->sum + at, work->hidden);
    }
}

/* ---- computing ----------------------------------------------------------------------------- */

/* Slots of an expert. */
typedef struct {
    int32_t first, n;
} part;

static part part_of(const clb_moe_plan *plan, int32_t id, int32_t slot0, int32_t slot1)
{
    int32_t first = plan->first[id] > slot0 ? plan->first[id] : slot0;
    int32_t end = plan->first[id + 1] < slot1 ? plan->first[id + 1] : slot1;
    return (part){first, end > first ? end - first : 0};
}

/* Runs the given experts over those of their slots that lie in [slot0, slot1): out[slot - base]. */
static int32_t compute(colibri_engine *engine, const clb_moe_layer *layer, const clb_moe_plan *plan,
                       const clb_expert *const *experts, const int32_t *ids, int32_t n, int32_t slot0,
                       int32_t slot1, int32_t base, const float *h, float *out, const clb_error *error)
{
    int32_t ffn = layer->ffn, hidden = layer->hidden, rows = 0, n_jobs = 0;
    for (int32_t i = 0; i < n; i++)
        rows += part_of(plan, ids[i], slot0, slot1).n;
    clb_job *jobs = clb_scratch_get(&engine->scratch, (size_t)(2 * n) * sizeof *jobs);
    float *gate = clb_scratch_get(&engine->scratch, (size_t)rows * (size_t)ffn * sizeof *gate);
    float *up = clb_scratch_get(&engine->scratch, (size_t)rows * (size_t)ffn * sizeof *up);
    if (!jobs || !gate || !up)
        return no_memory(error, plan->n);
    int64_t at = 0;
    for (int32_t i = 0; i < n; i++) {
        part p = part_of(plan, ids[i], slot0, slot1);
        const int32_t *index = plan->slot_row + p.first;
        if (p.n == 0)
            continue;
        jobs[n_jobs++] = (clb_job){&experts[i]->gate, h, hidden, index, p.n, gate + at * ffn, ffn, 0};
        jobs[n_jobs++] = (clb_job){&experts[i]->up, h, hidden, index, p.n, up + at * ffn, ffn, 0};
        at += p.n;
    }
    int32_t status = clb_run_jobs(engine, jobs, n_jobs, error);
    if (status != COLIBRI_OK)
        return status;
    clb_swiglu_rows(engine, gate, gate, up, rows, ffn);
    at = 0;
    n_jobs = 0;
    for (int32_t i = 0; i < n; i++) {
        part p = part_of(plan, ids[i], slot0, slot1);
        float *y = out + (int64_t)(p.first - base) * hidden;
        if (p.n == 0)
            continue;
        jobs[n_jobs++] = (clb_job){&experts[i]->down, gate + at * ffn, ffn, NULL, p.n, y, hidden, 0};
        at += p.n;
    }
    return clb_run_jobs(engine, jobs, n_jobs, error);
}

static int32_t shared_expert(colibri_engine *engine, const clb_moe_layer *layer, const float *h, int32_t n,
                             float **out, const clb_error *error)
{
    *out = NULL;
    if (layer->shared_gate == NULL)
        return COLIBRI_OK;
    size_t width = (size_t)n * (size_t)layer->shared_ffn;
    float *gate = clb_scratch_get(&engine->scratch, width * sizeof *gate);
    float *up = clb_scratch_get(&engine->scratch, width * sizeof *up);
    *out = clb_scratch_get(&engine->scratch, (size_t)n * (size_t)layer->hidden * sizeof **out);
    if (!gate || !up || !*out)
        return no_memory(error, n);
    const clb_job jobs[] = {{layer->shared_gate, h, layer->hidden, NULL, n, gate, layer->shared_ffn, 0},
                            {layer->shared_up, h, layer->hidden, NULL, n, up, layer->shared_ffn, 0}};
    int32_t status = clb_run_jobs(engine, jobs, 2, error);
    if (status != COLIBRI_OK)
        return status;
    clb_swiglu_rows(engine, gate, gate, up, n, layer->shared_ffn);
    const clb_job down = {layer->shared_down, gate, layer->shared_ffn, NULL, n, *out, layer->hidden, 0};
    return clb_run_jobs(engine, &down, 1, error);
}

int32_t clb_moe_begin(colibri_engine *engine, const clb_moe_layer *layer, const int32_t *ids,
                      const float *weights, int32_t n, clb_moe_plan *plan, const clb_error *error)
{
    int32_t n_experts = engine->store.n_experts, k = layer->per_token;
    void *memory = clb_scratch_get(&engine->scratch, clb_moe_plan_bytes(n, k, n_experts));
    int32_t *cursor = clb_scratch_get(&engine->scratch, (size_t)n_experts * sizeof *cursor);
    if (!memory || !cursor)
        return no_memory(error, n);
    clb_moe_plan_make(plan, memory, n, k, n_experts, ids, weights, cursor);
    return clb_moe_announce(engine, layer, plan, 0, 0, error);
}

int32_t clb_moe_run(colibri_engine *engine, const clb_moe_layer *layer, const clb_moe_plan *plan,
                    const float *h, float *x, const clb_error *error)
{
    clb_scratch *scratch = &engine->scratch;
    int32_t n = plan->n, n_slots = plan->n * plan->k, hidden = layer->hidden;
    int32_t *numbers = clb_scratch_get(scratch, (size_t)plan->n_experts * sizeof *numbers);
    const clb_expert **experts = clb_scratch_get(scratch, (size_t)plan->n_experts * sizeof *experts);
    float *sum = clb_scratch_get(scratch, (size_t)n * (size_t)hidden * sizeof *sum);
    float *out = clb_scratch_get(scratch, (size_t)n_slots * (size_t)hidden * sizeof *out);
    if (!numbers || !experts || !sum || !out)
        return no_memory(error, n);
    /* The shared expert is always at hand: it computes while the missing ones are read. */
    float *shared = NULL;
    int32_t status = shared_expert(engine, layer, h, n, &shared, error);
    while (status == COLIBRI_OK) {
        int32_t ready =
            clb_store_next(&engine->store, CLB_NEXT_ANY, experts, numbers, plan->n_experts, error);
        if (ready <= 0) {
            status = -ready;
            break;
        }
        status = compute(engine, layer, plan, experts, numbers, ready, 0, n_slots, 0, h, out, error);
        for (int32_t i = 0; i < ready; i++)
            clb_store_release(&engine->store, experts[i]);
    }
    if (status != COLIBRI_OK)
        return status;
    memset(sum, 0, (size_t)n * (size_t)hidden * sizeof *sum);
    status = accumulate(engine, plan, 0, n_slots, out, sum, hidden, error);
    if (status != COLIBRI_OK)
        return status;
    moe_work work = {.engine = engine, .hidden = hidden, .sum = sum, .shared = shared, .x = x};
    clb_for_range(engine, n, 4, finish_rows, &work);
    return COLIBRI_OK;
}

/* ---- prefill ------------------------------------------------------------------------------- */

int32_t clb_moe_announce(colibri_engine *engine, const clb_moe_layer *layer, const clb_moe_plan *plan,
                         int32_t from, int again, const clb_error *error)
{
    int32_t *active = clb_scratch_get(&engine->scratch, (size_t)plan->n_experts * sizeof *active), n = 0;
    if (active == NULL)
        return no_memory(error, plan->n);
    for (int32_t e = from; e < plan->n_experts; e++)
        if (plan->first[e + 1] > plan->first[e])
            active[n++] = e;
    return clb_store_request(&engine->store, layer->store_layer, active, n, again ? 0 : plan->n, error);
}

int32_t clb_moe_group(colibri_engine *engine, const clb_moe_layer *layer, const clb_moe_plan *plan,
                      const float *h, float *sum, int32_t *next, int32_t most, int32_t most_rows,
                      const clb_error *error)
{
    const clb_expert *experts[CLB_GROUP_EXPERTS];
    int32_t ids[CLB_GROUP_EXPERTS];
    /* Experts come back in ascending order, so a group is a contiguous range of slots. */
    int32_t n = 0, rows = 0, status = COLIBRI_OK;
    while (n < most && rows < most_rows) {
        int32_t got = clb_store_next(&engine->store, n == 0 ? CLB_NEXT_ORDER : CLB_NEXT_IF_READY, experts + n,
                                     ids + n, 1, error);
        if (got < 0)
            status = -got;
        if (got <= 0)
            break;
        rows += plan->first[ids[n] + 1] - plan->first[ids[n]];
        n++;
    }
    int32_t end = n > 0 ? plan->first[ids[n - 1] + 1] : 0;
    /* An expert that nearly every row wants comes in pieces, so that outputs stay small. */
    for (int32_t slot = n > 0 ? plan->first[ids[0]] : 0; slot < end && status == COLIBRI_OK;) {
        int32_t stop = end - slot > CLB_PIECE_ROWS ? slot + CLB_PIECE_ROWS : end;
        clb_scratch_reset(&engine->scratch);
        float *out =
            clb_scratch_get(&engine->scratch, (size_t)(stop - slot) * (size_t)layer->hidden * sizeof *out);
        status = out == NULL ? no_memory(error, plan->n)
                             : compute(engine, layer, plan, experts, ids, n, slot, stop, slot, h, out, error);
        if (status == COLIBRI_OK)
            status = accumulate(engine, plan, slot, stop, out, sum, layer->hidden, error);
        slot = stop;
    }
    for (int32_t i = 0; i < n; i++)
        clb_store_release(&engine->store, experts[i]);
    if (status == COLIBRI_OK)
        *next = n > 0 ? ids[n - 1] + 1 : plan->n_experts;
    return status;
}

int32_t clb_moe_finish(colibri_engine *engine, const clb_moe_layer *layer, const float *h, float *sum,
                       int32_t n, float *x, const clb_error *error)
{
    float *shared;
    int32_t status = shared_expert(engine, layer, h, n, &shared, error);
    if (status != COLIBRI_OK)
        return status;
    moe_work work = {.engine = engine, .hidden = layer->hidden, .sum = sum, .shared = shared, .x = x};
    clb_for_range(engine, n, 4, finish_rows, &work);
    return COLIBRI_OK;
}
