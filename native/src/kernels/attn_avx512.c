/* attn_avx512.c - attention (attn_body.h) for AVX-512 with BF16 dot products.
 *
 * Queries and probabilities are bf16 pairs broadcast from memory, keys and values bf16 pairs in
 * vectors: one vdpbf16ps is 32 multiply-adds. A product tile is up to 6 rows by 4 vectors, its 24 sums
 * in registers; they are named one by one because an array of them ends up in memory. The sum of the
 * probabilities is that of their rounded values, so the weights of a row add up to one.
 */
#if defined(__x86_64__)
#define CLB_SIMD_AVX512
#define CLB_ATTN(name) clb_attn_avx512_##name
#include "simd.h"

#include "attn.h"

typedef uint16_t attn_elem;

static void attn_pack(attn_elem *dst, const float *src, int32_t n)
{
    int32_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(void *)(dst + i),
                            (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(src + i)));
    for (; i < n; i++)
        dst[i] = s_bf16(src[i]);
}

/* ---- products ------------------------------------------------------------------------------------ */

#define DOT(acc, a, b) acc = _mm512_dpbf16_ps(acc, (__m512bh)(a), (__m512bh)(b))

CLB_INLINE __m512i broadcast_pair(const uint16_t *p)
{
    int32_t x;
    memcpy(&x, p, 4);
    return _mm512_set1_epi32(x);
}

/* For each row of the tile (X = what to do with a row). */
#define ROWS_1(X) X(0)
#define ROWS_2(X) X(0) X(1)
#define ROWS_3(X) ROWS_2(X) X(2)
#define ROWS_4(X) ROWS_3(X) X(3)
#define ROWS_5(X) ROWS_4(X) X(4)
#define ROWS_6(X) ROWS_5(X) X(5)

#define ZERO_ROW(r) __m512 a##r##0 = zero, a##r##1 = zero, a##r##2 = zero, a##r##3 = zero;
#define STEP_ROW(r)                                                                                          \
    {                                                                                                        \
        __m512i x = broadcast_pair(a + (r) * lda);                                                           \
        DOT(a##r##0, b0, x);                                                                                 \
        if (vectors > 1)                                                                                     \
            DOT(a##r##1, b1, x);                                                                             \
        if (vectors > 2)                                                                                     \
            DOT(a##r##2, b2, x);                                                                             \
        if (vectors > 3)                                                                                     \
            DOT(a##r##3, b3, x);                                                                             \
    }
#define STORE_ROW(r)                                                                                         \
    {                                                                                                        \
        _mm512_storeu_ps(c + (r) * ldc, a##r##0);                                                            \
        if (vectors > 1)                                                                                     \
            _mm512_storeu_ps(c + (r) * ldc + 16, a##r##1);                                                   \
        if (vectors > 2)                                                                                     \
            _mm512_storeu_ps(c + (r) * ldc + 32, a##r##2);                                                   \
        if (vectors > 3)                                                                                     \
            _mm512_storeu_ps(c + (r) * ldc + 48, a##r##3);                                                   \
    }
#define MERGE_VECTOR(r, v)                                                                                   \
    if (vectors > v)                                                                                         \
        _mm512_storeu_ps(c + (r) * ldc + 16 * v,                                                             \
                         _mm512_fmadd_ps(kept ? _mm512_loadu_ps(c + (r) * ldc + 16 * v) : zero, k,           \
                                         _mm512_mul_ps(a##r##v, g)));
#define MERGE_ROW(r)                                                                                         \
    {                                                                                                        \
        int kept = keep[r] != 0.0f;                                                                          \
        __m512 k = _mm512_set1_ps(keep[r]), g = _mm512_set1_ps(gain[r]);                                     \
        MERGE_VECTOR(r, 0)                                                                                   \
        MERGE_VECTOR(r, 1)                                                                                   \
        MERGE_VECTOR(r, 2)                                                                                   \
        MERGE_VECTOR(r, 3)                                                                                   \
    }

/* c[row][16*v + lane] over `pairs` steps; vector v of a step lies v*step pairs after b, steps are ldb
 * pairs apart. finish: STORE_ROW writes the sums, MERGE_ROW folds them into c. */
#define DEFINE_TILE(name, rows, finish)                                                                      \
    CLB_INLINE void name(const uint16_t *a, size_t lda, const uint32_t *b, size_t ldb, size_t step,          \
                         int32_t pairs, const int vectors, float *c, size_t ldc, const float *keep,          \
                         const float *gain)                                                                  \
    {                                                                                                        \
        const __m512 zero = _mm512_setzero_ps();                                                             \
        (void)keep, (void)gain;                                                                              \
        ROWS_##rows(ZERO_ROW) for (int32_t j = 0; j < pairs; j++, a += 2, b += ldb)                          \
        {                                                                                                    \
            __m512i b0 = _mm512_loadu_si512(b), b1 = b0, b2 = b0, b3 = b0;                                   \
            if (vectors > 1)                                                                                 \
                b1 = _mm512_loadu_si512(b + step);                                                           \
            if (vectors > 2)                                                                                 \
                b2 = _mm512_loadu_si512(b + 2 * step);                                                       \
            if (vectors > 3)                                                                                 \
                b3 = _mm512_loadu_si512(b + 3 * step);                                                       \
            ROWS_##rows(STEP_ROW)                                                                            \
        }                                                                                                    \
        ROWS_##rows(finish)                                                                                  \
    }

#define DEFINE_TILES(name, finish)                                                                           \
    DEFINE_TILE(name##_1, 1, finish)                                                                         \
    DEFINE_TILE(name##_2, 2, finish)                                                                         \
    DEFINE_TILE(name##_3, 3, finish)                                                                         \
    DEFINE_TILE(name##_4, 4, finish)                                                                         \
    DEFINE_TILE(name##_5, 5, finish)                                                                         \
    DEFINE_TILE(name##_6, 6, finish)

DEFINE_TILES(store_tile, STORE_ROW)
DEFINE_TILES(merge_tile, MERGE_ROW)

/* All rows of one column block of `vectors` vectors, 6 at a time. */
#define RUN_ROWS(tile, vectors)                                                                              \
    for (int32_t r = 0; r < rows; r += 6) {                                                                  \
        const uint16_t *ar = a + (size_t)r * lda;                                                            \
        float *cr = c + (size_t)r * ldc;                                                                     \
        const float *kr = keep ? keep + r : NULL, *gr = gain ? gain + r : NULL;                              \
        prefetch_lines(ahead, 24);                                                                           \
        switch (rows - r) {                                                                                  \
        case 1:                                                                                              \
            tile##_1(ar, lda, b, ldb, step, pairs, vectors, cr, ldc, kr, gr);                                \
            break;                                                                                           \
        case 2:                                                                                              \
            tile##_2(ar, lda, b, ldb, step, pairs, vectors, cr, ldc, kr, gr);                                \
            break;                                                                                           \
        case 3:                                                                                              \
            tile##_3(ar, lda, b, ldb, step, pairs, vectors, cr, ldc, kr, gr);                                \
            break;                                                                                           \
        case 4:                                                                                              \
            tile##_4(ar, lda, b, ldb, step, pairs, vectors, cr, ldc, kr, gr);                                \
            break;                                                                                           \
        case 5:                                                                                              \
            tile##_5(ar, lda, b, ldb, step, pairs, vectors, cr, ldc, kr, gr);                                \
            break;                                                                                           \
        default:                                                                                             \
            tile##_6(ar, lda, b, ldb, step, pairs, vectors, cr, ldc, kr, gr);                                \
        }                                                                                                    \
    }

#define DEFINE_RUN(name, tile)                                                                               \
    static void name(const uint16_t *a, size_t lda, int32_t rows, const uint32_t *b, size_t ldb,             \
                     size_t step, int32_t vectors, int32_t pairs, float *c, size_t ldc, const float *keep,   \
                     const float *gain, row_prefetch *ahead)                                                 \
    {                                                                                                        \
        if (vectors == 4) {                                                                                  \
            RUN_ROWS(tile, 4)                                                                                \
        } else if (vectors == 3) {                                                                           \
            RUN_ROWS(tile, 3)                                                                                \
        } else if (vectors == 2) {                                                                           \
            RUN_ROWS(tile, 2)                                                                                \
        } else {                                                                                             \
            RUN_ROWS(tile, 1)                                                                                \
        }                                                                                                    \
    }

DEFINE_RUN(store_product, store_tile)
DEFINE_RUN(merge_product, merge_tile)

/* A few rows wait for the keys to come from memory: then one group at a time, so that the keys are read
 * in the order they lie in, which is what the processor's own prefetch follows. */
static void attn_scores(const attn_elem *a, int32_t rows, const uint32_t *b, int32_t groups, int32_t pairs,
                        float *c, row_prefetch *ahead)
{
    const int32_t at_once = rows <= 12 ? 1 : 4;
    const size_t step = (size_t)pairs * 16;
    for (int32_t g = 0; g < groups; g += at_once)
        store_product(a, (size_t)pairs * 2, rows, b + (size_t)g * step, 16, step,
                      groups - g < at_once ? groups - g : at_once, pairs, c + 16 * g, CLB_SPAN, NULL, NULL,
                      ahead);
}

static void attn_values(const attn_elem *p, int32_t rows, const uint32_t *v, int32_t width, int32_t pairs,
                        float *out, const float *keep, const float *gain, row_prefetch *ahead)
{
    for (int32_t i = 0; i < width; i += 64)
        merge_product(p, CLB_SPAN, rows, v + i, (size_t)width, 16, width - i < 64 ? (width - i) / 16 : 4,
                      pairs, out + i, (size_t)width, keep, gain, ahead);
}

/* ---- softmax ------------------------------------------------------------------------------------- */

/* 2^y for y <= 0 (and NaN), as exact as the bf16 it is rounded to can show: relative error 8e-5. The
 * polynomial covers the fraction above the next lower integer, by which scalef then scales. */
CLB_INLINE __m512 exp2_short(__m512 y)
{
    __m512 f = _mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 q = _mm512_set1_ps(0.07802452f);
    q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(0.22606716f));
    q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(0.69583356f));
    q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(0.9999252f));
    return _mm512_scalef_ps(q, y);
}

/* Mask of the lanes of 16-token group g among n tokens. */
CLB_INLINE __mmask16 group_mask(int32_t n, int g)
{
    int32_t left = n - 16 * g;
    return left >= 16 ? 0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);
}

/* Folds 16 vectors into one whose lane r is v[r] folded with OP, always in the same tree. */
#define DEFINE_FOLD(name, OP)                                                                                \
    CLB_INLINE __m512 name(__m512 v[16])                                                                     \
    {                                                                                                        \
        __m512 u[4];                                                                                         \
        for (int i = 0; i < 4; i++) {                                                                        \
            const __m512 *w = v + 4 * i;                                                                     \
            __m512d x = (__m512d)OP(_mm512_unpacklo_ps(w[0], w[1]), _mm512_unpackhi_ps(w[0], w[1]));         \
            __m512d y = (__m512d)OP(_mm512_unpacklo_ps(w[2], w[3]), _mm512_unpackhi_ps(w[2], w[3]));         \
            u[i] = OP((__m512)_mm512_unpacklo_pd(x, y), (__m512)_mm512_unpackhi_pd(x, y));                   \
        }                                                                                                    \
        __m512 x = OP(_mm512_shuffle_f32x4(u[0], u[1], 0x88), _mm512_shuffle_f32x4(u[0], u[1], 0xdd));       \
        __m512 y = OP(_mm512_shuffle_f32x4(u[2], u[3], 0x88), _mm512_shuffle_f32x4(u[2], u[3], 0xdd));       \
        return OP(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));                       \
    }

DEFINE_FOLD(fold_max, _mm512_max_ps)
DEFINE_FOLD(fold_sum, _mm512_add_ps)

CLB_INLINE __m512 load_scores(const float *s, int32_t n, int g, const int is_full)
{
    if (is_full)
        return _mm512_loadu_ps(s + 16 * g);
    return _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), group_mask(n, g), s + 16 * g);
}

CLB_INLINE __m512 row_max(const float *s, int32_t n, const int is_full)
{
#define S(g) load_scores(s, n, g, is_full)
    return _mm512_max_ps(_mm512_max_ps(_mm512_max_ps(S(0), S(1)), _mm512_max_ps(S(2), S(3))),
                         _mm512_max_ps(_mm512_max_ps(S(4), S(5)), _mm512_max_ps(S(6), S(7))));
#undef S
}

/* Writes the probabilities of one row and returns their sum, still spread over the lanes. */
CLB_INLINE __m512 row_probs(const float *s, int32_t n, float scale, float max, uint16_t *p, const int is_full)
{
    const __m512 c = _mm512_set1_ps(scale), shift = _mm512_set1_ps(-max);
    const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    __m512 sum = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int g = 0; g < 8; g += 2) {
        __m512 x = exp2_short(_mm512_fmadd_ps(_mm512_loadu_ps(s + 16 * g), c, shift));
        __m512 y = exp2_short(_mm512_fmadd_ps(_mm512_loadu_ps(s + 16 * g + 16), c, shift));
        if (!is_full) {
            x = _mm512_maskz_mov_ps(group_mask(n, g), x);
            y = _mm512_maskz_mov_ps(group_mask(n, g + 1), y);
        }
        __m512bh e = _mm512_cvtne2ps_pbh(y, x);
        _mm512_storeu_si512(p + 16 * g, (__m512i)e);
        sum = _mm512_dpbf16_ps(sum, e, ones);
    }
    return sum;
}

static void attn_softmax(float (*s)[CLB_SPAN], int32_t rows, const int32_t *n, float scale,
                         attn_elem (*p)[CLB_SPAN], float *max, float *sum)
{
    for (int32_t r = 0; r < rows; r += 16) {
        int32_t count = rows - r < 16 ? rows - r : 16;
        __m512 v[16];
        for (int32_t i = 0; i < count; i++)
            v[i] = n[r + i] == CLB_SPAN ? row_max(s[r + i], CLB_SPAN, 1) : row_max(s[r + i], n[r + i], 0);
        for (int32_t i = count; i < 16; i++)
            v[i] = _mm512_setzero_ps();
        _mm512_storeu_ps(max + r, _mm512_mul_ps(fold_max(v), _mm512_set1_ps(scale)));
        for (int32_t i = 0; i < count; i++)
            v[i] = n[r + i] == CLB_SPAN ? row_probs(s[r + i], CLB_SPAN, scale, max[r + i], p[r + i], 1)
                                        : row_probs(s[r + i], n[r + i], scale, max[r + i], p[r + i], 0);
        _mm512_storeu_ps(sum + r, fold_sum(v));
    }
}

/* ---- rearranging --------------------------------------------------------------------------------- */

#define SHUFFLE(x, y, which) _mm512_shuffle_i32x4(x, y, which)

/* Columns of a 16x16 matrix of 32-bit numbers: row i goes to lane i of each of the 16 vectors at dst,
 * of which the first `columns` are written. */
CLB_INLINE void transpose_16(uint32_t *dst, const __m512i row[16], int32_t columns)
{
    __m512i t[16], u[16];
    /* u[4g+c], 128-bit lane l: column 4l+c of rows 4g..4g+3 */
#pragma GCC unroll 4
    for (int g = 0; g < 16; g += 4) {
        t[g] = _mm512_unpacklo_epi32(row[g], row[g + 1]);
        t[g + 1] = _mm512_unpackhi_epi32(row[g], row[g + 1]);
        t[g + 2] = _mm512_unpacklo_epi32(row[g + 2], row[g + 3]);
        t[g + 3] = _mm512_unpackhi_epi32(row[g + 2], row[g + 3]);
        u[g] = _mm512_unpacklo_epi64(t[g], t[g + 2]);
        u[g + 1] = _mm512_unpackhi_epi64(t[g], t[g + 2]);
        u[g + 2] = _mm512_unpacklo_epi64(t[g + 1], t[g + 3]);
        u[g + 3] = _mm512_unpackhi_epi64(t[g + 1], t[g + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m512i a = SHUFFLE(u[c], u[4 + c], 0x44), b = SHUFFLE(u[8 + c], u[12 + c], 0x44);
        __m512i d = SHUFFLE(u[c], u[4 + c], 0xee), e = SHUFFLE(u[8 + c], u[12 + c], 0xee);
        t[c] = SHUFFLE(a, b, 0x88);
        t[4 + c] = SHUFFLE(a, b, 0xdd);
        t[8 + c] = SHUFFLE(d, e, 0x88);
        t[12 + c] = SHUFFLE(d, e, 0xdd);
    }
    if (columns == 16) {
#pragma GCC unroll 16
        for (int c = 0; c < 16; c++)
            _mm512_storeu_si512(dst + 16 * c, t[c]);
    } else {
        for (int32_t c = 0; c < columns; c++)
            _mm512_storeu_si512(dst + 16 * c, t[c]);
    }
}

static void attn_transpose(uint32_t *dst, const uint32_t *const *rows, int32_t n, int32_t pairs)
{
    int32_t j = 0;
    __m512i v[16];
    if (n == 16) {
        for (; j + 16 <= pairs; j += 16) {
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++)
                v[i] = _mm512_loadu_si512(rows[i] + j);
            transpose_16(dst + 16 * j, v, 16);
        }
    }
    for (; j < pairs; j += 16) {
        int32_t columns = pairs - j < 16 ? pairs - j : 16;
        __mmask16 mask = (__mmask16)((1u << columns) - 1);
        for (int32_t i = 0; i < 16; i++)
            v[i] = i < n ? _mm512_maskz_loadu_epi32(mask, rows[i] + j) : _mm512_setzero_si512();
        transpose_16(dst + 16 * j, v, columns);
    }
}

static void attn_interleave(uint32_t *dst, const uint32_t *a, const uint32_t *b, int32_t n)
{
    const __m512i low = _mm512_set1_epi32(0xffff);
    const __m512i first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512i x = _mm512_loadu_si512(a + i), y = _mm512_loadu_si512(b + i);
        __m512i even = _mm512_or_si512(_mm512_and_si512(x, low), _mm512_slli_epi32(y, 16));
        __m512i odd = _mm512_or_si512(_mm512_srli_epi32(x, 16), _mm512_andnot_si512(low, y));
        _mm512_storeu_si512(dst + 2 * i, _mm512_permutex2var_epi32(even, first, odd));
        _mm512_storeu_si512(dst + 2 * i + 16, _mm512_permutex2var_epi32(even, second, odd));
    }
    for (; i < n; i++) {
        dst[2 * i] = (a[i] & 0xffffu) | b[i] << 16;
        dst[2 * i + 1] = a[i] >> 16 | (b[i] & 0xffff0000u);
    }
}

#include "attn_body.h"
#else
typedef int clb_no_attn_avx512; /* a file may not be empty */
#endif
