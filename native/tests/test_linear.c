/* test_linear.c - every weight format on every instruction set of this machine.
 *
 * What is compared with what: packing against a second, independent reading of the plain layout (equal
 * bits); each kernel against a double-precision product of exactly what it is given (activations
 * quantized or rounded as weight.h says), within TOLERANCE of the sum of magnitudes; and every way of
 * cutting the work against the whole (equal bits). Takes seconds natively, a minute under emulation.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "colibri.h"
#include "kernels/kernels.h"
#include "test.h"
#include "weight.h"

/* Error allowed per unit of sum |w * a|: f32 chains of a few hundred terms. */
#define TOLERANCE 4e-6
/* Error that int8 activations may add on uniform data, relative to the norm of the result. */
#define QUANTIZATION_TOLERANCE 0.02
#define BATCH 65

typedef struct {
    int32_t format;
    int32_t group;
    int32_t rows;
    int32_t cols;
} shape;

static uint64_t seed = 88172645463325252u;

static void *allocate(size_t bytes)
{
    size_t rounded = bytes == 0 ? 64 : (bytes + 63) / 64 * 64;
    void *p = aligned_alloc(64, rounded);
    if (p == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    memset(p, 0, rounded);
    return p;
}

/* ---- plain matrices and their independent meaning ---------------------------------------------- */

typedef struct {
    shape s;
    uint8_t *data;
    int64_t data_bytes;
    float *scales;
    int64_t scale_bytes;
} plain;

static void put16(uint8_t *p, float f)
{
    uint16_t h = clb_f32_to_f16(f);
    memcpy(p, &h, sizeof h);
}

static plain make_plain(shape s)
{
    plain p = {.s = s};
    p.data_bytes = clb_plain_bytes(s.format, s.rows, s.cols);
    p.scale_bytes = clb_scale_bytes(s.format, s.group, s.rows, s.cols);
    p.data = allocate((size_t)p.data_bytes);
    p.scales = allocate((size_t)p.scale_bytes);
    for (int64_t i = 0; i < p.data_bytes; i++)
        p.data[i] = (uint8_t)(test_random(&seed) >> 32);
    for (int64_t i = 0; i < p.scale_bytes / 4; i++)
        p.scales[i] = 0.01f * (1.5f + test_uniform(&seed));
    for (int64_t i = 0; i < (int64_t)s.rows * s.cols; i++) {
        float v = test_uniform(&seed);
        uint16_t h = s.format == COLIBRI_FORMAT_BF16 ? clb_f32_to_bf16(v) : clb_f32_to_f16(v);
        if (s.format == COLIBRI_FORMAT_F32)
            memcpy(p.data + i * 4, &v, 4);
        else if (s.format == COLIBRI_FORMAT_BF16 || s.format == COLIBRI_FORMAT_F16)
            memcpy(p.data + i * 2, &h, 2);
        else if (s.format == COLIBRI_FORMAT_FP8_BLOCK && (p.data[i] & 0x7f) == 0x7f)
            p.data[i] = (uint8_t)(i & 0x7e);
    }
    int32_t unit = s.format == COLIBRI_FORMAT_Q4_0   ? 18
                   : s.format == COLIBRI_FORMAT_Q4_1 ? 20
                   : s.format == COLIBRI_FORMAT_Q8_0 ? 34
                                                     : 0;
    for (int64_t i = 0; unit > 0 && i < p.data_bytes; i += unit) {
        put16(p.data + i, 0.01f * test_uniform(&seed));
        if (s.format == COLIBRI_FORMAT_Q4_1)
            put16(p.data + i + 2, 0.05f * test_uniform(&seed));
    }
    return p;
}

static void free_plain(plain *p)
{
    free(p->data);
    free(p->scales);
}

static float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return clb_f16_to_f32(h);
}

/* Value (r, c) straight from the published layout. */
static float plain_value(const plain *p, int64_t r, int64_t c)
{
    const int64_t cols = p->s.cols;
    const int64_t i = r * cols + c;
    const int64_t nibble_row = r * ((cols + 1) / 2);
    const int32_t nibble =
        p->data[p->s.format == COLIBRI_FORMAT_I4_ROW || p->s.format == COLIBRI_FORMAT_I4_GROUP
                    ? nibble_row + c / 2
                    : 0] >>
            (c % 2 * 4) &
        15;
    const uint8_t *unit;
    float f;
    uint16_t h;
    switch (p->s.format) {
    case COLIBRI_FORMAT_F32:
        memcpy(&f, p->data + i * 4, 4);
        return f;
    case COLIBRI_FORMAT_BF16:
        memcpy(&h, p->data + i * 2, 2);
        return clb_bf16_to_f32(h);
    case COLIBRI_FORMAT_F16:
        return half_at(p->data + i * 2);
    case COLIBRI_FORMAT_I8_ROW:
        return (float)(int8_t)p->data[i] * p->scales[r];
    case COLIBRI_FORMAT_I4_ROW:
        return (float)(nibble - 8) * p->scales[r];
    case COLIBRI_FORMAT_I4_GROUP:
        return (float)(nibble - 8) * p->scales[r * ((cols + p->s.group - 1) / p->s.group) + c / p->s.group];
    case COLIBRI_FORMAT_FP8_BLOCK:
        return clb_fp8_to_f32(p->data[i]) * p->scales[r / 128 * ((cols + 127) / 128) + c / 128];
    case COLIBRI_FORMAT_Q4_0:
        unit = p->data + (r * (cols / 32) + c / 32) * 18;
        return (float)((unit[2 + c % 16] >> (c % 32 / 16 * 4) & 15) - 8) * half_at(unit);
    case COLIBRI_FORMAT_Q4_1:
        unit = p->data + (r * (cols / 32) + c / 32) * 20;
        return (float)(unit[4 + c % 16] >> (c % 32 / 16 * 4) & 15) * half_at(unit) + half_at(unit + 2);
    default:
        unit = p->data + (r * (cols / 32) + c / 32) * 34;
        return (float)(int8_t)unit[2 + c % 32] * half_at(unit);
    }
}

static clb_weight pack(const plain *p)
{
    clb_weight w;
    CHECK(clb_weight_describe(p->s.format, p->s.group, p->s.rows, p->s.cols, &w) == 0);
    uint8_t *out = allocate((size_t)w.bytes);
    int32_t half = w.n_blocks / 2; /* two calls: ranges are independent */
    clb_weight_pack(&w, p->data, p->scales, out, half, w.n_blocks);
    clb_weight_pack(&w, p->data, p->scales, out, 0, half);
    w.data = out;
    return w;
}

static void free_weight(clb_weight *w)
{
    free((void *)(uintptr_t)w->data);
}

static void packing_loses_nothing(const plain *p, const clb_weight *w)
{
    const int64_t cols = p->s.cols;
    float *row = allocate((size_t)cols * 4);
    int equal = 1;
    for (int32_t r = 0; r < p->s.rows; r++) {
        clb_weight_row(w, r, row);
        for (int64_t c = 0; c < cols; c++) {
            float want = plain_value(p, r, c);
            equal &= memcmp(&want, &row[c], 4) == 0;
        }
    }
    CHECK_MSG(equal, "unpacked values differ: format %d group %d %dx%d", p->s.format, p->s.group, p->s.rows,
              p->s.cols);
    free(row);

    uint8_t *public_packed = allocate((size_t)w->bytes);
    float *public_rows = allocate((size_t)p->s.rows * (size_t)cols * 4);
    char err[200];
    CHECK(colibri_weight_packed_bytes(p->s.format, p->s.group, p->s.rows, cols) == w->bytes);
    CHECK(colibri_weight_pack(p->s.format, p->s.group, p->s.rows, cols, p->data, p->data_bytes, p->scales,
                              p->scale_bytes, public_packed, w->bytes, err, sizeof err) == COLIBRI_OK);
    CHECK(memcmp(public_packed, w->data, (size_t)w->bytes) == 0);
    CHECK(colibri_weight_unpack(p->s.format, p->s.group, p->s.rows, cols, public_packed, w->bytes,
                                public_rows, err, sizeof err) == COLIBRI_OK);
    float last = plain_value(p, p->s.rows - 1, cols - 1);
    CHECK(memcmp(&public_rows[(int64_t)p->s.rows * cols - 1], &last, 4) == 0);
    CHECK(colibri_weight_pack(p->s.format, p->s.group, p->s.rows, cols, p->data, p->data_bytes - 1, p->scales,
                              p->scale_bytes, public_packed, w->bytes, err,
                              sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_weight_pack(p->s.format, p->s.group, p->s.rows, cols, p->data, p->data_bytes, p->scales,
                              p->scale_bytes, public_packed, w->bytes + 1, err,
                              sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_weight_unpack(p->s.format, p->s.group, p->s.rows, cols, public_packed, w->bytes - 1,
                                public_rows, NULL, 0) == COLIBRI_ERROR_INVALID);
    free(public_packed);
    free(public_rows);
}

/* ---- kernels ----------------------------------------------------------------------------------- */

static float segment_absmax(const clb_weight *w, const float *x, int32_t s)
{
    float absmax = 0;
    for (int32_t c = s * w->seg; c < (s + 1) * w->seg && c < w->cols; c++)
        absmax = fmaxf(absmax, fabsf(x[c]));
    return absmax;
}

/* Whether weight.h gives segment s a second plane: all for 8-bit weights, else the sixth of the
 * segments with the largest magnitude, the lower index winning a tie. */
static int has_second_plane(const clb_weight *w, const float *x, int32_t s)
{
    if (w->act == CLB_ACT_Q8_32_FULL || w->act == CLB_ACT_Q8_64_FULL)
        return 1;
    const float own = segment_absmax(w, x, s);
    int32_t before = 0;
    for (int32_t other = 0; other < w->n_seg; other++) {
        const float absmax = segment_absmax(w, x, other);
        before += absmax > own || (absmax == own && other < s);
    }
    return before < (w->n_seg + 5) / 6;
}

/* What a kernel of this kind multiplies with. */
static void effective_activations(const clb_weight *w, const float *x, double *out)
{
    for (int32_t c = 0; c < w->cols; c++)
        out[c] = w->act == CLB_ACT_BF16 ? clb_bf16_to_f32(clb_f32_to_bf16(x[c])) : x[c];
    for (int32_t s = 0; w->act >= CLB_ACT_Q8_16 && s < w->n_seg; s++) {
        const float absmax = segment_absmax(w, x, s);
        const float scale = absmax / 127.0f;
        const int second = has_second_plane(w, x, s);
        for (int32_t c = s * w->seg; c < (s + 1) * w->seg && c < w->cols; c++) {
            if (!(absmax > 0)) {
                out[c] = 0;
                continue;
            }
            const float q1 = rintf(x[c] * (127.0f / absmax));
            const float q2 = rintf((x[c] - scale * q1) * (256.0f / scale));
            out[c] = (double)scale * ((double)q1 + (second ? (double)fminf(fmaxf(q2, -127), 127) / 256 : 0));
        }
    }
}

/* Exactly as large as promised and no more, so that the address sanitizer sees an overrun. */
static void *allocate_act(const clb_kernels *k, const clb_weight *w, int32_t n)
{
    void *act = malloc((size_t)k->act_bytes(w->act, w->cols, n));
    if (act == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    return act;
}

/* Prepares tokens in two ranges and multiplies all of [0, n) in one call. */
static void multiply(const clb_kernels *k, const clb_weight *w, const float *x, const int32_t *index,
                     int32_t n, float *y)
{
    void *act = allocate_act(k, w, n);
    int32_t cut = n / 2 / k->act_align * k->act_align;
    k->act_prepare(w->act, w->cols, n, x, w->cols, index, act, cut, n);
    k->act_prepare(w->act, w->cols, n, x, w->cols, index, act, 0, cut);
    k->linear(w, act, n, 0, n, y, w->rows, 0, w->n_blocks, 0);
    free(act);
}

static int rows_equal(const float *a, const float *b, int64_t n)
{
    return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

static void kernel_matches_double_product(const clb_kernels *k, const clb_weight *w, const float *x,
                                          const float *y)
{
    double *a = allocate((size_t)w->cols * sizeof *a);
    float *row = allocate((size_t)w->cols * sizeof *row);
    double worst = 0;
    double error2 = 0;
    double norm2 = 0;
    for (int32_t t = 0; t < BATCH; t += 16) {
        effective_activations(w, x + (int64_t)t * w->cols, a);
        for (int32_t r = 0; r < w->rows; r++) {
            double want = 0;
            double exact = 0;
            double size = 0;
            clb_weight_row(w, r, row);
            for (int32_t c = 0; c < w->cols; c++) {
                want += (double)row[c] * a[c];
                exact += (double)row[c] * (double)x[(int64_t)t * w->cols + c];
                size += fabs((double)row[c] * a[c]);
            }
            double got = y[(int64_t)t * w->rows + r];
            double error = fabs(got - want) / (size + 1e-30);
            worst = error > worst || !(error == error) ? error : worst;
            error2 += (got - exact) * (got - exact);
            norm2 += exact * exact;
        }
    }
    CHECK_MSG(worst < TOLERANCE, "%s: format %d group %d %dx%d: error %.2e", k->name, w->format, w->group,
              w->rows, w->cols, worst);
    if (w->cols >= 96 && w->rows >= 32)
        CHECK_MSG(sqrt(error2 / norm2) < QUANTIZATION_TOLERANCE, "%s: format %d: relative error %.3f",
                  k->name, w->format, sqrt(error2 / norm2));
    free(a);
    free(row);
}

/* Every batch width, token range, block range and the ADD flag give the bits of `y`. */
static void cutting_changes_no_bit(const clb_kernels *k, const clb_weight *w, const float *x, const float *y)
{
    const int64_t rows = w->rows;
    const int32_t widths[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 64};
    float *z = allocate((size_t)rows * BATCH * sizeof *z);
    int32_t index[BATCH];
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        const int32_t n = widths[i];
        int equal = 1;
        for (int32_t t = 0; t < n; t++)
            index[t] = (t * 7 + n) % BATCH;
        multiply(k, w, x, index, n, z);
        for (int32_t t = 0; t < n; t++)
            equal &= rows_equal(z + t * rows, y + index[t] * rows, rows);
        CHECK_MSG(equal, "%s: format %d %dx%d: batch of %d differs", k->name, w->format, w->rows, w->cols, n);
    }

    void *act = allocate_act(k, w, BATCH);
    k->act_prepare(w->act, w->cols, BATCH, x, w->cols, NULL, act, 0, BATCH);
    const int32_t cut = 3 * k->act_align;
    const int64_t ldy = rows + 3;
    float *wide = allocate((size_t)ldy * BATCH * sizeof *wide);
    for (int64_t i = 0; i < ldy * BATCH; i++)
        wide[i] = -77.0f;
    for (int32_t b = 0; b < w->n_blocks; b++) {
        k->linear(w, act, BATCH, cut, BATCH, wide, ldy, b, b + 1, 0);
        k->linear(w, act, BATCH, 0, cut, wide, ldy, b, b + 1, 0);
    }
    int equal = 1;
    int untouched = 1;
    for (int32_t t = 0; t < BATCH; t++) {
        equal &= rows_equal(wide + t * ldy, y + t * rows, rows);
        for (int64_t r = rows; r < ldy; r++)
            untouched &= wide[t * ldy + r] == -77.0f;
    }
    CHECK_MSG(equal, "%s: format %d %dx%d: cut ranges differ", k->name, w->format, w->rows, w->cols);
    CHECK_MSG(untouched, "%s: format %d %dx%d: wrote past the last row", k->name, w->format, w->rows,
              w->cols);

    for (int64_t i = 0; i < rows * BATCH; i++)
        z[i] = test_uniform(&seed);
    float *before = allocate((size_t)rows * BATCH * sizeof *before);
    memcpy(before, z, (size_t)rows * BATCH * sizeof *z);
    k->linear(w, act, BATCH, 0, BATCH, z, rows, 0, w->n_blocks, CLB_LINEAR_ADD);
    int added = 1;
    for (int64_t i = 0; i < rows * BATCH; i++)
        added &= z[i] == before[i] + y[i];
    CHECK_MSG(added, "%s: format %d %dx%d: ADD is not y + sum", k->name, w->format, w->rows, w->cols);
    free(before);
    free(wide);
    free(act);
    free(z);
}

/* Zeros give zeros; a NaN, an infinity or a huge value stays in its own token and never crashes. */
static void odd_activations_stay_in_their_token(const clb_kernels *k, const clb_weight *w, const float *x,
                                                const float *y)
{
    const int32_t n = 7;
    float *odd = allocate((size_t)n * (size_t)w->cols * sizeof *odd);
    float *z = allocate((size_t)n * (size_t)w->rows * sizeof *z);
    memcpy(odd, x, (size_t)n * (size_t)w->cols * sizeof *odd);
    memset(odd + w->cols, 0, (size_t)w->cols * sizeof *odd);
    odd[2 * (int64_t)w->cols + w->cols / 2] = NAN;
    odd[3 * (int64_t)w->cols + w->cols - 1] = -INFINITY;
    odd[4 * (int64_t)w->cols] = 3e38f;
    for (int32_t c = 0; c < w->cols; c++)
        odd[5 * (int64_t)w->cols + c] = 1e-42f;
    multiply(k, w, odd, NULL, n, z);
    int ok =
        rows_equal(z, y, w->rows) && rows_equal(z + 6 * (int64_t)w->rows, y + 6 * (int64_t)w->rows, w->rows);
    for (int32_t r = 0; r < w->rows; r++) {
        ok &= z[w->rows + r] == 0.0f;
        ok &= isnan(z[2 * (int64_t)w->rows + r]) != 0;
        ok &= !isfinite(z[3 * (int64_t)w->rows + r]);
        ok &= fabsf(z[5 * (int64_t)w->rows + r]) < 1e-30f;
    }
    CHECK_MSG(ok, "%s: format %d %dx%d: odd activations leak", k->name, w->format, w->rows, w->cols);
    free(z);
    free(odd);
}

static void check_shape(shape s)
{
    plain p = make_plain(s);
    clb_weight w = pack(&p);
    packing_loses_nothing(&p, &w);

    float *x = allocate((size_t)BATCH * (size_t)s.cols * sizeof *x);
    for (int64_t i = 0; i < (int64_t)BATCH * s.cols; i++)
        x[i] = test_uniform(&seed) * (i % 97 == 5 ? 8.0f : 1.0f);
    float *y = allocate((size_t)BATCH * (size_t)s.rows * sizeof *y);
    for (int32_t isa = COLIBRI_ISA_AUTO; isa <= COLIBRI_ISA_NEON; isa++) {
        /* AUTO stands in for the reference, which knows F32 only */
        const clb_kernels *k = isa == COLIBRI_ISA_AUTO ? clb_kernels_reference() : clb_kernels_get(isa);
        if (k == NULL || (isa == COLIBRI_ISA_AUTO && s.format != COLIBRI_FORMAT_F32))
            continue;
        multiply(k, &w, x, NULL, BATCH, y);
        kernel_matches_double_product(k, &w, x, y);
        cutting_changes_no_bit(k, &w, x, y);
        /* a zero weight times infinity is NaN as well, so this needs no care about weights */
        odd_activations_stay_in_their_token(k, &w, x, y);
    }
    free(x);
    free(y);
    free_weight(&w);
    free_plain(&p);
}

static void every_format_and_shape(void)
{
    static const int32_t groups[] = {16, 32, 48, 64, 96, 128, 192, 256};
    static const int32_t sizes[][2] = {{1, 1}, {33, 65}, {100, 200}, {7, 129}, {160, 576}};
    static const int32_t gguf_sizes[][2] = {{1, 32}, {33, 96}, {160, 576}};
    for (int32_t format = COLIBRI_FORMAT_F32; format <= COLIBRI_FORMAT_Q8_0; format++) {
        if (format >= COLIBRI_FORMAT_Q4_0) {
            for (int i = 0; i < 3; i++)
                check_shape((shape){format, 0, gguf_sizes[i][0], gguf_sizes[i][1]});
        } else if (format == COLIBRI_FORMAT_I4_GROUP) {
            for (int g = 0; g < 8; g++) {
                check_shape((shape){format, groups[g], 100, 200});
                check_shape((shape){format, groups[g], 33, 65});
            }
            check_shape((shape){format, 64, 576, 576});
            check_shape((shape){format, 16, 1, 1});
        } else {
            for (int i = 0; i < 5; i++)
                check_shape((shape){format, 0, sizes[i][0], sizes[i][1]});
        }
    }
    check_shape((shape){COLIBRI_FORMAT_I8_ROW, 0, 40, 2500}); /* several column chunks */
    check_shape((shape){COLIBRI_FORMAT_BF16, 0, 40, 1500});
    check_shape((shape){COLIBRI_FORMAT_FP8_BLOCK, 0, 300, 1500});
    check_shape((shape){COLIBRI_FORMAT_I4_GROUP, 64, 40, 5000});
}

/* ---- shapes that must be refused, numbers that must convert --------------------------------------- */

static void absurd_shapes_are_refused(void)
{
    clb_weight w;
    static const int64_t bad[] = {INT64_MIN, -1, 0, CLB_MAX_ROWS + 1, INT64_MAX};
    for (int32_t format = COLIBRI_FORMAT_F32; format <= COLIBRI_FORMAT_Q8_0; format++) {
        int32_t group = format == COLIBRI_FORMAT_I4_GROUP ? 64 : 0;
        for (int i = 0; i < 5; i++) {
            CHECK(clb_weight_describe(format, group, bad[i], 64, &w) == -1);
            CHECK(clb_weight_describe(format, group, 64, bad[i], &w) == -1);
            CHECK(clb_plain_bytes(format, bad[i], 64) == -1);
            CHECK(clb_scale_bytes(format, group, 64, bad[i]) == -1);
            CHECK(colibri_weight_packed_bytes(format, group, bad[i], bad[i]) < 0);
        }
        CHECK(clb_weight_describe(format, group, CLB_MAX_ROWS, CLB_MAX_COLS, &w) == 0);
        CHECK(w.bytes > 0 && w.bytes == w.block_bytes * w.n_blocks);
        CHECK(clb_plain_bytes(format, CLB_MAX_ROWS, CLB_MAX_COLS) > 0);
    }
    static const int32_t bad_groups[] = {-64, 0, 1, 8, 33, 80, 512};
    for (int i = 0; i < 7; i++)
        CHECK(clb_weight_describe(COLIBRI_FORMAT_I4_GROUP, bad_groups[i], 64, 64, &w) == -1);
    CHECK(clb_weight_describe(COLIBRI_FORMAT_BF16, 64, 64, 64, &w) == -1);
    CHECK(clb_weight_describe(0, 0, 64, 64, &w) == -1);
    CHECK(clb_weight_describe(COLIBRI_FORMAT_Q8_0 + 1, 0, 64, 64, &w) == -1);
    CHECK(clb_weight_describe(INT32_MIN, 0, 64, 64, &w) == -1);
    CHECK(clb_weight_describe(COLIBRI_FORMAT_Q4_0, 0, 64, 65, &w) == -1);
    char err[8];
    memset(err, 'x', sizeof err);
    CHECK(colibri_weight_pack(COLIBRI_FORMAT_Q4_0, 0, 64, 65, err, 1, NULL, 0, err, 1, err, sizeof err) ==
          COLIBRI_ERROR_INVALID);
    CHECK(memchr(err, 0, sizeof err) != NULL);
}

static void half_formats_convert_exactly(void)
{
    int ok = 1;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = clb_f16_to_f32((uint16_t)h);
        if ((h & 0x7fffu) > 0x7c00u)
            ok &= isnan(f) && isnan(clb_f16_to_f32(clb_f32_to_f16(f)));
        else
            ok &= clb_f32_to_f16(f) == h;
        float b = clb_bf16_to_f32((uint16_t)h);
        if (isnan(b))
            ok &= isnan(clb_bf16_to_f32(clb_f32_to_bf16(b)));
        else
            ok &= clb_f32_to_bf16(b) == h;
    }
    CHECK_MSG(ok, "a 16-bit float does not survive the way through f32");
    CHECK(clb_f32_to_f16(65519.0f) == 0x7bff && clb_f32_to_f16(65520.0f) == 0x7c00);
    CHECK(clb_f32_to_f16(0x1p-25f) == 0 && clb_f32_to_f16(0x1.8p-25f) == 1 &&
          clb_f32_to_f16(-0x1.8p-24f) == 0x8002);
    CHECK(clb_f32_to_f16(1.0f + 0x1p-11f) == 0x3c00 && clb_f32_to_f16(1.0f + 0x3p-11f) == 0x3c02);
    CHECK(clb_f32_to_bf16(1.0f + 0x1p-8f) == 0x3f80 && clb_f32_to_bf16(1.0f + 0x3p-8f) == 0x3f82);
    CHECK(clb_fp8_to_f32(0x00) == 0.0f && clb_fp8_to_f32(0x01) == 0x1p-9f && clb_fp8_to_f32(0x07) == 0x7p-9f);
    CHECK(clb_fp8_to_f32(0x38) == 1.0f && clb_fp8_to_f32(0x7e) == 448.0f && clb_fp8_to_f32(0xfe) == -448.0f);
    CHECK(isnan(clb_fp8_to_f32(0x7f)) && isnan(clb_fp8_to_f32(0xff)));
}

static void best_instruction_set_has_a_table(void)
{
    const clb_kernels *best = clb_kernels_get(COLIBRI_ISA_AUTO);
    CHECK(colibri_cpu_is_supported() == 1);
    CHECK(best != NULL && clb_kernels_get(COLIBRI_ISA_BASELINE) != NULL);
    CHECK(colibri_cpu_has_isa(colibri_cpu_best_isa()) == 1);
    CHECK(colibri_cpu_has_isa(99) == 0 && clb_kernels_get(99) == NULL && clb_kernels_get(-1) == NULL);
    CHECK(strcmp(colibri_isa_name(COLIBRI_ISA_AVX512), "avx512") == 0);
    CHECK(strcmp(colibri_isa_name(-5), "unknown") == 0);
    for (int32_t isa = COLIBRI_ISA_BASELINE; isa <= COLIBRI_ISA_NEON; isa++) {
        const clb_kernels *k = clb_kernels_get(isa);
        CHECK((k != NULL) == (colibri_cpu_has_isa(isa) == 1));
        CHECK(k == NULL || (k->isa == isa && strcmp(k->name, colibri_isa_name(isa)) == 0));
    }
    CHECK(best == NULL || best->isa == colibri_cpu_best_isa());
}

int main(void)
{
    half_formats_convert_exactly();
    absurd_shapes_are_refused();
    best_instruction_set_has_a_table();
    every_format_and_shape();
    return test_report();
}
