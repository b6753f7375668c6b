/* bench_io.c - the read queue beside fio with direct I/O, on the disk that holds a given folder.
 *
 * Usage: bench_io [--json] [--quick] [--dir FOLDER] [--gb N] [--seconds S] [--rounds N] [--mode NAME] [--only
 * TEXT]
 *   --json     one object per line: {name, value, limit, share, unit}
 *   --quick    fewer sizes and depths
 *   --dir      where the test file is made (default: here); it is deleted at the end
 *   --gb       size of the test file, up to 4 (default 2)
 *   --seconds  of one measurement at least (default 0.7); --rounds of ours and fio each (default 5, 3 with
 * --quick)
 *   --mode     uring, threads or all (default)
 *   --only     rows whose name contains TEXT
 *
 * Rows: MODE_SIZE_dDEPTH, GB/s of random reads of SIZE with DEPTH of them in flight, into buffers on 2 MB
 * pages as the engine's are; the same with _small at the end into buffers on 4 KiB pages. Small pages cut a
 * read into hundreds of pieces of memory, which halves the rate of some disks. limit = fio (io_uring,
 * direct) at the same size and depth, with the same pages, on the same file. Disks have bursts and are
 * shared, so ours and fio take turns, and share is the median over the rounds of ours / fio of that round.
 * Without fio the limit is 0. The rows cpu_... give CPU seconds of this process per GB.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "io.h"
#include "probes.h"

#define MAX_DEPTH 32
#define MAX_ROUNDS 31

static struct {
    int json;
    int rounds;
    double seconds; /* of a measurement at least */
    const char *only;
    char path[512];
    int64_t bytes; /* of the file */
    uint64_t seed;
    uint8_t *buffers[2]; /* on large pages, on small ones */
    int has_fio;
} bench;

typedef struct {
    const char *name;
    int64_t bytes;
} size_entry;

static const size_entry sizes[] = {{"864k", 864 << 10}, {"1m", 1 << 20}, {"4m", 4 << 20}, {"21m", 21233664}};

static int64_t next_random(int64_t limit)
{
    bench.seed = bench.seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((bench.seed >> 24) % (uint64_t)limit);
}

static void die(const char *what)
{
    fprintf(stderr, "bench_io: %s\n", what);
    if (bench.path[0] != 0)
        unlink(bench.path);
    exit(1);
}

/* Random bytes, so that no layer below can shorten them. */
static void make_file(const char *folder)
{
    enum { BLOCK = 1 << 20 };
    static uint64_t block[BLOCK / 8];
    snprintf(bench.path, sizeof bench.path, "%s/bench-io-XXXXXX", folder);
    int file = mkstemp(bench.path);
    if (file < 0) {
        bench.path[0] = 0;
        die("the test file cannot be made");
    }
    for (int64_t at = 0; at < bench.bytes; at += BLOCK) {
        for (int i = 0; i < BLOCK / 8; i++) {
            bench.seed = bench.seed * 6364136223846793005u + 1442695040888963407u;
            block[i] = bench.seed ^ bench.seed >> 29;
        }
        if (write(file, block, BLOCK) != BLOCK)
            die("the test file cannot be written");
    }
    if (fsync(file) != 0 || posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) != 0)
        die("the test file cannot be flushed");
    close(file);
}

static void make_buffers(void)
{
    const size_t bytes = (size_t)(MAX_DEPTH * sizes[sizeof sizes / sizeof *sizes - 1].bytes);
    bench.buffers[0] = clb_probe_alloc(bytes);
    bench.buffers[1] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bench.buffers[1] == MAP_FAILED)
        die("out of memory");
    madvise(bench.buffers[1], bytes, MADV_NOHUGEPAGE);
    memset(bench.buffers[1], 1, bytes);
}

static double cpu_seconds(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           1e-6 * (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

static void submit_one(clb_io *io, int32_t tag, const size_entry *size, int small)
{
    clb_error none = {NULL, 0};
    clb_io_request r = {0, tag, next_random(bench.bytes / size->bytes) * size->bytes, size->bytes,
                        bench.buffers[small] + (int64_t)tag * size->bytes};
    if (clb_io_submit(io, &r, &none) != COLIBRI_OK)
        die("a read was refused");
}

/* Long enough for the queue to be filled several times. */
static double seconds_for(const size_entry *size, int depth)
{
    double fills = 6 * (double)size->bytes * depth / 1e9;
    return fills > bench.seconds ? fills : bench.seconds;
}

/* Bytes per second; CPU seconds per byte in *cpu. */
static double measure_ours(int32_t mode, const size_entry *size, int depth, int small, double *cpu)
{
    clb_io *io;
    char text[256];
    const char *paths[] = {bench.path};
    const clb_error error = {text, sizeof text};
    if (clb_io_open(&io, paths, 1, mode, 1, depth, &error) != COLIBRI_OK)
        die(text);
    clb_io_completion done[MAX_DEPTH];
    int64_t bytes = 0;
    const double seconds = seconds_for(size, depth);
    const double cpu_start = cpu_seconds(), start = clb_probe_wall_seconds();
    for (int32_t i = 0; i < depth; i++)
        submit_one(io, i, size, small);
    while (clb_io_in_flight(io) > 0) {
        int n = clb_io_wait(io, 1, done, MAX_DEPTH);
        int go_on = clb_probe_wall_seconds() - start < seconds;
        for (int i = 0; i < n; i++) {
            if (done[i].status != COLIBRI_OK) {
                clb_io_describe(io, &done[i], &error);
                die(text);
            }
            bytes += size->bytes;
            if (go_on)
                submit_one(io, done[i].tag, size, small);
        }
    }
    const double rate = (double)bytes / (clb_probe_wall_seconds() - start);
    *cpu = (cpu_seconds() - cpu_start) / (double)bytes;
    clb_io_close(io);
    return rate;
}

/* Bytes per second, 0 = fio is not there or failed. Its first tenths go into touching its memory; ours is
 * touched already. */
static double measure_fio(const size_entry *size, int depth, int small)
{
    char command[1024], line[4096];
    snprintf(command, sizeof command,
             "GLIBC_TUNABLES=glibc.malloc.hugetlb=%d fio --name=read --filename=%s --size=%lld --rw=randread "
             "--norandommap --bs=%lld --direct=1 "
             "--ioengine=io_uring --iodepth=%d --time_based --ramp_time=300ms --runtime=%.0fms "
             "--output-format=terse "
             "--terse-version=3 2>/dev/null",
             !small, bench.path, (long long)(bench.bytes / size->bytes * size->bytes), (long long)size->bytes,
             depth, 1000 * seconds_for(size, depth));
    FILE *out = popen(command, "r");
    double rate = 0;
    if (out == NULL)
        return 0;
    while (fgets(line, sizeof line, out) != NULL) {
        const char *field = line; /* 3;version;name;group;error;KiB read;KiB/s;... */
        for (int i = 0; i < 6 && field != NULL; i++)
            field = (field = strchr(field, ';')) != NULL ? field + 1 : NULL;
        if (field != NULL && strncmp(line, "3;", 2) == 0)
            rate = strtod(field, NULL) * 1024;
    }
    pclose(out);
    return rate;
}

static void report(const char *name, double value, double limit, double share, const char *unit)
{
    if (bench.json)
        printf("{\"name\": \"%s\", \"value\": %.4g, \"limit\": %.4g, \"share\": %.4g, \"unit\": \"%s\"}\n",
               name, value, limit, share, unit);
    else if (limit > 0)
        printf("%-28s %8.3f %-9s of %6.3f  %5.1f %%\n", name, value, unit, limit, 100 * share);
    else
        printf("%-28s %8.3f %s\n", name, value, unit);
    fflush(stdout);
}

static void measure(int32_t mode, const size_entry *size, int depth, int small)
{
    char name[64];
    double ours[MAX_ROUNDS], fio[MAX_ROUNDS], share[MAX_ROUNDS], cpu[MAX_ROUNDS];
    snprintf(name, sizeof name, "cpu_%s_%s_d%d%s", mode == CLB_IO_URING ? "uring" : "threads", size->name,
             depth, small ? "_small" : "");
    if (bench.only != NULL && strstr(name, bench.only) == NULL)
        return;
    for (int i = 0; i < bench.rounds; i++) {
        const int first = i % 2;
        if (first)
            ours[i] = measure_ours(mode, size, depth, small, &cpu[i]);
        fio[i] = bench.has_fio ? measure_fio(size, depth, small) : 0;
        if (!first)
            ours[i] = measure_ours(mode, size, depth, small, &cpu[i]);
        share[i] = fio[i] > 0 ? ours[i] / fio[i] : 0;
        cpu[i] *= 1e9;
    }
    report(name + 4, clb_probe_median(ours, bench.rounds) / 1e9, clb_probe_median(fio, bench.rounds) / 1e9,
           clb_probe_median(share, bench.rounds), "GB/s");
    report(name, clb_probe_median(cpu, bench.rounds), 0, 0, "CPU s/GB");
}

static void run(const char *mode, int quick)
{
    static const int depths[] = {1, 2, 4, 8, 16, 32};
    static const int quick_depths[] = {1, 4, 16};
    for (int32_t m = CLB_IO_URING; m <= CLB_IO_THREADS; m++) {
        if (strcmp(mode, "all") != 0 && strcmp(mode, m == CLB_IO_URING ? "uring" : "threads") != 0)
            continue;
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int d = 0; d < (quick ? 3 : 6); d++)
                for (int small = 0; small < 2; small++)
                    measure(m, &sizes[s], quick ? quick_depths[d] : depths[d], small);
    }
}

int main(int argc, char **argv)
{
    const char *folder = ".", *mode = "all";
    int quick = 0;
    double gb = 2;
    bench.seconds = 0.7;
    bench.seed = 20;
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;
        int takes = 1;
        if (strcmp(argv[i], "--json") == 0) {
            bench.json = 1;
            takes = 0;
        } else if (strcmp(argv[i], "--quick") == 0) {
            quick = 1;
            takes = 0;
        } else if (next != NULL && strcmp(argv[i], "--dir") == 0) {
            folder = next;
        } else if (next != NULL && strcmp(argv[i], "--gb") == 0) {
            gb = strtod(next, NULL);
        } else if (next != NULL && strcmp(argv[i], "--seconds") == 0) {
            bench.seconds = strtod(next, NULL);
        } else if (next != NULL && strcmp(argv[i], "--rounds") == 0) {
            bench.rounds = (int)strtol(next, NULL, 10);
        } else if (next != NULL && strcmp(argv[i], "--mode") == 0) {
            mode = next;
        } else if (next != NULL && strcmp(argv[i], "--only") == 0) {
            bench.only = next;
        } else {
            fprintf(stderr,
                    "usage: bench_io [--json] [--quick] [--dir FOLDER] [--gb N] [--seconds S] [--rounds N] "
                    "[--mode uring|threads|all] [--only TEXT]\n");
            return 2;
        }
        i += takes;
    }
    if (bench.rounds == 0)
        bench.rounds = quick ? 3 : 5;
    if (!(gb >= 0.25 && gb <= 4) || !(bench.seconds > 0) || bench.rounds < 1 || bench.rounds > MAX_ROUNDS) {
        fprintf(stderr, "bench_io: --gb is 0.25 to 4, --seconds positive, --rounds 1 to %d\n", MAX_ROUNDS);
        return 2;
    }
    bench.bytes = (int64_t)(gb * 1024) << 20;
    make_buffers();
    make_file(folder);
    bench.has_fio = measure_fio(&sizes[0], 1, 0) > 0;
    if (!bench.has_fio)
        fprintf(stderr, "bench_io: fio is not installed: no limit to compare with\n");
    run(mode, quick);
    unlink(bench.path);
    return 0;
}
