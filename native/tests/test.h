/* test.h - the few macros a C test program needs.
 *
 * A test is a program: it calls CHECK as often as it likes and ends with `return test_report();`,
 * which prints "N passed, M failed" and gives the exit status. Include it from the one .c file of a
 * test. Not for threads: count on the main thread only.
 */
#ifndef CLB_TEST_H
#define CLB_TEST_H

#include <stdint.h>
#include <stdio.h>

static long test_passed;
static long test_failed;

/* Counts one check; a failure is printed with its place and goes on. */
#define CHECK(condition) TEST_CHECK((condition), "%s", #condition)

/* Same, with a printf-style explanation of the case at hand. */
#define CHECK_MSG(condition, ...) TEST_CHECK((condition), __VA_ARGS__)

#define TEST_CHECK(ok, ...)                                                                                  \
    do {                                                                                                     \
        if (ok) {                                                                                            \
            test_passed++;                                                                                   \
        } else if (++test_failed <= 50) {                                                                    \
            fprintf(stderr, "%s:%d: failed: ", __FILE__, __LINE__);                                          \
            fprintf(stderr, __VA_ARGS__);                                                                    \
            fprintf(stderr, "\n");                                                                           \
        }                                                                                                    \
    } while (0)

static inline int test_report(void)
{
    printf("%ld passed, %ld failed\n", test_passed, test_failed);
    return test_failed == 0 && test_passed > 0 ? 0 : 1;
}

/* Deterministic pseudo-random numbers (xorshift64*); never seed with 0. */
static inline uint64_t test_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

/* Uniform in [-1, 1). */
static inline float test_uniform(uint64_t *state)
{
    return (float)(test_random(state) >> 40) * 0x1p-23f - 1.0f;
}

#endif
