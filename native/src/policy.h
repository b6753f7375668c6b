/* policy.h - which expert to keep: pure functions over per-expert heat.
 *
 * Heat is a use count that halves every CLB_HEAT_HALF_LIFE steps, so it is frequency and recency in
 * one number. The store asks for the coldest of its evictable experts; a simulator asks the same
 * functions, so that what CI measures is what runs. No allocation, no time, no randomness. */
#ifndef CLB_POLICY_H
#define CLB_POLICY_H

#include <stdint.h>

typedef struct {
    float heat;    /* at step `when` */
    uint32_t when; /* step of the last use */
} clb_heat;

/* Steps (decoded tokens) after which a use counts half. */
#define CLB_HEAT_HALF_LIFE 64.0f
/* A use by one row of a prefill chunk counts this much: a prompt passes once and must not push out
 * what decoding keeps coming back to. */
#define CLB_HEAT_PREFILL 0.05f
/* A guess for the next layer of a decode step replaces only what is colder than this. An expert that is
 * used in a share p of all steps settles at p * half-life / ln 2; this is a share of 0.15, far below
 * the share of guesses that come true. */
#define CLB_HEAT_COLD 14.0f

float clb_heat_at(clb_heat h, uint32_t now);
clb_heat clb_heat_use(clb_heat h, uint32_t now, float weight);
/* Order of giving up: < 0 = a goes first. Ties: least recently used, then lower item number. */
int clb_heat_compare(clb_heat a, int32_t item_a, clb_heat b, int32_t item_b, uint32_t now);

#endif
