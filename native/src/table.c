/* table.c - see table.h. */
#include "table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "os.h"
#include "weight.h"

#define MAX_NAME 512
#define MAX_TENSORS (INT64_C(1) << 22)
#define MAX_FILES 65536

/* One byte range of a file; sorted to find overlaps. */
typedef struct {
    int32_t file;
    int64_t begin;
    int64_t end;
    int64_t entry;
} span;

static uint64_t hash_name(const char *name)
{
    uint64_t h = 14695981039346656037u;
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 1099511628211u;
    return h;
}

static int32_t find_slot(const clb_table *table, const char *name, int64_t *slot)
{
    uint64_t at = hash_name(name) & (uint64_t)(table->n_slots - 1);
    while (table->slots[at] >= 0) {
        if (strcmp(table->entries[table->slots[at]].name, name) == 0) {
            *slot = (int64_t)at;
            return 1;
        }
        at = (at + 1) & (uint64_t)(table->n_slots - 1);
    }
    *slot = (int64_t)at;
    return 0;
}

const clb_entry *clb_table_find(const clb_table *table, const char *name)
{
    int64_t slot;
    if (table->n_slots == 0 || !find_slot(table, name, &slot))
        return NULL;
    return &table->entries[table->slots[slot]];
}

static int32_t check_range(const clb_table *table, const char *name, const char *what, int32_t file,
                           int64_t offset, int64_t bytes, const clb_error *error)
{
    if (file < 0 || file >= table->n_files)
        return clb_fail(error, COLIBRI_ERROR_FORMAT, "tensor %s: %s refers to file %" PRId32 " of %" PRId32,
                        name, what, file, table->n_files);
    if (offset < 0 || bytes < 0 || offset > table->sizes[file] || bytes > table->sizes[file] - offset)
        return clb_fail(error, COLIBRI_ERROR_FORMAT,
                        "%s: tensor %s: %s at offset %" PRId64 ", %" PRId64
                        " bytes, leaves the file of %" PRId64
                        " bytes; the file is truncated or not the one described: "
                        "verify or download it again",
                        table->paths[file], name, what, offset, bytes, table->sizes[file]);
    return COLIBRI_OK;
}

/* Format, shape and byte counts against each other; no file needed. */
static int32_t check_entry(const clb_entry *entry, const clb_error *error)
{
    const colibri_tensor *t = &entry->t;
    clb_weight w;
    if (clb_weight_describe(t->format, t->group, t->rows, t->cols, &w) != 0)
        return clb_fail(error, COLIBRI_ERROR_FORMAT,
                        "tensor %s: format %" PRId32 ", group %" PRId32 ", shape [%" PRId64 ", %" PRId64
                        "] is not a valid combination",
                        entry->name, t->format, t->group, t->rows, t->cols);
    int64_t want, want_scales;
    if (t->layout == COLIBRI_LAYOUT_PACKED) {
        want = w.bytes;
        want_scales = 0;
    } else if (t->layout == COLIBRI_LAYOUT_PLAIN) {
        want = clb_plain_bytes(t->format, t->rows, t->cols);
        want_scales = clb_scale_bytes(t->format, t->group, t->rows, t->cols);
    } else {
        return clb_fail(error, COLIBRI_ERROR_FORMAT, "tensor %s: unknown layout %" PRId32, entry->name,
                        t->layout);
    }
    if (t->bytes != want)
        return clb_fail(error, COLIBRI_ERROR_FORMAT,
                        "tensor %s: shape [%" PRId64 ", %" PRId64 "] in format %" PRId32 " needs %" PRId64
                        " bytes, the table says %" PRId64,
                        entry->name, t->rows, t->cols, t->format, want, t->bytes);
    if ((want_scales > 0) != (t->scale_file >= 0) || (want_scales > 0 && t->scale_bytes != want_scales))
        return clb_fail(error, COLIBRI_ERROR_FORMAT,
                        "tensor %s: %" PRId64 " bytes of scales expected, the table says %" PRId64,
                        entry->name, want_scales, t->scale_file >= 0 ? t->scale_bytes : 0);
    return COLIBRI_OK;
}

static int compare_spans(const void *a, const void *b)
{
    const span *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->entry < y->entry ? -1 : x->entry > y->entry;
}

static int32_t check_overlaps(const clb_table *table, const clb_error *error)
{
    span *spans = malloc((size_t)(2 * table->n + 1) * sizeof *spans);
    if (spans == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the tensor table");
    int64_t n = 0;
    for (int64_t i = 0; i < table->n; i++) {
        const colibri_tensor *t = &table->entries[i].t;
        spans[n++] = (span){t->file, t->offset, t->offset + t->bytes, i};
        if (t->scale_file >= 0)
            spans[n++] = (span){t->scale_file, t->scale_offset, t->scale_offset + t->scale_bytes, i};
    }
    qsort(spans, (size_t)n, sizeof *spans, compare_spans);
    int32_t status = COLIBRI_OK;
    for (int64_t i = 1; i < n && status == COLIBRI_OK; i++)
        if (spans[i].file == spans[i - 1].file && spans[i].begin < spans[i - 1].end)
            status = clb_fail(error, COLIBRI_ERROR_FORMAT,
                              "%s: tensors %s and %s overlap at offset %" PRId64 "; the file is damaged",
                              table->paths[spans[i].file], table->entries[spans[i - 1].entry].name,
                              table->entries[spans[i].entry].name, spans[i].begin);
    free(spans);
    return status;
}

static int32_t open_files(clb_table *table, const char *const *paths, int32_t n_paths, const clb_error *error)
{
    if (n_paths < 0 || n_paths > MAX_FILES)
        return clb_fail(error, COLIBRI_ERROR_INVALID, "%" PRId32 " files: at most %d are supported", n_paths,
                        MAX_FILES);
    table->files = malloc((size_t)(n_paths + 1) * sizeof *table->files);
    table->paths = calloc((size_t)n_paths + 1, sizeof *table->paths);
    table->sizes = calloc((size_t)n_paths + 1, sizeof *table->sizes);
    if (!table->files || !table->paths || !table->sizes)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the file list");
    for (int32_t i = 0; i < n_paths; i++) {
        if (paths == NULL || paths[i] == NULL)
            return clb_fail(error, COLIBRI_ERROR_INVALID, "path %" PRId32 " is missing", i);
        size_t length = strlen(paths[i]);
        table->paths[i] = malloc(length + 1);
        if (table->paths[i] == NULL)
            return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the file list");
        memcpy(table->paths[i], paths[i], length + 1);
        table->files[i] = clb_os_open(paths[i], &table->sizes[i]);
        if (table->files[i] < 0)
            return clb_fail(error, COLIBRI_ERROR_IO, "%s: cannot be opened: %s", paths[i], strerror(errno));
        table->n_files = i + 1;
    }
    return COLIBRI_OK;
}

static int32_t copy_entries(clb_table *table, const colibri_tensor *tensors, int64_t n,
                            const clb_error *error)
{
    if (n < 0 || n > MAX_TENSORS || (n > 0 && tensors == NULL))
        return clb_fail(error, COLIBRI_ERROR_INVALID, "a table of %" PRId64 " tensors is not supported", n);
    size_t blob = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t length = tensors[i].name ? strnlen(tensors[i].name, MAX_NAME + 1) : 0;
        if (length == 0 || length > MAX_NAME)
            return clb_fail(error, COLIBRI_ERROR_FORMAT,
                            "tensor %" PRId64 ": name missing or longer than %d bytes", i, MAX_NAME);
        blob += length + 1;
    }
    table->n_slots = 16;
    while (table->n_slots < 2 * n)
        table->n_slots *= 2;
    table->entries = calloc((size_t)n + 1, sizeof *table->entries);
    table->names = malloc(blob + 1);
    table->slots = malloc((size_t)table->n_slots * sizeof *table->slots);
    if (!table->entries || !table->names || !table->slots)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for a table of %" PRId64 " tensors", n);
    for (int64_t i = 0; i < table->n_slots; i++)
        table->slots[i] = -1;
    char *at = table->names;
    for (int64_t i = 0; i < n; i++) {
        clb_entry *entry = &table->entries[i];
        size_t length = strlen(tensors[i].name);
        memcpy(at, tensors[i].name, length + 1);
        entry->name = at;
        at += length + 1;
        entry->t = tensors[i];
        entry->t.name = NULL;
        int64_t slot;
        if (find_slot(table, entry->name, &slot))
            return clb_fail(error, COLIBRI_ERROR_FORMAT, "tensor %s appears twice", entry->name);
        table->slots[slot] = i;
        table->n = i + 1;
    }
    return COLIBRI_OK;
}

int64_t clb_table_bytes(const clb_table *table)
{
    int64_t names = table->n > 0 ? table->entries[table->n - 1].name - table->names : 0;
    return table->n * (int64_t)sizeof *table->entries + table->n_slots * (int64_t)sizeof *table->slots +
           names;
}

int32_t clb_table_open(clb_table *table, const char *const *paths, int32_t n_paths,
                       const colibri_tensor *tensors, int64_t n, const clb_error *error)
{
    memset(table, 0, sizeof *table);
    int32_t status = open_files(table, paths, n_paths, error);
    if (status == COLIBRI_OK)
        status = copy_entries(table, tensors, n, error);
    for (int64_t i = 0; i < table->n && status == COLIBRI_OK; i++) {
        const clb_entry *entry = &table->entries[i];
        status = check_entry(entry, error);
        if (status != COLIBRI_OK || n_paths == 0)
            continue;
        status =
            check_range(table, entry->name, "data", entry->t.file, entry->t.offset, entry->t.bytes, error);
        if (status == COLIBRI_OK && entry->t.scale_file >= 0)
            status = check_range(table, entry->name, "scales", entry->t.scale_file, entry->t.scale_offset,
                                 entry->t.scale_bytes, error);
    }
    if (status == COLIBRI_OK && n_paths > 0)
        status = check_overlaps(table, error);
    if (status != COLIBRI_OK)
        clb_table_close(table);
    return status;
}

void clb_table_close(clb_table *table)
{
    for (int32_t i = 0; i < table->n_files; i++)
        clb_os_close(table->files[i]);
    if (table->paths != NULL)
        for (char **path = table->paths; *path != NULL; path++)
            free(*path);
    free(table->files);
    free(table->paths);
    free(table->sizes);
    free(table->entries);
    free(table->names);
    free(table->slots);
    memset(table, 0, sizeof *table);
}

int32_t clb_table_read(const clb_table *table, const clb_entry *entry, int scales, int64_t skip,
                       int64_t bytes, void *out, const clb_error *error)
{
    int32_t file = scales ? entry->t.scale_file : entry->t.file;
    int64_t offset = (scales ? entry->t.scale_offset : entry->t.offset) + skip;
    errno = 0;
    int64_t got = clb_os_read_at(table->files[file], out, bytes, offset);
    if (got == bytes)
        return COLIBRI_OK;
    if (got < 0)
        return clb_fail(error, COLIBRI_ERROR_IO,
                        "%s: reading %" PRId64 " bytes at offset %" PRId64 " (tensor %s) failed: %s%s",
                        table->paths[file], bytes, offset, entry->name, strerror(errno),
                        errno == EIO ? "; this is a device or mount problem, do not download the file again"
                                     : "");
    return clb_fail(error, COLIBRI_ERROR_IO,
                    "%s: tensor %s: wanted %" PRId64 " bytes at offset %" PRId64 ", got %" PRId64
                    "; the file became shorter while it was open",
                    table->paths[file], entry->name, bytes, offset, got);
}
