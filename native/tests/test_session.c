/* test_session.c - life of a session through the public header, on tiny models of both families.
 *
 * What changes speed must not change a bit: how the prompt is cut, threads, batch mates, a truncate
 * and retry. Refusals leave everything as it was. The sampler is greedy, seeded and masked as the
 * header says. Covers the engine's side of R086 (limits are refused by name). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "hybrid_family.h"
#include "test.h"
#include "tiny_model.h"

#define N_PROMPT 300 /* more than two KV blocks of 128 */
#define VOCAB 40

static int32_t prompt[N_PROMPT];

static void make_prompt(void)
{
    uint64_t state = 11;
    for (int i = 0; i < N_PROMPT; i++) {
        prompt[i] = (int32_t)(test_random(&state) % VOCAB);
    }
}

/* Appends tokens in one announced prefill; returns the status. */
static int32_t prefill(colibri_session *session, const int32_t *tokens, int32_t n, int32_t max_ms)
{
    char err[256];
    int32_t status = colibri_prefill_start(session, tokens, n, NULL, err, sizeof err);
    colibri_prefill_progress progress = {0};
    while (status == COLIBRI_OK && !progress.finished) {
        status = colibri_prefill_step(session, max_ms, &progress, err, sizeof err);
    }
    CHECK_MSG(status == COLIBRI_OK, "prefill of %d: %s", n, err);
    return status;
}

static colibri_session *create(colibri_engine *engine)
{
    char err[256];
    colibri_session *session = NULL;
    CHECK(colibri_session_create(engine, &session, err, sizeof err) == COLIBRI_OK);
    return session;
}

/* Logits after the prompt (cut into pieces of `piece` tokens) and two decoded tokens. */
static void run(const tiny_model *m, const colibri_engine_options *options, int32_t piece, float *out)
{
    colibri_engine *engine = tiny_model_open(m, options);
    CHECK(engine != NULL);
    if (engine == NULL) {
        return;
    }
    char err[256];
    colibri_session *session = create(engine);
    for (int32_t done = 0; done < N_PROMPT; done += piece) {
        int32_t n = N_PROMPT - done < piece ? N_PROMPT - done : piece;
        prefill(session, prompt + done, n, 0);
    }
    for (int32_t token = 3; token < 5; token++) {
        CHECK(colibri_decode(&session, &token, 1, err, sizeof err) == COLIBRI_OK);
    }
    CHECK(colibri_session_length(session) == N_PROMPT + 2);
    CHECK(colibri_session_logits(session, out, VOCAB, err, sizeof err) == COLIBRI_OK);
    colibri_session_close(session);
    colibri_engine_close(engine);
}

static void placement_never_changes_a_bit(const tiny_model *m, const char *what)
{
    float expected[VOCAB];
    float found[VOCAB];
    colibri_engine_options base = {.threads = 1, .context = 400};
    run(m, &base, N_PROMPT, expected);
    for (int i = 0; i < VOCAB; i++) {
        CHECK_MSG(isfinite(expected[i]), "%s: logit %d is not finite", what, i);
    }
    for (int32_t threads = 2; threads <= 3; threads++) {
        colibri_engine_options options = base;
        options.threads = threads;
        run(m, &options, N_PROMPT, found);
        CHECK_MSG(memcmp(expected, found, sizeof found) == 0, "%s: %d threads changed the logits", what,
                  threads);
    }
    static const int32_t pieces[] = {1, 7, 128, 129};
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        run(m, &base, pieces[i], found);
        CHECK_MSG(memcmp(expected, found, sizeof found) == 0, "%s: pieces of %d changed the logits", what,
                  pieces[i]);
    }
    colibri_engine_options chunks = base;
    chunks.prefill_chunk = 48;
    run(m, &chunks, N_PROMPT, found);
    CHECK_MSG(memcmp(expected, found, sizeof found) == 0, "%s: chunks of 48 changed the logits", what);
}

/* Far beyond the indexer's top-k, a row alone is scored in parts by several threads (R142). */
static void a_long_context_is_the_same_by_decode_and_by_prefill(tiny_model *m, const char *what)
{
    enum { LONG = 2600, DECODED = 5 };
    static int32_t tokens[LONG];
    static float expected[LONG * VOCAB];
    float found[VOCAB];
    char err[256];
    uint64_t state = 23;
    for (int i = 0; i < LONG; i++) {
        tokens[i] = (int32_t)(test_random(&state) % VOCAB);
    }
    int32_t before = m->geometry.max_position;
    m->geometry.max_position = LONG + 1;
    for (int32_t threads = 1; threads <= 3; threads++) {
        colibri_engine_options options = {.threads = threads, .context = LONG};
        colibri_engine *engine = tiny_model_open(m, &options);
        CHECK(engine != NULL);
        if (engine == NULL) {
            break;
        }
        colibri_session *session = create(engine);
        if (threads == 1) {
            colibri_prefill_progress progress = {0};
            CHECK(colibri_prefill_start(session, tokens, LONG, expected, err, sizeof err) == COLIBRI_OK);
            while (!progress.finished &&
                   colibri_prefill_step(session, 0, &progress, err, sizeof err) == COLIBRI_OK) {}
            CHECK(progress.finished);
            CHECK(colibri_session_truncate(session, LONG - DECODED, err, sizeof err) == COLIBRI_OK);
        } else {
            prefill(session, tokens, LONG - DECODED, 0);
        }
        for (int32_t row = LONG - DECODED; row < LONG; row++) {
            CHECK(colibri_decode(&session, &tokens[row], 1, err, sizeof err) == COLIBRI_OK);
            CHECK(colibri_session_logits(session, found, VOCAB, err, sizeof err) == COLIBRI_OK);
            CHECK_MSG(memcmp(expected + (size_t)row * VOCAB, found, sizeof found) == 0,
                      "%s: %d threads: decoding position %d differs from the prefill", what, threads, row);
        }
        colibri_session_close(session);
        colibri_engine_close(engine);
    }
    m->geometry.max_position = before;
}

static void batch_mates_never_change_a_bit(const tiny_model *m, const char *what)
{
    colibri_engine_options options = {.threads = 2, .context = 400};
    colibri_engine *engine = tiny_model_open(m, &options);
    CHECK(engine != NULL);
    if (engine == NULL) {
        return;
    }
    char err[256];
    colibri_session *sessions[5];
    float alone[5][VOCAB];
    float together[VOCAB];
    const int32_t tokens[5] = {1, 2, 3, 4, 5};
    for (int i = 0; i < 5; i++) {
        sessions[i] = create(engine);
        prefill(sessions[i], prompt + i, 20 + 30 * i, 0);
        CHECK(colibri_decode(&sessions[i], &tokens[i], 1, err, sizeof err) == COLIBRI_OK);
        CHECK(colibri_session_logits(sessions[i], alone[i], VOCAB, err, sizeof err) == COLIBRI_OK);
        CHECK(colibri_session_truncate(sessions[i], 20 + 30 * i, err, sizeof err) == COLIBRI_OK);
    }
    CHECK(colibri_decode(sessions, tokens, 5, err, sizeof err) == COLIBRI_OK);
    for (int i = 0; i < 5; i++) {
        CHECK(colibri_session_logits(sessions[i], together, VOCAB, err, sizeof err) == COLIBRI_OK);
        CHECK_MSG(memcmp(alone[i], together, sizeof together) == 0, "%s: batch mates changed session %d",
                  what, i);
        colibri_session_close(sessions[i]);
    }
    colibri_engine_close(engine);
}

/* Every refusal: the status, a sentence, and the session as it was. */
static void refusals_leave_the_session_alone(const tiny_model *m)
{
    colibri_engine_options options = {.threads = 1, .context = 64};
    colibri_engine *engine = tiny_model_open(m, &options);
    CHECK(engine != NULL);
    if (engine == NULL) {
        return;
    }
    char err[256] = "";
    float before[VOCAB];
    float after[VOCAB];
    int32_t token = 0;
    colibri_session *session = create(engine);
    colibri_sampling greedy = {.struct_size = sizeof greedy, .top_p = 1.0f};
    CHECK(colibri_session_sample(session, &greedy, &token, err, sizeof err) == COLIBRI_ERROR_INVALID &&
          err[0]);
    CHECK(colibri_session_logits(session, before, VOCAB, err, sizeof err) != COLIBRI_OK);

    prefill(session, prompt, 60, 0);
    CHECK(colibri_session_logits(session, before, VOCAB, err, sizeof err) == COLIBRI_OK);
    const int32_t outside[2] = {1, VOCAB};
    const int32_t negative[2] = {-1, 1};
    colibri_session *twice[2] = {session, session};
    CHECK(colibri_prefill_start(session, outside, 2, NULL, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_prefill_start(session, negative, 2, NULL, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_prefill_start(session, prompt, 5, NULL, err, sizeof err) == COLIBRI_ERROR_CONTEXT &&
          err[0]);
    CHECK(colibri_decode(&session, outside + 1, 1, err, sizeof err) == COLIBRI_ERROR_INVALID);
    if (m->geometry.n_experts == 0) {
        CHECK(colibri_session_count(session, 0, err, sizeof err) == COLIBRI_ERROR_INVALID);
    }
    CHECK(colibri_decode(twice, prompt, 2, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_truncate(session, 61, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_truncate(session, -1, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_logits(session, after, VOCAB - 1, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_length(session) == 60);
    CHECK(colibri_session_logits(session, after, VOCAB, err, sizeof err) == COLIBRI_OK);
    CHECK(memcmp(before, after, sizeof after) == 0);

    for (int i = 0; i < 4; i++) {
        CHECK(colibri_decode(&session, &prompt[i], 1, err, sizeof err) == COLIBRI_OK);
    }
    CHECK(colibri_decode(&session, prompt, 1, err, sizeof err) == COLIBRI_ERROR_CONTEXT);
    int32_t tokens[64];
    CHECK(colibri_session_tokens(session, tokens, 64) == 64);
    CHECK(memcmp(tokens, prompt, 60 * sizeof tokens[0]) == 0 &&
          memcmp(tokens + 60, prompt, 4 * sizeof tokens[0]) == 0);
    CHECK(colibri_session_truncate(session, 0, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_session_length(session) == 0);
    colibri_session_close(session);
    colibri_engine_close(engine);
}

static int argmax(const float *logits)
{
    int best = 0;
    for (int i = 1; i < VOCAB; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

static void the_sampler_is_greedy_seeded_and_masked(const tiny_model *m)
{
    colibri_engine_options options = {.threads = 1, .context = 64};
    colibri_engine *engine = tiny_model_open(m, &options);
    CHECK(engine != NULL);
    if (engine == NULL) {
        return;
    }
    char err[256];
    float logits[VOCAB];
    int32_t token = -1;
    int32_t again = -1;
    colibri_session *session = create(engine);
    prefill(session, prompt, 12, 0);
    CHECK(colibri_session_logits(session, logits, VOCAB, err, sizeof err) == COLIBRI_OK);
    colibri_sampling sampling = {.struct_size = sizeof sampling, .top_p = 1.0f};
    CHECK(colibri_session_sample(session, &sampling, &token, err, sizeof err) == COLIBRI_OK);
    CHECK(token == argmax(logits));

    int counts[VOCAB] = {0};
    sampling.temperature = 1.0f;
    for (uint64_t seed = 0; seed < 400; seed++) {
        sampling.seed = seed;
        CHECK(colibri_session_sample(session, &sampling, &token, err, sizeof err) == COLIBRI_OK);
        CHECK(colibri_session_sample(session, &sampling, &again, err, sizeof err) == COLIBRI_OK);
        CHECK(token == again && token >= 0 && token < VOCAB);
        counts[token]++;
    }
    int kinds = 0;
    for (int i = 0; i < VOCAB; i++) {
        kinds += counts[i] > 0;
    }
    CHECK_MSG(kinds > 1, "400 seeds gave one token");
    sampling.top_p = 1e-6f;
    CHECK(colibri_session_sample(session, &sampling, &token, err, sizeof err) == COLIBRI_OK);
    CHECK(token == argmax(logits));

    uint32_t mask[2] = {0, 1u << (35 - 32)};
    sampling.mask = mask;
    sampling.top_p = 1.0f;
    CHECK(colibri_session_sample(session, &sampling, &token, err, sizeof err) == COLIBRI_OK);
    CHECK(token == 35);
    mask[1] = 0;
    CHECK(colibri_session_sample(session, &sampling, &token, err, sizeof err) == COLIBRI_ERROR_INVALID);
    colibri_session_close(session);
    colibri_engine_close(engine);
}

/* Counts of a session that holds COUNTED tokens of the prompt, counted from position FROM on: the first ones
 * prefilled in pieces, the rest decoded, beside a session that does not count if `mate` is set. */
enum { COUNTED = 40, FROM = 7, MOST_COUNTS = 64 * 16 };

static int64_t all_counts(const tiny_model *m)
{
    return ((int64_t)m->geometry.n_layers + m->geometry.n_mtp_layers) * m->geometry.n_experts;
}

static void count_routed(const tiny_model *m, int32_t fault, int32_t prefilled, int32_t piece, int mate,
                         uint32_t *counts, int64_t *uses)
{
    char err[256];
    colibri_engine_options options = {.threads = 1, .context = 64, .fault = fault};
    colibri_engine *engine = tiny_model_open(m, &options);
    CHECK(engine != NULL);
    if (engine == NULL) {
        return;
    }
    colibri_session *session = create(engine);
    colibri_session *other = create(engine);
    CHECK(colibri_session_count(session, FROM, err, sizeof err) == COLIBRI_OK);
    for (int32_t done = 0; done < prefilled; done += piece) {
        prefill(session, prompt + done, prefilled - done < piece ? prefilled - done : piece, 0);
    }
    for (int32_t at = prefilled; at < COUNTED; at++) {
        colibri_session *const both[] = {other, session};
        const int32_t tokens[] = {prompt[COUNTED - at], prompt[at]};
        CHECK(colibri_decode(mate ? both : both + 1, mate ? tokens : tokens + 1, mate ? 2 : 1, err,
                             sizeof err) == COLIBRI_OK);
    }
    int64_t n = all_counts(m);
    CHECK(colibri_session_counts(session, counts, n, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_session_counts(session, counts, n - 1, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_counts(other, counts, n, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_engine_usage(engine, uses, n, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_session_count(session, -1, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_session_counts(session, counts, n, err, sizeof err) == COLIBRI_ERROR_INVALID);
    colibri_session_close(session);
    colibri_session_close(other);
    colibri_engine_close(engine);
}

static void routed_experts_are_counted_exactly(const tiny_model *m, const char *what)
{
    static uint32_t expected[MOST_COUNTS];
    static uint32_t found[MOST_COUNTS];
    static int64_t uses[MOST_COUNTS];
    const colibri_geometry *g = &m->geometry;
    size_t bytes = (size_t)all_counts(m) * sizeof *expected;
    count_routed(m, 0, 0, 1, 0, expected, uses);
    for (int32_t layer = 0; layer < g->n_layers + g->n_mtp_layers; layer++) {
        uint32_t sum = 0;
        for (int32_t e = 0; e < g->n_experts; e++) {
            sum += expected[layer * g->n_experts + e];
            CHECK_MSG(uses[layer * g->n_experts + e] == 0, "%s: a session that counts was learnt from", what);
        }
        int32_t tokens = layer < g->n_layers && g->layer_sparse[layer] ? COUNTED - FROM : 0;
        CHECK_MSG(sum == (uint32_t)(tokens * g->experts_per_token), "%s: layer %d counts %u", what, layer,
                  sum);
    }
    static const int32_t pieces[] = {40, 1, 9};
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        count_routed(m, 0, 30, pieces[i], (int)i, found, uses);
        CHECK_MSG(memcmp(expected, found, bytes) == 0, "%s: pieces of %d changed the counts", what,
                  pieces[i]);
    }
    int64_t learnt = 0;
    for (int64_t i = 0; i < all_counts(m); i++) {
        learnt += uses[i];
    }
    CHECK_MSG(learnt > 0, "%s: a step with a session that does not count left no use counts", what);
    count_routed(m, 7, 30, 40, 0, found, uses); /* CLB_FAULT_ROUTED */
    CHECK_MSG(memcmp(expected, found, bytes) != 0, "%s: the planted fault was not seen", what);
}

/* The invariance tests above can fail: a planted fault changes the bits. */
static void a_planted_fault_is_seen(const tiny_model *m)
{
    float expected[VOCAB];
    float found[VOCAB];
    colibri_engine_options options = {.threads = 1, .context = 400};
    run(m, &options, N_PROMPT, expected);
    options.fault = 2; /* CLB_FAULT_KV_POSITION */
    run(m, &options, N_PROMPT, found);
    CHECK(memcmp(expected, found, sizeof found) != 0);
}

int main(void)
{
    make_prompt();
    hybrid_family_use();
    static const struct {
        int32_t family;
        int32_t format;
        const char *what;
    } models[] = {
        {COLIBRI_FAMILY_LLAMA, COLIBRI_FORMAT_I8_ROW, "llama int8"},
        {COLIBRI_FAMILY_LLAMA, COLIBRI_FORMAT_I4_GROUP, "llama int4"},
        {COLIBRI_FAMILY_GLM_MOE_DSA, COLIBRI_FORMAT_I8_ROW, "glm int8"},
        {COLIBRI_FAMILY_GLM_MOE_DSA, COLIBRI_FORMAT_F32, "glm f32"},
        {HYBRID_FAMILY, COLIBRI_FORMAT_I8_ROW, "every kind of state, int8"},
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        int hybrid = models[i].family == HYBRID_FAMILY;
        tiny_model *m = tiny_model_create(hybrid ? COLIBRI_FAMILY_GLM_MOE_DSA : models[i].family,
                                          models[i].format, 5 + i);
        CHECK(m != NULL);
        if (m == NULL) {
            break;
        }
        m->geometry.family = models[i].family;
        placement_never_changes_a_bit(m, models[i].what);
        if (!hybrid) {
            a_long_context_is_the_same_by_decode_and_by_prefill(m, models[i].what);
        }
        batch_mates_never_change_a_bit(m, models[i].what);
        if (models[i].family == COLIBRI_FAMILY_GLM_MOE_DSA) {
            routed_experts_are_counted_exactly(m, models[i].what);
        }
        refusals_leave_the_session_alone(m);
        the_sampler_is_greedy_seeded_and_masked(m);
        a_planted_fault_is_seen(m);
        tiny_model_destroy(m);
    }
    return test_report();
}
