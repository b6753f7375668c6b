/* os.c - POSIX implementation of os.h. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* sched_getaffinity, MADV_HUGEPAGE */
#endif
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#define HUGE_PAGE ((size_t)2 << 20)
#define PAGE ((size_t)4096) /* direct I/O reads into whole pages */

static size_t mapped_bytes(size_t bytes)
{
    return (bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
}

size_t clb_os_size(size_t bytes)
{
    return bytes < HUGE_PAGE ? (bytes + 63) & ~(size_t)63 : mapped_bytes(bytes);
}

void *clb_os_alloc(size_t bytes)
{
    if (bytes == 0)
        bytes = 64;
    if (bytes > SIZE_MAX / 2)
        return NULL;
    if (bytes < HUGE_PAGE) {
        void *p = NULL;
        if (posix_memalign(&p, bytes < PAGE ? 64 : PAGE, bytes) != 0)
            return NULL;
        memset(p, 0, bytes);
        return p;
    }
    /* Over-map by one huge page and give the ends back, so that the block starts on a 2 MB border. */
    size_t size = mapped_bytes(bytes);
    uint8_t *raw = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    size_t head = (HUGE_PAGE - ((uintptr_t)raw & (HUGE_PAGE - 1))) & (HUGE_PAGE - 1);
    if (head > 0)
        munmap(raw, head);
    if (head < HUGE_PAGE)
        munmap(raw + head + size, HUGE_PAGE - head);
#if defined(MADV_HUGEPAGE)
    madvise(raw + head, size, MADV_HUGEPAGE);
#endif
    return raw + head;
}

void clb_os_free(void *memory, size_t bytes)
{
    if (memory == NULL)
        return;
    if (bytes < HUGE_PAGE)
        free(memory);
    else
        munmap(memory, mapped_bytes(bytes));
}

void clb_os_release(void *memory, size_t bytes)
{
    uintptr_t begin = ((uintptr_t)memory + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    uintptr_t end = ((uintptr_t)memory + bytes) & ~(uintptr_t)(PAGE - 1);
    if (end > begin)
        (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}

void clb_os_trim(void)
{
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

int clb_os_open(const char *path, int64_t *size)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    struct stat info;
    const int known = fstat(file, &info) == 0;
    if (!known || !S_ISREG(info.st_mode)) {
        int keep = !known ? errno : S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
        close(file);
        errno = keep;
        return -1;
    }
    *size = (int64_t)info.st_size;
    return file;
}

void clb_os_close(int file)
{
    if (file >= 0)
        close(file);
}

int64_t clb_os_read_at(int file, void *out, int64_t bytes, int64_t offset)
{
    int64_t done = 0;
    while (done < bytes) {
        int64_t want = bytes - done;
        if (want > (int64_t)1 << 30)
            want = (int64_t)1 << 30;
        ssize_t got = pread(file, (uint8_t *)out + done, (size_t)want, (off_t)(offset + done));
        if (got < 0) {
            if (errno == EINTR)
                continue;
            return -1;
        }
        if (got == 0)
            break;
        done += got;
    }
    return done;
}

double clb_os_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void clb_os_sleep(double seconds)
{
    time_t whole = (time_t)seconds;
    nanosleep(&(struct timespec){whole, (long)((seconds - (double)whole) * 1e9)}, NULL);
}

int clb_os_cores(void)
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        int n = CPU_COUNT(&set);
        if (n > 0)
            return n;
    }
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}
