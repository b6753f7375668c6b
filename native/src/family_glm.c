/* family_glm.c - GLM-5.x (glm_moe_dsa): absorbed latent attention (MLA), a DSA indexer whose selection
 * later layers share, sigmoid-routed experts with a shared expert, leading dense layers.
 *
 * Latent cache per token: c = norm(kv_a[:rank]) and the roped key kr, one for all heads. The key half
 * of kv_b is folded into the query (a_n = Wk_n^T q_n), the value half is applied after attention, for
 * prompt and generated tokens alike. Indexer: first qk_rope dims of its queries and keys are roped.
 * A container without indexer tensors runs dense attention. The MTP layer (drafts) is one more sparse layer
 * behind the trunk, with an indexer and experts of its own.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "fault.h"
#include "mla.h"
#include "route.h"

/* LayerNorm of the indexer keys; the models' own code has it as a constant. */
#define INDEX_NORM_EPS 1e-6f

typedef struct {
    float *attention_norm, *ffn_norm, *q_norm, *kv_norm;
    clb_weight q_a, q_b, kv_a, o;
    clb_weight *key_t; /* [n_heads] transposed key half of kv_b: [rank, nope] */
    clb_weight *value; /* [n_heads] value half: [v_head, rank] */
    int32_t latent_part;
    /* indexer; index_part < 0: this layer shares the selection below */
    clb_weight index_q, index_k, index_w;
    float *index_norm, *index_bias;
    int32_t index_part;
    /* dense MLP, or the shared expert of a sparse layer */
    clb_weight gate, up, down;
    int32_t sparse_layer; /* number in the store, -1 = dense */
    clb_weight router;
    float *router_bias;
} glm_layer;

typedef struct {
    glm_layer *layers; /* the trunk's, then the MTP layer if drafts are on */
    int32_t n_layers;
    float *embed_norm, *hidden_norm, *head_norm; /* MTP */
    clb_weight join;                             /* MTP: [hidden, 2*hidden], embedding first */
} glm_model;

typedef struct {
    colibri_engine *engine;
    const clb_batch *batch;
    const glm_layer *layer;
    float *qa, *latent, *q, *q_full, *index_k, *index_q, *index_w, *router;
    int32_t *ids;
    float *weights;
} glm_work;

static int32_t check(const colibri_geometry *g, const clb_error *error)
{
    const struct {
        const char *name;
        int64_t value, low, high;
    } fields[] = {
        {"q_lora", g->q_lora, 1, 65536},
        {"kv_lora", g->kv_lora, 2, 4096},
        {"qk_nope", g->qk_nope, 1, 4096},
        {"qk_rope", g->qk_rope, 2, 1024},
        {"v_head", g->v_head, 1, 4096},
        {"ffn", g->ffn, 1, 1 << 20},
        {"index_topk", g->index_topk, 0, 1 << 20},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value < fields[i].low || fields[i].value > fields[i].high)
            return clb_fail(error, COLIBRI_ERROR_FORMAT,
                            "geometry: %s = %" PRId64 " is outside %" PRId64 "..%" PRId64, fields[i].name,
                            fields[i].value, fields[i].low, fields[i].high);
    if (g->kv_lora % 2 != 0 || g->qk_rope % 2 != 0)
        return clb_fail(error, COLIBRI_ERROR_FORMAT, "geometry: kv_lora and qk_rope must be even");
    if ((int64_t)g->n_heads * (g->kv_lora + g->qk_rope) > 1 << 22)
        return clb_fail(error, COLIBRI_ERROR_FORMAT,
                        "geometry: %" PRId32 " heads of latent width %" PRId32 " are absurd", g->n_heads,
                        g->kv_lora);
    if (!(g->latent_eps > 0 && g->latent_eps < 1))
        return clb_fail(error, COLIBRI_ERROR_FORMAT, "geometry: latent_eps must lie between 0 and 1");
    if (g->index_topk > 0) {
        if (g->index_heads < 1 || g->index_heads > 1024 || g->index_dim < 2 || g->index_dim > 1024 ||
            g->index_dim % 2 != 0 || g->index_dim < g->qk_rope)
            return clb_fail(error, COLIBRI_ERROR_FORMAT,
                            "geometry: index_heads %" PRId32 " and index_dim %" PRId32 " are not usable",
                            g->index_heads, g->index_dim);
        if (!g->layer_indexer[0])
            return clb_fail(error, COLIBRI_ERROR_FORMAT,
                            "geometry: layer 0 has no selection to share; it needs an indexer of its own");
    }
    /* The MTP layer is sparse, whatever the trunk's are. */
    int sparse = g->n_mtp_layers > 0 && g->n_experts > 0;
    for (int32_t l = 0; l < g->n_layers; l++)
        sparse |= g->layer_sparse[l];
    if (!sparse)
        return COLIBRI_OK;
    if (g->n_experts < 1 || g->experts_per_token < 1 || g->experts_per_token > g->n_experts ||
        g->experts_per_token > 64)
        return clb_fail(error, COLIBRI_ERROR_FORMAT,
                        "geometry: %" PRId32 " of %" PRId32 " experts per token is not possible",
                        g->experts_per_token, g->n_experts);
    if (g->n_group < 1 || g->topk_group < 1 || g->topk_group > g->n_group || g->n_experts % g->n_group != 0 ||
        (g->n_group > 1 && g->n_experts / g->n_group < 2) ||
        (int64_t)g->topk_group * (g->n_experts / g->n_group) < g->experts_per_token)
        return clb_fail(error, COLIBRI_ERROR_FORMAT,
                        "geometry: n_group %" PRId32 " and topk_group %" PRId32 " do not fit %" PRId32
                        " experts",
                        g->n_group, g->topk_group, g->n_experts);
    if (g->expert_ffn < 1 || g->expert_ffn > 1 << 20 || g->n_shared_experts < 0 || g->n_shared_experts > 64)
        return clb_fail(error, COLIBRI_ERROR_FORMAT,
                        "geometry: expert_ffn %" PRId32 " or n_shared_experts %" PRId32 " is absurd",
                        g->expert_ffn, g->n_shared_experts);
    if (!(fabsf(g->routed_scale) <= 1e6f))
        return clb_fail(error, COLIBRI_ERROR_FORMAT,
                        "geometry: routed_scale is not a finite number of sensible size");
    return COLIBRI_OK;
}

static int32_t rope_dim(const colibri_geometry *g)
{
    return g->qk_rope;
}

/* The MTP layer is a sparse one with an indexer of its own. */
static int is_sparse(const colibri_geometry *g, int32_t l)
{
    return l >= g->n_layers || g->layer_sparse[l];
}

static int has_indexer(const colibri_geometry *g, int32_t l)
{
    return l >= g->n_layers || g->layer_indexer[l];
}

/* ---- binding ------------------------------------------------------------------------------- */

/* What layer `l` keeps: latents, and keys of its indexer if it has one (else *index = -1). */
static int32_t add_kv(colibri_engine *engine, int32_t l, int32_t *latent, int32_t *index,
                      const clb_error *error)
{
    const colibri_geometry *g = &engine->geometry;
    int64_t row = (g->kv_lora + g->qk_rope) * clb_kv_value_bytes(engine),
            key = g->index_dim * clb_kv_value_bytes(engine);
    int indexed = engine->sparse_attention && has_indexer(g, l);
    *latent = clb_kv_add(engine, CLB_KV_LATENT, l, 0, row * CLB_SPAN, row);
    *index = indexed ? clb_kv_add(engine, CLB_KV_INDEX, l, 0, key * CLB_SPAN, key) : -1;
    if (*latent < 0 || (indexed && *index < 0))
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the KV layout");
    return COLIBRI_OK;
}

static int32_t bind_attention(colibri_engine *engine, clb_loader *loader, glm_layer *layer, int32_t l)
{
    const colibri_geometry *g = &engine->geometry;
    int64_t heads = g->n_heads, per_head = g->qk_nope + g->v_head;
    clb_load_vector(loader, &layer->attention_norm, g->hidden, "model.layers.%d.input_layernorm.weight", l);
    clb_load_vector(loader, &layer->ffn_norm, g->hidden, "model.layers.%d.post_attention_layernorm.weight",
                    l);
    clb_load_vector(loader, &layer->q_norm, g->q_lora, "model.layers.%d.self_attn.q_a_layernorm.weight", l);
    clb_load_vector(loader, &layer->kv_norm, g->kv_lora, "model.layers.%d.self_attn.kv_a_layernorm.weight",
                    l);
    clb_load_matrix(loader, &layer->q_a, CLB_AS_STORED, g->q_lora, g->hidden,
                    "model.layers.%d.self_attn.q_a_proj.weight", l);
    clb_load_matrix(loader, &layer->q_b, CLB_AS_STORED, heads * (g->qk_nope + g->qk_rope), g->q_lora,
                    "model.layers.%d.self_attn.q_b_proj.weight", l);
    clb_load_matrix(loader, &layer->kv_a, CLB_AS_STORED, g->kv_lora + g->qk_rope, g->hidden,
                    "model.layers.%d.self_attn.kv_a_proj_with_mqa.weight", l);
    clb_load_matrix(loader, &layer->o, CLB_AS_STORED, g->hidden, heads * g->v_head,
                    "model.layers.%d.self_attn.o_proj.weight", l);
    layer->key_t = calloc((size_t)heads, sizeof *layer->key_t);
    layer->value = calloc((size_t)heads, sizeof *layer->value);
    if (!layer->key_t || !layer->value)
        return clb_fail(&loader->error, COLIBRI_ERROR_MEMORY, "no memory for %" PRId32 " heads", g->n_heads);
    char name[128];
    snprintf(name, sizeof name, "model.layers.%d.self_attn.kv_b_proj.weight", l);
    for (int64_t h = 0; h < heads; h++) {
        /* Groups of a quantized kv_b run along the latent, which absorption turns into the output; the
         * halves are therefore held in BF16, whose rounding is far below that of the stored weights. */
        clb_load_slice(loader, &layer->key_t[h], COLIBRI_FORMAT_BF16, name, heads * per_head, h * per_head,
                       g->qk_nope, g->kv_lora, 1);
        clb_load_slice(loader, &layer->value[h], COLIBRI_FORMAT_BF16, name, heads * per_head,
                       h * per_head + g->qk_nope, g->v_head, g->kv_lora, 0);
    }
    if (add_kv(engine, l, &layer->latent_part, &layer->index_part, &loader->error) != COLIBRI_OK)
        return COLIBRI_ERROR_MEMORY;
    if (layer->index_part < 0)
        return loader->status;
    clb_load_matrix(loader, &layer->index_q, CLB_AS_STORED, (int64_t)g->index_heads * g->index_dim, g->q_lora,
                    "model.layers.%d.self_attn.indexer.wq_b.weight", l);
    clb_load_matrix(loader, &layer->index_k, CLB_AS_STORED, g->index_dim, g->hidden,
                    "model.layers.%d.self_attn.indexer.wk.weight", l);
    clb_load_matrix(loader, &layer->index_w, CLB_AS_STORED, g->index_heads, g->hidden,
                    "model.layers.%d.self_attn.indexer.weights_proj.weight", l);
    clb_load_vector(loader, &layer->index_norm, g->index_dim,
                    "model.layers.%d.self_attn.indexer.k_norm.weight", l);
    clb_load_vector(loader, &layer->index_bias, g->index_dim, "model.layers.%d.self_attn.indexer.k_norm.bias",
                    l);
    return loader->status;
}

static int32_t bind_mlp(colibri_engine *engine, clb_loader *loader, glm_layer *layer, int32_t l)
{
    const colibri_geometry *g = &engine->geometry;
    const char *prefix = is_sparse(g, l) ? "mlp.shared_experts" : "mlp";
    int64_t width = is_sparse(g, l) ? (int64_t)g->expert_ffn * g->n_shared_experts : g->ffn;
    if (width > 0) {
        clb_load_matrix(loader, &layer->gate, CLB_AS_STORED, width, g->hidden,
                        "model.layers.%d.%s.gate_proj.weight", l, prefix);
        clb_load_matrix(loader, &layer->up, CLB_AS_STORED, width, g->hidden,
                        "model.layers.%d.%s.up_proj.weight", l, prefix);
        clb_load_matrix(loader, &layer->down, CLB_AS_STORED, g->hidden, width,
                        "model.layers.%d.%s.down_proj.weight", l, prefix);
    }
    if (!is_sparse(g, l))
        return loader->status;
    /* The router decides on near-ties, so it stays in f32 whatever the checkpoint holds. */
    clb_load_matrix(loader, &layer->router, COLIBRI_FORMAT_F32, g->n_experts, g->hidden,
                    "model.layers.%d.mlp.gate.weight", l);
    clb_load_vector(loader, &layer->router_bias, g->n_experts,
                    "model.layers.%d.mlp.gate.e_score_correction_bias", l);
    loader->region = 1;
    for (int32_t e = 0; e < g->n_experts && loader->status == COLIBRI_OK; e++) {
        clb_expert *expert = clb_store_slot(&engine->store, layer->sparse_layer, e);
        clb_load_matrix(loader, &expert->gate, CLB_AS_STORED, g->expert_ffn, g->hidden,
                        "model.layers.%d.mlp.experts.%d.gate_proj.weight", l, e);
        const clb_entry *gate = clb_load_last(loader);
        clb_load_matrix(loader, &expert->up, CLB_AS_STORED, g->expert_ffn, g->hidden,
                        "model.layers.%d.mlp.experts.%d.up_proj.weight", l, e);
        const clb_entry *up = clb_load_last(loader);
        clb_load_matrix(loader, &expert->down, CLB_AS_STORED, g->hidden, g->expert_ffn,
                        "model.layers.%d.mlp.experts.%d.down_proj.weight", l, e);
        clb_store_bind(&engine->store, layer->sparse_layer, e, gate, up, clb_load_last(loader));
    }
    loader->region = 0;
    return loader->status;
}

static int32_t bind_drafts(colibri_engine *engine, clb_loader *loader, glm_model *model)
{
    const colibri_geometry *g = &engine->geometry;
    int32_t l = g->n_layers;
    clb_load_vector(loader, &model->embed_norm, g->hidden, "model.layers.%d.enorm.weight", l);
    clb_load_vector(loader, &model->hidden_norm, g->hidden, "model.layers.%d.hnorm.weight", l);
    clb_load_vector(loader, &model->head_norm, g->hidden, "model.layers.%d.shared_head.norm.weight", l);
    return clb_load_matrix(loader, &model->join, CLB_AS_STORED, g->hidden, 2 * (int64_t)g->hidden,
                           "model.layers.%d.eh_proj.weight", l);
}

static int32_t bind(colibri_engine *engine, clb_loader *loader)
{
    const colibri_geometry *g = &engine->geometry;
    engine->sparse_attention =
        g->index_topk > 0 && clb_load_has(loader, "model.layers.0.self_attn.indexer.wq_b.weight");
    engine->has_mtp =
        g->n_mtp_layers > 0 && clb_load_has(loader, "model.layers.%d.eh_proj.weight", g->n_layers);
    engine->drafts = engine->has_mtp ? engine->options.drafts : 0;
    glm_model *model = calloc(1, sizeof *model);
    engine->model = model;
    int32_t n_layers = g->n_layers + (engine->drafts > 0), n_sparse = 0;
    if (model != NULL)
        model->layers = calloc((size_t)n_layers, sizeof *model->layers);
    if (model == NULL || model->layers == NULL)
        return clb_fail(&loader->error, COLIBRI_ERROR_MEMORY, "no memory for %" PRId32 " layers", n_layers);
    model->n_layers = n_layers;
    for (int32_t l = 0; l < n_layers; l++)
        model->layers[l].sparse_layer = is_sparse(g, l) ? n_sparse++ : -1;
    /* Before anything is allocated for experts that only the config knows of. */
    if ((int64_t)n_sparse * g->n_experts > loader->table->n / 3)
        return clb_fail(&loader->error, COLIBRI_ERROR_FORMAT,
                        "the config implies %" PRId32 " layers of %" PRId32
                        " experts with three tensors each, there are only %" PRId64
                        " tensors; the model is incomplete: verify or download it again",
                        n_sparse, g->n_experts, loader->table->n);
    int32_t status = clb_store_open(&engine->store, n_sparse, g->n_experts, &loader->error);
    for (int32_t l = 0; l < n_layers && status == COLIBRI_OK; l++) {
        status = bind_attention(engine, loader, &model->layers[l], l);
        if (status == COLIBRI_OK)
            status = bind_mlp(engine, loader, &model->layers[l], l);
    }
    if (status == COLIBRI_OK && engine->drafts > 0)
        status = bind_drafts(engine, loader, model);
    int32_t latent, index;
    if (status == COLIBRI_OK && engine->has_mtp && engine->drafts == 0)
        status = add_kv(engine, g->n_layers, &latent, &index, &loader->error);
    return status;
}

/* ---- forward ------------------------------------------------------------------------------- */

/* Norms of the latents, rope of the shared key, and their way into the KV blocks. Rows are independent:
 * latent and index rows of different positions never share a word. */
static void store_latents(void *context, int32_t begin, int32_t end, int worker)
{
    (void)worker;
    const glm_work *work = context;
    const clb_kernels *k = work->engine->kernels;
    const colibri_geometry *g = &work->engine->geometry;
    const clb_batch *batch = work->batch;
    int64_t value = clb_kv_value_bytes(work->engine);
    int32_t width = g->kv_lora + g->qk_rope, run = 0;
    for (int32_t row = begin; row < end; row++) {
        while (row >= batch->runs[run].row0 + batch->runs[run].n)
            run++;
        int32_t position = batch->runs[run].first + row - batch->runs[run].row0;
        if (work->engine->options.fault == CLB_FAULT_KV_POSITION && work->layer->latent_part == 0 &&
            row == batch->runs[run].row0 + 1 && position % CLB_SPAN < CLB_SPAN - 1)
            position++;
        int32_t at = position % CLB_SPAN;
        const float *rope = batch->rope + (int64_t)row * g->qk_rope;
        float *qa = work->qa + (int64_t)row * g->q_lora, *latent = work->latent + (int64_t)row * width;
        k->rms_norm(qa, qa, work->layer->q_norm, g->q_lora, g->latent_eps);
        k->rms_norm(latent, latent, work->layer->kv_norm, g->kv_lora, g->latent_eps);
        k->rope_pairs(latent + g->kv_lora, rope, g->qk_rope);
        const clb_kv_part *part = &work->engine->kv.parts[work->layer->latent_part];
        uint8_t *out = clb_kv_at(batch->runs[run].session, part, position) + at * width * value;
        k->rows_store_bf16((uint16_t *)(void *)out, latent, width);
        if (work->layer->index_part < 0)
            continue;
        float *key = work->index_k + (int64_t)row * g->index_dim;
        k->layer_norm(key, key, work->layer->index_norm, work->layer->index_bias, g->index_dim,
                      INDEX_NORM_EPS);
        k->rope_pairs(key, rope, g->qk_rope);
        part = &work->engine->kv.parts[work->layer->index_part];
        out = clb_kv_at(batch->runs[run].session, part, position) + at * g->index_dim * value;
        k->rows_store_bf16((uint16_t *)(void *)out, key, g->index_dim);
    }
}

static void rope_queries(void *context, int32_t begin, int32_t end, int worker)
{
    (void)worker;
    const glm_work *work = context;
    const clb_kernels *k = work->engine->kernels;
    const colibri_geometry *g = &work->engine->geometry;
    int32_t per_head = g->qk_nope + g->qk_rope, width = g->kv_lora + g->qk_rope;
    float head_scale = 1.0f / sqrtf((float)g->index_heads);
    for (int32_t row = begin; row < end; row++) {
        const float *rope = work->batch->rope + (int64_t)row * g->qk_rope;
        for (int32_t h = 0; h < g->n_heads; h++) {
            float *q = work->q + ((int64_t)row * g->n_heads + h) * per_head + g->qk_nope;
            float *full = work->q_full + ((int64_t)row * g->n_heads + h) * width + g->kv_lora;
            memcpy(full, q, (size_t)g->qk_rope * sizeof *q);
            k->rope_pairs(full, rope, g->qk_rope);
        }
        if (work->layer->index_part < 0)
            continue;
        for (int32_t h = 0; h < g->index_heads; h++) {
            k->rope_pairs(work->index_q + ((int64_t)row * g->index_heads + h) * g->index_dim, rope,
                          g->qk_rope);
            work->index_w[(int64_t)row * g->index_heads + h] *= head_scale;
        }
    }
}

static int32_t attention(colibri_engine *engine, const clb_batch *batch, int32_t l, const clb_error *error)
{
    const colibri_geometry *g = &engine->geometry;
    const glm_layer *layer = &((glm_model *)engine->model)->layers[l];
    clb_scratch *scratch = &engine->scratch;
    int32_t n = batch->n, heads = g->n_heads, hidden = g->hidden, per_head = g->qk_nope + g->qk_rope,
            width = g->kv_lora + g->qk_rope;
    int has_index = layer->index_part >= 0;
    size_t rows = (size_t)n, index_q = has_index ? (size_t)(g->index_heads * g->index_dim) : 0;
    glm_work work = {.engine = engine, .batch = batch, .layer = layer};
    float *h = clb_scratch_get(scratch, rows * (size_t)hidden * sizeof *h);
    work.qa = clb_scratch_get(scratch, rows * (size_t)g->q_lora * sizeof(float));
    work.latent = clb_scratch_get(scratch, rows * (size_t)width * sizeof(float));
    work.q = clb_scratch_get(scratch, rows * (size_t)heads * (size_t)per_head * sizeof(float));
    work.q_full = clb_scratch_get(scratch, rows * (size_t)heads * (size_t)width * sizeof(float));
    work.index_q = clb_scratch_get(scratch, rows * index_q * sizeof(float));
    work.index_k = clb_scratch_get(scratch, rows * (has_index ? (size_t)g->index_dim : 0) * sizeof(float));
    work.index_w = clb_scratch_get(scratch, rows * (has_index ? (size_t)g->index_heads : 0) * sizeof(float));
    float *context = clb_scratch_get(scratch, rows * (size_t)heads * (size_t)g->kv_lora * sizeof(float));
    float *value = clb_scratch_get(scratch, rows * (size_t)heads * (size_t)g->v_head * sizeof(float));
    clb_job *jobs = clb_scratch_get(scratch, (size_t)(heads + 4) * sizeof *jobs);
    if (!h || !work.qa || !work.latent || !work.q || !work.q_full || !work.index_q || !work.index_k ||
        !work.index_w || !context || !value || !jobs)
        return clb_fail(error, COLIBRI_ERROR_MEMORY,
                        "no memory for attention over %" PRId32 " tokens; use a smaller prefill chunk", n);

    clb_norm_rows(engine, h, batch->x, layer->attention_norm, n, hidden, g->norm_eps, l);
    /* Before anything is stored: a NaN in the KV would reach even rows that mask its position. */
    int32_t status = clb_check_finite(engine, batch, error), n_jobs = 0;
    if (status != COLIBRI_OK)
        return status;
    jobs[n_jobs++] = (clb_job){&layer->q_a, h, hidden, NULL, n, work.qa, g->q_lora, 0};
    jobs[n_jobs++] = (clb_job){&layer->kv_a, h, hidden, NULL, n, work.latent, width, 0};
    if (has_index) {
        jobs[n_jobs++] = (clb_job){&layer->index_k, h, hidden, NULL, n, work.index_k, g->index_dim, 0};
        jobs[n_jobs++] = (clb_job){&layer->index_w, h, hidden, NULL, n, work.index_w, g->index_heads, 0};
    }
    status = clb_run_jobs(engine, jobs, n_jobs, error);
    if (status != COLIBRI_OK)
        return status;
    clb_for_range(engine, n, 8, store_latents, &work);

    n_jobs = 0;
    jobs[n_jobs++] =
        (clb_job){&layer->q_b, work.qa, g->q_lora, NULL, n, work.q, (int64_t)heads * per_head, 0};
    if (has_index)
        jobs[n_jobs++] =
            (clb_job){&layer->index_q, work.qa, g->q_lora, NULL, n, work.index_q, (int64_t)index_q, 0};
    status = clb_run_jobs(engine, jobs, n_jobs, error);
    if (status != COLIBRI_OK)
        return status;
    clb_for_range(engine, n, 8, rope_queries, &work);

    if (has_index)
        status = clb_mla_select(engine, batch, &engine->kv.parts[layer->index_part], work.index_q,
                                work.index_w, error);
    if (status != COLIBRI_OK)
        return status;
    for (int32_t i = 0; i < heads; i++)
        jobs[i] = (clb_job){&layer->key_t[i],
                            work.q + (int64_t)i * per_head,
                            (int64_t)heads * per_head,
                            NULL,
                            n,
                            work.q_full + (int64_t)i * width,
                            (int64_t)heads * width,
                            0};
    status = clb_run_jobs(engine, jobs, heads, error);
    if (status == COLIBRI_OK)
        status =
            clb_mla_attend(engine, batch, &engine->kv.parts[layer->latent_part], work.q_full, context, error);
    if (status != COLIBRI_OK)
        return status;
    for (int32_t i = 0; i < heads; i++)
        jobs[i] = (clb_job){&layer->value[i],
                            context + (int64_t)i * g->kv_lora,
                            (int64_t)heads * g->kv_lora,
                            NULL,
                            n,
                            value + (int64_t)i * g->v_head,
                            (int64_t)heads * g->v_head,
                            0};
    status = clb_run_jobs(engine, jobs, heads, error);
    if (status != COLIBRI_OK)
        return status;
    const clb_job output = {&layer->o, value,         (int64_t)heads * g->v_head, NULL, n, batch->x,
                            hidden,    CLB_LINEAR_ADD};
    return clb_run_jobs(engine, &output, 1, error);
}

static void route_rows(void *context, int32_t begin, int32_t end, int worker)
{
    const glm_work *work = context;
    const colibri_geometry *g = &work->engine->geometry;
    const clb_route_params params = {g->n_experts,  g->experts_per_token, g->n_group,
                                     g->topk_group, g->norm_topk,         g->routed_scale};
    float *scratch = (float *)(void *)clb_worker_scratch(work->engine, worker);
    for (int32_t row = begin; row < end; row++)
        clb_route_sigmoid(&params, work->router + (int64_t)row * g->n_experts, work->layer->router_bias,
                          work->ids + (int64_t)row * g->experts_per_token,
                          work->weights + (int64_t)row * g->experts_per_token, scratch);
}

static int32_t route(colibri_engine *engine, const clb_batch *batch, int32_t l, float *h, int32_t *ids,
                     float *weights, const clb_error *error)
{
    const colibri_geometry *g = &engine->geometry;
    const glm_layer *layer = &((glm_model *)engine->model)->layers[l];
    glm_work work = {.engine = engine, .batch = batch, .layer = layer, .ids = ids, .weights = weights};
    work.router = clb_scratch_get(&engine->scratch, (size_t)batch->n * (size_t)g->n_experts * sizeof(float));
    if (work.router == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for routing %" PRId32 " tokens", batch->n);
    clb_norm_rows(engine, h, batch->x, layer->ffn_norm, batch->n, g->hidden, g->norm_eps, l);
    const clb_job job = {&layer->router, h, g->hidden, NULL, batch->n, work.router, g->n_experts, 0};
    int32_t status = clb_run_jobs(engine, &job, 1, error);
    if (status != COLIBRI_OK)
        return status;
    clb_for_range(engine, batch->n, 16, route_rows, &work);
    return COLIBRI_OK;
}

static int moe(const colibri_engine *engine, int32_t l, clb_moe_layer *out)
{
    const colibri_geometry *g = &engine->geometry;
    const glm_layer *layer = &((glm_model *)engine->model)->layers[l];
    int shared = g->n_shared_experts > 0;
    *out = (clb_moe_layer){layer->sparse_layer,
                           g->hidden,
                           g->expert_ffn,
                           g->experts_per_token,
                           shared ? &layer->gate : NULL,
                           shared ? &layer->up : NULL,
                           shared ? &layer->down : NULL,
                           g->expert_ffn * g->n_shared_experts};
    return layer->sparse_layer >= 0;
}

static int32_t mlp(colibri_engine *engine, const clb_batch *batch, int32_t l, const clb_error *error)
{
    const colibri_geometry *g = &engine->geometry;
    const glm_layer *layer = &((glm_model *)engine->model)->layers[l];
    float *h = clb_scratch_get(&engine->scratch, (size_t)batch->n * (size_t)g->hidden * sizeof *h);
    if (h == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the temporaries of layer %" PRId32, l);
    clb_norm_rows(engine, h, batch->x, layer->ffn_norm, batch->n, g->hidden, g->norm_eps, l);
    return clb_dense_mlp(engine, &layer->gate, &layer->up, &layer->down, h, batch->n, batch->x, error);
}

/* The next layer's router on this layer's input: its norm sees x before this layer's experts are added. */
static int32_t guess(colibri_engine *engine, const clb_batch *batch, int32_t l, int32_t *ids, float *weights,
                     const clb_error *error)
{
    const colibri_geometry *g = &engine->geometry;
    size_t rows = (size_t)batch->n;
    float *h = clb_scratch_get(&engine->scratch, rows * (size_t)g->hidden * sizeof *h);
    if (h == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for routing %" PRId32 " tokens", batch->n);
    return route(engine, batch, l, h, ids, weights, error);
}

static int32_t draft_input(colibri_engine *engine, const int32_t *tokens, const float *hidden, int32_t n,
                           float *x, const clb_error *error)
{
    const glm_model *model = engine->model;
    const colibri_geometry *g = &engine->geometry;
    int32_t width = g->hidden;
    float *joined = clb_scratch_get(&engine->scratch, (size_t)n * (size_t)width * 2 * sizeof *joined);
    if (joined == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the drafts of %" PRId32 " tokens", n);
    for (int32_t row = 0; row < n; row++) {
        float *left = joined + (int64_t)row * 2 * width;
        clb_embed(engine, tokens + row, left, 1);
        engine->kernels->rms_norm(left, left, model->embed_norm, width, g->norm_eps);
        engine->kernels->rms_norm(left + width, hidden + (int64_t)row * width, model->hidden_norm, width,
                                  g->norm_eps);
    }
    const clb_job job = {&model->join, joined, 2 * (int64_t)width, NULL, n, x, width, 0};
    return clb_run_jobs(engine, &job, 1, error);
}

static const float *draft_norm(const colibri_engine *engine)
{
    return ((const glm_model *)engine->model)->head_norm;
}

static int64_t row_floats(const colibri_geometry *g)
{
    int64_t heads = g->n_heads, width = g->kv_lora + g->qk_rope;
    int64_t attend = g->hidden + g->q_lora + width +
                     heads * (g->qk_nope + g->qk_rope + width + g->kv_lora + g->v_head + 2);
    if (g->index_topk > 0)
        attend += (int64_t)g->index_heads * (g->index_dim + 1) + g->index_dim;
    int64_t shared = (int64_t)g->expert_ffn * g->n_shared_experts, wide = g->ffn > shared ? g->ffn : shared;
    int64_t mlp_floats = 2 * (int64_t)g->hidden + 2 * wide + g->n_experts;
    return attend > mlp_floats ? attend : mlp_floats;
}

static void release(colibri_engine *engine)
{
    glm_model *model = engine->model;
    for (int32_t l = 0; model->layers != NULL && l < model->n_layers; l++) {
        free(model->layers[l].key_t);
        free(model->layers[l].value);
    }
    free(model->layers);
    free(model);
}

const clb_family clb_family_glm_moe_dsa = {COLIBRI_FAMILY_GLM_MOE_DSA,
                                           "glm_moe_dsa",
                                           check,
                                           rope_dim,
                                           bind,
                                           attention,
                                           mlp,
                                           moe,
                                           route,
                                           guess,
                                           draft_input,
                                           draft_norm,
                                           row_floats,
                                           release};
