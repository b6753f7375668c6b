/* linear_avx512_tile.h - the AVX-512 tile kernels for CLB_T tokens; included once per width by
 * linear_avx512.c, which explains them. Every accumulator is a variable with a name of its own
 * (s0a = token 0, rows 0-15; s0b = rows 16-31), because gcc keeps arrays of them in memory.
 */
#define TILE_NAME2(name, t) name##_##t
#define TILE_NAME1(name, t) TILE_NAME2(name, t)
#define TILE(name) TILE_NAME1(name, CLB_T)

#if CLB_T == 1
#define EACH(F) F(0)
#elif CLB_T == 2
#define EACH(F) F(0) F(1)
#elif CLB_T == 3
#define EACH(F) F(0) F(1) F(2)
#elif CLB_T == 4
#define EACH(F) F(0) F(1) F(2) F(3)
#elif CLB_T == 5
#define EACH(F) F(0) F(1) F(2) F(3) F(4)
#else
#define EACH(F) F(0) F(1) F(2) F(3) F(4) F(5)
#endif

/* Whether this width is bound by memory (then the hardware prefetcher does better alone). */
#define STREAMS (CLB_T <= 2)
#if CLB_T == 1
#define UNROLL _Pragma("GCC unroll 8")
#else
#define UNROLL _Pragma("GCC unroll 1")
#endif

/* Two lines of weights. The scales need it as much as the data: a line that is skipped costs the full
 * latency of memory, because the stream of misses is then too thin for the hardware prefetcher. */
#define PREFETCH_STEP                                                                                        \
    if (!STREAMS) {                                                                                          \
        _mm_prefetch((const char *)ahead, _MM_HINT_T1);                                                      \
        _mm_prefetch((const char *)ahead + 64, _MM_HINT_T1);                                                 \
        ahead += ahead_step;                                                                                 \
    }

#define BEGIN_SUM(t) __m512 s##t##a = _mm512_setzero_ps(), s##t##b = _mm512_setzero_ps();
#define END_SUM(t) finish(args, t, s##t##a, s##t##b);

#define DECLARE_DOT(t) __m512i c##t##a, c##t##b;
#define BEGIN_DOT(t) c##t##a = c##t##b = broadcast(start + (t) * 4);
#define ZERO_DOT(t) c##t##a = c##t##b = _mm512_setzero_si512();
#define STEP_DOT(t)                                                                                          \
    {                                                                                                        \
        const __m512i x4 = broadcast(step + (t) * 4);                                                        \
        DOT_U8S8(c##t##a, wa, x4);                                                                           \
        DOT_U8S8(c##t##b, wb, x4);                                                                           \
    }
/* Makes room for the second plane, which counts in steps of 1/256. */
#define NEXT_PLANE(t)                                                                                        \
    {                                                                                                        \
        const __m512i offset = broadcast(start + (t) * 4);                                                   \
        c##t##a = _mm512_add_epi32(_mm512_slli_epi32(c##t##a, 8), offset);                                   \
        c##t##b = _mm512_add_epi32(_mm512_slli_epi32(c##t##b, 8), offset);                                   \
    }
#define NEXT_PLANE_NO_OFFSET(t)                                                                              \
    c##t##a = _mm512_slli_epi32(c##t##a, 8);                                                                 \
    c##t##b = _mm512_slli_epi32(c##t##b, 8);
#define SCALE_BY_ROW(t)                                                                                      \
    {                                                                                                        \
        const __m512 as = broadcast_f32(scale + (t) * 4);                                                    \
        s##t##a = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c##t##a), as, s##t##a);                                 \
        s##t##b = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c##t##b), as, s##t##b);                                 \
    }
#define SCALE_BY_SEGMENT(t)                                                                                  \
    {                                                                                                        \
        const __m512 as = broadcast_f32(scale + (t) * 4);                                                    \
        s##t##a = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c##t##a), _mm512_mul_ps(da, as), s##t##a);              \
        s##t##b = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c##t##b), _mm512_mul_ps(db, as), s##t##b);              \
    }
#define ADD_MINIMUM(t)                                                                                       \
    {                                                                                                        \
        const __m512 xs = broadcast_f32(scale + CLB_T * 4 + (t) * 4);                                        \
        s##t##a = _mm512_fmadd_ps(ma, xs, s##t##a);                                                          \
        s##t##b = _mm512_fmadd_ps(mb, xs, s##t##b);                                                          \
    }
#define MULTIPLY_ROW_SCALE(t)                                                                                \
    s##t##a = _mm512_mul_ps(s##t##a, ra);                                                                    \
    s##t##b = _mm512_mul_ps(s##t##b, rb);

/* Integer formats. `bits` 4 or 8; `seg` columns per segment; all three known at compile time. */
ALWAYS_INLINE void TILE(int)(const int bits, const int seg, const scale_kind kind, const clb_tile_args *args)
{
    const __m512i low4 = _mm512_set1_epi8(15);
    const uint8_t *w = args->w;
    const uint8_t *marks = args->act;
    const uint8_t *x = marks + clb_mark_bytes(args->n_seg);
    const uint8_t *ahead = args->prefetch;
    const ptrdiff_t ahead_step = args->prefetch_step;
    EACH(BEGIN_SUM)
    for (int32_t s = 0; s < args->n_seg; s++) {
        const uint8_t *start = x + seg * CLB_T + (bits == 8 ? CLB_T * 4 : 0);
        const uint8_t *scale = x + seg * CLB_T + CLB_T * 8;
        EACH(DECLARE_DOT)
        if (kind == SCALE_F16_MIN) { /* its nibbles carry no offset */
            EACH(ZERO_DOT)
        } else {
            EACH(BEGIN_DOT)
        }
        const uint8_t *const segment = w;
        for (int more = marks[s];; more--) {
            w = segment;
            UNROLL
            for (int j = 0; j < seg * bits / 32; j++) {
                PREFETCH_STEP
                const __m512i va = _mm512_load_si512(w);
                const __m512i vb = _mm512_load_si512(w + 64);
                w += 128;
                const uint8_t *step = x + j * CLB_T * 4;
                __m512i wa = bits == 4 ? _mm512_and_si512(va, low4) : va;
                __m512i wb = bits == 4 ? _mm512_and_si512(vb, low4) : vb;
                EACH(STEP_DOT)
                if (bits == 4) {
                    step += seg / 2 * CLB_T;
                    wa = _mm512_and_si512(_mm512_srli_epi16(va, 4), low4);
                    wb = _mm512_and_si512(_mm512_srli_epi16(vb, 4), low4);
                    EACH(STEP_DOT)
                }
            }
            if (more == 0)
                break;
            x += (seg + CLB_SEG_EXTRA) * CLB_T;
            start = x + seg * CLB_T + (bits == 8 ? CLB_T * 4 : 0);
            if (kind == SCALE_F16_MIN) {
                EACH(NEXT_PLANE_NO_OFFSET)
            } else {
                EACH(NEXT_PLANE)
            }
        }
        x += (seg + (marks[s] ? CLB_REST_EXTRA : CLB_SEG_EXTRA)) * CLB_T;
        if (kind != SCALE_ROW) {
            PREFETCH_STEP
        }
        if (kind == SCALE_ROW) {
            EACH(SCALE_BY_ROW)
        } else if (kind == SCALE_F32) {
            const __m512 da = _mm512_load_ps(w);
            const __m512 db = _mm512_load_ps(w + 64);
            w += 128;
            EACH(SCALE_BY_SEGMENT)
        } else {
            const __m512 da = load_f16(w);
            const __m512 db = load_f16(w + 32);
            w += 64;
            EACH(SCALE_BY_SEGMENT)
            if (kind == SCALE_F16_MIN) {
                const __m512 ma = load_f16(w);
                const __m512 mb = load_f16(w + 32);
                w += 64;
                EACH(ADD_MINIMUM)
            }
        }
    }
    if (kind == SCALE_ROW) {
        const __m512 ra = _mm512_load_ps(args->row_scale);
        const __m512 rb = _mm512_load_ps(args->row_scale + 16);
        EACH(MULTIPLY_ROW_SCALE)
    }
    EACH(END_SUM)
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

#define STEP_BF16(t)                                                                                         \
    {                                                                                                        \
        const __m512bh x2 = (__m512bh)broadcast(step + (t) * 4);                                             \
        s##t##a = _mm512_dpbf16_ps(s##t##a, (__m512bh)wa, x2);                                               \
        s##t##b = _mm512_dpbf16_ps(s##t##b, (__m512bh)wb, x2);                                               \
    }

static void TILE(bf16)(const clb_tile_args *args)
{
    const uint8_t *w = args->w;
    const uint8_t *step = args->act;
    const uint8_t *ahead = args->prefetch;
    const ptrdiff_t ahead_step = args->prefetch_step;
    EACH(BEGIN_SUM)
    UNROLL
    for (int32_t s = 0; s < args->n_seg; s++) {
        PREFETCH_STEP
        const __m512i wa = _mm512_load_si512(w);
        const __m512i wb = _mm512_load_si512(w + 64);
        EACH(STEP_BF16)
        w += 128;
        step += CLB_T * 4;
    }
    EACH(END_SUM)
}

#define STEP_F16(t)                                                                                          \
    {                                                                                                        \
        const __m512i x2 = broadcast(step + (t) * 4);                                                        \
        const __m512 x0 = _mm512_castsi512_ps(_mm512_slli_epi32(x2, 16));                                    \
        const __m512 x1 = _mm512_castsi512_ps(_mm512_and_si512(x2, high16));                                 \
        s##t##a = _mm512_fmadd_ps(wa1, x1, _mm512_fmadd_ps(wa0, x0, s##t##a));                               \
        s##t##b = _mm512_fmadd_ps(wb1, x1, _mm512_fmadd_ps(wb0, x0, s##t##b));                               \
    }

static void TILE(f16)(const clb_tile_args *args)
{
    const __m512i high16 = _mm512_set1_epi32((int32_t)0xffff0000u);
    const uint8_t *w = args->w;
    const uint8_t *step = args->act;
    EACH(BEGIN_SUM)
    for (int32_t s = 0; s < args->n_seg; s++) {
        const __m512i va = _mm512_load_si512(w);
        const __m512i vb = _mm512_load_si512(w + 64);
        const __m512 wa0 = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(va));
        const __m512 wb0 = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(vb));
        const __m512 wa1 = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(va, 16)));
        const __m512 wb1 = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(vb, 16)));
        EACH(STEP_F16)
        w += 128;
        step += CLB_T * 4;
    }
    EACH(END_SUM)
}

#define STEP_F32(t)                                                                                          \
    {                                                                                                        \
        const __m512 x1 = broadcast_f32(step + (t) * 4);                                                     \
        s##t##a = _mm512_fmadd_ps(wa, x1, s##t##a);                                                          \
        s##t##b = _mm512_fmadd_ps(wb, x1, s##t##b);                                                          \
    }

static void TILE(f32)(const clb_tile_args *args)
{
    const uint8_t *w = args->w;
    const uint8_t *step = args->act;
    EACH(BEGIN_SUM)
    UNROLL
    for (int32_t s = 0; s < args->n_seg; s++) {
        const __m512 wa = _mm512_load_ps(w);
        const __m512 wb = _mm512_load_ps(w + 64);
        EACH(STEP_F32)
        w += 128;
        step += CLB_T * 4;
    }
    EACH(END_SUM)
}

#define ADD_CHAIN(t)                                                                                         \
    {                                                                                                        \
        float *sum = sums + (t) * 32;                                                                        \
        _mm512_store_ps(sum, _mm512_fmadd_ps(s##t##a, block_scale, _mm512_load_ps(sum)));                    \
        _mm512_store_ps(sum + 16, _mm512_fmadd_ps(s##t##b, block_scale, _mm512_load_ps(sum + 16)));          \
    }
#define END_STORED_SUM(t)                                                                                    \
    finish(args, t, _mm512_load_ps(sums + (t) * 32), _mm512_load_ps(sums + (t) * 32 + 16));

/* The tables of the conversion take four registers, so the sums (touched once per 128 columns) wait in
 * memory. */
static void TILE(fp8)(const clb_tile_args *args)
{
    const fp8_tables tables = {_mm512_load_si512(fp8_low), _mm512_load_si512(fp8_low + 64),
                               _mm512_load_si512(fp8_high), _mm512_load_si512(fp8_high + 64)};
    _Alignas(64) float sums[CLB_T * 32];
    const uint8_t *w = args->w;
    const uint8_t *step = args->act;
    const uint8_t *ahead = args->prefetch;
    const ptrdiff_t ahead_step = args->prefetch_step;
    memset(sums, 0, sizeof sums);
    for (int32_t s = 0; s < args->n_seg; s++) {
        EACH(BEGIN_SUM)
        for (int j = 0; j < 32; j++) {
            PREFETCH_STEP
            __m512i wa;
            __m512i wb;
            const bf16_pairs va = widen_fp8(_mm512_load_si512(w), &tables);
            const bf16_pairs vb = widen_fp8(_mm512_load_si512(w + 64), &tables);
            w += 128;
            wa = va.even;
            wb = vb.even;
            EACH(STEP_BF16)
            step += CLB_T * 4;
            wa = va.odd;
            wb = vb.odd;
            EACH(STEP_BF16)
            step += CLB_T * 4;
        }
        PREFETCH_STEP
        const __m512 block_scale = broadcast_f32(w);
        w += 64;
        EACH(ADD_CHAIN)
    }
    EACH(END_STORED_SUM)
}

#undef TILE_NAME2
#undef TILE_NAME1
#undef TILE
#undef EACH
#undef STREAMS
#undef UNROLL
#undef PREFETCH_STEP
#undef BEGIN_SUM
#undef END_SUM
#undef DECLARE_DOT
#undef BEGIN_DOT
#undef ZERO_DOT
#undef STEP_DOT
#undef SCALE_BY_ROW
#undef SCALE_BY_SEGMENT
#undef ADD_MINIMUM
#undef MULTIPLY_ROW_SCALE
#undef STEP_BF16
#undef STEP_F16
#undef STEP_F32
#undef ADD_CHAIN
#undef END_STORED_SUM
#undef CLB_T
