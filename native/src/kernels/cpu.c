/* cpu.c - which instruction sets this processor and operating system offer.
 *
 * Public functions colibri_cpu_* and colibri_isa_name; used by dispatch.c and through the binding.
 * Pure functions, any thread: asking the processor costs about a microsecond, so nothing is cached.
 * What it is not: a choice. Which table runs is decided in dispatch.c. On x86 this file is compiled for any
 * 64-bit processor: it must be able to say that one is too old.
 */
#include "colibri.h"

#if defined(__x86_64__)

#include <cpuid.h>

/* Register state the operating system saves on a context switch. */
static uint32_t saved_state(void)
{
    uint32_t eax;
    uint32_t edx;
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(eax), "=d"(edx) : "c"(0)); /* xgetbv */
    return eax;
}

#define HAS(reg, bit) (((reg) >> (bit) & 1u) != 0)
#define STATE_YMM 0x06u
#define STATE_ZMM 0xe6u

static int x86_has(int32_t isa)
{
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    const int osxsave = HAS(c, 27);
    const int fma = HAS(c, 12);
    const int f16c = HAS(c, 29);
    if (!osxsave || !fma || !f16c || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    const uint32_t state = saved_state();
    const int avx2 = HAS(b, 5) && (state & STATE_YMM) == STATE_YMM;
    if (isa == COLIBRI_ISA_AVX2)
        return avx2;
    const int f_dq_bw_vl = HAS(b, 16) && HAS(b, 17) && HAS(b, 30) && HAS(b, 31);
    const int vbmi_vnni = HAS(c, 1) && HAS(c, 11);
    if (!avx2 || !f_dq_bw_vl || !vbmi_vnni || (state & STATE_ZMM) != STATE_ZMM)
        return 0;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d))
        return 0;
    return HAS(a, 5); /* bf16 */
}

/* What the compiler may use everywhere: CX16, LAHF/SAHF, POPCNT, SSE3, SSSE3, SSE4.1, SSE4.2. */
static int x86_is_v2(void)
{
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    if (!HAS(c, 0) || !HAS(c, 9) || !HAS(c, 13) || !HAS(c, 19) || !HAS(c, 20) || !HAS(c, 23))
        return 0;
    return __get_cpuid(0x80000001u, &a, &b, &c, &d) && HAS(c, 0);
}

#elif defined(__aarch64__) && defined(__linux__)

#include <sys/auxv.h>

#define HWCAP_DOT_PRODUCT (1ul << 20)

static int arm_has_dot_product(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_DOT_PRODUCT) != 0;
}

#elif defined(__aarch64__)

static int arm_has_dot_product(void)
{
#if defined(__APPLE__) || defined(__ARM_FEATURE_DOTPROD)
    return 1; /* every Apple processor of this kind has it */
#else
    return 0;
#endif
}

#endif

int32_t colibri_cpu_is_supported(void)
{
#if defined(__x86_64__)
    return x86_is_v2();
#else
    return 1;
#endif
}

int32_t colibri_cpu_has_isa(int32_t isa)
{
    switch (isa) {
    case COLIBRI_ISA_AUTO:
    case COLIBRI_ISA_BASELINE:
        return 1;
#if defined(__x86_64__)
    case COLIBRI_ISA_AVX2:
    case COLIBRI_ISA_AVX512:
        return x86_has(isa);
#elif defined(__aarch64__)
    case COLIBRI_ISA_NEON:
        return arm_has_dot_product();
#endif
    default:
        return 0;
    }
}

int32_t colibri_cpu_best_isa(void)
{
    static const int32_t best_first[] = {COLIBRI_ISA_AVX512, COLIBRI_ISA_AVX2, COLIBRI_ISA_NEON};
    for (int i = 0; i < 3; i++)
        if (colibri_cpu_has_isa(best_first[i]))
            return best_first[i];
    return COLIBRI_ISA_BASELINE;
}

const char *colibri_isa_name(int32_t isa)
{
    static const char *const names[] = {"auto", "baseline", "avx2", "avx512", "neon"};
    return isa >= COLIBRI_ISA_AUTO && isa <= COLIBRI_ISA_NEON ? names[isa] : "unknown";
}
