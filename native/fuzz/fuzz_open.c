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

#include "../tests/tiny_model.h"

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

/* ---- edits ---- */

/* Gives a tensor another format, with byte counts that agree: reaches the loaders of every format. */
static void reformat(tiny_model *m, colibri_tensor *t, stream *in)
{
    static const int32_t groups[] = {16, 32, 48, 64, 96, 128, 192, 256};
    int32_t format = 1 + (int32_t)(take(in, 1) % 10);
    int32_t group = format == COLIBRI_FORMAT_I4_GROUP ? groups[take(in, 1) % 8] : 0;
    tiny_model_reformat(m, t, format, group, (int32_t)(take(in, 1) % 2));
}

static void edit_tensor(tiny_model *m, stream *in)
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
static void edit_geometry(tiny_model *m, stream *in)
{
    size_t words = offsetof(colibri_geometry, layer_sparse) / 4;
    size_t word = 1 + take(in, 1) % (words - 1);
    int32_t value = (int32_t)take_number(in);
    memcpy((char *)&m->geometry + 4 * word, &value, sizeof value);
    if (take(in, 1) % 8 == 0) {
        m->sparse[take(in, 1) % TINY_MAX_LAYERS] = (uint8_t)take(in, 1);
        m->indexer[take(in, 1) % TINY_MAX_LAYERS] = (uint8_t)take(in, 1);
    }
    if (m->geometry.n_layers > TINY_MAX_LAYERS) {
        m->geometry.layer_sparse = NULL;
        m->geometry.layer_indexer = NULL;
    }
}

static void edit_options(colibri_engine_options *options, stream *in)
{
    int32_t value = (int32_t)take_number(in);
    int32_t *fields[] = {&options->precision,    &options->kv_type,       &options->isa,
                         &options->context,      &options->prefill_chunk, &options->sessions,
                         &options->expert_slots, &options->io_mode,       &options->io_buffered,
                         &options->no_prefetch,  &options->drafts};
    *fields[take(in, 1) % (sizeof fields / sizeof fields[0])] = value;
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
        uint8_t *bytes = malloc(TINY_FILE_BYTES);
        if (file < 0 || bytes == NULL) {
            abort();
        }
        memset(bytes, 0x3c, TINY_FILE_BYTES); /* a small finite number in every format */
        if (write(file, bytes, TINY_FILE_BYTES) != TINY_FILE_BYTES) {
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
    tiny_model *m = malloc(sizeof *m);
    if (m == NULL) {
        return 0;
    }
    tiny_model_describe(m, take(&in, 1) % 2 ? COLIBRI_FAMILY_GLM_MOE_DSA : COLIBRI_FAMILY_LLAMA);
    colibri_engine_options options = {
        .struct_size = sizeof options, .threads = 1, .context = 256, .memory_budget = BUDGET};
    options.precision = (int32_t)(take(&in, 1) % 2);
    options.isa = take(&in, 1) % 4 ? COLIBRI_ISA_AUTO : COLIBRI_ISA_BASELINE;
    /* Often with experts that come from disk through the smallest cache. */
    options.expert_slots = take(&in, 1) % 2 ? 2 : 0;
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
    colibri_plan plan = {.struct_size = sizeof plan};
    colibri_engine *engine = NULL;
    int32_t planned = colibri_engine_plan(&options, &m->geometry, m->tensors, m->n, &plan, err, sizeof err);
    int32_t status =
        colibri_engine_open(&options, &m->geometry, &path, 1, m->tensors, m->n, &engine, err, sizeof err);
    if (status == COLIBRI_OK) {
        use(engine, m->geometry.vocab, &in);
        colibri_engine_close(engine);
    } else if (engine != NULL || err[0] == 0) {
        abort(); /* a refusal has a sentence and leaves nothing behind */
    }
    if (status == COLIBRI_OK && (planned != COLIBRI_OK || !plan.fits)) {
        abort(); /* planning and opening agree */
    }
    free(m);
    return 0;
}
