/* family_llama.c - dense GQA transformers: Llama and its like (SmolLM2).
 *
 * x += o(attend(rope(q, k, v of norm(x)))); x += down(silu(gate h) * up h), h = norm(x).
 * Rope pairs are half-split (i, i + dim/2), as in Hugging Face checkpoints; GGUF rows are brought into
 * that order by the converter. */
#include <inttypes.h>
#include <stdlib.h>

#include "engine.h"
#include "gqa.h"

typedef struct {
    clb_weight q, k, v, o;
    clb_weight gate, up, down;
    float *attention_norm;
    float *ffn_norm;
    int32_t kv_part;
} llama_layer;

typedef struct {
    llama_layer *layers;
} llama_model;

static int32_t check(const colibri_geometry *g, const clb_error *error)
{
    if (g->n_kv_heads < 1 || g->n_kv_heads > g->n_heads || g->n_heads % g->n_kv_heads != 0)
        return clb_fail(error, COLIBRI_ERROR_FORMAT,
                        "geometry: %" PRId32 " heads cannot share %" PRId32 " KV heads", g->n_heads,
                        g->n_kv_heads);
    if (g->n_heads / g->n_kv_heads > 16)
        return clb_fail(error, COLIBRI_ERROR_UNSUPPORTED,
                        "geometry: groups of more than 16 heads are not supported");
    if (g->head_dim < 2 || g->head_dim > 256 || g->head_dim % 2 != 0)
        return clb_fail(error, COLIBRI_ERROR_UNSUPPORTED,
                        "geometry: head_dim %" PRId32 " is not an even number up to 256", g->head_dim);
    if (g->ffn < 1)
        return clb_fail(error, COLIBRI_ERROR_FORMAT, "geometry: ffn is missing");
    if (g->n_experts != 0 || g->kv_lora != 0 || g->index_topk != 0)
        return clb_fail(error, COLIBRI_ERROR_FORMAT,
                        "geometry: a dense model has no experts and no latent attention");
    return COLIBRI_OK;
}

static int32_t rope_dim(const colibri_geometry *g)
{
    return g->head_dim;
}

static int32_t bind(colibri_engine *engine, clb_loader *loader)
{
    const colibri_geometry *g = &engine->geometry;
    llama_model *model = calloc(1, sizeof *model);
    engine->model = model;
    if (model != NULL)
        model->layers = calloc((size_t)g->n_layers, sizeof *model->layers);
    if (model == NULL || model->layers == NULL)
        return clb_fail(&loader->error, COLIBRI_ERROR_MEMORY, "no memory for %" PRId32 " layers",
                        g->n_layers);
    int64_t q_rows = (int64_t)g->n_heads * g->head_dim, kv_rows = (int64_t)g->n_kv_heads * g->head_dim;
    for (int32_t l = 0; l < g->n_layers; l++) {
        llama_layer *layer = &model->layers[l];
        clb_load_vector(loader, &layer->attention_norm, g->hidden, "model.layers.%d.input_layernorm.weight",
                        l);
        clb_load_matrix(loader, &layer->q, CLB_AS_STORED, q_rows, g->hidden,
                        "model.layers.%d.self_attn.q_proj.weight", l);
        clb_load_matrix(loader, &layer->k, CLB_AS_STORED, kv_rows, g->hidden,
                        "model.layers.%d.self_attn.k_proj.weight", l);
        clb_load_matrix(loader, &layer->v, CLB_AS_STORED, kv_rows, g->hidden,
                        "model.layers.%d.self_attn.v_proj.weight", l);
        clb_load_matrix(loader, &layer->o, CLB_AS_STORED, g->hidden, q_rows,
                        "model.layers.%d.self_attn.o_proj.weight", l);
        clb_load_vector(loader, &layer->ffn_norm, g->hidden,
                        "model.layers.%d.post_attention_layernorm.weight", l);
        clb_load_matrix(loader, &layer->gate, CLB_AS_STORED, g->ffn, g->hidden,
                        "model.layers.%d.mlp.gate_proj.weight", l);
        clb_load_matrix(loader, &layer->up, CLB_AS_STORED, g->ffn, g->hidden,
                        "model.layers.%d.mlp.up_proj.weight", l);
        clb_load_matrix(loader, &layer->down, CLB_AS_STORED, g->hidden, g->ffn,
                        "model.layers.%d.mlp.down_proj.weight", l);
        int64_t value = clb_kv_value_bytes(engine),
                stored = (int64_t)g->n_kv_heads * clb_gqa_width(g->head_dim) * 2 * value;
        layer->kv_part = clb_kv_add(engine, CLB_KV_GQA, l, 0, stored * CLB_SPAN, kv_rows * 2 * value);
        if (layer->kv_part < 0)
            return clb_fail(&loader->error, COLIBRI_ERROR_MEMORY, "no memory for the KV layout");
        if (loader->status != COLIBRI_OK)
            return loader->status;
    }
    return loader->status;
}

static int32_t no_memory(const clb_error *error, int32_t l)
{
    return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the temporaries of layer %" PRId32, l);
}

static int32_t attention(colibri_engine *engine, const clb_batch *batch, int32_t l, const clb_error *error)
{
    const colibri_geometry *g = &engine->geometry;
    const llama_layer *layer = &((llama_model *)engine->model)->layers[l];
    int32_t n = batch->n, hidden = g->hidden, q_rows = g->n_heads * g->head_dim,
            kv_rows = g->n_kv_heads * g->head_dim;
    clb_scratch *scratch = &engine->scratch;
    float *h = clb_scratch_get(scratch, (size_t)n * (size_t)hidden * sizeof *h);
    float *q = clb_scratch_get(scratch, (size_t)n * (size_t)q_rows * sizeof *q);
    float *k = clb_scratch_get(scratch, (size_t)n * (size_t)kv_rows * sizeof *k);
    float *v = clb_scratch_get(scratch, (size_t)n * (size_t)kv_rows * sizeof *v);
    float *attended = clb_scratch_get(scratch, (size_t)n * (size_t)q_rows * sizeof *attended);
    if (!h || !q || !k || !v || !attended)
        return no_memory(error, l);
    clb_norm_rows(engine, h, batch->x, layer->attention_norm, n, hidden, g->norm_eps, l);
    /* Before anything is stored: a NaN in the KV would reach even rows that mask its position. */
    int32_t status = clb_check_finite(engine, batch, error);
    if (status != COLIBRI_OK)
        return status;
    const clb_job qkv[] = {{&layer->q, h, hidden, NULL, n, q, q_rows, 0},
                           {&layer->k, h, hidden, NULL, n, k, kv_rows, 0},
                           {&layer->v, h, hidden, NULL, n, v, kv_rows, 0}};
    status = clb_run_jobs(engine, qkv, 3, error);
    if (status != COLIBRI_OK)
        return status;
    const clb_gqa_layer gqa = {g->n_heads, g->n_kv_heads, g->head_dim, layer->kv_part, l};
    status = clb_gqa_run(engine, batch, &gqa, q, k, v, attended, error);
    if (status != COLIBRI_OK)
        return status;
    const clb_job output = {&layer->o, attended, q_rows, NULL, n, batch->x, hidden, CLB_LINEAR_ADD};
    return clb_run_jobs(engine, &output, 1, error);
}

static int32_t mlp(colibri_engine *engine, const clb_batch *batch, int32_t l, const clb_error *error)
{
    const colibri_geometry *g = &engine->geometry;
    const llama_layer *layer = &((llama_model *)engine->model)->layers[l];
    float *h = clb_scratch_get(&engine->scratch, (size_t)batch->n * (size_t)g->hidden * sizeof *h);
    if (h == NULL)
        return no_memory(error, l);
    clb_norm_rows(engine, h, batch->x, layer->ffn_norm, batch->n, g->hidden, g->norm_eps, l);
    return clb_dense_mlp(engine, &layer->gate, &layer->up, &layer->down, h, batch->n, batch->x, error);
}

static int moe(const colibri_engine *engine, int32_t l, clb_moe_layer *out)
{
    (void)engine;
    (void)l;
    (void)out;
    return 0;
}

static int64_t row_floats(const colibri_geometry *g)
{
    int64_t attend = g->hidden + ((int64_t)g->n_heads * 3 + (int64_t)g->n_kv_heads * 2) * (g->head_dim + 15);
    int64_t mlp_floats = g->hidden + 2 * (int64_t)g->ffn;
    return attend > mlp_floats ? attend : mlp_floats;
}

static void release(colibri_engine *engine)
{
    llama_model *model = engine->model;
    free(model->layers);
    free(model);
}

const clb_family clb_family_llama = {
    COLIBRI_FAMILY_LLAMA, "llama", check, rope_dim, bind, attention, mlp, moe, NULL, NULL, NULL, NULL,
    row_floats,           release};
