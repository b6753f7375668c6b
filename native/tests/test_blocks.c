/* test_blocks.c - KV blocks shared between sessions, and taken out of the engine and put back.
 *
 * A random walk over several sessions (append, decode together, truncate, fork, export and import)
 * is held against sessions that computed the same tokens alone: every bit of the logits must agree.
 * A planted fault (writing into a shared block) must be seen. Also: refusals by name, the budget of
 * KV, and that nothing is left allocated. */
#include <stdlib.h>
#include <string.h>

#include "hybrid_family.h"
#include "test.h"
#include "tiny_model.h"

#define VOCAB 40
#define CONTEXT 400
#define N_SESSIONS 4
#define SPAN 128

typedef struct {
    colibri_session *session;
    int32_t tokens[CONTEXT];
    int32_t n;
} timeline;

static int64_t kv_bytes(const colibri_engine *engine)
{
    colibri_engine_snapshot_t snapshot = {.struct_size = sizeof snapshot};
    colibri_engine_snapshot(engine, &snapshot);
    return snapshot.kv_bytes;
}

static int32_t append(colibri_session *session, const int32_t *tokens, int32_t n)
{
    char err[256];
    int32_t status = colibri_prefill_start(session, tokens, n, NULL, err, sizeof err);
    colibri_prefill_progress progress = {0};
    while (status == COLIBRI_OK && !progress.finished)
        status = colibri_prefill_step(session, 0, &progress, err, sizeof err);
    CHECK_MSG(status == COLIBRI_OK, "prefill of %d: %s", n, err);
    return status;
}

/* Logits after the timeline's tokens and one more, which is then taken back. */
static void probe(timeline *t, float *out)
{
    char err[256];
    const int32_t token = 7;
    CHECK(colibri_decode(&t->session, &token, 1, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_session_logits(t->session, out, VOCAB, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_session_truncate(t->session, t->n, err, sizeof err) == COLIBRI_OK);
}

static int differs_from_alone(colibri_engine *engine, timeline *t)
{
    char err[256];
    float shared[VOCAB], alone[VOCAB];
    timeline fresh = {.n = t->n};
    CHECK(colibri_session_create(engine, &fresh.session, err, sizeof err) == COLIBRI_OK);
    if (t->n > 0)
        append(fresh.session, t->tokens, t->n);
    probe(&fresh, alone);
    probe(t, shared);
    colibri_session_close(fresh.session);
    return memcmp(alone, shared, sizeof alone) != 0;
}

static void take_tokens(timeline *to, const timeline *from, int32_t n)
{
    memcpy(to->tokens, from->tokens, (size_t)n * sizeof *to->tokens);
    to->n = n;
}

static void empty(timeline *t)
{
    char err[256];
    CHECK(colibri_session_truncate(t->session, 0, err, sizeof err) == COLIBRI_OK);
    t->n = 0;
}

static void move_blocks(colibri_engine *engine, timeline *from, timeline *to)
{
    char err[256];
    int64_t bytes = colibri_engine_block_bytes(engine);
    uint8_t *data = malloc((size_t)bytes);
    empty(to);
    for (int32_t b = 0; b < from->n / SPAN; b++) {
        CHECK(colibri_session_export_block(from->session, b, data, bytes, err, sizeof err) == COLIBRI_OK);
        CHECK_MSG(colibri_session_import_block(to->session, from->tokens + b * SPAN, SPAN, data, bytes, err,
                                               sizeof err) == COLIBRI_OK,
                  "import: %s", err);
    }
    free(data);
    /* With windows the last blocks may lack what a token behind them sees. */
    int32_t usable = colibri_session_reusable(to->session, from->n / SPAN * SPAN);
    CHECK(colibri_session_truncate(to->session, usable, err, sizeof err) == COLIBRI_OK);
    take_tokens(to, from, usable);
}

/* Returns how many comparisons differed. */
static int walk(const tiny_model *m, int32_t fault, uint64_t seed, int steps)
{
    char err[256];
    colibri_engine_options options = {.threads = 1, .context = CONTEXT, .fault = fault};
    colibri_engine *engine = tiny_model_open(m, &options);
    CHECK(engine != NULL);
    if (engine == NULL)
        return 0;
    CHECK(colibri_engine_block_tokens(engine) == SPAN);
    timeline lines[N_SESSIONS] = {0};
    for (int i = 0; i < N_SESSIONS; i++)
        CHECK(colibri_session_create(engine, &lines[i].session, err, sizeof err) == COLIBRI_OK);
    int differences = 0;
    for (int step = 0; step < steps; step++) {
        timeline *t = &lines[test_random(&seed) % N_SESSIONS];
        timeline *other = &lines[test_random(&seed) % N_SESSIONS];
        switch (test_random(&seed) % 5) {
        case 0: {
            int32_t n = 1 + (int32_t)(test_random(&seed) % 150);
            if (t->n + n >= CONTEXT)
                empty(t);
            for (int32_t i = 0; i < n; i++)
                t->tokens[t->n + i] = (int32_t)(test_random(&seed) % VOCAB);
            append(t->session, t->tokens + t->n, n);
            t->n += n;
            break;
        }
        case 1: {
            colibri_session *sessions[N_SESSIONS];
            int32_t tokens[N_SESSIONS], n = 0;
            for (int i = 0; i < N_SESSIONS; i++) {
                if (lines[i].n + 1 >= CONTEXT)
                    continue;
                tokens[n] = (int32_t)(test_random(&seed) % VOCAB);
                lines[i].tokens[lines[i].n++] = tokens[n];
                sessions[n++] = lines[i].session;
            }
            CHECK(colibri_decode(sessions, tokens, n, err, sizeof err) == COLIBRI_OK);
            break;
        }
        case 2:
            t->n = colibri_session_reusable(t->session, (int32_t)(test_random(&seed) % (uint64_t)(t->n + 1)));
            if (test_random(&seed) % 2 == 0)
                colibri_session_checkpoint(other->session);
            CHECK(colibri_session_truncate(t->session, t->n, err, sizeof err) == COLIBRI_OK);
            break;
        case 3:
            if (other != t) {
                int32_t n = colibri_session_reusable(t->session,
                                                     (int32_t)(test_random(&seed) % (uint64_t)(t->n + 1)));
                empty(other);
                CHECK(colibri_session_fork(t->session, n, other->session, err, sizeof err) == COLIBRI_OK);
                take_tokens(other, t, n);
            }
            break;
        default:
            if (other != t)
                move_blocks(engine, t, other);
            break;
        }
        int32_t held[CONTEXT];
        CHECK(colibri_session_tokens(t->session, held, CONTEXT) == t->n);
        CHECK(memcmp(held, t->tokens, (size_t)t->n * sizeof *held) == 0);
        differences += differs_from_alone(engine, t) + differs_from_alone(engine, other);
    }
    for (int i = 0; i < N_SESSIONS; i++)
        colibri_session_close(lines[i].session);
    CHECK(kv_bytes(engine) == 0);
    colibri_engine_close(engine);
    return differences;
}

static void a_shared_prompt_is_held_once(const tiny_model *m)
{
    char err[256];
    colibri_engine_options options = {.threads = 1, .context = CONTEXT};
    colibri_engine *engine = tiny_model_open(m, &options);
    timeline a = {0}, b = {0};
    CHECK(colibri_session_create(engine, &a.session, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_session_create(engine, &b.session, err, sizeof err) == COLIBRI_OK);
    for (a.n = 0; a.n < 300; a.n++)
        a.tokens[a.n] = a.n % VOCAB;
    append(a.session, a.tokens, a.n);
    int64_t alone = kv_bytes(engine);
    CHECK(colibri_session_fork(a.session, 300, b.session, err, sizeof err) == COLIBRI_OK);
    CHECK(kv_bytes(engine) == alone);
    /* The last, incomplete block is copied when one of them goes on; no other. */
    append(b.session, a.tokens, 1);
    CHECK(kv_bytes(engine) == alone + alone / 3);
    colibri_session_close(a.session);
    CHECK(kv_bytes(engine) == alone);
    colibri_session_close(b.session);
    CHECK(kv_bytes(engine) == 0);
    colibri_engine_close(engine);
}

static void refusals_change_nothing(const tiny_model *m)
{
    char err[256] = "";
    colibri_engine_options options = {.threads = 1, .context = 2 * SPAN + 10};
    colibri_engine *engine = tiny_model_open(m, &options);
    int64_t bytes = colibri_engine_block_bytes(engine);
    uint8_t *data = calloc(1, (size_t)bytes);
    int32_t tokens[SPAN] = {0};
    colibri_session *a = NULL, *b = NULL;
    CHECK(colibri_session_create(engine, &a, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_session_create(engine, &b, err, sizeof err) == COLIBRI_OK);
    append(a, tokens, 20);
    CHECK(colibri_session_fork(a, 21, b, err, sizeof err) == COLIBRI_ERROR_INVALID && err[0]);
    CHECK(colibri_session_fork(a, -1, b, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_fork(a, 5, a, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_fork(b, 0, a, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_export_block(a, 0, data, bytes, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_export_block(a, -1, data, bytes, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_import_block(a, tokens, SPAN, data, bytes, err, sizeof err) ==
          COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_import_block(b, tokens, SPAN - 1, data, bytes, err, sizeof err) ==
          COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_import_block(b, tokens, SPAN, data, bytes - 1, err, sizeof err) ==
          COLIBRI_ERROR_INVALID);
    tokens[3] = VOCAB;
    CHECK(colibri_session_import_block(b, tokens, SPAN, data, bytes, err, sizeof err) ==
          COLIBRI_ERROR_INVALID);
    tokens[3] = 0;
    CHECK(colibri_session_length(a) == 20 && colibri_session_length(b) == 0);
    CHECK(colibri_session_import_block(b, tokens, SPAN, data, bytes, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_session_import_block(b, tokens, SPAN, data, bytes, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_session_import_block(b, tokens, SPAN, data, bytes, err, sizeof err) ==
          COLIBRI_ERROR_CONTEXT);
    colibri_session_close(a);
    colibri_session_close(b);
    colibri_engine_close(engine);
    free(data);
}

/* Sessions beyond those the budget was made for share its KV; when it is used up the refusal says so. */
static void the_budget_bounds_all_sessions_together(const tiny_model *m)
{
    char err[256] = "";
    colibri_engine_options options = {.threads = 1, .context = SPAN, .memory_budget = 64 << 20};
    colibri_engine *engine = tiny_model_open(m, &options);
    int32_t tokens[SPAN] = {0};
    colibri_session *a = NULL, *b = NULL;
    CHECK(colibri_session_create(engine, &a, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_session_create(engine, &b, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_engine_kv_room(engine) == 1);
    append(a, tokens, 20);
    CHECK(colibri_engine_kv_room(engine) == 0);
    CHECK(colibri_prefill_start(b, tokens, 20, NULL, err, sizeof err) == COLIBRI_OK);
    colibri_prefill_progress progress;
    CHECK(colibri_prefill_step(b, 0, &progress, err, sizeof err) == COLIBRI_ERROR_MEMORY && err[0]);
    CHECK(colibri_session_truncate(b, 0, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_session_truncate(a, 0, err, sizeof err) == COLIBRI_OK);
    append(b, tokens, 20);
    colibri_session_close(a);
    colibri_session_close(b);
    colibri_engine_close(engine);
}

static void the_layout_is_named(const tiny_model *m)
{
    char first[256], second[256], tight[8];
    colibri_engine_options options = {.threads = 1, .context = 200};
    colibri_engine *engine = tiny_model_open(m, &options);
    CHECK(colibri_engine_kv_layout(engine, first, sizeof first) == (int32_t)strlen(first));
    CHECK(colibri_engine_kv_layout(engine, tight, sizeof tight) == (int32_t)strlen(first));
    CHECK(strlen(tight) == sizeof tight - 1);
    colibri_engine_close(engine);
    options.context = 300;
    options.threads = 2;
    engine = tiny_model_open(m, &options);
    colibri_engine_kv_layout(engine, second, sizeof second);
    CHECK_MSG(strcmp(first, second) == 0, "%s, with another context %s", first, second);
    colibri_engine_close(engine);
    options.precision = COLIBRI_PRECISION_F32;
    engine = tiny_model_open(m, &options);
    colibri_engine_kv_layout(engine, second, sizeof second);
    CHECK(strcmp(first, second) != 0);
    colibri_engine_close(engine);
}

/* What windows have passed is dropped; checkpoints keep what a return to them needs, and no more. */
static void windows_pass_on(const tiny_model *m)
{
    char err[256] = "";
    colibri_engine_options options = {.threads = 1, .context = 3000};
    colibri_engine *engine = tiny_model_open(m, &options);
    int32_t tokens[1000];
    for (int32_t i = 0; i < 1000; i++)
        tokens[i] = i * 7 % VOCAB;
    timeline t = {0}, other = {0};
    CHECK(colibri_session_create(engine, &t.session, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_session_create(engine, &other.session, err, sizeof err) == COLIBRI_OK);
    append(t.session, tokens, 300);
    colibri_session_checkpoint(t.session);
    append(t.session, tokens + 300, 390);
    CHECK(colibri_session_reusable(t.session, 690) == 690);
    CHECK(colibri_session_reusable(t.session, 680) == 680);
    CHECK(colibri_session_reusable(t.session, 500) == 300);
    CHECK(colibri_session_reusable(t.session, 100) == 0);
    CHECK(colibri_session_truncate(t.session, 500, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK_MSG(strstr(err, "300") != NULL, "%s", err);
    CHECK(colibri_session_fork(t.session, 500, other.session, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_length(t.session) == 690);
    int64_t before = kv_bytes(engine);
    append(t.session, tokens, 900);
    /* 7 spans more of everything; the two windowed groups do not grow. */
    int64_t grown = kv_bytes(engine) - before;
    append(t.session, tokens, 900);
    CHECK_MSG(kv_bytes(engine) - before < 2 * grown + grown / 8, "the windows' blocks pile up");
    CHECK(colibri_session_fork(t.session, 300, other.session, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_session_truncate(t.session, 300, err, sizeof err) == COLIBRI_OK);
    memcpy(t.tokens, tokens, 300 * sizeof *tokens);
    memcpy(other.tokens, tokens, 300 * sizeof *tokens);
    t.n = other.n = 300;
    CHECK(differs_from_alone(engine, &t) == 0 && differs_from_alone(engine, &other) == 0);
    colibri_session_close(t.session);
    colibri_session_close(other.session);
    CHECK(kv_bytes(engine) == 0);
    colibri_engine_close(engine);
}

int main(void)
{
    hybrid_family_use();
    int steps = getenv("COLIBRI_TEST_QUICK") != NULL ? 12 : 120;
    const int32_t families[] = {COLIBRI_FAMILY_LLAMA, COLIBRI_FAMILY_GLM_MOE_DSA, HYBRID_FAMILY};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        int hybrid = families[i] == HYBRID_FAMILY;
        tiny_model *m = tiny_model_create(hybrid ? COLIBRI_FAMILY_GLM_MOE_DSA : families[i],
                                          COLIBRI_FORMAT_I8_ROW, 5 + i);
        CHECK(m != NULL);
        if (m == NULL)
            break;
        m->geometry.family = families[i];
        m->geometry.max_position = 4096;
        int wrong = walk(m, 0, 17 + i, steps);
        CHECK_MSG(wrong == 0, "family %d: %d comparisons differ from sessions alone", families[i], wrong);
        CHECK_MSG(walk(m, 5 /* CLB_FAULT_SHARED_BLOCK */, 17 + i, 80) > 0,
                  "family %d: writing into shared blocks was not noticed", families[i]);
        if (hybrid)
            windows_pass_on(m);
        else
            a_shared_prompt_is_held_once(m);
        refusals_change_nothing(m);
        the_budget_bounds_all_sessions_together(m);
        the_layout_is_named(m);
        tiny_model_destroy(m);
    }
    return test_report();
}
