/* bench_probes.c - prints what this machine can do at most, for the end-to-end benchmarks.
 *
 * Usage: bench_probes [--json] [--threads N]
 *   --json  one object per line: {name, value, unit}
 *
 * Rows: read (GB/s of 2 MB pages, all threads together), vnni (GOP/s) and bf16 (GFLOP/s). The two
 * arithmetic peaks are measured in N processes at the same time and added, each in CPU time, so that
 * a core shared with somebody else does not lower them. A peak this processor lacks is 0. Reading
 * with several threads has to use the wall clock, which others can only lower: the best of some
 * tries counts.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "probes.h"

#define MAX_PROCESSES 64
#define READ_TRIES 9

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

static double read_rate(int threads)
{
    double best = clb_probe_read(threads);
    for (int i = 1; i < READ_TRIES && threads > 1; i++) {
        double rate = clb_probe_read(threads);
        best = rate > best ? rate : best;
    }
    return best;
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
    report(json, "read", read_rate(threads), "GB/s");
    report(json, "vnni", vnni, "GOP/s");
    report(json, "bf16", bf16, "GFLOP/s");
    return 0;
}
