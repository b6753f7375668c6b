/* tiny_model.c - see tiny_model.h. */
#define _GNU_SOURCE
#include "tiny_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void place(tiny_model *m, colibri_tensor *t)
{
    t->offset = m->end;
    m->end += (t->bytes + 63) & ~INT64_C(63);
    if (t->scale_bytes > 0) {
        t->scale_file = 0;
        t->scale_offset = m->end;
        m->end += (t->scale_bytes + 63) & ~INT64_C(63);
    }
}

static void add(tiny_model *m, int layer, const char *name, int64_t rows, int64_t cols)
{
    colibri_tensor *t = &m->tensors[m->n];
    char *full = m->names[m->n++];
    if (layer < 0) {
        snprintf(full, TINY_NAME_BYTES, "%s", name);
    } else {
        snprintf(full, TINY_NAME_BYTES, "model.layers.%d.%s", layer, name);
    }
    memset(t, 0, sizeof *t);
    t->name = full;
    t->format = COLIBRI_FORMAT_F32;
    t->rows = rows;
    t->cols = cols;
    t->bytes = rows * cols * 4;
    t->scale_file = -1;
    place(m, t);
}

static void add_mlp(tiny_model *m, int layer, const char *prefix, int64_t width)
{
    char name[TINY_NAME_BYTES];
    int64_t hidden = m->geometry.hidden;
    snprintf(name, sizeof name, "%.60sgate_proj.weight", prefix);
    add(m, layer, name, width, hidden);
    snprintf(name, sizeof name, "%.60sup_proj.weight", prefix);
    add(m, layer, name, width, hidden);
    snprintf(name, sizeof name, "%.60sdown_proj.weight", prefix);
    add(m, layer, name, hidden, width);
}

static void add_ends(tiny_model *m)
{
    add(m, -1, "model.embed_tokens.weight", m->geometry.vocab, m->geometry.hidden);
    add(m, -1, "model.norm.weight", 1, m->geometry.hidden);
    add(m, -1, "lm_head.weight", m->geometry.vocab, m->geometry.hidden);
}

static void describe_llama(tiny_model *m)
{
    colibri_geometry *g = &m->geometry;
    g->n_layers = 2;
    g->n_heads = 4;
    g->n_kv_heads = 2;
    g->head_dim = 8;
    add_ends(m);
    for (int layer = 0; layer < g->n_layers; layer++) {
        add(m, layer, "input_layernorm.weight", 1, 32);
        add(m, layer, "post_attention_layernorm.weight", 1, 32);
        add(m, layer, "self_attn.q_proj.weight", 32, 32);
        add(m, layer, "self_attn.k_proj.weight", 16, 32);
        add(m, layer, "self_attn.v_proj.weight", 16, 32);
        add(m, layer, "self_attn.o_proj.weight", 32, 32);
        add_mlp(m, layer, "mlp.", 48);
    }
}

static void describe_glm_layer(tiny_model *m, int layer)
{
    m->sparse[layer] = layer > 0;
    m->indexer[layer] = layer != 1;
    add(m, layer, "input_layernorm.weight", 1, 32);
    add(m, layer, "post_attention_layernorm.weight", 1, 32);
    add(m, layer, "self_attn.q_a_proj.weight", 16, 32);
    add(m, layer, "self_attn.q_a_layernorm.weight", 1, 16);
    add(m, layer, "self_attn.q_b_proj.weight", 24, 16);
    add(m, layer, "self_attn.kv_a_proj_with_mqa.weight", 20, 32);
    add(m, layer, "self_attn.kv_a_layernorm.weight", 1, 16);
    add(m, layer, "self_attn.kv_b_proj.weight", 32, 16);
    add(m, layer, "self_attn.o_proj.weight", 32, 16);
    if (m->indexer[layer]) {
        add(m, layer, "self_attn.indexer.wq_b.weight", 16, 16);
        add(m, layer, "self_attn.indexer.wk.weight", 8, 32);
        add(m, layer, "self_attn.indexer.k_norm.weight", 1, 8);
        add(m, layer, "self_attn.indexer.k_norm.bias", 1, 8);
        add(m, layer, "self_attn.indexer.weights_proj.weight", 2, 32);
    }
    if (!m->sparse[layer]) {
        add_mlp(m, layer, "mlp.", 48);
        return;
    }
    add(m, layer, "mlp.gate.weight", 4, 32);
    add(m, layer, "mlp.gate.e_score_correction_bias", 1, 4);
    add_mlp(m, layer, "mlp.shared_experts.", 16);
    for (int expert = 0; expert < 4; expert++) {
        char prefix[TINY_NAME_BYTES];
        snprintf(prefix, sizeof prefix, "mlp.experts.%d.", expert);
        add_mlp(m, layer, prefix, 16);
    }
}

static void describe_glm(tiny_model *m)
{
    colibri_geometry *g = &m->geometry;
    g->n_layers = 3;
    g->n_heads = 2;
    g->n_kv_heads = 2;
    g->head_dim = 12;
    g->latent_eps = 1e-6f;
    g->q_lora = 16;
    g->kv_lora = 16;
    g->qk_nope = 8;
    g->qk_rope = 4;
    g->v_head = 8;
    g->index_heads = 2;
    g->index_dim = 8;
    g->index_topk = 24;
    g->n_experts = 4;
    g->experts_per_token = 2;
    g->n_shared_experts = 1;
    g->expert_ffn = 16;
    g->n_group = 1;
    g->topk_group = 1;
    g->norm_topk = 1;
    g->routed_scale = 2.5f;
    g->layer_sparse = m->sparse;
    g->layer_indexer = m->indexer;
    add_ends(m);
    for (int layer = 0; layer < g->n_layers; layer++) {
        describe_glm_layer(m, layer);
    }
}

void tiny_model_describe(tiny_model *m, int32_t family)
{
    memset(m, 0, sizeof *m);
    m->geometry.struct_size = sizeof m->geometry;
    m->geometry.family = family;
    m->geometry.hidden = 32;
    m->geometry.vocab = 40;
    m->geometry.ffn = 48;
    m->geometry.max_position = 512;
    m->geometry.norm_eps = 1e-5f;
    m->geometry.rope_theta = 10000.0;
    if (family == COLIBRI_FAMILY_GLM_MOE_DSA) {
        describe_glm(m);
    } else {
        describe_llama(m);
    }
}

void tiny_model_reformat(tiny_model *m, colibri_tensor *t, int32_t format, int32_t group, int32_t layout)
{
    t->format = format;
    t->group = group;
    t->layout = layout;
    t->scale_file = -1;
    t->scale_bytes = 0;
    if (layout == COLIBRI_LAYOUT_PACKED) {
        t->bytes = colibri_weight_packed_bytes(format, group, t->rows, t->cols);
    } else {
        t->bytes = colibri_weight_plain_bytes(format, t->rows, t->cols);
        t->scale_bytes = colibri_weight_scale_bytes(format, group, t->rows, t->cols);
    }
    if (t->bytes >= 0 && t->bytes < TINY_FILE_BYTES && t->scale_bytes >= 0 &&
        t->scale_bytes < TINY_FILE_BYTES) {
        place(m, t);
    }
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 32);
}

/* Uniform in [-1, 1). */
static float next_float(uint64_t *state)
{
    return (float)(next_random(state) >> 8) * 0x1p-23f - 1.0f;
}

/* Numbers that keep activations near one: vectors around 1, matrices around 0. */
static void fill(const tiny_model *m, uint8_t *bytes, uint64_t *state)
{
    for (int64_t i = 0; i < m->n; i++) {
        const colibri_tensor *t = &m->tensors[i];
        if (t->format == COLIBRI_FORMAT_F32) {
            for (int64_t k = 0; k < t->bytes / 4; k++) {
                float value = t->rows == 1 ? 1.0f + 0.1f * next_float(state) : 0.3f * next_float(state);
                memcpy(bytes + t->offset + 4 * k, &value, 4);
            }
            continue;
        }
        for (int64_t k = 0; k < t->bytes; k++) {
            bytes[t->offset + k] = (uint8_t)next_random(state);
        }
        for (int64_t k = 0; k < t->scale_bytes / 4; k++) {
            float value = 0.3f / 127.0f * (1.5f + 0.5f * next_float(state));
            memcpy(bytes + t->scale_offset + 4 * k, &value, 4);
        }
    }
}

static int write_file(tiny_model *m, uint64_t seed)
{
    snprintf(m->path, sizeof m->path, "/tmp/colibri-test-XXXXXX");
    int file = mkstemp(m->path);
    uint8_t *bytes = calloc(1, TINY_FILE_BYTES);
    int ok = file >= 0 && bytes != NULL && m->end <= TINY_FILE_BYTES;
    if (ok) {
        fill(m, bytes, &seed);
        ok = write(file, bytes, TINY_FILE_BYTES) == TINY_FILE_BYTES;
    }
    if (file >= 0) {
        close(file);
    }
    free(bytes);
    return ok;
}

tiny_model *tiny_model_create(int32_t family, int32_t format, uint64_t seed)
{
    tiny_model *m = malloc(sizeof *m);
    if (m == NULL) {
        return NULL;
    }
    tiny_model_describe(m, family);
    for (int64_t i = 0; i < m->n; i++) {
        colibri_tensor *t = &m->tensors[i];
        int32_t group = format == COLIBRI_FORMAT_I4_GROUP ? 16 : 0;
        if (t->rows > 1 && format != COLIBRI_FORMAT_F32 && strstr(t->name, "mlp.gate.weight") == NULL) {
            tiny_model_reformat(m, t, format, group, COLIBRI_LAYOUT_PLAIN);
        }
    }
    if (!write_file(m, seed)) {
        fprintf(stderr, "tiny model: no weights file could be written in /tmp\n");
        tiny_model_destroy(m);
        return NULL;
    }
    return m;
}

void tiny_model_destroy(tiny_model *m)
{
    if (m != NULL) {
        unlink(m->path);
        free(m);
    }
}

colibri_engine *tiny_model_open(const tiny_model *m, const colibri_engine_options *options)
{
    colibri_engine_options own = *options;
    const char *path = m->path;
    colibri_engine *engine = NULL;
    char err[512];
    own.struct_size = sizeof own;
    if (colibri_engine_open(&own, &m->geometry, &path, 1, m->tensors, m->n, &engine, err, sizeof err) !=
        COLIBRI_OK) {
        fprintf(stderr, "tiny model: %s\n", err);
        return NULL;
    }
    return engine;
}
