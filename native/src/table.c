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
#define COMPARE_BYTES ((int64_t)1 << 20)

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
                        clb_table_path(table, file), name, what, offset, bytes, table->sizes[file]);
    return COLIBRI_OK;
}

/* What no file can hold, so that sums of places never overflow; a plan has no files to compare with. */
static int32_t check_place(const char *name, int64_t offset, int64_t bytes, const clb_error *error)
{
    const int64_t most = INT64_C(1) << 60;
    if (offset >= 0 && offset <= most && bytes >= 0 && bytes <= most)
        return COLIBRI_OK;
    return clb_fail(error, COLIBRI_ERROR_FORMAT,
                    "tensor %s: %" PRId64 " bytes at offset %" PRId64 " lie in no file", name, bytes, offset);
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
                              clb_table_path(table, spans[i].file), table->entries[spans[i - 1].entry].name,
                              table->entries[spans[i].entry].name, spans[i].begin);
    free(spans);
    return status;
}

const char *clb_table_path(const clb_table *table, int32_t file)
{
    for (int32_t r = 0; r < table->n_replicas; r++)
        if (table->paths[(int64_t)r * table->n_files + file] != NULL)
            return table->paths[(int64_t)r * table->n_files + file];
    return "(no file)";
}

static int32_t make_file_lists(clb_table *table, int32_t n_files, int32_t n_replicas, const clb_error *error)
{
    const size_t files = (size_t)n_files + 1, places = files * (size_t)n_replicas;
    table->n_files = n_files;
    table->n_replicas = n_replicas;
    table->files = malloc(places * sizeof *table->files);
    table->paths = calloc(places, sizeof *table->paths);
    table->sizes = calloc(files, sizeof *table->sizes);
    table->holders = calloc(files, sizeof *table->holders);
    table->refused = calloc((size_t)n_replicas, sizeof *table->refused);
    if (!table->files || !table->paths || !table->sizes || !table->holders || !table->refused)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the file list");
    for (size_t i = 0; i < places; i++)
        table->files[i] = -1;
    return COLIBRI_OK;
}

static void drop_file(clb_table *table, int32_t replica, int32_t file)
{
    const int64_t place = (int64_t)replica * table->n_files + file;
    clb_os_close(table->files[place]);
    free(table->paths[place]);
    table->files[place] = -1;
    table->paths[place] = NULL;
    table->holders[file] &= ~((uint32_t)1 << replica);
    table->refused[replica]++;
}

/* One file of one replica. The first one that opens says how long the file is; what cannot be opened or
 * has another length is left out. Fails only for want of memory. */
static int32_t open_file(clb_table *table, int32_t replica, int32_t file, const char *path,
                         const clb_error *error)
{
    const int64_t place = (int64_t)replica * table->n_files + file;
    const size_t length = strlen(path);
    table->paths[place] = malloc(length + 1);
    if (table->paths[place] == NULL)
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory for the file list");
    memcpy(table->paths[place], path, length + 1);
    int64_t size = 0;
    table->files[place] = clb_os_open(path, &size);
    if (table->files[place] < 0 || (table->holders[file] != 0 && size != table->sizes[file])) {
        drop_file(table, replica, file);
        return COLIBRI_OK;
    }
    table->sizes[file] = size;
    table->holders[file] |= (uint32_t)1 << replica;
    return COLIBRI_OK;
}

static int32_t open_files(clb_table *table, const char *const *paths, int32_t n_paths,
                          const char *const *mirrors, int32_t n_mirrors, const clb_error *error)
{
    if (n_paths < 0 || n_paths > MAX_FILES)
        return clb_fail(error, COLIBRI_ERROR_INVALID, "%" PRId32 " files: at most %d are supported", n_paths,
                        MAX_FILES);
    if (n_mirrors < 0 || n_mirrors >= CLB_REPLICA_MOST || (n_mirrors > 0 && mirrors == NULL))
        return clb_fail(error, COLIBRI_ERROR_INVALID, "%" PRId32 " mirrors: at most %d are supported",
                        n_mirrors, CLB_REPLICA_MOST - 1);
    int32_t status = make_file_lists(table, n_paths, 1 + n_mirrors, error);
    for (int32_t i = 0; i < n_paths && status == COLIBRI_OK; i++) {
        const char *path = paths != NULL ? paths[i] : NULL;
        int reason = 0;
        if (path != NULL) {
            status = open_file(table, 0, i, path, error);
            reason = errno;
        }
        for (int32_t m = 0; m < n_mirrors && status == COLIBRI_OK; m++) {
            const char *copy = mirrors[(int64_t)m * n_paths + i];
            if (copy != NULL)
                status = open_file(table, 1 + m, i, copy, error);
        }
        if (status != COLIBRI_OK || table->holders[i] != 0)
            continue;
        if (path == NULL)
            return clb_fail(error, COLIBRI_ERROR_INVALID, "path %" PRId32 " is missing", i);
        return clb_fail(error, COLIBRI_ERROR_IO, "%s: cannot be opened%s: %s", path,
                        n_mirrors > 0 ? ", nor is there a copy of it on a mirror" : "", strerror(reason));
    }
    return status;
}

/* 1 if the first `bytes` of both files are the same. */
static int same_start(int a, int b, int64_t bytes, uint8_t *buffer)
{
    for (int64_t at = 0; at < bytes; at += COMPARE_BYTES) {
        const int64_t n = bytes - at < COMPARE_BYTES ? bytes - at : COMPARE_BYTES;
        if (clb_os_read_at(a, buffer, n, at) != n || clb_os_read_at(b, buffer + COMPARE_BYTES, n, at) != n ||
            memcmp(buffer, buffer + COMPARE_BYTES, (size_t)n) != 0)
            return 0;
    }
    return 1;
}

static void note_start(int64_t *starts, int32_t file, int64_t offset)
{
    if (offset < starts[file])
        starts[file] = offset;
}

/* Leaves out copies whose header differs: what lies where is then not what the table says. */
static int32_t compare_headers(clb_table *table, const clb_error *error)
{
    int64_t *starts = malloc(((size_t)table->n_files + 1) * sizeof *starts);
    uint8_t *buffer = malloc((size_t)(2 * COMPARE_BYTES));
    if (starts == NULL || buffer == NULL) {
        free(starts);
        free(buffer);
        return clb_fail(error, COLIBRI_ERROR_MEMORY, "no memory to compare the mirrors");
    }
    for (int32_t i = 0; i < table->n_files; i++)
        starts[i] = table->sizes[i];
    for (int64_t i = 0; i < table->n; i++) {
        const colibri_tensor *t = &table->entries[i].t;
        note_start(starts, t->file, t->offset);
        if (t->scale_file >= 0)
            note_start(starts, t->scale_file, t->scale_offset);
    }
    for (int32_t i = 0; i < table->n_files; i++) {
        int32_t first = 0;
        while ((table->holders[i] >> first & 1) == 0)
            first++;
        for (int32_t r = first + 1; r < table->n_replicas; r++)
            if ((table->holders[i] >> r & 1) != 0 &&
                !same_start(table->files[(int64_t)first * table->n_files + i],
                            table->files[(int64_t)r * table->n_files + i], starts[i], buffer))
                drop_file(table, r, i);
    }
    free(starts);
    free(buffer);
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
        /* Without scales these two mean nothing; sums over all parts of an entry count on zero. */
        if (entry->t.scale_file < 0)
            entry->t.scale_offset = entry->t.scale_bytes = 0;
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
                       const char *const *mirrors, int32_t n_mirrors, const colibri_tensor *tensors,
                       int64_t n, const clb_error *error)
{
    memset(table, 0, sizeof *table);
    int32_t status = open_files(table, paths, n_paths, mirrors, n_mirrors, error);
    if (status == COLIBRI_OK)
        status = copy_entries(table, tensors, n, error);
    for (int64_t i = 0; i < table->n && status == COLIBRI_OK; i++) {
        const clb_entry *entry = &table->entries[i];
        status = check_entry(entry, error);
        if (status == COLIBRI_OK)
            status = check_place(entry->name, entry->t.offset, entry->t.bytes, error);
        if (status == COLIBRI_OK && entry->t.scale_file >= 0)
            status = check_place(entry->name, entry->t.scale_offset, entry->t.scale_bytes, error);
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
    if (status == COLIBRI_OK && table->n_replicas > 1)
        status = compare_headers(table, error);
    if (status != COLIBRI_OK)
        clb_table_close(table);
    return status;
}

void clb_table_close_files(clb_table *table)
{
    for (int64_t i = 0; table->files != NULL && i < (int64_t)table->n_replicas * table->n_files; i++) {
        clb_os_close(table->files[i]);
        table->files[i] = -1;
    }
}

void clb_table_close(clb_table *table)
{
    clb_table_close_files(table);
    for (int64_t i = 0; table->paths != NULL && i < (int64_t)table->n_replicas * table->n_files; i++)
        free(table->paths[i]);
    free(table->files);
    free(table->paths);
    free(table->sizes);
    free(table->holders);
    free(table->refused);
    free(table->entries);
    free(table->names);
    free(table->slots);
    memset(table, 0, sizeof *table);
}

/* The sentence for a read that delivered `got` bytes (negative = errno says why). */
static int32_t read_failure(const clb_table *table, const clb_entry *entry, int64_t place, int64_t offset,
                            int64_t bytes, int64_t got, int others, const clb_error *error)
{
    const char *also = others ? "; none of its copies on other drives could be read either" : "";
    if (got < 0)
        return clb_fail(
            error, COLIBRI_ERROR_IO,
            "%s: reading %" PRId64 " bytes at offset %" PRId64 " (tensor %s) failed: %s%s%s",
            table->paths[place], bytes, offset, entry->name, strerror(errno),
            errno == EIO ? "; this is a device or mount problem, do not download the file again" : "", also);
    return clb_fail(error, COLIBRI_ERROR_IO,
                    "%s: tensor %s: wanted %" PRId64 " bytes at offset %" PRId64 ", got %" PRId64
                    "; the file became shorter while it was open%s",
                    table->paths[place], entry->name, bytes, offset, got, also);
}

int32_t clb_table_read(const clb_table *table, const clb_entry *entry, int scales, int64_t skip,
                       int64_t bytes, void *out, const clb_error *error)
{
    const int32_t file = scales ? entry->t.scale_file : entry->t.file;
    const int64_t offset = (scales ? entry->t.scale_offset : entry->t.offset) + skip;
    const uint32_t holders = table->holders[file];
    int32_t status = COLIBRI_ERROR_IO;
    for (int32_t r = 0; r < table->n_replicas; r++) {
        if ((holders >> r & 1) == 0)
            continue;
        const int64_t place = (int64_t)r * table->n_files + file;
        errno = 0;
        int64_t got = clb_os_read_at(table->files[place], out, bytes, offset);
        if (got == bytes)
            return COLIBRI_OK;
        if ((holders & (((uint32_t)1 << r) - 1)) == 0) /* the first one is the one to tell about */
            status = read_failure(table, entry, place, offset, bytes, got, (holders >> r) != 1, error);
    }
    return status;
}
