/* blocks.c - KV blocks of sessions: one pool per engine, shared copy-on-write.
 *
 * A block holds all layers of CLB_SPAN positions and ends with the number of sessions that hold it. A
 * session writes only at and behind its length, and makes what it writes its own first; so a block that
 * several hold is never written. Only complete blocks leave the engine and come back into it. */
#include "session.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "fault.h"
#include "os.h"

/* Bytes behind the payload for the count of holders. */
#define TRAILER 64

static int32_t *holders(const colibri_engine *engine, uint8_t *block)
{
    return (int32_t *)(void *)(block + engine->kv.block_bytes - TRAILER);
}

static int64_t payload_bytes(const colibri_engine *engine)
{
    return engine->kv.block_bytes - TRAILER;
}

static int64_t allocated_bytes(const colibri_engine *engine)
{
    return (int64_t)clb_os_size((size_t)engine->kv.block_bytes);
}

void clb_blocks_finish_layout(colibri_engine *engine)
{
    engine->kv.block_bytes += TRAILER;
}

/* Gives a block back to the engine, which keeps it: mapping fresh pages for every prompt cost 3 % of a
 * prefill. What is kept never exceeds what sessions once held together. */
static void drop_block(colibri_engine *engine, uint8_t *block)
{
    if (--*holders(engine, block) > 0)
        return;
    if (engine->n_spare < CLB_MAX_SPARE)
        engine->spare[engine->n_spare++] = block;
    else
        clb_os_free(block, (size_t)engine->kv.block_bytes);
    atomic_fetch_sub(&engine->kv_bytes, allocated_bytes(engine));
}

int32_t colibri_engine_kv_room(const colibri_engine *engine)
{
    if (engine == NULL || engine->options.memory_budget == 0)
        return -1;
    int64_t spans = (engine->context + CLB_SPAN - 1) / CLB_SPAN;
    return (int32_t)(clb_sessions(engine) * spans - atomic_load(&engine->kv_bytes) / allocated_bytes(engine));
}

/* A zeroed block with one holder: stale contents could hold a NaN, which even a masked position would
 * pass on. NULL when the budget's KV is used up. */
static uint8_t *take_block(colibri_engine *engine)
{
    uint8_t *block;
    if (colibri_engine_kv_room(engine) == 0)
        return NULL;
    if (engine->n_spare > 0) {
        block = engine->spare[--engine->n_spare];
        memset(block, 0, (size_t)engine->kv.block_bytes);
    } else {
        block = clb_os_alloc((size_t)engine->kv.block_bytes);
        if (block == NULL)
            return NULL;
    }
    *holders(engine, block) = 1;
    atomic_fetch_add(&engine->kv_bytes, allocated_bytes(engine));
    return block;
}

/* The same, and what is parked goes for it. */
static uint8_t *need_block(colibri_engine *engine)
{
    uint8_t *block = take_block(engine);
    while (block == NULL && clb_session_drop_oldest(engine))
        block = take_block(engine);
    return block;
}

static int32_t no_block(const colibri_engine *engine, int32_t length, const clb_error *error)
{
    return clb_fail(error, COLIBRI_ERROR_MEMORY,
                    "no memory for the context: %" PRId32
                    " tokens need %.1f MB of KV; use a smaller context or close other sessions",
                    length,
                    (double)((length + CLB_SPAN - 1) / CLB_SPAN) * (double)allocated_bytes(engine) / 1e6);
}

void clb_blocks_keep(colibri_session *session, int32_t keep)
{
    while (session->n_blocks > keep) {
        drop_block(session->engine, session->blocks[--session->n_blocks]);
        session->blocks[session->n_blocks] = NULL;
    }
}

void clb_blocks_free_spare(colibri_engine *engine)
{
    while (engine->n_spare > 0)
        clb_os_free(engine->spare[--engine->n_spare], (size_t)engine->kv.block_bytes);
}

int32_t clb_session_own(colibri_session *session, int32_t first, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    for (int32_t i = first / CLB_SPAN; i < session->n_blocks; i++) {
        uint8_t *shared = session->blocks[i];
        if (*holders(engine, shared) == 1)
            continue;
        if (engine->options.fault == CLB_FAULT_SHARED_BLOCK)
            continue;
        uint8_t *own = need_block(engine);
        if (own == NULL)
            return no_block(engine, session->length, error);
        memcpy(own, shared, (size_t)payload_bytes(engine));
        drop_block(engine, shared);
        session->blocks[i] = own;
    }
    return COLIBRI_OK;
}

int32_t clb_session_reserve(colibri_session *session, int32_t length, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    int32_t want = (length + CLB_SPAN - 1) / CLB_SPAN, had = session->n_blocks;
    int32_t status = clb_session_own(session, session->length, error);
    if (status != COLIBRI_OK)
        return status;
    while (session->n_blocks < want) {
        uint8_t *block = need_block(engine);
        if (block == NULL) {
            clb_blocks_keep(session, had);
            return no_block(engine, length, error);
        }
        session->blocks[session->n_blocks++] = block;
    }
    return COLIBRI_OK;
}

/* ---- sharing ------------------------------------------------------------------------------- */

static int32_t check_empty(const colibri_session *session, const clb_error *error)
{
    if (session->length > 0 || session->pending > 0)
        return clb_fail(error, COLIBRI_ERROR_INVALID,
                        "the session must be empty to receive another's tokens; it holds %" PRId32,
                        session->length);
    return COLIBRI_OK;
}

int32_t colibri_session_fork(const colibri_session *from, int32_t length, colibri_session *into, char *err,
                             size_t err_len)
{
    clb_error error = {err, err_len};
    if (from == NULL || into == NULL || from == into || from->engine != into->engine)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "a fork needs two sessions of one engine");
    if (length < 0 || length > from->length)
        return clb_fail(&error, COLIBRI_ERROR_INVALID,
                        "cannot share %" PRId32 " tokens: the session holds %" PRId32, length, from->length);
    int32_t status = check_empty(into, &error);
    if (status != COLIBRI_OK)
        return status;
    clb_session_drop_pending(into);
    memcpy(into->tokens, from->tokens, (size_t)length * sizeof *into->tokens);
    into->n_blocks = (length + CLB_SPAN - 1) / CLB_SPAN;
    for (int32_t i = 0; i < into->n_blocks; i++) {
        into->blocks[i] = from->blocks[i];
        ++*holders(from->engine, into->blocks[i]);
    }
    into->length = length;
    into->n_logits = 0;
    into->n_hidden = 0;
    if (length == from->length && from->n_hidden > 0)
        clb_draft_keep(into, from->hidden, from->n_hidden);
    into->hidden_end = length;
    return COLIBRI_OK;
}

/* ---- leaving the engine and coming back ---------------------------------------------------- */

int32_t colibri_engine_block_tokens(const colibri_engine *engine)
{
    return engine == NULL ? 0 : CLB_SPAN;
}

int64_t colibri_engine_block_bytes(const colibri_engine *engine)
{
    return engine == NULL ? 0 : payload_bytes(engine);
}

int32_t colibri_engine_kv_layout(const colibri_engine *engine, char *out, size_t out_len)
{
    if (engine == NULL || out == NULL || out_len == 0)
        return 0;
    /* FNV-1a over the list of parts: a block is laid out exactly so. */
    uint64_t hash = UINT64_C(14695981039346656037);
    for (int32_t i = 0; i < engine->kv.n_parts; i++) {
        const clb_kv_part *part = &engine->kv.parts[i];
        const int64_t fields[] = {part->kind, part->layer, part->offset, part->bytes};
        const uint8_t *bytes = (const uint8_t *)fields;
        for (size_t b = 0; b < sizeof fields; b++)
            hash = (hash ^ bytes[b]) * UINT64_C(1099511628211);
    }
    return snprintf(out, out_len, "%s abi%" PRId32 " %s %s span%d parts%" PRId32 "-%016" PRIx64,
                    engine->family->name, colibri_abi(), colibri_isa_name(engine->kernels->isa),
                    engine->kv_f32 ? "f32" : "bf16", CLB_SPAN, engine->kv.n_parts, hash);
}

int32_t colibri_session_export_block(const colibri_session *session, int32_t block, void *out, int64_t bytes,
                                     char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    if (session == NULL || out == NULL || bytes != payload_bytes(session->engine))
        return clb_fail(&error, COLIBRI_ERROR_INVALID,
                        "exporting a block needs a session and room for %" PRId64 " bytes",
                        session == NULL ? 0 : payload_bytes(session->engine));
    if (block < 0 || block >= session->length / CLB_SPAN)
        return clb_fail(&error, COLIBRI_ERROR_INVALID,
                        "block %" PRId32 " is not complete: the session holds %" PRId32 " complete ones",
                        block, session->length / CLB_SPAN);
    memcpy(out, session->blocks[block], (size_t)bytes);
    return COLIBRI_OK;
}

int32_t colibri_session_import_block(colibri_session *session, const int32_t *tokens, int32_t n,
                                     const void *data, int64_t bytes, char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    if (session == NULL || tokens == NULL || data == NULL || n != CLB_SPAN ||
        bytes != payload_bytes(session->engine))
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "a block is %d tokens and %" PRId64 " bytes of KV",
                        CLB_SPAN, session == NULL ? 0 : payload_bytes(session->engine));
    colibri_engine *engine = session->engine;
    if (session->pending > 0 || session->length % CLB_SPAN != 0)
        return clb_fail(&error, COLIBRI_ERROR_INVALID,
                        "blocks are appended to whole blocks only; the session holds %" PRId32 " tokens%s",
                        session->length, session->pending > 0 ? " and an unfinished prefill" : "");
    if (n > engine->context - session->length)
        return clb_fail(&error, COLIBRI_ERROR_CONTEXT, "the context of %" PRId32 " tokens is full",
                        engine->context);
    int32_t status = clb_check_tokens(engine, tokens, n, &error);
    if (status != COLIBRI_OK)
        return status;
    clb_session_drop_pending(session);
    status = clb_session_reserve(session, session->length + n, &error);
    if (status != COLIBRI_OK)
        return status;
    memcpy(session->blocks[session->length / CLB_SPAN], data, (size_t)bytes);
    memcpy(session->tokens + session->length, tokens, (size_t)n * sizeof *tokens);
    session->length += n;
    session->n_logits = 0;
    session->n_hidden = 0;
    session->hidden_end = session->length;
    return COLIBRI_OK;
}
