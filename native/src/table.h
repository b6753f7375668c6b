/* table.h - the checked tensor table: names, formats, and spans inside opened files.
 *
 * The caller's table is untrusted. clb_table_open copies it, opens the files and refuses by name:
 * bad enum values, shapes out of range, byte counts that disagree with format and shape, spans that
 * leave their file, spans that overlap, duplicate names. After that an entry may be read blindly.
 *
 * A file may lie in several places. Replica 0 is the model's own list of paths, each mirror is one more;
 * any of them may lack files. A mirror's file counts only if its size and everything before the first
 * tensor (the header) equal those of the first replica that has it; else it is left out and counted.
 * Owned by the engine; immutable after opening, so any thread may look up and read. */
#ifndef CLB_TABLE_H
#define CLB_TABLE_H

#include "colibri.h"
#include "error.h"
#include "replica.h"

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
    int32_t n_files;
    int32_t n_replicas;
    int *files;        /* [n_replicas][n_files] handles, -1 = not there or closed */
    char **paths;      /* [n_replicas][n_files], NULL = not there */
    int64_t *sizes;    /* [n_files] */
    uint32_t *holders; /* [n_files] bit r = replica r has the file */
    int32_t *refused;  /* [n_replicas] files given and left out */
} clb_table;

/* Memory that an open table holds. */
int64_t clb_table_bytes(const clb_table *table);
/* With n_paths = 0 the spans are not compared with files (planning). `mirrors`: [n_mirrors][n_paths], NULL
 * = that mirror lacks the file; a path of `paths` may be NULL where a mirror has the file. */
int32_t clb_table_open(clb_table *table, const char *const *paths, int32_t n_paths,
                       const char *const *mirrors, int32_t n_mirrors, const colibri_tensor *tensors,
                       int64_t n, const clb_error *error);
void clb_table_close(clb_table *table);
/* Closes the files and keeps the rest: what is read later is read by others. */
void clb_table_close_files(clb_table *table);
/* Path of a file in the first replica that has it, for messages. */
const char *clb_table_path(const clb_table *table, int32_t file);
/* NULL if there is none. */
const clb_entry *clb_table_find(const clb_table *table, const char *name);
/* Reads `bytes` of an entry's data (or scale span) from `skip` on, from the first replica that delivers
 * them. Names file and offset on failure. */
int32_t clb_table_read(const clb_table *table, const clb_entry *entry, int scales, int64_t skip,
                       int64_t bytes, void *out, const clb_error *error);

#endif
