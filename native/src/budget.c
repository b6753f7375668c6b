/* budget.c - see budget.h. */
#include "budget.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "os.h"

/* Tokens of a prefill chunk when every weight is resident: wide enough for the GEMM's peak, small
 * enough that activations stay near the caches. */
#define DEFAULT_CHUNK 512
#define MAX_STREAMING_CHUNK 4096
/* A budget that is too small for wider chunks gets narrower ones, which are slower. */
#define LEAST_RESIDENT_CHUNK 128
#define LEAST_CHUNK 64
/* While experts stream, chunks may take this part of what the cache could have. */
#define CHUNK_SHARE 6
/* Measured: the engine's own code, data and small lists; a thread's stack and what malloc keeps for it. */
#define OWN_BYTES ((int64_t)3 << 20)
#define THREAD_BYTES ((int64_t)512 << 10)

#define PLAN_CLASSES (int32_t)(sizeof((colibri_plan *)0)->classes / sizeof(colibri_plan_class))

/* What depends neither on context nor on sessions nor on the chunk. */
typedef struct {
    int64_t caller;
    int64_t dense;
    int64_t experts; /* resident; 0 = a dense model */
    int64_t loading; /* for a moment, beside the weights */
    int64_t tables;
    int64_t staging;     /* streaming only */
    int64_t least_cache; /* streaming only: one slot of each size */
} fixed_parts;

typedef struct {
    int32_t context;
    int32_t sessions;
    int32_t chunk;
    int32_t streaming;
} setting;

int32_t clb_budget_threads(const colibri_engine *engine)
{
    return engine->options.threads > 0 ? engine->options.threads : clb_os_cores();
}

int64_t clb_worker_bytes(const colibri_engine *engine, int32_t context)
{
    const colibri_geometry *g = &engine->geometry;
    const clb_kernels *k = engine->kernels;
    int64_t bytes = 64;
    if (g->head_dim > 0 && g->kv_lora == 0) {
        int32_t dim = (g->head_dim + 15) / 16 * 16,
                group = g->n_kv_heads > 0 ? g->n_heads / g->n_kv_heads : 1;
        bytes = k->gqa_scratch(dim, group);
        /* Output and softmax state of one tile of tokens (family_llama.c). */
        bytes += (int64_t)CLB_SPAN * group * (dim * 4 + (int64_t)sizeof(clb_softmax)) + 256;
    }
    if (g->kv_lora > 0) {
        bytes = k->mla_scratch(g->n_heads, g->kv_lora, g->qk_rope) + 256;
        if (g->index_topk > 0)
            bytes += k->index_scratch(g->index_heads, g->index_dim) + (int64_t)context * 4 + 1024;
    }
    int64_t route = (2 * (int64_t)g->n_experts + 2 * (int64_t)g->n_group) * (int64_t)sizeof(float);
    if (bytes < route)
        bytes = route;
    if (bytes < engine->gqa_bytes)
        bytes = engine->gqa_bytes;
    return (bytes + 4095) / 4096 * 4096;
}

/* Blocks of one group of KV parts in a full session: all of them, or what windows and checkpoints reach,
 * and a chunk being computed. */
static int64_t kv_blocks(const clb_kv_group *group, int32_t context)
{
    int64_t all = (context + CLB_SPAN - 1) / CLB_SPAN, window = (group->window + CLB_SPAN - 1) / CLB_SPAN + 1;
    int64_t reached = (1 + CLB_MAX_CHECKPOINTS) * window + MAX_STREAMING_CHUNK / CLB_SPAN;
    return group->window > 0 && reached < all ? reached : all;
}

/* Keys and values of a full context, history, logits and the hidden states for drafts. */
static int64_t session_bytes(const colibri_engine *engine, int32_t context)
{
    const colibri_geometry *g = &engine->geometry;
    int64_t rows = 1 + engine->drafts, kv = 0;
    for (int32_t i = 0; i < engine->kv.n_groups; i++) {
        const clb_kv_group *group = &engine->kv.groups[i];
        kv += kv_blocks(group, context) *
              ((int64_t)clb_os_size((size_t)group->block_bytes) + (int64_t)sizeof(void *));
    }
    int64_t logits = rows * g->vocab * (int64_t)sizeof(float);
    int64_t hidden = engine->drafts > 0 ? CLB_MAX_HIDDEN * (int64_t)g->hidden * (int64_t)sizeof(float) : 0;
    /* A step of several sessions holds the logits of all of them once more. */
    return kv + 2 * logits + hidden + (int64_t)context * (int64_t)sizeof(int32_t);
}

/* Rows that decode steps have at most. */
static int64_t decode_rows(const colibri_engine *engine, int32_t sessions)
{
    int64_t rows = (int64_t)sessions * (1 + engine->drafts);
    return rows < CLB_MAX_BATCH ? rows : CLB_MAX_BATCH;
}

/* Buffers that engine.c makes, the rows of a decode step (decode.c, draft.c), the sampler's list. */
static int64_t work_bytes(const colibri_engine *engine, int32_t context, int32_t sessions)
{
    const colibri_geometry *g = &engine->geometry;
    int64_t threads = clb_budget_threads(engine), rows = decode_rows(engine, sessions);
    int64_t rope = engine->family->rope_dim(g);
    return (int64_t)clb_os_size((size_t)(clb_worker_bytes(engine, context) * threads)) +
           (int64_t)clb_os_size((size_t)CLB_MAX_BATCH * (size_t)g->hidden * sizeof(float)) +
           (int64_t)clb_os_size((size_t)CLB_MAX_BATCH * ((size_t)g->index_topk + 1) * sizeof(int32_t)) +
           rows * (2 * (int64_t)g->hidden + rope) * (int64_t)sizeof(float) + (int64_t)g->vocab * 16 +
           OWN_BYTES + threads * THREAD_BYTES;
}

/* Temporaries of a decode step: every row may ask for other experts (moe.c). */
static int64_t decode_bytes(const colibri_engine *engine, int32_t sessions)
{
    const colibri_geometry *g = &engine->geometry;
    int64_t rows = decode_rows(engine, sessions);
    int64_t floats = rows * engine->family->row_floats(g);
    if (g->n_experts > 0)
        floats += rows * g->experts_per_token * (2 * (int64_t)g->expert_ffn + g->hidden);
    return (int64_t)clb_os_size((size_t)(floats * (int64_t)sizeof(float) * 3 / 2) + CLB_SCRATCH_MIN);
}

static int64_t prefill_bytes(const colibri_engine *engine, const setting *s)
{
    int32_t tokens = s->chunk < s->context ? s->chunk : s->context;
    int64_t slice = clb_slice_bytes(engine, tokens), decode = decode_bytes(engine, s->sessions);
    return s->sessions * clb_chunk_bytes(engine, tokens) + (slice > decode ? slice : decode);
}

/* Everything but the cache of a streaming engine. */
static int64_t held_bytes(const colibri_engine *engine, const fixed_parts *parts, const setting *s)
{
    int64_t weights = parts->dense + (s->streaming ? parts->staging : parts->experts);
    int64_t running = s->sessions * session_bytes(engine, s->context) + prefill_bytes(engine, s) +
                      work_bytes(engine, s->context, s->sessions);
    /* Sessions come after loading. */
    int64_t beside = running > parts->loading ? running : parts->loading;
    return parts->caller + weights + parts->tables + beside;
}

static int32_t wide_chunk(const colibri_engine *engine)
{
    return engine->options.prefill_chunk > 0 ? engine->options.prefill_chunk : DEFAULT_CHUNK;
}

/* The narrowest chunk that may be chosen. */
static int32_t narrow_chunk(const colibri_engine *engine, int32_t least)
{
    return engine->options.prefill_chunk > 0 ? engine->options.prefill_chunk : least;
}

/* Bytes from which on a setting opens at all: streaming where there are experts to stream. */
static int64_t least_bytes(const colibri_engine *engine, const fixed_parts *parts, int32_t context,
                           int32_t sessions)
{
    int resident_only =
        parts->experts == 0 || engine->options.precision == COLIBRI_PRECISION_F32; /* see engine.c */
    setting s = {context, sessions, narrow_chunk(engine, LEAST_RESIDENT_CHUNK), 0};
    int64_t resident = held_bytes(engine, parts, &s);
    if (resident_only)
        return resident;
    s.streaming = 1;
    s.chunk = narrow_chunk(engine, LEAST_CHUNK);
    int64_t streaming = held_bytes(engine, parts, &s) + parts->least_cache;
    return streaming < resident ? streaming : resident;
}

static int32_t largest_context(const colibri_engine *engine, const fixed_parts *parts, int32_t sessions)
{
    int32_t low = 0, high = (engine->geometry.max_position + CLB_SPAN - 1) / CLB_SPAN;
    while (low < high) {
        int32_t middle = low + (high - low + 1) / 2;
        if (least_bytes(engine, parts, middle * CLB_SPAN, sessions) <= engine->options.memory_budget)
            low = middle;
        else
            high = middle - 1;
    }
    int32_t tokens = low * CLB_SPAN;
    return tokens < engine->geometry.max_position ? tokens : engine->geometry.max_position;
}

static int32_t most_sessions(const colibri_engine *engine, const fixed_parts *parts)
{
    int32_t n = (int32_t)clb_sessions(engine);
    while (n > 0 && least_bytes(engine, parts, engine->context, n) > engine->options.memory_budget)
        n--;
    return n;
}

/* Resident with the widest chunk that fits, else streaming, where each chunk reads nearly all experts: the
 * longer the fewer bytes per token. */
static setting choose(const colibri_engine *engine, const fixed_parts *parts)
{
    int64_t budget = engine->options.memory_budget;
    int forced = engine->options.expert_slots > 0 && parts->experts > 0;
    setting s = {engine->context, (int32_t)clb_sessions(engine), wide_chunk(engine), forced};
    if (budget == 0)
        return s;
    int32_t least = narrow_chunk(engine, LEAST_RESIDENT_CHUNK);
    for (s.chunk = wide_chunk(engine); !forced && s.chunk >= least; s.chunk /= 2)
        if (held_bytes(engine, parts, &s) <= budget)
            return s;
    s.chunk = least;
    if (parts->experts == 0 || engine->options.precision == COLIBRI_PRECISION_F32)
        return s;
    s.streaming = 1;
    s.chunk = wide_chunk(engine);
    if (engine->options.prefill_chunk > 0)
        return s;
    int64_t room = budget - held_bytes(engine, parts, &s) + prefill_bytes(engine, &s);
    for (s.chunk = MAX_STREAMING_CHUNK; s.chunk > DEFAULT_CHUNK; s.chunk -= DEFAULT_CHUNK)
        if (prefill_bytes(engine, &s) <= room / CHUNK_SHARE)
            return s;
    while (s.chunk > LEAST_CHUNK && held_bytes(engine, parts, &s) + parts->least_cache > budget)
        s.chunk /= 2;
    return s;
}

static void fill(const colibri_engine *engine, const fixed_parts *parts, const setting *s, colibri_plan *plan)
{
    const clb_store *store = &engine->store;
    int64_t budget = engine->options.memory_budget;
    plan->streaming = s->streaming;
    plan->context = s->context;
    plan->sessions = s->sessions;
    plan->threads = clb_budget_threads(engine);
    plan->prefill_chunk = s->chunk;
    plan->budget = budget;
    plan->caller_bytes = parts->caller;
    plan->dense_bytes = parts->dense;
    plan->expert_bytes = parts->experts;
    plan->cache_bytes = s->streaming ? clb_store_cache_bytes(store) : 0;
    plan->staging_bytes = s->streaming ? parts->staging : 0;
    plan->table_bytes = parts->tables;
    plan->session_bytes = session_bytes(engine, s->context);
    plan->sessions_bytes = s->sessions * plan->session_bytes;
    plan->prefill_bytes = prefill_bytes(engine, s);
    plan->work_bytes = work_bytes(engine, s->context, s->sessions);
    int64_t beside = plan->sessions_bytes + plan->prefill_bytes + plan->work_bytes;
    if (beside < parts->loading)
        plan->work_bytes += parts->loading - beside;
    plan->total_bytes = held_bytes(engine, parts, s) + plan->cache_bytes;
    plan->kv_bytes_per_token = engine->kv.bytes_per_token;
    plan->largest_expert = clb_store_largest_slot(store);
    plan->least_budget = least_bytes(engine, parts, s->context, s->sessions);
    setting resident = {s->context, s->sessions, narrow_chunk(engine, LEAST_RESIDENT_CHUNK), 0};
    plan->resident_budget = held_bytes(engine, parts, &resident);
    plan->largest_context =
        budget > 0 ? largest_context(engine, parts, s->sessions) : engine->geometry.max_position;
    plan->most_sessions = budget > 0 ? most_sessions(engine, parts) : s->sessions;
    plan->n_classes = store->n_classes;
    for (int32_t c = 0; c < store->n_classes && c < PLAN_CLASSES; c++) {
        clb_store_class_info(store, c, &plan->classes[c].slot_bytes, &plan->classes[c].experts,
                             &plan->classes[c].slots);
        if (!s->streaming)
            plan->classes[c].slots = plan->classes[c].experts;
    }
    plan->fits = budget == 0 || plan->total_bytes <= budget;
}

int32_t clb_budget_plan(colibri_engine *engine, const clb_loader *loader, colibri_plan *plan,
                        const clb_error *error)
{
    clb_store *store = &engine->store;
    int32_t status = clb_store_classify(store, error);
    if (status != COLIBRI_OK)
        return status;
    const fixed_parts parts = {
        .caller = engine->options.caller_bytes,
        .dense = (int64_t)clb_os_size((size_t)loader->bytes[0]),
        .experts = loader->bytes[1] > 0 ? (int64_t)clb_os_size((size_t)loader->bytes[1]) : 0,
        .loading = clb_load_peak(loader, clb_budget_threads(engine)),
        .tables = clb_table_bytes(&engine->table) + clb_store_table_bytes(store),
        .staging = loader->bytes[1] > 0 ? clb_store_staging_bytes(store) : 0,
        .least_cache = clb_store_least_cache(store),
    };
    setting s = choose(engine, &parts);
    if (s.streaming)
        clb_store_size(store, engine->options.memory_budget - held_bytes(engine, &parts, &s),
                       engine->options.expert_slots);
    fill(engine, &parts, &s, plan);
    return COLIBRI_OK;
}

/* ---- refusing ------------------------------------------------------------------------------ */

/* Bytes as people read them, rounded up so that a named setting suffices. */
static const char *size_text(int64_t bytes, char *out, size_t n)
{
    if (bytes >= INT64_C(10000000000))
        snprintf(out, n, "%.1f GB", (double)((bytes + 99999999) / 100000000) / 10);
    else
        snprintf(out, n, "%.3f GB", (double)((bytes + 999999) / 1000000) / 1000);
    return out;
}

int32_t clb_budget_refuse(const colibri_engine *engine, const colibri_plan *plan, const clb_error *error)
{
    char budget[32], dense[32], sessions[32], buffers[32], caller[64] = "", experts[96] = "", least[32],
                                                           other[96] = "", size[32];
    int can_stream = plan->expert_bytes > 0 && engine->options.precision != COLIBRI_PRECISION_F32;
    if (plan->caller_bytes > 0)
        snprintf(caller, sizeof caller, "the program itself %s, ",
                 size_text(plan->caller_bytes, size, sizeof size));
    if (can_stream)
        snprintf(experts, sizeof experts, ", the smallest expert cache %s",
                 size_text(clb_store_least_cache(&engine->store) + plan->staging_bytes, size, sizeof size));
    else if (plan->expert_bytes > 0)
        snprintf(experts, sizeof experts, ", experts, which precision f32 keeps in memory, %s",
                 size_text(plan->expert_bytes, size, sizeof size));
    if (plan->largest_context > 0)
        snprintf(other, sizeof other, ", or lower the context to %" PRId32 " tokens", plan->largest_context);
    if (plan->most_sessions > 0)
        snprintf(other + strlen(other), sizeof other - strlen(other), ", or use %" PRId32 " session%s",
                 plan->most_sessions, plan->most_sessions > 1 ? "s" : "");
    return clb_fail(
        error, COLIBRI_ERROR_MEMORY,
        "the budget of %s is too small: %sweights that must stay in memory %s, %" PRId32
        " session%s of %" PRId32 " tokens %s, buffers and lists %s%s; raise the budget to %s%s",
        size_text(plan->budget, budget, sizeof budget), caller,
        size_text(plan->dense_bytes, dense, sizeof dense), plan->sessions, plan->sessions > 1 ? "s" : "",
        plan->context, size_text(plan->sessions_bytes, sessions, sizeof sessions),
        size_text(plan->prefill_bytes + plan->work_bytes + plan->table_bytes, buffers, sizeof buffers),
        experts, size_text(plan->least_budget, least, sizeof least), other);
}
