/* bench_linear.c - the bare linear kernels on one thread, each beside the limit of the machine.
 *
 * Usage: bench_linear [--json] [--quick] [--isa NAME] [--only TEXT]
 *   --json   one object per line: {name, value, limit, share, unit}
 *   --quick  fewer shapes and repeats
 *   --only   rows whose name contains TEXT
 *
 * Rows: gemv (GB/s of packed weights, limit = read probe), batchN (GOP/s, limit = the smaller of
 * N times the read probe's GEMV rate and the multiplier's peak), gemmN (GOP/s, limit = VNNI or BF16
 * peak). Big matrices are cycled through so that weights come from memory; 576-wide ones stay in cache
 * and are compared with the multiplier. Activation preparation is a row of its own (ns per value).
 * Weights lie in 2 MB pages. Times are CPU time of the thread, medians.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri.h"
#include "kernels/kernels.h"
#include "probes.h"
#include "weight.h"

#define STREAM_BYTES ((int64_t)230 << 20)
#define MAX_TOKENS 1024

static struct {
    int json;
    int quick;
    const char *only;
    const clb_kernels *kernels;
    double read;
    double vnni;
    double bf16;
    uint8_t *weights; /* room for STREAM_BYTES and one more matrix */
    float *x;
    void *act;
    float *y;
} bench;

typedef struct {
    const char *name;
    int32_t format;
    int32_t group;
} format_entry;

static const format_entry formats[] = {
    {"i4_group64", COLIBRI_FORMAT_I4_GROUP, 64},
    {"i4_group128", COLIBRI_FORMAT_I4_GROUP, 128},
    {"i4_group32", COLIBRI_FORMAT_I4_GROUP, 32},
    {"i4_row", COLIBRI_FORMAT_I4_ROW, 0},
    {"i8_row", COLIBRI_FORMAT_I8_ROW, 0},
    {"q4_0", COLIBRI_FORMAT_Q4_0, 0},
    {"q4_1", COLIBRI_FORMAT_Q4_1, 0},
    {"q8_0", COLIBRI_FORMAT_Q8_0, 0},
    {"bf16", COLIBRI_FORMAT_BF16, 0},
    {"f16", COLIBRI_FORMAT_F16, 0},
    {"fp8", COLIBRI_FORMAT_FP8_BLOCK, 0},
    {"f32", COLIBRI_FORMAT_F32, 0},
};

/* Fills with ordinary numbers: finite, and no denormals that would slow some processors down. */
static void fill_matrix(clb_weight *w)
{
    const int64_t width = w->format == COLIBRI_FORMAT_F32                                       ? 4
                          : w->format == COLIBRI_FORMAT_BF16 || w->format == COLIBRI_FORMAT_F16 ? 2
                                                                                                : 0;
    uint64_t state = 88172645463325252u;
    const int64_t plain_bytes = clb_plain_bytes(w->format, w->rows, w->cols);
    const int64_t scale_bytes = clb_scale_bytes(w->format, w->group, w->rows, w->cols);
    uint8_t *plain = malloc((size_t)plain_bytes);
    float *scales = malloc((size_t)scale_bytes + 4);
    if (plain == NULL || scales == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    for (int64_t i = 0; i < plain_bytes; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        plain[i] = (uint8_t)(state >> 56) & 0x3b; /* a scale or e4m3: small and finite */
        if (width > 0 && i % width == width - 1)
            plain[i] = 0x3c; /* the exponent's byte */
    }
    for (int64_t i = 0; i < scale_bytes / 4; i++)
        scales[i] = 0.01f;
    clb_weight_pack(w, plain, scales, bench.weights, 0, w->n_blocks);
    free(plain);
    free(scales);
}

static void report(const char *name, double value, double limit, const char *unit)
{
    if (bench.json)
        printf("{\"name\": \"%s\", \"value\": %.4g, \"limit\": %.4g, \"share\": %.4g, \"unit\": \"%s\"}\n",
               name, value, limit, limit > 0 ? value / limit : 0, unit);
    else if (limit > 0)
        printf("%-34s %8.1f %-7s of %6.1f  %5.1f %%\n", name, value, unit, limit, 100 * value / limit);
    else
        printf("%-34s %8.2f %s\n", name, value, unit);
    fflush(stdout);
}

/* Seconds per matrix-times-batch product. */
static double time_linear(clb_weight *w, int32_t n)
{
    const int64_t stride = (w->bytes + 4095) / 4096 * 4096;
    const int streamed = w->bytes > (2 << 20);
    double macs = (double)w->rows * w->cols * n;
    int64_t copies = streamed ? STREAM_BYTES / stride : 1;
    int64_t wanted = (int64_t)((bench.quick ? 4e9 : 1.2e10) / macs) + 1; /* products per repeat */
    if (copies > wanted && n > 16)
        copies = wanted;
    if (copies < 1)
        copies = 1;
    for (int64_t i = 1; i < copies; i++)
        memcpy(bench.weights + i * stride, bench.weights, (size_t)w->bytes);
    bench.kernels->act_prepare(w->act, w->cols, n, bench.x, w->cols, NULL, bench.act, 0, n);
    const int64_t rounds = streamed ? 1 : (int64_t)((bench.quick ? 5e7 : 2e8) / macs) + 1;
    double times[9];
    const int repeats = bench.quick ? 3 : n > 16 ? 5 : 9;
    for (int r = 0; r < repeats; r++) {
        double start = clb_probe_cpu_seconds();
        for (int64_t k = 0; k < rounds; k++)
            for (int64_t i = 0; i < copies; i++) {
                w->data = bench.weights + i * stride;
                bench.kernels->linear(w, bench.act, n, 0, n, bench.y, w->rows, 0, w->n_blocks, 0);
            }
        times[r] = (clb_probe_cpu_seconds() - start) / (double)(rounds * copies);
    }
    return clb_probe_median(times, repeats);
}

static void measure(const format_entry *f, int32_t rows, int32_t cols, int32_t n)
{
    char name[96];
    clb_weight w;
    const char *kind = n == 1 ? "gemv" : n <= 16 ? "batch" : "gemm";
    if (n == 1)
        snprintf(name, sizeof name, "gemv_%s_%dx%d", f->name, rows, cols);
    else
        snprintf(name, sizeof name, "%s%d_%s_%dx%d", kind, n, f->name, rows, cols);
    if (bench.only != NULL && strstr(name, bench.only) == NULL)
        return;
    if (clb_weight_describe(f->format, f->group, rows, cols, &w) != 0)
        return;
    fill_matrix(&w);
    const double peak = w.act == CLB_ACT_F32 ? 0 : w.act == CLB_ACT_BF16 ? bench.bf16 : bench.vnni;
    const double seconds = time_linear(&w, n);
    const double gops = 2.0 * rows * cols * n / seconds / 1e9;
    const double gbs = (double)w.bytes / seconds / 1e9;
    if (n == 1 && w.bytes > (2 << 20)) {
        report(name, gbs, bench.read, "GB/s");
        return;
    }
    const double streamed = bench.read * gops / gbs; /* GOP/s when the weights come at the probe's rate */
    const double limit = n <= 16 && w.bytes > (2 << 20) && (streamed < peak || peak == 0) ? streamed : peak;
    report(name, gops, limit, "GOP/s");
}

static void measure_prepare(const char *name, int32_t kind, int32_t cols, int32_t n)
{
    double times[9];
    if (bench.only != NULL && strstr(name, bench.only) == NULL)
        return;
    const int rounds = 20000000 / (cols * n) + 1;
    for (int r = 0; r < 9; r++) {
        double start = clb_probe_cpu_seconds();
        for (int i = 0; i < rounds; i++)
            bench.kernels->act_prepare(kind, cols, n, bench.x, cols, NULL, bench.act, 0, n);
        times[r] = (clb_probe_cpu_seconds() - start) / rounds / cols / n * 1e9;
    }
    report(name, clb_probe_median(times, 9), 0, "ns/value");
}

static int32_t isa_by_name(const char *name)
{
    for (int32_t isa = COLIBRI_ISA_AUTO; isa <= COLIBRI_ISA_NEON; isa++)
        if (strcmp(colibri_isa_name(isa), name) == 0)
            return isa;
    return -1;
}

static void run(void)
{
    static const int32_t big[][2] = {{2048, 6144}, {6144, 2048}};
    static const int32_t small[][2] = {{576, 576}, {1536, 576}, {576, 1536}};
    static const int32_t batches[] = {2, 3, 4, 5, 6, 8, 12, 16};
    static const int32_t prefill[] = {64, 256, 1024};
    const int n_formats = (int)(sizeof formats / sizeof formats[0]);
    for (int f = 0; f < n_formats; f++) {
        bench.read = clb_probe_read(1);
        for (int s = 0; s < (bench.quick ? 1 : 2); s++)
            measure(&formats[f], big[s][0], big[s][1], 1);
        for (int s = 0; s < 3; s++)
            measure(&formats[f], small[s][0], small[s][1], 1);
    }
    for (int f = 0; f < n_formats; f++) {
        bench.read = clb_probe_read(1);
        for (int b = 0; b < 8; b++)
            if (!bench.quick || batches[b] % 4 == 0)
                measure(&formats[f], big[0][0], big[0][1], batches[b]);
    }
    for (int f = 0; f < n_formats; f++) {
        bench.vnni = clb_probe_vnni();
        bench.bf16 = clb_probe_bf16();
        for (int b = bench.quick ? 1 : 0; b < (bench.quick ? 2 : 3); b++) {
            measure(&formats[f], big[0][0], big[0][1], prefill[b]);
            measure(&formats[f], big[1][0], big[1][1], prefill[b]);
            measure(&formats[f], small[0][0], small[0][1], prefill[b]);
            measure(&formats[f], small[1][0], small[1][1], prefill[b]);
        }
    }
    measure_prepare("prepare_q8_64_n1", CLB_ACT_Q8_64, 6144, 1);
    measure_prepare("prepare_q8_32_n1", CLB_ACT_Q8_32, 576, 1);
    measure_prepare("prepare_q8_64_n512", CLB_ACT_Q8_64, 2048, 512);
    measure_prepare("prepare_q8_32_n512", CLB_ACT_Q8_32, 576, 512);
    measure_prepare("prepare_bf16_n512", CLB_ACT_BF16, 2048, 512);
}

int main(int argc, char **argv)
{
    int32_t isa = COLIBRI_ISA_AUTO;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            bench.json = 1;
        } else if (strcmp(argv[i], "--quick") == 0) {
            bench.quick = 1;
        } else if (strcmp(argv[i], "--isa") == 0 && i + 1 < argc) {
            isa = isa_by_name(argv[++i]);
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            bench.only = argv[++i];
        } else {
            fprintf(stderr, "usage: bench_linear [--json] [--quick] [--isa NAME] [--only TEXT]\n");
            return 2;
        }
    }
    bench.kernels = clb_kernels_get(isa);
    if (bench.kernels == NULL) {
        fprintf(stderr, "this build or processor has no such instruction set\n");
        return 2;
    }
    bench.weights = clb_probe_alloc((size_t)STREAM_BYTES + ((size_t)64 << 20));
    bench.x = clb_probe_alloc((size_t)MAX_TOKENS * 6144 * 4);
    bench.act = clb_probe_alloc((size_t)MAX_TOKENS * 6144 * 5);
    bench.y = clb_probe_alloc((size_t)MAX_TOKENS * 6144 * 4);
    uint32_t state = 1;
    for (int64_t i = 0; i < (int64_t)MAX_TOKENS * 6144; i++) {
        state = state * 1664525u + 1013904223u;
        bench.x[i] = (float)(int32_t)state * 0x1p-31f;
    }
    bench.read = clb_probe_read(1);
    bench.vnni = clb_probe_vnni();
    bench.bf16 = clb_probe_bf16();
    report("probe_read_1", bench.read, 0, "GB/s");
    report("probe_read_2", clb_probe_read(2), 0, "GB/s");
    report("probe_vnni", bench.vnni, 0, "GOP/s");
    report("probe_bf16", bench.bf16, 0, "GFLOP/s");
    run();
    return 0;
}
