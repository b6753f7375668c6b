/* test_blocks.c - KV blocks shared between sessions, and taken out of the engine and put back.
 *
 * A random walk over several sessions (append, decode together, truncate, fork, export and import)
 * is held against sessions that computed the same tokens alone: every bit of the logits must agree.
 * A planted fault (writing into a shared block) must be seen. Also: refusals by name, the budget of
 * KV, and that nothing is left allocated. */
#include <stdlib.h>
#include <string.h>

#include "../src/engine.h"
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

/* The first `n` tokens of `from`, the last block only partly used, if need be. */
static void move_blocks(colibri_engine *engine, timeline *from, timeline *to, int32_t n)
{
    char err[256];
    int64_t bytes = colibri_engine_block_bytes(engine);
    uint8_t *data = malloc((size_t)bytes);
    empty(to);
    for (int32_t at = 0; at < n; at += SPAN) {
        int32_t most = n - at < SPAN ? n - at : SPAN;
        CHECK(colibri_session_export_block(from->session, at / SPAN, data, bytes, err, sizeof err) ==
              COLIBRI_OK);
        CHECK_MSG(colibri_session_import_block(to->session, from->tokens + at, most, data, bytes, err,
                                               sizeof err) == COLIBRI_OK,
                  "import: %s", err);
    }
    free(data);
    CHECK(colibri_session_draftless(to->session) == 0);
    /* With windows the last blocks may lack what a token behind them sees. */
    int32_t usable = colibri_session_reusable(to->session, n);
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
            if (other != t) {
                int32_t part = (int32_t)(test_random(&seed) % (uint64_t)(t->n + 1));
                move_blocks(engine, t, other, test_random(&seed) % 2 == 0 ? t->n : part);
            }
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

/* ---- chunks ---- */

#define CHUNK 150
#define BEFORE 70
#define PROMPT 320

/* Copies what `from` has of its unfinished chunk into `to`, which gets the tokens before it too. `skip`: a
 * piece that stays behind, -2 = none. Returns the layers of the chunk. */
static int32_t move_chunk(const timeline *from, timeline *to, int32_t skip)
{
    char err[256];
    const colibri_engine *engine = from->session->engine;
    colibri_chunk chunk = {.struct_size = sizeof chunk};
    colibri_session_chunk(from->session, &chunk);
    CHECK(chunk.first == from->n && chunk.tokens > 0 && chunk.between == 1);
    take_tokens(to, from, from->n);
    int64_t bytes = colibri_engine_block_bytes(engine);
    uint8_t *data = malloc((size_t)bytes);
    for (int32_t at = 0; at < from->n; at += SPAN) {
        int32_t n = from->n - at < SPAN ? from->n - at : SPAN;
        CHECK(colibri_session_export_block(from->session, at / SPAN, data, bytes, err, sizeof err) ==
              COLIBRI_OK);
        CHECK(colibri_session_import_block(to->session, from->tokens + at, n, data, bytes, err, sizeof err) ==
              COLIBRI_OK);
    }
    free(data);
    CHECK_MSG(colibri_session_import_chunk(to->session, from->tokens + from->n, chunk.tokens, chunk.layers,
                                           err, sizeof err) == COLIBRI_OK,
              "%s", err);
    for (int32_t i = 0; i <= chunk.layers; i++) {
        int32_t piece = i < chunk.layers ? i : -1;
        bytes = colibri_session_chunk_bytes(from->session, piece);
        CHECK(bytes > 0 && bytes == colibri_session_chunk_bytes(to->session, piece));
        CHECK(colibri_session_parked(to->session) == 0);
        data = calloc(1, (size_t)bytes);
        CHECK(colibri_session_export_chunk(from->session, piece, data, bytes, err, sizeof err) == COLIBRI_OK);
        if (piece == skip)
            memset(data, 0, (size_t)bytes);
        CHECK(colibri_session_fill_chunk(to->session, piece, data, bytes - 1, err, sizeof err) ==
              COLIBRI_ERROR_INVALID);
        CHECK(colibri_session_fill_chunk(to->session, piece - 1, data, bytes, err, sizeof err) ==
              COLIBRI_ERROR_INVALID);
        CHECK_MSG(colibri_session_fill_chunk(to->session, piece, data, bytes, err, sizeof err) == COLIBRI_OK,
                  "%s", err);
        CHECK(colibri_session_fill_chunk(to->session, piece, data, bytes, err, sizeof err) ==
              COLIBRI_ERROR_INVALID);
        free(data);
    }
    CHECK(colibri_session_parked(to->session) == chunk.tokens);
    CHECK(colibri_session_length(to->session) == from->n);
    return chunk.layers;
}

/* Stops at each place where a chunk can leave, moves it, and ends the prompt there. Returns how many ended
 * with other logits than the prompt read in one piece. */
static int chunks_move(const tiny_model *m, int32_t skip, int *moved)
{
    char err[256];
    int wrong = 0;
    *moved = 0;
    for (int32_t stop = 1, there = 1; there; stop++) {
        colibri_engine_options options = {.threads = 1, .context = CONTEXT, .prefill_chunk = CHUNK};
        colibri_engine *engine = tiny_model_open(m, &options);
        colibri_engine *other = tiny_model_open(m, &options);
        timeline from = {0}, to = {0};
        CHECK(colibri_session_create(engine, &from.session, err, sizeof err) == COLIBRI_OK);
        CHECK(colibri_session_create(other, &to.session, err, sizeof err) == COLIBRI_OK);
        for (int32_t i = 0; i < PROMPT; i++)
            from.tokens[i] = to.tokens[i] = (i * 7 + i / 11) % VOCAB;
        from.n = BEFORE;
        append(from.session, from.tokens, BEFORE);
        colibri_session_pause(from.session, 1);
        CHECK(colibri_prefill_start(from.session, from.tokens + BEFORE, PROMPT - BEFORE, NULL, err,
                                    sizeof err) == COLIBRI_OK);
        colibri_prefill_progress progress = {0};
        for (int32_t i = 0; i < stop && !progress.finished; i++)
            CHECK(colibri_prefill_step(from.session, 0, &progress, err, sizeof err) == COLIBRI_OK);
        there = !progress.finished;
        if (there) {
            from.n = colibri_session_length(from.session);
            CHECK(move_chunk(&from, &to, skip) > 0);
            (*moved)++;
            int32_t layer = 0;
            CHECK(colibri_prefill_start(to.session, to.tokens + from.n, PROMPT - from.n, NULL, err,
                                        sizeof err) == COLIBRI_OK);
            CHECK(colibri_prefill_step(to.session, -1, &progress, err, sizeof err) == COLIBRI_OK);
            layer = progress.layer;
            CHECK_MSG(layer > 0, "the chunk began anew");
            while (!progress.finished)
                CHECK(colibri_prefill_step(to.session, 0, &progress, err, sizeof err) == COLIBRI_OK);
            to.n = PROMPT;
            wrong += differs_from_alone(other, &to);
        }
        colibri_session_close(from.session);
        colibri_session_close(to.session);
        CHECK(kv_bytes(engine) == 0 && kv_bytes(other) == 0);
        colibri_engine_close(engine);
        colibri_engine_close(other);
    }
    return wrong;
}

static void chunks_leave_and_come_back(const tiny_model *m)
{
    int moved, broken;
    int wrong = chunks_move(m, -2, &moved);
    /* PROMPT tokens behind BEFORE are two chunks. */
    CHECK_MSG(wrong == 0 && moved >= 2, "family %d: %d of %d chunks came back changed", m->geometry.family,
              wrong, moved);
    CHECK_MSG(chunks_move(m, -1, &broken) > 0, "family %d: lost rows were not noticed", m->geometry.family);
    CHECK_MSG(chunks_move(m, 0, &broken) > 0, "family %d: a lost layer was not noticed", m->geometry.family);
}

static void chunks_are_refused_and_dropped(const tiny_model *m)
{
    char err[256] = "";
    colibri_engine_options options = {.threads = 1, .context = CONTEXT, .prefill_chunk = CHUNK};
    colibri_engine *engine = tiny_model_open(m, &options);
    int32_t tokens[CONTEXT] = {0}, last = m->geometry.n_layers;
    colibri_session *s = NULL;
    colibri_chunk chunk = {.struct_size = sizeof chunk};
    CHECK(colibri_session_create(engine, &s, err, sizeof err) == COLIBRI_OK);
    colibri_session_chunk(s, &chunk);
    CHECK(chunk.tokens == 0 && colibri_session_chunk_bytes(s, 0) == 0);
    CHECK(colibri_session_export_chunk(s, 0, tokens, 4, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_fill_chunk(s, 0, tokens, 4, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_import_chunk(s, tokens, CHUNK + 1, 1, err, sizeof err) == COLIBRI_ERROR_MEMORY);
    CHECK(colibri_session_import_chunk(s, tokens, 0, 1, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_import_chunk(s, tokens, CHUNK, 0, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_import_chunk(s, tokens, CHUNK, last, err, sizeof err) == COLIBRI_ERROR_INVALID);
    tokens[5] = VOCAB;
    CHECK(colibri_session_import_chunk(s, tokens, CHUNK, last - 1, err, sizeof err) == COLIBRI_ERROR_INVALID);
    tokens[5] = 0;
    append(s, tokens, CONTEXT - CHUNK + 1);
    int32_t layer = last - 1;
    while (layer > 1 && m->geometry.layer_indexer != NULL && !m->geometry.layer_indexer[layer])
        layer--;
    CHECK(colibri_session_import_chunk(s, tokens, CHUNK, layer, err, sizeof err) == COLIBRI_ERROR_CONTEXT);
    /* One that is never filled is nobody's: the next prompt begins anew. */
    CHECK(colibri_session_truncate(s, 10, err, sizeof err) == COLIBRI_OK);
    CHECK_MSG(colibri_session_import_chunk(s, tokens, CHUNK, layer, err, sizeof err) == COLIBRI_OK, "%s",
              err);
    CHECK(engine->n_chunks == 1 && colibri_session_parked(s) == 0);
    append(s, tokens, CHUNK);
    CHECK(engine->n_chunks == 0 && engine->parked == NULL && colibri_session_length(s) == 10 + CHUNK);
    CHECK(colibri_session_import_chunk(s, tokens, CHUNK, layer, err, sizeof err) == COLIBRI_OK);
    colibri_session_close(s);
    CHECK(engine->n_chunks == 0 && engine->parked == NULL && kv_bytes(engine) == 0);
    colibri_engine_close(engine);
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
    CHECK(colibri_session_export_block(a, 1, data, bytes, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_export_block(b, 0, data, bytes, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_export_block(a, -1, data, bytes, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_import_block(a, tokens, SPAN, data, bytes, err, sizeof err) ==
          COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_import_block(b, tokens, SPAN + 1, data, bytes, err, sizeof err) ==
          COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_import_block(b, tokens, 0, data, bytes, err, sizeof err) == COLIBRI_ERROR_INVALID);
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
    CHECK(colibri_session_import_block(b, tokens, 5, data, bytes, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_session_import_block(b, tokens, 5, data, bytes, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_length(b) == 2 * SPAN + 5);
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
        chunks_leave_and_come_back(m);
        chunks_are_refused_and_dropped(m);
        the_budget_bounds_all_sessions_together(m);
        the_layout_is_named(m);
        tiny_model_destroy(m);
    }
    return test_report();
}
