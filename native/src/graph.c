/* graph.c - the steps that every family's graph is made of: matrix jobs over the pool, row ranges,
 * norms, embedding, rope, head. Calling thread of the engine; work runs on the pool. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "fault.h"

/* Below this many weight bytes a chunk costs more in bandwidth and hand-over than it gains (measured:
 * contiguous pieces under 64 KB lose 10-20 % of the streaming rate). */
#define MIN_CHUNK_BYTES ((int64_t)64 << 10)
/* Up to here one contiguous share per worker beats smaller chunks (two threads, SmolLM2 decode: 4-10 %):
 * the prefetcher of one core does not read into what the other is about to read. */
#define WHOLE_CHUNK_BYTES ((int64_t)512 << 10)
/* Chunks per worker beyond: enough to even out a busy neighbour, few enough to stay contiguous. */
#define CHUNKS_PER_WORKER 4
/* Rows that are worth a hand-over to the pool when the work per row is small. */
#define ROW_GRAIN 16

/* ---- ranges ------------------------------------------------------------------------------- */

typedef struct {
    clb_range_fn fn;
    void *context;
    int32_t n;
    int32_t step;
} range_job;

static void run_range(void *context, int chunk, int worker)
{
    const range_job *job = context;
    int32_t begin = chunk * job->step;
    int32_t end = begin + job->step < job->n ? begin + job->step : job->n;
    job->fn(job->context, begin, end, worker);
}

void clb_for_range(colibri_engine *engine, int32_t n, int32_t grain, clb_range_fn fn, void *context)
{
    if (n <= 0)
        return;
    int32_t workers = clb_pool_threads(engine->pool);
    int32_t pieces = workers == 1 ? 1 : workers * CHUNKS_PER_WORKER;
    int32_t units = (n + grain - 1) / grain;
    if (pieces > units)
        pieces = units;
    int32_t step = (units + pieces - 1) / pieces * grain;
    range_job job = {fn, context, n, step};
    if (step >= n)
        fn(context, 0, n, 0);
    else
        clb_pool_run(engine->pool, run_range, &job, (n + step - 1) / step);
}

/* ---- matrix jobs --------------------------------------------------------------------------- */

/* One prepared activation, shared by the jobs that read the same rows. */
typedef struct {
    int32_t kind;
    int32_t cols;
    int32_t n;
    const float *x;
    int64_t ldx;
    const int32_t *index;
    void *data;
} activation;

typedef struct {
    int32_t job;
    int32_t block0, block1;
    int32_t t0, t1;
} piece;

typedef struct {
    colibri_engine *engine;
    const clb_job *jobs;
    const activation **of_job;
    const piece *pieces;
    const activation *acts;
} matrix_work;

static void run_prepare(void *context, int chunk, int worker)
{
    (void)worker;
    const matrix_work *work = context;
    const piece *p = &work->pieces[chunk];
    const activation *a = &work->acts[p->job];
    work->engine->kernels->act_prepare(a->kind, a->cols, a->n, a->x, a->ldx, a->index, a->data, p->t0, p->t1);
}

static void run_linear(void *context, int chunk, int worker)
{
    (void)worker;
    const matrix_work *work = context;
    const piece *p = &work->pieces[chunk];
    const clb_job *job = &work->jobs[p->job];
    work->engine->kernels->linear(job->w, work->of_job[p->job]->data, job->n, p->t0, p->t1, job->y, job->ldy,
                                  p->block0, p->block1, job->flags);
}

static int same_source(const activation *a, const clb_job *job)
{
    return a->x == job->x && a->ldx == job->ldx && a->index == job->index && a->n == job->n &&
           a->cols == job->w->cols && a->kind == job->w->act;
}

/* Weight bytes of a job, weighted by how compute-bound its width makes it (about four tokens per pass
 * over the weights are free). */
static int64_t job_cost(const clb_job *job)
{
    return job->w->bytes * (job->n < 4 ? 4 : job->n) / 4;
}

/* How many pieces each job is cut into: by blocks first, by tokens when the blocks do not suffice. */
static int32_t cut_job(const colibri_engine *engine, const clb_job *job, int32_t index, int64_t target,
                       piece *out)
{
    int64_t want = (job_cost(job) + target - 1) / target;
    /* Equal shares, unless that makes them tiny: a small matrix in three pieces keeps two workers busy
     * for the time of two. */
    int32_t workers = clb_pool_threads(engine->pool);
    int64_t even = (want + workers - 1) / workers * workers;
    if (job_cost(job) / even >= MIN_CHUNK_BYTES / 4)
        want = even;
    int32_t blocks = job->w->n_blocks, by_block = want < blocks ? (int32_t)want : blocks;
    int32_t align = engine->kernels->act_align, tiles = (job->n + align - 1) / align;
    int32_t by_token = by_block == blocks ? (int32_t)((want + blocks - 1) / blocks) : 1;
    if (by_token > tiles)
        by_token = tiles;
    if (by_token < 1)
        by_token = 1;
    int32_t block_step = (blocks + by_block - 1) / by_block;
    int32_t token_step = (tiles + by_token - 1) / by_token * align;
    int32_t n = 0;
    for (int32_t b = 0; b < blocks; b += block_step)
        for (int32_t t = 0; t < job->n; t += token_step, n++)
            if (out != NULL)
                out[n] = (piece){index, b, b + block_step < blocks ? b + block_step : blocks, t,
                                 t + token_step < job->n ? t + token_step : job->n};
    return n;
}

static int32_t no_memory(const clb_error *error)
{
    return clb_fail(error, COLIBRI_ERROR_MEMORY,
                    "no memory for the temporaries of a layer; use a smaller prefill chunk");
}

static int32_t prepare_all(colibri_engine *engine, matrix_work *work, activation *acts, int32_t n_acts,
                           const clb_error *error)
{
    int32_t align = engine->kernels->act_align;
    int32_t grain = (ROW_GRAIN + align - 1) / align * align;
    int32_t n_pieces = 0, workers = clb_pool_threads(engine->pool);
    for (int32_t i = 0; i < n_acts; i++) {
        acts[i].data = clb_scratch_get(
            &engine->scratch, (size_t)engine->kernels->act_bytes(acts[i].kind, acts[i].cols, acts[i].n));
        if (acts[i].data == NULL)
            return no_memory(error);
        n_pieces += (acts[i].n + grain - 1) / grain;
    }
    if (workers == 1 || n_pieces < 2 * workers) {
        for (int32_t i = 0; i < n_acts; i++)
            engine->kernels->act_prepare(acts[i].kind, acts[i].cols, acts[i].n, acts[i].x, acts[i].ldx,
                                         acts[i].index, acts[i].data, 0, acts[i].n);
        return COLIBRI_OK;
    }
    piece *pieces = clb_scratch_get(&engine->scratch, (size_t)n_pieces * sizeof *pieces);
    if (pieces == NULL)
        return no_memory(error);
    int32_t n = 0;
    for (int32_t i = 0; i < n_acts; i++)
        for (int32_t t = 0; t < acts[i].n; t += grain)
            pieces[n++] = (piece){i, 0, 0, t, t + grain < acts[i].n ? t + grain : acts[i].n};
    work->pieces = pieces;
    clb_pool_run(engine->pool, run_prepare, work, n);
    return COLIBRI_OK;
}

int32_t clb_run_jobs(colibri_engine *engine, const clb_job *jobs, int32_t n_jobs, const clb_error *error)
{
    if (n_jobs == 0)
        return COLIBRI_OK;
    activation *acts = clb_scratch_get(&engine->scratch, (size_t)n_jobs * sizeof *acts);
    const activation **of_job = clb_scratch_get(&engine->scratch, (size_t)n_jobs * sizeof *of_job);
    if (acts == NULL || of_job == NULL)
        return no_memory(error);
    int32_t n_acts = 0;
    int64_t total = 0;
    for (int32_t j = 0; j < n_jobs; j++) {
        int32_t found = -1;
        /* Sharing jobs stand side by side; three back covers q, k, v and gate, up. */
        for (int32_t a = n_acts - 1; a >= 0 && a >= n_acts - 3 && found < 0; a--)
            if (same_source(&acts[a], &jobs[j]))
                found = a;
        if (found < 0) {
            found = n_acts++;
            acts[found] = (activation){jobs[j].w->act, jobs[j].w->cols, jobs[j].n, jobs[j].x,
                                       jobs[j].ldx,    jobs[j].index,   NULL};
        }
        of_job[j] = &acts[found];
        total += job_cost(&jobs[j]);
    }
    matrix_work work = {engine, jobs, of_job, NULL, acts};
    int32_t status = prepare_all(engine, &work, acts, n_acts, error);
    if (status != COLIBRI_OK)
        return status;

    int32_t workers = clb_pool_threads(engine->pool);
    int64_t share = total / workers + 1;
    int64_t target = share / CHUNKS_PER_WORKER;
    if (target < WHOLE_CHUNK_BYTES)
        target = share < WHOLE_CHUNK_BYTES ? share : WHOLE_CHUNK_BYTES;
    if (target < MIN_CHUNK_BYTES)
        target = MIN_CHUNK_BYTES;
    if (workers == 1)
        target = INT64_MAX / 2;
    int32_t n_pieces = 0;
    for (int32_t j = 0; j < n_jobs; j++)
        n_pieces += cut_job(engine, &jobs[j], j, target, NULL);
    piece *pieces = clb_scratch_get(&engine->scratch, (size_t)n_pieces * sizeof *pieces);
    if (pieces == NULL)
        return no_memory(error);
    int32_t n = 0;
    for (int32_t j = 0; j < n_jobs; j++)
        n += cut_job(engine, &jobs[j], j, target, pieces + n);
    work.pieces = pieces;
    clb_pool_run(engine->pool, run_linear, &work, n);
    return COLIBRI_OK;
}

/* ---- rows ---------------------------------------------------------------------------------- */

typedef struct {
    colibri_engine *engine;
    float *out;
    const float *x;
    const float *y;
    const float *weight;
    int32_t width;
    float eps;
    int32_t layer;
} row_work;

/* An exponent of all ones is infinity or NaN; integer compare keeps this a vector loop. */
static int row_is_finite(const float *x, int32_t n)
{
    uint32_t bad = 0;
    for (int32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return bad == 0;
}

static void run_norm(void *context, int32_t begin, int32_t end, int worker)
{
    (void)worker;
    const row_work *work = context;
    for (int32_t row = begin; row < end; row++) {
        const float *x = work->x + (int64_t)row * work->width;
        int none = INT32_MAX;
        if (!row_is_finite(x, work->width) &&
            atomic_compare_exchange_strong(&work->engine->bad_layer, &none, work->layer))
            atomic_store(&work->engine->bad_row, row);
        work->engine->kernels->rms_norm(work->out + (int64_t)row * work->width, x, work->weight, work->width,
                                        work->eps);
    }
}

void clb_norm_rows(colibri_engine *engine, float *out, const float *x, const float *weight, int32_t n,
                   int32_t width, float eps, int32_t layer)
{
    row_work work = {engine, out, x, NULL, weight, width, eps, layer};
    clb_for_range(engine, n, ROW_GRAIN, run_norm, &work);
}

static void run_swiglu(void *context, int32_t begin, int32_t end, int worker)
{
    (void)worker;
    const row_work *work = context;
    int64_t at = (int64_t)begin * work->width;
    for (int32_t row = begin; row < end; row++, at += work->width)
        work->engine->kernels->swiglu(work->out + at, work->x + at, work->y + at, work->width);
}

void clb_swiglu_rows(colibri_engine *engine, float *out, const float *gate, const float *up, int32_t n,
                     int32_t width)
{
    row_work work = {engine, out, gate, up, NULL, width, 0, 0};
    clb_for_range(engine, n, ROW_GRAIN, run_swiglu, &work);
}

int32_t clb_dense_mlp(colibri_engine *engine, const clb_weight *gate, const clb_weight *up,
                      const clb_weight *down, const float *h, int32_t n, float *x, const clb_error *error)
{
    int32_t ffn = gate->rows, hidden = down->rows;
    float *a = clb_scratch_get(&engine->scratch, (size_t)n * (size_t)ffn * sizeof *a);
    float *b = clb_scratch_get(&engine->scratch, (size_t)n * (size_t)ffn * sizeof *b);
    if (!a || !b)
        return no_memory(error);
    const clb_job jobs[] = {{gate, h, hidden, NULL, n, a, ffn, 0}, {up, h, hidden, NULL, n, b, ffn, 0}};
    int32_t status = clb_run_jobs(engine, jobs, 2, error);
    if (status != COLIBRI_OK)
        return status;
    clb_swiglu_rows(engine, a, a, b, n, ffn);
    const clb_job job = {down, a, ffn, NULL, n, x, hidden, CLB_LINEAR_ADD};
    return clb_run_jobs(engine, &job, 1, error);
}

int32_t clb_check_finite(colibri_engine *engine, const clb_batch *batch, const clb_error *error)
{
    int layer = atomic_load(&engine->bad_layer);
    if (layer == INT32_MAX)
        return COLIBRI_OK;
    int row = atomic_load(&engine->bad_row);
    int32_t position = -1;
    for (int32_t r = 0; r < batch->n_runs; r++)
        if (row >= batch->runs[r].row0 && row < batch->runs[r].row0 + batch->runs[r].n)
            position = batch->runs[r].first + row - batch->runs[r].row0;
    return clb_fail(error, COLIBRI_ERROR_NUMERIC,
                    "a value became infinite or NaN at position %" PRId32
                    ", found at the entry of layer %d of %" PRId32
                    "; the weights are damaged or the format is wrong: run verify on the model",
                    position, layer, engine->geometry.n_layers);
}

/* ---- ends of the network ------------------------------------------------------------------- */

void clb_embed(colibri_engine *engine, const int32_t *tokens, float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        clb_weight_row(&engine->embedding, tokens[i], x + (int64_t)i * engine->geometry.hidden);
}

void clb_rope_table(const colibri_engine *engine, float *out, int32_t first, int32_t n)
{
    int32_t pairs = engine->family->rope_dim(&engine->geometry) / 2;
    for (int32_t t = 0; t < n; t++)
        for (int32_t i = 0; i < pairs; i++) {
            /* The angle is an f32 product, as in the models' own code; at long contexts this matters. */
            double angle = (double)((float)(first + t) * engine->inv_freq[i]);
            out[2 * ((int64_t)t * pairs + i)] = (float)cos(angle);
            out[2 * ((int64_t)t * pairs + i) + 1] = (float)sin(angle);
        }
}

int32_t clb_head(colibri_engine *engine, float *normed, int32_t n, float *logits, int32_t wide,
                 const clb_error *error)
{
    const colibri_geometry *g = &engine->geometry;
    if (engine->options.fault == CLB_FAULT_BATCH_ORDER && wide)
        for (int64_t i = 0; i < (int64_t)n * g->hidden; i++)
            normed[i] *= 1.0f + 0x1p-6f;
    clb_job job = {&engine->head, normed, g->hidden, NULL, n, logits, g->vocab, 0};
    return clb_run_jobs(engine, &job, 1, error);
}

/* ---- KV ------------------------------------------------------------------------------------ */

/* The group of parts with this window; -1 = too many different windows. */
static int32_t find_group(clb_kv_layout *kv, int32_t window)
{
    if (kv->n_groups == 0)
        kv->n_groups = 1; /* group 0 exists even if no part keeps everything */
    for (int32_t i = 0; i < kv->n_groups; i++)
        if (kv->groups[i].window == window)
            return i;
    if (kv->n_groups == CLB_KV_GROUPS)
        return -1;
    kv->groups[kv->n_groups].window = window;
    return kv->n_groups++;
}

int32_t clb_kv_add(colibri_engine *engine, clb_kv_kind kind, int32_t layer, int32_t window,
                   int64_t bytes_per_block, int64_t bytes_per_token)
{
    clb_kv_layout *kv = &engine->kv;
    int32_t group = find_group(kv, window);
    clb_kv_part *parts = realloc(kv->parts, (size_t)(kv->n_parts + 1) * sizeof *parts);
    if (parts != NULL)
        kv->parts = parts;
    if (parts == NULL || group < 0)
        return -1;
    if (layer >= engine->geometry.n_layers && engine->drafts == 0) {
        parts[kv->n_parts] = (clb_kv_part){kind, layer, -1, bytes_per_block, group, window, 0};
        return kv->n_parts++;
    }
    int64_t *bytes = group == 0 ? &kv->block_bytes : &kv->groups[group].block_bytes;
    parts[kv->n_parts] = (clb_kv_part){kind, layer, *bytes, bytes_per_block, group, window, 0};
    *bytes += (bytes_per_block + 63) / 64 * 64;
    if (group == 0)
        kv->bytes_per_token += bytes_per_token;
    return kv->n_parts++;
}

const uint8_t **clb_kv_blocks(colibri_engine *engine, const clb_run *run, const clb_kv_part *part,
                              const clb_error *error)
{
    int32_t n = (run->first + run->n + CLB_SPAN - 1) / CLB_SPAN;
    const uint8_t **blocks = clb_scratch_get(&engine->scratch, (size_t)n * sizeof *blocks);
    if (blocks == NULL) {
        no_memory(error);
        return NULL;
    }
    for (int32_t i = 0; i < n; i++)
        blocks[i] = run->session->blocks[part->group][i] == NULL
                        ? NULL /* before every row's window */
                        : run->session->blocks[part->group][i] + part->offset;
    return blocks;
}
