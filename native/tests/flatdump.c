/* flatdump.c - reader of the oracle's flat dumps; see flatdump.h. */
#include "flatdump.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_FIELDS 31 /* scalars of colibri_geometry after struct_size */

typedef struct {
    char magic[8];
    uint32_t n_tensors, n_prompts, n_layers, n_fields;
    uint64_t geometry, sparse, indexer, tensors, prompts, file_bytes;
} header_record;

typedef struct {
    uint64_t name;
    int32_t format, layout, group, unused;
    int64_t rows, cols;
    uint64_t data, bytes, scales, scale_bytes;
} tensor_record;

typedef struct {
    uint32_t n_prompt, n_greedy;
    uint64_t tokens, logits;
} prompt_record;

static int fail(flatdump *dump, char *err, size_t err_len, const char *what)
{
    if (err != NULL && err_len > 0)
        snprintf(err, err_len, "%s: %s; write it again with python -m tests.oracle.flatdump", dump->path,
                 what);
    flatdump_close(dump);
    return -1;
}

static int read_file(flatdump *dump)
{
    FILE *file = fopen(dump->path, "rb");
    if (file == NULL)
        return -1;
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    int ok = size >= 0 && fseek(file, 0, SEEK_SET) == 0;
    if (ok) {
        dump->n_bytes = (size_t)size;
        dump->bytes = malloc(dump->n_bytes + 1);
        ok = dump->bytes != NULL && fread(dump->bytes, 1, dump->n_bytes, file) == dump->n_bytes;
    }
    fclose(file);
    if (ok)
        dump->bytes[dump->n_bytes] = 0; /* ends the last string */
    return ok ? 0 : -1;
}

/* Start of `count` items of `size` bytes at offset `at`, or NULL if they leave the file. */
static const void *span(const flatdump *dump, uint64_t at, uint64_t count, uint64_t size)
{
    if (at > dump->n_bytes || count > (dump->n_bytes - at) / size)
        return NULL;
    return dump->bytes + at;
}

static int read_geometry(flatdump *dump, const header_record *header)
{
    const double *f = span(dump, header->geometry, N_FIELDS, sizeof *f);
    const uint8_t *sparse = span(dump, header->sparse, header->n_layers, 1);
    const uint8_t *indexer = span(dump, header->indexer, header->n_layers, 1);
    if (header->n_fields != N_FIELDS || header->geometry % 8 != 0 || !f || !sparse || !indexer)
        return -1;
    colibri_geometry *g = &dump->geometry;
    int32_t *const integers[N_FIELDS] = {
        &g->family,
        &g->n_layers,
        &g->hidden,
        &g->vocab,
        &g->vocab_used,
        &g->ffn,
        &g->n_heads,
        &g->n_kv_heads,
        &g->head_dim,
        &g->max_position,
        &g->tied_embeddings,
        NULL,
        NULL,
        NULL,
        &g->q_lora,
        &g->kv_lora,
        &g->qk_nope,
        &g->qk_rope,
        &g->v_head,
        &g->index_heads,
        &g->index_dim,
        &g->index_topk,
        &g->n_experts,
        &g->experts_per_token,
        &g->n_shared_experts,
        &g->expert_ffn,
        &g->n_group,
        &g->topk_group,
        &g->norm_topk,
        NULL,
        &g->n_mtp_layers,
    };
    g->struct_size = sizeof *g;
    for (int i = 0; i < N_FIELDS; i++)
        if (integers[i] != NULL)
            *integers[i] = (int32_t)f[i];
    g->norm_eps = (float)f[11];
    g->latent_eps = (float)f[12];
    g->rope_theta = f[13];
    g->routed_scale = (float)f[29];
    g->layer_sparse = header->sparse != 0 ? sparse : NULL;
    g->layer_indexer = header->indexer != 0 ? indexer : NULL;
    return g->n_layers == (int32_t)header->n_layers && g->vocab > 0 ? 0 : -1;
}

static int read_tensors(flatdump *dump, const header_record *header)
{
    const uint8_t *records = span(dump, header->tensors, header->n_tensors, sizeof(tensor_record));
    dump->tensors = calloc((size_t)header->n_tensors + 1, sizeof *dump->tensors);
    if (records == NULL || dump->tensors == NULL)
        return -1;
    dump->n_tensors = header->n_tensors;
    for (uint32_t i = 0; i < header->n_tensors; i++) {
        tensor_record r;
        memcpy(&r, records + i * sizeof r, sizeof r);
        if (span(dump, r.name, 1, 1) == NULL || !span(dump, r.data, r.bytes, 1) ||
            !span(dump, r.scales, r.scale_bytes, 1))
            return -1;
        dump->tensors[i] = (colibri_tensor){
            .name = (const char *)dump->bytes + r.name,
            .format = r.format,
            .layout = r.layout,
            .group = r.group,
            .rows = r.rows,
            .cols = r.cols,
            .offset = (int64_t)r.data,
            .bytes = (int64_t)r.bytes,
            .scale_file = r.scales != 0 ? 0 : -1,
            .scale_offset = (int64_t)r.scales,
            .scale_bytes = (int64_t)r.scale_bytes,
        };
    }
    return 0;
}

static int read_prompts(flatdump *dump, const header_record *header)
{
    const uint8_t *records = span(dump, header->prompts, header->n_prompts, sizeof(prompt_record));
    dump->prompts = calloc((size_t)header->n_prompts + 1, sizeof *dump->prompts);
    if (records == NULL || dump->prompts == NULL)
        return -1;
    dump->n_prompts = (int32_t)header->n_prompts;
    for (uint32_t i = 0; i < header->n_prompts; i++) {
        prompt_record r;
        memcpy(&r, records + i * sizeof r, sizeof r);
        uint64_t n = (uint64_t)r.n_prompt + r.n_greedy;
        flatdump_prompt *p = &dump->prompts[i];
        p->tokens = span(dump, r.tokens, n, sizeof *p->tokens);
        p->logits = span(dump, r.logits, n, sizeof *p->logits * (uint64_t)dump->geometry.vocab);
        if (p->tokens == NULL || p->logits == NULL || r.n_prompt == 0 || r.tokens % 8 != 0 ||
            r.logits % 8 != 0)
            return -1;
        p->n_prompt = (int32_t)r.n_prompt;
        p->n_greedy = (int32_t)r.n_greedy;
    }
    return 0;
}

int flatdump_open(const char *path, flatdump *out, char *err, size_t err_len)
{
    memset(out, 0, sizeof *out);
    size_t length = strlen(path) + 1;
    out->path = malloc(length);
    if (out->path == NULL)
        return -1;
    memcpy(out->path, path, length);
    if (read_file(out) != 0)
        return fail(out, err, err_len, "the dump cannot be read");
    header_record header;
    if (out->n_bytes < sizeof header)
        return fail(out, err, err_len, "the dump is shorter than its header");
    memcpy(&header, out->bytes, sizeof header);
    if (memcmp(header.magic, "CLBDUMP1", 8) != 0 || header.file_bytes != out->n_bytes)
        return fail(out, err, err_len, "this is not a whole dump of this version");
    if (read_geometry(out, &header) != 0)
        return fail(out, err, err_len, "the geometry is damaged");
    if (read_tensors(out, &header) != 0)
        return fail(out, err, err_len, "the tensor table is damaged");
    if (read_prompts(out, &header) != 0)
        return fail(out, err, err_len, "the prompts are damaged");
    return 0;
}

void flatdump_close(flatdump *dump)
{
    free(dump->tensors);
    free(dump->prompts);
    free(dump->bytes);
    free(dump->path);
    memset(dump, 0, sizeof *dump);
}
