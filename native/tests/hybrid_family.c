/* hybrid_family.c - see hybrid_family.h. */
#include "hybrid_family.h"

#include <stdlib.h>
#include <string.h>

#include "../src/engine.h"
#include "../src/gqa.h"
#include "../src/kernels/attn.h"

#define HIDDEN 32 /* of tiny_model.c */
#define HEADS 2
#define DIM 4
#define KINDS 3

static clb_family family;
static int32_t parts[16];
static float weights[4][HIDDEN * HIDDEN]; /* q, k, v, o or taps; small numbers around 0 */

static void make_weights(void)
{
    uint64_t state = 99;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < HIDDEN * HIDDEN; j++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            weights[i][j] = 0.4f * ((float)(state >> 40) * 0x1p-24f - 0.5f);
        }
}

/* Each layer's kind beside the latents. */
static clb_kv_kind kind_of(int32_t layer)
{
    static const clb_kv_kind kinds[KINDS] = {CLB_KV_GQA, CLB_KV_WINDOW, CLB_KV_ROLLING};
    return kinds[layer % KINDS];
}

static int32_t bind(colibri_engine *engine, clb_loader *loader)
{
    int32_t status = clb_family_glm_moe_dsa.bind(engine, loader);
    int64_t value = clb_kv_value_bytes(engine), head = clb_gqa_width(DIM) * 2 * value;
    clb_gqa_announce(engine, HEADS, 1, DIM);
    for (int32_t l = 0; l < engine->geometry.n_layers && status == COLIBRI_OK; l++) {
        clb_kv_kind kind = kind_of(l);
        int32_t window = kind == CLB_KV_WINDOW ? HYBRID_WINDOW : kind == CLB_KV_ROLLING ? HYBRID_TAPS : 0;
        int64_t bytes = kind == CLB_KV_ROLLING ? HIDDEN * value : head;
        parts[l] = clb_kv_add(engine, kind, l, window, bytes * CLB_SPAN, bytes);
        if (parts[l] < 0)
            status = COLIBRI_ERROR_MEMORY;
    }
    return status;
}

static void multiply(const float *w, const float *x, int32_t rows, float *y)
{
    for (int32_t r = 0; r < rows; r++) {
        float sum = 0;
        for (int32_t c = 0; c < HIDDEN; c++)
            sum += w[r * HIDDEN + c] * x[c];
        y[r] = sum;
    }
}

static int32_t attend(colibri_engine *engine, const clb_batch *batch, int32_t layer, const clb_error *error)
{
    size_t n = (size_t)batch->n;
    float *q = calloc(n, HEADS * DIM * sizeof *q), *k = calloc(n, DIM * sizeof *k);
    float *v = calloc(n, DIM * sizeof *v), *out = calloc(n, HEADS * DIM * sizeof *out);
    for (size_t row = 0; row < n; row++) {
        const float *x = batch->x + row * HIDDEN;
        multiply(weights[0], x, HEADS * DIM, q + row * HEADS * DIM);
        multiply(weights[1], x, DIM, k + row * DIM);
        multiply(weights[2], x, DIM, v + row * DIM);
    }
    const clb_gqa_layer gqa = {HEADS, 1, DIM, parts[layer], layer};
    int32_t status = clb_gqa_run(engine, batch, &gqa, q, k, v, out, error);
    for (size_t row = 0; row < n && status == COLIBRI_OK; row++)
        for (size_t c = 0; c < HIDDEN; c++)
            batch->x[row * HIDDEN + c] += out[row * HEADS * DIM + c % (HEADS * DIM)];
    free(q), free(k), free(v), free(out);
    return status;
}

static float stored(const colibri_engine *engine, const uint8_t *row, int32_t c)
{
    float value;
    uint16_t half;
    if (engine->kv_f32) {
        memcpy(&value, row + 4 * c, 4);
        return value;
    }
    memcpy(&half, row + 2 * c, 2);
    return clb_bf16_to_f32(half);
}

static void convolve(colibri_engine *engine, const clb_batch *batch, int32_t layer)
{
    const clb_kv_part *part = &engine->kv.parts[parts[layer]];
    int64_t width = HIDDEN * clb_kv_value_bytes(engine);
    for (int32_t r = 0; r < batch->n_runs; r++) {
        const clb_run *run = &batch->runs[r];
        for (int32_t t = 0; t < run->n; t++) {
            int32_t p = run->first + t;
            engine->kernels->rows_store_bf16(
                (uint16_t *)(void *)(clb_kv_at(run->session, part, p) + p % CLB_SPAN * width),
                batch->x + (int64_t)(run->row0 + t) * HIDDEN, HIDDEN);
        }
        for (int32_t t = 0; t < run->n; t++)
            for (int32_t c = 0; c < HIDDEN; c++) {
                float sum = 0;
                for (int32_t tap = 0; tap < HYBRID_TAPS && tap <= run->first + t; tap++) {
                    int32_t p = run->first + t - tap;
                    sum += weights[3][tap * HIDDEN + c] *
                           stored(engine, clb_kv_at(run->session, part, p) + p % CLB_SPAN * width, c);
                }
                batch->x[(int64_t)(run->row0 + t) * HIDDEN + c] += sum;
            }
    }
}

static int32_t attention(colibri_engine *engine, const clb_batch *batch, int32_t layer,
                         const clb_error *error)
{
    int32_t status = clb_family_glm_moe_dsa.attention(engine, batch, layer, error);
    if (status != COLIBRI_OK)
        return status;
    if (kind_of(layer) == CLB_KV_ROLLING)
        convolve(engine, batch, layer);
    else
        status = attend(engine, batch, layer, error);
    return status;
}

static int64_t row_floats(const colibri_geometry *g)
{
    return clb_family_glm_moe_dsa.row_floats(g) + 4 * (int64_t)g->hidden;
}

void hybrid_family_use(void)
{
    make_weights();
    family = clb_family_glm_moe_dsa;
    family.id = HYBRID_FAMILY;
    family.name = "hybrid";
    family.bind = bind;
    family.attention = attention;
    family.row_floats = row_floats;
    clb_family_of_tests = &family;
}
