/* table.h - the checked tensor table: names, formats, and spans inside opened files.
 *
 * The caller's table is untrusted. clb_table_open copies it, opens the files and refuses by name:
 * bad enum values, shapes out of range, byte counts that disagree with format and shape, spans that
 * leave their file, spans that overlap, duplicate names. After that an entry may be read blindly.
 * Owned by the engine; immutable after opening, so any thread may look up. */
#ifndef CLB_TABLE_H
#define CLB_TABLE_H

#include "colibri.h"
#include "error.h"

typedef struct {
    const char *name; /* inside the table's own blob */
    colibri_tensor t; /* t.name is NULL: use `name` */
} clb_entry;

typedef struct {
    clb_entry *entries;
    int64_t n;
    char *names;
    int64_t *slots; /* open addressing over names, -1 = empty */
    int64_t n_slots;
    int *files;
    char **paths;
    int64_t *sizes;
    int32_t n_files;
} clb_table;

/* Memory that an open table holds. */
int64_t clb_table_bytes(const clb_table *table);
/* With n_paths = 0 the spans are not compared with files (planning). */
int32_t clb_table_open(clb_table *table, const char *const *paths, int32_t n_paths,
                       const colibri_tensor *tensors, int64_t n, const clb_error *error);
void clb_table_close(clb_table *table);
/* NULL if there is none. */
const clb_entry *clb_table_find(const clb_table *table, const char *name);
/* Reads `bytes` of an entry's data (or scale span) from `skip` on. Names file and offset on failure. */
int32_t clb_table_read(const clb_table *table, const clb_entry *entry, int scales, int64_t skip,
                       int64_t bytes, void *out, const clb_error *error);

#endif
