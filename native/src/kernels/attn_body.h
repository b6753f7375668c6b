/* attn_body.h - attention, written once: spans, masks, row tiles, the merge of the softmax states.
 *
 * Included by attn_baseline.c, attn_avx2.c, attn_avx512.c and attn_neon.c after simd.h, the macro
 * CLB_ATTN(name) that makes the public names, and these definitions of the set:
 *
 *   attn_elem    how queries and probabilities are kept: float, or uint16_t for bf16
 *   attn_pack    f32 -> attn_elem
 *   attn_scores  c[row][lane] = sum over pairs j of a[row][2j]*low(b[j][lane]) + a[row][2j+1]*high(...)
 *                for `groups` groups of 16 lanes; one chain over j, so rows and groups may be cut anyhow
 *   attn_values  the same product, folded into `out`: out = out*keep + product*gain
 *   attn_softmax rows of scores -> probabilities; for each row the maximum (base 2) and the sum of its
 *                probabilities as they are stored
 *   attn_transpose, attn_interleave   rows of pairs -> keys and values in the GQA layout
 *
 * GQA rows are (token, head) pairs of one KV head, in token order; MLA rows are the heads of one
 * token. For MLA and the indexer a span's row-major keys are first rearranged into the GQA layout, so
 * that all three share one product. Pure, any thread; memory only from the caller's scratch.
 */
#include "attn.h"

enum {
    TILE_ROWS = 30, /* GQA: query rows that share one pass over a span */
    HEAD_ROWS = 64, /* MLA and indexer: the same for heads */
    LANES = 16,     /* tokens per group of keys */
    PAIRS = CLB_SPAN / 2,
    ALIGN = 64
};

#define LOG2E 1.44269504f

/* Per-tile work area; queries and rearranged keys follow it in the scratch. */
typedef struct {
    float scores[HEAD_ROWS][CLB_SPAN];
    attn_elem probs[HEAD_ROWS][CLB_SPAN];
    float part_max[HEAD_ROWS];
    float part_sum[HEAD_ROWS];
    float keep[HEAD_ROWS];
    float gain[HEAD_ROWS];
} tile_area;

/* Cuts areas from a scratch; base NULL only counts. */
typedef struct {
    char *base;
    size_t used;
} cutter;

static cutter cut_scratch(void *scratch)
{
    return (cutter){(char *)scratch + (-(uintptr_t)scratch & (ALIGN - 1)), 0};
}

static void *cut(cutter *c, size_t bytes)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    return p;
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* ---- states ------------------------------------------------------------------------------------- */

/* One lane per row: merges the partial b into the state a and gives the factors for the outputs,
 * out = out*keep + product*gain. An empty state gets keep = 0, for which its output is not read. */
CLB_INLINE void merge_lanes(vf *a_max, vf *a_sum, vf b_max, vf b_sum, vf *keep, vf *gain)
{
    vi is_empty = (vi)(*a_max == v_set1(-INFINITY)) & (vi)(*a_sum == (vf){0});
    vf max = v_max(*a_max, b_max);
    vf k = v_exp2(*a_max - max), g = v_exp2(b_max - max);
    *keep = (vf)((vi)k & ~is_empty);
    *gain = (vf)(((vi)g & ~is_empty) | ((vi)v_set1(1.0f) & is_empty));
    *a_max = max;
    *a_sum = v_fma(*a_sum, *keep, b_sum * *gain);
}

/* The same for rows in memory; part_max, part_sum, keep and gain have room up to a whole vector. */
static void merge_states(clb_softmax *state, const float *part_max, const float *part_sum, int32_t rows,
                         float *keep, float *gain)
{
    for (int32_t r = 0; r < rows; r += VW) {
        float max[VW] = {0}, sum[VW] = {0};
        int32_t n = rows - r < VW ? rows - r : VW;
        for (int32_t i = 0; i < n; i++) {
            max[i] = state[r + i].max;
            sum[i] = state[r + i].sum;
        }
        vf m = v_load(max), s = v_load(sum), k, g;
        merge_lanes(&m, &s, v_load(part_max + r), v_load(part_sum + r), &k, &g);
        v_store(keep + r, k);
        v_store(gain + r, g);
        v_store(max, m);
        v_store(sum, s);
        for (int32_t i = 0; i < n; i++)
            state[r + i] = (clb_softmax){max[i], sum[i]};
    }
}

static void merge_row(float *out, const float *product, float keep, float gain, int32_t width)
{
    vf k = v_set1(keep), g = v_set1(gain);
    int32_t i = 0;
    for (; i + VW <= width; i += VW)
        v_store(out + i, v_fma(keep != 0.0f ? v_load(out + i) : (vf){0}, k, v_load(product + i) * g));
    for (; i < width; i++)
        out[i] = s_fma(keep != 0.0f ? out[i] : 0.0f, keep, product[i] * gain);
}

void CLB_ATTN(softmax_merge)(clb_softmax *a, float *a_out, const clb_softmax *b, const float *b_out,
                             int32_t n, int32_t width)
{
    for (int32_t r = 0; r < n; r++, a_out += width, b_out += width) {
        if (b[r].max == -INFINITY && b[r].sum == 0.0f)
            continue;
        float max[VW] = {b[r].max}, sum[VW] = {b[r].sum}, keep[VW], gain[VW];
        merge_states(a + r, max, sum, 1, keep, gain);
        merge_row(a_out, b_out, keep[0], gain[0], width);
    }
}

void CLB_ATTN(softmax_finish)(const clb_softmax *softmax, float *out, int32_t n, int32_t width)
{
    for (int32_t r = 0; r < n; r++, out += width) {
        int32_t i = 0;
        for (; i + VW <= width; i += VW)
            v_store(out + i, v_load(out + i) / v_set1(softmax[r].sum));
        for (; i < width; i++)
            out[i] /= softmax[r].sum;
    }
}

/* ---- one span ------------------------------------------------------------------------------------ */

/* Rows of a tile against one span. visible[r] = keys row r sees, 1..128, ascending over rows; the
 * keys after a row's last do not reach its result, nor its first hidden[r] (fewer than visible[r]) unless
 * hidden is NULL. k: [group][pairs][16][2]; v: [64][v_width][2] with
 * v_width a multiple of 16. out rows are `width` <= v_width floats apart; if they differ, `product` is
 * room for rows * v_width floats. `ahead`: what the next span will read, or NULL. */
static void attend_span(tile_area *area, const attn_elem *q, int32_t pairs, int32_t rows,
                        const int32_t *visible, const int32_t *hidden, const uint32_t *k, const uint32_t *v,
                        int32_t v_width, float scale, clb_softmax *state, float *out, int32_t width,
                        float *product, row_prefetch *ahead)
{
    int32_t groups = (visible[rows - 1] + LANES - 1) / LANES;
    attn_scores(q, rows, k, groups, pairs, area->scores[0], ahead);
    for (int32_t r = 0; hidden != NULL && r < rows; r++)
        for (int32_t i = 0; i < hidden[r]; i++)
            area->scores[r][i] = -INFINITY;
    attn_softmax(area->scores, rows, visible, scale * LOG2E, area->probs, area->part_max, area->part_sum);
    merge_states(state, area->part_max, area->part_sum, rows, area->keep, area->gain);
    int32_t used = (visible[rows - 1] + 1) / 2;
    if (width == v_width) {
        attn_values(area->probs[0], rows, v, v_width, used, out, area->keep, area->gain, ahead);
        return;
    }
    static const float none[HEAD_ROWS] = {0};
    float one[HEAD_ROWS];
    for (int32_t r = 0; r < HEAD_ROWS; r++)
        one[r] = 1.0f;
    attn_values(area->probs[0], rows, v, v_width, used, product, none, one, ahead);
    for (int32_t r = 0; r < rows; r++)
        merge_row(out + (size_t)r * (size_t)width, product + (size_t)r * (size_t)v_width, area->keep[r],
                  area->gain[r], width);
}

/* ---- GQA ------------------------------------------------------------------------------------------ */

void CLB_ATTN(gqa_store)(uint8_t *head_block, int32_t dim, int32_t token_in_block, const float *k,
                         const float *v)
{
    size_t t = (size_t)token_in_block, width = (size_t)dim;
    uint16_t *keys = (uint16_t *)(void *)head_block + t / LANES * width * LANES + t % LANES * 2;
    uint16_t *values = (uint16_t *)(void *)head_block + CLB_SPAN * width + t / 2 * width * 2 + t % 2;
    for (size_t i = 0; i < width; i++) {
        keys[i / 2 * LANES * 2 + i % 2] = s_bf16(k[i]);
        values[i * 2] = s_bf16(v[i]);
    }
}

int64_t CLB_ATTN(gqa_scratch)(int32_t dim, int32_t n_heads)
{
    (void)n_heads;
    return (int64_t)(sizeof(tile_area) + (size_t)TILE_ROWS * (size_t)dim * sizeof(attn_elem) + 3 * ALIGN);
}

void CLB_ATTN(gqa_attend)(const clb_gqa_args *args, int32_t t0, int32_t t1, int32_t span0, int32_t span1,
                          clb_softmax *softmax, float *out, void *scratch)
{
    cutter c = cut_scratch(scratch);
    tile_area *area = cut(&c, sizeof *area);
    attn_elem *q = cut(&c, (size_t)TILE_ROWS * (size_t)args->dim * sizeof *q);
    size_t dim = (size_t)args->dim;
    int32_t position[TILE_ROWS], visible[TILE_ROWS], hidden[TILE_ROWS];
    int64_t row_end = (int64_t)t1 * args->n_heads;
    for (int64_t row0 = (int64_t)t0 * args->n_heads; row0 < row_end; row0 += TILE_ROWS) {
        int32_t rows = row_end - row0 < TILE_ROWS ? (int32_t)(row_end - row0) : TILE_ROWS;
        for (int32_t r = 0; r < rows; r++) {
            int64_t t = (row0 + r) / args->n_heads, h = (row0 + r) % args->n_heads;
            attn_pack(q + (size_t)r * dim, args->q + t * args->q_stride + h * (int64_t)dim, args->dim);
            position[r] = args->first_position + (int32_t)t;
        }
        for (int32_t span = span0; span < span1; span++) {
            int32_t skip = 0, end = rows; /* rows before this span; rows whose window begins behind it */
            for (int32_t r = 0; r < rows; r++) {
                int32_t n = position[r] + 1 - span * CLB_SPAN;
                skip += n <= 0;
                visible[r] = n < CLB_SPAN ? n : CLB_SPAN;
                hidden[r] = args->window > 0 && n > args->window ? n - args->window : 0;
                end -= hidden[r] >= CLB_SPAN;
            }
            if (skip == rows)
                break;
            if (end <= skip)
                continue;
            const uint8_t *k = args->blocks[span] + (size_t)args->kv_head * CLB_GQA_HEAD_BYTES(dim);
            const uint8_t *v = k + CLB_SPAN * dim * 2;
            attend_span(area, q + (size_t)skip * dim, args->dim / 2, end - skip, visible + skip,
                        args->window > 0 ? hidden + skip : NULL, (const uint32_t *)(const void *)k,
                        (const uint32_t *)(const void *)v, args->dim, args->scale, softmax + row0 + skip,
                        out + (size_t)(row0 + skip) * dim, args->dim, NULL, NULL);
        }
    }
}

/* ---- rows as cached -> lanes ------------------------------------------------------------------------ */

/* rows: n pointers to `pairs` 32-bit pairs -> [group][pairs][16]; the lanes after n hold zero. */
static void pack_keys(uint32_t *dst, const uint32_t *const *rows, int32_t n, int32_t pairs)
{
    for (int32_t g = 0; g * LANES < n; g++, dst += (size_t)pairs * LANES)
        attn_transpose(dst, rows + (size_t)g * LANES, n - g * LANES < LANES ? n - g * LANES : LANES, pairs);
}

/* The first `rank` bf16 of n rows -> [ceil(n/2)][width][2], zero beyond rank and n. */
static void pack_values(uint32_t *dst, const uint32_t *const *rows, int32_t n, int32_t rank, int32_t width)
{
    for (int32_t t = 0; t < n; t += 2, dst += width) {
        if (t + 1 < n)
            attn_interleave(dst, rows[t], rows[t + 1], rank / 2);
        else
            for (int32_t i = 0; i < rank / 2; i++) {
                dst[2 * i] = rows[t][i] & 0xffffu;
                dst[2 * i + 1] = rows[t][i] >> 16;
            }
        for (int32_t i = rank; i < width; i++)
            dst[i] = 0;
    }
}

void CLB_ATTN(rows_store_bf16)(uint16_t *dst, const float *src, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        dst[i] = s_bf16(src[i]);
}

/* ---- MLA ------------------------------------------------------------------------------------------ */

typedef struct {
    tile_area *area;
    attn_elem *q;
    uint32_t *keys;
    uint32_t *values;
    float *product;
} mla_areas;

static mla_areas mla_layout(cutter *c, int32_t n_heads, int32_t rank, int32_t rope)
{
    mla_areas a;
    size_t width = (size_t)(rank + rope), v_width = round_up((size_t)rank, LANES);
    a.area = cut(c, sizeof *a.area);
    a.q = cut(c, (size_t)n_heads * width * sizeof *a.q);
    a.keys = cut(c, CLB_SPAN * width * 2);
    a.values = cut(c, CLB_SPAN * v_width * 2);
    a.product = cut(c, HEAD_ROWS * v_width * sizeof *a.product);
    return a;
}

int64_t CLB_ATTN(mla_scratch)(int32_t n_heads, int32_t rank, int32_t rope)
{
    cutter c = {NULL, 0};
    mla_layout(&c, n_heads, rank, rope);
    return (int64_t)(c.used + ALIGN);
}

/* Row pointers of span `span` of the selection; returns how many. */
static int32_t gather(const clb_mla_args *args, int32_t span, const uint32_t **rows)
{
    size_t width = (size_t)(args->rank + args->rope);
    int32_t first = span * CLB_SPAN;
    int32_t n = args->n_selected - first < CLB_SPAN ? args->n_selected - first : CLB_SPAN;
    for (int32_t i = 0; i < n; i++) {
        int32_t p = args->selected ? args->selected[first + i] : first + i;
        rows[i] =
            (const uint32_t *)(const void *)(args->blocks[p / CLB_SPAN] + (size_t)(p % CLB_SPAN) * width);
    }
    return n > 0 ? n : 0;
}

void CLB_ATTN(mla_attend)(const clb_mla_args *args, int32_t h0, int32_t h1, int32_t span0, int32_t span1,
                          clb_softmax *softmax, float *out, void *scratch)
{
    int32_t width = args->rank + args->rope, v_width = (int32_t)round_up((size_t)args->rank, LANES);
    const uint32_t *rows[2][CLB_SPAN];
    int32_t visible[HEAD_ROWS];
    cutter c = cut_scratch(scratch);
    mla_areas a = mla_layout(&c, args->n_heads, args->rank, args->rope);
    if (h1 > args->n_heads)
        h1 = args->n_heads;
    if (h0 >= h1)
        return;
    attn_pack(a.q, args->q + (size_t)h0 * (size_t)width, (h1 - h0) * width);
    int32_t n = span0 < span1 ? gather(args, span0, rows[span0 & 1]) : 0;
    for (int32_t span = span0; span < span1 && n > 0; span++) {
        int32_t n_next = span + 1 < span1 ? gather(args, span + 1, rows[~span & 1]) : 0;
        row_prefetch ahead = {rows[~span & 1], n_next, 0, width * 2, 0};
        pack_keys(a.keys, rows[span & 1], n, width / 2);
        pack_values(a.values, rows[span & 1], n, args->rank, v_width);
        for (int32_t r = 0; r < HEAD_ROWS; r++)
            visible[r] = n;
        for (int32_t h = h0; h < h1; h += HEAD_ROWS)
            attend_span(a.area, a.q + (size_t)(h - h0) * (size_t)width, width / 2,
                        h1 - h < HEAD_ROWS ? h1 - h : HEAD_ROWS, visible, NULL, a.keys, a.values, v_width,
                        args->scale, softmax + h, out + (size_t)h * (size_t)args->rank, args->rank, a.product,
                        &ahead);
        n = n_next;
    }
}

/* ---- indexer --------------------------------------------------------------------------------------- */

typedef struct {
    float (*scores)[CLB_SPAN];
    attn_elem *q;
    float *round;
    uint32_t *keys;
} index_areas;

static index_areas index_layout(cutter *c, int32_t heads, int32_t dim)
{
    index_areas a;
    size_t values = (size_t)heads * (size_t)dim;
    a.scores = cut(c, HEAD_ROWS * sizeof *a.scores);
    a.q = cut(c, values * sizeof *a.q);
    a.round = cut(c, (size_t)dim * sizeof *a.round);
    a.keys = cut(c, CLB_SPAN * (size_t)dim * 2);
    return a;
}

int64_t CLB_ATTN(index_scratch)(int32_t heads, int32_t dim)
{
    cutter c = {NULL, 0};
    index_layout(&c, heads, dim);
    return (int64_t)(c.used + ALIGN);
}

void CLB_ATTN(index_scores)(const uint16_t *const *blocks, const float *iq, const float *w, int32_t heads,
                            int32_t dim, float scale, int32_t s0, int32_t s1, float *scores, void *scratch)
{
    const uint32_t *rows[CLB_SPAN], *next[CLB_SPAN];
    cutter c = cut_scratch(scratch);
    index_areas a = index_layout(&c, heads, dim);
    size_t width = (size_t)dim;
    for (int32_t j = 0; j < heads; j++) {
        for (int32_t i = 0; i < dim; i++)
            a.round[i] = clb_bf16_to_f32(s_bf16(iq[(size_t)j * width + (size_t)i]));
        attn_pack(a.q + (size_t)j * width, a.round, dim);
    }
    for (int32_t s = s0; s < s1; s += CLB_SPAN) {
        int32_t n = s1 - s < CLB_SPAN ? s1 - s : CLB_SPAN;
        float sum[CLB_SPAN] = {0};
        for (int32_t i = 0; i < n; i++)
            rows[i] = (const uint32_t *)(const void *)(blocks[s / CLB_SPAN] + (size_t)i * width);
        int32_t n_next = s1 - s - CLB_SPAN < CLB_SPAN ? s1 - s - CLB_SPAN : CLB_SPAN;
        for (int32_t i = 0; i < n_next; i++)
            next[i] = (const uint32_t *)(const void *)(blocks[s / CLB_SPAN + 1] + (size_t)i * width);
        row_prefetch ahead = {next, n_next, 0, dim * 2, 0};
        pack_keys(a.keys, rows, n, dim / 2);
        int32_t groups = (n + LANES - 1) / LANES;
        for (int32_t h = 0; h < heads; h += HEAD_ROWS) {
            int32_t count = heads - h < HEAD_ROWS ? heads - h : HEAD_ROWS;
            attn_scores(a.q + (size_t)h * width, count, a.keys, groups, dim / 2, a.scores[0], &ahead);
            for (int32_t j = 0; j < count; j++) {
                vf weight = v_set1(w[h + j]);
                prefetch_lines(&ahead, 8);
                for (int32_t i = 0; i < groups * LANES; i += VW) {
                    vf positive = v_max((vf){0}, v_load(&a.scores[j][i]) * scale);
                    v_store(sum + i, v_fma(weight, positive, v_load(sum + i)));
                }
            }
        }
        memcpy(scores + s, sum, (size_t)n * sizeof *sum);
    }
}
