/* test_attention.c - attention of every instruction set against plain sums in double, and the
 * bit-equality contract of kernels.h: token cuts, span cuts, merged partial states, later tokens.
 *
 * Tolerances. Sets with f32 products differ from the exact result over the same stored keys and values
 * by rounding alone: 3e-6 of the largest value. Sets with bf16 products also round queries and
 * probabilities: 1e-2 of the largest value.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attn.h"
#include "test.h"

typedef struct {
    int32_t isa; /* -1 = the f32 reference */
    const char *name;
    double tolerance;
    size_t elem; /* bytes per stored value */
    void (*gqa_store)(uint8_t *, int32_t, int32_t, const float *, const float *);
    void (*gqa_attend)(const clb_gqa_args *, int32_t, int32_t, int32_t, int32_t, clb_softmax *, float *,
                       void *);
    int64_t (*gqa_scratch)(int32_t, int32_t);
    void (*rows_store)(uint16_t *, const float *, int32_t);
    void (*mla_attend)(const clb_mla_args *, int32_t, int32_t, int32_t, int32_t, clb_softmax *, float *,
                       void *);
    int64_t (*mla_scratch)(int32_t, int32_t, int32_t);
    void (*merge)(clb_softmax *, float *, const clb_softmax *, const float *, int32_t, int32_t);
    void (*finish)(const clb_softmax *, float *, int32_t, int32_t);
    void (*index_scores)(const uint16_t *const *, const float *, const float *, int32_t, int32_t, float,
                         int32_t, int32_t, float *, void *);
    int64_t (*index_scratch)(int32_t, int32_t);
} attention;

#define SET(id, set, tolerance, elem)                                                                        \
    {id,                                                                                                     \
     #set,                                                                                                   \
     tolerance,                                                                                              \
     elem,                                                                                                   \
     clb_attn_##set##_gqa_store,                                                                             \
     clb_attn_##set##_gqa_attend,                                                                            \
     clb_attn_##set##_gqa_scratch,                                                                           \
     clb_attn_##set##_rows_store_bf16,                                                                       \
     clb_attn_##set##_mla_attend,                                                                            \
     clb_attn_##set##_mla_scratch,                                                                           \
     clb_attn_##set##_softmax_merge,                                                                         \
     clb_attn_##set##_softmax_finish,                                                                        \
     clb_attn_##set##_index_scores,                                                                          \
     clb_attn_##set##_index_scratch}

static const attention sets[] = {
    SET(-1, ref, 3e-6, 4),
    SET(COLIBRI_ISA_BASELINE, baseline, 3e-6, 2),
#if defined(__x86_64__)
    SET(COLIBRI_ISA_AVX2, avx2, 3e-6, 2),
    SET(COLIBRI_ISA_AVX512, avx512, 1e-2, 2),
#endif
#if defined(__aarch64__)
    SET(COLIBRI_ISA_NEON, neon, 3e-6, 2),
#endif
};

static uint64_t seed = 0x9e3779b97f4a7c15u;

static void *zeroed(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p)
        abort();
    return p;
}

static float *random_floats(size_t n, float size)
{
    float *p = zeroed(n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = test_uniform(&seed) * size;
    return p;
}

static float stored(const attention *a, float x) /* what reading back gives */
{
    uint16_t h[2];
    a->rows_store(h, &x, 1);
    if (a->elem == 4)
        return x;
    return clb_bf16_to_f32(h[0]);
}

static clb_softmax *fresh_states(size_t n)
{
    clb_softmax *s = zeroed(n * sizeof *s);
    for (size_t i = 0; i < n; i++)
        s[i] = (clb_softmax){-INFINITY, 0.0f};
    return s;
}

static int equal(const void *a, const void *b, size_t floats)
{
    return memcmp(a, b, floats * 4) == 0;
}

/* Garbage that a reader of an empty state's output would show as NaN. */
static float *poisoned(size_t n)
{
    float *p = zeroed(n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = NAN;
    return p;
}

/* softmax(q . keys * scale) . values in double over n rows */
static void exact(const float *q, const float *keys, size_t key_step, int32_t width, const float *values,
                  size_t value_step, int32_t value_width, const int32_t *selected, int32_t n, double scale,
                  double *out)
{
    double *p = zeroed((size_t)n * sizeof *p), max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        size_t t = (size_t)(selected ? selected[i] : i);
        for (int32_t d = 0; d < width; d++)
            p[i] += (double)q[d] * keys[t * key_step + (size_t)d];
        p[i] *= scale;
        max = p[i] > max ? p[i] : max;
    }
    for (int32_t d = 0; d < value_width; d++)
        out[d] = 0;
    for (int32_t i = 0; i < n; i++)
        sum += p[i] = exp(p[i] - max);
    for (int32_t i = 0; i < n; i++) {
        size_t t = (size_t)(selected ? selected[i] : i);
        for (int32_t d = 0; d < value_width; d++)
            out[d] += p[i] / sum * values[t * value_step + (size_t)d];
    }
    free(p);
}

/* ---- GQA --------------------------------------------------------------------------------------- */

typedef struct {
    const attention *a;
    int32_t dim, heads, kv_heads, first, tokens, window;
    float *q, *k, *v; /* q [tokens][heads][dim]; k, v [kv_head][first+tokens][dim] as stored */
    uint8_t **blocks;
    int32_t n_blocks;
    size_t head_bytes;
} gqa_case;

static gqa_case gqa_make(const attention *a, int32_t dim, int32_t heads, int32_t first, int32_t tokens,
                         float size)
{
    gqa_case c = {.a = a, .dim = dim, .heads = heads, .kv_heads = 2, .first = first, .tokens = tokens};
    size_t keys = (size_t)(first + tokens), d = (size_t)dim;
    c.q = random_floats((size_t)tokens * (size_t)heads * d, size);
    c.k = random_floats(2 * keys * d, 2.0f);
    c.v = random_floats(2 * keys * d, 1.0f);
    c.n_blocks = (int32_t)(keys + CLB_SPAN - 1) / CLB_SPAN;
    c.head_bytes = CLB_GQA_HEAD_BYTES(d) * a->elem / 2;
    c.blocks = zeroed((size_t)c.n_blocks * sizeof *c.blocks);
    for (int32_t b = 0; b < c.n_blocks; b++)
        c.blocks[b] = aligned_alloc(64, 2 * c.head_bytes);
    return c;
}

/* Stores keys [0, n) of both heads into zeroed blocks. */
static void gqa_fill(gqa_case *c, int32_t n)
{
    size_t keys = (size_t)(c->first + c->tokens), d = (size_t)c->dim;
    for (int32_t b = 0; b < c->n_blocks; b++)
        memset(c->blocks[b], 0, 2 * c->head_bytes);
    for (int32_t h = 0; h < 2; h++)
        for (int32_t t = 0; t < n; t++)
            c->a->gqa_store(c->blocks[t / CLB_SPAN] + (size_t)h * c->head_bytes, c->dim, t % CLB_SPAN,
                            c->k + ((size_t)h * keys + (size_t)t) * d,
                            c->v + ((size_t)h * keys + (size_t)t) * d);
}

static clb_gqa_args gqa_args(const gqa_case *c)
{
    return (clb_gqa_args){.dim = c->dim,
                          .n_heads = c->heads,
                          .scale = 1.0f / sqrtf((float)c->dim),
                          .blocks = (const uint8_t *const *)c->blocks,
                          .kv_head = 1,
                          .q = c->q,
                          .q_stride = (int64_t)c->heads * c->dim,
                          .first_position = c->first,
                          .window = c->window};
}

static void gqa_free(gqa_case *c)
{
    for (int32_t b = 0; b < c->n_blocks; b++)
        free(c->blocks[b]);
    free(c->blocks), free(c->q), free(c->k), free(c->v);
}

static void test_gqa_window(const attention *a, int32_t dim, int32_t heads, int32_t first, int32_t tokens,
                            float size, int32_t window)
{
    gqa_case c = gqa_make(a, dim, heads, first, tokens, size);
    c.window = window;
    size_t rows = (size_t)tokens * (size_t)heads, d = (size_t)dim, values = rows * d;
    size_t keys = (size_t)(first + tokens);
    gqa_fill(&c, first + tokens);
    clb_gqa_args args = gqa_args(&c);
    void *scratch = malloc((size_t)a->gqa_scratch(dim, heads));
    clb_softmax *whole_state = fresh_states(rows);
    float *whole = poisoned(values);
    a->gqa_attend(&args, 0, tokens, 0, c.n_blocks, whole_state, whole, scratch);
    float *done = zeroed(values * sizeof *done);
    memcpy(done, whole, values * sizeof *done);
    a->finish(whole_state, done, (int32_t)rows, dim);

    /* near the exact result */
    double worst = 0, *row = zeroed(d * sizeof *row);
    for (size_t i = 0; i < 2 * keys * d; i++) {
        c.k[i] = stored(a, c.k[i]);
        c.v[i] = stored(a, c.v[i]);
    }
    for (size_t r = 0; r < rows; r++) {
        int32_t seen = first + (int32_t)(r / (size_t)heads) + 1;
        size_t begin = window > 0 && seen > window ? (size_t)(seen - window) : 0;
        exact(c.q + r * d, c.k + (keys + begin) * d, d, dim, c.v + (keys + begin) * d, d, dim, NULL,
              seen - (int32_t)begin, args.scale, row);
        for (size_t i = 0; i < d; i++)
            worst = fmax(worst, isfinite(done[r * d + i]) ? fabs(done[r * d + i] - row[i]) : INFINITY);
    }
    CHECK_MSG(worst < a->tolerance * fmax(1.0, size), "%s gqa dim %d heads %d first %d tokens %d: error %g",
              a->name, dim, heads, first, tokens, worst);

    /* tokens cut at random places, spans cut into single calls with the same state */
    clb_softmax *state = fresh_states(rows);
    float *out = poisoned(values);
    for (int32_t t = 0; t < tokens;) {
        int32_t end = t + 1 + (int32_t)(test_random(&seed) % 37);
        end = end < tokens ? end : tokens;
        for (int32_t s = 0; s < c.n_blocks; s++)
            a->gqa_attend(&args, t, end, s, s + 1, state, out, scratch);
        t = end;
    }
    CHECK_MSG(equal(state, whole_state, rows * 2) && equal(out, whole, values),
              "%s gqa dim %d heads %d first %d: cut tokens and spans differ", a->name, dim, heads, first);

    /* one token at a time as in decode, later tokens absent, every span its own partial state */
    int same = 1;
    clb_softmax *part = fresh_states((size_t)heads), *one = fresh_states((size_t)heads);
    float *part_out = zeroed((size_t)heads * d * 4), *one_out = zeroed((size_t)heads * d * 4);
    for (int32_t t = 0; t < tokens; t += t < 8 || t + 9 > tokens ? 1 : 7) {
        gqa_case now = c;
        gqa_fill(&now, first + t + 1);
        clb_gqa_args single = args;
        single.q = c.q + (size_t)t * (size_t)heads * d;
        single.first_position = first + t;
        for (int32_t h = 0; h < heads; h++)
            one[h] = (clb_softmax){-INFINITY, 0};
        for (int32_t s = 0; s < c.n_blocks; s++) {
            for (int32_t h = 0; h < heads; h++)
                part[h] = (clb_softmax){-INFINITY, 0};
            a->gqa_attend(&single, 0, 1, s, s + 1, part, part_out, scratch);
            a->merge(one, one_out, part, part_out, heads, dim);
        }
        same &= equal(one, whole_state + (size_t)t * (size_t)heads, (size_t)heads * 2);
        same &= equal(one_out, whole + (size_t)t * (size_t)heads * d, (size_t)heads * d);
    }
    CHECK_MSG(same, "%s gqa dim %d heads %d first %d: decode with merged partials differs from prefill",
              a->name, dim, heads, first);

    free(part), free(one), free(part_out), free(one_out), free(state), free(out), free(row), free(done);
    free(whole), free(whole_state), free(scratch);
    gqa_free(&c);
}

static void test_gqa_case(const attention *a, int32_t dim, int32_t heads, int32_t first, int32_t tokens,
                          float size)
{
    test_gqa_window(a, dim, heads, first, tokens, size, 0);
}

/* A NaN in a query or in a seen key reaches exactly the rows that use it. */
static void test_gqa_nan(const attention *a)
{
    enum { DIM = 32, HEADS = 3, TOKENS = 50, BAD = 31 };
    gqa_case c = gqa_make(a, DIM, HEADS, 100, TOKENS, 1.0f);
    size_t rows = TOKENS * HEADS, values = rows * DIM;
    void *scratch = malloc((size_t)a->gqa_scratch(DIM, HEADS));
    clb_gqa_args args = gqa_args(&c);
    float *out[3];
    clb_softmax *state[3];
    for (int i = 0; i < 3; i++) {
        gqa_fill(&c, 100 + TOKENS);
        if (i == 1)
            c.q[(BAD * HEADS + 1) * DIM + 5] = NAN;
        if (i == 2) {
            float k[DIM], v[DIM];
            for (int d = 0; d < DIM; d++)
                k[d] = v[d] = d == 7 ? NAN : 0.5f;
            c.q[(BAD * HEADS + 1) * DIM + 5] = 0.25f;
            a->gqa_store(c.blocks[1] + c.head_bytes, DIM, 100 + BAD - CLB_SPAN, k, c.v);
        }
        out[i] = poisoned(values);
        state[i] = fresh_states(rows);
        a->gqa_attend(&args, 0, TOKENS, 0, c.n_blocks, state[i], out[i], scratch);
        a->finish(state[i], out[i], (int32_t)rows, DIM);
    }
    int good = 1, poison = 1;
    for (size_t r = 0; r < rows; r++)
        for (size_t d = 0; d < DIM; d++) {
            float clean = out[0][r * DIM + d], query = out[1][r * DIM + d], key = out[2][r * DIM + d];
            if (r == BAD * HEADS + 1) {
                poison &= isnan(query) != 0;
            } else {
                good &= equal(&clean, &query, 1);
                if (r < BAD * HEADS)
                    good &= equal(&clean, &key, 1);
            }
            if (r >= BAD * HEADS)
                poison &= isnan(key) != 0;
        }
    CHECK_MSG(poison, "%s gqa: a NaN does not reach the result", a->name);
    CHECK_MSG(good, "%s gqa: a NaN reaches rows that do not see it", a->name);
    for (int i = 0; i < 3; i++)
        free(out[i]), free(state[i]);
    free(scratch);
    gqa_free(&c);
}

/* ---- MLA --------------------------------------------------------------------------------------- */

typedef struct {
    float *values; /* [keys][width] as stored */
    uint16_t **blocks;
    int32_t n_blocks;
} row_cache;

static row_cache rows_make(const attention *a, int32_t width, int32_t keys, float size)
{
    row_cache c = {.n_blocks = (keys + CLB_SPAN - 1) / CLB_SPAN};
    size_t row = (size_t)width * a->elem;
    c.values = random_floats((size_t)keys * (size_t)width, size);
    c.blocks = zeroed((size_t)c.n_blocks * sizeof *c.blocks);
    for (int32_t b = 0; b < c.n_blocks; b++)
        c.blocks[b] = zeroed(CLB_SPAN * row);
    for (int32_t t = 0; t < keys; t++) {
        float *v = c.values + (size_t)t * (size_t)width;
        a->rows_store((uint16_t *)(void *)((char *)c.blocks[t / CLB_SPAN] + (size_t)(t % CLB_SPAN) * row), v,
                      width);
        for (int32_t i = 0; i < width; i++)
            v[i] = stored(a, v[i]);
    }
    return c;
}

static void rows_free(row_cache *c)
{
    for (int32_t b = 0; b < c->n_blocks; b++)
        free(c->blocks[b]);
    free(c->blocks), free(c->values);
}

static void test_mla_case(const attention *a, int32_t heads, int32_t rank, int32_t rope, int32_t keys,
                          int32_t picked)
{
    int32_t width = rank + rope;
    size_t row = (size_t)width, values = (size_t)heads * (size_t)rank;
    row_cache c = rows_make(a, width, keys, 1.5f);
    float *q = random_floats((size_t)heads * row, 1.0f);
    int32_t *list = zeroed((size_t)keys * sizeof *list), n = 0;
    for (int32_t t = 0; t < keys; t++) /* ascending random subset of `picked` keys */
        if ((int32_t)(test_random(&seed) % (uint64_t)(keys - t)) < picked - n)
            list[n++] = t;
    clb_mla_args args = {heads, rank, rope, 0.11f, (const uint16_t *const *)c.blocks, q, list, n};
    void *scratch = malloc((size_t)a->mla_scratch(heads, rank, rope));
    int32_t spans = (n + CLB_SPAN - 1) / CLB_SPAN;
    clb_softmax *whole_state = fresh_states((size_t)heads), *state = fresh_states((size_t)heads);
    float *whole = poisoned(values), *out = poisoned(values), *part_out = poisoned(values);
    a->mla_attend(&args, 0, heads, 0, spans + 1, whole_state, whole, scratch);

    /* heads and spans cut */
    for (int32_t s = 0; s < spans; s++)
        for (int32_t h = 0; h < heads; h += 16)
            a->mla_attend(&args, h, h + 16, s, s + 1, state, out, scratch);
    CHECK_MSG(equal(state, whole_state, (size_t)heads * 2) && equal(out, whole, values),
              "%s mla %d heads rank %d rope %d: cut heads and spans differ", a->name, heads, rank, rope);

    /* every span its own partial */
    for (int32_t h = 0; h < heads; h++)
        state[h] = (clb_softmax){-INFINITY, 0};
    for (int32_t s = 0; s < spans; s++) {
        clb_softmax *part = fresh_states((size_t)heads);
        a->mla_attend(&args, 0, heads, s, s + 1, part, part_out, scratch);
        a->merge(state, out, part, part_out, heads, rank);
        free(part);
    }
    CHECK_MSG(equal(state, whole_state, (size_t)heads * 2) && equal(out, whole, values),
              "%s mla %d heads rank %d rope %d: merged partials differ", a->name, heads, rank, rope);

    a->finish(whole_state, whole, heads, rank);
    double worst = 0, *r = zeroed((size_t)rank * sizeof *r);
    for (int32_t h = 0; h < heads; h++) {
        exact(q + (size_t)h * row, c.values, row, width, c.values, row, rank, list, n, args.scale, r);
        for (int32_t i = 0; i < rank; i++) {
            float got = whole[(size_t)h * (size_t)rank + (size_t)i];
            worst = fmax(worst, isfinite(got) ? fabs(got - r[i]) : INFINITY);
        }
    }
    CHECK_MSG(worst < a->tolerance * 1.5, "%s mla %d heads rank %d rope %d: error %g", a->name, heads, rank,
              rope, worst);

    /* a list of everything is the dense call */
    for (int32_t t = 0; t < keys; t++)
        list[t] = t;
    args.n_selected = keys;
    for (int32_t h = 0; h < heads; h++)
        state[h] = whole_state[h] = (clb_softmax){-INFINITY, 0};
    a->mla_attend(&args, 0, heads, 0, c.n_blocks, state, out, scratch);
    args.selected = NULL;
    a->mla_attend(&args, 0, heads, 0, c.n_blocks, whole_state, whole, scratch);
    CHECK_MSG(equal(state, whole_state, (size_t)heads * 2) && equal(out, whole, values),
              "%s mla %d heads rank %d: list of all keys differs from dense", a->name, heads, rank);

    /* a NaN in one head's query stays there */
    q[row * (size_t)(heads - 1) + row - 1] = NAN;
    for (int32_t h = 0; h < heads; h++)
        state[h] = (clb_softmax){-INFINITY, 0};
    a->mla_attend(&args, 0, heads, 0, c.n_blocks, state, out, scratch);
    a->finish(state + heads - 1, out + values - (size_t)rank, 1, rank);
    int nan = 1;
    for (int32_t i = 0; i < rank; i++)
        nan &= isnan(out[values - (size_t)rank + (size_t)i]) != 0;
    CHECK_MSG(nan && equal(out, whole, values - (size_t)rank), "%s mla: NaN in the last head's query",
              a->name);

    free(r), free(whole_state), free(state), free(whole), free(out), free(part_out), free(scratch),
        free(list), free(q);
    rows_free(&c);
}

/* ---- indexer ------------------------------------------------------------------------------------ */

static void test_index_case(const attention *a, int32_t heads, int32_t dim, int32_t keys)
{
    row_cache c = rows_make(a, dim, keys, 1.0f);
    size_t d = (size_t)dim, n = (size_t)keys;
    float *iq = random_floats((size_t)heads * d, 1.0f), *w = random_floats((size_t)heads, 1.0f);
    float *whole = poisoned(n), *cut = poisoned(n), scale = 1.0f / sqrtf((float)dim);
    void *scratch = malloc((size_t)a->index_scratch(heads, dim));
    const uint16_t *const *blocks = (const uint16_t *const *)c.blocks;
    a->index_scores(blocks, iq, w, heads, dim, scale, 0, keys, whole, scratch);
    double worst = 0, largest = 0;
    for (size_t s = 0; s < n; s++) {
        double sum = 0;
        for (size_t j = 0; j < (size_t)heads; j++) {
            double dot = 0;
            for (size_t i = 0; i < d; i++)
                dot +=
                    (double)(a->elem == 4 ? iq[j * d + i] : stored(a, iq[j * d + i])) * c.values[s * d + i];
            sum += w[j] * fmax(0.0, dot * scale);
        }
        largest = fmax(largest, fabs(sum));
        worst = fmax(worst, isfinite(whole[s]) ? fabs(whole[s] - sum) : INFINITY);
    }
    CHECK_MSG(worst < 2e-6 * fmax(largest, 1.0), "%s index %d heads dim %d: error %g", a->name, heads, dim,
              worst);
    for (int32_t s = 0; s < keys; s += CLB_SPAN)
        a->index_scores(blocks, iq, w, heads, dim, scale, s, s + CLB_SPAN < keys ? s + CLB_SPAN : keys, cut,
                        scratch);
    CHECK_MSG(equal(whole, cut, n), "%s index %d heads dim %d: cut spans differ", a->name, heads, dim);
    cut[0] = 7.0f;
    int32_t shorter = keys - 3;
    a->index_scores(blocks, iq, w, heads, dim, scale, 0, shorter, cut, scratch);
    CHECK_MSG(equal(whole, cut, n), "%s index %d heads dim %d: fewer keys differ", a->name, heads, dim);

    /* scores that are all negative are clamped to exactly zero */
    for (size_t i = 0; i < d; i++) {
        float v = 0.5f;
        for (size_t j = 0; j < (size_t)heads; j++)
            iq[j * d + i] = -1.0f;
        for (int32_t s = 0; s < keys; s++) {
            char *at = (char *)c.blocks[s / CLB_SPAN] + ((size_t)(s % CLB_SPAN) * d + i) * a->elem;
            a->rows_store((uint16_t *)(void *)at, &v, 1);
        }
    }
    a->index_scores(blocks, iq, w, heads, dim, scale, 0, keys, whole, scratch);
    int zero = 1;
    for (size_t s = 0; s < n; s++)
        zero &= whole[s] == 0.0f;
    CHECK_MSG(zero, "%s index %d heads dim %d: negative products are not exactly zero", a->name, heads, dim);
    iq[0] = NAN;
    a->index_scores(blocks, iq, w, heads, dim, scale, 0, keys, whole, scratch);
    CHECK_MSG(isnan(whole[0]) && isnan(whole[n - 1]), "%s index: a NaN is clamped away", a->name);
    free(iq), free(w), free(whole), free(cut), free(scratch);
    rows_free(&c);
}

/* ---- single weights -------------------------------------------------------------------------------- */

/* Values that are 1 for one key per dim show each key's weight, and values of 1 everywhere their sum. */
static void test_weights(const attention *a)
{
    enum { DIM = 128, KEYS = 128 };
    gqa_case c = gqa_make(a, DIM, 1, KEYS - 1, 1, 2.0f);
    float one[DIM], out[DIM];
    double p[KEYS], sum = 0, square = 0, worst = 0;
    for (int d = 0; d < DIM; d++) {
        one[d] = 1.0f;
        c.q[d] = stored(a, c.q[d]);
    }
    memset(c.v, 0, 2 * KEYS * DIM * sizeof *c.v);
    for (int t = 0; t < KEYS; t++)
        c.v[(KEYS + t) * DIM + t] = 1.0f;
    gqa_fill(&c, KEYS);
    clb_gqa_args args = gqa_args(&c);
    void *scratch = malloc((size_t)a->gqa_scratch(DIM, 1));
    clb_softmax state = {-INFINITY, 0};
    a->gqa_attend(&args, 0, 1, 0, 1, &state, out, scratch);
    a->finish(&state, out, 1, DIM);
    for (int t = 0; t < KEYS; t++) {
        double dot = 0;
        for (int d = 0; d < DIM; d++)
            dot += (double)c.q[d] * stored(a, c.k[(KEYS + t) * DIM + d]);
        sum += p[t] = exp(dot * args.scale);
    }
    for (int t = 0; t < KEYS; t++) {
        double relative = out[t] / (p[t] / sum) - 1;
        square += relative * relative / KEYS;
        worst = fmax(worst, fabs(relative));
    }
    /* bf16 rounds by at most 2^-8, 0.0011 root mean square */
    int is_bf16 = a->tolerance > 1e-3;
    CHECK_MSG(worst < (is_bf16 ? 0.0045 : 4e-6) && sqrt(square) < (is_bf16 ? 0.0017 : 2e-6),
              "%s: weights off by %g, root mean square %g", a->name, worst, sqrt(square));
    for (int t = 0; t < KEYS; t++)
        a->gqa_store(c.blocks[0] + c.head_bytes, DIM, t, c.k + (KEYS + t) * DIM, one);
    state = (clb_softmax){-INFINITY, 0};
    a->gqa_attend(&args, 0, 1, 0, 1, &state, out, scratch);
    a->finish(&state, out, 1, DIM);
    CHECK_MSG(fabsf(out[0] - 1.0f) < 1e-6f && fabsf(out[DIM - 1] - 1.0f) < 1e-6f, "%s: weights sum to %.8f",
              a->name, (double)out[0]);
    free(scratch);
    gqa_free(&c);
}

/* Rows are rounded to the nearest bf16, ties to even; reference rows are kept whole. */
static void test_rows(const attention *a)
{
    static const struct {
        uint32_t in;
        uint16_t out;
    } cases[] = {{0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82}, {0x3f807fff, 0x3f80},
                 {0xbf818000, 0xbf82}, {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
                 {0x00000000, 0x0000}, {0x80000000, 0x8000}, {0x00008001, 0x0001}, {0x7f800001, 0x7fc0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float x;
        uint16_t got[2];
        uint32_t whole;
        memcpy(&x, &cases[i].in, sizeof x);
        a->rows_store(got, &x, 1);
        memcpy(&whole, got, sizeof whole);
        CHECK_MSG(a->elem == 4 ? whole == cases[i].in : got[0] == cases[i].out, "%s rows: %08x became %04x",
                  a->name, cases[i].in, got[0]);
    }
}

/* ---- states -------------------------------------------------------------------------------------- */

static void test_merge(const attention *a)
{
    enum { WIDTH = 37 };
    float out[WIDTH], other[WIDTH];
    for (int i = 0; i < WIDTH; i++) {
        out[i] = NAN;
        other[i] = (float)i - 9.5f;
    }
    clb_softmax empty = {-INFINITY, 0}, full = {2.5f, 3.0f}, state = empty;
    a->merge(&state, out, &empty, out, 1, WIDTH);
    CHECK_MSG(state.max == -INFINITY && state.sum == 0, "%s merge: two empty states are empty", a->name);
    a->merge(&state, out, &full, other, 1, WIDTH);
    CHECK_MSG(equal(&state, &full, 2) && equal(out, other, WIDTH), "%s merge: into an empty state copies",
              a->name);
    a->merge(&state, out, &empty, out, 1, WIDTH);
    CHECK_MSG(equal(&state, &full, 2) && equal(out, other, WIDTH), "%s merge: an empty state changes nothing",
              a->name);
    clb_softmax low = {0.5f, 4.0f};
    a->merge(&state, out, &low, other, 1, WIDTH);
    CHECK_MSG(state.max == 2.5f && fabsf(state.sum - 4.0f) < 1e-6f && fabsf(out[0] + 9.5f * 1.25f) < 1e-5f &&
                  fabsf(out[WIDTH - 1] - 26.5f * 1.25f) < 1e-5f,
              "%s merge: a state two powers lower counts a quarter", a->name);
    clb_softmax lower = {0.5f, 4.0f};
    float lower_out[WIDTH];
    memcpy(lower_out, other, sizeof lower_out);
    a->merge(&lower, lower_out, &full, other, 1, WIDTH);
    CHECK_MSG(lower.max == 2.5f && fabsf(lower.sum - 4.0f) < 1e-6f &&
                  fabsf(lower_out[0] + 9.5f * 1.25f) < 1e-5f &&
                  fabsf(lower_out[WIDTH - 1] - 26.5f * 1.25f) < 1e-5f,
              "%s merge: a state that was two powers lower is counted a quarter", a->name);
    a->finish(&state, out, 1, WIDTH);
    CHECK_MSG(fabsf(out[0] + 9.5f * 1.25f / 4) < 1e-6f, "%s finish divides by the sum", a->name);
    clb_softmax bad = {-INFINITY, NAN};
    a->merge(&state, out, &bad, other, 1, WIDTH);
    CHECK_MSG(isnan(state.sum), "%s merge: a NaN sum stays", a->name);
    clb_softmax far = {-4000.0f, 1.0f}, here = {10.0f, 1.0f};
    state = here;
    for (int i = 0; i < WIDTH; i++)
        out[i] = 1.0f;
    a->merge(&state, out, &far, other, 1, WIDTH);
    CHECK_MSG(equal(&state, &here, 2) && out[3] == 1.0f, "%s merge: a vanishing partial adds nothing",
              a->name);
    state = far;
    a->merge(&state, out, &here, other, 1, WIDTH);
    CHECK_MSG(equal(&state, &here, 2) && equal(out, other, WIDTH), "%s merge: a vanishing state goes",
              a->name);
}

int main(void)
{
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const attention *a = sets + i;
        if (a->isa > 0 && !colibri_cpu_has_isa(a->isa)) {
            printf("%s: not on this processor\n", a->name);
            continue;
        }
        test_merge(a);
        test_rows(a);
        test_weights(a);
        test_gqa_nan(a);
        test_gqa_case(a, 64, 3, 0, 300, 1.0f);
        test_gqa_window(a, 64, 3, 0, 300, 1.0f, 40);
        test_gqa_window(a, 64, 3, 250, 150, 1.0f, 128);
        test_gqa_window(a, 16, 5, 100, 200, 4.0f, 1);
        test_gqa_window(a, 48, 2, 0, 130, 1.0f, 500);
        test_gqa_window(a, 64, 1, 380, 9, 1.0f, 129);
        test_gqa_case(a, 64, 3, 250, 40, 4.0f);
        test_gqa_case(a, 16, 1, 0, 130, 1.0f);
        test_gqa_case(a, 80, 5, 120, 70, 1.0f);
        test_gqa_case(a, 128, 4, 0, 33, 1.0f);
        test_gqa_case(a, 256, 16, 126, 5, 1.0f);
        test_gqa_case(a, 48, 7, 511, 3, 1.0f);
        test_gqa_case(a, 64, 3, 60, 90, 60.0f);
        test_mla_case(a, 4, 32, 16, 300, 200);
        test_mla_case(a, 64, 512, 64, 150, 131);
        test_mla_case(a, 5, 40, 6, 129, 128);
        test_mla_case(a, 5, 40, 6, 400, 290);
        test_mla_case(a, 70, 64, 10, 300, 77);
        test_mla_case(a, 1, 2, 2, 5, 3);
        test_index_case(a, 32, 128, 300);
        test_index_case(a, 4, 16, 131);
        test_index_case(a, 67, 34, 140);
    }
    return test_report();
}
