/* policy.h - which expert to keep: the cache policy, shared by the store and the simulator.
 *
 * The policy predicts, for each expert, the chance that the next decode step of its layer asks for it, and
 * gives up the expert whose next use is expected last: chance and the time until its layer's turn in one
 * figure (Belady's rule on a forecast). A layer that has just passed comes around last.
 *
 * The chance is a weighted sum of how often the expert was used, remembered over several time scales (a
 * half-life of 2 steps up to the mean over everything). The weights are fitted to what the router really
 * does, by least squares on a sample of the layers: steady models end up with long memory, drifting or
 * sticky ones with short memory, with no knob.
 *
 *     use      a layer's request: its experts' chances are renewed, and the sample is learnt from
 *     victim   the expert to give up, of those that the caller allows: O(layers + experts of a layer)
 *     pins     experts whose long-term use alone is far above what is being given up; renewed at every
 *              request of their layer, with hysteresis, and given up last. They reserve no memory: a pin is
 *              a rank, so one that has not been read yet leaves its slot to others.
 *
 * A prompt that passes (many rows, or most experts at once) does not count as use and moves no pin, so it
 * cannot push out what decoding keeps coming back to.
 *
 * A guess takes a slot of its own small pool: free, or of a guess that did not come true. Only a guess that
 * came true entitles the next one to a place among the experts that were asked for, the one that its own
 * read would have taken (clb_policy_pool).
 *
 * No clock, no randomness: the same calls give the same answers. Thread rule: the caller's thread.
 */
#ifndef CLB_POLICY_H
#define CLB_POLICY_H

#include <stdint.h>

#define CLB_SCALES 6
/* The time scales and a constant. */
#define CLB_FEATURES (CLB_SCALES + 1)
/* A request shared by more rows than this is a prompt passing, not a decode step. */
#define CLB_POLICY_STEP_ROWS 64
/* Ages in steps whose decay is kept in a table. */
#define CLB_POLICY_AGES 256
/* A guess for the next layer, right more often than not, replaces only what is less likely than this to be
 * asked for by the next step. */
#define CLB_POLICY_COLD 0.25f

/* Words of a trace record before its experts: step, layer, rows, number of experts. */
#define CLB_TRACE_HEAD 4

typedef struct {
    float use[CLB_SCALES]; /* mean use per step over each time scale, at step `when` */
    uint32_t when;         /* step of the last use */
    float chance;          /* of being asked for by the next step, forecast at its layer's last request */
} clb_heat;

typedef struct {
    int32_t item;  /* the one to give up, -1 = none */
    int32_t class; /* that this was found for, -1 = to be looked for again */
} clb_policy_top;

typedef struct {
    int32_t n_layers, n_experts;
    clb_heat *heat;       /* [n_layers][n_experts] */
    uint8_t *pinned;      /* [n_layers][n_experts] */
    uint8_t *used;        /* [n_experts] scratch: part of the request */
    int64_t *due;         /* [n_layers] when the layer's turn comes, in layers */
    clb_policy_top *tops; /* [n_layers] */
    uint32_t step;        /* decode steps */
    int64_t turn;         /* passes through the model: decode steps and chunks of prompts */
    int32_t scan_layer;   /* last layer of a prompt */
    int32_t stride;       /* every so many layers one is learnt from */
    /* least squares of "was used" on the features */
    float weight[CLB_FEATURES];
    double gram[CLB_FEATURES][CLB_FEATURES], moment[CLB_FEATURES];
    /* what so many steps leave of each scale but the last */
    float left[CLB_SCALES - 1][CLB_POLICY_AGES];
    float prior;       /* steps that the mean over everything starts with */
    float given_up;    /* chance of what is given up, a running mean; 0 = nothing was yet */
    int32_t until_fit; /* steps */
} clb_policy;

/* 0 = no memory. */
int clb_policy_open(clb_policy *policy, int32_t n_layers, int32_t n_experts);
void clb_policy_close(clb_policy *policy);
int64_t clb_policy_bytes(int32_t n_layers, int32_t n_experts);

/* What was learnt before, counts [n_layers][n_experts] of uses; steps[l] is the number of decode steps in
 * which layer l's were counted. Replaces what is known. */
void clb_policy_recall(clb_policy *policy, const int64_t *counts, const double *steps);
/* One decode step has begun. */
void clb_policy_tick(clb_policy *policy);
/* So many decode steps have passed in which no layer asked for anything. As many ticks, up to what a fit that
 * has nothing new to learn from still moves; but the time that this takes does not grow with their number. */
void clb_policy_pass(clb_policy *policy, int64_t steps);
/* Whether a request is a prompt passing. */
int clb_policy_is_scan(int32_t n_experts, int32_t n, int32_t rows);
/* A layer asks for n different experts, on behalf of `rows` tokens. */
void clb_policy_use(clb_policy *policy, int32_t layer, const int32_t *experts, int32_t n, int32_t rows);
/* What may be given up has changed in this layer: something arrived, was released, or left. */
void clb_policy_changed(clb_policy *policy, int32_t layer);

/* Whether an item (layer * n_experts + expert) of the class may be given up now. */
typedef int (*clb_policy_may_go)(const void *context, int32_t item, int32_t class);
/* The item to give up, -1 = none may go. */
int32_t clb_policy_victim(clb_policy *policy, int32_t class, clb_policy_may_go may_go, const void *context);
/* Slots, of so many, that are kept for guesses. */
int32_t clb_policy_pool(int32_t slots);

#endif
