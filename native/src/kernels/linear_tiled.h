/* linear_tiled.h - what the tiled linear kernels (AVX-512, AVX2, NEON) have in common: how tokens are
 * cut into tiles, how activations lie in memory, and the loop around the tile kernels.
 *
 * Everything here is static inline: each instruction set's file compiles its own copy with its own
 * flags. Included by linear_<isa>.c only.
 *
 * Tiles. Tokens are cut into units of 12; a unit is one tile (up to 6 tokens) or two (the first takes
 * the larger half), so that a batch of 8 is 4 + 4 rather than 6 + 2. Callers cut token ranges at
 * multiples of 12, so every cut lies between tiles.
 *
 * Activations. Tile after tile; within a tile of T tokens segment after segment:
 *   Q8   : first, for the whole tile, one byte per segment: 1 = it has a second plane (of any token);
 *          then per segment [seg/4][T] dwords (4 int8 of consecutive columns), then T each of
 *          int32 -8*sum(q1), int32 -128*sum(q1), f32 a_scale, f32 sum of x; with a second plane then
 *          [seg/4][T] dwords of q2 (0 for tokens without one), T each of -8*sum(q2), -128*sum(q2)
 *   BF16 : [pairs][T] dwords (2 bf16), columns padded to a multiple of 128 with zeros; an instruction
 *          set without bf16 arithmetic defines CLB_BF16_AS_F32 and gets [cols][T] f32 of the same values
 *   F32  : [cols][T] f32
 * A weight kernel thus reads one ascending stream and broadcasts one dword per token and step. The
 * unsigned weights of VNNI (nibble, byte ^ 0x80) carry an offset of 8 or 128; starting the integer
 * sum at -8*sum(q) or -128*sum(q) removes it for free.
 *
 * Loop order of `linear`: token chunk > row block > tile. The activations of a token chunk and a row
 * block of weights stay in the second-level cache; its tiles together prefetch the next block.
 * Cutting the columns as well, so that weights come from the first level, was measured and loses: a
 * tile reads only a few bytes per cycle, and sums that leave their registers cost more.
 */
#ifndef CLB_LINEAR_TILED_H
#define CLB_LINEAR_TILED_H

#include <string.h>

#include "linear.h"

#define CLB_TILE 6       /* tokens of the widest tile */
#define CLB_UNIT 12      /* tokens of two such tiles: CLB_LINEAR_TILED_ALIGN */
#define CLB_SEG_EXTRA 16 /* bytes behind a Q8 segment, per token */
#define CLB_REST_EXTRA 8 /* the same behind a second plane */
#define CLB_MAX_CHUNK_TOKENS 240
#define CLB_ROWS CLB_BLOCK_ROWS

#if CLB_UNIT != CLB_LINEAR_TILED_ALIGN
#error "tiles and the alignment promised to callers disagree"
#endif

#if defined(CLB_BF16_AS_F32)
#define CLB_BF16_SEG_BYTES 512
typedef float clb_rounded; /* how a bf16 activation is stored */
#else
#define CLB_BF16_SEG_BYTES 256
typedef uint16_t clb_rounded;
#endif

/* One call of a tile kernel: T tokens times one block of 32 rows. */
typedef struct {
    const uint8_t *w;        /* first segment of the row block */
    const uint8_t *act;      /* the tile's activations */
    const uint8_t *prefetch; /* fetch two lines from here on, */
    ptrdiff_t prefetch_step; /* then go on by this many bytes, once per 128 bytes of w */
    int32_t n_seg;
    const float *row_scale; /* f32[32], formats with row scales only */
    float *y;               /* token 0, row 0 of the block */
    int64_t ldy;
    int32_t live; /* rows of the block that exist */
    int32_t flags;
} clb_tile_args;

typedef void (*clb_tile_fn)(const clb_tile_args *args);

static inline int clb_kind_quantized(int32_t kind)
{
    return kind >= CLB_ACT_Q8_16;
}

static inline int32_t clb_kind_seg(int32_t kind)
{
    return clb_kind_quantized(kind) ? clb_quantized_seg(kind) : kind == CLB_ACT_BF16 ? 128 : 1;
}

/* Bytes of the marks in front of a quantized tile. */
static inline int64_t clb_mark_bytes(int32_t n_seg)
{
    return ((int64_t)n_seg + 63) & ~INT64_C(63);
}

/* Bytes of one token's share of a segment, without a second plane. */
static inline int64_t clb_act_seg_bytes(int32_t kind)
{
    if (kind == CLB_ACT_F32)
        return 4;
    if (kind == CLB_ACT_BF16)
        return CLB_BF16_SEG_BYTES;
    return clb_kind_seg(kind) + CLB_SEG_EXTRA;
}

/* Bytes set aside per token: room for marks, two planes of every segment, and the list of magnitudes
 * that choosing them needs (8 bytes a segment, at the tile's end). */
static inline int64_t clb_act_token_bytes(int32_t kind, int32_t cols)
{
    const int32_t seg = clb_kind_seg(kind), n_seg = (cols + seg - 1) / seg;
    if (!clb_kind_quantized(kind))
        return n_seg * clb_act_seg_bytes(kind);
    const int64_t bytes =
        clb_mark_bytes(n_seg) + n_seg * (int64_t)(2 * seg + CLB_SEG_EXTRA + CLB_REST_EXTRA + 8);
    return (bytes + 63) & ~INT64_C(63);
}

/* Bytes per token that a kernel reads. */
static inline int64_t clb_act_read_bytes(int32_t kind, int32_t cols)
{
    const int32_t seg = clb_kind_seg(kind), n_seg = (cols + seg - 1) / seg;
    const int64_t rest =
        clb_kind_quantized(kind) ? clb_second_planes(kind, n_seg) * (int64_t)(seg + CLB_REST_EXTRA) : 0;
    return n_seg * clb_act_seg_bytes(kind) + rest;
}

/* Tokens of the tile that starts at token t of n. t is a tile's start. */
static inline int32_t clb_tile_width(int32_t t, int32_t n)
{
    int32_t start = t / CLB_UNIT * CLB_UNIT;
    int32_t in_unit = n - start < CLB_UNIT ? n - start : CLB_UNIT;
    if (in_unit <= CLB_TILE)
        return in_unit;
    int32_t first = (in_unit + 1) / 2;
    return t == start ? first : in_unit - first;
}

/* Tiles of tokens [t0, t1); both lie between tiles. */
static inline int32_t clb_tiles(int32_t t0, int32_t t1, int32_t n)
{
    int32_t count = 0;
    for (int32_t t = t0; t < t1; t += clb_tile_width(t, n))
        count++;
    return count;
}

/* Tokens per pass: few enough that their activations stay in the second-level cache while row blocks
 * go by, many enough that reading a row block again for the next chunk costs little. */
static inline int32_t clb_chunk_tokens(int64_t token_bytes)
{
    int64_t fit = (int64_t)(768 << 10) / token_bytes / CLB_UNIT * CLB_UNIT;
    return fit < 96 ? 96 : fit > CLB_MAX_CHUNK_TOKENS ? CLB_MAX_CHUNK_TOKENS : (int32_t)fit;
}

#define CLB_PREFETCH_AHEAD (16 << 10) /* bytes, where a single tile streams the weights */

/* Where a tile prefetches, and how fast. Several tiles share the next row block, so that reading it
 * overlaps with all of the computing. A single tile fetches a little ahead, but only if it computes
 * longer than it reads: else the hardware prefetcher alone is faster. */
static inline void clb_plan_prefetch(clb_tile_args *args, const clb_weight *w, int32_t tiles, int32_t width)
{
    const int heavy = w->format != COLIBRI_FORMAT_F32 && w->format != COLIBRI_FORMAT_BF16 &&
                      w->format != COLIBRI_FORMAT_I8_ROW && w->format != COLIBRI_FORMAT_Q8_0;
    if (tiles > 1) {
        args->prefetch = args->w + w->block_bytes;
        args->prefetch_step = (128 + tiles - 1) / tiles;
    } else if (heavy && width >= 4) {
        args->prefetch = args->w + CLB_PREFETCH_AHEAD;
        args->prefetch_step = 128;
    } else {
        args->prefetch = args->w;
        args->prefetch_step = 0;
    }
}

/* The loop of every tiled `linear`; `tiles` are the kernels of the weight's format, [T-1]. */
static inline void clb_linear_tiled(const clb_tile_fn *tiles, const clb_weight *w, const void *act, int32_t n,
                                    int32_t t0, int32_t t1, float *y, int64_t ldy, int32_t block0,
                                    int32_t block1, int32_t flags)
{
    const int64_t token_bytes = clb_act_token_bytes(w->act, w->cols);
    const int32_t chunk = clb_chunk_tokens(clb_act_read_bytes(w->act, w->cols));
    for (int32_t c0 = t0; c0 < t1; c0 += chunk) {
        const int32_t c1 = t1 - c0 < chunk ? t1 : c0 + chunk;
        const int32_t count = clb_tiles(c0, c1, n);
        for (int32_t b = block0; b < block1; b++) {
            const uint8_t *block = w->data + b * w->block_bytes;
            clb_tile_args args = {
                .w = block,
                .n_seg = w->n_seg,
                .row_scale = (const float *)(const void *)(block + w->n_seg * w->seg_bytes),
                .ldy = ldy,
                .live = w->rows - b * CLB_ROWS < CLB_ROWS ? w->rows - b * CLB_ROWS : CLB_ROWS,
                .flags = flags,
            };
            clb_plan_prefetch(&args, w, count, c1 - c0);
            for (int32_t t = c0; t < c1;) {
                args.act = (const uint8_t *)act + t * token_bytes;
                args.y = y + t * ldy + (int64_t)b * CLB_ROWS;
                const int32_t width = clb_tile_width(t, n);
                tiles[width - 1](&args);
                args.prefetch += w->block_bytes / count;
                t += width;
            }
        }
    }
}

#define CLB_WIDTHS(name) {name##_1, name##_2, name##_3, name##_4, name##_5, name##_6}
/* Defines tiles_for(): the kernels of a weight's format, from the functions <format>_<T> in scope. */
#define CLB_DEFINE_TILES_FOR()                                                                               \
    static const clb_tile_fn *tiles_for(const clb_weight *w)                                                 \
    {                                                                                                        \
        static const clb_tile_fn i4_group16[] = CLB_WIDTHS(i4_group16);                                      \
        static const clb_tile_fn i4_group32[] = CLB_WIDTHS(i4_group32);                                      \
        static const clb_tile_fn i4_group64[] = CLB_WIDTHS(i4_group64);                                      \
        static const clb_tile_fn q8_0[] = CLB_WIDTHS(q8_0);                                                  \
        static const clb_tile_fn f32[] = CLB_WIDTHS(f32);                                                    \
        static const clb_tile_fn bf16[] = CLB_WIDTHS(bf16);                                                  \
        static const clb_tile_fn f16[] = CLB_WIDTHS(f16);                                                    \
        static const clb_tile_fn i8_row[] = CLB_WIDTHS(i8_row);                                              \
        static const clb_tile_fn i4_row[] = CLB_WIDTHS(i4_row);                                              \
        static const clb_tile_fn fp8[] = CLB_WIDTHS(fp8);                                                    \
        static const clb_tile_fn q4_0[] = CLB_WIDTHS(q4_0);                                                  \
        static const clb_tile_fn q4_1[] = CLB_WIDTHS(q4_1);                                                  \
        switch (w->format) {                                                                                 \
        case COLIBRI_FORMAT_F32:                                                                             \
            return f32;                                                                                      \
        case COLIBRI_FORMAT_BF16:                                                                            \
            return bf16;                                                                                     \
        case COLIBRI_FORMAT_F16:                                                                             \
            return f16;                                                                                      \
        case COLIBRI_FORMAT_I8_ROW:                                                                          \
            return i8_row;                                                                                   \
        case COLIBRI_FORMAT_I4_ROW:                                                                          \
            return i4_row;                                                                                   \
        case COLIBRI_FORMAT_FP8_BLOCK:                                                                       \
            return fp8;                                                                                      \
        case COLIBRI_FORMAT_Q4_0:                                                                            \
            return q4_0;                                                                                     \
        case COLIBRI_FORMAT_Q4_1:                                                                            \
            return q4_1;                                                                                     \
        case COLIBRI_FORMAT_I4_GROUP:                                                                        \
            return w->seg == 16 ? i4_group16 : w->seg == 32 ? i4_group32 : i4_group64;                       \
        default:                                                                                             \
            return q8_0;                                                                                     \
        }                                                                                                    \
    }

/* How one instruction set quantizes n_seg <= CLB_QUANTIZE_SEGS segments of a token: n <= n_seg * seg
 * values x, the rest counts as 0. Writes int8 [n_seg * seg] and, per segment, scale and sum of the
 * int8 values. A segment with a value that is not finite gets a NaN scale and zeros; one whose
 * largest magnitude is below CLB_ACT_TINY gets scale 0 and zeros. */
#define CLB_QUANTIZE_SEGS 16
typedef struct {
    _Alignas(64) int8_t q[CLB_QUANTIZE_SEGS * 64];
    _Alignas(64) float scale[CLB_QUANTIZE_SEGS];
    _Alignas(64) int32_t sum[CLB_QUANTIZE_SEGS];
} clb_quantized;
typedef void (*clb_quantize_fn)(const float *x, int32_t n, int32_t seg, int32_t n_seg, clb_quantized *out);
/* n <= 128 values to bf16, the rest of the 128 is 0. */
typedef void (*clb_round_fn)(const float *x, int32_t n, clb_rounded *out);

/* Spreads `words` dwords of one token over a tile of `width` tokens. */
static inline void clb_spread_words(const void *src, int32_t words, int32_t width, uint8_t *dst)
{
    for (int32_t i = 0; i < words; i++)
        memcpy(dst + (int64_t)i * width * 4, (const uint8_t *)src + i * 4, 4);
}

/* Row t of the source of act_prepare. */
static inline const float *clb_act_source(const float *x, int64_t ldx, const int32_t *index, int32_t t)
{
    return x + (index != NULL ? index[t] : t) * ldx;
}

/* As clb_topk for n <= CLB_RANK_SEGS magnitudes: comparing each with all others has no branches to guess
 * and is several times faster for the few segments of a small model. */
#define CLB_RANK_SEGS 96
static inline void clb_largest_by_rank(const float *magnitudes, int32_t n, int32_t k, int32_t *out)
{
    int32_t bits[CLB_RANK_SEGS]; /* of numbers >= 0 and NaN: they compare like what they stand for */
    int32_t m = 0;
    memcpy(bits, magnitudes, (size_t)n * sizeof *bits);
    for (int32_t i = 0; i < n; i++) {
        int32_t larger = 0;
        for (int32_t j = 0; j < i; j++)
            larger += bits[j] >= bits[i];
        for (int32_t j = i + 1; j < n; j++)
            larger += bits[j] > bits[i];
        out[m] = i;
        m += larger < k;
        if (m == k)
            return;
    }
}

/* Marks the segments of a tile that get a second plane and lists each token's: lists[i][0 .. planes-1],
 * ascending. The lists lie in the tile's own memory, behind everything that kernels read. */
static inline void clb_choose_planes(int32_t kind, int32_t cols, const float *x, int64_t ldx,
                                     const int32_t *index, int32_t t, int32_t width, uint8_t *marks,
                                     uint8_t *lists)
{
    const int32_t seg = clb_quantized_seg(kind), n_seg = (cols + seg - 1) / seg;
    const int32_t planes = clb_second_planes(kind, n_seg);
    memset(marks, clb_kind_full(kind), (size_t)clb_mark_bytes(n_seg));
    if (clb_kind_full(kind))
        return;
    for (int32_t i = 0; i < width; i++) {
        const float *src = clb_act_source(x, ldx, index, t + i);
        float *absmax = (float *)(void *)(lists + (int64_t)i * n_seg * 8);
        int32_t *list = (int32_t *)(void *)(absmax + n_seg);
        for (int32_t s = 0; s < n_seg; s++) {
            const int32_t n = cols - s * seg < seg ? cols - s * seg : seg;
            /* As integers: the order of magnitudes, without a branch per value. */
            uint32_t top = 0;
            for (int32_t c = 0; c < n; c++) {
                uint32_t bits;
                memcpy(&bits, &src[s * seg + c], sizeof bits);
                bits &= 0x7fffffff;
                top = bits > top ? bits : top;
            }
            memcpy(&absmax[s], &top, sizeof top);
        }
        if (n_seg <= CLB_RANK_SEGS)
            clb_largest_by_rank(absmax, n_seg, planes, list);
        else
            clb_topk(absmax, n_seg, planes, list);
        for (int32_t k = 0; k < planes; k++)
            marks[list[k]] = 1;
    }
}

/* Quantizes the tile of `width` tokens from t on; `seg` is known at compile time. A run of segments is
 * finished for all tokens before the next, so that what is written stays in the first-level cache. */
static inline __attribute__((always_inline)) void
clb_prepare_quantized(clb_quantize_fn quantize, const int32_t seg, int32_t kind, int32_t cols, const float *x,
                      int64_t ldx, const int32_t *index, int32_t t, int32_t width, uint8_t *tile)
{
    const int32_t n_seg = (cols + seg - 1) / seg, planes = clb_second_planes(kind, n_seg);
    const int full = clb_kind_full(kind);
    uint8_t *lists = tile + (clb_act_token_bytes(kind, cols) - (int64_t)n_seg * 8) * width;
    clb_choose_planes(kind, cols, x, ldx, index, t, width, tile, lists);
    int32_t next[CLB_TILE] = {0}; /* of each token's list */
    uint8_t *dst = tile + clb_mark_bytes(n_seg);
    for (int32_t s0 = 0; s0 < n_seg; s0 += CLB_QUANTIZE_SEGS) {
        const int32_t count = n_seg - s0 < CLB_QUANTIZE_SEGS ? n_seg - s0 : CLB_QUANTIZE_SEGS;
        const int32_t left = cols - s0 * seg;
        uint8_t *end = dst;
        for (int32_t i = 0; i < width; i++) {
            const float *src = clb_act_source(x, ldx, index, t + i) + s0 * seg;
            const int32_t *list = (const int32_t *)(const void *)(lists + (int64_t)i * n_seg * 8 + n_seg * 4);
            uint8_t *at = dst + i * 4;
            clb_quantized part;
            quantize(src, left < count * seg ? left : count * seg, seg, count, &part);
            for (int32_t s = 0; s < count; s++) {
                const int marked = tile[s0 + s];
                const int own = full || (next[i] < planes && list[next[i]] == s0 + s);
                int8_t rest[64];
                int32_t rest_sum = 0;
                float scale = part.scale[s];
                int64_t steps = part.sum[s];
                if (own) {
                    next[i]++;
                    rest_sum = clb_quantize_rest(src + s * seg, left - s * seg < seg ? left - s * seg : seg,
                                                 seg, scale, part.q + s * seg, rest);
                } else if (marked) {
                    memset(rest, 0, sizeof rest);
                }
                if (marked) {
                    scale *= 1.0f / 256;
                    steps = steps * 256 + rest_sum;
                }
                const int32_t offset8 = -8 * part.sum[s];
                const int32_t offset128 = -128 * part.sum[s];
                const float sum = scale * (float)steps;
                uint8_t *extra = at + (int64_t)seg * width;
                clb_spread_words(part.q + s * seg, seg / 4, width, at);
                memcpy(extra, &offset8, 4);
                memcpy(extra + width * 4, &offset128, 4);
                memcpy(extra + width * 8, &scale, 4);
                memcpy(extra + width * 12, &sum, 4);
                at += (int64_t)(seg + CLB_SEG_EXTRA) * width;
                if (!marked)
                    continue;
                const int32_t rest8 = -8 * rest_sum;
                const int32_t rest128 = -128 * rest_sum;
                extra = at + (int64_t)seg * width;
                clb_spread_words(rest, seg / 4, width, at);
                memcpy(extra, &rest8, 4);
                memcpy(extra + width * 4, &rest128, 4);
                at += (int64_t)(seg + CLB_REST_EXTRA) * width;
            }
            end = at - i * 4;
        }
        dst = end;
    }
}

/* Rounds the tile of `width` tokens from t on to bf16. */
static inline void clb_prepare_rounded(clb_round_fn round_bf16, int32_t cols, const float *x, int64_t ldx,
                                       const int32_t *index, int32_t t, int32_t width, uint8_t *tile)
{
    for (int32_t first = 0; first < cols; first += 128) {
        for (int32_t i = 0; i < width; i++) {
            _Alignas(64) clb_rounded rounded[128];
            const float *src = clb_act_source(x, ldx, index, t + i) + first;
            round_bf16(src, cols - first < 128 ? cols - first : 128, rounded);
            clb_spread_words(rounded, CLB_BF16_SEG_BYTES / 4, width, tile + i * 4);
        }
        tile += (int64_t)CLB_BF16_SEG_BYTES * width;
    }
}

/* The body of every tiled act_prepare. */
static inline void clb_act_prepare_tiled(clb_quantize_fn quantize, clb_round_fn round_bf16, int32_t kind,
                                         int32_t cols, int32_t n, const float *x, int64_t ldx,
                                         const int32_t *index, void *out, int32_t t0, int32_t t1)
{
    const int64_t token_bytes = clb_act_token_bytes(kind, cols);
    for (int32_t t = t0; t < t1;) {
        const int32_t width = clb_tile_width(t, n);
        uint8_t *tile = (uint8_t *)out + t * token_bytes;
        switch (kind) {
        case CLB_ACT_Q8_16:
            clb_prepare_quantized(quantize, 16, kind, cols, x, ldx, index, t, width, tile);
            break;
        case CLB_ACT_Q8_32:
        case CLB_ACT_Q8_32_FULL:
            clb_prepare_quantized(quantize, 32, kind, cols, x, ldx, index, t, width, tile);
            break;
        case CLB_ACT_Q8_64:
        case CLB_ACT_Q8_64_FULL:
            clb_prepare_quantized(quantize, 64, kind, cols, x, ldx, index, t, width, tile);
            break;
        case CLB_ACT_BF16:
            clb_prepare_rounded(round_bf16, cols, x, ldx, index, t, width, tile);
            break;
        default:
            for (int32_t i = 0; i < width; i++)
                clb_spread_words(clb_act_source(x, ldx, index, t + i), cols, width, tile + i * 4);
            break;
        }
        t += width;
    }
}

#endif
