/* session.c - one mutable inference timeline: history, KV blocks, prefill in slices, decode, sampling.
 *
 * A session's `length` moves only when all layers of a chunk or step are done, so a cancel or an
 * error leaves a state that equals the one before it. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "fault.h"
#include "moe.h"
#include "os.h"

int32_t colibri_session_create(colibri_engine *engine, colibri_session **out, char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    if (engine == NULL || out == NULL)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "no engine");
    *out = NULL;
    colibri_session *session = calloc(1, sizeof *session);
    if (session != NULL) {
        session->engine = engine;
        session->tokens = malloc((size_t)engine->context * sizeof *session->tokens);
        session->blocks = calloc((size_t)(engine->context / CLB_SPAN + 1), sizeof *session->blocks);
        session->logits = malloc((size_t)engine->geometry.vocab * sizeof *session->logits);
        atomic_init(&session->cancel, 0);
    }
    if (session == NULL || session->tokens == NULL || session->blocks == NULL || session->logits == NULL) {
        if (session != NULL) {
            free(session->tokens);
            free(session->blocks);
            free(session->logits);
        }
        free(session);
        return clb_fail(&error, COLIBRI_ERROR_MEMORY, "no memory for a session of %" PRId32 " tokens", engine->context);
    }
    atomic_fetch_add(&engine->sessions, 1);
    *out = session;
    return COLIBRI_OK;
}

/* ---- KV blocks ----------------------------------------------------------------------------- */

static void free_blocks(colibri_session *session, int32_t keep)
{
    size_t bytes = (size_t)session->engine->kv.block_bytes;
    while (session->n_blocks > keep) {
        session->n_blocks--;
        clb_os_free(session->blocks[session->n_blocks], bytes);
        session->blocks[session->n_blocks] = NULL;
        atomic_fetch_sub(&session->engine->kv_bytes, (int64_t)bytes);
    }
}

/* Blocks for positions below `length`. */
static int32_t need_blocks(colibri_session *session, int32_t length, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    int64_t bytes = engine->kv.block_bytes, budget = engine->options.memory_budget;
    int32_t want = (length + CLB_SPAN - 1) / CLB_SPAN, had = session->n_blocks;
    while (session->n_blocks < want) {
        int64_t held = engine->region_bytes[0] + engine->region_bytes[1] + atomic_load(&engine->kv_bytes);
        uint8_t *block = budget > 0 && held + bytes > budget ? NULL : clb_os_alloc((size_t)bytes);
        if (block == NULL) {
            free_blocks(session, had);
            return clb_fail(error, COLIBRI_ERROR_MEMORY,
                            "no memory for the context: %" PRId32 " tokens need %.1f MB of KV; use a smaller context or close "
                            "other sessions",
                            length, (double)want * (double)bytes / 1e6);
        }
        session->blocks[session->n_blocks++] = block;
        atomic_fetch_add(&engine->kv_bytes, bytes);
    }
    return COLIBRI_OK;
}

/* ---- prefill state ------------------------------------------------------------------------- */

static void drop_chunk(colibri_session *session)
{
    clb_os_free(session->chunk.memory, session->chunk.bytes);
    memset(&session->chunk, 0, sizeof session->chunk);
}

static void drop_pending(colibri_session *session)
{
    drop_chunk(session);
    session->pending = 0;
    session->total = 0;
    session->all_logits = NULL;
}

void colibri_session_close(colibri_session *session)
{
    if (session == NULL)
        return;
    drop_pending(session);
    free_blocks(session, 0);
    atomic_fetch_sub(&session->engine->sessions, 1);
    free(session->tokens);
    free(session->blocks);
    free(session->logits);
    free(session);
}

int32_t colibri_session_length(const colibri_session *session)
{
    return session ? session->length : 0;
}

int32_t colibri_session_tokens(const colibri_session *session, int32_t *out, int32_t n)
{
    if (session == NULL || out == NULL || n <= 0)
        return 0;
    if (n > session->length)
        n = session->length;
    memcpy(out, session->tokens, (size_t)n * sizeof *out);
    return n;
}

int32_t colibri_session_truncate(colibri_session *session, int32_t length, char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    if (session == NULL)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "no session");
    if (length < 0 || length > session->length)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "cannot truncate to %" PRId32 ": the session holds %" PRId32 " tokens",
                        length, session->length);
    drop_pending(session);
    if (length < session->length)
        session->has_logits = 0;
    session->length = length;
    free_blocks(session, (length + CLB_SPAN - 1) / CLB_SPAN);
    return COLIBRI_OK;
}

static int32_t check_tokens(const colibri_engine *engine, const int32_t *tokens, int32_t n, const clb_error *error)
{
    for (int32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= engine->geometry.vocab)
            return clb_fail(error, COLIBRI_ERROR_INVALID, "token %" PRId32 " at index %" PRId32 " is outside the vocabulary of %" PRId32,
                            tokens[i], i, engine->geometry.vocab);
    return COLIBRI_OK;
}

int32_t colibri_prefill_start(colibri_session *session, const int32_t *tokens, int32_t n, float *logits, char *err,
                              size_t err_len)
{
    clb_error error = {err, err_len};
    if (session == NULL || tokens == NULL || n < 1)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "a prefill needs a session and at least one token");
    if (session->pending > 0)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "the session has an unfinished prefill; finish, cancel or truncate it first");
    colibri_engine *engine = session->engine;
    int32_t status = check_tokens(engine, tokens, n, &error);
    if (status != COLIBRI_OK)
        return status;
    if (n > engine->context - session->length)
        return clb_fail(&error, COLIBRI_ERROR_CONTEXT, "%" PRId32 " tokens do not fit: the context holds %" PRId32 ", %" PRId32 " are in use",
                        n, engine->context, session->length);
    memcpy(session->tokens + session->length, tokens, (size_t)n * sizeof *tokens);
    session->pending = n;
    session->total = n;
    session->all_logits = logits;
    session->has_logits = 0;
    return COLIBRI_OK;
}

/* Phases of a layer over a chunk. */
enum { PHASE_ATTEND, PHASE_MLP, PHASE_EXPERTS, PHASE_FINISH };
/* Rows that attention, MLP and router take at once: wide enough for the GEMM's peak, and their
 * temporaries do not grow with the chunk. */
#define PHASE_ROWS 512

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
    if (g->n_experts > 0) {
        chunk->h = carve(base, &used, n * (size_t)g->hidden * sizeof(float));
        chunk->sum = carve(base, &used, n * (size_t)g->hidden * sizeof(float));
        chunk->ids = carve(base, &used, n * k * sizeof(int32_t));
        chunk->weights = carve(base, &used, n * k * sizeof(float));
        chunk->plan_memory = carve(base, &used, clb_moe_plan_bytes(chunk->n, g->experts_per_token, g->n_experts));
        chunk->cursor = carve(base, &used, (size_t)g->n_experts * sizeof(int32_t));
        chunk->plan = carve(base, &used, sizeof *chunk->plan);
    }
    chunk->bytes = used;
}

int64_t clb_step_bytes(const colibri_engine *engine)
{
    const colibri_geometry *g = &engine->geometry;
    clb_chunk chunk = {.n = engine->prefill_chunk < engine->context ? engine->prefill_chunk : engine->context};
    lay_out(engine, &chunk, NULL);
    int64_t rows = chunk.n < PHASE_ROWS ? chunk.n : PHASE_ROWS;
    int64_t experts = g->n_experts > 0 ? 2 * rows * (2 * (int64_t)g->expert_ffn + g->hidden) : 0;
    int64_t widest = rows * engine->family->row_floats(g);
    if (experts > widest)
        widest = experts;
    /* Half as much again for the prepared activations; joining scratch blocks briefly holds both. */
    return (int64_t)chunk.bytes + widest * (int64_t)sizeof(float) * 3 / 2 + (int64_t)g->vocab * 4;
}

static int32_t start_chunk(colibri_session *session, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    clb_chunk *chunk = &session->chunk;
    int32_t n = session->pending < engine->prefill_chunk ? session->pending : engine->prefill_chunk;
    int32_t status = need_blocks(session, session->length + n, error);
    if (status != COLIBRI_OK)
        return status;
    memset(chunk, 0, sizeof *chunk);
    chunk->n = n;
    lay_out(engine, chunk, NULL);
    chunk->memory = clb_os_alloc(chunk->bytes);
    if (chunk->memory == NULL) {
        memset(chunk, 0, sizeof *chunk);
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for a prefill chunk of %" PRId32 " tokens", n);
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
    *run = (clb_run){(colibri_session *)(uintptr_t)session, 0, n, session->length + row};
    return (clb_batch){n,
                       chunk->x + (int64_t)row * engine->geometry.hidden,
                       chunk->rope + (int64_t)row * engine->family->rope_dim(&engine->geometry),
                       run,
                       1,
                       chunk->selected + (int64_t)row * engine->geometry.index_topk,
                       chunk->n_selected + row};
}

static void plant_nan(const colibri_engine *engine, const clb_batch *batch, int32_t layer)
{
    if (engine->options.fault != CLB_FAULT_NAN || layer != 1)
        return;
    for (int32_t r = 0; r < batch->n_runs; r++) {
        int32_t row = 3 - batch->runs[r].first;
        if (row >= 0 && row < batch->runs[r].n)
            batch->x[(int64_t)(batch->runs[r].row0 + row) * engine->geometry.hidden] = nanf("");
    }
}

/* Counts a finished piece of work, so that a watchdog sees the difference between slow and stuck. */
static void note_progress(colibri_engine *engine)
{
    atomic_fetch_add_explicit(&engine->progress, 1, memory_order_relaxed);
    atomic_store_explicit(&engine->scratch_bytes, (int64_t)engine->scratch.total, memory_order_relaxed);
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
        status = sparse ? engine->family->route(engine, &rows, layer, chunk->h + at, chunk->ids + choice, chunk->weights + choice, error)
                        : engine->family->mlp(engine, &rows, layer, error);
        break;
    case PHASE_EXPERTS:
        status = clb_moe_group(engine, &moe, chunk->plan, chunk->h, chunk->sum, &chunk->expert, error);
        if (status == COLIBRI_OK && chunk->expert == g->n_experts) {
            clb_store_forget(&engine->store);
            next_phase(chunk, PHASE_FINISH);
        }
        note_progress(engine);
        return status;
    default:
        status = clb_moe_finish(engine, &moe, chunk->h + at, chunk->sum + at, n, rows.x, error);
        break;
    }
    note_progress(engine);
    if (status == COLIBRI_OK)
        status = clb_check_finite(engine, &rows, error);
    if (status != COLIBRI_OK)
        return status;
    if (chunk->phase == PHASE_FINISH || (chunk->phase == PHASE_MLP && !sparse))
        plant_nan(engine, &rows, layer);
    chunk->row += n;
    if (chunk->row < chunk->n)
        return COLIBRI_OK;
    if (chunk->phase == PHASE_ATTEND) {
        next_phase(chunk, PHASE_MLP);
    } else if (chunk->phase == PHASE_MLP && sparse) {
        clb_moe_plan_make(chunk->plan, chunk->plan_memory, chunk->n, g->experts_per_token, g->n_experts, chunk->ids, chunk->weights,
                          chunk->cursor);
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

/* Logits of a finished chunk: the last row's, or every row's when the caller asked. */
static int32_t finish_chunk(colibri_session *session, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    int32_t n = session->chunk.n, vocab = engine->geometry.vocab, last = session->pending == n, status = COLIBRI_OK;
    float *out = session->all_logits;
    if (out != NULL)
        out += (int64_t)(session->total - session->pending) * vocab;
    for (int32_t row = out != NULL ? 0 : n - 1; row < n && (out != NULL || last) && status == COLIBRI_OK; row += PHASE_ROWS) {
        int32_t rows = n - row < PHASE_ROWS ? n - row : PHASE_ROWS;
        clb_run run;
        clb_batch batch = chunk_rows(session, &run, row, rows);
        clb_scratch_reset(&engine->scratch);
        atomic_store(&engine->bad_layer, INT32_MAX);
        status = clb_head(engine, &batch, out != NULL ? out + (int64_t)row * vocab : session->logits, n > 1, error);
        if (status == COLIBRI_OK)
            status = clb_check_finite(engine, &batch, error);
    }
    if (status != COLIBRI_OK)
        return status;
    if (out != NULL && last)
        memcpy(session->logits, out + (int64_t)(n - 1) * vocab, (size_t)vocab * sizeof *out);
    session->length += n;
    session->pending -= n;
    session->has_logits = last;
    atomic_fetch_add_explicit(&engine->prompt_tokens, n, memory_order_relaxed);
    drop_chunk(session);
    return COLIBRI_OK;
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

int32_t colibri_prefill_step(colibri_session *session, int32_t max_ms, colibri_prefill_progress *progress, char *err,
                             size_t err_len)
{
    clb_error error = {err, err_len};
    if (session == NULL || session->pending == 0)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "no prefill is in progress");
    colibri_engine *engine = session->engine;
    double stop = clb_os_seconds() + (double)max_ms * 1e-3;
    int32_t n_layers = engine->geometry.n_layers, status = resume_experts(session, &error);
    while (status == COLIBRI_OK) {
        if (atomic_exchange(&session->cancel, 0)) {
            status = clb_fail(&error, COLIBRI_ERROR_CANCELLED, "cancelled after %" PRId32 " of %" PRId32 " tokens",
                              session->total - session->pending, session->total);
            break;
        }
        if (session->chunk.n == 0)
            status = start_chunk(session, &error);
        if (status == COLIBRI_OK)
            status = run_slice(session, &error);
        if (status == COLIBRI_OK && session->chunk.layer == n_layers)
            status = finish_chunk(session, &error);
        if (session->pending == 0 || (max_ms > 0 && clb_os_seconds() >= stop))
            break;
    }
    clb_store_forget(&engine->store);
    if (progress != NULL)
        *progress = (colibri_prefill_progress){status == COLIBRI_OK && session->pending == 0, session->total - session->pending,
                                               session->total, session->chunk.layer, n_layers};
    if (status != COLIBRI_OK)
        drop_pending(session);
    else if (session->pending == 0)
        session->all_logits = NULL;
    return status;
}

/* ---- decode -------------------------------------------------------------------------------- */

static int32_t check_decode(colibri_session *const *sessions, const int32_t *tokens, int32_t n, const clb_error *error)
{
    if (sessions == NULL || tokens == NULL || n < 1 || n > CLB_MAX_BATCH)
        return clb_fail(error, COLIBRI_ERROR_INVALID, "a decode step takes 1..%d sessions", CLB_MAX_BATCH);
    for (int32_t i = 0; i < n; i++) {
        if (sessions[i] == NULL || sessions[i]->engine != sessions[0]->engine)
            return clb_fail(error, COLIBRI_ERROR_INVALID, "the sessions of a decode step must belong to one engine");
        if (sessions[i]->pending > 0)
            return clb_fail(error, COLIBRI_ERROR_INVALID, "session %" PRId32 " of the step is in the middle of a prefill", i);
        if (sessions[i]->length >= sessions[i]->engine->context)
            return clb_fail(error, COLIBRI_ERROR_CONTEXT, "the context of %" PRId32 " tokens is full", sessions[i]->engine->context);
        for (int32_t j = 0; j < i; j++)
            if (sessions[i] == sessions[j])
                return clb_fail(error, COLIBRI_ERROR_INVALID, "a session appears twice in a decode step");
    }
    return check_tokens(sessions[0]->engine, tokens, n, error);
}

/* Runs the next layer's router one layer early and tells the store, which may read ahead. */
static int32_t guess_next(colibri_engine *engine, const clb_batch *batch, int32_t layer, const clb_error *error)
{
    clb_moe_layer moe;
    if (!engine->store.streaming || engine->options.no_prefetch || !engine->family->moe(engine, layer, &moe))
        return COLIBRI_OK;
    int32_t n = batch->n * moe.per_token;
    int32_t *ids = clb_scratch_get(&engine->scratch, (size_t)n * sizeof *ids);
    if (ids == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for routing %" PRId32 " tokens", batch->n);
    int32_t status = engine->family->guess(engine, batch, layer, ids, error);
    if (status == COLIBRI_OK)
        clb_store_prefetch(&engine->store, moe.store_layer, ids, n);
    return status;
}

static int32_t decode_layer(colibri_engine *engine, const clb_batch *batch, int32_t layer, const clb_error *error)
{
    const colibri_geometry *g = &engine->geometry;
    clb_scratch *scratch = &engine->scratch;
    clb_scratch_reset(scratch);
    int32_t status = engine->family->attention(engine, batch, layer, error);
    if (status != COLIBRI_OK)
        return status;
    clb_scratch_reset(scratch);
    clb_moe_layer moe;
    if (engine->family->moe(engine, layer, &moe)) {
        size_t rows = (size_t)batch->n;
        float *h = clb_scratch_get(scratch, rows * (size_t)g->hidden * sizeof *h);
        int32_t *ids = clb_scratch_get(scratch, rows * (size_t)moe.per_token * sizeof *ids);
        float *weights = clb_scratch_get(scratch, rows * (size_t)moe.per_token * sizeof *weights);
        if (!h || !ids || !weights)
            return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for routing %" PRId32 " tokens", batch->n);
        status = engine->family->route(engine, batch, layer, h, ids, weights, error);
        if (status == COLIBRI_OK && layer + 1 < g->n_layers)
            status = guess_next(engine, batch, layer + 1, error);
        if (status == COLIBRI_OK)
            status = clb_moe_run(engine, &moe, h, ids, weights, batch->n, batch->x, error);
    } else {
        status = engine->family->mlp(engine, batch, layer, error);
    }
    plant_nan(engine, batch, layer);
    note_progress(engine);
    return status;
}

int32_t colibri_decode(colibri_session *const *sessions, const int32_t *tokens, int32_t n, char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    int32_t status = check_decode(sessions, tokens, n, &error);
    if (status != COLIBRI_OK)
        return status;
    colibri_engine *engine = sessions[0]->engine;
    const colibri_geometry *g = &engine->geometry;
    clb_run runs[CLB_MAX_BATCH];
    int32_t rope_dim = engine->family->rope_dim(g);
    float *rope = malloc((size_t)n * (size_t)rope_dim * sizeof *rope);
    /* A single session's logits are written where they belong. */
    float *logits = n == 1 ? sessions[0]->logits : malloc((size_t)n * (size_t)g->vocab * sizeof *logits);
    if (rope == NULL || logits == NULL)
        status = clb_fail(&error, COLIBRI_ERROR_MEMORY, "no memory for the logits of a decode step");
    for (int32_t i = 0; i < n; i++)
        sessions[i]->has_logits = 0;
    for (int32_t i = 0; i < n && status == COLIBRI_OK; i++) {
        runs[i] = (clb_run){sessions[i], i, 1, sessions[i]->length};
        status = need_blocks(sessions[i], sessions[i]->length + 1, &error);
        if (status == COLIBRI_OK)
            clb_rope_table(engine, rope + (int64_t)i * rope_dim, sessions[i]->length, 1);
    }
    if (status == COLIBRI_OK) {
        clb_embed(engine, tokens, engine->decode_x, n);
        clb_batch batch = {n, engine->decode_x, rope, runs, n, engine->decode_selected,
                           engine->decode_selected + (int64_t)g->index_topk * n};
        atomic_store(&engine->bad_layer, INT32_MAX);
        clb_store_tick(&engine->store);
        for (int32_t layer = 0; layer < g->n_layers && status == COLIBRI_OK; layer++)
            status = decode_layer(engine, &batch, layer, &error);
        if (status == COLIBRI_OK) {
            clb_scratch_reset(&engine->scratch);
            status = clb_head(engine, &batch, logits, n > 1, &error);
        }
        if (status == COLIBRI_OK)
            status = clb_check_finite(engine, &batch, &error);
    }
    for (int32_t i = 0; i < n && status == COLIBRI_OK; i++) {
        colibri_session *session = sessions[i];
        session->tokens[session->length++] = tokens[i];
        if (n > 1)
            memcpy(session->logits, logits + (int64_t)i * g->vocab, (size_t)g->vocab * sizeof *logits);
        session->has_logits = 1;
    }
    if (status == COLIBRI_OK)
        atomic_fetch_add_explicit(&engine->decoded_tokens, n, memory_order_relaxed);
    free(rope);
    if (n > 1)
        free(logits);
    return status;
}

/* ---- results ------------------------------------------------------------------------------- */

static int32_t need_logits(const colibri_session *session, const clb_error *error)
{
    if (session == NULL || !session->has_logits)
        return clb_fail(error, COLIBRI_ERROR_INVALID, "the session has no logits: append a token first");
    return COLIBRI_OK;
}

int32_t colibri_session_sample(colibri_session *session, const colibri_sampling *sampling, int32_t *token, char *err,
                               size_t err_len)
{
    clb_error error = {err, err_len};
    int32_t status = need_logits(session, &error);
    if (status != COLIBRI_OK)
        return status;
    if (sampling == NULL || token == NULL || sampling->struct_size < sizeof *sampling)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "sampling parameters missing");
    if (!(sampling->temperature >= 0 && sampling->temperature <= 100) || !(sampling->top_p > 0 && sampling->top_p <= 1))
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "temperature must lie in 0..100 and top_p in (0, 1]");
    const colibri_geometry *g = &session->engine->geometry;
    *token = clb_sample(session->logits, g->vocab, g->vocab_used, sampling, session->length);
    if (*token < 0)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "the mask allows no token");
    return COLIBRI_OK;
}

int32_t colibri_session_logits(const colibri_session *session, float *out, int32_t n, char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    int32_t status = need_logits(session, &error);
    if (status != COLIBRI_OK)
        return status;
    if (out == NULL || n != session->engine->geometry.vocab)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "the logits are %" PRId32 " floats", session->engine->geometry.vocab);
    memcpy(out, session->logits, (size_t)n * sizeof *out);
    return COLIBRI_OK;
}

void colibri_session_cancel(colibri_session *session)
{
    if (session != NULL)
        atomic_store(&session->cancel, 1);
}
