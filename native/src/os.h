/* os.h - the few things the engine asks of the operating system: big zeroed memory, positioned
 * reads, a clock, the number of usable cores. Any thread. */
#ifndef CLB_OS_H
#define CLB_OS_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed memory, 64-byte aligned, from 4 KB on page-aligned; from 2 MB on it is 2 MB aligned and asks for
 * huge pages (the repacked GEMV gains 33-56 % from them). NULL when out of memory. Free with the same size.
 */
void *clb_os_alloc(size_t bytes);
/* Bytes that an allocation of `bytes` really takes. */
size_t clb_os_size(size_t bytes);
void clb_os_free(void *memory, size_t bytes);
/* Gives what the C allocator keeps for reuse back to the system, where it can. */
void clb_os_trim(void);

/* Gives the whole pages of a part of such memory back to the system; their content is lost. */
void clb_os_release(void *memory, size_t bytes);

/* Read-only file handle; -1 on failure with errno set. Size in *size. */
int clb_os_open(const char *path, int64_t *size);
void clb_os_close(int file);
/* Reads exactly `bytes` at `offset`; loops over short reads and EINTR. Returns the bytes read (less
 * than asked only at the end of the file), or -1 with errno set. */
int64_t clb_os_read_at(int file, void *out, int64_t bytes, int64_t offset);

double clb_os_seconds(void); /* monotonic */
void clb_os_sleep(double seconds);
int clb_os_cores(void); /* cores this process may use, at least 1 */

#endif
