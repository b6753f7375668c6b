/* progress.c - how far a prefill is, and what it has still to read. Not for: doing it (prefill.c).
 *
 * Work is counted in tokens times layers, the MTP layer included, over all that was announced; inside a
 * layer phases count by about the time they take. A chunk that is taken up again starts with what it had.
 * The bytes left assume that rows choose their experts evenly and that the cache helps by its share of the
 * experts; what is missing of the layer in work is known exactly. Thread rule: the engine's calling thread.
 */
#include <math.h>

#include "moe.h"
#include "session.h"
#include "store_internal.h"

/* Shares of a layer with experts: attention, norm and router, experts, adding up. */
static const double sparse_share[] = {0.30, 0.05, 0.60, 0.05};
/* Of a dense one. */
static const double dense_share[] = {0.5, 0.5};

/* Layers finished, with the share of the one in work. */
static double layers_done(const colibri_session *session)
{
    const colibri_engine *engine = session->engine;
    const clb_chunk *chunk = &session->chunk;
    clb_moe_layer moe;
    if (chunk->n == 0)
        return 0;
    double done = chunk->layer;
    if (chunk->phase > CLB_PHASE_FINISH)
        return done;
    const double *share = engine->family->moe(engine, chunk->layer, &moe) ? sparse_share : dense_share;
    for (int32_t phase = 0; phase < chunk->phase; phase++)
        done += share[phase];
    double part = (double)chunk->row / chunk->n;
    if (chunk->phase == CLB_PHASE_EXPERTS)
        part = (double)chunk->plan->first[chunk->expert] / (double)chunk->plan->first[chunk->plan->n_experts];
    return done + part * share[chunk->phase];
}

double clb_prefill_fraction(const colibri_session *session)
{
    const colibri_engine *engine = session->engine;
    double layers = engine->geometry.n_layers + (engine->drafts > 0),
           tokens = session->total - session->pending;
    if (session->total == 0)
        return 0;
    double done = tokens * layers + session->chunk.tokens * layers_done(session);
    return fmin(done / (layers * session->total), 1);
}

/* Bytes that a layer reads for so many rows. */
static double layer_bytes(const colibri_engine *engine, int32_t store_layer, int32_t rows)
{
    const clb_store *store = &engine->store;
    const clb_store_item *item = &store->items[(int64_t)store_layer * store->n_experts];
    const clb_store_class *class = &store->classes[item->class_index];
    double n = store->n_experts, k = engine->geometry.experts_per_token;
    double touched = n * (1 - pow(1 - k / n, rows)),
           absent = 1 - (double)class->n_slots / (double)class->n_items;
    return touched * absent * (double)clb_item_bytes(item);
}

/* Bytes that a chunk of so many rows reads from `layer` on. */
static double chunk_bytes(const colibri_engine *engine, int32_t layer, int32_t rows)
{
    double bytes = 0;
    for (; layer < engine->geometry.n_layers + (engine->drafts > 0); layer++) {
        clb_moe_layer moe;
        if (engine->family->moe(engine, layer, &moe))
            bytes += layer_bytes(engine, moe.store_layer, rows);
    }
    return bytes;
}

/* Bytes of the announced experts that are not in memory yet. */
static double missing_bytes(const colibri_session *session)
{
    const clb_chunk *chunk = &session->chunk;
    const clb_store *store = &session->engine->store;
    clb_moe_layer moe;
    double bytes = 0;
    session->engine->family->moe(session->engine, chunk->layer, &moe);
    const clb_store_item *items = &store->items[(int64_t)moe.store_layer * store->n_experts];
    for (int32_t e = chunk->expert; e < store->n_experts; e++)
        if (chunk->plan->first[e + 1] > chunk->plan->first[e] && items[e].state != ITEM_READY)
            bytes += (double)clb_item_bytes(&items[e]);
    return bytes;
}

static double bytes_left(const colibri_session *session)
{
    const colibri_engine *engine = session->engine;
    const clb_chunk *chunk = &session->chunk;
    int32_t rest = session->pending - chunk->tokens;
    if (!engine->store.streaming || session->pending == 0)
        return 0;
    double bytes = 0;
    if (chunk->n > 0) {
        int known = chunk->phase == CLB_PHASE_EXPERTS || chunk->phase == CLB_PHASE_FINISH;
        bytes += chunk_bytes(engine, chunk->layer + known, chunk->n);
        if (chunk->phase == CLB_PHASE_EXPERTS)
            bytes += missing_bytes(session);
    }
    int32_t whole = rest / engine->prefill_chunk, part = rest % engine->prefill_chunk;
    if (whole > 0)
        bytes += whole * chunk_bytes(engine, 0, engine->prefill_chunk);
    if (part > 0)
        bytes += chunk_bytes(engine, 0, part);
    return bytes;
}

colibri_prefill_progress clb_prefill_progress(const colibri_session *session, int finished)
{
    const clb_chunk *chunk = &session->chunk;
    int32_t n_layers = session->engine->geometry.n_layers;
    return (colibri_prefill_progress){
        .finished = finished,
        .tokens_done = session->total - session->pending,
        .tokens_total = session->total,
        .layer = chunk->layer < n_layers ? chunk->layer : n_layers,
        .n_layers = n_layers,
        .fraction = finished ? 1 : clb_prefill_fraction(session),
        .resumed = session->resumed,
        .bytes_read = session->bytes_read,
        .bytes_left = (int64_t)bytes_left(session),
    };
}
