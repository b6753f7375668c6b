/* linear_narrow_tile.h - tile kernels for CLB_T tokens on vectors of 8 (AVX2) or 4 (NEON) lanes; included
 * once per width by linear_avx2.c and linear_neon.c, which explain them and define
 *   fvec, ivec, LANES      a vector of f32 or of 32-bit lanes, and how many there are
 *   load, broadcast, ...   small functions on them
 *   *_VECTORS_1, _2, _N    row vectors per pass for 1, 2 and more tokens: what the registers hold
 *   LOW4, HIGH4, BYTES     weights of one kind out of a vector
 *   widen_f16, widen_fp8, FP8_SCALE   columns to f32, the latter up to that (power of two) factor
 *   LOAD_ACTS              fetches the step's activations of all tokens, where that pays
 *   NIBBLE_*, BYTE_*       the integer products with token t's activations
 *
 * A tile walks the 32 rows of a block in passes; sums wait in memory between passes. Accumulators have
 * names of their own (t = token, r = vector of the pass), because gcc keeps arrays of them in memory.
 */
#define TILE_NAME2(name, t) name##_##t
#define TILE_NAME1(name, t) TILE_NAME2(name, t)
#define TILE(name) TILE_NAME1(name, CLB_T)

/* ---- lists: every vector of a pass; every (token, vector) of a pass ------------------------------ */

#if CLB_T == 1
#define INT_VECTORS INT_VECTORS_1
#define FLOAT_VECTORS FLOAT_VECTORS_1
#define TOKENS(L, F) L(F, 0)
#elif CLB_T == 2
#define INT_VECTORS INT_VECTORS_2
#define FLOAT_VECTORS FLOAT_VECTORS_2
#define TOKENS(L, F) L(F, 0) L(F, 1)
#else
#define INT_VECTORS INT_VECTORS_N
#define FLOAT_VECTORS FLOAT_VECTORS_N
#if CLB_T == 3
#define TOKENS(L, F) L(F, 0) L(F, 1) L(F, 2)
#elif CLB_T == 4
#define TOKENS(L, F) L(F, 0) L(F, 1) L(F, 2) L(F, 3)
#elif CLB_T == 5
#define TOKENS(L, F) L(F, 0) L(F, 1) L(F, 2) L(F, 3) L(F, 4)
#else
#define TOKENS(L, F) L(F, 0) L(F, 1) L(F, 2) L(F, 3) L(F, 4) L(F, 5)
#endif
#endif

#define VECTORS_1(F) F(0)
#define VECTORS_2(F) F(0) F(1)
#define VECTORS_4(F) VECTORS_2(F) F(2) F(3)
#define VECTORS_8(F) VECTORS_4(F) F(4) F(5) F(6) F(7)
#define PAIRS_1(F, t) F(t, 0)
#define PAIRS_2(F, t) F(t, 0) F(t, 1)
#define PAIRS_4(F, t) PAIRS_2(F, t) F(t, 2) F(t, 3)
#define PAIRS_8(F, t) PAIRS_4(F, t) F(t, 4) F(t, 5) F(t, 6) F(t, 7)
#if INT_VECTORS == 8
#define INT_EACH_VECTOR VECTORS_8
#define INT(F) TOKENS(PAIRS_8, F)
#elif INT_VECTORS == 4
#define INT_EACH_VECTOR VECTORS_4
#define INT(F) TOKENS(PAIRS_4, F)
#elif INT_VECTORS == 2
#define INT_EACH_VECTOR VECTORS_2
#define INT(F) TOKENS(PAIRS_2, F)
#else
#define INT_EACH_VECTOR VECTORS_1
#define INT(F) TOKENS(PAIRS_1, F)
#endif
#if FLOAT_VECTORS == 8
#define FLOAT_EACH_VECTOR VECTORS_8
#define FLOAT(F) TOKENS(PAIRS_8, F)
#elif FLOAT_VECTORS == 4
#define FLOAT_EACH_VECTOR VECTORS_4
#define FLOAT(F) TOKENS(PAIRS_4, F)
#else
#define FLOAT_EACH_VECTOR VECTORS_2
#define FLOAT(F) TOKENS(PAIRS_2, F)
#endif

/* ---- integers ---------------------------------------------------------------------------------- */

#define BEGIN_DOT(t, r) ivec c##t##r = broadcast(start + (t) * 4);
#define LOAD_LOW4(r) const ivec w##r = LOW4(load(step_w + (r) * LANES * 4));
#define LOAD_HIGH4(r) const ivec w##r = HIGH4(load(step_w + (r) * LANES * 4));
#define LOAD_BYTES(r) const ivec w##r = BYTES(load(step_w + (r) * LANES * 4));
#define STEP_NIBBLE(t, r) NIBBLE_STEP(c##t##r, h##t##r, w##r, t)
#define STEP_BYTE(t, r) BYTE_STEP(c##t##r, w##r, t)
#define BEGIN_RUN(t, r) NIBBLE_BEGIN(h##t##r)
#define END_RUN(t, r) NIBBLE_END(c##t##r, h##t##r)
/* Makes room for the second plane, which counts in steps of 1/256. */
#define NEXT_PLANE(t, r) c##t##r = shift_plane(c##t##r, broadcast(start + (t) * 4));
#define LOAD_SCALE(r) const fvec d##r = load_scale(kind, scales_w, first_row + (r) * LANES);
#define ADD_ROW_SCALED(t, r)                                                                                 \
    add_scaled(sums + (t) * 32 + first_row + (r) * LANES, c##t##r, broadcast_f32(scale + (t) * 4));
#define ADD_SCALED(t, r)                                                                                     \
    add_scaled(sums + (t) * 32 + first_row + (r) * LANES, c##t##r,                                           \
               mul_f32(d##r, broadcast_f32(scale + (t) * 4)));
#define ADD_MINIMUM(t, r)                                                                                    \
    {                                                                                                        \
        float *sum = sums + (t) * 32 + first_row + (r) * LANES;                                              \
        const fvec m = load_scale(kind, scales_w + 64, first_row + (r) * LANES);                             \
        store_f32(sum, fma_f32(load_f32(sum), m, broadcast_f32(scale + CLB_T * 4 + (t) * 4)));               \
    }

/* Integer formats. `bits` 4 or 8; `seg` columns per segment; all three known at compile time. */
ALWAYS_INLINE void TILE(int)(const int bits, const int seg, const scale_kind kind, const clb_tile_args *args)
{
    const int run = seg < 32 ? seg / 8 : NIBBLE_RUN;
    _Alignas(32) float sums[CLB_T * 32];
    const int no_offset = bits == 8 || kind == SCALE_F16_MIN;
    const uint8_t *w = args->w;
    const uint8_t *marks = args->act;
    const uint8_t *x = marks + clb_mark_bytes(args->n_seg);
    memset(sums, 0, sizeof sums);
    for (int32_t s = 0; s < args->n_seg; s++) {
        const uint8_t *scale = x + seg * CLB_T + CLB_T * 8;
        const uint8_t *scales_w = w + seg * bits * 4;
        for (int first_row = 0; first_row < 32; first_row += INT_VECTORS * LANES) {
            const uint8_t *start = no_offset ? zeros : x + seg * CLB_T;
            const uint8_t *plane = x;
            INT(BEGIN_DOT)
            for (int more = marks[s];; more--) {
                const uint8_t *step_w = w + first_row * 4;
                const uint8_t *step_x = plane;
                if (bits == 4) {
                    UNROLL_1
                    for (int j = 0; j < seg / 8; j += run) {
                        INT(BEGIN_RUN)
                        UNROLL_1
                        for (int k = 0; k < run; k++) {
                            {LOAD_ACTS(step_x, CLB_T) INT_EACH_VECTOR(LOAD_LOW4) INT(STEP_NIBBLE)} step_x +=
                                seg / 2 * CLB_T;
                            {LOAD_ACTS(step_x, CLB_T) INT_EACH_VECTOR(LOAD_HIGH4) INT(STEP_NIBBLE)} step_x +=
                                CLB_T * 4 - seg / 2 * CLB_T;
                            step_w += 128;
                        }
                        INT(END_RUN)
                    }
                } else {
                    UNROLL_1
                    for (int j = 0; j < seg / 4; j++) {
                        LOAD_ACTS(step_x, CLB_T)
                        INT_EACH_VECTOR(LOAD_BYTES)
                        INT(STEP_BYTE)
                        step_x += CLB_T * 4;
                        step_w += 128;
                    }
                }
                if (more == 0)
                    break;
                plane = x + (seg + CLB_SEG_EXTRA) * CLB_T;
                start = no_offset ? zeros : plane + seg * CLB_T;
                INT(NEXT_PLANE)
            }
            if (kind == SCALE_ROW) {
                INT(ADD_ROW_SCALED)
            } else {
                INT_EACH_VECTOR(LOAD_SCALE)
                INT(ADD_SCALED)
                if (kind == SCALE_F16_MIN) {
                    INT(ADD_MINIMUM)
                }
            }
        }
        w = scales_w + scale_bytes(kind);
        x += (seg + CLB_SEG_EXTRA) * CLB_T;
        if (marks[s])
            x += (seg + CLB_REST_EXTRA) * CLB_T;
    }
    finish(args, sums, CLB_T, kind == SCALE_ROW ? args->row_scale : NULL);
}

static void TILE(i8_row)(const clb_tile_args *args)
{
    TILE(int)(8, 64, SCALE_ROW, args);
}
static void TILE(i4_row)(const clb_tile_args *args)
{
    TILE(int)(4, 64, SCALE_ROW, args);
}
static void TILE(i4_group16)(const clb_tile_args *args)
{
    TILE(int)(4, 16, SCALE_F32, args);
}
static void TILE(i4_group32)(const clb_tile_args *args)
{
    TILE(int)(4, 32, SCALE_F32, args);
}
static void TILE(i4_group64)(const clb_tile_args *args)
{
    TILE(int)(4, 64, SCALE_F32, args);
}
static void TILE(q4_0)(const clb_tile_args *args)
{
    TILE(int)(4, 32, SCALE_F16, args);
}
static void TILE(q4_1)(const clb_tile_args *args)
{
    TILE(int)(4, 32, SCALE_F16_MIN, args);
}
static void TILE(q8_0)(const clb_tile_args *args)
{
    TILE(int)(8, 32, SCALE_F16, args);
}

/* ---- floats -------------------------------------------------------------------------------------- */

#define LOAD_SUM(t, r) fvec s##t##r = load_f32(sums + (t) * 32 + first_row + (r) * LANES);
#define STORE_SUM(t, r) store_f32(sums + (t) * 32 + first_row + (r) * LANES, s##t##r);
#define LOAD_F32(r) const fvec f##r = load_f32(step_w + (r) * LANES);
#define LOAD_EVEN_BF16(r) const fvec f##r = even_bf16(load(step_b + (r) * LANES * 4));
#define LOAD_ODD_BF16(r) const fvec f##r = odd_bf16(load(step_b + (r) * LANES * 4));
#define STEP_FLOAT(t, r) s##t##r = fma_f32(s##t##r, f##r, broadcast_f32(step_x + (t) * 4));

/* Continues the chains of all 32 rows over `cols` columns of f32 weights [cols][32]. */
ALWAYS_INLINE void TILE(chain_f32)(const float *w, const uint8_t *x, int32_t cols, float *sums)
{
    for (int first_row = 0; first_row < 32; first_row += FLOAT_VECTORS * LANES) {
        const float *step_w = w + first_row;
        const uint8_t *step_x = x;
        FLOAT(LOAD_SUM)
        for (int32_t c = 0; c < cols; c++) {
            FLOAT_EACH_VECTOR(LOAD_F32)
            FLOAT(STEP_FLOAT)
            step_w += 32;
            step_x += CLB_T * 4;
        }
        FLOAT(STORE_SUM)
    }
}

static void TILE(f32)(const clb_tile_args *args)
{
    _Alignas(32) float sums[CLB_T * 32];
    const uint8_t *w = args->w;
    const uint8_t *x = args->act;
    memset(sums, 0, sizeof sums);
    for (int32_t c = 0; c < args->n_seg; c += COLUMNS) {
        const int32_t n = args->n_seg - c < COLUMNS ? args->n_seg - c : COLUMNS;
        TILE(chain_f32)((const float *)(const void *)w, x, n, sums);
        w += COLUMNS * 128;
        x += COLUMNS * CLB_T * 4;
    }
    finish(args, sums, CLB_T, NULL);
}

static void TILE(bf16)(const clb_tile_args *args)
{
    _Alignas(32) float sums[CLB_T * 32];
    const uint8_t *w = args->w;
    const uint8_t *x = args->act;
    memset(sums, 0, sizeof sums);
    for (int32_t p = 0; p < args->n_seg; p += COLUMNS / 2) {
        const int32_t n = args->n_seg - p < COLUMNS / 2 ? args->n_seg - p : COLUMNS / 2;
        for (int first_row = 0; first_row < 32; first_row += FLOAT_VECTORS * LANES) {
            const uint8_t *step_b = w + first_row * 4;
            const uint8_t *step_x = x;
            FLOAT(LOAD_SUM)
            for (int32_t i = 0; i < n; i++) {
                {FLOAT_EACH_VECTOR(LOAD_EVEN_BF16) FLOAT(STEP_FLOAT)} step_x += CLB_T * 4;
                {FLOAT_EACH_VECTOR(LOAD_ODD_BF16) FLOAT(STEP_FLOAT)} step_x += CLB_T * 4;
                step_b += 128;
            }
            FLOAT(STORE_SUM)
        }
        w += COLUMNS / 2 * 128;
        x += COLUMNS * CLB_T * 4;
    }
    finish(args, sums, CLB_T, NULL);
}

static void TILE(f16)(const clb_tile_args *args)
{
    _Alignas(32) float sums[CLB_T * 32];
    _Alignas(32) float wide[COLUMNS * 32];
    const uint8_t *x = args->act;
    memset(sums, 0, sizeof sums);
    for (int32_t p = 0; p < args->n_seg; p += COLUMNS / 2) {
        const int32_t n = args->n_seg - p < COLUMNS / 2 ? args->n_seg - p : COLUMNS / 2;
        widen_f16(args->w + (int64_t)p * 128, n, wide);
        TILE(chain_f32)(wide, x, n * 2, sums);
        x += COLUMNS * CLB_T * 4;
    }
    finish(args, sums, CLB_T, NULL);
}

static void TILE(fp8)(const clb_tile_args *args)
{
    _Alignas(32) float sums[CLB_T * 32];
    _Alignas(32) float part[CLB_T * 32];
    _Alignas(32) float wide[128 * 32];
    const uint8_t *w = args->w;
    memset(sums, 0, sizeof sums);
    for (int32_t s = 0; s < args->n_seg; s++) {
        memset(part, 0, sizeof part);
        widen_fp8(w, wide);
        TILE(chain_f32)(wide, args->act + (int64_t)s * 128 * CLB_T * 4, 128, part);
        const fvec scale = mul_f32(broadcast_f32(w + 128 * 32), splat_f32(FP8_SCALE));
        for (int i = 0; i < CLB_T * 32; i += LANES)
            store_f32(sums + i, fma_f32(load_f32(sums + i), load_f32(part + i), scale));
        w += 128 * 32 + 64;
    }
    finish(args, sums, CLB_T, NULL);
}

#undef TILE_NAME2
#undef TILE_NAME1
#undef TILE
#undef INT_VECTORS
#undef FLOAT_VECTORS
#undef TOKENS
#undef VECTORS_1
#undef VECTORS_2
#undef VECTORS_4
#undef VECTORS_8
#undef PAIRS_1
#undef PAIRS_2
#undef PAIRS_4
#undef PAIRS_8
#undef INT_EACH_VECTOR
#undef INT
#undef FLOAT_EACH_VECTOR
#undef FLOAT
#undef BEGIN_DOT
#undef LOAD_LOW4
#undef LOAD_HIGH4
#undef LOAD_BYTES
#undef STEP_NIBBLE
#undef STEP_BYTE
#undef BEGIN_RUN
#undef END_RUN
#undef LOAD_SCALE
#undef ADD_ROW_SCALED
#undef ADD_SCALED
#undef ADD_MINIMUM
#undef LOAD_SUM
#undef STORE_SUM
#undef LOAD_F32
#undef LOAD_EVEN_BF16
#undef LOAD_ODD_BF16
#undef STEP_FLOAT
#undef CLB_T
