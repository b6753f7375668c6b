/* prefill.c - a prompt in slices, layer by layer over a chunk of many tokens.
 *
 *   chunk: up to prefill_chunk tokens
 *     layer 0:  ATTEND rows | ROUTE or MLP rows | EXPERTS by number | FINISH rows
 *     layer 1:  ...
 *     head:     logits of the last row (or of all)
 *     drafts:   the MTP layer as one more layer, over the same positions less one (draft.c)
 *
 * Each expert is read once per chunk, so the longer the chunk the fewer bytes per token. A slice is
 * some rows or some experts; between two slices other sessions may decode. All that a layer's rest
 * needs lies in the chunk's own memory. */
#include "session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "moe.h"
#include "os.h"

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
    memcpy(session->tokens + session->length, tokens, (size_t)n * sizeof *tokens);
    session->pending = n;
    session->total = n;
    session->all_logits = logits;
    session->n_logits = 0;
    return COLIBRI_OK;
}

/* Phases of a layer over a chunk. */
enum { PHASE_ATTEND, PHASE_MLP, PHASE_EXPERTS, PHASE_FINISH };
/* Rows that attention, MLP and router take at once: wide enough for the GEMM's peak, and their
 * temporaries do not grow with the chunk. */
#define PHASE_ROWS 512
/* Tokens per expert from which on a chunk is taken to touch nearly all of them. */
#define SURE_TOKENS 16

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
    chunk->selected = carve(base, &used, n * (size_t)g->index_topk * sizeof(int32_t));
    chunk->n_selected = carve(base, &used, n * sizeof(int32_t));
    /* The MTP layer reads the normed rows of the whole chunk from h. */
    if (g->n_experts > 0) {
        chunk->h = carve(base, &used, n * (size_t)g->hidden * sizeof(float));
        chunk->sum = carve(base, &used, n * (size_t)g->hidden * sizeof(float));
        chunk->ids = carve(base, &used, n * k * sizeof(int32_t));
        chunk->weights = carve(base, &used, n * k * sizeof(float));
        chunk->plan_memory =
            carve(base, &used, clb_moe_plan_bytes(chunk->n, g->experts_per_token, g->n_experts));
        chunk->cursor = carve(base, &used, (size_t)g->n_experts * sizeof(int32_t));
        chunk->plan = carve(base, &used, sizeof *chunk->plan);
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
    int64_t rows = tokens < PHASE_ROWS ? tokens : PHASE_ROWS;
    /* Every token may want the same expert, on top of a group that is nearly full (moe.c). */
    int64_t experts = g->n_experts > 0 ? (rows + tokens) * (2 * (int64_t)g->expert_ffn + g->hidden) : 0;
    int64_t widest = rows * engine->family->row_floats(g);
    if (experts > widest)
        widest = experts;
    /* Half as much again for the prepared activations. */
    int64_t scratch = widest * (int64_t)sizeof(float) * 3 / 2 + (int64_t)CLB_SCRATCH_MIN;
    return (int64_t)clb_os_size((size_t)scratch);
}

static int32_t start_chunk(colibri_session *session, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    clb_chunk *chunk = &session->chunk;
    int32_t n = session->pending < engine->prefill_chunk ? session->pending : engine->prefill_chunk;
    int32_t status = clb_session_reserve(session, session->length + n, error);
    if (status != COLIBRI_OK)
        return status;
    memset(chunk, 0, sizeof *chunk);
    chunk->n = n;
    chunk->tokens = n;
    chunk->first = session->length;
    lay_out(engine, chunk, NULL);
    chunk->memory = clb_os_alloc(chunk->bytes);
    if (chunk->memory == NULL) {
        memset(chunk, 0, sizeof *chunk);
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for a prefill chunk of %" PRId32 " tokens",
                        n);
    }
    lay_out(engine, chunk, chunk->memory);
    clb_embed(engine, session->tokens + session->length, chunk->x, n);
    clb_rope_table(engine, chunk->rope, session->length, n);
    return COLIBRI_OK;
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

/* One slice of the current layer: some rows of attention, MLP or router, or a group of experts. */
static int32_t run_slice(colibri_session *session, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    clb_chunk *chunk = &session->chunk;
    const colibri_geometry *g = &engine->geometry;
    int32_t n = chunk->n - chunk->row < PHASE_ROWS ? chunk->n - chunk->row : PHASE_ROWS, layer = chunk->layer;
    int64_t at = (int64_t)chunk->row * g->hidden, choice = (int64_t)chunk->row * g->experts_per_token;
    clb_run run;
    clb_batch rows = chunk_rows(session, &run, chunk->row, n);
    clb_moe_layer moe;
    int sparse = engine->family->moe(engine, layer, &moe), done = 0;
    int32_t status;
    clb_scratch_reset(&engine->scratch);
    atomic_store(&engine->bad_layer, INT32_MAX);
    switch (chunk->phase) {
    case PHASE_ATTEND:
        status = engine->family->attention(engine, &rows, layer, error);
        break;
    case PHASE_MLP:
        status = sparse ? engine->family->route(engine, &rows, layer, chunk->h + at, chunk->ids + choice,
                                                chunk->weights + choice, error)
                        : engine->family->mlp(engine, &rows, layer, error);
        break;
    case PHASE_EXPERTS:
        status = clb_moe_group(engine, &moe, chunk->plan, chunk->h, chunk->sum, &chunk->expert, error);
        if (status == COLIBRI_OK && chunk->expert == g->n_experts) {
            clb_store_forget(&engine->store);
            next_phase(chunk, PHASE_FINISH);
        }
        clb_note_progress(engine);
        return status;
    default:
        status = clb_moe_finish(engine, &moe, chunk->h + at, chunk->sum + at, n, rows.x, error);
        break;
    }
    clb_note_progress(engine);
    if (status == COLIBRI_OK)
        status = clb_check_finite(engine, &rows, error);
    if (status != COLIBRI_OK)
        return status;
    if (chunk->phase == PHASE_FINISH || (chunk->phase == PHASE_MLP && !sparse))
        clb_plant_nan(engine, &rows, layer);
    chunk->row += n;
    if (chunk->row < chunk->n)
        return COLIBRI_OK;
    if (chunk->phase == PHASE_ATTEND) {
        next_phase(chunk, PHASE_MLP);
    } else if (chunk->phase == PHASE_MLP && sparse) {
        clb_moe_plan_make(chunk->plan, chunk->plan_memory, chunk->n, g->experts_per_token, g->n_experts,
                          chunk->ids, chunk->weights, chunk->cursor);
        memset(chunk->sum, 0, (size_t)chunk->n * (size_t)g->hidden * sizeof *chunk->sum);
        next_phase(chunk, PHASE_EXPERTS);
        status = clb_moe_announce(engine, &moe, chunk->plan, 0, error);
    } else {
        done = 1;
    }
    if (done) {
        next_phase(chunk, PHASE_ATTEND);
        chunk->layer++;
    }
    return status;
}

/* Norms rows of the trunk's output, keeps what drafts need, and writes logits: of the last row, or of
 * every row when the caller asked. */
static int32_t run_head(colibri_session *session, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    const colibri_geometry *g = &engine->geometry;
    clb_chunk *chunk = &session->chunk;
    int32_t n = chunk->n, last = session->pending == n, status = COLIBRI_OK, wide = n > 1;
    float *all = session->all_logits, *final = last ? clb_session_logit_rows(session, 1) : NULL;
    if (last && final == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the logits");
    if (all != NULL)
        all += (int64_t)(session->total - session->pending) * g->vocab;
    int32_t row = all != NULL || engine->drafts > 0 ? 0 : n - 1;
    for (; row < n && (all != NULL || engine->drafts > 0 || last) && status == COLIBRI_OK;
         row += PHASE_ROWS) {
        int32_t rows = n - row < PHASE_ROWS ? n - row : PHASE_ROWS, ends = row + rows == n;
        clb_run run;
        clb_batch batch = chunk_rows(session, &run, row, rows);
        clb_scratch_reset(&engine->scratch);
        atomic_store(&engine->bad_layer, INT32_MAX);
        float *normed =
            engine->drafts > 0
                ? chunk->h + (int64_t)row * g->hidden
                : clb_scratch_get(&engine->scratch, (size_t)rows * (size_t)g->hidden * sizeof *normed);
        if (normed == NULL)
            return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the logits");
        clb_norm_rows(engine, normed, batch.x, engine->final_norm, rows, g->hidden, g->norm_eps, g->n_layers);
        status = clb_check_finite(engine, &batch, error);
        if (status == COLIBRI_OK && all != NULL)
            status = clb_head(engine, normed, rows, all + (int64_t)row * g->vocab, wide, error);
        else if (status == COLIBRI_OK && last && ends)
            status = clb_head(engine, normed + (int64_t)(rows - 1) * g->hidden, 1, final, wide, error);
    }
    if (status == COLIBRI_OK && all != NULL && last)
        memcpy(final, all + (int64_t)(n - 1) * g->vocab, (size_t)g->vocab * sizeof *final);
    return status;
}

/* Turns the finished trunk chunk into the MTP layer's: row i stands for a position whose next token is
 * known, the position before the chunk included. Returns 0 if there is no such row. */
static int32_t start_drafts(colibri_session *session, int32_t *rows, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    clb_chunk *chunk = &session->chunk;
    int32_t hidden = engine->geometry.hidden, n = chunk->n, before = session->n_hidden > 0;
    int32_t m = before ? n : n - 1;
    /* h holds hidden states of positions length .. length+n-1. Keep the last, put the one before the
     * chunk in front. */
    float *last = clb_scratch_get(&engine->scratch, (size_t)hidden * sizeof *last);
    if (last == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the drafts");
    memcpy(last, chunk->h + (int64_t)(n - 1) * hidden, (size_t)hidden * sizeof *last);
    if (before) {
        memmove(chunk->h + hidden, chunk->h, (size_t)(n - 1) * (size_t)hidden * sizeof *chunk->h);
        memcpy(chunk->h, session->hidden + (int64_t)(session->n_hidden - 1) * hidden,
               (size_t)hidden * sizeof *chunk->h);
    }
    session->n_hidden = 0;
    clb_draft_keep(session, last, 1);
    session->hidden_end = session->length + n;
    int32_t first = session->length - before;
    int32_t status = clb_session_own(session, first, error);
    if (status != COLIBRI_OK)
        return status;
    for (int32_t row = 0; row < m && status == COLIBRI_OK; row += PHASE_ROWS) {
        int32_t part = m - row < PHASE_ROWS ? m - row : PHASE_ROWS;
        clb_scratch_reset(&engine->scratch);
        status = engine->family->draft_input(engine, session->tokens + first + row + 1,
                                             chunk->h + (int64_t)row * hidden, part,
                                             chunk->x + (int64_t)row * hidden, error);
    }
    chunk->n = m;
    chunk->first = first;
    clb_rope_table(engine, chunk->rope, first, m);
    *rows = m;
    return status;
}

/* The chunk's tokens become part of the session. */
static void finish_chunk(colibri_session *session)
{
    int32_t n = session->chunk.tokens, last = session->pending == n;
    session->length += n;
    session->pending -= n;
    if (last)
        clb_session_logits_done(session, 1);
    atomic_fetch_add_explicit(&session->engine->prompt_tokens, n, memory_order_relaxed);
    clb_session_drop_chunk(session);
}

/* After the last layer of trunk or drafts. */
static int32_t advance_chunk(colibri_session *session, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    clb_chunk *chunk = &session->chunk;
    int32_t n_layers = engine->geometry.n_layers, rows = 0, status = COLIBRI_OK;
    if (chunk->layer < n_layers + chunk->drafting)
        return COLIBRI_OK;
    if (!chunk->drafting) {
        status = run_head(session, error);
        clb_scratch_reset(&engine->scratch);
        if (status == COLIBRI_OK && engine->drafts > 0)
            status = start_drafts(session, &rows, error);
        chunk->drafting = rows > 0;
        if (status != COLIBRI_OK || rows > 0)
            return status;
    }
    finish_chunk(session);
    return COLIBRI_OK;
}

/* Keeps the disk busy while rows are computed: a wide chunk touches nearly every expert of the next
 * sparse layer, in ascending order. */
static void read_ahead(const colibri_session *session)
{
    colibri_engine *engine = session->engine;
    const colibri_geometry *g = &engine->geometry;
    const clb_chunk *chunk = &session->chunk;
    if (!engine->store.streaming ||
        (int64_t)chunk->n * g->experts_per_token < (int64_t)g->n_experts * SURE_TOKENS)
        return;
    clb_moe_layer moe;
    int32_t layer = chunk->layer + (chunk->phase == PHASE_EXPERTS || chunk->phase == PHASE_FINISH);
    while (layer < g->n_layers && !engine->family->moe(engine, layer, &moe))
        layer++;
    if (layer < g->n_layers)
        clb_store_prefetch_layer(&engine->store, moe.store_layer);
}

/* Puts the announced experts back on the list after another session's step has used the store. */
static int32_t resume_experts(colibri_session *session, const clb_error *error)
{
    clb_moe_layer moe;
    const clb_chunk *chunk = &session->chunk;
    if (chunk->n == 0 || chunk->phase != PHASE_EXPERTS)
        return COLIBRI_OK;
    session->engine->family->moe(session->engine, chunk->layer, &moe);
    clb_scratch_reset(&session->engine->scratch);
    return clb_moe_announce(session->engine, &moe, chunk->plan, chunk->expert, error);
}

int32_t colibri_prefill_step(colibri_session *session, int32_t max_ms, colibri_prefill_progress *progress,
                             char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    if (session == NULL || session->pending == 0)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "no prefill is in progress");
    colibri_engine *engine = session->engine;
    double stop = clb_os_seconds() + (double)max_ms * 1e-3;
    int32_t n_layers = engine->geometry.n_layers, status = resume_experts(session, &error);
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
            status = run_slice(session, &error);
        }
        if (status == COLIBRI_OK)
            status = advance_chunk(session, &error);
        if (session->pending == 0 || (max_ms > 0 && clb_os_seconds() >= stop))
            break;
    }
    clb_store_forget(&engine->store);
    if (progress != NULL)
        *progress = (colibri_prefill_progress){
            status == COLIBRI_OK && session->pending == 0, session->total - session->pending, session->total,
            session->chunk.layer < n_layers ? session->chunk.layer : n_layers, n_layers};
    if (status != COLIBRI_OK)
        clb_session_drop_pending(session);
    else if (session->pending == 0)
        session->all_logits = NULL;
    return status;
}
