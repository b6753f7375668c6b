/* routed.c - which experts the tokens of one session are routed to, for measuring what experts are for.
 *
 * Counted behind the router, row by row, so the numbers are exact however the prompt is cut and whatever
 * other sessions do in the same step. The use counts (usage.c) count requests of whole steps instead. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "session.h"

static int64_t n_counts(const colibri_engine *engine)
{
    const colibri_geometry *g = &engine->geometry;
    return ((int64_t)g->n_layers + g->n_mtp_layers) * g->n_experts;
}

void clb_count_routed(colibri_engine *engine, const clb_batch *batch, int32_t layer, const int32_t *ids)
{
    const colibri_geometry *g = &engine->geometry;
    /* What the MTP layer is asked for is a guess. */
    if (layer >= g->n_layers)
        return;
    for (int32_t r = 0; r < batch->n_runs; r++) {
        const clb_run *run = &batch->runs[r];
        uint32_t *counts = run->session->routed;
        if (counts == NULL)
            continue;
        int32_t skip = run->session->routed_from - run->first,
                end = run->n - (engine->options.fault == CLB_FAULT_ROUTED && run->n > 1);
        for (int32_t row = skip > 0 ? skip : 0; row < end; row++) {
            const int32_t *chosen = ids + (int64_t)(run->row0 + row) * g->experts_per_token;
            for (int32_t i = 0; i < g->experts_per_token; i++)
                counts[(int64_t)layer * g->n_experts + chosen[i]]++;
        }
    }
}

int32_t colibri_session_count(colibri_session *session, int32_t from, char *err, size_t err_len)
{
    const clb_error error = {err, err_len};
    if (session == NULL || (from >= 0 && session->engine->geometry.n_experts == 0))
        return clb_fail(&error, COLIBRI_ERROR_INVALID,
                        "counting needs a session of a model with routed experts");
    if (session->pending > 0)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "the session is in the middle of a prefill");
    free(session->routed);
    session->routed = NULL;
    session->routed_from = from;
    if (from < 0)
        return COLIBRI_OK;
    /* Of a parked chunk some layers were computed before anything was counted. */
    if (session->chunk.n > 0)
        clb_session_drop_pending(session);
    session->routed = calloc((size_t)n_counts(session->engine), sizeof *session->routed);
    if (session->routed == NULL)
        return clb_fail(&error, COLIBRI_ERROR_MEMORY, "no memory to count experts");
    return COLIBRI_OK;
}

int32_t colibri_session_counts(const colibri_session *session, uint32_t *counts, int64_t n, char *err,
                               size_t err_len)
{
    const clb_error error = {err, err_len};
    if (session == NULL || session->routed == NULL || counts == NULL || n != n_counts(session->engine))
        return clb_fail(&error, COLIBRI_ERROR_INVALID,
                        "counts: %" PRId64 " numbers given; a session that counts has %" PRId64, n,
                        session != NULL ? n_counts(session->engine) : 0);
    memcpy(counts, session->routed, (size_t)n * sizeof *counts);
    return COLIBRI_OK;
}
