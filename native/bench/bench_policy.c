/* bench_policy.c - what deciding costs: CPU time of the cache policy per decoded token, at the size of
 * GLM-5.2 (76 sparse layers with 256 experts each, 8 asked for by each).
 *
 * Usage: bench_policy [--json]
 * One line per share of the experts in memory: microseconds per token, half of the 608 lookups being misses
 * at most. Compare with a token's time, hundreds of milliseconds from disk and tens of them from memory.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "policy.h"

enum { LAYERS = 76, EXPERTS = 256, PER_TOKEN = 8, WARM_UP = 200, STEPS = 200 };

static uint64_t state = 88172645463325252u;

static uint32_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int is_resident(const void *context, int32_t item, int32_t class)
{
    (void)class;
    return ((const uint8_t *)context)[item];
}

/* One step; returns the experts given up. */
static int step(clb_policy *policy, uint8_t *resident, int32_t *held, int32_t slots)
{
    int victims = 0;
    clb_policy_tick(policy);
    for (int32_t l = 0; l < LAYERS; l++) {
        int32_t experts[PER_TOKEN];
        /* One of each 32, low numbers more often. */
        for (int i = 0; i < PER_TOKEN; i++) {
            uint32_t a = next_random() % 32, b = next_random() % 32;
            experts[i] = (int32_t)(a < b ? a : b) * PER_TOKEN + i;
        }
        clb_policy_use(policy, l, experts, PER_TOKEN, 1);
        for (int i = 0; i < PER_TOKEN; i++) {
            int32_t item = l * EXPERTS + experts[i];
            if (resident[item])
                continue;
            if (*held == slots) {
                int32_t victim = clb_policy_victim(policy, 0, is_resident, resident);
                resident[victim] = 0;
                clb_policy_changed(policy, victim / EXPERTS);
                victims++;
                --*held;
            }
            resident[item] = 1;
            clb_policy_changed(policy, l);
            ++*held;
        }
    }
    return victims;
}

int main(int argc, char **argv)
{
    static const int shares[] = {10, 25, 50, 75};
    int json = argc > 1 && strcmp(argv[1], "--json") == 0;
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        clb_policy policy;
        uint8_t *resident = calloc(LAYERS * EXPERTS, 1);
        int32_t held = 0, slots = LAYERS * EXPERTS * shares[i] / 100;
        if (resident == NULL || !clb_policy_open(&policy, LAYERS, EXPERTS))
            return 1;
        for (int s = 0; s < WARM_UP; s++)
            step(&policy, resident, &held, slots);
        double start = seconds();
        long victims = 0;
        for (int s = 0; s < STEPS; s++)
            victims += step(&policy, resident, &held, slots);
        double us = (seconds() - start) * 1e6 / STEPS;
        if (json)
            printf("{\"name\": \"policy_%d\", \"value\": %.1f, \"limit\": 0, \"share\": 0, \"unit\": "
                   "\"us/token\"}\n",
                   shares[i], us);
        else
            printf("%2d %% in memory: %6.0f us per token, %.0f experts given up in it\n", shares[i], us,
                   (double)victims / STEPS);
        clb_policy_close(&policy);
        free(resident);
    }
    return 0;
}
