/* test_io.c - the read queue: every mode returns the file's bytes, faults stay with the request they hit.
 *
 * Cases R152 (short reads, EINTR, end of file and EIO with file, offset, wanted and got), R157 (EIO names
 * the file and does not send anybody to download again).
 *
 * The test file's bytes are a function of their offset. Buffers are filled with something else before
 * each read, and injected faults spoil the bytes they claim not to have delivered.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#include "io_internal.h"
#include "os.h"
#include "test.h"

#define MAX_REQUESTS 256

static const char *const mode_names[] = {"auto", "io_uring", "threads", "buffered"};

static struct {
    char path[2][320]; /* two files of the same size, different bytes */
    int64_t size;      /* not a multiple of any block */
    int quick;
    int has_uring;
    char text[512];
    clb_error error;
} test;
static char folder_path[256];

/* ---- files and buffers ----------------------------------------------------------------------------- */

static uint8_t byte_at(int32_t file, int64_t offset)
{
    uint64_t x = ((uint64_t)offset >> 3) * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)file * 77 + 1;
    x ^= x >> 31;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    return (uint8_t)(x >> (8 * (offset & 7)));
}

static void write_file(const char *path, int32_t file, int64_t size)
{
    FILE *f = fopen(path, "wb");
    uint8_t *block = malloc(1 << 16);
    int ok = f != NULL && block != NULL;
    for (int64_t at = 0; ok && at < size; at += 1 << 16) {
        size_t n = (size_t)(size - at < 1 << 16 ? size - at : 1 << 16);
        for (size_t i = 0; i < n; i++)
            block[i] = byte_at(file, at + (int64_t)i);
        ok = fwrite(block, 1, n, f) == n;
    }
    free(block);
    if (!ok || fflush(f) != 0 || fsync(fileno(f)) != 0 || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

static uint8_t *make_buffer(int64_t offset, int64_t bytes)
{
    void *buffer;
    size_t size = (size_t)clb_io_buffer_bytes(offset, bytes);
    if (posix_memalign(&buffer, CLB_IO_ALIGN, size) != 0)
        exit(1);
    memset(buffer, 0xee, size);
    return buffer;
}

/* First byte that differs from the file, or -1. */
static int64_t first_wrong(const clb_io_request *r)
{
    const uint8_t *got = r->buffer + r->offset % CLB_IO_ALIGN;
    for (int64_t i = 0; i < r->bytes; i++)
        if (got[i] != byte_at(r->file, r->offset + i))
            return i;
    return -1;
}

static clb_io *open_queue(int mode, int direct, int depth)
{
    const char *paths[] = {test.path[0], test.path[1]};
    clb_io *io = NULL;
    test.text[0] = 0;
    CHECK_MSG(clb_io_open(&io, paths, 2, mode, direct, depth, &test.error) == COLIBRI_OK, "%s: %s",
              mode_names[mode], test.text);
    if (io == NULL)
        exit(1);
    return io;
}

static clb_io_completion read_one(clb_io *io, int32_t file, int64_t offset, int64_t bytes, int64_t *wrong)
{
    clb_io_request r = {file, 5, offset, bytes, make_buffer(offset, bytes)};
    clb_io_completion c = {.tag = -1};
    CHECK_MSG(clb_io_submit(io, &r, &test.error) == COLIBRI_OK, "%s", test.text);
    CHECK(clb_io_wait(io, 1, &c, 1) == 1);
    CHECK(c.tag == 5 && c.file == file && c.wanted == bytes);
    *wrong = c.status == COLIBRI_OK ? first_wrong(&r) : -1;
    free(r.buffer);
    return c;
}

static void expect_good(clb_io *io, int32_t file, int64_t offset, int64_t bytes)
{
    int64_t wrong;
    clb_io_completion c = read_one(io, file, offset, bytes, &wrong);
    CHECK_MSG(c.status == COLIBRI_OK && c.error == 0 && c.got == bytes && c.offset == offset && wrong == -1,
              "%lld bytes at %lld: status %d, errno %d, wrong at %lld", (long long)bytes, (long long)offset,
              (int)c.status, (int)c.error, (long long)wrong);
}

/* ---- faults ------------------------------------------------------------------------------------------ */

typedef enum { HALF_READ, FAILED_READ } fault_kind;

typedef struct {
    fault_kind kind;
    int error; /* of FAILED_READ */
    int32_t file;
    int64_t from, to;  /* reads that begin here are hit */
    _Atomic int times; /* that often */
    _Atomic int hits;
    _Atomic int64_t lowest; /* offset hit */
} fault;

static int64_t inject(void *context, int32_t file, int64_t offset, int64_t bytes, uint8_t *buffer,
                      int64_t result)
{
    fault *f = context;
    if (file != f->file || offset < f->from || offset >= f->to || atomic_fetch_sub(&f->times, 1) <= 0)
        return result;
    atomic_fetch_add(&f->hits, 1);
    int64_t lowest = atomic_load(&f->lowest);
    while (offset < lowest && !atomic_compare_exchange_weak(&f->lowest, &lowest, offset))
        continue;
    if (f->kind == HALF_READ) {
        int64_t half = result > 8 ? result / 2 - 3 : result; /* odd: direct I/O cannot go on from there */
        if (result > half)
            memset(buffer + half, 0xdd, (size_t)(result - half));
        return half;
    }
    memset(buffer, 0xdd, (size_t)bytes);
    return -f->error;
}

/* ---- sentences ---------------------------------------------------------------------------------------- */

static void offsets_and_lengths_of_any_alignment_return_the_bytes(int mode, int direct)
{
    clb_io *io = open_queue(mode, direct, 4);
    const int64_t offsets[] = {0, 1, 511, 512, 4095, 4096, 4097, 1048575, 1048577, 1310721};
    const int64_t lengths[] = {1, 2, 511, 512, 4095, 4096, 4097, 8192, 65537, 884736, 1048576, 2359297};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
            expect_good(io, (int32_t)((i + k) % 2), offsets[i], lengths[k]);
    expect_good(io, 0, 0, test.size); /* many pieces, and the last block is not whole */
    expect_good(io, 1, 12345, test.size - 12345);
    clb_io_close(io);
}

static void test_R152_the_end_of_the_file_is_an_error_only_when_bytes_are_missing(int mode, int direct)
{
    clb_io *io = open_queue(mode, direct, 4);
    const int64_t tail = test.size % CLB_IO_ALIGN;
    const int64_t lengths[] = {1, tail - 1, tail, tail + 1, 100000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        expect_good(io, 0, test.size - lengths[i], lengths[i]);

    int64_t wrong;
    const int64_t starts[] = {test.size - tail, test.size - 1, test.size - 2000000, test.size,
                              test.size + 123456};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        const int64_t there = starts[i] < test.size ? test.size - starts[i] : 0;
        clb_io_completion c = read_one(io, 0, starts[i], there + 1, &wrong);
        CHECK_MSG(c.status == COLIBRI_ERROR_IO && c.error == 0 && c.got == there,
                  "from %lld: status %d, errno %d, got %lld instead of %lld", (long long)starts[i],
                  (int)c.status, (int)c.error, (long long)c.got, (long long)there);
        if (there > 0)
            CHECK(c.offset == test.size);
    }
    clb_io_close(io);
}

static void a_thousand_random_requests_are_answered_once_each(int mode, int direct)
{
    enum { DEPTH = 24 };
    clb_io *io = open_queue(mode, direct, DEPTH);
    clb_io_request requests[DEPTH];
    clb_io_completion done[DEPTH];
    int busy[DEPTH] = {0};
    int64_t bytes = 0;
    int submitted = 0, completed = 0, wrong = 0;
    const int total = test.quick ? 300 : 1000;
    uint64_t seed = 99 + (uint64_t)(mode * 2 + direct);
    while (completed < total) {
        for (int32_t i = 0; i < DEPTH && submitted < total; i++) {
            if (busy[i])
                continue;
            int64_t limit = test_random(&seed) % 8 == 0 ? 3000000 : 60000;
            clb_io_request *r = &requests[i];
            r->file = (int32_t)(test_random(&seed) & 1);
            r->tag = i;
            r->bytes = 1 + (int64_t)(test_random(&seed) % (uint64_t)limit);
            r->offset = (int64_t)(test_random(&seed) % (uint64_t)(test.size - r->bytes + 1));
            r->buffer = make_buffer(r->offset, r->bytes);
            busy[i] = clb_io_submit(io, r, &test.error) == COLIBRI_OK;
            CHECK(busy[i]);
            submitted++;
        }
        int n = clb_io_wait(io, (int32_t)(test_random(&seed) % 4), done, DEPTH);
        for (int k = 0; k < n; k++, completed++) {
            int32_t i = done[k].tag;
            if (i < 0 || i >= DEPTH || !busy[i] || done[k].status != COLIBRI_OK ||
                first_wrong(&requests[i]) != -1) {
                wrong++;
                continue;
            }
            int64_t end = requests[i].offset + requests[i].bytes;
            int64_t first = requests[i].offset / CLB_IO_ALIGN * CLB_IO_ALIGN;
            int64_t superset = clb_io_buffer_bytes(requests[i].offset, requests[i].bytes);
            bytes += first + superset <= test.size || end > test.size ? superset : test.size - first;
            free(requests[i].buffer);
            busy[i] = 0;
        }
    }
    CHECK_MSG(wrong == 0, "%s, direct %d: %d wrong", mode_names[mode], direct, wrong);
    CHECK(clb_io_in_flight(io) == 0);
    clb_io_stats stats;
    clb_io_get_stats(io, &stats);
    CHECK_MSG(stats.bytes == bytes, "%lld bytes counted, %lld read", (long long)stats.bytes,
              (long long)bytes);
    CHECK(stats.depth == DEPTH && stats.busy_seconds > 0);
    CHECK(stats.mode == mode);
    if (!direct || mode == CLB_IO_BUFFERED)
        CHECK(stats.direct == 0);
    clb_io_close(io);
}

static void a_deep_queue_refuses_one_more_and_returns_every_tag_once(int mode, int direct)
{
    enum { DEPTH = 200 };
    clb_io *io = open_queue(mode, direct, DEPTH);
    clb_io_request requests[DEPTH + 1];
    clb_io_completion done[DEPTH + 1];
    int seen[DEPTH] = {0};
    for (int32_t i = 0; i <= DEPTH; i++) { /* the largest first: together more pieces than may be under way */
        int64_t bytes = i < 50 ? 2400000 + i : 5000 + i;
        requests[i] = (clb_io_request){i % 2, i, 1000 * i, bytes, make_buffer(1000 * i, bytes)};
        int32_t status = clb_io_submit(io, &requests[i], &test.error);
        CHECK(status == (i < DEPTH ? COLIBRI_OK : COLIBRI_ERROR_INVALID));
    }
    CHECK(strstr(test.text, "depth") != NULL);
    CHECK(clb_io_in_flight(io) == DEPTH);
    int n = clb_io_wait(io, 1, done, 3);
    CHECK(n >= 1 && n <= 3);
    n += clb_io_wait(io, 1000, done + n, DEPTH + 1 - n); /* more than there are: all of them */
    CHECK(n == DEPTH);
    for (int i = 0; i < n; i++) {
        CHECK(done[i].status == COLIBRI_OK);
        seen[done[i].tag]++;
    }
    for (int i = 0; i < DEPTH; i++)
        CHECK_MSG(seen[i] == 1 && first_wrong(&requests[i]) == -1, "%s: request %d came %d times",
                  mode_names[mode], i, seen[i]);
    CHECK(clb_io_wait(io, 1, done, 1) == 0);
    for (int i = 0; i <= DEPTH; i++)
        free(requests[i].buffer);
    clb_io_close(io);
}

/* The first read is held back until another has come in. */
typedef struct {
    _Atomic int others;
    _Atomic int held;
} gate;

static int64_t hold_first(void *context, int32_t file, int64_t offset, int64_t bytes, uint8_t *buffer,
                          int64_t result)
{
    gate *g = context;
    (void)bytes;
    (void)buffer;
    if (file != 0 || offset != 0) {
        atomic_store(&g->others, 1);
        return result;
    }
    if (!atomic_load(&g->others)) {
        atomic_store(&g->held, 1);
        return -EAGAIN;
    }
    return result;
}

static void a_slow_request_does_not_hold_up_the_others(int mode, int direct)
{
    clb_io *io = open_queue(mode, direct, 2);
    gate g = {0};
    const clb_io_test_hooks hooks = {hold_first, &g};
    clb_io_set_test_hooks(io, &hooks);
    clb_io_request slow = {0, 1, 0, 5000, make_buffer(0, 5000)},
                   quick = {1, 2, 0, 5000, make_buffer(0, 5000)};
    clb_io_completion done[2];
    CHECK(clb_io_submit(io, &slow, &test.error) == COLIBRI_OK);
    const struct timespec millisecond = {0, 1000000};
    int early = 0;
    for (int i = 0; i < 60000 && !atomic_load(&g.held); i++) { /* until it has been held back once */
        early += clb_io_wait(io, 0, done, 2);
        nanosleep(&millisecond, NULL);
    }
    CHECK(atomic_load(&g.held) == 1 && early == 0);
    CHECK(clb_io_submit(io, &quick, &test.error) == COLIBRI_OK);
    int n = clb_io_wait(io, 2, done, 2);
    CHECK(n == 2 && done[0].tag + done[1].tag == 3);
    CHECK(first_wrong(&slow) == -1 && first_wrong(&quick) == -1);
    free(slow.buffer);
    free(quick.buffer);
    clb_io_close(io);
}

static void a_file_removed_while_open_is_read_on(int mode, int direct)
{
    char path[320];
    snprintf(path, sizeof path, "%s/removed", folder_path);
    write_file(path, 0, 300001);
    const char *paths[] = {path};
    clb_io *io = NULL;
    CHECK(clb_io_open(&io, paths, 1, mode, direct, 2, &test.error) == COLIBRI_OK);
    CHECK(unlink(path) == 0);
    expect_good(io, 0, 1234, 298767);
    clb_io_close(io);
}

static void test_R152_a_file_cut_off_in_use_fails_alone_and_is_named(int mode, int direct)
{
    char path[320];
    snprintf(path, sizeof path, "%s/cut", folder_path);
    write_file(path, 0, 3000000);
    const char *paths[] = {path, test.path[1]};
    clb_io *io = NULL;
    CHECK(clb_io_open(&io, paths, 2, mode, direct, 4, &test.error) == COLIBRI_OK);
    int64_t wrong;
    expect_good(io, 0, 2000000, 1000000);
    CHECK(truncate(path, 2500001) == 0);
    clb_io_completion c = read_one(io, 0, 2000000, 1000000, &wrong);
    CHECK(c.status == COLIBRI_ERROR_IO && c.error == 0 && c.offset == 2500001 && c.got == 500001);
    clb_io_describe(io, &c, &test.error);
    CHECK_MSG(strstr(test.text, path) != NULL && strstr(test.text, "2500001") != NULL &&
                  strstr(test.text, "500001 of 1000000") != NULL,
              "%s", test.text);
    expect_good(io, 0, 2000000, 500001);
    expect_good(io, 1, 2000000, 1000000);
    clb_io_close(io);
    unlink(path);
}

static void test_R152_short_reads_and_interrupts_are_continued(int mode, int direct)
{
    const struct {
        fault_kind kind;
        int error, times;
    } faults[] = {{HALF_READ, 0, 1}, {HALF_READ, 0, 9}, {FAILED_READ, EINTR, 5}, {FAILED_READ, EAGAIN, 3}};
    const int64_t ranges[][2] = {{0, 4096}, {100, 5000}, {4000, 3000000}, {test.size - 7000, 7000}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        for (size_t k = 0; k < sizeof ranges / sizeof *ranges; k++) {
            clb_io *io = open_queue(mode, direct, 2);
            fault f = {
                .kind = faults[i].kind, .error = faults[i].error, .to = INT64_MAX, .times = faults[i].times};
            const clb_io_test_hooks hooks = {inject, &f};
            clb_io_set_test_hooks(io, &hooks);
            clb_io_stats before;
            clb_io_get_stats(io, &before);
            expect_good(io, 0, ranges[k][0], ranges[k][1]);
            CHECK_MSG(atomic_load(&f.hits) > 0, "fault %zu did not happen", i);
            if (faults[i].times == 1 && ranges[k][1] > 1000000) { /* goes on from a whole block */
                clb_io_stats after;
                clb_io_get_stats(io, &after);
                CHECK(after.direct == before.direct);
            }
            clb_io_close(io);
        }
}

static void test_R157_an_io_error_names_the_place_and_leaves_the_others_alone(int mode, int direct)
{
    enum { N = 12 };
    clb_io *io = open_queue(mode, direct, N);
    /* In request 4, every piece but the first. */
    fault f = {.kind = FAILED_READ,
               .error = EIO,
               .from = 1000000,
               .to = INT64_MAX,
               .times = 1000,
               .lowest = INT64_MAX};
    const clb_io_test_hooks hooks = {inject, &f};
    clb_io_set_test_hooks(io, &hooks);
    clb_io_request requests[N];
    clb_io_completion done[N];
    for (int32_t i = 0; i < N; i++) {
        int64_t offset = i == 4 ? 777 : 1000 * i, bytes = i == 4 ? 4500000 : 200000;
        requests[i] = (clb_io_request){i == 4 ? 0 : i % 2, i, offset, bytes, make_buffer(offset, bytes)};
        CHECK(clb_io_submit(io, &requests[i], &test.error) == COLIBRI_OK);
    }
    CHECK(clb_io_wait(io, N, done, N) == N);
    for (int i = 0; i < N; i++) {
        const clb_io_request *r = &requests[done[i].tag];
        if (done[i].tag != 4) {
            CHECK(done[i].status == COLIBRI_OK && first_wrong(r) == -1);
            continue;
        }
        CHECK(done[i].status == COLIBRI_ERROR_IO && done[i].error == EIO);
        CHECK(atomic_load(&f.hits) > 1 && done[i].offset == atomic_load(&f.lowest));
        CHECK(done[i].got == done[i].offset - r->offset && done[i].wanted == r->bytes);
        char offset[32];
        snprintf(offset, sizeof offset, "offset %lld ", (long long)done[i].offset);
        clb_io_describe(io, &done[i], &test.error);
        CHECK_MSG(strstr(test.text, test.path[0]) != NULL && strstr(test.text, offset) != NULL &&
                      strstr(test.text, "device") != NULL &&
                      strstr(test.text, "do not download again") != NULL,
                  "%s", test.text);
    }
    for (int i = 0; i < N; i++)
        free(requests[i].buffer);
    clb_io_set_test_hooks(io, NULL);
    expect_good(io, 0, 2500000, 1200000); /* the queue goes on */
    clb_io_close(io);
}

static void a_file_that_refuses_direct_reads_is_read_through_the_cache(int mode)
{
    clb_io *io = open_queue(mode, 1, 8);
    clb_io_stats stats;
    clb_io_get_stats(io, &stats);
    const int32_t was_direct = stats.direct;
    fault f = {.kind = FAILED_READ, .error = EINVAL, .to = INT64_MAX, .times = 1};
    const clb_io_test_hooks hooks = {inject, &f};
    clb_io_set_test_hooks(io, &hooks);
    if (was_direct) {
        expect_good(io, 0, 100, 5000000);
        clb_io_get_stats(io, &stats);
        CHECK(stats.direct == 0);
        expect_good(io, 1, 100, 50000);
    } else { /* without direct I/O there is no second way: EINVAL is the answer */
        int64_t wrong;
        CHECK(read_one(io, 0, 100, 50000, &wrong).error == EINVAL);
    }
    clb_io_close(io);
}

static void closing_waits_for_what_is_in_flight(int mode, int direct)
{
    enum { N = 40 };
    uint8_t *buffers[N];
    clb_io *io = open_queue(mode, direct, N);
    for (int32_t i = 0; i < N; i++) {
        buffers[i] = make_buffer(i, 4000000);
        const clb_io_request r = {0, i, i, 4000000, buffers[i]};
        CHECK(clb_io_submit(io, &r, &test.error) == COLIBRI_OK);
    }
    clb_io_close(io);
    for (int i = 0; i < N; i++)
        free(buffers[i]); /* nobody writes here any more, says the address sanitizer */
}

static void malformed_requests_and_options_are_refused_with_a_sentence(void)
{
    clb_io *io = NULL;
    const char *paths[] = {test.path[0], test.path[1]};
    const char *missing[] = {test.path[0], "no/such/file"};
    const char *folder[] = {folder_path};
    clb_io_close(NULL);
    CHECK(clb_io_open(&io, paths, 2, CLB_IO_THREADS, 1, 0, &test.error) == COLIBRI_ERROR_INVALID &&
          io == NULL);
    CHECK(clb_io_open(&io, paths, 2, CLB_IO_THREADS, 1, 257, &test.error) == COLIBRI_ERROR_INVALID &&
          io == NULL);
    CHECK(clb_io_open(&io, paths, 2, 4, 1, 1, &test.error) == COLIBRI_ERROR_INVALID && io == NULL);
    CHECK(clb_io_open(&io, missing, 2, CLB_IO_AUTO, 1, 1, &test.error) == COLIBRI_ERROR_IO && io == NULL);
    CHECK_MSG(strstr(test.text, "no/such/file") != NULL, "%s", test.text);
    CHECK(clb_io_open(&io, folder, 1, CLB_IO_AUTO, 1, 1, &test.error) == COLIBRI_ERROR_IO && io == NULL);
    CHECK_MSG(strstr(test.text, folder_path) != NULL, "%s", test.text);

    io = open_queue(CLB_IO_THREADS, 1, 2);
    uint8_t *buffer = make_buffer(0, 8192);
    const clb_io_request bad[] = {
        {2, 0, 0, 10, buffer},     {-1, 0, 0, 10, buffer}, {0, 0, -1, 10, buffer},
        {0, 0, 0, 0, buffer},      {0, 0, 0, -5, buffer},  {0, 0, 8, INT64_MAX, buffer},
        {0, 0, 0, 10, buffer + 1}, {0, 0, 0, 10, NULL},    {0, 0, INT64_MAX - 5000, 4000, buffer},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        test.text[0] = 0;
        CHECK_MSG(clb_io_submit(io, &bad[i], &test.error) == COLIBRI_ERROR_INVALID && test.text[0] != 0,
                  "malformed request %zu was accepted", i);
    }
    CHECK(clb_io_in_flight(io) == 0);
    free(buffer);
    clb_io_close(io);
}

static void in_every_mode(int mode, int direct)
{
    offsets_and_lengths_of_any_alignment_return_the_bytes(mode, direct);
    test_R152_the_end_of_the_file_is_an_error_only_when_bytes_are_missing(mode, direct);
    a_thousand_random_requests_are_answered_once_each(mode, direct);
    a_deep_queue_refuses_one_more_and_returns_every_tag_once(mode, direct);
    a_slow_request_does_not_hold_up_the_others(mode, direct);
    a_file_removed_while_open_is_read_on(mode, direct);
    test_R152_a_file_cut_off_in_use_fails_alone_and_is_named(mode, direct);
    test_R152_short_reads_and_interrupts_are_continued(mode, direct);
    test_R157_an_io_error_names_the_place_and_leaves_the_others_alone(mode, direct);
    closing_waits_for_what_is_in_flight(mode, direct);
}

/* ---- io_uring there or not -------------------------------------------------------------------------------
 */

static int uring_works(void)
{
    const char *paths[] = {test.path[0]};
    clb_io *io = NULL;
    int32_t status = clb_io_open(&io, paths, 1, CLB_IO_URING, 1, 1, &test.error);
    clb_io_close(io);
    if (status == COLIBRI_OK)
        return 1;
    CHECK(status == COLIBRI_ERROR_UNSUPPORTED && strstr(test.text, "threads") != NULL);
    printf("io_uring is left out: %s\n", test.text);
    return 0;
}

/* io_uring for direct reads, if that is there; for everything else threads. */
static void automatic_mode_takes_what_works(int has_uring)
{
    for (int direct = 0; direct < 2; direct++) {
        clb_io *io = open_queue(CLB_IO_AUTO, direct, 4);
        clb_io_stats stats;
        clb_io_get_stats(io, &stats);
        const int expected = has_uring && stats.direct ? CLB_IO_URING : CLB_IO_THREADS;
        CHECK_MSG(stats.mode == expected, "mode %d instead of %d", (int)stats.mode, expected);
        expect_good(io, 0, 5, 3000000);
        clb_io_close(io);
    }
}

/* As a container does it: one system call refused from now on, for the rest of this process. */
static int refuse_system_call(long number)
{
#if defined(__linux__) && defined(SYS_io_uring_setup)
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (EPERM & SECCOMP_RET_DATA)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
#else
    (void)number;
    return 0;
#endif
}

static void a_refused_system_call_fails_requests_and_makes_new_queues_use_threads(void)
{
#if defined(__linux__) && defined(SYS_io_uring_setup)
    clb_io *io = open_queue(CLB_IO_URING, 1, 4);
    expect_good(io, 0, 5, 3000000);
    if (!refuse_system_call(SYS_io_uring_setup))
        return;
    automatic_mode_takes_what_works(0);
    clb_io *refused = NULL;
    const char *paths[] = {test.path[0]};
    CHECK(clb_io_open(&refused, paths, 1, CLB_IO_URING, 1, 1, &test.error) == COLIBRI_ERROR_UNSUPPORTED);
    CHECK_MSG(strstr(test.text, strerror(EPERM)) != NULL, "%s", test.text);

    expect_good(io, 0, 5, 3000000); /* this one only needs io_uring_enter */
    CHECK(refuse_system_call(SYS_io_uring_enter));
    int64_t wrong;
    CHECK(read_one(io, 0, 5, 3000000, &wrong).error == EPERM);
    clb_io_close(io);
#endif
}

int main(void)
{
    test.quick = getenv("COLIBRI_TEST_QUICK") != NULL;
    test.size = 6 * 1048576 + 12345;
    test.error = (clb_error){test.text, sizeof test.text};
    const char *temporary = getenv("TMPDIR");
    snprintf(folder_path, sizeof folder_path, "%s/colibri-io-XXXXXX", temporary != NULL ? temporary : "/tmp");
    if (mkdtemp(folder_path) == NULL) {
        perror(folder_path);
        return 1;
    }
    for (int i = 0; i < 2; i++) {
        snprintf(test.path[i], sizeof test.path[i], "%s/file%d", folder_path, i);
        write_file(test.path[i], i, test.size);
    }

    test.has_uring = uring_works();
    for (int mode = CLB_IO_URING; mode <= CLB_IO_BUFFERED; mode++)
        for (int direct = 0; direct < 2; direct++)
            if (mode != CLB_IO_URING || test.has_uring)
                in_every_mode(mode, direct);
    a_file_that_refuses_direct_reads_is_read_through_the_cache(CLB_IO_THREADS);
    if (test.has_uring)
        a_file_that_refuses_direct_reads_is_read_through_the_cache(CLB_IO_URING);
    malformed_requests_and_options_are_refused_with_a_sentence();
    automatic_mode_takes_what_works(test.has_uring);
    if (test.has_uring)
        a_refused_system_call_fails_requests_and_makes_new_queues_use_threads(); /* last: it stays refused */

    unlink(test.path[0]);
    unlink(test.path[1]);
    rmdir(folder_path);
    return test_report();
}
