/* policy.c - see policy.h. */
#include "policy.h"

#include <math.h>

float clb_heat_at(clb_heat h, uint32_t now)
{
    return h.heat * exp2f(-(float)(now - h.when) / CLB_HEAT_HALF_LIFE);
}

clb_heat clb_heat_use(clb_heat h, uint32_t now, float weight)
{
    return (clb_heat){clb_heat_at(h, now) + weight, now};
}

int clb_heat_compare(clb_heat a, int32_t item_a, clb_heat b, int32_t item_b, uint32_t now)
{
    float x = clb_heat_at(a, now), y = clb_heat_at(b, now);
    if (x != y)
        return x < y ? -1 : 1;
    if (a.when != b.when)
        return a.when < b.when ? -1 : 1;
    return item_a < item_b ? -1 : 1;
}
