/* linear_avx2_tile.h - the AVX2 tile kernels for CLB_T tokens; included once per width by
 * linear_avx2.c, which explains them. Accumulators have names of their own (t = token, r = vector of 8
 * rows within the pass), because gcc keeps arrays of them in memory.
 */
#define TILE_NAME2(name, t) name##_##t
#define TILE_NAME1(name, t) TILE_NAME2(name, t)
#define TILE(name) TILE_NAME1(name, CLB_T)

/* INT(F) and FLOAT(F): every (token, vector) of one pass; ROWS_*: vectors of 8 rows per pass. */
#if CLB_T == 1
#define INT_VECTORS 4
#define FLOAT_VECTORS 4
#define INT(F) F(0, 0) F(0, 1) F(0, 2) F(0, 3)
#define FLOAT(F) INT(F)
#elif CLB_T == 2
#define INT_VECTORS 2
#define FLOAT_VECTORS 2
#define INT(F) F(0, 0) F(0, 1) F(1, 0) F(1, 1)
#define FLOAT(F) INT(F)
#elif CLB_T == 3
#define INT_VECTORS 1
#define FLOAT_VECTORS 2
#define INT(F) F(0, 0) F(1, 0) F(2, 0)
#define FLOAT(F) F(0, 0) F(0, 1) F(1, 0) F(1, 1) F(2, 0) F(2, 1)
#elif CLB_T == 4
#define INT_VECTORS 1
#define FLOAT_VECTORS 2
#define INT(F) F(0, 0) F(1, 0) F(2, 0) F(3, 0)
#define FLOAT(F) F(0, 0) F(0, 1) F(1, 0) F(1, 1) F(2, 0) F(2, 1) F(3, 0) F(3, 1)
#elif CLB_T == 5
#define INT_VECTORS 1
#define FLOAT_VECTORS 2
#define INT(F) F(0, 0) F(1, 0) F(2, 0) F(3, 0) F(4, 0)
#define FLOAT(F) F(0, 0) F(0, 1) F(1, 0) F(1, 1) F(2, 0) F(2, 1) F(3, 0) F(3, 1) F(4, 0) F(4, 1)
#else
#define INT_VECTORS 1
#define FLOAT_VECTORS 2
#define INT(F) F(0, 0) F(1, 0) F(2, 0) F(3, 0) F(4, 0) F(5, 0)
#define FLOAT(F)                                                                                             \
    F(0, 0) F(0, 1) F(1, 0) F(1, 1) F(2, 0) F(2, 1) F(3, 0) F(3, 1) F(4, 0) F(4, 1) F(5, 0) F(5, 1)
#endif
#if INT_VECTORS == 4
#define EACH_INT_VECTOR(F) F(0) F(1) F(2) F(3)
#elif INT_VECTORS == 2
#define EACH_INT_VECTOR(F) F(0) F(1)
#else
#define EACH_INT_VECTOR(F) F(0)
#endif
#if FLOAT_VECTORS == 4
#define EACH_FLOAT_VECTOR(F) F(0) F(1) F(2) F(3)
#else
#define EACH_FLOAT_VECTOR(F) F(0) F(1)
#endif

/* ---- integers ---------------------------------------------------------------------------------- */

#define ZERO_DOT(t, r) __m256i c##t##r = _mm256_setzero_si256();
#define BEGIN_DOT(t, r) __m256i c##t##r = broadcast(start + (t)*4);
#define ZERO_SHORT(t, r) __m256i h##t##r = _mm256_setzero_si256();
#define LOAD_LOW4(r) const __m256i l##r = _mm256_and_si256(load(step_w + (r)*32), low4);
#define LOAD_HIGH4(r) const __m256i l##r = _mm256_and_si256(_mm256_srli_epi16(load(step_w + (r)*32), 4), low4);
#define STEP_NIBBLE(t, r)                                                                                    \
    h##t##r = _mm256_add_epi16(h##t##r, _mm256_maddubs_epi16(l##r, broadcast(step_x + (t)*4)));
#define WIDEN_SHORT(t, r) c##t##r = _mm256_add_epi32(c##t##r, _mm256_madd_epi16(h##t##r, ones));
#define LOAD_BYTES(r)                                                                                        \
    const __m256i w##r = _mm256_xor_si256(load(step_w + (r)*32), offset);                                    \
    const __m256i l##r = _mm256_abs_epi8(w##r);
#define STEP_BYTE(t, r)                                                                                      \
    c##t##r = _mm256_add_epi32(                                                                              \
        c##t##r, _mm256_madd_epi16(                                                                          \
                     _mm256_maddubs_epi16(l##r, _mm256_sign_epi8(broadcast(step_x + (t)*4), w##r)), ones));
#define ADD_ROW_SCALED(t, r)                                                                                 \
    add_scaled(sums + (t)*32 + first_row + (r)*8, c##t##r, broadcast_f32(scale + (t)*4));
#define ADD_SCALED(t, r)                                                                                     \
    add_scaled(sums + (t)*32 + first_row + (r)*8, c##t##r, _mm256_mul_ps(d##r, broadcast_f32(scale + (t)*4)));
#define LOAD_SCALE(r) const __m256 d##r = load_scale(kind, scales_w, first_row + (r)*8);
#define ADD_MINIMUM(t, r)                                                                                    \
    {                                                                                                        \
        float *sum = sums + (t)*32 + first_row + (r)*8;                                                      \
        const __m256 m = load_scale(kind, scales_w + 64, first_row + (r)*8);                                 \
        _mm256_store_ps(sum, _mm256_fmadd_ps(m, broadcast_f32(scale + CLB_T * 4 + (t)*4), _mm256_load_ps(sum))); \
    }

/* Integer formats. `bits` 4 or 8; `seg` columns per segment; all three known at compile time. */
ALWAYS_INLINE void TILE(int)(const int bits, const int seg, const scale_kind kind, const clb_tile_args *args)
{
    const __m256i low4 = _mm256_set1_epi8(15);
    const __m256i offset = _mm256_set1_epi8((char)0x80);
    const __m256i ones = _mm256_set1_epi16(1);
    const int run = seg < 32 ? seg / 8 : 4; /* steps of two products each that fit 16 bits: 8*2*15*127 < 2^15 */
    _Alignas(32) float sums[CLB_T * 32];
    const uint8_t *w = args->w;
    const uint8_t *x = args->act;
    memset(sums, 0, sizeof sums);
    for (int32_t s = 0; s < args->n_seg; s++) {
        const uint8_t *scale = x + seg * CLB_T + CLB_T * 8;
        const uint8_t *scales_w = w + seg * bits * 4;
        for (int first_row = 0; first_row < 32; first_row += INT_VECTORS * 8) {
            const uint8_t *step_w = w + first_row * 4;
            const uint8_t *step_x = x;
            if (bits == 4) {
                const uint8_t *start = kind == SCALE_F16_MIN ? zeros : x + seg * CLB_T;
                INT(BEGIN_DOT)
                for (int j = 0; j < seg / 8; j += run) {
                    INT(ZERO_SHORT)
                    for (int k = 0; k < run; k++) {
                        {
                            EACH_INT_VECTOR(LOAD_LOW4)
                            INT(STEP_NIBBLE)
                        }
                        step_x += seg / 2 * CLB_T;
                        {
                            EACH_INT_VECTOR(LOAD_HIGH4)
                            INT(STEP_NIBBLE)
                        }
                        step_x += CLB_T * 4 - seg / 2 * CLB_T;
                        step_w += 128;
                    }
                    INT(WIDEN_SHORT)
                }
                if (kind == SCALE_ROW) {
                    INT(ADD_ROW_SCALED)
                } else {
                    EACH_INT_VECTOR(LOAD_SCALE)
                    INT(ADD_SCALED)
                    if (kind == SCALE_F16_MIN) {
                        INT(ADD_MINIMUM)
                    }
                }
            } else {
                INT(ZERO_DOT)
                for (int j = 0; j < seg / 4; j++) {
                    EACH_INT_VECTOR(LOAD_BYTES)
                    INT(STEP_BYTE)
                    step_x += CLB_T * 4;
                    step_w += 128;
                }
                if (kind == SCALE_ROW) {
                    INT(ADD_ROW_SCALED)
                } else {
                    EACH_INT_VECTOR(LOAD_SCALE)
                    INT(ADD_SCALED)
                }
            }
        }
        w = scales_w + scale_bytes(kind);
        x += (seg + CLB_SEG_EXTRA) * CLB_T;
    }
    finish(args, sums, CLB_T, kind == SCALE_ROW ? args->row_scale : NULL);
}

static void TILE(i8_row)(const clb_tile_args *args) { TILE(int)(8, 64, SCALE_ROW, args); }
static void TILE(i4_row)(const clb_tile_args *args) { TILE(int)(4, 64, SCALE_ROW, args); }
static void TILE(i4_group16)(const clb_tile_args *args) { TILE(int)(4, 16, SCALE_F32, args); }
static void TILE(i4_group32)(const clb_tile_args *args) { TILE(int)(4, 32, SCALE_F32, args); }
static void TILE(i4_group64)(const clb_tile_args *args) { TILE(int)(4, 64, SCALE_F32, args); }
static void TILE(q4_0)(const clb_tile_args *args) { TILE(int)(4, 32, SCALE_F16, args); }
static void TILE(q4_1)(const clb_tile_args *args) { TILE(int)(4, 32, SCALE_F16_MIN, args); }
static void TILE(q8_0)(const clb_tile_args *args) { TILE(int)(8, 32, SCALE_F16, args); }

/* ---- floats -------------------------------------------------------------------------------------- */

#define LOAD_SUM(t, r) __m256 s##t##r = _mm256_load_ps(sums + (t)*32 + first_row + (r)*8);
#define STORE_SUM(t, r) _mm256_store_ps(sums + (t)*32 + first_row + (r)*8, s##t##r);
#define LOAD_F32(r) const __m256 f##r = _mm256_load_ps(step_w + (r)*8);
#define LOAD_EVEN_BF16(r) const __m256 f##r = _mm256_castsi256_ps(_mm256_slli_epi32(load(step_b + (r)*32), 16));
#define LOAD_ODD_BF16(r) const __m256 f##r = _mm256_castsi256_ps(_mm256_and_si256(load(step_b + (r)*32), high16));
#define STEP_FLOAT(t, r) s##t##r = _mm256_fmadd_ps(f##r, broadcast_f32(step_x + (t)*4), s##t##r);

/* Continues the chains of all 32 rows over `cols` columns of f32 weights [cols][32]. */
ALWAYS_INLINE void TILE(chain_f32)(const float *w, const uint8_t *x, int32_t cols, float *sums)
{
    for (int first_row = 0; first_row < 32; first_row += FLOAT_VECTORS * 8) {
        const float *step_w = w + first_row;
        const uint8_t *step_x = x;
        FLOAT(LOAD_SUM)
        for (int32_t c = 0; c < cols; c++) {
            EACH_FLOAT_VECTOR(LOAD_F32)
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
    const __m256i high16 = _mm256_set1_epi32((int32_t)0xffff0000u);
    _Alignas(32) float sums[CLB_T * 32];
    const uint8_t *w = args->w;
    const uint8_t *x = args->act;
    memset(sums, 0, sizeof sums);
    for (int32_t p = 0; p < args->n_seg; p += COLUMNS / 2) {
        const int32_t n = args->n_seg - p < COLUMNS / 2 ? args->n_seg - p : COLUMNS / 2;
        for (int first_row = 0; first_row < 32; first_row += FLOAT_VECTORS * 8) {
            const uint8_t *step_b = w + first_row * 4;
            const uint8_t *step_x = x;
            FLOAT(LOAD_SUM)
            for (int32_t i = 0; i < n; i++) {
                {
                    EACH_FLOAT_VECTOR(LOAD_EVEN_BF16)
                    FLOAT(STEP_FLOAT)
                }
                step_x += CLB_T * 4;
                {
                    EACH_FLOAT_VECTOR(LOAD_ODD_BF16)
                    FLOAT(STEP_FLOAT)
                }
                step_x += CLB_T * 4;
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
        const __m256 scale = broadcast_f32(w + 128 * 32);
        for (int i = 0; i < CLB_T * 32; i += 8)
            _mm256_store_ps(sums + i, _mm256_fmadd_ps(_mm256_load_ps(part + i), scale, _mm256_load_ps(sums + i)));
        w += 128 * 32 + 64;
    }
    finish(args, sums, CLB_T, NULL);
}

#undef TILE_NAME2
#undef TILE_NAME1
#undef TILE
#undef INT_VECTORS
#undef FLOAT_VECTORS
#undef INT
#undef FLOAT
#undef EACH_INT_VECTOR
#undef EACH_FLOAT_VECTOR
#undef ZERO_DOT
#undef BEGIN_DOT
#undef ZERO_SHORT
#undef LOAD_LOW4
#undef LOAD_HIGH4
#undef STEP_NIBBLE
#undef WIDEN_SHORT
#undef LOAD_BYTES
#undef STEP_BYTE
#undef ADD_ROW_SCALED
#undef ADD_SCALED
#undef LOAD_SCALE
#undef ADD_MINIMUM
#undef LOAD_SUM
#undef STORE_SUM
#undef LOAD_F32
#undef LOAD_EVEN_BF16
#undef LOAD_ODD_BF16
#undef STEP_FLOAT
#undef CLB_T
