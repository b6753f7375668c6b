/* test_policy.c - the cache policy by itself and in the simulator.
 *
 *   forecast   what is used often stays; what fell out of use goes; learnt use counts once known
 *   prompts    a prompt that passes moves neither chances nor pins
 *   guesses    cost no expert that was asked for (R156), and do when a fault is planted
 *   replay     Belady's optimum is beaten by nobody; a planted bad policy is worse than LRU; damaged traces
 *              are refused
 *   cost       giving up an expert looks at some hundred others, not at all of them
 * The floor against tuned policies on a set of traces is tests/models/test_policy.py.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "colibri.h"
#include "fault.h"
#include "policy.h"
#include "test.h"

#define LAYERS 6
#define EXPERTS 32
#define PER_TOKEN 4

static char err[512];
static uint64_t seed = 7;

static double uniform(void)
{
    return (double)(test_random(&seed) >> 11) / 9007199254740992.0;
}

/* PER_TOKEN different experts; expert e of a layer is at rank (e + 5 * layer) mod EXPERTS, and a rank's
 * weight falls with its power `skew`. */
static void draw(int32_t layer, double skew, int32_t *out)
{
    double best[PER_TOKEN];
    for (int i = 0; i < PER_TOKEN; i++)
        best[i] = -INFINITY;
    for (int32_t e = 0; e < EXPERTS; e++) {
        int rank = (e + 5 * layer) % EXPERTS;
        /* The largest of log weight plus Gumbel noise are a draw without replacement. */
        double value = -skew * log(1 + rank) - log(-log(uniform() + 1e-300));
        for (int i = 0; i < PER_TOKEN; i++)
            if (value > best[i]) {
                for (int j = PER_TOKEN - 1; j > i; j--) {
                    best[j] = best[j - 1];
                    out[j] = out[j - 1];
                }
                best[i] = value;
                out[i] = e;
                break;
            }
    }
}

typedef struct {
    int32_t *words;
    int64_t n;
} trace;

static void add(trace *t, int32_t step, int32_t layer, int32_t rows, int32_t n, const int32_t *experts)
{
    const int32_t head[CLB_TRACE_HEAD] = {step, layer, rows, n};
    memcpy(t->words + t->n, head, sizeof head);
    memcpy(t->words + t->n + CLB_TRACE_HEAD, experts, (size_t)n * sizeof *experts);
    t->n += CLB_TRACE_HEAD + n;
}

/* So many decode steps; before step `prompt` a prompt passes that asks for every expert. */
static trace make_trace(int32_t steps, double skew, int32_t prompt)
{
    trace t = {
        malloc(((size_t)steps * LAYERS * (CLB_TRACE_HEAD + PER_TOKEN) + LAYERS * (CLB_TRACE_HEAD + EXPERTS)) *
               sizeof(int32_t)),
        0};
    int32_t experts[EXPERTS];
    for (int32_t step = 0; step < steps; step++) {
        for (int32_t l = 0; step == prompt && l < LAYERS; l++) {
            for (int32_t e = 0; e < EXPERTS; e++)
                experts[e] = e;
            add(&t, step, l, 500, EXPERTS, experts);
        }
        for (int32_t l = 0; l < LAYERS; l++) {
            draw(l, skew, experts);
            add(&t, step, l, 1, PER_TOKEN, experts);
        }
    }
    return t;
}

static colibri_replay_result replay(const trace *t, int32_t kind, int32_t slots, float guess_share,
                                    int32_t fault)
{
    const colibri_replay_options o = {.struct_size = sizeof o,
                                      .kind = kind,
                                      .n_layers = LAYERS,
                                      .n_experts = EXPERTS,
                                      .slots = slots,
                                      .half_life = 32,
                                      .guess_share = guess_share,
                                      .fault = fault};
    colibri_replay_result result = {.struct_size = sizeof result};
    CHECK_MSG(colibri_policy_replay(&o, t->words, t->n, &result, err, sizeof err) == COLIBRI_OK, "%s", err);
    return result;
}

/* ---- the policy by itself ------------------------------------------------------------------ */

static int any(const void *context, int32_t item, int32_t class)
{
    (void)context;
    (void)item;
    return class == 0;
}

static void test_forecast(void)
{
    clb_policy policy;
    CHECK(clb_policy_open(&policy, 1, 4));
    const int32_t often = 2, once = 0;
    clb_policy_tick(&policy);
    clb_policy_use(&policy, 0, &once, 1, 1);
    for (int i = 0; i < 20; i++) {
        clb_policy_tick(&policy);
        clb_policy_use(&policy, 0, &often, 1, 1);
    }
    CHECK(policy.heat[often].chance > 0.5f);
    CHECK(policy.heat[once].chance < policy.heat[often].chance / 4);
    int32_t victim = clb_policy_victim(&policy, 0, any, NULL);
    CHECK_MSG(victim == 1 || victim == 3, "expert %d goes before those never used", (int)victim);
    CHECK(clb_policy_victim(&policy, 1, any, NULL) == -1);
    /* What comes into use overtakes what falls out of use. */
    for (int i = 0; i < 200; i++) {
        clb_policy_tick(&policy);
        clb_policy_use(&policy, 0, &once, 1, 1);
    }
    CHECK(policy.heat[once].chance > 2 * policy.heat[often].chance);
    clb_policy_close(&policy);
}

/* Of equal experts, those of the layer that has just passed go first: its turn comes last. */
static void test_turns(void)
{
    clb_policy policy;
    CHECK(clb_policy_open(&policy, 3, 4));
    const int64_t counts[12] = {5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5};
    const double steps[3] = {20, 20, 20};
    clb_policy_recall(&policy, counts, steps);
    const int32_t all[4] = {0, 1, 2, 3};
    for (int turn = 0; turn < 3; turn++)
        for (int32_t l = 0; l < 3; l++) {
            clb_policy_use(&policy, l, all, 4, 500);
            int32_t victim = clb_policy_victim(&policy, 0, any, NULL);
            CHECK_MSG(victim / 4 == l, "after layer %d one of layer %d goes", (int)l, (int)victim / 4);
        }
    clb_policy_close(&policy);
}

static void test_recall_and_prompts(void)
{
    clb_policy policy;
    CHECK(clb_policy_open(&policy, 2, 4));
    const int64_t counts[8] = {0, 90, 10, 300, 7, 0, 0, 0};
    const double steps[2] = {400, 7};
    clb_policy_recall(&policy, counts, steps);
    CHECK(policy.heat[3].chance > policy.heat[1].chance && policy.heat[1].chance > policy.heat[2].chance);
    CHECK(policy.heat[4].chance <= 1 && policy.heat[4].chance > policy.heat[3].chance);
    float before = policy.heat[2].chance;
    const int32_t all[4] = {0, 1, 2, 3};
    for (int i = 0; i < 50; i++)
        clb_policy_use(&policy, 0, all, 4, 65);
    CHECK_MSG(policy.heat[2].chance == before, "a prompt moved a chance");
    clb_policy_close(&policy);
}

static int any_but_four(const void *context, int32_t item, int32_t class)
{
    (void)context;
    return class == 0 && item >= 4;
}

/* Expert 3 is used at every step until it is used no more; others now and then. */
static void test_pins(void)
{
    clb_policy policy;
    CHECK(clb_policy_open(&policy, 1, EXPERTS));
    int32_t all[EXPERTS], others = 0, step = 0;
    for (int32_t e = 0; e < EXPERTS; e++)
        all[e] = e;
    for (; step < 300; step++) {
        int32_t experts[2] = {3, (int32_t)(4 + test_random(&seed) % (EXPERTS - 4))};
        clb_policy_tick(&policy);
        clb_policy_use(&policy, 0, experts, 2, 1);
        (void)clb_policy_victim(&policy, 0, any_but_four, NULL);
    }
    for (int32_t e = 0; e < EXPERTS; e++)
        others += e != 3 && policy.pinned[e];
    CHECK_MSG(policy.pinned[3] && others < EXPERTS / 2, "%d others are pinned", (int)others);
    for (int i = 0; i < 50; i++)
        clb_policy_use(&policy, 0, all, EXPERTS, 65);
    CHECK_MSG(policy.pinned[3], "a prompt moved a pin");
    for (; step < 5000 && policy.pinned[3]; step++) {
        const int32_t expert = (int32_t)(4 + test_random(&seed) % (EXPERTS - 4));
        clb_policy_tick(&policy);
        clb_policy_use(&policy, 0, &expert, 1, 1);
        (void)clb_policy_victim(&policy, 0, any_but_four, NULL);
    }
    CHECK_MSG(!policy.pinned[3] && step > 310, "the pin ended at step %d", (int)step);
    clb_policy_close(&policy);
}

typedef struct {
    int64_t looks;
    uint8_t *resident;
} counted;

static int count_looks(const void *context, int32_t item, int32_t class)
{
    (void)class;
    counted *c = (counted *)(uintptr_t)context;
    c->looks++;
    return c->resident[item];
}

/* GLM-5.2: 76 layers of 256 experts, of which 5,000 are in memory; 8 per layer and token. */
static void test_cost(void)
{
    enum { L = 76, E = 256, K = 8, SLOTS = 5000, STEPS = 20 };
    clb_policy policy;
    counted c = {0, calloc(L * E, 1)};
    CHECK(clb_policy_open(&policy, L, E));
    int32_t held = 0;
    int64_t victims = 0;
    for (int step = 0; step < STEPS; step++) {
        clb_policy_tick(&policy);
        for (int32_t l = 0; l < L; l++) {
            int32_t experts[K];
            for (int i = 0; i < K; i++)
                experts[i] = (int32_t)(test_random(&seed) % (E / K)) * K + i;
            clb_policy_use(&policy, l, experts, K, 1);
            for (int i = 0; i < K; i++) {
                int32_t item = l * E + experts[i];
                if (c.resident[item])
                    continue;
                if (held == SLOTS) {
                    int32_t victim = clb_policy_victim(&policy, 0, count_looks, &c);
                    CHECK(victim >= 0 && c.resident[victim]);
                    if (victim >= 0) {
                        c.resident[victim] = 0;
                        clb_policy_changed(&policy, victim / E);
                    }
                    victims++;
                    held--;
                }
                c.resident[item] = 1;
                clb_policy_changed(&policy, l);
                held++;
            }
        }
    }
    CHECK(victims > 1000);
    CHECK_MSG(c.looks < victims * (L + 2 * E), "%lld looks for %lld victims", (long long)c.looks,
              (long long)victims);
    printf("%.0f looks per expert given up, of %d in memory\n", (double)c.looks / (double)victims, SLOTS);
    clb_policy_close(&policy);
    free(c.resident);
}

/* ---- replay -------------------------------------------------------------------------------- */

static void test_kinds(void)
{
    static const int32_t kinds[] = {COLIBRI_POLICY_OURS, COLIBRI_POLICY_LRU, COLIBRI_POLICY_LFU,
                                    COLIBRI_POLICY_DECAYED_LFU};
    trace t = make_trace(400, 0.9, -1);
    for (int32_t slots = 40; slots < LAYERS * EXPERTS; slots += 60) {
        int64_t optimum = replay(&t, COLIBRI_POLICY_BELADY, slots, 0, 0).hits;
        int64_t lru = replay(&t, COLIBRI_POLICY_LRU, slots, 0, 0).hits;
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            colibri_replay_result r = replay(&t, kinds[i], slots, 0, 0);
            CHECK(r.lookups == 400 * LAYERS * PER_TOKEN);
            CHECK_MSG(r.hits <= optimum && r.hits > 0, "policy %d: %lld hits, the optimum has %lld",
                      (int)kinds[i], (long long)r.hits, (long long)optimum);
        }
        CHECK(replay(&t, COLIBRI_POLICY_OURS, slots, 0, 0).hits > lru);
        CHECK_MSG(replay(&t, COLIBRI_POLICY_OURS, slots, 0, CLB_FAULT_POLICY).hits < lru,
                  "a planted bad policy is no worse than LRU");
    }
    /* With room for all, each is missed once. */
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        colibri_replay_result r = replay(&t, kinds[i], LAYERS * EXPERTS, 0, 0);
        CHECK(r.lookups - r.hits <= LAYERS * EXPERTS);
    }
    free(t.words);
}

/* A prompt that asks for everything must cost decoding next to nothing. */
static void test_prompt(void)
{
    uint64_t start = seed;
    trace plain = make_trace(600, 1.2, -1);
    seed = start;
    trace passed = make_trace(600, 1.2, 300);
    for (int32_t slots = 40; slots <= 120; slots += 40) {
        colibri_replay_result a = replay(&plain, COLIBRI_POLICY_OURS, slots, 0, 0);
        colibri_replay_result b = replay(&passed, COLIBRI_POLICY_OURS, slots, 0, 0);
        CHECK(a.lookups == b.lookups);
        CHECK_MSG(a.hits - b.hits <= slots / 8, "%d slots: a prompt cost %lld hits", (int)slots,
                  (long long)(a.hits - b.hits));
        int64_t lru = replay(&plain, COLIBRI_POLICY_LRU, slots, 0, 0).hits -
                      replay(&passed, COLIBRI_POLICY_LRU, slots, 0, 0).hits;
        CHECK_MSG(lru > a.hits - b.hits, "%d slots: LRU loses only %lld hits", (int)slots, (long long)lru);
    }
    free(plain.words);
    free(passed.words);
}

/* R156 */
static void test_guesses(void)
{
    static const double skews[] = {0, 0.8, 1.2};
    for (size_t i = 0; i < sizeof skews / sizeof *skews; i++) {
        trace t = make_trace(400, skews[i], 200);
        for (int32_t slots = 16; slots <= 144; slots += 64) {
            int64_t without = replay(&t, COLIBRI_POLICY_OURS, slots, 0, 0).hits;
            for (int share = 0; share <= 10; share += 2) {
                colibri_replay_result r =
                    replay(&t, COLIBRI_POLICY_OURS, slots, share == 0 ? 1e-6f : (float)share / 10, 0);
                CHECK_MSG(r.demand_evictions == 0 && r.guesses > 0 && r.guesses_useful <= r.guesses,
                          "%d slots, %d of 10 guesses right: %lld evictions", (int)slots, share,
                          (long long)r.demand_evictions);
                if (share >= 4)
                    CHECK_MSG(r.hits > without, "%d slots, %d of 10 guesses right: %lld hits, %lld without",
                              (int)slots, share, (long long)r.hits, (long long)without);
            }
            CHECK_MSG(replay(&t, COLIBRI_POLICY_OURS, slots, 0.3f, CLB_FAULT_GUESSES).demand_evictions > 0,
                      "guesses that push out what they like go unnoticed");
        }
        free(t.words);
    }
}

static void test_refusals(void)
{
    static const struct {
        const char *what;
        int32_t words[12];
        int64_t n;
        int32_t status;
    } cases[] = {
        {"cut off in its head", {0, 0, 1}, 3, COLIBRI_ERROR_FORMAT},
        {"cut off in its experts", {0, 0, 1, 4, 1, 2, 3}, 7, COLIBRI_ERROR_FORMAT},
        {"a layer too many", {0, LAYERS, 1, 1, 0}, 5, COLIBRI_ERROR_FORMAT},
        {"a negative layer", {0, -1, 1, 1, 0}, 5, COLIBRI_ERROR_FORMAT},
        {"an expert too many", {0, 0, 1, 1, EXPERTS}, 5, COLIBRI_ERROR_FORMAT},
        {"a negative expert", {0, 0, 1, 1, -1}, 5, COLIBRI_ERROR_FORMAT},
        {"the same expert twice", {0, 0, 1, 2, 3, 3}, 6, COLIBRI_ERROR_FORMAT},
        {"a negative number of experts", {0, 0, 1, -1}, 4, COLIBRI_ERROR_FORMAT},
        {"a huge number of experts", {0, 0, 1, INT32_MAX}, 4, COLIBRI_ERROR_FORMAT},
        {"no rows", {0, 0, 0, 0}, 4, COLIBRI_ERROR_FORMAT},
        {"steps that run backwards", {1, 0, 1, 0, 0, 0, 1, 0}, 8, COLIBRI_ERROR_FORMAT},
        {"nothing", {0}, 0, COLIBRI_OK},
        {"a request for nothing", {0, 0, 1, 0}, 4, COLIBRI_OK},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int32_t kind = COLIBRI_POLICY_OURS; kind <= COLIBRI_POLICY_BELADY; kind++) {
            const colibri_replay_options o = {.struct_size = sizeof o,
                                              .kind = kind,
                                              .n_layers = LAYERS,
                                              .n_experts = EXPERTS,
                                              .slots = 2,
                                              .half_life = 1};
            colibri_replay_result result = {.struct_size = sizeof result};
            err[0] = 0;
            CHECK_MSG(colibri_policy_replay(&o, cases[i].words, cases[i].n, &result, err, sizeof err) ==
                          cases[i].status,
                      "%s: %s", cases[i].what, err);
        }
    /* A guess mixes the step into a hash, whatever its size. */
    const int32_t last[] = {INT32_MAX, 0, 1, 1, 0, INT32_MAX, 1, 1, 1, 0};
    const trace late = {(int32_t *)(uintptr_t)last, sizeof last / sizeof *last};
    CHECK(replay(&late, COLIBRI_POLICY_OURS, LAYERS * EXPERTS, 1, 0).lookups == 2);
    static const colibri_replay_options wrong[] = {
        {.struct_size = 4, .n_layers = 1, .n_experts = 1, .slots = 1},
        {.struct_size = sizeof(colibri_replay_options), .n_layers = 0, .n_experts = 1, .slots = 1},
        {.struct_size = sizeof(colibri_replay_options), .n_layers = 1, .n_experts = 1 << 30, .slots = 1},
        {.struct_size = sizeof(colibri_replay_options), .n_layers = 1, .n_experts = 1, .slots = 0},
        {.struct_size = sizeof(colibri_replay_options), .kind = 9, .n_layers = 1, .n_experts = 1, .slots = 1},
        {.struct_size = sizeof(colibri_replay_options),
         .kind = COLIBRI_POLICY_DECAYED_LFU,
         .n_layers = 1,
         .n_experts = 1,
         .slots = 1},
        {.struct_size = sizeof(colibri_replay_options),
         .n_layers = 1,
         .n_experts = 1,
         .slots = 1,
         .guess_share = NAN},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        colibri_replay_result result = {.struct_size = sizeof result};
        CHECK_MSG(colibri_policy_replay(&wrong[i], NULL, 0, &result, err, sizeof err) ==
                      COLIBRI_ERROR_INVALID,
                  "options %d are taken", (int)i);
    }
}

int main(void)
{
    test_forecast();
    test_turns();
    test_recall_and_prompts();
    test_pins();
    test_cost();
    test_kinds();
    test_prompt();
    test_guesses();
    test_refusals();
    return test_report();
}
