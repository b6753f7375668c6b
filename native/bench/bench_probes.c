/* bench_probes.c - prints what this machine can do at most, for the end-to-end benchmarks.
 *
 * Usage: bench_probes [--json] [--threads N]
 *   --json  one object per line: {name, value, unit}
 *
 * Rows: read (GB/s of 2 MB pages, all threads together), vnni (GOP/s) and bf16 (GFLOP/s). They hold on
 * a machine that others use too: the arithmetic peaks are measured in N processes at the same time, each
 * in CPU time, and added; reading counts only the moments at which all threads really ran (see
 * read_together). A peak this processor lacks is 0.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "probes.h"

#define MAX_PROCESSES 64
/* ---- reading with several threads --------------------------------------------------------------- */

#define PIECE_BYTES ((size_t)256 << 10) /* about 15 microseconds: short beside a time slice */
#define REGION_BYTES ((size_t)128 << 20)
#define MAX_PIECES 65536
#define READ_SECONDS 0.4

typedef struct {
    double start;
    double end;
} interval;

typedef struct {
    pthread_t handle;
    int index;
    const uint8_t *region;
    atomic_int *waiting; /* threads not yet started */
    interval *pieces;
    int n;
    double longest; /* a piece that takes longer was interrupted */
    uint64_t sum;
} reader;

/* Binds the calling thread to the index-th processor that this process may use. Two new threads may
 * start on one core and stay there for all of the measurement. */
static void pin(int index)
{
#if defined(__linux__)
    cpu_set_t usable;
    cpu_set_t one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof usable, &usable) != 0)
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &usable) && index-- == 0)
            CPU_SET(cpu, &one);
    (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
#else
    (void)index;
#endif
}

static uint64_t read_piece(const uint8_t *p)
{
    uint64_t sum[32] = {0};
    for (size_t i = 0; i < PIECE_BYTES; i += sizeof sum) {
        uint64_t v[32];
        memcpy(v, p + i, sizeof v);
        for (int k = 0; k < 32; k++)
            sum[k] ^= v[k];
    }
    for (int k = 1; k < 32; k++)
        sum[0] ^= sum[k];
    return sum[0];
}

static void *read_region(void *argument)
{
    reader *r = argument;
    size_t at = 0;
    pin(r->index);
    atomic_fetch_sub(r->waiting, 1);
    while (atomic_load(r->waiting) > 0)
        sched_yield();
    double start = clb_probe_wall_seconds();
    for (double now = start; r->n < MAX_PIECES && now - start < READ_SECONDS; r->n++) {
        r->sum ^= read_piece(r->region + at);
        at = (at + PIECE_BYTES) % REGION_BYTES;
        double end = clb_probe_wall_seconds();
        r->pieces[r->n] = (interval){now, end};
        now = end;
    }
    return NULL;
}

/* 1 if thread `r` read without interruption all through `when`. `from` remembers where to go on. */
static int busy_during(const reader *r, interval when, int *from)
{
    while (*from < r->n && r->pieces[*from].end <= when.start)
        ++*from;
    for (int i = *from; i < r->n && r->pieces[i].start < when.end; i++)
        if (r->pieces[i].end - r->pieces[i].start > r->longest)
            return 0;
    return *from < r->n && r->pieces[*from].start <= when.start && r->pieces[r->n - 1].end >= when.end;
}

/* GB/s of all threads, from the pieces during which every one of them was running. */
static double read_together(int threads)
{
    static reader readers[MAX_PROCESSES];
    atomic_int waiting = threads;
    double rate = 0;
    for (int t = 0; t < threads; t++) {
        uint8_t *region = clb_probe_alloc(REGION_BYTES);
        memset(region, t + 1, REGION_BYTES);
        readers[t] = (reader){.index = t,
                              .region = region,
                              .waiting = &waiting,
                              .pieces = calloc(MAX_PIECES, sizeof(interval))};
        if (readers[t].pieces == NULL) {
            fprintf(stderr, "bench_probes: out of memory\n");
            exit(1);
        }
    }
    for (int t = 0; t < threads; t++)
        if (pthread_create(&readers[t].handle, NULL, read_region, &readers[t]) != 0) {
            perror("pthread_create");
            exit(1);
        }
    for (int t = 0; t < threads; t++) {
        pthread_join(readers[t].handle, NULL);
        double lengths[MAX_PIECES / 16];
        int n = readers[t].n < MAX_PIECES / 16 ? readers[t].n : MAX_PIECES / 16;
        for (int i = 0; i < n; i++)
            lengths[i] = readers[t].pieces[i].end - readers[t].pieces[i].start;
        readers[t].longest = 2 * clb_probe_median(lengths, n);
    }
    for (int t = 0; t < threads; t++) {
        int from[MAX_PROCESSES] = {0};
        double time = 0;
        int counted = 0;
        for (int i = 0; i < readers[t].n; i++) {
            interval when = readers[t].pieces[i];
            int all = 1;
            for (int other = 0; other < threads && all; other++)
                all = busy_during(&readers[other], when, &from[other]);
            if (all) {
                time += when.end - when.start;
                counted++;
            }
        }
        rate += time > 0 ? counted * (double)PIECE_BYTES / time / 1e9 : 0;
    }
    return rate;
}

/* ---- arithmetic and output ---------------------------------------------------------------------- */

/* Sum over `n` processes that measure at once; the probes keep static buffers, hence no threads. */
static double together(double (*measure)(void), int n)
{
    int ends[2];
    double sum = 0;
    if (n == 1)
        return measure();
    if (pipe(ends) != 0) {
        perror("pipe");
        exit(1);
    }
    for (int i = 0; i < n; i++) {
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            exit(1);
        }
        if (child == 0) {
            double rate = measure();
            _exit(write(ends[1], &rate, sizeof rate) == (ssize_t)sizeof rate ? 0 : 1);
        }
    }
    close(ends[1]);
    for (int i = 0; i < n; i++) {
        double rate;
        if (read(ends[0], &rate, sizeof rate) != (ssize_t)sizeof rate) {
            fprintf(stderr, "bench_probes: a measuring process ended early\n");
            exit(1);
        }
        sum += rate;
    }
    close(ends[0]);
    while (wait(NULL) > 0)
        continue;
    return sum;
}

static void report(int json, const char *name, double value, const char *unit)
{
    if (json)
        printf("{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\"}\n", name, value, unit);
    else
        printf("%-6s %8.1f %s\n", name, value, unit);
}

int main(int argc, char **argv)
{
    int json = 0;
    int threads = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            json = 1;
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
            threads = atoi(argv[++i]);
        } else {
            fprintf(stderr, "usage: bench_probes [--json] [--threads N]\n");
            return 2;
        }
    }
    if (threads < 1 || threads > MAX_PROCESSES) {
        fprintf(stderr, "bench_probes: --threads must be 1 to %d\n", MAX_PROCESSES);
        return 2;
    }
    double vnni = together(clb_probe_vnni, threads);
    double bf16 = together(clb_probe_bf16, threads);
    report(json, "read", threads == 1 ? clb_probe_read(1) : read_together(threads), "GB/s");
    report(json, "vnni", vnni, "GOP/s");
    report(json, "bf16", bf16, "GFLOP/s");
    return 0;
}
