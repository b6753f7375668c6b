/* probes.c - see probes.h. The peak loops keep 12 independent accumulators: enough to hide the latency
 * of every processor with these instructions. They are compiled for their instruction set by a function
 * attribute and run only where the processor has it.
 */
#define _GNU_SOURCE
#include "probes.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "colibri.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define READ_BYTES ((size_t)256 << 20)
#define HUGE_PAGE ((size_t)2 << 20)
#define MAX_THREADS 64
#define REPEATS 5

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double clb_probe_cpu_seconds(void)
{
    return seconds(CLOCK_THREAD_CPUTIME_ID);
}

double clb_probe_wall_seconds(void)
{
    return seconds(CLOCK_MONOTONIC);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double clb_probe_median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[n / 2];
}

void *clb_probe_alloc(size_t bytes)
{
    size_t length = (bytes + 2 * HUGE_PAGE) / HUGE_PAGE * HUGE_PAGE;
    uint8_t *p = mmap(NULL, length + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    p = (uint8_t *)(((uintptr_t)p + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
#if defined(MADV_HUGEPAGE)
    (void)madvise(p, length, MADV_HUGEPAGE);
#endif
    memset(p, 0, length);
    return p;
}

/* ---- reading ----------------------------------------------------------------------------------- */

#if defined(__x86_64__)

__attribute__((target("avx2"))) static uint64_t read_all(const uint8_t *p, size_t n)
{
    __m256i a = _mm256_setzero_si256();
    __m256i b = a;
    __m256i c = a;
    __m256i d = a;
    for (size_t i = 0; i < n; i += 128) {
        a = _mm256_xor_si256(a, _mm256_load_si256((const __m256i *)(const void *)(p + i)));
        b = _mm256_xor_si256(b, _mm256_load_si256((const __m256i *)(const void *)(p + i + 32)));
        c = _mm256_xor_si256(c, _mm256_load_si256((const __m256i *)(const void *)(p + i + 64)));
        d = _mm256_xor_si256(d, _mm256_load_si256((const __m256i *)(const void *)(p + i + 96)));
    }
    a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
    return (uint64_t)_mm256_extract_epi64(a, 0);
}

#else

static uint64_t read_all(const uint8_t *p, size_t n)
{
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < n; i += 64)
        for (size_t k = 0; k < 8; k++) {
            uint64_t v;
            memcpy(&v, p + i + 8 * k, 8);
            sum[k] ^= v;
        }
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

#endif

typedef struct {
    const uint8_t *p;
    size_t n;
    uint64_t result;
} part;

static void *read_part(void *argument)
{
    part *mine = argument;
    mine->result = read_all(mine->p, mine->n);
    return NULL;
}

double clb_probe_read(int threads)
{
    static uint8_t *buffer;
    double rate[REPEATS];
    part parts[MAX_THREADS];
    pthread_t handles[MAX_THREADS];
    volatile uint64_t sink = 0;
    if (buffer == NULL) {
        buffer = clb_probe_alloc(READ_BYTES);
        memset(buffer, 1, READ_BYTES);
    }
    threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
    const size_t share = READ_BYTES / (size_t)threads / 4096 * 4096;
    for (int r = 0; r < REPEATS; r++) {
        for (int i = 0; i < threads; i++)
            parts[i] = (part){.p = buffer + (size_t)i * share, .n = share};
        double start = threads == 1 ? clb_probe_cpu_seconds() : clb_probe_wall_seconds();
        for (int i = 1; i < threads; i++)
            if (pthread_create(&handles[i], NULL, read_part, &parts[i]) != 0) {
                perror("pthread_create");
                exit(1);
            }
        read_part(&parts[0]);
        for (int i = 1; i < threads; i++)
            pthread_join(handles[i], NULL);
        double end = threads == 1 ? clb_probe_cpu_seconds() : clb_probe_wall_seconds();
        for (int i = 0; i < threads; i++)
            sink ^= parts[i].result;
        rate[r] = (double)(share * (size_t)threads) / (end - start) / 1e9;
    }
    return clb_probe_median(rate, REPEATS);
}

/* ---- arithmetic -------------------------------------------------------------------------------- */

#if defined(__x86_64__)

#define LOOPS 1000000L
#define TWELVE(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)
/* The empty asm hides the value, else equal accumulators would be merged into one. */
#define START_INT(i)                                                                                         \
    __m512i a##i = _mm512_setzero_si512();                                                                   \
    __asm__ volatile("" : "+v"(a##i));
#define START_FLOAT(i)                                                                                       \
    __m512 a##i = _mm512_setzero_ps();                                                                       \
    __asm__ volatile("" : "+v"(a##i));
#define STEP_INT(i) a##i = _mm512_dpbusd_epi32(a##i, x, y);
#define STEP_FLOAT(i) a##i = _mm512_dpbf16_ps(a##i, (__m512bh)x, (__m512bh)y);
#define END(i) __asm__ volatile("" ::"v"(a##i));

__attribute__((target("avx512f,avx512bw,avx512vnni"))) static double vnni_rate(void)
{
    const __m512i x = _mm512_set1_epi8(3);
    const __m512i y = _mm512_set1_epi8(1);
    double start = clb_probe_cpu_seconds();
    TWELVE(START_INT)
    for (long k = 0; k < LOOPS; k++) {
        TWELVE(STEP_INT)
    }
    TWELVE(END)
    return (double)LOOPS * 12 * 128 / (clb_probe_cpu_seconds() - start) / 1e9;
}

__attribute__((target("avx512f,avx512bw,avx512bf16"))) static double bf16_rate(void)
{
    const __m512i x = _mm512_set1_epi16(0x3f80);
    const __m512i y = x;
    double start = clb_probe_cpu_seconds();
    TWELVE(START_FLOAT)
    for (long k = 0; k < LOOPS; k++) {
        TWELVE(STEP_FLOAT)
    }
    TWELVE(END)
    return (double)LOOPS * 12 * 64 / (clb_probe_cpu_seconds() - start) / 1e9;
}

static double median_rate(double (*measure)(void))
{
    double rate[REPEATS];
    for (int r = 0; r < REPEATS; r++)
        rate[r] = measure();
    return clb_probe_median(rate, REPEATS);
}

double clb_probe_vnni(void)
{
    return colibri_cpu_has_isa(COLIBRI_ISA_AVX512) ? median_rate(vnni_rate) : 0;
}

double clb_probe_bf16(void)
{
    return colibri_cpu_has_isa(COLIBRI_ISA_AVX512) ? median_rate(bf16_rate) : 0;
}

#else

double clb_probe_vnni(void)
{
    return 0;
}

double clb_probe_bf16(void)
{
    return 0;
}

#endif
