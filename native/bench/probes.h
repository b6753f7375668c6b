/* probes.h - what this machine can do at most: the limits that benchmarks compare with.
 *
 * Each call measures now, for a few tenths of a second, and returns a median, so that a share is taken
 * against the machine as it is at that moment. For benchmark programs only; one call at a time.
 */
#ifndef CLB_PROBES_H
#define CLB_PROBES_H

#include <stddef.h>
#include <stdint.h>

/* Sequential read of 256 MB in 2 MB pages by 1 or more threads (contiguous parts), GB/s. One thread is
 * timed in its own CPU time, several by the wall clock. */
double clb_probe_read(int threads);
/* Peak of one thread, GOP/s: 2 per multiply-add of u8 * s8. 0 = no VNNI on this processor. */
double clb_probe_vnni(void);
/* Peak of one thread, GFLOP/s, of bf16 pairs into f32. 0 = no AVX-512 BF16 on this processor. */
double clb_probe_bf16(void);

/* Zeroed memory on 2 MB pages where the system grants them; never freed. Exits when there is none. */
void *clb_probe_alloc(size_t bytes);
/* Seconds of CPU time of this thread, and of the wall clock. */
double clb_probe_cpu_seconds(void);
double clb_probe_wall_seconds(void);
/* Sorts `values` and returns the median. */
double clb_probe_median(double *values, int n);

#endif
