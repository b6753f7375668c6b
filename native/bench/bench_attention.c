/* bench_attention.c - the bare attention and vector functions on one thread, beside the machine's limits.
 *
 * Usage: bench_attention [--json] [--quick] [--isa NAME] [--only TEXT]
 *   --json   one object per line: {name, value, limit, share, unit}
 *   --quick  fewer repeats
 *   --only   rows whose name contains TEXT
 *
 * Rows: products of queries and keys that may see each other count 4 * dim operations (GFLOP/s, limit =
 * BF16 peak); decode of a short group counts the bytes of the keys and values it reads (GB/s, limit =
 * read probe, caches much larger than the processor's). Vector functions: ns per value, cached, no
 * limit. Times are CPU time of the thread, medians.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri.h"
#include "kernels/kernels.h"
#include "probes.h"

#define STREAM_BYTES ((size_t)200 << 20)
#define MAX_BLOCKS 256
#define MAX_ROWS 8192

static struct {
    int json;
    int quick;
    const char *only;
    const clb_kernels *kernels;
    double read;
    double bf16;
    uint8_t *cache;
    float *q;
    float *out;
    clb_softmax *state;
    void *scratch;
} bench;

static void report(const char *name, double value, double limit, const char *unit)
{
    if (bench.json)
        printf("{\"name\": \"%s\", \"value\": %.4g, \"limit\": %.4g, \"share\": %.4g, \"unit\": \"%s\"}\n",
               name, value, limit, limit > 0 ? value / limit : 0, unit);
    else if (limit > 0)
        printf("%-34s %8.1f %-7s of %6.1f  %5.1f %%\n", name, value, unit, limit, 100 * value / limit);
    else
        printf("%-34s %8.3f %s\n", name, value, unit);
    fflush(stdout);
}

static int wanted(const char *name)
{
    return bench.only == NULL || strstr(name, bench.only) != NULL;
}

/* Small finite bf16 numbers everywhere. */
static void fill(void *p, size_t bytes)
{
    uint64_t x = 88172645463325252u;
    uint16_t *h = p;
    for (size_t i = 0; i < bytes / 2; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        h[i] = (uint16_t)((x >> 48 & 0x80ffu) | 0x3f00u);
    }
}

static void clear_states(int64_t rows)
{
    for (int64_t i = 0; i < rows; i++)
        bench.state[i] = (clb_softmax){-INFINITY, 0};
}

/* ---- GQA ---------------------------------------------------------------------------------------- */

static void gqa_prefill(int32_t dim, int32_t heads, int32_t first, int32_t tokens)
{
    char name[96];
    snprintf(name, sizeof name, "gqa_prefill_dim%d_group%d_at%d_n%d", dim, heads, first, tokens);
    if (!wanted(name))
        return;
    int32_t spans = (first + tokens + CLB_SPAN - 1) / CLB_SPAN;
    const uint8_t *blocks[MAX_BLOCKS];
    for (int32_t i = 0; i < spans; i++)
        blocks[i] = bench.cache + (size_t)i * CLB_GQA_HEAD_BYTES(dim);
    clb_gqa_args args = {.dim = dim,
                         .n_heads = heads,
                         .scale = 1 / sqrtf((float)dim),
                         .blocks = blocks,
                         .q = bench.q,
                         .q_stride = (int64_t)dim * heads,
                         .first_position = first};
    double flops = 4.0 * dim * heads * tokens * (first + (tokens + 1) / 2.0), times[9];
    int rounds = (int)((bench.quick ? 4e9 : 2e10) / flops) + 1, repeats = bench.quick ? 3 : 7;
    for (int r = 0; r < repeats; r++) {
        double start = clb_probe_cpu_seconds();
        for (int i = 0; i < rounds; i++) {
            clear_states((int64_t)tokens * heads);
            bench.kernels->gqa_attend(&args, 0, tokens, 0, spans, bench.state, bench.out, bench.scratch);
        }
        times[r] = (clb_probe_cpu_seconds() - start) / rounds;
    }
    report(name, flops / clb_probe_median(times, repeats) / 1e9, bench.bf16, "GFLOP/s");
}

static void gqa_decode(int32_t dim, int32_t heads, int32_t keys)
{
    char name[96];
    snprintf(name, sizeof name, "gqa_decode_dim%d_group%d_keys%d", dim, heads, keys);
    if (!wanted(name))
        return;
    int32_t spans = keys / CLB_SPAN;
    size_t bytes = (size_t)spans * CLB_GQA_HEAD_BYTES(dim), copies = STREAM_BYTES / bytes;
    double times[9];
    for (int r = 0; r < 7; r++) {
        double start = clb_probe_cpu_seconds();
        for (size_t c = 0; c < copies; c++) {
            const uint8_t *blocks[MAX_BLOCKS];
            for (int32_t i = 0; i < spans; i++)
                blocks[i] = bench.cache + c * bytes + (size_t)i * CLB_GQA_HEAD_BYTES(dim);
            clb_gqa_args args = {.dim = dim,
                                 .n_heads = heads,
                                 .scale = 1 / sqrtf((float)dim),
                                 .blocks = blocks,
                                 .q = bench.q,
                                 .q_stride = (int64_t)dim * heads,
                                 .first_position = keys - 1};
            clear_states(heads);
            bench.kernels->gqa_attend(&args, 0, 1, 0, spans, bench.state, bench.out, bench.scratch);
        }
        times[r] = (clb_probe_cpu_seconds() - start) / (double)copies;
    }
    report(name, (double)bytes / clb_probe_median(times, 7) / 1e9, bench.read, "GB/s");
}

/* ---- MLA and the indexer --------------------------------------------------------------------------- */

/* cached: keys of the context; picked: keys attended (0 = all, in place). */
static void mla_decode(int32_t heads, int32_t rank, int32_t rope, int32_t cached, int32_t picked)
{
    char name[96];
    if (picked)
        snprintf(name, sizeof name, "mla_decode_heads%d_keys%d_of_%d", heads, picked, cached);
    else
        snprintf(name, sizeof name, "mla_decode_heads%d_keys%d", heads, cached);
    if (!wanted(name))
        return;
    int32_t *list = NULL, n = picked ? picked : cached;
    const uint16_t *blocks[MAX_BLOCKS];
    size_t bytes = (size_t)CLB_SPAN * (size_t)(rank + rope) * 2;
    for (int32_t i = 0; i < cached / CLB_SPAN; i++)
        blocks[i] = (const uint16_t *)(const void *)(bench.cache + (size_t)i * bytes);
    if (picked) {
        list = malloc((size_t)picked * sizeof *list);
        for (int32_t i = 0; list && i < picked; i++)
            list[i] = (int32_t)((int64_t)i * cached / picked);
    }
    clb_mla_args args = {heads, rank, rope, 0.0625f, blocks, bench.q, list, n};
    double flops = 2.0 * heads * n * (2 * rank + rope), times[9];
    int rounds = (int)((bench.quick ? 2e9 : 1e10) / flops) + 1, repeats = bench.quick ? 3 : 7;
    for (int r = 0; r < repeats; r++) {
        double start = clb_probe_cpu_seconds();
        for (int i = 0; i < rounds; i++) {
            clear_states(heads);
            bench.kernels->mla_attend(&args, 0, heads, 0, (n + CLB_SPAN - 1) / CLB_SPAN, bench.state,
                                      bench.out, bench.scratch);
        }
        times[r] = (clb_probe_cpu_seconds() - start) / rounds;
    }
    free(list);
    report(name, flops / clb_probe_median(times, repeats) / 1e9, bench.bf16, "GFLOP/s");
}

static void index_scores(int32_t heads, int32_t dim, int32_t keys)
{
    char name[96];
    snprintf(name, sizeof name, "index_scores_heads%d_dim%d_keys%d", heads, dim, keys);
    if (!wanted(name))
        return;
    const uint16_t *blocks[MAX_BLOCKS];
    for (int32_t i = 0; i < keys / CLB_SPAN; i++)
        blocks[i] = (const uint16_t *)(const void *)(bench.cache + (size_t)i * CLB_SPAN * (size_t)dim * 2);
    double flops = 2.0 * heads * dim * keys, times[9];
    int rounds = (int)((bench.quick ? 2e9 : 1e10) / flops) + 1, repeats = bench.quick ? 3 : 7;
    for (int r = 0; r < repeats; r++) {
        double start = clb_probe_cpu_seconds();
        for (int i = 0; i < rounds; i++)
            bench.kernels->index_scores(blocks, bench.q, bench.q, heads, dim, 0.1f, 0, keys, bench.out,
                                        bench.scratch);
        times[r] = (clb_probe_cpu_seconds() - start) / rounds;
    }
    report(name, flops / clb_probe_median(times, repeats) / 1e9, bench.bf16, "GFLOP/s");
}

/* ---- vectors ---------------------------------------------------------------------------------------- */

enum { RMS_NORM, LAYER_NORM, SWIGLU, ADD, AXPY, ROPE_PAIRS, ROPE_HALF };

static void vectors(const char *name, int which, int32_t n)
{
    const clb_kernels *k = bench.kernels;
    float *a = bench.out, *b = bench.q;
    double times[9];
    if (!wanted(name))
        return;
    int rounds = (bench.quick ? 4000000 : 40000000) / n;
    for (int r = 0; r < 7; r++) {
        memcpy(a, b, (size_t)n * sizeof *a);
        double start = clb_probe_cpu_seconds();
        for (int i = 0; i < rounds; i++)
            switch (which) {
            case RMS_NORM:
                k->rms_norm(a, b, b + n, n, 1e-5f);
                break;
            case LAYER_NORM:
                k->layer_norm(a, b, b + n, b + 2 * n, n, 1e-6f);
                break;
            case SWIGLU:
                k->swiglu(a, b, b + n, n);
                break;
            case ADD:
                k->add(a, b, n);
                break;
            case AXPY:
                k->axpy(a, 0.25f, b, n);
                break;
            case ROPE_PAIRS:
                k->rope_pairs(a, b, n);
                break;
            default:
                k->rope_half(a, b, n);
            }
        times[r] = (clb_probe_cpu_seconds() - start) / rounds / n * 1e9;
    }
    report(name, clb_probe_median(times, 7), 0, "ns/value");
}

static int32_t isa_by_name(const char *name)
{
    for (int32_t isa = COLIBRI_ISA_AUTO; isa <= COLIBRI_ISA_NEON; isa++)
        if (strcmp(colibri_isa_name(isa), name) == 0)
            return isa;
    return -1;
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_attention [--json] [--quick] [--isa NAME] [--only TEXT]\n");
    return 2;
}

int main(int argc, char **argv)
{
    int32_t isa = COLIBRI_ISA_AUTO;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            bench.json = 1;
        else if (strcmp(argv[i], "--quick") == 0)
            bench.quick = 1;
        else if (strcmp(argv[i], "--isa") == 0 && i + 1 < argc)
            isa = isa_by_name(argv[++i]);
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            bench.only = argv[++i];
        else
            return usage();
    }
    bench.kernels = isa < 0 ? NULL : clb_kernels_get(isa);
    if (bench.kernels == NULL) {
        fprintf(stderr, "bench_attention: this processor lacks that instruction set\n");
        return 1;
    }
    bench.cache = clb_probe_alloc(STREAM_BYTES);
    bench.q = clb_probe_alloc((size_t)MAX_ROWS * 256 * sizeof *bench.q);
    bench.out = clb_probe_alloc((size_t)MAX_ROWS * 256 * sizeof *bench.out);
    bench.state = clb_probe_alloc(MAX_ROWS * sizeof *bench.state);
    bench.scratch = clb_probe_alloc((size_t)8 << 20);
    fill(bench.cache, STREAM_BYTES);
    uint64_t x = 1;
    for (size_t i = 0; i < (size_t)MAX_ROWS * 256; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        bench.q[i] = (float)(x >> 40) * 0x1p-23f - 1.0f;
    }
    bench.bf16 = clb_probe_bf16();
    gqa_prefill(64, 3, 1792, 256);
    gqa_prefill(64, 3, 0, 512);
    gqa_prefill(64, 3, 0, 2048);
    gqa_prefill(128, 8, 1792, 256);
    gqa_prefill(256, 4, 1792, 256);
    bench.read = clb_probe_read(1);
    gqa_decode(64, 3, 2048);
    gqa_decode(64, 3, 8192);
    gqa_decode(128, 8, 8192);
    bench.bf16 = clb_probe_bf16();
    mla_decode(64, 512, 64, 1024, 0);
    mla_decode(64, 512, 64, 8192, 0);
    mla_decode(64, 512, 64, 32768, 2048);
    index_scores(32, 128, 8192);
    index_scores(32, 128, 32768);
    vectors("rms_norm_576", RMS_NORM, 576);
    vectors("rms_norm_6144", RMS_NORM, 6144);
    vectors("layer_norm_128", LAYER_NORM, 128);
    vectors("swiglu_1536", SWIGLU, 1536);
    vectors("add_6144", ADD, 6144);
    vectors("axpy_6144", AXPY, 6144);
    vectors("rope_pairs_64", ROPE_PAIRS, 64);
    vectors("rope_half_64", ROPE_HALF, 64);
    return 0;
}
