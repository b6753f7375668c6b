/* gqa.c - see gqa.h.
 *
 * Work is cut in two ways. A run of many rows (prefill) is cut by KV head and tile of tokens; each
 * piece walks all spans with its state at hand. A run of one row (decode) is cut by KV head, and when
 * that is too little for the team also by span: then every span gets a state of its own and they are
 * merged in ascending order afterwards. Both ways merge the same states in the same order. */
#include "gqa.h"

#include <math.h>
#include <string.h>

#include "fault.h"

/* Query tokens of a prefill piece; also bounds the state in the worker's scratch. */
#define TILE_TOKENS 64
/* Widest head that family checks let through. */
#define MAX_WIDTH 256

typedef struct {
    int32_t run;
    int32_t kv_head;
    int32_t t0, t1; /* tokens of the run */
    int32_t span0, span1;
    int32_t partial; /* first of span1-span0 states of its own, or -1: finish in place */
} attend_piece;

typedef struct {
    colibri_engine *engine;
    const clb_batch *batch;
    const clb_gqa_layer *layer;
    const clb_kv_part *part;
    const uint8_t ***blocks; /* [run][span] */
    const float *q;
    const float *k;
    const float *v;
    float *roped; /* queries after rope [n][n_heads][width] */
    float *out;
    int32_t width;
    attend_piece *pieces;
    clb_softmax *partial_softmax; /* [partial][group] */
    float *partial_out;           /* [partial][group][dim] */
} gqa_work;

static int32_t group_size(const clb_gqa_layer *layer)
{
    return layer->n_heads / layer->n_kv_heads;
}

static void rope_queries(void *context, int32_t begin, int32_t end, int worker)
{
    (void)worker;
    const gqa_work *work = context;
    int32_t dim = work->layer->dim, heads = work->layer->n_heads, width = work->width;
    for (int32_t row = begin; row < end; row++)
        for (int32_t h = 0; h < heads; h++) {
            float *q = work->roped + ((int64_t)row * heads + h) * width;
            memcpy(q, work->q + ((int64_t)row * heads + h) * dim, (size_t)dim * sizeof *q);
            memset(q + dim, 0, (size_t)(width - dim) * sizeof *q);
            work->engine->kernels->rope_half(q, work->batch->rope + (int64_t)row * dim, dim);
        }
}

/* Ropes and stores the keys of one run and head. One worker per head and run, since neighbouring tokens
 * share 32-bit words of the value block. */
static void store_keys(void *context, int32_t begin, int32_t end, int worker)
{
    (void)worker;
    const gqa_work *work = context;
    const clb_kernels *kernels = work->engine->kernels;
    int32_t dim = work->layer->dim, heads = work->layer->n_kv_heads;
    int64_t head_bytes = work->part->bytes / heads;
    float k[MAX_WIDTH] = {0}, v[MAX_WIDTH] = {0};
    for (int32_t item = begin; item < end; item++) {
        const clb_run *run = &work->batch->runs[item / heads];
        int32_t h = item % heads;
        for (int32_t t = 0; t < run->n; t++) {
            int64_t row = run->row0 + t, at = (row * heads + h) * dim;
            int32_t position = run->first + t;
            if (work->engine->options.fault == CLB_FAULT_KV_POSITION && work->layer->layer == 0 && t == 1 &&
                position % CLB_SPAN < CLB_SPAN - 1)
                position++;
            memcpy(k, work->k + at, (size_t)dim * sizeof *k);
            memcpy(v, work->v + at, (size_t)dim * sizeof *v);
            kernels->rope_half(k, work->batch->rope + row * dim, dim);
            kernels->gqa_store(clb_kv_at(run->session, work->part, position) + h * head_bytes, work->width,
                               position % CLB_SPAN, k, v);
        }
    }
}

/* One row's heads of a group, without their padding. */
static void copy_out(const gqa_work *work, int64_t row, int32_t kv_head, const float *from)
{
    int32_t dim = work->layer->dim, group = group_size(work->layer);
    float *out = work->out + (row * work->layer->n_heads + (int64_t)kv_head * group) * dim;
    for (int32_t g = 0; g < group; g++)
        memcpy(out + (int64_t)g * dim, from + (int64_t)g * work->width, (size_t)dim * sizeof *out);
}

static void attend(void *context, int chunk, int worker)
{
    const gqa_work *work = context;
    const attend_piece *p = &work->pieces[chunk];
    const clb_run *run = &work->batch->runs[p->run];
    const clb_kernels *kernels = work->engine->kernels;
    int32_t dim = work->width, heads = work->layer->n_heads, group = group_size(work->layer);
    const float *q = work->roped + ((int64_t)run->row0 * heads + (int64_t)p->kv_head * group) * dim;
    clb_gqa_args args = {dim,
                         group,
                         1.0f / sqrtf((float)work->layer->dim),
                         work->blocks[p->run],
                         p->kv_head,
                         q,
                         (int64_t)heads * dim,
                         run->first,
                         work->part->window};
    uint8_t *scratch = clb_worker_scratch(work->engine, worker);
    int64_t kernel_bytes = (kernels->gqa_scratch(dim, group) + 63) / 64 * 64;
    if (p->partial >= 0) {
        for (int32_t s = p->span0; s < p->span1; s++) {
            int64_t state = (int64_t)(p->partial + s - p->span0) * group;
            for (int32_t g = 0; g < group; g++)
                work->partial_softmax[state + g] = (clb_softmax){-INFINITY, 0};
            kernels->gqa_attend(&args, p->t0, p->t1, s, s + 1, work->partial_softmax + state,
                                work->partial_out + state * dim, scratch);
        }
        return;
    }
    /* State of this tile's rows; the kernel indexes it by token number, so it is handed the tile as if
     * it began at token 0. */
    float *out = (float *)(void *)(scratch + kernel_bytes);
    int32_t n = p->t1 - p->t0;
    clb_softmax *softmax = (clb_softmax *)(void *)(out + (int64_t)n * group * dim);
    args.q += (int64_t)p->t0 * args.q_stride;
    args.first_position += p->t0;
    for (int32_t i = 0; i < n * group; i++)
        softmax[i] = (clb_softmax){-INFINITY, 0};
    kernels->gqa_attend(&args, 0, n, p->span0, p->span1, softmax, out, scratch);
    kernels->softmax_finish(softmax, out, n * group, dim);
    for (int32_t t = 0; t < n; t++)
        copy_out(work, run->row0 + p->t0 + t, p->kv_head, out + (int64_t)t * group * dim);
}

/* First span that a row at this position attends to. */
static int32_t first_span(const gqa_work *work, int32_t position)
{
    int32_t first = work->part->window > 0 ? position + 1 - work->part->window : 0;
    return first > 0 ? first / CLB_SPAN : 0;
}

/* Adds the pieces of a run; with pieces == NULL only counts them and the partial states they need. */
static void cut_run(const gqa_work *work, int32_t r, int32_t split, attend_piece *pieces, int32_t *n_pieces,
                    int32_t *n_partials)
{
    const clb_run *run = &work->batch->runs[r];
    int32_t spans = (run->first + run->n + CLB_SPAN - 1) / CLB_SPAN, begin = first_span(work, run->first);
    for (int32_t h = 0; h < work->layer->n_kv_heads; h++) {
        if (run->n == 1 && split > 1 && spans - begin > 1) {
            int32_t step = (spans - begin + split - 1) / split;
            for (int32_t s = begin; s < spans; s += step) {
                int32_t end = s + step < spans ? s + step : spans;
                if (pieces != NULL)
                    pieces[*n_pieces] = (attend_piece){r, h, 0, 1, s, end, *n_partials};
                ++*n_pieces;
                *n_partials += end - s;
            }
            continue;
        }
        for (int32_t t = 0; t < run->n; t += TILE_TOKENS) {
            int32_t end = t + TILE_TOKENS < run->n ? t + TILE_TOKENS : run->n;
            if (pieces != NULL)
                pieces[*n_pieces] = (attend_piece){r,
                                                   h,
                                                   t,
                                                   end,
                                                   first_span(work, run->first + t),
                                                   (run->first + end + CLB_SPAN - 1) / CLB_SPAN,
                                                   -1};
            ++*n_pieces;
        }
    }
}

/* Joins the partial states of single-row runs, span by span in ascending order. */
static void merge_partials(const gqa_work *work, int32_t n_pieces)
{
    const clb_kernels *kernels = work->engine->kernels;
    int32_t dim = work->width, group = group_size(work->layer);
    for (int32_t i = 0; i < n_pieces; i++) {
        const attend_piece *p = &work->pieces[i];
        if (p->partial < 0 || p->span0 != first_span(work, work->batch->runs[p->run].first))
            continue;
        int32_t spans = 0;
        for (int32_t j = i;
             j < n_pieces && work->pieces[j].run == p->run && work->pieces[j].kv_head == p->kv_head; j++)
            spans += work->pieces[j].span1 - work->pieces[j].span0;
        clb_softmax *softmax = work->partial_softmax + (int64_t)p->partial * group;
        float *out = work->partial_out + (int64_t)p->partial * group * dim;
        for (int32_t s = 1; s < spans; s++)
            kernels->softmax_merge(softmax, out, softmax + (int64_t)s * group, out + (int64_t)s * group * dim,
                                   group, dim);
        kernels->softmax_finish(softmax, out, group, dim);
        copy_out(work, work->batch->runs[p->run].row0, p->kv_head, out);
    }
}

void clb_gqa_announce(colibri_engine *engine, int32_t n_heads, int32_t n_kv_heads, int32_t dim)
{
    int32_t width = clb_gqa_width(dim), group = n_heads / n_kv_heads;
    int64_t bytes = (engine->kernels->gqa_scratch(width, group) + 63) / 64 * 64 +
                    (int64_t)TILE_TOKENS * group * (width * 4 + (int64_t)sizeof(clb_softmax)) + 64;
    if (bytes > engine->gqa_bytes)
        engine->gqa_bytes = bytes;
}

int32_t clb_gqa_run(colibri_engine *engine, const clb_batch *batch, const clb_gqa_layer *layer,
                    const float *q, const float *k, const float *v, float *out, const clb_error *error)
{
    gqa_work work = {.engine = engine,
                     .batch = batch,
                     .layer = layer,
                     .part = &engine->kv.parts[layer->part],
                     .q = q,
                     .k = k,
                     .v = v,
                     .out = out,
                     .width = clb_gqa_width(layer->dim)};
    work.roped = clb_scratch_get(&engine->scratch,
                                 (size_t)batch->n * (size_t)(layer->n_heads * work.width) * sizeof(float));
    if (work.roped == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for attention");
    clb_for_range(engine, batch->n, 16, rope_queries, &work);
    clb_for_range(engine, batch->n_runs * layer->n_kv_heads, batch->n > batch->n_runs ? 1 : 16, store_keys,
                  &work);

    work.blocks = clb_scratch_get(&engine->scratch, (size_t)batch->n_runs * sizeof *work.blocks);
    if (work.blocks == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for attention");
    for (int32_t r = 0; r < batch->n_runs; r++) {
        work.blocks[r] = clb_kv_blocks(engine, &batch->runs[r], work.part, error);
        if (work.blocks[r] == NULL)
            return COLIBRI_ERROR_MEMORY;
    }
    /* Split single-row runs over spans only as far as the team needs pieces. */
    int32_t workers = clb_pool_threads(engine->pool), items = batch->n_runs * layer->n_kv_heads;
    int32_t split = workers == 1 || items >= 4 * workers ? 1 : (4 * workers + items - 1) / items;
    int32_t n_pieces = 0, n_partials = 0;
    for (int32_t r = 0; r < batch->n_runs; r++)
        cut_run(&work, r, split, NULL, &n_pieces, &n_partials);
    int32_t group = group_size(layer);
    work.pieces = clb_scratch_get(&engine->scratch, (size_t)n_pieces * sizeof *work.pieces);
    work.partial_softmax =
        clb_scratch_get(&engine->scratch, (size_t)(n_partials * group) * sizeof(clb_softmax));
    work.partial_out =
        clb_scratch_get(&engine->scratch, (size_t)n_partials * (size_t)(group * work.width) * sizeof(float));
    if (!work.pieces || !work.partial_softmax || !work.partial_out)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for attention over %d spans", n_partials);
    n_pieces = n_partials = 0;
    for (int32_t r = 0; r < batch->n_runs; r++)
        cut_run(&work, r, split, work.pieces, &n_pieces, &n_partials);
    clb_pool_run(engine->pool, attend, &work, n_pieces);
    if (n_partials > 0)
        merge_partials(&work, n_pieces);
    return COLIBRI_OK;
}
