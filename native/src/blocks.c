/* blocks.c - KV blocks of sessions: shared copy-on-write, dropped when no window reaches them.
 *
 * A block holds CLB_SPAN positions of all parts of one group (engine.h) and ends with the number of
 * sessions that hold it. A session writes only at and behind its length, and makes what it writes its own
 * first; so a block that several hold is never written. Only complete blocks leave the engine and come
 * back into it.
 *
 *   group 0    | 0 | 1 | 2 | 3 | 4 | 5 |     everything, for as long as the session holds the tokens
 *   window 300 |   |   |   | 3 | 4 | 5 |     what the next token sees, and what a token after one of the
 *                  ^ kept for a checkpoint   session's checkpoints would see
 */
#include "session.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "os.h"

/* Bytes behind the payload for the count of holders. */
#define TRAILER 64
/* Bytes before the payloads of a block outside the engine, when there are several groups. */
#define HEADER 64

static int64_t block_bytes(const colibri_engine *engine, int32_t group)
{
    return engine->kv.groups[group].block_bytes;
}

static int64_t payload_bytes(const colibri_engine *engine, int32_t group)
{
    return block_bytes(engine, group) - TRAILER;
}

static int64_t allocated_bytes(const colibri_engine *engine, int32_t group)
{
    return (int64_t)clb_os_size((size_t)block_bytes(engine, group));
}

static int32_t *holders(const colibri_engine *engine, int32_t group, uint8_t *block)
{
    return (int32_t *)(void *)(block + payload_bytes(engine, group));
}

static int32_t spans_of(int32_t length)
{
    return (length + CLB_SPAN - 1) / CLB_SPAN;
}

void clb_blocks_finish_layout(colibri_engine *engine)
{
    clb_kv_layout *kv = &engine->kv;
    if (kv->n_groups == 0)
        kv->n_groups = 1;
    kv->groups[0].block_bytes = kv->block_bytes;
    for (int32_t g = 0; g < kv->n_groups; g++)
        kv->groups[g].block_bytes += TRAILER;
    kv->block_bytes = kv->groups[0].block_bytes;
}

/* ---- taking and dropping ------------------------------------------------------------------- */

/* Gives a block back. Those of group 0 are kept for reuse: mapping fresh pages for every prompt cost 3 %
 * of a prefill. What is kept never exceeds what sessions once held together. */
static void drop_block(colibri_engine *engine, int32_t group, uint8_t *block)
{
    if (block == NULL || --*holders(engine, group, block) > 0)
        return;
    if (group == 0)
        atomic_fetch_sub(&engine->kv_blocks, 1);
    if (group == 0 && engine->n_spare < CLB_MAX_SPARE)
        engine->spare[engine->n_spare++] = block;
    else
        clb_os_free(block, (size_t)block_bytes(engine, group));
    atomic_fetch_sub(&engine->kv_bytes, allocated_bytes(engine, group));
}

int32_t colibri_engine_kv_room(const colibri_engine *engine)
{
    if (engine == NULL || engine->options.memory_budget == 0)
        return -1;
    return (int32_t)(clb_sessions(engine) * spans_of(engine->context)) - atomic_load(&engine->kv_blocks);
}

/* A zeroed block with one holder: stale contents could hold a NaN, which even a masked position would
 * pass on. NULL when the budget's KV is used up. */
static uint8_t *take_block(colibri_engine *engine, int32_t group)
{
    uint8_t *block;
    if (group == 0 && colibri_engine_kv_room(engine) == 0)
        return NULL;
    if (group == 0 && engine->n_spare > 0) {
        block = engine->spare[--engine->n_spare];
        memset(block, 0, (size_t)block_bytes(engine, group));
    } else {
        block = clb_os_alloc((size_t)block_bytes(engine, group));
        if (block == NULL)
            return NULL;
    }
    *holders(engine, group, block) = 1;
    if (group == 0)
        atomic_fetch_add(&engine->kv_blocks, 1);
    atomic_fetch_add(&engine->kv_bytes, allocated_bytes(engine, group));
    return block;
}

static int32_t no_block(const colibri_engine *engine, int32_t length, const clb_error *error)
{
    return clb_fail(error, COLIBRI_ERROR_MEMORY,
                    "no memory for the context: %" PRId32
                    " tokens need %.1f MB of KV; use a smaller context or close other sessions",
                    length, (double)spans_of(length) * (double)allocated_bytes(engine, 0) / 1e6);
}

int32_t clb_blocks_open(colibri_session *session)
{
    const colibri_engine *engine = session->engine;
    size_t spans = (size_t)(engine->context / CLB_SPAN + 1);
    for (int32_t g = 0; g < engine->kv.n_groups; g++) {
        session->blocks[g] = calloc(spans, sizeof *session->blocks[g]);
        if (session->blocks[g] == NULL)
            return COLIBRI_ERROR_MEMORY;
    }
    return COLIBRI_OK;
}

void clb_blocks_close(colibri_session *session)
{
    clb_blocks_keep(session, 0);
    for (int32_t g = 0; g < session->engine->kv.n_groups; g++)
        free(session->blocks[g]);
}

void clb_blocks_keep(colibri_session *session, int32_t keep)
{
    colibri_engine *engine = session->engine;
    for (; session->n_blocks > keep; session->n_blocks--)
        for (int32_t g = 0; g < engine->kv.n_groups; g++) {
            uint8_t **block = &session->blocks[g][session->n_blocks - 1];
            drop_block(engine, g, *block);
            *block = NULL;
        }
    while (session->n_checkpoints > 0 && session->checkpoints[session->n_checkpoints - 1] > keep * CLB_SPAN)
        session->n_checkpoints--;
}

void clb_blocks_free_spare(colibri_engine *engine)
{
    while (engine->n_spare > 0)
        clb_os_free(engine->spare[--engine->n_spare], (size_t)block_bytes(engine, 0));
}

int32_t clb_session_own(colibri_session *session, int32_t first, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    if (engine->options.fault == CLB_FAULT_SHARED_BLOCK)
        return COLIBRI_OK;
    for (int32_t g = 0; g < engine->kv.n_groups; g++)
        for (int32_t i = first / CLB_SPAN; i < session->n_blocks; i++) {
            uint8_t *shared = session->blocks[g][i];
            if (shared == NULL || *holders(engine, g, shared) == 1)
                continue;
            uint8_t *own = take_block(engine, g);
            if (own == NULL)
                return no_block(engine, session->length, error);
            memcpy(own, shared, (size_t)payload_bytes(engine, g));
            drop_block(engine, g, shared);
            session->blocks[g][i] = own;
        }
    return COLIBRI_OK;
}

int32_t clb_session_reserve(colibri_session *session, int32_t length, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    int32_t want = spans_of(length), had = session->n_blocks;
    if (colibri_session_reusable(session, session->length) != session->length)
        return clb_fail(error, COLIBRI_ERROR_INVALID,
                        "the session has dropped what a token after its %" PRId32
                        " looks back to; truncate it to %" PRId32,
                        session->length, colibri_session_reusable(session, session->length));
    int32_t status = clb_session_own(session, session->length, error);
    for (; status == COLIBRI_OK && session->n_blocks < want; session->n_blocks++)
        for (int32_t g = 0; g < engine->kv.n_groups && status == COLIBRI_OK; g++) {
            session->blocks[g][session->n_blocks] = take_block(engine, g);
            if (session->blocks[g][session->n_blocks] == NULL)
                status = no_block(engine, length, error);
        }
    if (status != COLIBRI_OK)
        clb_blocks_keep(session, had);
    return status;
}

/* ---- windows and checkpoints --------------------------------------------------------------- */

/* First span that a token at `length` reads in this group. Some positions more than the window, so that
 * the last tokens can be taken back (drafts). */
static int32_t window_begin(const clb_kv_group *group, int32_t length)
{
    int32_t first = group->window > 0 ? length - group->window - CLB_MAX_BATCH : 0;
    return first > 0 ? first / CLB_SPAN : 0;
}

static int is_complete(const colibri_session *session, int32_t length)
{
    const clb_kv_layout *kv = &session->engine->kv;
    for (int32_t g = 1; g < kv->n_groups; g++) {
        int32_t first = length - kv->groups[g].window + 1;
        for (int32_t s = first > 0 ? first / CLB_SPAN : 0; s < spans_of(length); s++)
            if (session->blocks[g][s] == NULL)
                return 0;
    }
    return 1;
}

int32_t colibri_session_reusable(const colibri_session *session, int32_t length)
{
    if (session == NULL || length <= 0)
        return 0;
    if (length > session->length)
        length = session->length;
    if (is_complete(session, length))
        return length;
    for (int32_t i = session->n_checkpoints - 1; i >= 0; i--)
        if (session->checkpoints[i] <= length && is_complete(session, session->checkpoints[i]))
            return session->checkpoints[i];
    return 0;
}

/* Drops blocks that neither the next token nor one after a checkpoint can see. */
static void drop_unseen(colibri_session *session)
{
    colibri_engine *engine = session->engine;
    for (int32_t g = 1; g < engine->kv.n_groups; g++) {
        int32_t end = window_begin(&engine->kv.groups[g], session->length), at = 0;
        for (int32_t s = 0; s < end; s++) {
            while (at < session->n_checkpoints && spans_of(session->checkpoints[at]) <= s)
                at++;
            if (at < session->n_checkpoints &&
                s >= window_begin(&engine->kv.groups[g], session->checkpoints[at]))
                continue;
            drop_block(engine, g, session->blocks[g][s]);
            session->blocks[g][s] = NULL;
        }
    }
}

void colibri_session_checkpoint(colibri_session *session)
{
    if (session == NULL || session->engine->kv.n_groups == 1 || session->length == 0)
        return;
    int32_t n = session->n_checkpoints;
    if (n > 0 && session->checkpoints[n - 1] >= session->length)
        return;
    if (n == CLB_MAX_CHECKPOINTS) {
        /* The one goes that leaves the smallest gap. */
        int32_t least = 0, gap = INT32_MAX;
        for (int32_t i = 0; i < n; i++) {
            int32_t before = i > 0 ? session->checkpoints[i - 1] : 0;
            int32_t after = i + 1 < n ? session->checkpoints[i + 1] : session->length;
            if (after - before < gap) {
                gap = after - before;
                least = i;
            }
        }
        memmove(session->checkpoints + least, session->checkpoints + least + 1,
                (size_t)(n - least - 1) * sizeof *session->checkpoints);
        n--;
    }
    session->checkpoints[n] = session->length;
    session->n_checkpoints = n + 1;
}

void clb_session_grown(colibri_session *session, int32_t before)
{
    if (session->engine->kv.n_groups == 1 || before / CLB_SPAN == session->length / CLB_SPAN)
        return;
    if (before / CLB_CHECKPOINT_TOKENS != session->length / CLB_CHECKPOINT_TOKENS)
        colibri_session_checkpoint(session);
    drop_unseen(session);
}

int64_t clb_kv_session_bytes(const colibri_engine *engine)
{
    int64_t bytes = spans_of(engine->context) * allocated_bytes(engine, 0);
    for (int32_t g = 1; g < engine->kv.n_groups; g++) {
        int64_t seen = (engine->kv.groups[g].window + CLB_MAX_BATCH) / CLB_SPAN + 2;
        int64_t most = seen * (1 + CLB_MAX_CHECKPOINTS) + engine->prefill_chunk / CLB_SPAN + 1;
        if (most > spans_of(engine->context))
            most = spans_of(engine->context);
        bytes += most * allocated_bytes(engine, g);
    }
    return bytes;
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
    if (colibri_session_reusable(from, length) != length)
        return clb_fail(&error, COLIBRI_ERROR_INVALID,
                        "cannot share %" PRId32 " tokens: windows have passed on; %" PRId32 " can be shared",
                        length, colibri_session_reusable(from, length));
    int32_t status = check_empty(into, &error);
    if (status != COLIBRI_OK)
        return status;
    clb_session_drop_pending(into);
    const colibri_engine *engine = from->engine;
    memcpy(into->tokens, from->tokens, (size_t)length * sizeof *into->tokens);
    into->n_blocks = spans_of(length);
    for (int32_t g = 0; g < engine->kv.n_groups; g++)
        for (int32_t i = window_begin(&engine->kv.groups[g], length); i < into->n_blocks; i++) {
            into->blocks[g][i] = from->blocks[g][i];
            if (into->blocks[g][i] != NULL)
                ++*holders(engine, g, into->blocks[g][i]);
        }
    into->length = length;
    into->n_logits = 0;
    into->n_hidden = 0;
    if (length == from->length && from->n_hidden > 0)
        clb_draft_keep(into, from->hidden, from->n_hidden);
    into->hidden_end = length;
    return COLIBRI_OK;
}

/* ---- leaving the engine and coming back ----------------------------------------------------
 * Outside the engine a block is the payload of group 0; with several groups a header whose first byte
 * has bit g set if group g is there, then the payloads of all groups. */

int32_t colibri_engine_block_tokens(const colibri_engine *engine)
{
    return engine == NULL ? 0 : CLB_SPAN;
}

int64_t colibri_engine_block_bytes(const colibri_engine *engine)
{
    if (engine == NULL)
        return 0;
    int64_t bytes = engine->kv.n_groups > 1 ? HEADER : 0;
    for (int32_t g = 0; g < engine->kv.n_groups; g++)
        bytes += payload_bytes(engine, g);
    return bytes;
}

int32_t colibri_engine_kv_layout(const colibri_engine *engine, char *out, size_t out_len)
{
    if (engine == NULL || out == NULL || out_len == 0)
        return 0;
    /* FNV-1a over the list of parts: a block is laid out exactly so. */
    uint64_t hash = UINT64_C(14695981039346656037);
    for (int32_t i = 0; i < engine->kv.n_parts; i++) {
        const clb_kv_part *part = &engine->kv.parts[i];
        const int64_t fields[] = {part->kind, part->layer, part->offset, part->bytes, part->window};
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
    int64_t need = session == NULL ? 0 : colibri_engine_block_bytes(session->engine);
    if (session == NULL || out == NULL || bytes != need)
        return clb_fail(&error, COLIBRI_ERROR_INVALID,
                        "exporting a block needs a session and room for %" PRId64 " bytes", need);
    if (block < 0 || block >= session->length / CLB_SPAN)
        return clb_fail(&error, COLIBRI_ERROR_INVALID,
                        "block %" PRId32 " is not complete: the session holds %" PRId32 " complete ones",
                        block, session->length / CLB_SPAN);
    const colibri_engine *engine = session->engine;
    uint8_t *at = out, *header = engine->kv.n_groups > 1 ? at : NULL;
    if (header != NULL) {
        memset(header, 0, HEADER);
        at += HEADER;
    }
    for (int32_t g = 0; g < engine->kv.n_groups; g++) {
        const uint8_t *from = session->blocks[g][block];
        if (from != NULL)
            memcpy(at, from, (size_t)payload_bytes(engine, g));
        else
            memset(at, 0, (size_t)payload_bytes(engine, g));
        if (header != NULL && from != NULL)
            header[0] |= (uint8_t)(1u << g);
        at += payload_bytes(engine, g);
    }
    return COLIBRI_OK;
}

int32_t colibri_session_import_block(colibri_session *session, const int32_t *tokens, int32_t n,
                                     const void *data, int64_t bytes, char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    int64_t need = session == NULL ? 0 : colibri_engine_block_bytes(session->engine);
    if (session == NULL || tokens == NULL || data == NULL || n != CLB_SPAN || bytes != need)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "a block is %d tokens and %" PRId64 " bytes of KV",
                        CLB_SPAN, need);
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
    const uint8_t *at = data;
    uint8_t there = 1;
    if (engine->kv.n_groups > 1) {
        there |= at[0];
        at += HEADER;
    }
    for (int32_t g = 0; g < engine->kv.n_groups; at += payload_bytes(engine, g), g++) {
        if ((there >> g & 1) == 0)
            continue;
        uint8_t *block = take_block(engine, g);
        session->blocks[g][session->n_blocks] = block;
        if (block == NULL) {
            session->n_blocks++;
            clb_blocks_keep(session, session->n_blocks - 1);
            return no_block(engine, session->length + n, &error);
        }
        memcpy(block, at, (size_t)payload_bytes(engine, g));
    }
    session->n_blocks++;
    memcpy(session->tokens + session->length, tokens, (size_t)n * sizeof *tokens);
    session->length += n;
    session->n_logits = 0;
    session->n_hidden = 0;
    session->hidden_end = session->length;
    clb_session_grown(session, session->length - n);
    return COLIBRI_OK;
}
