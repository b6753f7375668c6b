/* session.c - one mutable inference timeline: history, KV blocks, logits, sampling.
 *
 * A session's `length` moves only when all layers of a chunk or step are done, so a cancel or an
 * error leaves a state that equals the one before it. Growing it: prefill.c, decode.c; its KV: blocks.c. */
#include "session.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
        atomic_init(&session->cancel, 0);
    }
    if (session == NULL || clb_blocks_open(session) != COLIBRI_OK || session->tokens == NULL) {
        if (session != NULL) {
            clb_blocks_close(session);
            free(session->tokens);
        }
        free(session);
        return clb_fail(&error, COLIBRI_ERROR_MEMORY, "no memory for a session of %" PRId32 " tokens",
                        engine->context);
    }
    atomic_fetch_add(&engine->sessions, 1);
    *out = session;
    return COLIBRI_OK;
}

/* ---- life ---------------------------------------------------------------------------------- */

void clb_session_drop_chunk(colibri_session *session)
{
    session->engine->n_chunks -= session->chunk.memory != NULL;
    clb_os_free(session->chunk.memory, session->chunk.bytes);
    memset(&session->chunk, 0, sizeof session->chunk);
}

static void end_pending(colibri_session *session)
{
    if (session->pending > 0)
        clb_store_end_scan(&session->engine->store);
    session->pending = 0;
    session->total = 0;
    session->all_logits = NULL;
}

void clb_session_drop_pending(colibri_session *session)
{
    clb_session_unpark(session);
    clb_session_drop_chunk(session);
    end_pending(session);
    clb_blocks_keep(session, (session->length + CLB_SPAN - 1) / CLB_SPAN);
}

/* ---- parked chunks ------------------------------------------------------------------------- */

void clb_session_park(colibri_session *session)
{
    if (session->chunk.n == 0 || session->pending == 0) {
        end_pending(session); /* nothing begun, or parked already */
        return;
    }
    end_pending(session);
    clb_session_add_parked(session);
}

void clb_session_add_parked(colibri_session *session)
{
    colibri_session **at = &session->engine->parked;
    while (*at != NULL)
        at = &(*at)->next_parked;
    *at = session;
}

void clb_session_unpark(colibri_session *session)
{
    for (colibri_session **at = &session->engine->parked; *at != NULL; at = &(*at)->next_parked)
        if (*at == session) {
            *at = session->next_parked;
            session->next_parked = NULL;
            return;
        }
}

int clb_session_drop_oldest(colibri_engine *engine)
{
    if (engine->parked == NULL)
        return 0;
    clb_session_drop_pending(engine->parked);
    return 1;
}

int32_t colibri_session_parked(const colibri_session *session)
{
    return session != NULL && session->pending == 0 && session->chunk.n > 0 && session->chunk.unfilled == 0
               ? session->chunk.tokens
               : 0;
}

void colibri_session_close(colibri_session *session)
{
    if (session == NULL)
        return;
    clb_session_drop_pending(session);
    clb_blocks_close(session);
    atomic_fetch_sub(&session->engine->sessions, 1);
    free(session->tokens);
    free(session->logits);
    free(session->hidden);
    free(session->routed);
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
        return clb_fail(&error, COLIBRI_ERROR_INVALID,
                        "cannot truncate to %" PRId32 ": the session holds %" PRId32 " tokens", length,
                        session->length);
    if (length == session->length) {
        clb_session_park(session);
        if (session->chunk.n == 0)
            clb_session_drop_pending(session);
        return COLIBRI_OK;
    }
    int32_t reusable = colibri_session_reusable(session, length);
    if (reusable != length)
        return clb_fail(&error, COLIBRI_ERROR_INVALID,
                        "cannot truncate to %" PRId32 ": windows have passed on; %" PRId32 " is possible",
                        length, reusable);
    session->length = length;
    clb_session_drop_pending(session);
    while (session->n_checkpoints > 0 && session->checkpoints[session->n_checkpoints - 1] > length)
        session->n_checkpoints--;
    clb_draft_truncate(session, length);
    return COLIBRI_OK;
}

int32_t clb_check_tokens(const colibri_engine *engine, const int32_t *tokens, int32_t n,
                         const clb_error *error)
{
    for (int32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= engine->geometry.vocab)
            return clb_fail(error, COLIBRI_ERROR_INVALID,
                            "token %" PRId32 " at index %" PRId32 " is outside the vocabulary of %" PRId32,
                            tokens[i], i, engine->geometry.vocab);
    return COLIBRI_OK;
}

void clb_plant_nan(const colibri_engine *engine, const clb_batch *batch, int32_t layer)
{
    if (engine->options.fault != CLB_FAULT_NAN || layer != 1)
        return;
    for (int32_t r = 0; r < batch->n_runs; r++) {
        int32_t row = 3 - batch->runs[r].first;
        if (row >= 0 && row < batch->runs[r].n)
            batch->x[(int64_t)(batch->runs[r].row0 + row) * engine->geometry.hidden] = nanf("");
    }
}

void clb_note_progress(colibri_engine *engine)
{
    atomic_fetch_add_explicit(&engine->progress, 1, memory_order_relaxed);
    atomic_store_explicit(&engine->scratch_bytes, (int64_t)engine->scratch.total, memory_order_relaxed);
}

/* ---- results ------------------------------------------------------------------------------- */

float *clb_session_logit_rows(colibri_session *session, int32_t rows)
{
    session->n_logits = 0;
    if (rows > session->logit_rows) {
        float *grown =
            realloc(session->logits, (size_t)rows * (size_t)session->engine->geometry.vocab * sizeof *grown);
        if (grown == NULL)
            return NULL;
        session->logits = grown;
        session->logit_rows = rows;
    }
    return session->logits;
}

void clb_session_logits_done(colibri_session *session, int32_t rows)
{
    session->n_logits = rows;
    session->logits_end = session->length;
}

const float *clb_session_logits_at(const colibri_session *session, int32_t length)
{
    int32_t row = length - (session->logits_end - session->n_logits) - 1;
    if (length > session->length || row < 0 || row >= session->n_logits)
        return NULL;
    return session->logits + (int64_t)row * session->engine->geometry.vocab;
}

static const float *need_logits(const colibri_session *session, int32_t length, const clb_error *error)
{
    const float *logits = session == NULL ? NULL : clb_session_logits_at(session, length);
    if (logits == NULL)
        clb_fail(error, COLIBRI_ERROR_INVALID,
                 "the session has no logits at length %" PRId32 ": append a token first", length);
    return logits;
}

int32_t colibri_session_sample_at(colibri_session *session, int32_t length, const colibri_sampling *sampling,
                                  int32_t *token, char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    const float *logits = need_logits(session, length, &error);
    if (logits == NULL)
        return COLIBRI_ERROR_INVALID;
    if (sampling == NULL || token == NULL || sampling->struct_size < sizeof *sampling)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "sampling parameters missing");
    if (!(sampling->temperature >= 0 && sampling->temperature <= 100) ||
        !(sampling->top_p > 0 && sampling->top_p <= 1))
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "temperature must lie in 0..100 and top_p in (0, 1]");
    const colibri_geometry *g = &session->engine->geometry;
    *token = clb_sample(logits, g->vocab, g->vocab_used, sampling, length);
    if (*token >= 0)
        return COLIBRI_OK;
    const int masked = *token == CLB_SAMPLE_MASKED;
    *token = 0;
    if (masked)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "the mask allows no token");
    return clb_fail(&error, COLIBRI_ERROR_NUMERIC,
                    "the logits became infinite or NaN at position %" PRId32 ", behind the last of %" PRId32
                    " layers; the weights are damaged or the format is wrong: run verify on the model",
                    length - 1, g->n_layers);
}

int32_t colibri_session_sample(colibri_session *session, const colibri_sampling *sampling, int32_t *token,
                               char *err, size_t err_len)
{
    return colibri_session_sample_at(session, colibri_session_length(session), sampling, token, err, err_len);
}

int32_t colibri_session_logits(const colibri_session *session, float *out, int32_t n, char *err,
                               size_t err_len)
{
    clb_error error = {err, err_len};
    const float *logits = need_logits(session, colibri_session_length(session), &error);
    if (logits == NULL)
        return COLIBRI_ERROR_INVALID;
    if (out == NULL || n != session->engine->geometry.vocab)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "the logits are %" PRId32 " floats",
                        session->engine->geometry.vocab);
    memcpy(out, logits, (size_t)n * sizeof *out);
    return COLIBRI_OK;
}

void colibri_session_cancel(colibri_session *session)
{
    if (session != NULL)
        atomic_store(&session->cancel, 1);
}
