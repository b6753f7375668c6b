/* error.c - see error.h. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

#if !defined(CLB_VERSION)
#define CLB_VERSION "0.0.0" /* set by the build */
#endif

int32_t clb_fail(const clb_error *error, int32_t status, const char *format, ...)
{
    if (error != NULL && error->text != NULL && error->len > 0) {
        va_list args;
        va_start(args, format);
        vsnprintf(error->text, error->len, format, args);
        va_end(args);
    }
    return status;
}

const char *colibri_status_name(int32_t status)
{
    switch (status) {
    case COLIBRI_OK:
        return "ok";
    case COLIBRI_ERROR_INVALID:
        return "invalid";
    case COLIBRI_ERROR_IO:
        return "io";
    case COLIBRI_ERROR_FORMAT:
        return "format";
    case COLIBRI_ERROR_MEMORY:
        return "memory";
    case COLIBRI_ERROR_CANCELLED:
        return "cancelled";
    case COLIBRI_ERROR_CONTEXT:
        return "context";
    case COLIBRI_ERROR_NUMERIC:
        return "numeric";
    case COLIBRI_ERROR_UNSUPPORTED:
        return "unsupported";
    default:
        return "unknown";
    }
}

const char *colibri_version(void)
{
    return CLB_VERSION;
}

int32_t colibri_abi(void)
{
    return 2;
}
