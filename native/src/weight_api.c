/* weight_api.c - the public colibri_weight_* functions: argument checks in front of weight.c.
 *
 * Called by the converter through the Python binding and by tests. Pure functions, any thread.
 */
#include <stdio.h>

#include "colibri.h"
#include "weight.h"

static void say(char *err, size_t err_len, const char *text)
{
    if (err != NULL && err_len > 0)
        (void)snprintf(err, err_len, "%s", text);
}

int64_t colibri_weight_plain_bytes(int32_t format, int64_t rows, int64_t cols)
{
    return clb_plain_bytes(format, rows, cols);
}

int64_t colibri_weight_scale_bytes(int32_t format, int32_t group, int64_t rows, int64_t cols)
{
    return clb_scale_bytes(format, group, rows, cols);
}

int64_t colibri_weight_packed_bytes(int32_t format, int32_t group, int64_t rows, int64_t cols)
{
    clb_weight w;
    return clb_weight_describe(format, group, rows, cols, &w) == 0 ? w.bytes : -1;
}

static const char bad_shape[] =
    "the weight's format, group and shape do not go together; check rows, cols (a multiple of 32 for "
    "Q4_0, Q4_1, Q8_0) and group (16 32 48 64 96 128 192 256 for grouped int4, else 0)";

int32_t colibri_weight_pack(int32_t format, int32_t group, int64_t rows, int64_t cols, const void *data,
                            int64_t data_bytes, const void *scales, int64_t scale_bytes, void *out,
                            int64_t out_bytes, char *err, size_t err_len)
{
    clb_weight w;
    if (clb_weight_describe(format, group, rows, cols, &w) != 0) {
        say(err, err_len, bad_shape);
        return COLIBRI_ERROR_INVALID;
    }
    const int64_t need_scales = clb_scale_bytes(format, group, rows, cols);
    if (data == NULL || data_bytes != clb_plain_bytes(format, rows, cols)) {
        say(err, err_len, "the plain data is not colibri_weight_plain_bytes() long; pass exactly the matrix");
        return COLIBRI_ERROR_INVALID;
    }
    if (need_scales > 0 ? scales == NULL || scale_bytes != need_scales : scale_bytes != 0) {
        say(err, err_len,
            "the scales are not colibri_weight_scale_bytes() long; pass exactly the matrix's scales");
        return COLIBRI_ERROR_INVALID;
    }
    if (out == NULL || out_bytes != w.bytes) {
        say(err, err_len, "the output is not colibri_weight_packed_bytes() long; allocate exactly that");
        return COLIBRI_ERROR_INVALID;
    }
    clb_weight_pack(&w, data, scales, out, 0, w.n_blocks);
    return COLIBRI_OK;
}

int32_t colibri_weight_unpack(int32_t format, int32_t group, int64_t rows, int64_t cols, const void *packed,
                              int64_t packed_bytes, float *out, char *err, size_t err_len)
{
    clb_weight w;
    if (clb_weight_describe(format, group, rows, cols, &w) != 0) {
        say(err, err_len, bad_shape);
        return COLIBRI_ERROR_INVALID;
    }
    if (packed == NULL || out == NULL || packed_bytes != w.bytes) {
        say(err, err_len,
            "the packed data is not colibri_weight_packed_bytes() long; pass exactly the matrix");
        return COLIBRI_ERROR_INVALID;
    }
    w.data = packed;
    for (int32_t r = 0; r < w.rows; r++)
        clb_weight_row(&w, r, out + (int64_t)r * cols);
    return COLIBRI_OK;
}
