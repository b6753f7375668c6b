/* tiny_model.h - a small valid model of either family, for tests and fuzzing of the whole engine.
 *
 * Describes geometry and tensor table in memory and, if asked, writes a weights file with seeded
 * random numbers. Not for correctness against other implementations: that is the oracle's work.
 * One thread per model; the file is removed by tiny_model_destroy. */
#ifndef TINY_MODEL_H
#define TINY_MODEL_H

#include "colibri.h"

#define TINY_MAX_TENSORS 160
#define TINY_NAME_BYTES 96
#define TINY_MAX_LAYERS 64
#define TINY_FILE_BYTES (1 << 20)

typedef struct {
    colibri_geometry geometry;
    uint8_t sparse[TINY_MAX_LAYERS];
    uint8_t indexer[TINY_MAX_LAYERS];
    colibri_tensor tensors[TINY_MAX_TENSORS];
    char names[TINY_MAX_TENSORS][TINY_NAME_BYTES];
    int64_t n;
    int64_t end; /* first free byte of the weights file */
    char path[64];
} tiny_model;

/* All tensors F32, no file yet. `family` is a colibri_family. */
void tiny_model_describe(tiny_model *m, int32_t family);
/* Gives a tensor another format and layout, byte counts and a place in the file that agree. */
void tiny_model_reformat(tiny_model *m, colibri_tensor *t, int32_t format, int32_t group, int32_t layout);

/* Describes, sets every matrix of the layers to `format` (plain), and writes the file. NULL on failure. */
tiny_model *tiny_model_create(int32_t family, int32_t format, uint64_t seed);
void tiny_model_destroy(tiny_model *m);
/* Opens an engine on it; NULL after printing the reason. options->struct_size may be 0. */
colibri_engine *tiny_model_open(const tiny_model *m, const colibri_engine_options *options);

#endif
