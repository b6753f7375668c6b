/* prefill.c - a prompt in slices, layer by layer over a chunk of many tokens.
 *
 *   chunk: up to prefill_chunk tokens
 *     layer 0:  ATTEND rows | ROUTE or MLP rows | EXPERTS by number | FINISH rows
 *     layer 1:  ...
 *     HEAD rows: norm, logits of the last row (or of all)
 *     drafts:   JOIN rows, then the MTP layer as one more layer, over the same positions less one (draft.c)
 *
 * Each expert is read once per chunk, so the longer the chunk the fewer bytes per token. A slice is
 * some rows or some experts, as many as fit in the time given; between two slices other sessions may
 * decode. All that a layer's rest needs lies in the chunk's own memory and in the session's KV blocks, so a
 * prefill that is cancelled, or whose reading fails, can be parked and taken up again at the same slice. */
#include "session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "moe.h"
#include "os.h"

/* Most rows of a slice: wide enough for the GEMM's peak, and temporaries do not grow with the chunk. */
#define SLICE_ROWS 512
/* Fewest, and fewest that are worth beginning when a step's time is nearly over. */
#define LEAST_ROWS 32
#define GOOD_ROWS 128
/* Rows of the first slice of a phase, whose speed is not known yet. */
#define FIRST_ROWS 64
/* Rows and experts where a step is asked for one slice. */
#define SINGLE_ROWS 16
#define SINGLE_EXPERTS 2
/* Longest wait for a read before the cancel flag is looked at again. */
#define WAIT_SECONDS 0.25
/* Tokens per expert from which on a chunk is taken to touch nearly all of them. */
#define SURE_TOKENS 16

/* ---- start --------------------------------------------------------------------------------- */

/* Takes up the parked chunk if the new tokens begin with its own, else drops it. */
static void resume_parked(colibri_session *session, const int32_t *tokens, int32_t n, const float *logits)
{
    clb_chunk *chunk = &session->chunk;
    if (chunk->n == 0)
        return;
    int same = chunk->unfilled == 0 && n >= chunk->tokens &&
               memcmp(session->tokens + session->length, tokens, (size_t)chunk->tokens * sizeof *tokens) == 0;
    /* Behind the head the trunk's rows are gone, and with them the logits of all but the last one. */
    int past_head = chunk->drafting || chunk->phase == CLB_PHASE_JOIN;
    if (!same || (logits != NULL && past_head)) {
        clb_session_drop_pending(session);
        return;
    }
    clb_session_unpark(session);
    if (chunk->phase == CLB_PHASE_HEAD && logits != NULL)
        chunk->row = 0;
    if (session->engine->options.fault == CLB_FAULT_PARKED)
        chunk->x[(int64_t)(chunk->n - 1) * session->engine->geometry.hidden] *= 1.0f + 0x1p-6f;
}

int32_t colibri_prefill_start(colibri_session *session, const int32_t *tokens, int32_t n, float *logits,
                              char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    if (session == NULL || tokens == NULL || n < 1)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "a prefill needs a session and at least one token");
    if (session->pending > 0)
        return clb_fail(&error, COLIBRI_ERROR_INVALID,
                        "the session has an unfinished prefill; finish, cancel or truncate it first");
    colibri_engine *engine = session->engine;
    int32_t status = clb_check_tokens(engine, tokens, n, &error);
    if (status != COLIBRI_OK)
        return status;
    if (n > engine->context - session->length)
        return clb_fail(&error, COLIBRI_ERROR_CONTEXT,
                        "%" PRId32 " tokens do not fit: the context holds %" PRId32 ", %" PRId32
                        " are in use",
                        n, engine->context, session->length);
    resume_parked(session, tokens, n, logits);
    memcpy(session->tokens + session->length, tokens, (size_t)n * sizeof *tokens);
    session->pending = n;
    session->total = n;
    session->all_logits = logits;
    session->n_logits = 0;
    session->resumed = clb_prefill_fraction(session);
    session->bytes_read = 0;
    return COLIBRI_OK;
}

/* ---- a chunk's memory ------------------------------------------------------------------------ */

/* Takes `bytes` from a chunk's memory, or only counts them while `base` is NULL. */
static void *carve(uint8_t *base, size_t *used, size_t bytes)
{
    void *at = base == NULL ? NULL : base + *used;
    *used += (bytes + 63) & ~(size_t)63;
    return at;
}

static void lay_out(const colibri_engine *engine, clb_chunk *chunk, uint8_t *base)
{
    const colibri_geometry *g = &engine->geometry;
    size_t n = (size_t)chunk->n, k = (size_t)g->experts_per_token, used = 0;
    chunk->x = carve(base, &used, n * (size_t)g->hidden * sizeof(float));
    chunk->rope = carve(base, &used, n * (size_t)engine->family->rope_dim(g) * sizeof(float));
    chunk->last = carve(base, &used, (size_t)g->hidden * sizeof(float));
    chunk->selected = carve(base, &used, n * (size_t)g->index_topk * sizeof(int32_t));
    chunk->n_selected = carve(base, &used, n * sizeof(int32_t));
    /* The MTP layer reads the normed rows of the whole chunk, and of the position before it, from h. */
    if (g->n_experts > 0) {
        chunk->h = carve(base, &used, (n + 1) * (size_t)g->hidden * sizeof(float));
        chunk->sum = carve(base, &used, n * (size_t)g->hidden * sizeof(float));
        chunk->ids = carve(base, &used, n * k * sizeof(int32_t));
        chunk->weights = carve(base, &used, n * k * sizeof(float));
        chunk->plan_memory =
            carve(base, &used, clb_moe_plan_bytes(chunk->n, g->experts_per_token, g->n_experts));
        chunk->cursor = carve(base, &used, (size_t)g->n_experts * sizeof(int32_t));
        chunk->plan = carve(base, &used, sizeof *chunk->plan);
        chunk->ahead = carve(base, &used, (size_t)g->n_experts * sizeof(int32_t));
    }
    chunk->bytes = used;
}

int64_t clb_chunk_bytes(const colibri_engine *engine, int32_t tokens)
{
    clb_chunk chunk = {.n = tokens < engine->context ? tokens : engine->context};
    lay_out(engine, &chunk, NULL);
    return (int64_t)clb_os_size(chunk.bytes);
}

int64_t clb_slice_bytes(const colibri_engine *engine, int32_t tokens)
{
    const colibri_geometry *g = &engine->geometry;
    if (tokens < CLB_MAX_BATCH)
        tokens = CLB_MAX_BATCH; /* of a decode step */
    int64_t rows = tokens < SLICE_ROWS ? tokens : SLICE_ROWS, slots = (int64_t)tokens * g->experts_per_token;
    if (slots > CLB_PIECE_ROWS)
        slots = CLB_PIECE_ROWS;
    int64_t experts = g->n_experts > 0 ? slots * (2 * (int64_t)g->expert_ffn + g->hidden) : 0;
    int64_t widest = rows * engine->family->row_floats(g);
    if (experts > widest)
        widest = experts;
    /* Half as much again for the prepared activations. */
    int64_t scratch = widest * (int64_t)sizeof(float) * 3 / 2 + (int64_t)CLB_SCRATCH_MIN;
    return (int64_t)clb_os_size((size_t)scratch);
}

int32_t clb_chunk_open(colibri_session *session, int32_t n, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    clb_chunk *chunk = &session->chunk;
    int32_t status = clb_session_reserve(session, session->length + n, error);
    if (status != COLIBRI_OK)
        return status;
    memset(chunk, 0, sizeof *chunk);
    chunk->n = n;
    chunk->tokens = n;
    chunk->first = session->length;
    lay_out(engine, chunk, NULL);
    /* The budget holds one chunk for each session that it was made for. */
    while (engine->n_chunks >= clb_sessions(engine) && clb_session_drop_oldest(engine))
        continue;
    do
        chunk->memory = clb_os_alloc(chunk->bytes);
    while (chunk->memory == NULL && clb_session_drop_oldest(engine));
    if (chunk->memory == NULL) {
        memset(chunk, 0, sizeof *chunk);
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for a prefill chunk of %" PRId32 " tokens",
                        n);
    }
    engine->n_chunks++;
    lay_out(engine, chunk, chunk->memory);
    clb_embed(engine, session->tokens + session->length, chunk->x, n);
    clb_rope_table(engine, chunk->rope, session->length, n);
    return COLIBRI_OK;
}

static int32_t start_chunk(colibri_session *session, const clb_error *error)
{
    int32_t most = session->engine->prefill_chunk;
    return clb_chunk_open(session, session->pending < most ? session->pending : most, error);
}

/* Rows [row, row+n) of a chunk as a batch of their own. */
static clb_batch chunk_rows(const colibri_session *session, clb_run *run, int32_t row, int32_t n)
{
    const colibri_engine *engine = session->engine;
    const clb_chunk *chunk = &session->chunk;
    *run = (clb_run){(colibri_session *)(uintptr_t)session, 0, n, session->chunk.first + row};
    return (clb_batch){n,
                       chunk->x + (int64_t)row * engine->geometry.hidden,
                       chunk->rope + (int64_t)row * engine->family->rope_dim(&engine->geometry),
                       run,
                       1,
                       chunk->selected + (int64_t)row * engine->geometry.index_topk,
                       chunk->n_selected + row};
}

static void next_phase(clb_chunk *chunk, int32_t phase)
{
    chunk->phase = phase;
    chunk->row = 0;
    chunk->expert = 0;
}

/* ---- how much a slice does ------------------------------------------------------------------- */

/* What bounds a step. */
typedef struct {
    double stop; /* clb_os_seconds; 0 = no limit */
    int single;  /* after one small slice */
    int slices;  /* done so far */
    int over;
} step_limit;

/* Rows of the next slice: as many as the time left allows by the speed of the last slices of this phase. 0
 * = the step is over. Cutting differently changes no bit. */
static int32_t fit_rows(const colibri_engine *engine, const step_limit *limit, int32_t phase, int32_t left)
{
    int32_t most = left < SLICE_ROWS ? left : SLICE_ROWS;
    if (limit->single)
        return most < SINGLE_ROWS ? most : SINGLE_ROWS;
    if (limit->stop <= 0)
        return most;
    double per_row = engine->row_seconds[phase], time = limit->stop - clb_os_seconds(),
           fit = per_row > 0 ? time / per_row : FIRST_ROWS;
    if (fit >= most)
        return most;
    if (limit->slices > 0 && fit < GOOD_ROWS)
        return 0;
    return fit < LEAST_ROWS ? (most < LEAST_ROWS ? most : LEAST_ROWS)
                            : (int32_t)fit / LEAST_ROWS * LEAST_ROWS;
}

static void note_speed(colibri_engine *engine, int32_t phase, int32_t rows, double seconds)
{
    double *per_row = &engine->row_seconds[phase], now = seconds / rows;
    *per_row = *per_row > 0 ? (*per_row + now) / 2 : now;
}

/* ---- slices -------------------------------------------------------------------------------- */

/* Some announced experts, those that have arrived. */
static int32_t run_experts(colibri_session *session, step_limit *limit, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    clb_chunk *chunk = &session->chunk;
    clb_moe_layer moe;
    engine->family->moe(engine, chunk->layer, &moe);
    int32_t before = chunk->expert, n_experts = engine->geometry.n_experts,
            rows = fit_rows(engine, limit, CLB_PHASE_EXPERTS, SLICE_ROWS);
    if (rows == 0) {
        limit->over = 1;
        return COLIBRI_OK;
    }
    double start = clb_os_seconds(), until = start + WAIT_SECONDS;
    if (limit->stop > 0 && limit->stop < until)
        until = limit->stop;
    clb_scratch_reset(&engine->scratch);
    if (!clb_store_wait(&engine->store, until))
        return COLIBRI_OK;
    start = clb_os_seconds();
    int32_t status = clb_moe_group(engine, &moe, chunk->plan, chunk->h, chunk->sum, &chunk->expert,
                                   limit->single ? SINGLE_EXPERTS : CLB_GROUP_EXPERTS, rows, error);
    clb_note_progress(engine);
    int32_t done = chunk->plan->first[chunk->expert] - chunk->plan->first[before];
    if (status == COLIBRI_OK && done > 0)
        note_speed(engine, CLB_PHASE_EXPERTS, done, clb_os_seconds() - start);
    if (status == COLIBRI_OK && chunk->expert == n_experts) {
        clb_store_forget(&engine->store);
        next_phase(chunk, CLB_PHASE_FINISH);
    }
    return status;
}

/* Norms rows of the trunk's output, keeps what drafts need, and writes their logits when the caller asked
 * for all. */
static int32_t run_head(colibri_session *session, const clb_batch *rows, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    const colibri_geometry *g = &engine->geometry;
    clb_chunk *chunk = &session->chunk;
    int32_t n = rows->n;
    float *normed = engine->drafts > 0
                        ? chunk->h + (int64_t)(1 + chunk->row) * g->hidden
                        : clb_scratch_get(&engine->scratch, (size_t)n * (size_t)g->hidden * sizeof *normed);
    if (normed == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the logits");
    clb_norm_rows(engine, normed, rows->x, engine->final_norm, n, g->hidden, g->norm_eps, g->n_layers);
    int32_t status = clb_check_finite(engine, rows, error);
    if (status != COLIBRI_OK)
        return status;
    if (chunk->row + n == chunk->n)
        memcpy(chunk->last, normed + (int64_t)(n - 1) * g->hidden, (size_t)g->hidden * sizeof *normed);
    if (session->all_logits == NULL)
        return COLIBRI_OK;
    int64_t first = session->total - session->pending + chunk->row;
    return clb_head(engine, normed, n, session->all_logits + first * g->vocab, chunk->n > 1, error);
}

/* The MTP layer's input from the normed rows. */
static int32_t run_join(colibri_session *session, const clb_batch *rows, const clb_error *error)
{
    const clb_chunk *chunk = &session->chunk;
    int32_t hidden = session->engine->geometry.hidden, at = chunk->row;
    const float *normed = chunk->h + (int64_t)(at + !chunk->before) * hidden;
    return session->engine->family->draft_input(session->engine, session->tokens + chunk->first + at + 1,
                                                normed, rows->n, rows->x, error);
}

/* The chunk's tokens become part of the session, and the last ones bring its logits. */
static int32_t finish_chunk(colibri_session *session, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    clb_chunk *chunk = &session->chunk;
    int32_t n = chunk->tokens, last = session->pending == n;
    if (last) {
        float *logits = clb_session_logit_rows(session, 1);
        if (logits == NULL)
            return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the logits");
        clb_scratch_reset(&engine->scratch);
        clb_clock_lap(engine, COLIBRI_TIME_OTHER);
        int32_t status = clb_head(engine, chunk->last, 1, logits, n > 1, error);
        clb_clock_lap(engine, COLIBRI_TIME_HEAD);
        if (status != COLIBRI_OK)
            return status;
    }
    if (engine->drafts > 0) {
        session->n_hidden = 0;
        clb_draft_keep(session, chunk->last, 1);
        session->hidden_end = session->length + n;
    }
    session->length += n;
    session->pending -= n;
    clb_session_grown(session, session->length - n);
    if (last) {
        clb_session_logits_done(session, 1);
        clb_store_end_scan(&engine->store);
    }
    atomic_fetch_add_explicit(&engine->prompt_tokens, n, memory_order_relaxed);
    clb_session_drop_chunk(session);
    return COLIBRI_OK;
}

/* Turns the finished trunk chunk into the MTP layer's: row i stands for a position whose next token is
 * known, the position before the chunk included. Without such a row the chunk is finished. */
static int32_t start_drafts(colibri_session *session, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    clb_chunk *chunk = &session->chunk;
    size_t hidden = (size_t)engine->geometry.hidden;
    chunk->before = session->n_hidden > 0;
    int32_t n = chunk->before ? chunk->n : chunk->n - 1;
    if (n == 0)
        return finish_chunk(session, error);
    if (chunk->before)
        memcpy(chunk->h, session->hidden + (size_t)(session->n_hidden - 1) * hidden,
               hidden * sizeof *chunk->h);
    chunk->n = n;
    chunk->first = session->length - chunk->before;
    clb_rope_table(engine, chunk->rope, chunk->first, n);
    next_phase(chunk, CLB_PHASE_JOIN);
    return clb_session_own(session, chunk->first, error);
}

/* ---- reading ahead ----------------------------------------------------------------------------- */

/* Whether so many rows will touch nearly every expert of a layer. */
static int touches_all(const colibri_engine *engine, int32_t rows)
{
    const colibri_geometry *g = &engine->geometry;
    return (int64_t)rows * g->experts_per_token >= (int64_t)g->n_experts * SURE_TOKENS;
}

/* Runs the next layer's router one layer early over the whole chunk, so that what most rows will want is
 * read while this layer computes. For chunks that will not touch all experts anyway; few rows guess as a
 * decode step does. */
static int32_t guess_ahead(colibri_session *session, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    const colibri_geometry *g = &engine->geometry;
    clb_chunk *chunk = &session->chunk;
    int32_t layer = chunk->layer + 1, k = g->experts_per_token, *rows_of = chunk->cursor;
    clb_moe_layer moe;
    chunk->n_ahead = 0;
    if (!engine->store.streaming || engine->options.no_prefetch || layer >= g->n_layers ||
        touches_all(engine, chunk->n) || !engine->family->moe(engine, layer, &moe))
        return COLIBRI_OK;
    if (chunk->n <= CLB_MAX_BATCH) {
        clb_run all;
        clb_batch batch = chunk_rows(session, &all, 0, chunk->n);
        return clb_guess_next(engine, &batch, layer, error);
    }
    memset(rows_of, 0, (size_t)g->n_experts * sizeof *rows_of);
    for (int32_t row = 0; row < chunk->n; row += SLICE_ROWS) {
        int32_t n = chunk->n - row < SLICE_ROWS ? chunk->n - row : SLICE_ROWS;
        clb_run run;
        clb_batch rows = chunk_rows(session, &run, row, n);
        clb_scratch_reset(&engine->scratch);
        int32_t *ids = clb_scratch_get(&engine->scratch, (size_t)n * (size_t)k * sizeof *ids);
        float *weights = clb_scratch_get(&engine->scratch, (size_t)n * (size_t)k * sizeof *weights);
        if (ids == NULL || weights == NULL)
            return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for routing %" PRId32 " tokens", n);
        int32_t status = engine->family->guess(engine, &rows, layer, ids, weights, error);
        if (status != COLIBRI_OK)
            return status;
        for (int64_t i = 0; i < (int64_t)n * k; i++)
            rows_of[ids[i]]++;
    }
    /* Most rows first, and in ascending order among equals. */
    int32_t most = 0;
    for (int32_t e = 0; e < g->n_experts; e++)
        most = rows_of[e] > most ? rows_of[e] : most;
    for (int32_t rows = most; rows > 0; rows--)
        for (int32_t e = 0; e < g->n_experts; e++)
            if (rows_of[e] == rows)
                chunk->ahead[chunk->n_ahead++] = e;
    return COLIBRI_OK;
}

/* Keeps the disk busy while something else is computed. A wide chunk touches nearly every expert of the next
 * sparse layer, the MTP layer and the first one of the next chunk included; of a narrower one the guess is
 * known while a layer's experts are computed and until the next layer asks. */
static void read_ahead(const colibri_session *session)
{
    colibri_engine *engine = session->engine;
    const colibri_geometry *g = &engine->geometry;
    const clb_chunk *chunk = &session->chunk;
    clb_store *store = &engine->store;
    int asked = chunk->phase == CLB_PHASE_EXPERTS || chunk->phase == CLB_PHASE_FINISH;
    int32_t layer = chunk->layer + asked, rest = session->pending - chunk->tokens, next = layer;
    clb_moe_layer moe;
    if (!store->streaming)
        return;
    while (next < g->n_layers + (engine->drafts > 0) && !engine->family->moe(engine, next, &moe))
        next++;
    if (next == g->n_layers + (engine->drafts > 0)) {
        if (rest == 0)
            return;
        next = 0;
        while (next < g->n_layers && !engine->family->moe(engine, next, &moe))
            next++;
        if (next < g->n_layers &&
            touches_all(engine, rest < engine->prefill_chunk ? rest : engine->prefill_chunk))
            clb_store_prefetch_sure(store, moe.store_layer, NULL, 0);
    } else if (touches_all(engine, chunk->n)) {
        clb_store_prefetch_sure(store, moe.store_layer, NULL, 0);
    } else if (chunk->n_ahead > 0 && next == layer) {
        clb_store_prefetch_sure(store, moe.store_layer, chunk->ahead, chunk->n_ahead);
    } else {
        clb_store_read_on(store);
    }
}

static int32_t start_experts(colibri_session *session, const clb_moe_layer *moe, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    const colibri_geometry *g = &engine->geometry;
    clb_chunk *chunk = &session->chunk;
    clb_moe_plan_make(chunk->plan, chunk->plan_memory, chunk->n, g->experts_per_token, g->n_experts,
                      chunk->ids, chunk->weights, chunk->cursor);
    memset(chunk->sum, 0, (size_t)chunk->n * (size_t)g->hidden * sizeof *chunk->sum);
    next_phase(chunk, CLB_PHASE_EXPERTS);
    int32_t status = clb_moe_announce(engine, moe, chunk->plan, 0, 0, error);
    return status == COLIBRI_OK ? guess_ahead(session, error) : status;
}

/* All rows of a phase are done: on to the next one, the next layer, or the end. */
static int32_t end_phase(colibri_session *session, const clb_moe_layer *moe, int sparse,
                         const clb_error *error)
{
    colibri_engine *engine = session->engine;
    clb_chunk *chunk = &session->chunk;
    int32_t n_layers = engine->geometry.n_layers;
    switch (chunk->phase) {
    case CLB_PHASE_ATTEND:
        next_phase(chunk, CLB_PHASE_MLP);
        return COLIBRI_OK;
    case CLB_PHASE_MLP:
        if (sparse)
            return start_experts(session, moe, error);
        break;
    case CLB_PHASE_HEAD:
        return engine->drafts > 0 ? start_drafts(session, error) : finish_chunk(session, error);
    case CLB_PHASE_JOIN:
        chunk->drafting = 1;
        next_phase(chunk, CLB_PHASE_ATTEND);
        return COLIBRI_OK;
    default:
        break;
    }
    next_phase(chunk, CLB_PHASE_ATTEND);
    chunk->layer++;
    if (chunk->layer < n_layers + chunk->drafting)
        return COLIBRI_OK;
    if (chunk->drafting)
        return finish_chunk(session, error);
    next_phase(chunk, CLB_PHASE_HEAD);
    if (session->all_logits == NULL && engine->drafts == 0)
        chunk->row = chunk->n - 1;
    return COLIBRI_OK;
}

/* One slice of the current phase: some rows, or a group of experts. */
static int32_t run_slice(colibri_session *session, step_limit *limit, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    clb_chunk *chunk = &session->chunk;
    const colibri_geometry *g = &engine->geometry;
    int32_t phase = chunk->phase, layer = chunk->layer, status;
    if (phase == CLB_PHASE_EXPERTS)
        return run_experts(session, limit, error);
    int32_t n = fit_rows(engine, limit, phase, chunk->n - chunk->row);
    if (n == 0) {
        limit->over = 1;
        return COLIBRI_OK;
    }
    int64_t at = (int64_t)chunk->row * g->hidden, choice = (int64_t)chunk->row * g->experts_per_token;
    clb_run run;
    clb_batch rows = chunk_rows(session, &run, chunk->row, n);
    clb_moe_layer moe;
    int sparse = phase < CLB_PHASE_HEAD && engine->family->moe(engine, layer, &moe);
    double start = clb_os_seconds();
    clb_scratch_reset(&engine->scratch);
    atomic_store(&engine->bad_layer, INT32_MAX);
    switch (phase) {
    case CLB_PHASE_ATTEND:
        status = engine->family->attention(engine, &rows, layer, error);
        break;
    case CLB_PHASE_MLP:
        status = sparse ? engine->family->route(engine, &rows, layer, chunk->h + at, chunk->ids + choice,
                                                chunk->weights + choice, error)
                        : engine->family->mlp(engine, &rows, layer, error);
        if (sparse && status == COLIBRI_OK)
            clb_count_routed(engine, &rows, layer, chunk->ids + choice);
        break;
    case CLB_PHASE_FINISH:
        status = clb_moe_finish(engine, &moe, chunk->h + at, chunk->sum + at, n, rows.x, error);
        break;
    case CLB_PHASE_HEAD:
        status = run_head(session, &rows, error);
        break;
    default:
        status = run_join(session, &rows, error);
        break;
    }
    clb_note_progress(engine);
    if (status == COLIBRI_OK)
        status = clb_check_finite(engine, &rows, error);
    if (status != COLIBRI_OK)
        return status;
    note_speed(engine, phase, n, clb_os_seconds() - start);
    if (phase == CLB_PHASE_FINISH || (phase == CLB_PHASE_MLP && !sparse))
        clb_plant_nan(engine, &rows, layer);
    chunk->row += n;
    return chunk->row < chunk->n ? COLIBRI_OK : end_phase(session, &moe, sparse, error);
}

/* What a slice of a phase spends its time on. */
static int32_t time_of(int32_t phase)
{
    switch (phase) {
    case CLB_PHASE_ATTEND:
        return COLIBRI_TIME_ATTENTION;
    case CLB_PHASE_EXPERTS:
    case CLB_PHASE_FINISH:
        return COLIBRI_TIME_EXPERTS;
    case CLB_PHASE_HEAD:
        return COLIBRI_TIME_HEAD;
    default:
        return COLIBRI_TIME_OTHER;
    }
}

/* Takes up a chunk after other sessions' steps: one of them may share its KV blocks by now, and the store has
 * served other requests, so that the announced experts go back on the list. */
static int32_t resume_chunk(colibri_session *session, const clb_error *error)
{
    clb_moe_layer moe;
    const clb_chunk *chunk = &session->chunk;
    if (chunk->n == 0)
        return COLIBRI_OK;
    int32_t status = clb_session_own(session, chunk->first, error);
    if (status != COLIBRI_OK || chunk->phase != CLB_PHASE_EXPERTS)
        return status;
    session->engine->family->moe(session->engine, chunk->layer, &moe);
    clb_scratch_reset(&session->engine->scratch);
    return clb_moe_announce(session->engine, &moe, chunk->plan, chunk->expert, 1, error);
}

int32_t colibri_prefill_step(colibri_session *session, int32_t max_ms, colibri_prefill_progress *progress,
                             char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    if (session == NULL || session->pending == 0)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "no prefill is in progress");
    colibri_engine *engine = session->engine;
    step_limit limit = {.stop = max_ms > 0 ? clb_os_seconds() + (double)max_ms * 1e-3 : 0,
                        .single = max_ms < 0};
    int64_t read = atomic_load(&engine->store.bytes_read);
    clb_clock_start(engine, COLIBRI_PHASE_PREFILL);
    engine->store.quiet = session->routed != NULL;
    int32_t status = resume_chunk(session, &error);
    while (status == COLIBRI_OK) {
        if (atomic_exchange(&session->cancel, 0)) {
            status =
                clb_fail(&error, COLIBRI_ERROR_CANCELLED, "cancelled after %" PRId32 " of %" PRId32 " tokens",
                         session->total - session->pending, session->total);
            break;
        }
        if (session->chunk.n == 0)
            status = start_chunk(session, &error);
        if (status == COLIBRI_OK) {
            read_ahead(session);
            int32_t phase = session->chunk.phase;
            clb_clock_lap(engine, COLIBRI_TIME_OTHER);
            status = run_slice(session, &limit, &error);
            clb_clock_lap(engine, time_of(phase));
        }
        limit.slices++;
        if (session->pending == 0 || limit.over || limit.single ||
            (limit.stop > 0 && clb_os_seconds() >= limit.stop) ||
            (session->pause_between && clb_chunk_between(session)))
            break;
    }
    clb_store_forget(&engine->store);
    session->bytes_read += atomic_load(&engine->store.bytes_read) - read;
    clb_clock_stop(engine);
    if (progress != NULL)
        *progress = clb_prefill_progress(session, status == COLIBRI_OK && session->pending == 0);
    /* After a failed read or a cancel the chunk is as it was after its last slice. */
    if (status == COLIBRI_ERROR_CANCELLED || status == COLIBRI_ERROR_IO)
        clb_session_park(session);
    else if (status != COLIBRI_OK)
        clb_session_drop_pending(session);
    else if (session->pending == 0)
        session->all_logits = NULL;
    return status;
}
