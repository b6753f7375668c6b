/* decode.c - one step for a batch of sessions: a few tokens each, all layers, all logits. */
#include "session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "moe.h"

/* Checks a step and returns its rows, or a negative status. */
static int32_t check_decode(colibri_session *const *sessions, const int32_t *tokens, const int32_t *counts,
                            int32_t n, const clb_error *error)
{
    if (sessions == NULL || tokens == NULL || n < 1 || n > CLB_MAX_BATCH)
        return -clb_fail(error, COLIBRI_ERROR_INVALID, "a decode step takes 1..%d sessions", CLB_MAX_BATCH);
    int32_t rows = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t count = counts == NULL ? 1 : counts[i];
        if (count < 1 || count > CLB_MAX_BATCH - rows)
            return -clb_fail(error, COLIBRI_ERROR_INVALID, "a decode step takes 1..%d tokens", CLB_MAX_BATCH);
        if (sessions[i] == NULL || sessions[i]->engine != sessions[0]->engine)
            return -clb_fail(error, COLIBRI_ERROR_INVALID,
                             "the sessions of a decode step must belong to one engine");
        if (sessions[i]->pending > 0)
            return -clb_fail(error, COLIBRI_ERROR_INVALID,
                             "session %" PRId32 " of the step is in the middle of a prefill", i);
        if (count > sessions[i]->engine->context - sessions[i]->length)
            return -clb_fail(error, COLIBRI_ERROR_CONTEXT, "the context of %" PRId32 " tokens is full",
                             sessions[i]->engine->context);
        for (int32_t j = 0; j < i; j++)
            if (sessions[i] == sessions[j])
                return -clb_fail(error, COLIBRI_ERROR_INVALID, "a session appears twice in a decode step");
        rows += count;
    }
    int32_t status = clb_check_tokens(sessions[0]->engine, tokens, rows, error);
    return status == COLIBRI_OK ? rows : -status;
}

/* Most probable first. */
static void sort_guesses(int32_t *ids, float *weights, int32_t n)
{
    for (int32_t i = 1; i < n; i++) {
        int32_t id = ids[i], at = i;
        float weight = weights[i];
        for (; at > 0 && weights[at - 1] < weight; at--) {
            ids[at] = ids[at - 1];
            weights[at] = weights[at - 1];
        }
        ids[at] = id;
        weights[at] = weight;
    }
}

/* Runs the next layer's router one layer early and tells the store, which may read ahead. Called while
 * this layer's missing experts are on their way, so it takes no time from the disk. */
int32_t clb_guess_next(colibri_engine *engine, const clb_batch *batch, int32_t layer, const clb_error *error)
{
    clb_moe_layer moe;
    if (!engine->store.streaming || engine->options.no_prefetch || !engine->family->moe(engine, layer, &moe))
        return COLIBRI_OK;
    int32_t n = batch->n * moe.per_token;
    int32_t *ids = clb_scratch_get(&engine->scratch, (size_t)n * sizeof *ids);
    float *weights = clb_scratch_get(&engine->scratch, (size_t)n * sizeof *weights);
    if (!ids || !weights)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for routing %" PRId32 " tokens", batch->n);
    int32_t status = engine->family->guess(engine, batch, layer, ids, weights, error);
    if (status != COLIBRI_OK)
        return status;
    sort_guesses(ids, weights, n);
    /* The last quarter is wrong too often to be worth the disk's time. */
    clb_store_prefetch(&engine->store, moe.store_layer, ids, n - n / 4);
    return COLIBRI_OK;
}

int32_t clb_decode_layer(colibri_engine *engine, const clb_batch *batch, int32_t layer,
                         const clb_error *error)
{
    const colibri_geometry *g = &engine->geometry;
    clb_scratch *scratch = &engine->scratch;
    clb_scratch_reset(scratch);
    int32_t status = engine->family->attention(engine, batch, layer, error);
    clb_clock_lap(engine, COLIBRI_TIME_ATTENTION);
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
            return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for routing %" PRId32 " tokens",
                            batch->n);
        clb_moe_plan plan;
        status = engine->family->route(engine, batch, layer, h, ids, weights, error);
        clb_clock_lap(engine, COLIBRI_TIME_OTHER);
        if (status == COLIBRI_OK) {
            clb_count_routed(engine, batch, layer, ids);
            status = clb_moe_begin(engine, &moe, ids, weights, batch->n, &plan, error);
        }
        if (status == COLIBRI_OK && layer + 1 < g->n_layers)
            status = clb_guess_next(engine, batch, layer + 1, error);
        clb_clock_lap(engine, COLIBRI_TIME_OTHER);
        if (status == COLIBRI_OK)
            status = clb_moe_run(engine, &moe, &plan, h, batch->x, error);
        clb_clock_lap(engine, COLIBRI_TIME_EXPERTS);
        clb_store_forget(&engine->store);
    } else {
        status = engine->family->mlp(engine, batch, layer, error);
    }
    clb_plant_nan(engine, batch, layer);
    clb_note_progress(engine);
    clb_clock_lap(engine, COLIBRI_TIME_OTHER);
    return status;
}

/* All layers and the head over a step's rows. normed [n][hidden] and logits [n][vocab] are filled. */
static int32_t run_step(colibri_engine *engine, const clb_batch *batch, float *normed, float *logits,
                        const clb_error *error)
{
    const colibri_geometry *g = &engine->geometry;
    int32_t status = COLIBRI_OK;
    atomic_store(&engine->bad_layer, INT32_MAX);
    clb_store_tick(&engine->store);
    for (int32_t layer = 0; layer < g->n_layers && status == COLIBRI_OK; layer++)
        status = clb_decode_layer(engine, batch, layer, error);
    if (status != COLIBRI_OK)
        return status;
    clb_scratch_reset(&engine->scratch);
    clb_norm_rows(engine, normed, batch->x, engine->final_norm, batch->n, g->hidden, g->norm_eps,
                  g->n_layers);
    status = clb_check_finite(engine, batch, error);
    if (status == COLIBRI_OK)
        status = clb_head(engine, normed, batch->n, logits, batch->n > 1, error);
    clb_clock_lap(engine, COLIBRI_TIME_HEAD);
    return status;
}

int32_t colibri_decode_many(colibri_session *const *sessions, const int32_t *tokens, const int32_t *counts,
                            int32_t n, char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    int32_t rows = check_decode(sessions, tokens, counts, n, &error);
    if (rows < 0)
        return -rows;
    colibri_engine *engine = sessions[0]->engine;
    const colibri_geometry *g = &engine->geometry;
    clb_clock_start(engine, COLIBRI_PHASE_DECODE);
    engine->store.quiet = 1;
    for (int32_t i = 0; i < n; i++)
        engine->store.quiet &= sessions[i]->routed != NULL;
    /* What is appended now takes the place of a parked chunk. */
    for (int32_t i = 0; i < n; i++)
        if (sessions[i]->chunk.n > 0)
            clb_session_drop_pending(sessions[i]);
    int32_t rope_dim = engine->family->rope_dim(g), row = 0, status = COLIBRI_OK;
    clb_run runs[CLB_MAX_BATCH];
    float *rope = malloc((size_t)rows * (size_t)rope_dim * sizeof *rope);
    float *normed = malloc((size_t)rows * (size_t)g->hidden * sizeof *normed);
    /* A single session's logits are written where they belong. */
    float *own = NULL, *logits = n == 1 ? clb_session_logit_rows(sessions[0], rows)
                                        : (own = malloc((size_t)rows * (size_t)g->vocab * sizeof *own));
    if (rope == NULL || normed == NULL || logits == NULL)
        status = clb_fail(&error, COLIBRI_ERROR_MEMORY, "no memory for the logits of a decode step");
    for (int32_t i = 0; i < n && status == COLIBRI_OK; i++) {
        int32_t count = counts == NULL ? 1 : counts[i];
        runs[i] = (clb_run){sessions[i], row, count, sessions[i]->length};
        if (n > 1 && clb_session_logit_rows(sessions[i], count) == NULL)
            status = clb_fail(&error, COLIBRI_ERROR_MEMORY, "no memory for the logits of a decode step");
        if (status == COLIBRI_OK)
            status = clb_session_reserve(sessions[i], sessions[i]->length + count, &error);
        clb_rope_table(engine, rope + (int64_t)row * rope_dim, sessions[i]->length, count);
        row += count;
    }
    if (status == COLIBRI_OK) {
        clb_embed(engine, tokens, engine->decode_x, rows);
        clb_batch batch = {rows,
                           engine->decode_x,
                           rope,
                           runs,
                           n,
                           engine->decode_selected,
                           engine->decode_selected + (int64_t)g->index_topk * rows};
        status = run_step(engine, &batch, normed, logits, &error);
    }
    for (int32_t i = 0; i < n && status == COLIBRI_OK; i++) {
        colibri_session *session = sessions[i];
        memcpy(session->tokens + session->length, tokens + runs[i].row0, (size_t)runs[i].n * sizeof *tokens);
        session->length += runs[i].n;
        clb_session_grown(session, session->length - runs[i].n);
        if (n > 1)
            memcpy(session->logits, logits + (int64_t)runs[i].row0 * g->vocab,
                   (size_t)runs[i].n * (size_t)g->vocab * sizeof *logits);
        clb_session_logits_done(session, runs[i].n);
        clb_draft_keep(session, normed + (int64_t)runs[i].row0 * g->hidden, runs[i].n);
        session->hidden_end = session->length;
    }
    if (status == COLIBRI_OK)
        atomic_fetch_add_explicit(&engine->decoded_tokens, rows, memory_order_relaxed);
    free(rope);
    free(normed);
    free(own);
    clb_clock_stop(engine);
    return status;
}

int32_t colibri_decode(colibri_session *const *sessions, const int32_t *tokens, int32_t n, char *err,
                       size_t err_len)
{
    return colibri_decode_many(sessions, tokens, NULL, n, err, err_len);
}
