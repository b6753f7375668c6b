/* load.h - from the checked tensor table to resident weights.
 *
 * A family "binds" its weights: it names each tensor, states the shape it expects, and says where the
 * result belongs. Binding only collects items and counts bytes, so planning and loading share one
 * arithmetic. clb_load_run then reads and packs everything in parallel.
 * Used on the opening thread only; the pool's workers run the items. */
#ifndef CLB_LOAD_H
#define CLB_LOAD_H

#include "pool.h"
#include "table.h"
#include "weight.h"

struct clb_load_item;

typedef struct {
    const clb_table *table;
    int32_t precision; /* colibri_precision: F32 turns every weight into an F32 one */
    clb_error error;
    int32_t status; /* first failure; later calls do nothing */
    struct clb_load_item *items;
    int64_t n_items;
    int64_t capacity;
    int64_t bytes[2];         /* to allocate: [0] dense, [1] experts */
    int32_t region;           /* where the next items go: 0 dense, 1 experts */
    colibri_loading *loading; /* told how far clb_load_run is; NULL = nobody looks */
} clb_loader;

/* Format conversions at load; 0 = as stored. */
#define CLB_AS_STORED 0

/* Each sets loader->status and returns it. `w` must stay where it is until clb_load_run. */
int32_t clb_load_matrix(clb_loader *loader, clb_weight *w, int32_t as_format, int64_t rows, int64_t cols,
                        const char *name_format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 6, 7)))
#endif
    ;
/* Rows [row0, row0+rows) of tensor `name` [source_rows, cols], transposed to [cols, rows] if asked;
 * stored as `as_format` (F32 or BF16). */
int32_t clb_load_slice(clb_loader *loader, clb_weight *w, int32_t as_format, const char *name,
                       int64_t source_rows, int64_t row0, int64_t rows, int64_t cols, int transpose);
int32_t clb_load_vector(clb_loader *loader, float **out, int64_t n, const char *name_format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 4, 5)))
#endif
    ;
/* 1 if the table has the tensor. */
int clb_load_has(const clb_loader *loader, const char *name_format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* Table entry of the item bound last; NULL after a failure. */
const clb_entry *clb_load_last(const clb_loader *loader);

/* Bytes that clb_load_run takes beside dense and experts while it works, with so many threads. */
int64_t clb_load_peak(const clb_loader *loader, int32_t threads);
/* Reads everything into dense/experts, which hold loader->bytes[0] and [1] bytes. experts == NULL: the
 * items of that region stay on disk, described but without data. */
int32_t clb_load_run(clb_loader *loader, clb_pool *pool, uint8_t *dense, uint8_t *experts);
void clb_loader_free(clb_loader *loader);

#endif
