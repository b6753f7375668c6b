/* blocks.c - KV blocks of sessions: shared copy-on-write, dropped when no window reaches them.
 *
 * A block holds CLB_SPAN positions of all parts of one group (engine.h) and ends with the number of
 * sessions that hold it. A session writes only at and behind its length, and makes what it writes its own
 * first; so a block that several hold is never written. Blocks leave the engine and come back into it, the
 * last one also while it is incomplete.
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

/* Bytes behind the payload for what is to be known of a block. */
#define TRAILER 64
/* Bytes before the parts of a block outside the engine, where some of them may be missing. */
#define HEADER 64
/* In its first byte, beside a bit for each group. */
#define HAS_DRAFTS 0x80u

typedef struct {
    int32_t holders;
    int32_t draftless; /* tokens that came from outside without keys of the MTP layer, which is loaded */
} block_state;

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

static block_state *state_of(const colibri_engine *engine, int32_t group, uint8_t *block)
{
    return (block_state *)(void *)(block + payload_bytes(engine, group));
}

static int32_t *holders(const colibri_engine *engine, int32_t group, uint8_t *block)
{
    return &state_of(engine, group, block)->holders;
}

static int32_t spans_of(int32_t length)
{
    return (length + CLB_SPAN - 1) / CLB_SPAN;
}

static int is_draft(const colibri_engine *engine, const clb_kv_part *part)
{
    return part->layer >= engine->geometry.n_layers;
}

/* Whether blocks outside the engine say what is in them. */
static int has_header(const colibri_engine *engine)
{
    const clb_kv_layout *kv = &engine->kv;
    return kv->n_groups > 1 || engine->has_mtp;
}

/* Outside the engine: [header | parts of the trunk as listed | parts of the MTP layer]. */
static void lay_out_outside(colibri_engine *engine)
{
    clb_kv_layout *kv = &engine->kv;
    int64_t at = has_header(engine) ? HEADER : 0;
    for (int drafts = 0; drafts < 2; drafts++)
        for (int32_t i = 0; i < kv->n_parts; i++) {
            if (is_draft(engine, &kv->parts[i]) != drafts)
                continue;
            kv->parts[i].outside = at;
            at += (kv->parts[i].bytes + 63) / 64 * 64;
        }
    kv->outside_bytes = at;
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
    lay_out_outside(engine);
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
            state_of(engine, g, own)->draftless = state_of(engine, g, shared)->draftless;
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
 * A block outside the engine is the same whether the MTP layer is loaded or not, and whatever the size of
 * the context. Where groups or the MTP layer's parts may be missing, its first byte says what is there. */

int32_t colibri_engine_block_tokens(const colibri_engine *engine)
{
    return engine == NULL ? 0 : CLB_SPAN;
}

int64_t colibri_engine_block_bytes(const colibri_engine *engine)
{
    return engine == NULL ? 0 : engine->kv.outside_bytes;
}

int32_t colibri_engine_kv_layout(const colibri_engine *engine, char *out, size_t out_len)
{
    if (engine == NULL || out == NULL || out_len == 0)
        return 0;
    /* FNV-1a over the list of parts: a block is laid out exactly so. */
    uint64_t hash = UINT64_C(14695981039346656037);
    for (int32_t i = 0; i < engine->kv.n_parts; i++) {
        const clb_kv_part *part = &engine->kv.parts[i];
        const int64_t fields[] = {part->kind, part->layer, part->outside, part->bytes, part->window};
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
    if (block < 0 || block >= spans_of(session->length))
        return clb_fail(&error, COLIBRI_ERROR_INVALID,
                        "there is no block %" PRId32 ": the session holds %" PRId32, block,
                        spans_of(session->length));
    const colibri_engine *engine = session->engine;
    uint8_t *to = out, *first = session->blocks[0][block];
    unsigned there = engine->drafts > 0 && !state_of(engine, 0, first)->draftless ? HAS_DRAFTS : 0;
    memset(to, 0, (size_t)bytes);
    for (int32_t g = 0; g < engine->kv.n_groups; g++)
        there |= session->blocks[g][block] != NULL ? 1u << g : 0;
    if (has_header(engine))
        to[0] = (uint8_t)there;
    for (int32_t i = 0; i < engine->kv.n_parts; i++) {
        const clb_kv_part *part = &engine->kv.parts[i];
        const uint8_t *from = session->blocks[part->group][block];
        if (from != NULL && (!is_draft(engine, part) || (there & HAS_DRAFTS) != 0))
            memcpy(to + part->outside, from + part->offset, (size_t)part->bytes);
    }
    return COLIBRI_OK;
}

/* Takes the blocks of one more span for an import. `there`: the groups that have one. */
static int32_t take_span(colibri_session *session, unsigned there)
{
    colibri_engine *engine = session->engine;
    for (int32_t g = 0; g < engine->kv.n_groups; g++) {
        if ((there >> g & 1) == 0)
            continue;
        session->blocks[g][session->n_blocks] = take_block(engine, g);
        if (session->blocks[g][session->n_blocks] == NULL) {
            session->n_blocks++;
            clb_blocks_keep(session, session->n_blocks - 1);
            return COLIBRI_ERROR_MEMORY;
        }
    }
    session->n_blocks++;
    return COLIBRI_OK;
}

int32_t colibri_session_import_block(colibri_session *session, const int32_t *tokens, int32_t n,
                                     const void *data, int64_t bytes, char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    int64_t need = session == NULL ? 0 : colibri_engine_block_bytes(session->engine);
    if (session == NULL || tokens == NULL || data == NULL || n < 1 || n > CLB_SPAN || bytes != need)
        return clb_fail(&error, COLIBRI_ERROR_INVALID,
                        "a block is 1 to %d tokens and %" PRId64 " bytes of KV", CLB_SPAN, need);
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
    const uint8_t *from = data;
    int32_t block = session->n_blocks;
    unsigned there = has_header(engine) ? from[0] | 1u : 1u;
    if (take_span(session, there) != COLIBRI_OK)
        return no_block(engine, session->length + n, &error);
    state_of(engine, 0, session->blocks[0][block])->draftless =
        engine->drafts > 0 && (there & HAS_DRAFTS) == 0 ? n : 0;
    for (int32_t i = 0; i < engine->kv.n_parts; i++) {
        const clb_kv_part *part = &engine->kv.parts[i];
        uint8_t *to = session->blocks[part->group][block];
        if (to != NULL && part->offset >= 0)
            memcpy(to + part->offset, from + part->outside, (size_t)part->bytes);
    }
    memcpy(session->tokens + session->length, tokens, (size_t)n * sizeof *tokens);
    session->length += n;
    session->n_logits = 0;
    session->n_hidden = 0;
    session->hidden_end = session->length;
    clb_session_grown(session, session->length - n);
    return COLIBRI_OK;
}

int32_t colibri_session_draftless(const colibri_session *session)
{
    int32_t tokens = 0;
    for (int32_t i = 0; session != NULL && i < spans_of(session->length); i++) {
        int32_t left = session->length - i * CLB_SPAN,
                here = state_of(session->engine, 0, session->blocks[0][i])->draftless;
        tokens += here < left ? here : left;
    }
    return tokens;
}
