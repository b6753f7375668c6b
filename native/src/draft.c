/* draft.c - drafts of the MTP layer: guesses for the next tokens that a later step verifies.
 *
 * The layer's row for position t joins the trunk's hidden state of t with the embedding of token t+1 and
 * predicts token t+2. Its keys and values are kept for every position of the session. A draft step
 *   1. brings the layer up to date: one row for each position whose successor has become known, the
 *      last one with the token about to be appended; its output is draft 1;
 *   2. feeds the layer its own output for drafts 2 and 3. What these rows store is overwritten once the
 *      true hidden states are known.
 * Verifying is colibri_decode_many: since its rows have the same bits as single steps, accepting a draft
 * only when it equals the token that would have been drawn gives exactly the text without drafts, for
 * greedy and for seeded sampling alike.
 */
#include "session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void clb_draft_keep(colibri_session *session, const float *hidden, int32_t rows)
{
    colibri_engine *engine = session->engine;
    size_t width = (size_t)engine->geometry.hidden;
    if (engine->drafts == 0)
        return;
    if (session->hidden == NULL)
        session->hidden = malloc(CLB_MAX_HIDDEN * width * sizeof *session->hidden);
    if (session->hidden == NULL)
        return; /* no drafts then; the answer does not need them */
    if (rows > CLB_MAX_HIDDEN) {
        hidden += (size_t)(rows - CLB_MAX_HIDDEN) * width;
        rows = CLB_MAX_HIDDEN;
    }
    int32_t keep = CLB_MAX_HIDDEN - rows < session->n_hidden ? CLB_MAX_HIDDEN - rows : session->n_hidden;
    memmove(session->hidden, session->hidden + (size_t)(session->n_hidden - keep) * width,
            (size_t)keep * width * sizeof *hidden);
    memcpy(session->hidden + (size_t)keep * width, hidden, (size_t)rows * width * sizeof *hidden);
    session->n_hidden = keep + rows;
}

void clb_draft_truncate(colibri_session *session, int32_t length)
{
    /* hidden rows end at the old length; those of dropped tokens go. */
    int32_t dropped = session->hidden_end - length;
    if (dropped > 0)
        session->n_hidden = session->n_hidden > dropped ? session->n_hidden - dropped : 0;
    session->hidden_end = length;
}

/* Runs the MTP layer over rows with hidden states `hidden` and successor tokens, at positions from
 * `first` on. out [n][hidden]: the layer's normed output. */
static int32_t run_rows(colibri_session *session, const int32_t *tokens, const float *hidden, int32_t first,
                        int32_t n, float *x, float *out, float *rope, const clb_error *error)
{
    colibri_engine *engine = session->engine;
    const colibri_geometry *g = &engine->geometry;
    clb_run run = {session, 0, n, first};
    clb_batch batch = {
        n, x, rope, &run, 1, engine->decode_selected, engine->decode_selected + (int64_t)g->index_topk * n};
    clb_scratch_reset(&engine->scratch);
    clb_rope_table(engine, rope, first, n);
    int32_t status = engine->family->draft_input(engine, tokens, hidden, n, x, error);
    if (status != COLIBRI_OK)
        return status;
    atomic_store(&engine->bad_layer, INT32_MAX);
    status = clb_decode_layer(engine, &batch, g->n_layers, error);
    if (status != COLIBRI_OK)
        return status;
    clb_scratch_reset(&engine->scratch);
    clb_norm_rows(engine, out, x, engine->family->draft_norm(engine), n, g->hidden, g->norm_eps, g->n_layers);
    return clb_check_finite(engine, &batch, error);
}

int32_t colibri_session_draft(colibri_session *session, int32_t next, int32_t depth, int32_t *drafts,
                              int32_t *n_drafts, char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    if (n_drafts != NULL)
        *n_drafts = 0;
    if (session == NULL || drafts == NULL || n_drafts == NULL || depth < 1)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "a draft needs a session and a depth of at least 1");
    colibri_engine *engine = session->engine;
    const colibri_geometry *g = &engine->geometry;
    int32_t status = clb_check_tokens(engine, &next, 1, &error);
    if (status != COLIBRI_OK)
        return status;
    if (session->pending > 0)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "the session is in the middle of a prefill");
    if (depth > engine->drafts)
        depth = engine->drafts;
    /* Room for the token itself and its drafts. */
    if (depth > engine->context - session->length - 1)
        depth = engine->context - session->length - 1;
    int32_t rows = session->n_hidden;
    if (depth < 1 || rows == 0)
        return COLIBRI_OK;
    clb_clock_start(engine, COLIBRI_PHASE_DECODE);
    engine->store.quiet = session->routed != NULL;
    if (session->chunk.n > 0)
        clb_session_drop_pending(session); /* a parked chunk has keys where the drafts' go */
    /* The layer's rows for the kept hidden states lie before the length. */
    status = clb_session_own(session, session->length - rows, &error);
    if (status == COLIBRI_OK)
        status = clb_session_reserve(session, session->length + depth, &error);
    if (status != COLIBRI_OK)
        return status;
    size_t width = (size_t)g->hidden;
    float *x = malloc((size_t)rows * width * sizeof *x), *out = malloc((size_t)rows * width * sizeof *out);
    float *rope = malloc((size_t)rows * (size_t)engine->family->rope_dim(g) * sizeof *rope);
    float *logits = malloc((size_t)g->vocab * sizeof *logits);
    int32_t *tokens = malloc((size_t)rows * sizeof *tokens);
    if (!x || !out || !rope || !logits || !tokens) {
        status = clb_fail(&error, COLIBRI_ERROR_MEMORY, "no memory for drafts");
    } else {
        int32_t first = session->length - rows;
        memcpy(tokens, session->tokens + first + 1, (size_t)(rows - 1) * sizeof *tokens);
        tokens[rows - 1] = next;
        status = run_rows(session, tokens, session->hidden, first, rows, x, out, rope, &error);
        if (rows > 1)
            memmove(out, out + (size_t)(rows - 1) * width, width * sizeof *out);
    }
    const colibri_sampling greedy = {.struct_size = sizeof greedy, .temperature = 0, .top_p = 1};
    for (int32_t i = 0; i < depth && status == COLIBRI_OK; i++) {
        clb_clock_lap(engine, COLIBRI_TIME_OTHER);
        status = clb_head(engine, out, 1, logits, 0, &error);
        clb_clock_lap(engine, COLIBRI_TIME_HEAD);
        if (status != COLIBRI_OK)
            break;
        drafts[i] = clb_sample(logits, g->vocab, g->vocab_used, &greedy, 0);
        if (drafts[i] < 0)
            break; /* no guess; whether the model itself still has finite logits shows in its next step */
        *n_drafts = i + 1;
        if (i + 1 < depth) {
            memcpy(x, out, width * sizeof *x);
            status = run_rows(session, &drafts[i], x, session->length + i, 1, x, out, rope, &error);
        }
    }
    /* Their rows are done; the next step adds those of the tokens it appends. */
    if (status == COLIBRI_OK)
        session->n_hidden = 0;
    free(x);
    free(out);
    free(rope);
    free(logits);
    free(tokens);
    clb_clock_stop(engine);
    return status;
}
