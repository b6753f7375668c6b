/* flatdump.h - reads the flat dumps that tests/oracle/flatdump.py writes (layout: see there).
 *
 * A dump is a whole model with the oracle's prompts and answers in one file, so that C tests need no
 * Python. Every offset and count is checked against the file's size. Not for the product.
 */
#ifndef FLATDUMP_H
#define FLATDUMP_H

#include "colibri.h"

typedef struct {
    const int32_t *tokens; /* [n_prompt + n_greedy]: the prompt, then the oracle's greedy tokens */
    int32_t n_prompt;
    int32_t n_greedy;
    const float *logits; /* [n_prompt + n_greedy][vocab]: the oracle's, of every position */
} flatdump_prompt;

typedef struct {
    char *path;
    uint8_t *bytes; /* the whole file; what follows points into it */
    size_t n_bytes;
    colibri_geometry geometry;
    colibri_tensor *tensors; /* file 0 = the dump itself */
    int64_t n_tensors;
    flatdump_prompt *prompts;
    int32_t n_prompts;
} flatdump;

/* Reads a dump. Returns 0, or -1 with a sentence in `err`. */
int flatdump_open(const char *path, flatdump *out, char *err, size_t err_len);
void flatdump_close(flatdump *dump);

#endif
