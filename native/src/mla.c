/* mla.c - see mla.h.
 *
 * Lanes of the kernel are heads, so one row is cut by heads first. Only when a step has fewer pieces
 * than the team has threads is a row also cut by span; every span then gets a state of its own, merged
 * in ascending order in waves of bounded size. */
#include "mla.h"

#include <inttypes.h>
#include <math.h>

#include "topk.h"

/* Heads of a piece: two vectors of lanes share the broadcasts of a key. */
#define PIECE_HEADS 32
/* Spans whose states are held at once. */
#define WAVE_SPANS 64
/* Keys scored by one piece when a single row is cut. */
#define SCORE_GRAIN 1024

typedef struct {
    colibri_engine *engine;
    const clb_batch *batch;
    const clb_run **run_of_row;
    const uint8_t ***blocks; /* [run][span] */
    const float *q;
    float *out;
    clb_softmax *softmax; /* [n][heads] */
    int32_t splits;       /* pieces of a row */
    int32_t split_heads;
    /* one row cut by span */
    int32_t row;
    int32_t wave_first;
    clb_softmax *wave_softmax;
    float *wave_out;
    /* indexer */
    const float *iq;
    const float *iw;
    float *scores;
} mla_work;

static int32_t start_work(mla_work *work, const clb_kv_part *part, const clb_error *error)
{
    colibri_engine *engine = work->engine;
    const clb_batch *batch = work->batch;
    work->run_of_row = clb_scratch_get(&engine->scratch, (size_t)batch->n * sizeof *work->run_of_row);
    work->blocks = clb_scratch_get(&engine->scratch, (size_t)batch->n_runs * sizeof *work->blocks);
    if (!work->run_of_row || !work->blocks)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for attention");
    for (int32_t r = 0; r < batch->n_runs; r++) {
        for (int32_t t = 0; t < batch->runs[r].n; t++)
            work->run_of_row[batch->runs[r].row0 + t] = &batch->runs[r];
        work->blocks[r] = clb_kv_blocks(engine, &batch->runs[r], part, error);
        if (work->blocks[r] == NULL)
            return COLIBRI_ERROR_MEMORY;
    }
    return COLIBRI_OK;
}

static int32_t row_position(const mla_work *work, int32_t row)
{
    return work->run_of_row[row]->first + row - work->run_of_row[row]->row0;
}

static const uint16_t *const *row_blocks(const mla_work *work, int32_t row)
{
    return (const uint16_t *const *)(const void *)work->blocks[work->run_of_row[row] - work->batch->runs];
}

/* ---- selection ----------------------------------------------------------------------------- */

static void score_row(const mla_work *work, int32_t row, int32_t s0, int32_t s1, float *scores, void *scratch)
{
    const colibri_geometry *g = &work->engine->geometry;
    work->engine->kernels->index_scores(
        row_blocks(work, row), work->iq + (int64_t)row * g->index_heads * g->index_dim,
        work->iw + (int64_t)row * g->index_heads, g->index_heads, g->index_dim,
        1.0f / sqrtf((float)g->index_dim), s0, s1, scores, scratch);
}

static void select_rows(void *context, int32_t begin, int32_t end, int worker)
{
    const mla_work *work = context;
    const colibri_geometry *g = &work->engine->geometry;
    uint8_t *scratch = clb_worker_scratch(work->engine, worker);
    int64_t kernel_bytes =
        (work->engine->kernels->index_scratch(g->index_heads, g->index_dim) + 63) / 64 * 64;
    float *scores = (float *)(void *)(scratch + kernel_bytes);
    for (int32_t row = begin; row < end; row++) {
        int32_t keys = row_position(work, row) + 1;
        work->batch->n_selected[row] = -1;
        if (keys <= g->index_topk)
            continue;
        score_row(work, row, 0, keys, scores, scratch);
        clb_topk(scores, keys, g->index_topk, work->batch->selected + (int64_t)row * g->index_topk);
        work->batch->n_selected[row] = g->index_topk;
    }
}

static void score_part(void *context, int32_t begin, int32_t end, int worker)
{
    const mla_work *work = context;
    score_row(work, work->row, begin, end, work->scores, clb_worker_scratch(work->engine, worker));
}

int32_t clb_mla_select(colibri_engine *engine, const clb_batch *batch, const clb_kv_part *part,
                       const float *iq, const float *iw, const clb_error *error)
{
    const colibri_geometry *g = &engine->geometry;
    mla_work work = {.engine = engine, .batch = batch, .iq = iq, .iw = iw};
    int32_t status = start_work(&work, part, error);
    if (status != COLIBRI_OK)
        return status;
    if (batch->n >= clb_pool_threads(engine->pool)) {
        clb_for_range(engine, batch->n, 1, select_rows, &work);
        return COLIBRI_OK;
    }
    for (int32_t row = 0; row < batch->n; row++) {
        int32_t keys = row_position(&work, row) + 1;
        batch->n_selected[row] = -1;
        if (keys <= g->index_topk)
            continue;
        work.row = row;
        work.scores = clb_scratch_get(&engine->scratch, (size_t)keys * sizeof(float));
        if (work.scores == NULL)
            return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the scores of %" PRId32 " keys",
                            keys);
        clb_for_range(engine, keys, SCORE_GRAIN, score_part, &work);
        clb_topk(work.scores, keys, g->index_topk, batch->selected + (int64_t)row * g->index_topk);
        batch->n_selected[row] = g->index_topk;
    }
    return COLIBRI_OK;
}

/* ---- attention ----------------------------------------------------------------------------- */

static clb_mla_args row_args(const mla_work *work, int32_t row)
{
    const colibri_geometry *g = &work->engine->geometry;
    int32_t chosen = work->engine->sparse_attention ? work->batch->n_selected[row] : -1;
    return (clb_mla_args){
        .n_heads = g->n_heads,
        .rank = g->kv_lora,
        .rope = g->qk_rope,
        .scale = 1.0f / sqrtf((float)(g->qk_nope + g->qk_rope)),
        .blocks = row_blocks(work, row),
        .q = work->q + (int64_t)row * g->n_heads * (g->kv_lora + g->qk_rope),
        .selected = chosen < 0 ? NULL : work->batch->selected + (int64_t)row * g->index_topk,
        .n_selected = chosen < 0 ? row_position(work, row) + 1 : chosen,
    };
}

static int32_t span_count(int32_t keys)
{
    return (keys + CLB_SPAN - 1) / CLB_SPAN;
}

static void attend_heads(void *context, int chunk, int worker)
{
    const mla_work *work = context;
    const clb_kernels *kernels = work->engine->kernels;
    int32_t row = chunk / work->splits, heads = work->engine->geometry.n_heads,
            rank = work->engine->geometry.kv_lora;
    int32_t h0 = chunk % work->splits * work->split_heads,
            h1 = h0 + work->split_heads < heads ? h0 + work->split_heads : heads;
    clb_mla_args args = row_args(work, row);
    clb_softmax *softmax = work->softmax + (int64_t)row * heads;
    float *out = work->out + (int64_t)row * heads * rank;
    for (int32_t h = h0; h < h1; h++)
        softmax[h] = (clb_softmax){-INFINITY, 0};
    kernels->mla_attend(&args, h0, h1, 0, span_count(args.n_selected), softmax, out,
                        clb_worker_scratch(work->engine, worker));
    kernels->softmax_finish(softmax + h0, out + (int64_t)h0 * rank, h1 - h0, rank);
}

static void attend_span(void *context, int chunk, int worker)
{
    const mla_work *work = context;
    const colibri_geometry *g = &work->engine->geometry;
    clb_mla_args args = row_args(work, work->row);
    clb_softmax *softmax = work->wave_softmax + (int64_t)chunk * g->n_heads;
    for (int32_t h = 0; h < g->n_heads; h++)
        softmax[h] = (clb_softmax){-INFINITY, 0};
    int32_t span = work->wave_first + chunk;
    work->engine->kernels->mla_attend(&args, 0, g->n_heads, span, span + 1, softmax,
                                      work->wave_out + (int64_t)chunk * g->n_heads * g->kv_lora,
                                      clb_worker_scratch(work->engine, worker));
}

static void attend_row_by_spans(mla_work *work, int32_t row)
{
    colibri_engine *engine = work->engine;
    int32_t heads = engine->geometry.n_heads, rank = engine->geometry.kv_lora;
    clb_mla_args args = row_args(work, row);
    int32_t spans = span_count(args.n_selected);
    clb_softmax *softmax = work->softmax + (int64_t)row * heads;
    float *out = work->out + (int64_t)row * heads * rank;
    for (int32_t h = 0; h < heads; h++)
        softmax[h] = (clb_softmax){-INFINITY, 0};
    work->row = row;
    for (int32_t first = 0; first < spans; first += WAVE_SPANS) {
        int32_t n = spans - first < WAVE_SPANS ? spans - first : WAVE_SPANS;
        work->wave_first = first;
        clb_pool_run(engine->pool, attend_span, work, n);
        for (int32_t s = 0; s < n; s++)
            engine->kernels->softmax_merge(softmax, out, work->wave_softmax + (int64_t)s * heads,
                                           work->wave_out + (int64_t)s * heads * rank, heads, rank);
    }
    engine->kernels->softmax_finish(softmax, out, heads, rank);
}

int32_t clb_mla_attend(colibri_engine *engine, const clb_batch *batch, const clb_kv_part *part,
                       const float *q, float *out, const clb_error *error)
{
    const colibri_geometry *g = &engine->geometry;
    mla_work work = {.engine = engine, .batch = batch, .q = q, .out = out};
    int32_t status = start_work(&work, part, error);
    if (status != COLIBRI_OK)
        return status;
    work.softmax =
        clb_scratch_get(&engine->scratch, (size_t)batch->n * (size_t)g->n_heads * sizeof(clb_softmax));
    if (work.softmax == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for attention");
    int32_t workers = clb_pool_threads(engine->pool);
    work.split_heads = batch->n >= 4 * workers ? g->n_heads : PIECE_HEADS;
    work.splits = (g->n_heads + work.split_heads - 1) / work.split_heads;
    if (batch->n * work.splits >= workers) {
        clb_pool_run(engine->pool, attend_heads, &work, batch->n * work.splits);
        return COLIBRI_OK;
    }
    work.wave_softmax =
        clb_scratch_get(&engine->scratch, (size_t)WAVE_SPANS * (size_t)g->n_heads * sizeof(clb_softmax));
    work.wave_out = clb_scratch_get(&engine->scratch, (size_t)WAVE_SPANS * (size_t)g->n_heads *
                                                          (size_t)g->kv_lora * sizeof(float));
    if (!work.wave_softmax || !work.wave_out)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for attention");
    for (int32_t row = 0; row < batch->n; row++)
        attend_row_by_spans(&work, row);
    return COLIBRI_OK;
}
