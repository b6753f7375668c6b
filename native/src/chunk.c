/* chunk.c - an unfinished prefill chunk leaves the engine and comes back, so that not even the end of the
 * process loses more of it than the layers in work.
 *
 *   pieces    0 .. layers-1   KV of one finished layer, in the blocks of the chunk's positions
 *             ROWS            the residual stream between two layers: all that the next one needs
 *
 * A finished layer's KV changes no more, so it can be copied at any time; the rows only while the chunk
 * stands between two layers of which the second makes its own selection (of DSA; one that shares it would
 * need that of the layer below). A session that is filled again holds the chunk parked.
 * Not for: computing (prefill.c), the KV of whole blocks (blocks.c), files. Thread rule: the engine's
 * calling thread. */
#include "session.h"

#include <inttypes.h>
#include <string.h>

#define ROWS (-1)

/* Whether the chunk could begin `layer` with nothing but its rows. */
static int starts_alone(const colibri_engine *engine, int32_t layer)
{
    return layer > 0 && layer < engine->geometry.n_layers &&
           (!engine->sparse_attention || engine->layer_indexer == NULL || engine->layer_indexer[layer]);
}

int clb_chunk_between(const colibri_session *session)
{
    const clb_chunk *chunk = &session->chunk;
    return chunk->n > 0 && chunk->unfilled == 0 && !chunk->drafting && chunk->phase == CLB_PHASE_ATTEND &&
           chunk->row == 0 && starts_alone(session->engine, chunk->layer);
}

/* Whether there is a place, here or further on, where the chunk's rows can leave. */
static int can_leave(const colibri_session *session)
{
    const clb_chunk *chunk = &session->chunk;
    if (clb_chunk_between(session))
        return 1;
    for (int32_t l = chunk->layer + 1; !chunk->drafting && l < session->engine->geometry.n_layers; l++)
        if (starts_alone(session->engine, l))
            return 1;
    return 0;
}

/* Layers of the trunk whose KV is complete, and stays so. */
static int32_t finished_layers(const colibri_session *session)
{
    const clb_chunk *chunk = &session->chunk;
    int32_t n_layers = session->engine->geometry.n_layers;
    return chunk->layer < n_layers && chunk->phase < CLB_PHASE_HEAD ? chunk->layer : n_layers;
}

/* First position of the chunk: that of the session's end, whatever the MTP layer is at. */
static int32_t first_span(const colibri_session *session)
{
    return session->length / CLB_SPAN;
}

static int32_t end_span(const colibri_session *session)
{
    return (session->length + session->chunk.tokens + CLB_SPAN - 1) / CLB_SPAN;
}

void colibri_session_chunk(const colibri_session *session, colibri_chunk *out)
{
    if (out == NULL || out->struct_size < sizeof *out)
        return;
    *out = (colibri_chunk){.struct_size = sizeof *out};
    if (session == NULL || session->chunk.n == 0 || session->chunk.unfilled > 0 || !can_leave(session))
        return;
    out->first = session->length;
    out->tokens = session->chunk.tokens;
    out->layers = finished_layers(session);
    out->between = clb_chunk_between(session);
}

void colibri_session_pause(colibri_session *session, int32_t on)
{
    if (session != NULL)
        session->pause_between = on != 0;
}

int64_t colibri_session_chunk_bytes(const colibri_session *session, int32_t piece)
{
    if (session == NULL || session->chunk.n == 0 || piece < ROWS ||
        piece >= session->engine->geometry.n_layers)
        return 0;
    const colibri_engine *engine = session->engine;
    if (piece == ROWS)
        return (int64_t)session->chunk.tokens * engine->geometry.hidden * (int64_t)sizeof(float);
    int64_t bytes = 0;
    for (int32_t i = 0; i < engine->kv.n_parts; i++)
        if (engine->kv.parts[i].layer == piece)
            bytes += engine->kv.parts[i].bytes;
    return bytes * (end_span(session) - first_span(session));
}

static int32_t check_piece(const colibri_session *session, int32_t piece, const void *data, int64_t bytes,
                           const clb_error *error)
{
    if (session == NULL || session->chunk.n == 0)
        return clb_fail(error, COLIBRI_ERROR_INVALID, "the session has no unfinished chunk");
    int64_t need = colibri_session_chunk_bytes(session, piece);
    if (need == 0 || data == NULL || bytes != need)
        return clb_fail(error, COLIBRI_ERROR_INVALID,
                        "piece %" PRId32 " of this chunk has %" PRId64 " bytes, not %" PRId64, piece, need,
                        bytes);
    return COLIBRI_OK;
}

/* Copies a layer's KV of the chunk's blocks to `out`, or from `in`. */
static void copy_layer(const colibri_session *session, int32_t layer, uint8_t *out, const uint8_t *in)
{
    const clb_kv_layout *kv = &session->engine->kv;
    int64_t at = 0;
    for (int32_t span = first_span(session); span < end_span(session); span++)
        for (int32_t i = 0; i < kv->n_parts; i++) {
            const clb_kv_part *part = &kv->parts[i];
            if (part->layer != layer)
                continue;
            /* Windows pass on only when a chunk is finished. What one has passed before its first token is
             * seen by none of its tokens, and may be missing in its first block. */
            uint8_t *block = session->blocks[part->group][span];
            if (block != NULL && in != NULL)
                memcpy(block + part->offset, in + at, (size_t)part->bytes);
            else if (block != NULL)
                memcpy(out + at, block + part->offset, (size_t)part->bytes);
            else if (out != NULL)
                memset(out + at, 0, (size_t)part->bytes);
            at += part->bytes;
        }
}

int32_t colibri_session_export_chunk(const colibri_session *session, int32_t piece, void *out, int64_t bytes,
                                     char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    int32_t status = check_piece(session, piece, out, bytes, &error);
    if (status != COLIBRI_OK)
        return status;
    if (session->chunk.unfilled > 0 || (piece == ROWS && !clb_chunk_between(session)) ||
        piece >= finished_layers(session))
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "piece %" PRId32 " of the chunk is not finished",
                        piece);
    if (piece == ROWS) {
        memcpy(out, session->chunk.x, (size_t)bytes);
        return COLIBRI_OK;
    }
    copy_layer(session, piece, out, NULL);
    return COLIBRI_OK;
}

int32_t colibri_session_import_chunk(colibri_session *session, const int32_t *tokens, int32_t n,
                                     int32_t layers, char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    if (session == NULL || tokens == NULL || n < 1)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "a chunk needs a session and at least one token");
    colibri_engine *engine = session->engine;
    if (session->pending > 0)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "the session is in the middle of a prefill");
    if (n > engine->prefill_chunk)
        return clb_fail(&error, COLIBRI_ERROR_MEMORY,
                        "a chunk of %" PRId32 " tokens does not fit: this engine computes %" PRId32
                        " together",
                        n, engine->prefill_chunk);
    if (n > engine->context - session->length)
        return clb_fail(&error, COLIBRI_ERROR_CONTEXT, "the context of %" PRId32 " tokens is full",
                        engine->context);
    if (!starts_alone(engine, layers))
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "a chunk cannot go on with layer %" PRId32, layers);
    int32_t status = clb_check_tokens(engine, tokens, n, &error);
    if (status != COLIBRI_OK)
        return status;
    clb_session_drop_pending(session);
    memcpy(session->tokens + session->length, tokens, (size_t)n * sizeof *tokens);
    status = clb_chunk_open(session, n, &error);
    if (status != COLIBRI_OK)
        return status;
    session->chunk.layer = layers;
    session->chunk.unfilled = layers + 1;
    session->n_logits = 0;
    clb_session_add_parked(session);
    return COLIBRI_OK;
}

int32_t colibri_session_fill_chunk(colibri_session *session, int32_t piece, const void *data, int64_t bytes,
                                   char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    int32_t status = check_piece(session, piece, data, bytes, &error);
    if (status != COLIBRI_OK)
        return status;
    clb_chunk *chunk = &session->chunk;
    int32_t next = chunk->unfilled > 1 ? chunk->layer + 1 - chunk->unfilled : ROWS;
    if (chunk->unfilled == 0 || piece != next)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "piece %" PRId32 " of the chunk is not expected now",
                        piece);
    /* Another session may have come to share the block where the chunk begins. */
    status = clb_session_own(session, session->length, &error);
    if (status != COLIBRI_OK)
        return status;
    if (piece == ROWS) {
        memcpy(chunk->x, data, (size_t)bytes);
    } else {
        copy_layer(session, piece, NULL, data);
    }
    chunk->unfilled--;
    return COLIBRI_OK;
}
