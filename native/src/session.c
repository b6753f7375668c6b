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
    clb_os_free(session->chunk_x, (size_t)session->chunk_bytes[0]);
    clb_os_free(session->chunk_rope, (size_t)session->chunk_bytes[1]);
    clb_os_free(session->chunk_selected, (size_t)session->chunk_bytes[2]);
    session->chunk_x = NULL;
    session->chunk_rope = NULL;
    session->chunk_selected = NULL;
    session->chunk = 0;
    session->layer = 0;
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

static int32_t start_chunk(colibri_session *session, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    const colibri_geometry *g = &engine->geometry;
    int32_t n = session->pending < engine->prefill_chunk ? session->pending : engine->prefill_chunk;
    int32_t status = need_blocks(session, session->length + n, error);
    if (status != COLIBRI_OK)
        return status;
    session->chunk_bytes[0] = (int64_t)n * g->hidden * 4;
    session->chunk_bytes[1] = (int64_t)n * engine->family->rope_dim(g) * 4;
    session->chunk_bytes[2] = (int64_t)n * (g->index_topk + 1) * 4;
    session->chunk_x = clb_os_alloc((size_t)session->chunk_bytes[0]);
    session->chunk_rope = clb_os_alloc((size_t)session->chunk_bytes[1]);
    session->chunk_selected = clb_os_alloc((size_t)session->chunk_bytes[2]);
    if (!session->chunk_x || !session->chunk_rope || !session->chunk_selected) {
        drop_chunk(session);
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for a prefill chunk of %" PRId32 " tokens", n);
    }
    session->chunk = n;
    session->layer = 0;
    clb_embed(engine, session->tokens + session->length, session->chunk_x, n);
    clb_rope_table(engine, session->chunk_rope, session->length, n);
    return COLIBRI_OK;
}

static int32_t run_layer(colibri_engine *engine, const clb_batch *batch, int32_t layer, const clb_error *error)
{
    clb_scratch_reset(&engine->scratch);
    int32_t status = engine->family->layer(engine, batch, layer, error);
    if (status == COLIBRI_OK && engine->options.fault == CLB_FAULT_NAN && layer == 1)
        for (int32_t r = 0; r < batch->n_runs; r++) {
            int32_t row = 3 - batch->runs[r].first;
            if (row >= 0 && row < batch->runs[r].n)
                batch->x[(int64_t)(batch->runs[r].row0 + row) * engine->geometry.hidden] = nanf("");
        }
    atomic_fetch_add_explicit(&engine->progress, 1, memory_order_relaxed);
    atomic_store_explicit(&engine->scratch_bytes, (int64_t)engine->scratch.total, memory_order_relaxed);
    return status;
}

/* Logits of a finished chunk: the last row's, or every row's when the caller asked. */
static int32_t finish_chunk(colibri_session *session, const clb_batch *batch, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    int32_t n = session->chunk, vocab = engine->geometry.vocab, last = session->pending == n;
    int32_t status = COLIBRI_OK;
    clb_scratch_reset(&engine->scratch);
    if (session->all_logits != NULL) {
        float *out = session->all_logits + (int64_t)(session->total - session->pending) * vocab;
        status = clb_head(engine, batch, 0, n, out, error);
        if (status == COLIBRI_OK && last)
            memcpy(session->logits, out + (int64_t)(n - 1) * vocab, (size_t)vocab * sizeof *out);
    } else if (last) {
        status = clb_head(engine, batch, n - 1, 1, session->logits, error);
    }
    if (status == COLIBRI_OK)
        status = clb_check_finite(engine, batch, error);
    if (status != COLIBRI_OK)
        return status;
    session->length += n;
    session->pending -= n;
    session->has_logits = last;
    atomic_fetch_add_explicit(&engine->prompt_tokens, n, memory_order_relaxed);
    drop_chunk(session);
    return COLIBRI_OK;
}

int32_t colibri_prefill_step(colibri_session *session, int32_t max_ms, colibri_prefill_progress *progress, char *err,
                             size_t err_len)
{
    clb_error error = {err, err_len};
    if (session == NULL || session->pending == 0)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "no prefill is in progress");
    colibri_engine *engine = session->engine;
    double stop = clb_os_seconds() + (double)max_ms * 1e-3;
    int32_t status = COLIBRI_OK, n_layers = engine->geometry.n_layers;
    for (;;) {
        if (atomic_exchange(&session->cancel, 0)) {
            status = clb_fail(&error, COLIBRI_ERROR_CANCELLED, "cancelled after %" PRId32 " of %" PRId32 " tokens",
                              session->total - session->pending, session->total);
            break;
        }
        if (session->chunk == 0 && (status = start_chunk(session, &error)) != COLIBRI_OK)
            break;
        clb_run run = {session, 0, session->chunk, session->length};
        int64_t topk = engine->geometry.index_topk;
        clb_batch batch = {session->chunk, session->chunk_x, session->chunk_rope, &run, 1,
                           session->chunk_selected, session->chunk_selected + topk * session->chunk};
        if (session->layer == 0) {
            atomic_store(&engine->bad_layer, INT32_MAX);
        }
        if (session->layer < n_layers) {
            if ((status = run_layer(engine, &batch, session->layer, &error)) != COLIBRI_OK)
                break;
            session->layer++;
        }
        if (session->layer == n_layers && (status = finish_chunk(session, &batch, &error)) != COLIBRI_OK)
            break;
        if (session->pending == 0 || (max_ms > 0 && clb_os_seconds() >= stop))
            break;
    }
    if (progress != NULL)
        *progress = (colibri_prefill_progress){status == COLIBRI_OK && session->pending == 0, session->total - session->pending,
                                               session->total, session->layer, n_layers};
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
        for (int32_t layer = 0; layer < g->n_layers && status == COLIBRI_OK; layer++)
            status = run_layer(engine, &batch, layer, &error);
        if (status == COLIBRI_OK) {
            clb_scratch_reset(&engine->scratch);
            status = clb_head(engine, &batch, 0, n, logits, &error);
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
