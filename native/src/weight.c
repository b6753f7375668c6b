/* weight.c - describes, packs and reads back weight matrices (layout: weight.h).
 *
 * What it is for: the one place that knows how every number format lies in memory, both as published
 * ("plain") and as the kernels read it ("packed"). What it is not: fast arithmetic; the kernels have
 * their own readers. Called by the loader, the converter (through weight_api.c), embedding lookup and
 * the tests. Thread rule: pure functions; clb_weight_pack may run on disjoint block ranges at once.
 */
#include "weight.h"

#include <math.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the packed layout is defined for little-endian machines"
#endif

#define BLOCK CLB_BLOCK_ROWS
#define MAX_SEG 128      /* columns: the widest segment (fp8) */
#define MAX_SEG_WORDS 32 /* dwords of one row in a segment */

/* ---- scalar conversions ---------------------------------------------------------------------- */

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float clb_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) /* infinity, NaN */
        return float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x0400u)
        return float_of(sign | ((magnitude << 13) + (112u << 23)));
    float value = (float)magnitude * 0x1p-24f; /* subnormal: exact in f32 */
    return float_of(sign | bits_of(value));
}

uint16_t clb_f32_to_f16(float f)
{
    uint32_t u = bits_of(f);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* below 2^-14: adding 0.5 lets the FPU round to a multiple of 2^-24 */
        float shifted = float_of(magnitude) + 0.5f;
        return (uint16_t)(sign | (bits_of(shifted) - bits_of(0.5f)));
    }
    uint32_t odd = magnitude >> 13 & 1u;
    return (uint16_t)(sign | ((magnitude - (112u << 23) + 0xfffu + odd) >> 13));
}

uint16_t clb_f32_to_bf16(float f)
{
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

float clb_fp8_to_f32(uint8_t v)
{
    uint32_t sign = (uint32_t)(v & 0x80u) << 24;
    uint32_t magnitude = v & 0x7fu;
    if (magnitude == 0x7fu)
        return float_of(sign | 0x7fc00000u);
    if (magnitude >= 8u)
        return float_of(sign | ((magnitude << 20) + (120u << 23)));
    float value = (float)magnitude * 0x1p-9f;
    return float_of(sign | bits_of(value));
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static int32_t gcd(int32_t a, int32_t b)
{
    while (b != 0) {
        int32_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

static int valid_group(int32_t group)
{
    switch (group) {
    case 16:
    case 32:
    case 48:
    case 64:
    case 96:
    case 128:
    case 192:
    case 256:
        return 1;
    default:
        return 0;
    }
}

static int is_gguf(int32_t format)
{
    return format == COLIBRI_FORMAT_Q4_0 || format == COLIBRI_FORMAT_Q4_1 || format == COLIBRI_FORMAT_Q8_0;
}

/* The bounds on rows and cols keep every product below 2^62, so no later sum can overflow. */
static int valid_shape(int32_t format, int64_t rows, int64_t cols)
{
    if (format < COLIBRI_FORMAT_F32 || format > COLIBRI_FORMAT_Q8_0)
        return 0;
    if (rows < 1 || rows > CLB_MAX_ROWS || cols < 1 || cols > CLB_MAX_COLS)
        return 0;
    return !is_gguf(format) || cols % 32 == 0;
}

int clb_weight_describe(int32_t format, int32_t group, int64_t rows, int64_t cols, clb_weight *w)
{
    static const struct {
        int32_t seg;
        int32_t act;
        int32_t data_bytes;  /* of one segment of one block */
        int32_t scale_bytes; /* likewise */
        int32_t row_bytes;   /* row scales of one block */
    } table[] = {
        [COLIBRI_FORMAT_F32] = {1, CLB_ACT_F32, 128, 0, 0},
        [COLIBRI_FORMAT_BF16] = {2, CLB_ACT_BF16, 128, 0, 0},
        [COLIBRI_FORMAT_F16] = {2, CLB_ACT_BF16, 128, 0, 0},
        [COLIBRI_FORMAT_I8_ROW] = {64, CLB_ACT_Q8_64_FULL, 64 * 32, 0, 128},
        [COLIBRI_FORMAT_I4_ROW] = {64, CLB_ACT_Q8_64, 32 * 32, 0, 128},
        [COLIBRI_FORMAT_FP8_BLOCK] = {128, CLB_ACT_BF16, 128 * 32, 64, 0},
        [COLIBRI_FORMAT_Q4_0] = {32, CLB_ACT_Q8_32, 16 * 32, 64, 0},
        [COLIBRI_FORMAT_Q4_1] = {32, CLB_ACT_Q8_32, 16 * 32, 128, 0},
        [COLIBRI_FORMAT_Q8_0] = {32, CLB_ACT_Q8_32_FULL, 32 * 32, 64, 0},
    };
    if (!valid_shape(format, rows, cols))
        return -1;
    if (format == COLIBRI_FORMAT_I4_GROUP ? !valid_group(group) : group != 0)
        return -1;

    memset(w, 0, sizeof *w);
    w->format = format;
    w->group = group;
    w->rows = (int32_t)rows;
    w->cols = (int32_t)cols;
    if (format == COLIBRI_FORMAT_I4_GROUP) {
        w->seg = gcd(group, 64);
        w->act = w->seg == 16 ? CLB_ACT_Q8_16 : w->seg == 32 ? CLB_ACT_Q8_32 : CLB_ACT_Q8_64;
        w->seg_bytes = (int64_t)w->seg * 16 + 128;
    } else {
        w->seg = table[format].seg;
        w->act = table[format].act;
        w->seg_bytes = table[format].data_bytes + table[format].scale_bytes;
    }
    w->n_seg = (int32_t)((cols + w->seg - 1) / w->seg);
    w->n_blocks = (int32_t)((rows + BLOCK - 1) / BLOCK);
    w->block_bytes = w->n_seg * w->seg_bytes;
    if (format != COLIBRI_FORMAT_I4_GROUP)
        w->block_bytes += table[format].row_bytes;
    w->bytes = w->block_bytes * w->n_blocks;
    return 0;
}

/* Bytes of one row in the plain layout; shape already checked. */
static int64_t plain_row_bytes(int32_t format, int64_t cols)
{
    switch (format) {
    case COLIBRI_FORMAT_F32:
        return cols * 4;
    case COLIBRI_FORMAT_BF16:
    case COLIBRI_FORMAT_F16:
        return cols * 2;
    case COLIBRI_FORMAT_I4_ROW:
    case COLIBRI_FORMAT_I4_GROUP:
        return (cols + 1) / 2;
    case COLIBRI_FORMAT_Q4_0:
        return cols / 32 * 18;
    case COLIBRI_FORMAT_Q4_1:
        return cols / 32 * 20;
    case COLIBRI_FORMAT_Q8_0:
        return cols / 32 * 34;
    default:
        return cols;
    }
}

int64_t clb_plain_bytes(int32_t format, int64_t rows, int64_t cols)
{
    return valid_shape(format, rows, cols) ? rows * plain_row_bytes(format, cols) : -1;
}

int64_t clb_scale_bytes(int32_t format, int32_t group, int64_t rows, int64_t cols)
{
    clb_weight w;
    if (clb_weight_describe(format, group, rows, cols, &w) != 0)
        return -1;
    switch (format) {
    case COLIBRI_FORMAT_I8_ROW:
    case COLIBRI_FORMAT_I4_ROW:
        return rows * 4;
    case COLIBRI_FORMAT_I4_GROUP:
        return rows * ((cols + group - 1) / group) * 4;
    case COLIBRI_FORMAT_FP8_BLOCK:
        return (rows + 127) / 128 * ((cols + 127) / 128) * 4;
    default:
        return 0;
    }
}

/* ---- packing ---------------------------------------------------------------------------------
 * A row's part of a segment is turned into its dwords ("words", at most 32), which the caller then
 * spreads over the block with a stride of 32 dwords. Missing columns are filled before that, so the
 * cores below always see a whole segment.
 */

static uint32_t load32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Four nibbles to the low halves of four bytes. */
static uint32_t spread_nibbles(uint32_t v)
{
    v = (v | v << 8) & 0x00ff00ffu;
    return (v | v << 4) & 0x0f0f0f0fu;
}

/* Nibbles as published (low = even column) to words (low = first half of the segment). */
static void words_from_nibbles(const uint8_t *src, int32_t seg, uint32_t *words)
{
    const uint8_t *high = src + seg / 4;
    for (int32_t j = 0; j < seg / 8; j++) {
        uint32_t lo = (uint32_t)src[2 * j] | (uint32_t)src[2 * j + 1] << 8;
        uint32_t hi = (uint32_t)high[2 * j] | (uint32_t)high[2 * j + 1] << 8;
        words[j] = spread_nibbles(lo) | spread_nibbles(hi) << 4;
    }
}

/* Words of columns [first, first + n) of one row; n <= seg, the rest is padding. Returns their number. */
static int32_t row_words(const clb_weight *w, const uint8_t *row, int32_t first, int32_t n, uint32_t *words)
{
    const int32_t seg = w->seg;
    switch (w->format) {
    case COLIBRI_FORMAT_F32:
        words[0] = load32(row + (int64_t)first * 4);
        return 1;
    case COLIBRI_FORMAT_BF16:
    case COLIBRI_FORMAT_F16:
        words[0] = 0;
        memcpy(words, row + (int64_t)first * 2, (size_t)n * 2);
        return 1;
    case COLIBRI_FORMAT_I8_ROW:
        memset(words, 0, (size_t)seg);
        memcpy(words, row + first, (size_t)n);
        for (int32_t j = 0; j < seg / 4; j++)
            words[j] ^= 0x80808080u;
        return seg / 4;
    case COLIBRI_FORMAT_FP8_BLOCK: {
        uint8_t bytes[MAX_SEG] = {0};
        memcpy(bytes, row + first, (size_t)n);
        for (int32_t j = 0; j < seg / 4; j++) /* columns 0 2 1 3: see weight.h */
            words[j] = (uint32_t)bytes[4 * j] | (uint32_t)bytes[4 * j + 2] << 8 |
                       (uint32_t)bytes[4 * j + 1] << 16 | (uint32_t)bytes[4 * j + 3] << 24;
        return seg / 4;
    }
    case COLIBRI_FORMAT_I4_ROW:
    case COLIBRI_FORMAT_I4_GROUP: {
        uint8_t nibbles[MAX_SEG / 2];
        memset(nibbles, 0x88, sizeof nibbles);
        memcpy(nibbles, row + first / 2, (size_t)(n + 1) / 2);
        if (n % 2 != 0) /* the upper half of the last byte belongs to no column */
            nibbles[n / 2] = (uint8_t)((nibbles[n / 2] & 0x0fu) | 0x80u);
        words_from_nibbles(nibbles, seg, words);
        return seg / 8;
    }
    case COLIBRI_FORMAT_Q4_0: /* 32 columns as published are already low = first half */
        memcpy(words, row + first / 32 * 18 + 2, 16);
        return 4;
    case COLIBRI_FORMAT_Q4_1:
        memcpy(words, row + first / 32 * 20 + 4, 16);
        return 4;
    default: /* Q8_0 */
        memcpy(words, row + first / 32 * 34 + 2, 32);
        for (int32_t j = 0; j < 8; j++)
            words[j] ^= 0x80808080u;
        return 8;
    }
}

/* What every word of a row beyond the matrix holds: the bytes that stand for the value 0. */
static uint32_t padding_word(int32_t format)
{
    switch (format) {
    case COLIBRI_FORMAT_I8_ROW:
    case COLIBRI_FORMAT_Q8_0:
        return 0x80808080u;
    case COLIBRI_FORMAT_I4_ROW:
    case COLIBRI_FORMAT_I4_GROUP:
    case COLIBRI_FORMAT_Q4_0:
        return 0x88888888u;
    default:
        return 0;
    }
}

/* Bytes of one segment of a block without its scales. */
static int64_t segment_data_bytes(const clb_weight *w)
{
    switch (w->format) {
    case COLIBRI_FORMAT_I4_GROUP:
        return w->seg_bytes - 128;
    case COLIBRI_FORMAT_FP8_BLOCK:
    case COLIBRI_FORMAT_Q4_0:
    case COLIBRI_FORMAT_Q8_0:
        return w->seg_bytes - 64;
    case COLIBRI_FORMAT_Q4_1:
        return w->seg_bytes - 128;
    default:
        return w->seg_bytes;
    }
}

/* Scales of segment s of one block, behind the segment's data; `live` rows exist. */
static void pack_segment_scales(const clb_weight *w, const uint8_t *data, const uint8_t *scales, int64_t row0,
                                int32_t live, int32_t s, uint8_t *out)
{
    const int64_t row_bytes = plain_row_bytes(w->format, w->cols);
    switch (w->format) {
    case COLIBRI_FORMAT_I4_GROUP: {
        int64_t per_row = (w->cols + w->group - 1) / w->group;
        int64_t index = (int64_t)s * w->seg / w->group;
        memset(out, 0, 128);
        for (int32_t r = 0; r < live; r++)
            memcpy(out + r * 4, scales + ((row0 + r) * per_row + index) * 4, 4);
        break;
    }
    case COLIBRI_FORMAT_FP8_BLOCK:
        memset(out, 0, 64);
        memcpy(out, scales + (row0 / 128 * w->n_seg + s) * 4, 4);
        break;
    case COLIBRI_FORMAT_Q4_0:
    case COLIBRI_FORMAT_Q8_0: {
        int64_t unit = w->format == COLIBRI_FORMAT_Q4_0 ? 18 : 34;
        memset(out, 0, 64);
        for (int32_t r = 0; r < live; r++)
            memcpy(out + r * 2, data + (row0 + r) * row_bytes + s * unit, 2);
        break;
    }
    case COLIBRI_FORMAT_Q4_1:
        memset(out, 0, 128);
        for (int32_t r = 0; r < live; r++) {
            const uint8_t *unit = data + (row0 + r) * row_bytes + (int64_t)s * 20;
            memcpy(out + r * 2, unit, 2);
            memcpy(out + 64 + r * 2, unit + 2, 2);
        }
        break;
    default:
        break;
    }
}

void clb_weight_pack(const clb_weight *w, const void *data, const void *scales, uint8_t *out, int32_t block0,
                     int32_t block1)
{
    const uint8_t *plain = data;
    const uint8_t *plain_scales = scales;
    const int64_t row_bytes = plain_row_bytes(w->format, w->cols);
    const int64_t data_bytes = segment_data_bytes(w);
    const uint32_t padding = padding_word(w->format);

    for (int32_t b = block0; b < block1; b++) {
        uint8_t *block = out + b * w->block_bytes;
        const int64_t row0 = (int64_t)b * BLOCK;
        const int32_t live = w->rows - row0 < BLOCK ? (int32_t)(w->rows - row0) : BLOCK;
        for (int32_t s = 0; s < w->n_seg; s++) {
            uint8_t *segment = block + s * w->seg_bytes;
            const int32_t first = s * w->seg;
            const int32_t n = w->cols - first < w->seg ? w->cols - first : w->seg;
            for (int32_t r = 0; r < BLOCK; r++) {
                uint32_t words[MAX_SEG_WORDS];
                int32_t count = (int32_t)(data_bytes / (BLOCK * 4));
                if (r < live)
                    (void)row_words(w, plain + (row0 + r) * row_bytes, first, n, words);
                else
                    for (int32_t j = 0; j < count; j++)
                        words[j] = padding;
                for (int32_t j = 0; j < count; j++)
                    memcpy(segment + ((int64_t)j * BLOCK + r) * 4, &words[j], 4);
            }
            pack_segment_scales(w, plain, plain_scales, row0, live, s, segment + data_bytes);
        }
        if (w->format == COLIBRI_FORMAT_I8_ROW || w->format == COLIBRI_FORMAT_I4_ROW) {
            uint8_t *row_scales = block + w->n_seg * w->seg_bytes;
            memset(row_scales, 0, 128);
            memcpy(row_scales, plain_scales + row0 * 4, (size_t)live * 4);
        }
    }
}

/* ---- reading back ---------------------------------------------------------------------------- */

static float load_f32(const uint8_t *p)
{
    float f;
    memcpy(&f, p, sizeof f);
    return f;
}

static float load_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return clb_f16_to_f32(h);
}

static uint16_t load16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

/* Nibble of column c of one row inside a segment. */
static int32_t nibble_at(const uint8_t *row, int32_t seg, int32_t c)
{
    int32_t half = seg / 2;
    int32_t k = c < half ? c : c - half;
    uint8_t byte = row[(int64_t)(k / 4) * BLOCK * 4 + k % 4];
    return c < half ? byte & 15 : byte >> 4;
}

void clb_weight_row(const clb_weight *w, int32_t row, float *out)
{
    static const int32_t fp8_place[4] = {0, 2, 1, 3};
    const uint8_t *block = w->data + row / BLOCK * w->block_bytes;
    const int32_t lane = row % BLOCK;
    const int64_t data_bytes = segment_data_bytes(w);
    const uint8_t *row_scale = block + w->n_seg * w->seg_bytes + lane * 4;

    for (int32_t s = 0; s < w->n_seg; s++) {
        const uint8_t *segment = block + s * w->seg_bytes;
        const uint8_t *mine = segment + lane * 4;
        const uint8_t *scale = segment + data_bytes;
        const int32_t first = s * w->seg;
        const int32_t n = w->cols - first < w->seg ? w->cols - first : w->seg;
        for (int32_t c = 0; c < n; c++) {
            const uint8_t *byte = mine + (int64_t)(c / 4) * BLOCK * 4 + c % 4; /* 8-bit formats */
            float v = 0;
            switch (w->format) {
            case COLIBRI_FORMAT_F32:
                v = load_f32(mine);
                break;
            case COLIBRI_FORMAT_BF16:
                v = clb_bf16_to_f32(load16(mine + c * 2));
                break;
            case COLIBRI_FORMAT_F16:
                v = load_f16(mine + c * 2);
                break;
            case COLIBRI_FORMAT_I8_ROW:
                v = (float)(*byte - 128) * load_f32(row_scale);
                break;
            case COLIBRI_FORMAT_I4_ROW:
                v = (float)(nibble_at(mine, w->seg, c) - 8) * load_f32(row_scale);
                break;
            case COLIBRI_FORMAT_I4_GROUP:
                v = (float)(nibble_at(mine, w->seg, c) - 8) * load_f32(scale + lane * 4);
                break;
            case COLIBRI_FORMAT_FP8_BLOCK:
                v = clb_fp8_to_f32(mine[(int64_t)(c / 4) * BLOCK * 4 + fp8_place[c % 4]]) * load_f32(scale);
                break;
            case COLIBRI_FORMAT_Q4_0:
                v = (float)(nibble_at(mine, w->seg, c) - 8) * load_f16(scale + lane * 2);
                break;
            case COLIBRI_FORMAT_Q4_1:
                v = (float)nibble_at(mine, w->seg, c) * load_f16(scale + lane * 2) +
                    load_f16(scale + 64 + lane * 2);
                break;
            default:
                v = (float)(*byte - 128) * load_f16(scale + lane * 2);
                break;
            }
            out[first + c] = v;
        }
    }
}
