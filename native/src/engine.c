/* engine.c - opening, planning, closing, and the snapshot. Stepping is in session.c. */
#include "engine.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "budget.h"
#include "os.h"
#include "session.h"

#define MAX_CHUNK 16384
/* No machine has more memory; keeps sums from overflowing. */
#define MAX_BYTES (INT64_C(1) << 52)
/* Of keys and values of a span of tokens over all layers: a hundred times what large models keep. With the
 * bounds on context and sessions no sum of them overflows. */
#define MAX_KV_BYTES (INT64_C(1) << 34)

const clb_family *clb_family_of_tests;

static const clb_family *find_family(int32_t id)
{
    if (clb_family_of_tests != NULL && clb_family_of_tests->id == id)
        return clb_family_of_tests;
    static const clb_family *const families[] = {&clb_family_llama, &clb_family_glm_moe_dsa};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (families[i]->id == id)
            return families[i];
    return NULL;
}

/* Copies a struct whose caller may know fewer fields; unknown ones become 0. */
static int32_t copy_struct(void *out, size_t size, const void *in, const char *what, const clb_error *error)
{
    uint32_t given;
    memset(out, 0, size);
    if (in == NULL)
        return clb_fail(error, COLIBRI_ERROR_INVALID, "%s missing", what);
    memcpy(&given, in, sizeof given);
    if (given < sizeof given || given > 65536)
        return clb_fail(error, COLIBRI_ERROR_INVALID, "%s: struct_size %" PRIu32 " is not set", what, given);
    memcpy(out, in, given < size ? given : size);
    return COLIBRI_OK;
}

static int32_t check_field(const char *name, int64_t value, int64_t low, int64_t high, const clb_error *error)
{
    if (value >= low && value <= high)
        return COLIBRI_OK;
    return clb_fail(error, COLIBRI_ERROR_FORMAT,
                    "geometry: %s = %" PRId64 " is outside %" PRId64 "..%" PRId64, name, value, low, high);
}

static int32_t check_options(const colibri_engine_options *o, const clb_error *error)
{
    if (o->precision < COLIBRI_PRECISION_FAST || o->precision > COLIBRI_PRECISION_F32)
        return clb_fail(error, COLIBRI_ERROR_INVALID, "options: unknown precision %" PRId32, o->precision);
    if (o->kv_type < COLIBRI_KV_AUTO || o->kv_type > COLIBRI_KV_BF16)
        return clb_fail(error, COLIBRI_ERROR_INVALID, "options: unknown kv_type %" PRId32, o->kv_type);
    if ((o->kv_type == COLIBRI_KV_F32) != (o->precision == COLIBRI_PRECISION_F32) &&
        o->kv_type != COLIBRI_KV_AUTO)
        return clb_fail(
            error, COLIBRI_ERROR_INVALID,
            "options: f32 KV belongs to precision f32 and bf16 KV to the fast path; leave kv_type at auto");
    if (o->threads < 0 || o->threads > CLB_POOL_MAX_THREADS)
        return clb_fail(error, COLIBRI_ERROR_INVALID, "options: threads = %" PRId32 " is outside 0..%d",
                        o->threads, CLB_POOL_MAX_THREADS);
    if (o->prefill_chunk < 0 || o->prefill_chunk > MAX_CHUNK)
        return clb_fail(error, COLIBRI_ERROR_INVALID, "options: prefill_chunk = %" PRId32 " is outside 0..%d",
                        o->prefill_chunk, MAX_CHUNK);
    if (o->sessions < 0 || o->sessions > 64 || o->expert_slots < 0 || o->io_mode < COLIBRI_IO_AUTO ||
        o->io_mode > COLIBRI_IO_BUFFERED)
        return clb_fail(error, COLIBRI_ERROR_INVALID,
                        "options: sessions, expert_slots or io_mode is out of range");
    if (o->drafts < 0 || o->drafts > CLB_MAX_DRAFTS)
        return clb_fail(error, COLIBRI_ERROR_INVALID, "options: drafts = %" PRId32 " is outside 0..%d",
                        o->drafts, CLB_MAX_DRAFTS);
    if (o->context < 0 || o->memory_budget < 0 || o->caller_bytes < 0 || o->memory_budget > MAX_BYTES ||
        o->caller_bytes > MAX_BYTES)
        return clb_fail(error, COLIBRI_ERROR_INVALID,
                        "options: context, memory_budget or caller_bytes is out of range");
    return COLIBRI_OK;
}

static int32_t check_geometry(const colibri_geometry *g, const clb_error *error)
{
    const struct {
        const char *name;
        int64_t value, low, high;
    } fields[] = {
        {"n_layers", g->n_layers, 1, 1024},
        {"hidden", g->hidden, 2, 65536},
        {"vocab", g->vocab, 2, 1 << 22},
        {"vocab_used", g->vocab_used, 0, g->vocab},
        {"n_heads", g->n_heads, 1, 1024},
        {"max_position", g->max_position, 1, 1 << 26},
        {"n_experts", g->n_experts, 0, 65536},
        {"n_mtp_layers", g->n_mtp_layers, 0, 64},
        {"tied_embeddings", g->tied_embeddings, 0, 1},
        {"ffn", g->ffn, 0, 1 << 20},
        /* Families narrow these down; here they are only kept from overflowing, since sizes are computed
         * from fields that a family does not read too. */
        {"n_kv_heads", g->n_kv_heads, 0, 1024},
        {"head_dim", g->head_dim, 0, 65536},
        {"q_lora", g->q_lora, 0, 65536},
        {"kv_lora", g->kv_lora, 0, 65536},
        {"qk_nope", g->qk_nope, 0, 65536},
        {"qk_rope", g->qk_rope, 0, 65536},
        {"v_head", g->v_head, 0, 65536},
        {"index_heads", g->index_heads, 0, 1024},
        {"index_dim", g->index_dim, 0, 65536},
        {"index_topk", g->index_topk, 0, 1 << 20},
        {"experts_per_token", g->experts_per_token, 0, 65536},
        {"n_shared_experts", g->n_shared_experts, 0, 1024},
        {"expert_ffn", g->expert_ffn, 0, 1 << 20},
        {"n_group", g->n_group, 0, 65536},
        {"topk_group", g->topk_group, 0, 65536},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        int32_t status = check_field(fields[i].name, fields[i].value, fields[i].low, fields[i].high, error);
        if (status != COLIBRI_OK)
            return status;
    }
    /* Written so that NaN fails too. */
    if (!(g->norm_eps > 0 && g->norm_eps < 1))
        return clb_fail(error, COLIBRI_ERROR_FORMAT, "geometry: norm_eps must lie between 0 and 1");
    if (!(g->rope_theta >= 1 && g->rope_theta <= 1e15))
        return clb_fail(error, COLIBRI_ERROR_FORMAT, "geometry: rope_theta must lie between 1 and 1e15");
    return COLIBRI_OK;
}

static int32_t copy_flags(uint8_t **out, const uint8_t *in, int32_t n, const clb_error *error)
{
    *out = calloc((size_t)n, 1);
    if (*out == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the layer list");
    for (int32_t i = 0; in != NULL && i < n; i++)
        (*out)[i] = in[i] != 0;
    return COLIBRI_OK;
}

/* Everything that needs no file: options, geometry, instruction set. */
static int32_t configure(colibri_engine *engine, const colibri_engine_options *options,
                         const colibri_geometry *geometry, const clb_error *error)
{
    int32_t status = copy_struct(&engine->options, sizeof engine->options, options, "options", error);
    if (status == COLIBRI_OK)
        status = copy_struct(&engine->geometry, sizeof engine->geometry, geometry, "geometry", error);
    if (status == COLIBRI_OK)
        status = check_options(&engine->options, error);
    if (status == COLIBRI_OK)
        status = check_geometry(&engine->geometry, error);
    if (status != COLIBRI_OK)
        return status;
    colibri_geometry *g = &engine->geometry;
    engine->family = find_family(g->family);
    if (engine->family == NULL)
        return clb_fail(error, COLIBRI_ERROR_UNSUPPORTED, "family %" PRId32 " is not known to this engine",
                        g->family);
    status = copy_flags(&engine->layer_sparse, g->layer_sparse, g->n_layers, error);
    if (status == COLIBRI_OK)
        status = copy_flags(&engine->layer_indexer, g->layer_indexer, g->n_layers, error);
    if (status != COLIBRI_OK)
        return status;
    g->layer_sparse = engine->layer_sparse;
    g->layer_indexer = engine->layer_indexer;
    if (g->vocab_used == 0)
        g->vocab_used = g->vocab;
    status = engine->family->check(g, error);
    if (status != COLIBRI_OK)
        return status;

    int32_t isa = engine->options.isa;
    engine->kernels = clb_kernels_get(isa);
    if (engine->kernels == NULL)
        return clb_fail(error, COLIBRI_ERROR_UNSUPPORTED, "this processor lacks the instruction set %s",
                        colibri_isa_name(isa));
    if (engine->options.precision == COLIBRI_PRECISION_F32)
        engine->kernels = clb_kernels_reference();
    engine->kv_f32 = engine->options.precision == COLIBRI_PRECISION_F32;
    engine->context = engine->options.context > 0 ? engine->options.context : g->max_position;
    if (engine->context > g->max_position)
        return clb_fail(error, COLIBRI_ERROR_INVALID,
                        "options: context = %" PRId32 ", the model was made for at most %" PRId32,
                        engine->context, g->max_position);
    return COLIBRI_OK;
}

/* Weights that every family has, then the family's own. */
static int32_t bind_weights(colibri_engine *engine, clb_loader *loader)
{
    const colibri_geometry *g = &engine->geometry;
    clb_load_matrix(loader, &engine->embedding, CLB_AS_STORED, g->vocab, g->hidden,
                    "model.embed_tokens.weight");
    if (!g->tied_embeddings)
        clb_load_matrix(loader, &engine->head, CLB_AS_STORED, g->vocab, g->hidden, "lm_head.weight");
    clb_load_vector(loader, &engine->final_norm, g->hidden, "model.norm.weight");
    if (loader->status != COLIBRI_OK)
        return loader->status;
    int32_t status = engine->family->bind(engine, loader);
    clb_blocks_finish_layout(engine);
    int64_t kv_bytes = 0;
    for (int32_t i = 0; i < engine->kv.n_groups; i++)
        kv_bytes += engine->kv.groups[i].block_bytes;
    if (status == COLIBRI_OK && kv_bytes > MAX_KV_BYTES)
        return clb_fail(&loader->error, COLIBRI_ERROR_FORMAT,
                        "geometry: %" PRId64 " bytes of keys and values per token are absurd",
                        kv_bytes / CLB_SPAN);
    return status;
}

static void start_loader(const colibri_engine *engine, clb_loader *loader, const clb_error *error)
{
    memset(loader, 0, sizeof *loader);
    loader->table = &engine->table;
    loader->precision = engine->options.precision;
    loader->error = *error;
}

static int32_t make_inv_freq(colibri_engine *engine, const clb_error *error)
{
    int32_t dim = engine->family->rope_dim(&engine->geometry);
    engine->inv_freq = malloc((size_t)(dim / 2 + 1) * sizeof *engine->inv_freq);
    if (engine->inv_freq == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the rope frequencies");
    for (int32_t i = 0; i < dim / 2; i++)
        engine->inv_freq[i] =
            1.0f / (float)pow(engine->geometry.rope_theta, (double)((float)(2 * i) / (float)dim));
    return COLIBRI_OK;
}

/* Per-worker memory that attention needs, and the decode batch's own rows. */
static int32_t make_buffers(colibri_engine *engine, const clb_error *error)
{
    const colibri_geometry *g = &engine->geometry;
    engine->worker_bytes = clb_worker_bytes(engine, engine->context);
    int workers = clb_pool_threads(engine->pool);
    engine->worker_scratch = clb_os_alloc((size_t)(engine->worker_bytes * workers));
    engine->decode_x = clb_os_alloc((size_t)CLB_MAX_BATCH * (size_t)g->hidden * sizeof(float));
    engine->decode_selected =
        clb_os_alloc((size_t)CLB_MAX_BATCH * ((size_t)g->index_topk + 1) * sizeof(int32_t));
    if (!engine->worker_scratch || !engine->decode_x || !engine->decode_selected)
        return clb_fail(error, COLIBRI_ERROR_MEMORY,
                        "no memory for the work buffers (%" PRId64 " bytes per thread)",
                        engine->worker_bytes);
    return COLIBRI_OK;
}

/* Resident if everything fits, else a cache of experts in what the budget leaves. */
static int32_t place_experts(colibri_engine *engine, const clb_loader *loader, const clb_error *error)
{
    colibri_plan plan = {.struct_size = sizeof plan};
    int32_t status = clb_budget_plan(engine, loader, &plan, error);
    if (status != COLIBRI_OK)
        return status;
    if (!plan.fits)
        return clb_budget_refuse(engine, &plan, error);
    engine->prefill_chunk = plan.prefill_chunk;
    engine->plan = plan;
    if (!plan.streaming)
        return COLIBRI_OK;
    if (engine->options.precision == COLIBRI_PRECISION_F32)
        return clb_fail(error, COLIBRI_ERROR_INVALID,
                        "options: precision f32 keeps all experts in memory; leave expert_slots at 0");
    const clb_store_options options = {
        .io_mode = engine->options.io_mode,
        .direct = !engine->options.io_buffered,
        .prefetch = !engine->options.no_prefetch,
        .fault = engine->options.fault,
    };
    return clb_store_stream(&engine->store, &engine->table, engine->pool, &options, error);
}

static int32_t load_weights(colibri_engine *engine, clb_loader *loader, const clb_error *error)
{
    int resident = !engine->store.streaming;
    engine->region_bytes[0] = loader->bytes[0];
    engine->region_bytes[1] = resident ? loader->bytes[1] : 0;
    engine->dense = clb_os_alloc((size_t)engine->region_bytes[0]);
    engine->experts = resident ? clb_os_alloc((size_t)engine->region_bytes[1]) : NULL;
    if (engine->dense == NULL || (resident && engine->experts == NULL))
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for %.2f GB of weights",
                        (double)(engine->region_bytes[0] + engine->region_bytes[1]) / 1e9);
    int32_t status = clb_load_run(loader, engine->pool, engine->dense, engine->experts);
    if (status == COLIBRI_OK && engine->geometry.tied_embeddings)
        engine->head = engine->embedding;
    return status;
}

int32_t colibri_engine_open(const colibri_engine_options *options, const colibri_geometry *geometry,
                            const char *const *paths, int32_t n_paths, const colibri_tensor *tensors,
                            int64_t n_tensors, colibri_engine **out, char *err, size_t err_len)
{
    clb_error error = {err, err_len};
    if (out == NULL)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "no place for the engine");
    *out = NULL;
    if (n_paths < 1)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "no weight files");
    colibri_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL)
        return clb_fail(&error, COLIBRI_ERROR_MEMORY, "no memory for the engine");
    clb_loader loader;
    start_loader(engine, &loader, &error);
    int32_t status = configure(engine, options, geometry, &error);
    if (status == COLIBRI_OK)
        status = clb_table_open(&engine->table, paths, n_paths, engine->options.mirror_paths,
                                engine->options.n_mirrors, tensors, n_tensors, &error);
    engine->options.mirror_paths = NULL; /* the caller's, and may go now */
    loader.loading = engine->options.loading;
    engine->options.loading = NULL;
    if (status == COLIBRI_OK) {
        loader.precision = engine->options.precision;
        status = bind_weights(engine, &loader);
    }
    if (status == COLIBRI_OK)
        status = make_inv_freq(engine, &error);
    if (status == COLIBRI_OK) {
        int threads = engine->options.threads > 0 ? engine->options.threads : clb_os_cores();
        engine->pool = clb_pool_create(threads, engine->options.pin_threads);
        if (engine->pool == NULL)
            status = clb_fail(&error, COLIBRI_ERROR_MEMORY, "no memory for %d threads", threads);
    }
    if (status == COLIBRI_OK)
        status = make_buffers(engine, &error);
    if (status == COLIBRI_OK)
        status = place_experts(engine, &loader, &error);
    if (status == COLIBRI_OK)
        status = load_weights(engine, &loader, &error);
    clb_loader_free(&loader);
    if (engine->store.streaming)
        clb_table_close_files(&engine->table); /* the store has its own */
    else
        clb_table_close(&engine->table);
    /* What loading gave back would else stay with the allocator, outside every plan. */
    clb_os_trim();
    if (status != COLIBRI_OK) {
        colibri_engine_close(engine);
        return status;
    }
    *out = engine;
    return COLIBRI_OK;
}

int32_t colibri_engine_plan(const colibri_engine_options *options, const colibri_geometry *geometry,
                            const colibri_tensor *tensors, int64_t n_tensors, colibri_plan *out, char *err,
                            size_t err_len)
{
    clb_error error = {err, err_len};
    if (out == NULL || out->struct_size < sizeof out->struct_size || out->struct_size > 65536)
        return clb_fail(&error, COLIBRI_ERROR_INVALID, "plan: struct_size is not set");
    uint32_t size = out->struct_size;
    colibri_plan plan = {.struct_size = size};
    colibri_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL)
        return clb_fail(&error, COLIBRI_ERROR_MEMORY, "no memory for the plan");
    clb_loader loader;
    start_loader(engine, &loader, &error);
    int32_t status = configure(engine, options, geometry, &error);
    if (status == COLIBRI_OK)
        status = clb_table_open(&engine->table, NULL, 0, NULL, 0, tensors, n_tensors, &error);
    if (status == COLIBRI_OK) {
        loader.precision = engine->options.precision;
        status = bind_weights(engine, &loader);
    }
    if (status == COLIBRI_OK)
        status = clb_budget_plan(engine, &loader, &plan, &error);
    if (status != COLIBRI_OK)
        plan = (colibri_plan){.struct_size = size};
    memcpy(out, &plan, size < sizeof plan ? size : sizeof plan);
    clb_loader_free(&loader);
    colibri_engine_close(engine);
    return status;
}

void colibri_engine_close(colibri_engine *engine)
{
    if (engine == NULL)
        return;
    if (engine->family != NULL && engine->model != NULL)
        engine->family->release(engine);
    clb_store_close(&engine->store);
    clb_table_close(&engine->table);
    int workers = clb_pool_threads(engine->pool);
    clb_pool_destroy(engine->pool);
    clb_os_free(engine->dense, (size_t)engine->region_bytes[0]);
    clb_os_free(engine->experts, (size_t)engine->region_bytes[1]);
    clb_scratch_free(&engine->scratch);
    if (engine->worker_scratch != NULL)
        clb_os_free(engine->worker_scratch, (size_t)(engine->worker_bytes * workers));
    clb_os_free(engine->decode_x, (size_t)CLB_MAX_BATCH * (size_t)engine->geometry.hidden * sizeof(float));
    clb_os_free(engine->decode_selected,
                (size_t)CLB_MAX_BATCH * ((size_t)engine->geometry.index_topk + 1) * sizeof(int32_t));
    clb_blocks_free_spare(engine);
    free(engine->kv.parts);
    free(engine->inv_freq);
    free(engine->layer_sparse);
    free(engine->layer_indexer);
    free(engine);
}

void colibri_engine_snapshot(const colibri_engine *engine, colibri_engine_snapshot_t *out)
{
    if (engine == NULL || out == NULL)
        return;
    uint32_t size = out->struct_size;
    colibri_engine_snapshot_t s = {
        .struct_size = size,
        .isa = engine->kernels->isa,
        .precision = engine->options.precision,
        .kv_type = engine->kv_f32 ? COLIBRI_KV_F32 : COLIBRI_KV_BF16,
        .threads = clb_pool_threads(engine->pool),
        .context = engine->context,
        .sparse_attention = engine->sparse_attention,
        .has_mtp = engine->has_mtp,
        .sessions = atomic_load(&engine->sessions),
        .weight_bytes = engine->region_bytes[0] + engine->region_bytes[1] + engine->store.slot_bytes,
        .expert_bytes = engine->region_bytes[1] + engine->store.slot_bytes,
        .kv_bytes = atomic_load(&engine->kv_bytes),
        .kv_bytes_per_token = engine->kv.bytes_per_token,
        .scratch_bytes =
            atomic_load(&engine->scratch_bytes) + engine->worker_bytes * clb_pool_threads(engine->pool),
        .progress = atomic_load(&engine->progress),
        .prompt_tokens = atomic_load(&engine->prompt_tokens),
        .decoded_tokens = atomic_load(&engine->decoded_tokens),
        .expert_lookups = atomic_load(&engine->store.lookups),
        .expert_misses = atomic_load(&engine->store.misses),
        .expert_bytes_read = atomic_load(&engine->store.bytes_read),
        .streaming = engine->store.streaming,
        .expert_slots = clb_store_slots(&engine->store),
        .guessed_bytes = atomic_load(&engine->store.guessed_bytes),
        .useful_bytes = atomic_load(&engine->store.useful_bytes),
        .wasted_bytes = atomic_load(&engine->store.wasted_bytes),
        .disk_wait_ns = atomic_load(&engine->store.wait_ns),
        .cached_experts =
            engine->store.streaming ? atomic_load(&engine->store.n_cached) : clb_store_slots(&engine->store),
    };
    for (int p = 0; p < CLB_PHASES; p++) {
        s.step_ns[p] = atomic_load(&engine->clock.step_ns[p]);
        for (int t = 0; t < CLB_TIMES; t++)
            s.time_ns[p * CLB_TIMES + t] = atomic_load(&engine->clock.ns[p][t]);
        for (int f = 0; f < CLB_FOUND; f++)
            s.found[p * CLB_FOUND + f] = atomic_load(&engine->store.found[p][f]);
    }
    memcpy(out, &s, size < sizeof s ? size : sizeof s);
}

int32_t colibri_engine_mirrors(const colibri_engine *engine, colibri_mirror_t *out, int32_t n)
{
    if (engine == NULL || !engine->store.streaming)
        return 0;
    const clb_table *table = &engine->table;
    const uint32_t size = out != NULL && n > 0 ? out->struct_size : 0;
    for (int32_t r = 0; r < n && r < table->n_replicas && size > 0; r++) {
        const clb_store_replica *seen = &engine->store.seen[r];
        int32_t files = 0;
        for (int32_t f = 0; f < table->n_files; f++)
            files += (int32_t)(table->holders[f] >> r & 1);
        colibri_mirror_t m = {
            .struct_size = size,
            .state = atomic_load(&seen->failed) ? COLIBRI_MIRROR_FAILED : COLIBRI_MIRROR_IN_USE,
            .files = files,
            .refused = table->refused[r],
            .bytes = atomic_load(&seen->bytes),
            .reads = atomic_load(&seen->reads),
            .failures = atomic_load(&seen->failures),
            .rate = atomic_load(&seen->rate),
        };
        memcpy((uint8_t *)out + (size_t)r * size, &m, size < sizeof m ? size : sizeof m);
    }
    return table->n_replicas;
}
