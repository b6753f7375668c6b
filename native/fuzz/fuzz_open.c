/* fuzz_open.c - libFuzzer target: a hostile tensor table and geometry must be refused, never crash.
 *
 * Starts from a small valid model of either family over a real temporary file and lets the input
 * edit it: fields of the geometry, entries of the table, their order, the options. Whatever still
 * opens is then used: prefill, decode, sample, truncate. `make test-long` runs it under the address
 * and undefined-behaviour sanitizers. Not a test of results. One thread.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "colibri.h"

#define MAX_TENSORS 160
#define NAME_BYTES 96
#define FILE_BYTES (1 << 20)
#define BUDGET (64 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- the input as a stream of choices; zeros once it has run dry ---- */

typedef struct {
    const uint8_t *data;
    size_t left;
} stream;

static uint32_t take(stream *in, int bytes)
{
    uint32_t value = 0;
    for (int i = 0; i < bytes && in->left > 0; i++, in->left--) {
        value = value << 8 | *in->data++;
    }
    return value;
}

/* A number that is often at an edge. */
static int64_t take_number(stream *in)
{
    static const int64_t edges[] = {0,
                                    1,
                                    -1,
                                    2,
                                    31,
                                    32,
                                    33,
                                    64,
                                    127,
                                    128,
                                    129,
                                    1 << 20,
                                    INT32_MAX,
                                    INT32_MIN,
                                    INT64_MAX,
                                    INT64_MIN,
                                    INT64_C(1) << 32,
                                    INT64_C(1) << 61};
    uint32_t kind = take(in, 1);
    if (kind < 64) {
        return edges[kind % (sizeof edges / sizeof edges[0])];
    }
    return kind < 192 ? (int8_t)take(in, 1)
                      : (int64_t)((uint64_t)take(in, 4) << 32 | take(in, 4)) >> (kind % 64);
}

/* ---- the valid model that is edited ---- */

typedef struct {
    colibri_geometry geometry;
    uint8_t sparse[64];
    uint8_t indexer[64];
    colibri_tensor tensors[MAX_TENSORS];
    char names[MAX_TENSORS][NAME_BYTES];
    int64_t n;
    int64_t end; /* first free byte of the file */
} model;

static void place(model *m, colibri_tensor *t)
{
    t->offset = m->end;
    m->end += (t->bytes + 63) & ~INT64_C(63);
    if (t->scale_bytes > 0) {
        t->scale_file = 0;
        t->scale_offset = m->end;
        m->end += (t->scale_bytes + 63) & ~INT64_C(63);
    }
}

static void add(model *m, int layer, const char *name, int64_t rows, int64_t cols)
{
    colibri_tensor *t = &m->tensors[m->n];
    char *full = m->names[m->n++];
    if (layer < 0) {
        snprintf(full, NAME_BYTES, "%s", name);
    } else {
        snprintf(full, NAME_BYTES, "model.layers.%d.%s", layer, name);
    }
    *t = (colibri_tensor){
        .name = full, .format = COLIBRI_FORMAT_F32, .rows = rows, .cols = cols, .scale_file = -1};
    t->bytes = rows * cols * 4;
    place(m, t);
}

static void add_mlp(model *m, int layer, const char *prefix, int64_t width)
{
    char name[NAME_BYTES];
    int64_t hidden = m->geometry.hidden;
    snprintf(name, sizeof name, "%sgate_proj.weight", prefix);
    add(m, layer, name, width, hidden);
    snprintf(name, sizeof name, "%sup_proj.weight", prefix);
    add(m, layer, name, width, hidden);
    snprintf(name, sizeof name, "%sdown_proj.weight", prefix);
    add(m, layer, name, hidden, width);
}

static void add_ends(model *m)
{
    add(m, -1, "model.embed_tokens.weight", m->geometry.vocab, m->geometry.hidden);
    add(m, -1, "model.norm.weight", 1, m->geometry.hidden);
    add(m, -1, "lm_head.weight", m->geometry.vocab, m->geometry.hidden);
}

static void llama(model *m)
{
    m->geometry = (colibri_geometry){.struct_size = sizeof m->geometry,
                                     .family = COLIBRI_FAMILY_LLAMA,
                                     .n_layers = 2,
                                     .hidden = 32,
                                     .vocab = 40,
                                     .ffn = 48,
                                     .n_heads = 4,
                                     .n_kv_heads = 2,
                                     .head_dim = 8,
                                     .max_position = 512,
                                     .norm_eps = 1e-5f,
                                     .rope_theta = 10000.0};
    add_ends(m);
    for (int layer = 0; layer < 2; layer++) {
        add(m, layer, "input_layernorm.weight", 1, 32);
        add(m, layer, "post_attention_layernorm.weight", 1, 32);
        add(m, layer, "self_attn.q_proj.weight", 32, 32);
        add(m, layer, "self_attn.k_proj.weight", 16, 32);
        add(m, layer, "self_attn.v_proj.weight", 16, 32);
        add(m, layer, "self_attn.o_proj.weight", 32, 32);
        add_mlp(m, layer, "mlp.", 48);
    }
}

static void glm(model *m)
{
    m->geometry = (colibri_geometry){.struct_size = sizeof m->geometry,
                                     .family = COLIBRI_FAMILY_GLM_MOE_DSA,
                                     .n_layers = 3,
                                     .hidden = 32,
                                     .vocab = 40,
                                     .ffn = 48,
                                     .n_heads = 2,
                                     .n_kv_heads = 2,
                                     .head_dim = 12,
                                     .max_position = 512,
                                     .norm_eps = 1e-5f,
                                     .latent_eps = 1e-6f,
                                     .rope_theta = 10000.0,
                                     .q_lora = 16,
                                     .kv_lora = 16,
                                     .qk_nope = 8,
                                     .qk_rope = 4,
                                     .v_head = 8,
                                     .index_heads = 2,
                                     .index_dim = 8,
                                     .index_topk = 4,
                                     .n_experts = 4,
                                     .experts_per_token = 2,
                                     .n_shared_experts = 1,
                                     .expert_ffn = 16,
                                     .n_group = 1,
                                     .topk_group = 1,
                                     .norm_topk = 1,
                                     .routed_scale = 2.5f};
    add_ends(m);
    for (int layer = 0; layer < 3; layer++) {
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
            continue;
        }
        add(m, layer, "mlp.gate.weight", 4, 32);
        add(m, layer, "mlp.gate.e_score_correction_bias", 1, 4);
        add_mlp(m, layer, "mlp.shared_experts.", 16);
        for (int expert = 0; expert < 4; expert++) {
            char prefix[NAME_BYTES];
            snprintf(prefix, sizeof prefix, "mlp.experts.%d.", expert);
            add_mlp(m, layer, prefix, 16);
        }
    }
    m->geometry.layer_sparse = m->sparse;
    m->geometry.layer_indexer = m->indexer;
}

/* ---- edits ---- */

/* Gives a tensor another format, with byte counts that agree: reaches the loaders of every format. */
static void reformat(model *m, colibri_tensor *t, stream *in)
{
    static const int32_t groups[] = {16, 32, 48, 64, 96, 128, 192, 256};
    t->format = 1 + (int32_t)(take(in, 1) % 10);
    t->group = t->format == COLIBRI_FORMAT_I4_GROUP ? groups[take(in, 1) % 8] : 0;
    t->layout = (int32_t)(take(in, 1) % 2);
    if (t->layout == COLIBRI_LAYOUT_PACKED) {
        t->bytes = colibri_weight_packed_bytes(t->format, t->group, t->rows, t->cols);
        t->scale_bytes = 0;
    } else {
        t->bytes = colibri_weight_plain_bytes(t->format, t->rows, t->cols);
        t->scale_bytes = colibri_weight_scale_bytes(t->format, t->group, t->rows, t->cols);
    }
    t->scale_file = -1;
    if (t->bytes >= 0 && t->bytes < FILE_BYTES && t->scale_bytes >= 0 && t->scale_bytes < FILE_BYTES) {
        place(m, t);
    }
}

static void edit_tensor(model *m, stream *in)
{
    int64_t index = take(in, 1) % (m->n ? m->n : 1);
    colibri_tensor *t = &m->tensors[index];
    switch (take(in, 1) % 14) {
    case 0:
        t->format = (int32_t)take_number(in);
        break;
    case 1:
        t->layout = (int32_t)take_number(in);
        break;
    case 2:
        t->group = (int32_t)take_number(in);
        break;
    case 3:
        t->file = (int32_t)take_number(in);
        break;
    case 4:
        t->rows = take_number(in);
        break;
    case 5:
        t->cols = take_number(in);
        break;
    case 6:
        t->offset = take_number(in);
        break;
    case 7:
        t->bytes = take_number(in);
        break;
    case 8:
        t->scale_file = (int32_t)take_number(in);
        t->scale_offset = take_number(in);
        t->scale_bytes = take_number(in);
        break;
    case 9:
        m->names[index][take(in, 1) % 40] = (char)take(in, 1);
        break;
    case 10:
        t->name = take(in, 1) % 4 ? m->tensors[take(in, 1) % m->n].name : NULL;
        break;
    case 11: /* drop it */
        *t = m->tensors[--m->n];
        break;
    default:
        reformat(m, t, in);
        break;
    }
}

/* Geometry fields are edited as 32-bit words, floats and the rope base included; the two arrays stay
 * as long as n_layers says, because that is the caller's side of the contract. */
static void edit_geometry(model *m, stream *in)
{
    size_t words = offsetof(colibri_geometry, layer_sparse) / 4;
    size_t word = 1 + take(in, 1) % (words - 1);
    int32_t value = (int32_t)take_number(in);
    memcpy((char *)&m->geometry + 4 * word, &value, sizeof value);
    if (take(in, 1) % 8 == 0) {
        m->sparse[take(in, 1) % 64] = (uint8_t)take(in, 1);
        m->indexer[take(in, 1) % 64] = (uint8_t)take(in, 1);
    }
    if (m->geometry.n_layers > 64) {
        m->geometry.layer_sparse = NULL;
        m->geometry.layer_indexer = NULL;
    }
}

static void edit_options(colibri_engine_options *options, stream *in)
{
    int32_t value = (int32_t)take_number(in);
    switch (take(in, 1) % 5) {
    case 0:
        options->precision = value;
        break;
    case 1:
        options->kv_type = value;
        break;
    case 2:
        options->isa = value;
        break;
    case 3:
        options->context = value;
        break;
    default:
        options->prefill_chunk = value;
        break;
    }
}

/* ---- use what opened ---- */

static void use(colibri_engine *engine, int32_t vocab, stream *in)
{
    char err[256];
    colibri_session *session;
    if (colibri_session_create(engine, &session, err, sizeof err) != COLIBRI_OK) {
        return;
    }
    int32_t tokens[8];
    int32_t n = 1 + (int32_t)(take(in, 1) % 8);
    for (int32_t i = 0; i < n; i++) {
        uint32_t choice = take(in, 1);
        tokens[i] = choice == 255 ? INT32_MAX : (int32_t)(choice % (uint32_t)(vocab > 0 ? vocab : 1));
    }
    if (colibri_prefill_start(session, tokens, n, NULL, err, sizeof err) == COLIBRI_OK) {
        colibri_prefill_progress progress = {0};
        while (!progress.finished &&
               colibri_prefill_step(session, 0, &progress, err, sizeof err) == COLIBRI_OK) {}
    }
    colibri_sampling sampling = {
        .struct_size = sizeof sampling, .temperature = (float)take_number(in), .top_p = 0.5f, .seed = 7};
    int32_t token = 0;
    if (colibri_session_sample(session, &sampling, &token, err, sizeof err) == COLIBRI_OK) {
        colibri_decode(&session, &token, 1, err, sizeof err);
    }
    colibri_session_truncate(session, (int32_t)take_number(in), err, sizeof err);
    colibri_session_close(session);
}

static const char *weights_file(void)
{
    static char path[] = "/dev/shm/colibri-fuzz-XXXXXX";
    static int made;
    if (!made) {
        int file = mkstemp(path);
        uint8_t *bytes = malloc(FILE_BYTES);
        if (file < 0 || bytes == NULL) {
            abort();
        }
        memset(bytes, 0x3c, FILE_BYTES); /* a small finite number in every format */
        if (write(file, bytes, FILE_BYTES) != FILE_BYTES) {
            abort();
        }
        free(bytes);
        close(file);
        made = 1;
    }
    return path;
}

static void remove_weights_file(void)
{
    unlink(weights_file());
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int registered;
    const char *path = weights_file();
    if (!registered) {
        atexit(remove_weights_file);
        registered = 1;
    }
    stream in = {data, size};
    model *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return 0;
    }
    if (take(&in, 1) % 2) {
        glm(m);
    } else {
        llama(m);
    }
    colibri_engine_options options = {
        .struct_size = sizeof options, .threads = 1, .context = 256, .memory_budget = BUDGET};
    options.precision = (int32_t)(take(&in, 1) % 2);
    for (uint32_t edits = take(&in, 1) % 16; edits > 0; edits--) {
        uint32_t kind = take(&in, 1) % 16;
        if (kind < 10) {
            edit_tensor(m, &in);
        } else if (kind < 15) {
            edit_geometry(m, &in);
        } else {
            edit_options(&options, &in);
        }
    }
    char err[256];
    int64_t weight_bytes;
    int64_t kv_bytes;
    colibri_engine *engine = NULL;
    colibri_engine_plan(&options, &m->geometry, m->tensors, m->n, &weight_bytes, &kv_bytes, err, sizeof err);
    int32_t status =
        colibri_engine_open(&options, &m->geometry, &path, 1, m->tensors, m->n, &engine, err, sizeof err);
    if (status == COLIBRI_OK) {
        use(engine, m->geometry.vocab, &in);
        colibri_engine_close(engine);
    } else if (engine != NULL || err[0] == 0) {
        abort(); /* a refusal has a sentence and leaves nothing behind */
    }
    free(m);
    return 0;
}
