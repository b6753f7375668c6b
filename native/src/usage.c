/* usage.c - the public face of what the expert store has learnt: use counts, warm-up, trace, a smaller
 * cache. Layers are the model's here, with the MTP layer behind the others; the store counts its own. */
#include <inttypes.h>
#include <stdlib.h>

#include "engine.h"

/* The store's number of a layer of the model, -1 = it has no routed experts in memory or on disk. */
static int32_t store_layer(const colibri_engine *engine, int32_t layer)
{
    clb_moe_layer moe;
    int32_t n = engine->geometry.n_layers + (engine->drafts > 0);
    return layer < n && engine->store.n_experts > 0 && engine->family->moe(engine, layer, &moe)
               ? moe.store_layer
               : -1;
}

static int64_t n_counts(const colibri_engine *engine)
{
    const colibri_geometry *g = &engine->geometry;
    return ((int64_t)g->n_layers + g->n_mtp_layers) * g->n_experts;
}

static int32_t check_counts(const colibri_engine *engine, const void *counts, int64_t n, const char *what,
                            const clb_error *error)
{
    if (engine != NULL && counts != NULL && n == n_counts(engine))
        return COLIBRI_OK;
    return clb_fail(error, COLIBRI_ERROR_INVALID,
                    "%s: %" PRId64 " numbers given, one for each expert of each layer needed: %" PRId64, what,
                    n, engine != NULL ? n_counts(engine) : 0);
}

int32_t colibri_engine_usage(const colibri_engine *engine, int64_t *counts, int64_t n, char *err,
                             size_t err_len)
{
    const clb_error error = {err, err_len};
    int32_t status = check_counts(engine, counts, n, "use counts", &error);
    if (status != COLIBRI_OK)
        return status;
    int32_t n_experts = engine->geometry.n_experts;
    for (int64_t i = 0; i < n; i++) {
        int32_t layer = store_layer(engine, (int32_t)(i / n_experts));
        counts[i] = layer < 0 ? 0 : clb_store_uses(&engine->store, layer, (int32_t)(i % n_experts));
    }
    return COLIBRI_OK;
}

int32_t colibri_engine_experts(const colibri_engine *engine, uint8_t *tiers, uint32_t *asked, int64_t n,
                               char *err, size_t err_len)
{
    const clb_error error = {err, err_len};
    const void *out = tiers != NULL ? (const void *)tiers : asked;
    int32_t status = check_counts(engine, out, n, "places of experts", &error);
    if (status != COLIBRI_OK)
        return status;
    int32_t n_experts = engine->geometry.n_experts;
    for (int64_t i = 0; i < n; i += n_experts) {
        int32_t layer = store_layer(engine, (int32_t)(i / n_experts));
        for (int32_t e = 0; e < n_experts; e++) {
            if (tiers != NULL)
                tiers[i + e] =
                    (uint8_t)(layer < 0 ? COLIBRI_TIER_NONE : clb_store_tier(&engine->store, layer, e));
            if (asked != NULL)
                asked[i + e] = layer < 0 ? 0 : clb_store_asked(&engine->store, layer, e);
        }
    }
    return COLIBRI_OK;
}

int32_t colibri_engine_set_usage(colibri_engine *engine, const int64_t *counts, int64_t n, char *err,
                                 size_t err_len)
{
    const clb_error error = {err, err_len};
    int32_t status = check_counts(engine, counts, n, "use counts", &error);
    if (status != COLIBRI_OK)
        return status;
    int32_t n_experts = engine->geometry.n_experts, n_layers = engine->store.n_layers;
    int64_t *own = calloc((size_t)n_layers * (size_t)n_experts + 1, sizeof *own);
    double *steps = calloc((size_t)n_layers + 1, sizeof *steps);
    if (own == NULL || steps == NULL)
        status = clb_fail(&error, COLIBRI_ERROR_MEMORY, "no memory for use counts");
    for (int64_t i = 0; i < n && status == COLIBRI_OK; i++) {
        int32_t layer = store_layer(engine, (int32_t)(i / n_experts));
        if (counts[i] < 0)
            status = clb_fail(&error, COLIBRI_ERROR_INVALID,
                              "use counts: layer %" PRId64 ", expert %" PRId64 " has a negative one",
                              i / n_experts, i % n_experts);
        if (layer < 0)
            continue;
        own[(int64_t)layer * n_experts + i % n_experts] = counts[i];
        steps[layer] += (double)counts[i] / (double)engine->geometry.experts_per_token;
    }
    if (status == COLIBRI_OK)
        status = clb_store_recall(&engine->store, own, steps, &error);
    free(own);
    free(steps);
    return status;
}

int32_t colibri_engine_warm(colibri_engine *engine, int32_t max_ms, int32_t *done, char *err, size_t err_len)
{
    const clb_error error = {err, err_len};
    if (engine == NULL || done == NULL)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "warm-up needs an engine and a place for its answer");
    *done = clb_store_warm(&engine->store, max_ms);
    return COLIBRI_OK;
}

int32_t colibri_engine_shrink(colibri_engine *engine, int64_t expert_bytes, char *err, size_t err_len)
{
    const clb_error error = {err, err_len};
    if (engine == NULL || expert_bytes < 0 || !engine->store.streaming)
        return clb_fail(&error, COLIBRI_ERROR_INVALID,
                        "only the expert cache of a streaming engine can shrink, to a size of 0 or more");
    clb_store_shrink(&engine->store, expert_bytes);
    return COLIBRI_OK;
}

int32_t colibri_engine_trace(colibri_engine *engine, int64_t words, char *err, size_t err_len)
{
    const clb_error error = {err, err_len};
    if (engine == NULL || words < 0)
        return clb_fail(&error, COLIBRI_ERROR_INVALID,
                        "a trace needs an engine and a room of 0 words or more");
    return clb_store_trace(&engine->store, words, &error);
}

int32_t colibri_engine_trace_read(colibri_engine *engine, int32_t *out, int64_t room, int64_t *n,
                                  int64_t *lost, char *err, size_t err_len)
{
    const clb_error error = {err, err_len};
    if (n != NULL)
        *n = 0;
    if (lost != NULL)
        *lost = 0;
    if (engine == NULL || out == NULL || n == NULL || lost == NULL)
        return clb_fail(&error, COLIBRI_ERROR_INVALID,
                        "reading a trace needs an engine and places to put it");
    int32_t n_layers = engine->geometry.n_layers + (engine->drafts > 0);
    int32_t *model_layer = malloc(((size_t)engine->store.n_layers + 1) * sizeof *model_layer);
    if (model_layer == NULL)
        return clb_fail(&error, COLIBRI_ERROR_MEMORY, "no memory to read a trace");
    for (int32_t l = 0; l < n_layers; l++)
        if (store_layer(engine, l) >= 0)
            model_layer[store_layer(engine, l)] = l;
    int64_t words;
    while ((words = clb_store_take_record(&engine->store, out + *n, room - *n)) > 0) {
        out[*n + 1] = model_layer[out[*n + 1]];
        *n += words;
    }
    *lost = engine->store.trace_lost;
    free(model_layer);
    return COLIBRI_OK;
}
