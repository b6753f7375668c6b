/* attn_f32.h - the products and the softmax of attn_body.h in f32 arithmetic, over simd.h.
 *
 * For the sets without bf16 dot products (baseline, AVX2, NEON): keys and values are widened on the
 * fly, queries and probabilities stay f32.
 */
typedef float attn_elem;

#define ATTN_VECTORS (16 / VW) /* vectors per group of 16 lanes */

CLB_INLINE void attn_pack(attn_elem *dst, const float *src, int32_t n)
{
    memcpy(dst, src, (size_t)n * sizeof *dst);
}

/* acc[row][vector] over all pairs, for up to 4 rows and one group of 16 lanes. */
CLB_INLINE void multiply(const float *a, size_t lda, const uint32_t *b, size_t ldb, int32_t pairs,
                         const int rows, vf acc[4][ATTN_VECTORS])
{
    vf sum[4][ATTN_VECTORS] = {{{0}}};
    for (int32_t j = 0; j < pairs; j++, a += 2, b += ldb) {
        vf low[ATTN_VECTORS], high[ATTN_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < ATTN_VECTORS; v++) {
            vu pair = v_load_u32(b + v * VW);
            low[v] = v_low_bf16(pair);
            high[v] = v_high_bf16(pair);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            vf x = v_set1(a[(size_t)r * lda]), y = v_set1(a[(size_t)r * lda + 1]);
#pragma GCC unroll 4
            for (int v = 0; v < ATTN_VECTORS; v++)
                sum[r][v] = v_fma(y, high[v], v_fma(x, low[v], sum[r][v]));
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < ATTN_VECTORS; v++)
            acc[r][v] = sum[r][v];
}

CLB_INLINE void scores_rows(const float *a, const uint32_t *b, int32_t pairs, float *c, const int rows)
{
    vf acc[4][ATTN_VECTORS];
    multiply(a, (size_t)pairs * 2, b, 16, pairs, rows, acc);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < ATTN_VECTORS; v++)
            v_store(c + r * CLB_SPAN + v * VW, acc[r][v]);
}

static void attn_scores(const attn_elem *a, int32_t rows, const uint32_t *b, int32_t groups, int32_t pairs,
                        float *c, row_prefetch *ahead)
{
    size_t lda = (size_t)pairs * 2;
    for (int32_t g = 0; g < groups; g++, b += (size_t)pairs * 16, c += 16)
        for (int32_t r = 0; r < rows; r += 4) {
            const float *ar = a + (size_t)r * lda;
            float *cr = c + (size_t)r * CLB_SPAN;
            prefetch_lines(ahead, 12);
            switch (rows - r) {
            case 1:
                scores_rows(ar, b, pairs, cr, 1);
                break;
            case 2:
                scores_rows(ar, b, pairs, cr, 2);
                break;
            case 3:
                scores_rows(ar, b, pairs, cr, 3);
                break;
            default:
                scores_rows(ar, b, pairs, cr, 4);
            }
        }
}

CLB_INLINE void values_rows(const float *a, const uint32_t *b, size_t ldb, int32_t pairs, float *out,
                            size_t ldo, const float *keep, const float *gain, const int rows)
{
    vf acc[4][ATTN_VECTORS];
    multiply(a, CLB_SPAN, b, ldb, pairs, rows, acc);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        vf k = v_set1(keep[r]), g = v_set1(gain[r]);
#pragma GCC unroll 4
        for (int v = 0; v < ATTN_VECTORS; v++) {
            float *o = out + (size_t)r * ldo + v * VW;
            vf old = keep[r] != 0.0f ? v_load(o) : (vf){0};
            v_store(o, v_fma(old, k, acc[r][v] * g));
        }
    }
}

static void attn_values(const attn_elem *p, int32_t rows, const uint32_t *v, int32_t width, int32_t pairs,
                        float *out, const float *keep, const float *gain, row_prefetch *ahead)
{
    size_t ld = (size_t)width;
    for (size_t i = 0; i < ld; i += 16)
        for (int32_t r = 0; r < rows; r += 4) {
            const float *pr = p + (size_t)r * CLB_SPAN;
            float *o = out + (size_t)r * ld + i;
            prefetch_lines(ahead, 12);
            switch (rows - r) {
            case 1:
                values_rows(pr, v + i, ld, pairs, o, ld, keep + r, gain + r, 1);
                break;
            case 2:
                values_rows(pr, v + i, ld, pairs, o, ld, keep + r, gain + r, 2);
                break;
            case 3:
                values_rows(pr, v + i, ld, pairs, o, ld, keep + r, gain + r, 3);
                break;
            default:
                values_rows(pr, v + i, ld, pairs, o, ld, keep + r, gain + r, 4);
            }
        }
}

CLB_INLINE void softmax_row(float *s, int32_t n, float scale, attn_elem *p, float *row_max, float *row_sum)
{
    int32_t padded = (n + VW - 1) / VW * VW;
    for (int32_t i = n; i < padded; i++)
        s[i] = -INFINITY;
    vf m = v_set1(-INFINITY), sum = {0};
    for (int32_t i = 0; i < padded; i += VW)
        m = v_max(m, v_load(s + i));
    float max = -INFINITY;
    for (int i = 0; i < VW; i++)
        max = max > m[i] ? max : m[i];
    max *= scale;
    for (int32_t i = 0; i < padded; i += VW) {
        vf e = v_exp2(v_fma(v_load(s + i), v_set1(scale), v_set1(-max)));
        sum += e;
        v_store(p + i, e);
    }
    for (int32_t i = padded; i < CLB_SPAN; i += VW)
        v_store(p + i, (vf){0});
    *row_max = max;
    *row_sum = v_sum(sum);
}

static void attn_softmax(float (*s)[CLB_SPAN], int32_t rows, const int32_t *n, float scale,
                         attn_elem (*p)[CLB_SPAN], float *max, float *sum)
{
    for (int32_t r = 0; r < rows; r++)
        softmax_row(s[r], n[r], scale, p[r], max + r, sum + r);
}

/* dst[pair][16] = pair `pair` of each of n <= 16 rows, zero in the other lanes. */
static void attn_transpose(uint32_t *dst, const uint32_t *const *rows, int32_t n, int32_t pairs)
{
    for (int32_t j = 0; j < pairs; j++, dst += 16) {
        for (int32_t i = 0; i < n; i++)
            dst[i] = rows[i][j];
        for (int32_t i = n; i < 16; i++)
            dst[i] = 0;
    }
}

/* dst[i][2] = bf16 number i of a, then of b, for 2n numbers. */
static void attn_interleave(uint32_t *restrict dst, const uint32_t *restrict a, const uint32_t *restrict b,
                            int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        dst[2 * i] = (a[i] & 0xffffu) | b[i] << 16;
        dst[2 * i + 1] = a[i] >> 16 | (b[i] & 0xffff0000u);
    }
}
