/* load.c - see load.h. */
#include "load.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Plain bytes that one task reads at a time: large enough for a disk, small enough for a staging buffer. */
#define TASK_BYTES ((int64_t)8 << 20)
/* Task borders in rows: a multiple of the row block and of the fp8 scale block. */
#define TASK_ROWS 128
#define ALIGN 64

typedef enum { ITEM_MATRIX, ITEM_SLICE, ITEM_VECTOR } item_kind;

typedef struct clb_load_item {
    const clb_entry *entry;
    item_kind kind;
    int32_t region;
    int64_t offset; /* in its region */
    clb_weight *w;
    float **vector;
    int64_t row0;
    int64_t rows;
    int transpose;
} clb_load_item;

typedef struct {
    const clb_load_item *item;
    int64_t row0;
    int64_t row1;
} load_task;

typedef struct {
    clb_loader *loader;
    load_task *tasks;
    atomic_int failed;
    int32_t status;
    char text[512]; /* written by the one task that set `failed` first */
} load_job;

/* Stored bytes of the rows before `row` of the part of a tensor that an item takes: whole at its end. */
static int64_t bytes_before(const clb_load_item *item, int64_t row)
{
    const colibri_tensor *t = &item->entry->t;
    int64_t bytes = t->bytes + t->scale_bytes;
    if (item->kind == ITEM_VECTOR)
        return row > 0 ? bytes : 0;
    if (item->kind == ITEM_SLICE)
        return row > 0 ? (int64_t)((double)bytes * (double)item->rows / (double)t->rows) : 0;
    return row < item->rows ? (int64_t)((double)bytes * (double)row / (double)item->rows) : bytes;
}

void colibri_loading_look(const colibri_loading *loading, colibri_loading *out)
{
    const _Atomic int64_t *total = (const _Atomic int64_t *)&loading->total;
    const _Atomic int64_t *done = (const _Atomic int64_t *)&loading->done;
    /* Done before total: then the total that it counts towards is seen, too. */
    out->done = atomic_load_explicit(done, memory_order_acquire);
    out->total = atomic_load_explicit(total, memory_order_relaxed);
}

static int32_t fail(clb_loader *loader, int32_t status)
{
    loader->status = status;
    return status;
}

static clb_load_item *add_item(clb_loader *loader, const clb_entry *entry, item_kind kind, int64_t bytes)
{
    if (loader->n_items == loader->capacity) {
        int64_t capacity = loader->capacity ? loader->capacity * 2 : 256;
        clb_load_item *items = realloc(loader->items, (size_t)capacity * sizeof *items);
        if (items == NULL) {
            fail(loader, clb_fail(&loader->error, COLIBRI_ERROR_MEMORY, "no memory for the list of weights"));
            return NULL;
        }
        loader->items = items;
        loader->capacity = capacity;
    }
    clb_load_item *item = &loader->items[loader->n_items++];
    *item = (clb_load_item){
        .entry = entry, .kind = kind, .region = loader->region, .offset = loader->bytes[loader->region]};
    loader->bytes[loader->region] += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return item;
}

static const clb_entry *need(clb_loader *loader, const char *name, int64_t rows, int64_t cols)
{
    const clb_entry *entry = clb_table_find(loader->table, name);
    if (entry == NULL) {
        fail(loader,
             clb_fail(&loader->error, COLIBRI_ERROR_FORMAT,
                      "tensor %s is missing; the model is incomplete: verify or download it again", name));
        return NULL;
    }
    if (entry->t.rows != rows || entry->t.cols != cols) {
        fail(loader, clb_fail(&loader->error, COLIBRI_ERROR_FORMAT,
                              "tensor %s has shape [%" PRId64 ", %" PRId64 "], the config implies [%" PRId64
                              ", %" PRId64 "]",
                              name, entry->t.rows, entry->t.cols, rows, cols));
        return NULL;
    }
    return entry;
}

static int32_t describe(clb_loader *loader, const char *name, int32_t format, int32_t group, int64_t rows,
                        int64_t cols, clb_weight *w)
{
    if (clb_weight_describe(format, group, rows, cols, w) == 0)
        return COLIBRI_OK;
    return fail(loader, clb_fail(&loader->error, COLIBRI_ERROR_FORMAT,
                                 "tensor %s: [%" PRId64 ", %" PRId64 "] cannot be packed in format %" PRId32,
                                 name, rows, cols, format));
}

static int32_t target_format(const clb_loader *loader, int32_t as_format, int32_t stored)
{
    if (loader->precision == COLIBRI_PRECISION_F32)
        return COLIBRI_FORMAT_F32;
    return as_format == CLB_AS_STORED ? stored : as_format;
}

int32_t clb_load_matrix(clb_loader *loader, clb_weight *w, int32_t as_format, int64_t rows, int64_t cols,
                        const char *name_format, ...)
{
    if (loader->status != COLIBRI_OK)
        return loader->status;
    char name[512];
    va_list args;
    va_start(args, name_format);
    vsnprintf(name, sizeof name, name_format, args);
    va_end(args);
    const clb_entry *entry = need(loader, name, rows, cols);
    if (entry == NULL)
        return loader->status;
    int32_t format = target_format(loader, as_format, entry->t.format);
    int32_t group = format == entry->t.format ? entry->t.group : 0;
    if (describe(loader, name, format, group, rows, cols, w) != COLIBRI_OK)
        return loader->status;
    clb_load_item *item = add_item(loader, entry, ITEM_MATRIX, w->bytes);
    if (item == NULL)
        return loader->status;
    item->w = w;
    item->rows = rows;
    return COLIBRI_OK;
}

int32_t clb_load_slice(clb_loader *loader, clb_weight *w, int32_t as_format, const char *name,
                       int64_t source_rows, int64_t row0, int64_t rows, int64_t cols, int transpose)
{
    if (loader->status != COLIBRI_OK)
        return loader->status;
    const clb_entry *entry = need(loader, name, source_rows, cols);
    if (entry == NULL)
        return loader->status;
    int32_t format = target_format(loader, as_format, entry->t.format);
    if (describe(loader, name, format, 0, transpose ? cols : rows, transpose ? rows : cols, w) != COLIBRI_OK)
        return loader->status;
    clb_load_item *item = add_item(loader, entry, ITEM_SLICE, w->bytes);
    if (item == NULL)
        return loader->status;
    item->w = w;
    item->row0 = row0;
    item->rows = rows;
    item->transpose = transpose;
    return COLIBRI_OK;
}

int32_t clb_load_vector(clb_loader *loader, float **out, int64_t n, const char *name_format, ...)
{
    if (loader->status != COLIBRI_OK)
        return loader->status;
    char name[512];
    va_list args;
    va_start(args, name_format);
    vsnprintf(name, sizeof name, name_format, args);
    va_end(args);
    const clb_entry *entry = need(loader, name, 1, n);
    if (entry == NULL)
        return loader->status;
    clb_load_item *item = add_item(loader, entry, ITEM_VECTOR, n * (int64_t)sizeof(float));
    if (item == NULL)
        return loader->status;
    item->vector = out;
    item->rows = 1;
    return COLIBRI_OK;
}

const clb_entry *clb_load_last(const clb_loader *loader)
{
    return loader->status == COLIBRI_OK && loader->n_items > 0 ? loader->items[loader->n_items - 1].entry
                                                               : NULL;
}

int clb_load_has(const clb_loader *loader, const char *name_format, ...)
{
    char name[512];
    va_list args;
    va_start(args, name_format);
    vsnprintf(name, sizeof name, name_format, args);
    va_end(args);
    return clb_table_find(loader->table, name) != NULL;
}

/* Packs rows [row0, row1) of an entry (row0 a multiple of TASK_ROWS) as a matrix of their own into
 * `out`, which starts at the block of row0. */
static int32_t read_packed(const clb_loader *loader, const clb_entry *entry, int64_t row0, int64_t row1,
                           clb_weight *w, uint8_t *out, const clb_error *error)
{
    const colibri_tensor *t = &entry->t;
    if (clb_weight_describe(t->format, t->group, row1 - row0, t->cols, w) != 0)
        return clb_fail(error, COLIBRI_ERROR_FORMAT, "tensor %s: rows cannot be packed", entry->name);
    if (t->layout == COLIBRI_LAYOUT_PACKED) {
        w->data = out;
        return clb_table_read(loader->table, entry, 0, row0 / CLB_BLOCK_ROWS * w->block_bytes, w->bytes, out,
                              error);
    }
    int64_t before = row0 > 0 ? clb_plain_bytes(t->format, row0, t->cols) : 0;
    int64_t scales_before = row0 > 0 ? clb_scale_bytes(t->format, t->group, row0, t->cols) : 0;
    int64_t bytes = clb_plain_bytes(t->format, row1 - row0, t->cols);
    int64_t scale_bytes = clb_scale_bytes(t->format, t->group, row1 - row0, t->cols);
    int64_t padded = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    uint8_t *staging = malloc((size_t)(padded + scale_bytes + ALIGN));
    if (staging == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory to read tensor %s", entry->name);
    int32_t status = clb_table_read(loader->table, entry, 0, before, bytes, staging, error);
    if (status == COLIBRI_OK && scale_bytes > 0)
        status = clb_table_read(loader->table, entry, 1, scales_before, scale_bytes, staging + padded, error);
    if (status == COLIBRI_OK) {
        clb_weight_pack(w, staging, scale_bytes > 0 ? staging + padded : NULL, out, 0, w->n_blocks);
        w->data = out;
    }
    free(staging);
    return status;
}

/* Dequantizes rows [row0, row1) into f32 [row1-row0, cols]. */
static int32_t read_f32(const clb_loader *loader, const clb_entry *entry, int64_t row0, int64_t row1,
                        float *out, const clb_error *error)
{
    int64_t first = row0 / TASK_ROWS * TASK_ROWS;
    clb_weight w;
    if (clb_weight_describe(entry->t.format, entry->t.group, row1 - first, entry->t.cols, &w) != 0)
        return clb_fail(error, COLIBRI_ERROR_FORMAT, "tensor %s: rows cannot be packed", entry->name);
    uint8_t *packed = aligned_alloc(ALIGN, (size_t)((w.bytes + ALIGN - 1) / ALIGN * ALIGN));
    if (packed == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory to read tensor %s", entry->name);
    int32_t status = read_packed(loader, entry, first, row1, &w, packed, error);
    if (status == COLIBRI_OK)
        for (int64_t row = row0; row < row1; row++)
            clb_weight_row(&w, (int32_t)(row - first), out + (row - row0) * entry->t.cols);
    free(packed);
    return status;
}

/* Rounds f32 [rows, cols] to the plain form of `w`'s format (F32 or BF16) in place and packs it. */
static void pack_f32(const clb_weight *w, float *values, int64_t rows, int64_t cols, uint8_t *out)
{
    if (w->format == COLIBRI_FORMAT_BF16) {
        uint16_t *narrow = (uint16_t *)(void *)values; /* element i is read before any write reaches it */
        for (int64_t i = 0; i < rows * cols; i++) {
            float value;
            memcpy(&value, (const uint8_t *)values + i * 4, sizeof value);
            uint16_t rounded = clb_f32_to_bf16(value);
            memcpy((uint8_t *)narrow + i * 2, &rounded, sizeof rounded);
        }
    }
    clb_weight_pack(w, values, NULL, out, 0, w->n_blocks);
}

static int32_t run_converted(const clb_loader *loader, const load_task *task, uint8_t *out,
                             const clb_error *error)
{
    const clb_load_item *item = task->item;
    int64_t cols = item->entry->t.cols, rows = task->row1 - task->row0;
    float *values = malloc((size_t)(rows * cols) * sizeof *values);
    if (values == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory to convert tensor %s", item->entry->name);
    clb_weight part;
    int32_t status = read_f32(loader, item->entry, task->row0, task->row1, values, error);
    if (status == COLIBRI_OK && clb_weight_describe(item->w->format, 0, rows, cols, &part) != 0)
        status = clb_fail(error, COLIBRI_ERROR_FORMAT, "tensor %s: rows cannot be packed", item->entry->name);
    if (status == COLIBRI_OK)
        pack_f32(&part, values, rows, cols, out + task->row0 / CLB_BLOCK_ROWS * item->w->block_bytes);
    free(values);
    return status;
}

static int32_t run_slice(const clb_loader *loader, const clb_load_item *item, uint8_t *out,
                         const clb_error *error)
{
    int64_t cols = item->entry->t.cols, rows = item->rows;
    float *values = malloc((size_t)(rows * cols) * 2 * sizeof *values);
    if (values == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory to convert tensor %s", item->entry->name);
    float *turned = values + rows * cols;
    int32_t status = read_f32(loader, item->entry, item->row0, item->row0 + rows, values, error);
    if (status == COLIBRI_OK && item->transpose) {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++)
                turned[c * rows + r] = values[r * cols + c];
        pack_f32(item->w, turned, cols, rows, out);
    } else if (status == COLIBRI_OK) {
        pack_f32(item->w, values, rows, cols, out);
    }
    free(values);
    return status;
}

static void run_task(void *context, int chunk, int worker)
{
    (void)worker;
    load_job *job = context;
    if (atomic_load_explicit(&job->failed, memory_order_relaxed))
        return;
    const load_task *task = &job->tasks[chunk];
    const clb_load_item *item = task->item;
    const clb_loader *loader = job->loader;
    char text[sizeof job->text];
    text[0] = 0;
    clb_error error = {text, sizeof text};
    int32_t status;
    if (item->kind == ITEM_VECTOR) {
        status = read_f32(loader, item->entry, 0, 1, *item->vector, &error);
    } else if (item->kind == ITEM_SLICE) {
        status = run_slice(loader, item, (uint8_t *)(uintptr_t)item->w->data, &error);
    } else if (item->w->format == item->entry->t.format) {
        clb_weight part;
        uint8_t *out =
            (uint8_t *)(uintptr_t)item->w->data + task->row0 / CLB_BLOCK_ROWS * item->w->block_bytes;
        status = read_packed(loader, item->entry, task->row0, task->row1, &part, out, &error);
    } else {
        status = run_converted(loader, task, (uint8_t *)(uintptr_t)item->w->data, &error);
    }
    if (status == COLIBRI_OK && loader->loading != NULL)
        atomic_fetch_add_explicit((_Atomic int64_t *)&loader->loading->done,
                                  bytes_before(item, task->row1) - bytes_before(item, task->row0),
                                  memory_order_release);
    int expected = 0;
    if (status != COLIBRI_OK && atomic_compare_exchange_strong(&job->failed, &expected, 1)) {
        job->status = status;
        memcpy(job->text, text, sizeof text);
    }
}

static int64_t rows_per_task(const clb_load_item *item)
{
    if (item->kind != ITEM_MATRIX)
        return item->rows > 0 ? item->rows : 1;
    int64_t per_row = clb_plain_bytes(item->entry->t.format, TASK_ROWS, item->entry->t.cols) / TASK_ROWS + 1;
    int64_t rows = TASK_BYTES / per_row / TASK_ROWS * TASK_ROWS;
    return rows < TASK_ROWS ? TASK_ROWS : rows;
}

/* Bytes that one task of an item allocates: staging, and f32 values where the format changes. */
static int64_t task_bytes(const clb_load_item *item)
{
    const colibri_tensor *t = &item->entry->t;
    int64_t rows = item->kind == ITEM_MATRIX ? rows_per_task(item) : item->rows;
    if (item->kind == ITEM_MATRIX && rows > item->rows)
        rows = item->rows;
    /* A slice is read from the task border before it. */
    int64_t read = rows + (item->kind == ITEM_SLICE ? TASK_ROWS : 0);
    if (read > t->rows)
        read = t->rows;
    int64_t bytes = 0, values = rows * t->cols * (int64_t)sizeof(float);
    if (t->layout != COLIBRI_LAYOUT_PACKED)
        bytes += clb_plain_bytes(t->format, read, t->cols) +
                 clb_scale_bytes(t->format, t->group, read, t->cols) + 2 * ALIGN;
    if (item->kind == ITEM_MATRIX && item->w->format == t->format)
        return bytes;
    clb_weight packed;
    if (clb_weight_describe(t->format, t->group, read, t->cols, &packed) == 0)
        bytes += packed.bytes + ALIGN;
    return bytes + (item->kind == ITEM_SLICE ? 2 * values : item->kind == ITEM_MATRIX ? values : 0);
}

int64_t clb_load_peak(const clb_loader *loader, int32_t threads)
{
    int64_t most = 0, tasks = 0;
    for (int64_t i = 0; i < loader->n_items; i++) {
        const clb_load_item *item = &loader->items[i];
        int64_t bytes = task_bytes(item), per = rows_per_task(item);
        if (bytes > most)
            most = bytes;
        tasks += item->kind == ITEM_MATRIX ? (item->rows + per - 1) / per : 1;
    }
    return most * threads + tasks * (int64_t)sizeof(load_task) +
           loader->capacity * (int64_t)sizeof *loader->items;
}

int32_t clb_load_run(clb_loader *loader, clb_pool *pool, uint8_t *dense, uint8_t *experts)
{
    if (loader->status != COLIBRI_OK)
        return loader->status;
    int64_t n_tasks = 0;
    for (int64_t i = 0; i < loader->n_items; i++) {
        const clb_load_item *item = &loader->items[i];
        if (item->region && experts == NULL)
            continue;
        uint8_t *at = (item->region ? experts : dense) + item->offset;
        if (item->kind == ITEM_VECTOR)
            *item->vector = (float *)(void *)at;
        else
            item->w->data = at;
        int64_t per = rows_per_task(item);
        n_tasks += item->kind == ITEM_MATRIX ? (item->rows + per - 1) / per : 1;
    }
    load_job *job = calloc(1, sizeof *job);
    load_task *tasks = malloc((size_t)(n_tasks + 1) * sizeof *tasks);
    if (job == NULL || tasks == NULL || n_tasks > INT32_MAX) {
        free(job);
        free(tasks);
        return fail(loader,
                    clb_fail(&loader->error, COLIBRI_ERROR_MEMORY, "no memory for the list of weights"));
    }
    int64_t n = 0;
    for (int64_t i = 0; i < loader->n_items; i++) {
        const clb_load_item *item = &loader->items[i];
        int64_t per = rows_per_task(item), end = item->kind == ITEM_MATRIX ? item->rows : 1;
        if (item->region && experts == NULL)
            continue;
        for (int64_t row = 0; row < end; row += per)
            tasks[n++] = (load_task){item, row, row + per < end ? row + per : end};
    }
    int64_t total = 0;
    for (int64_t i = 0; i < n; i++)
        total += bytes_before(tasks[i].item, tasks[i].row1) - bytes_before(tasks[i].item, tasks[i].row0);
    if (loader->loading != NULL) {
        /* A caller may open again with the same place, after a refusal. */
        atomic_store_explicit((_Atomic int64_t *)&loader->loading->done, 0, memory_order_relaxed);
        atomic_store_explicit((_Atomic int64_t *)&loader->loading->total, total, memory_order_relaxed);
    }
    job->loader = loader;
    job->tasks = tasks;
    atomic_init(&job->failed, 0);
    clb_pool_run(pool, run_task, job, (int)n);
    if (atomic_load(&job->failed))
        fail(loader, clb_fail(&loader->error, job->status, "%s", job->text));
    free(tasks);
    free(job);
    return loader->status;
}

void clb_loader_free(clb_loader *loader)
{
    free(loader->items);
    loader->items = NULL;
    loader->n_items = loader->capacity = 0;
}
