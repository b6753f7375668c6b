/* error.h - status plus sentence: how every fallible internal function reports.
 * A clb_error is a view on the caller's buffer. Any thread, one thread per buffer. */
#ifndef CLB_ERROR_H
#define CLB_ERROR_H

#include <stddef.h>
#include <stdint.h>

#include "colibri.h"

typedef struct {
    char *text; /* may be NULL */
    size_t len;
} clb_error;

/* Writes the sentence and returns `status`. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
int32_t clb_fail(const clb_error *error, int32_t status, const char *format, ...);

#endif
