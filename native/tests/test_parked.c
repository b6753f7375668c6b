/* test_parked.c - a prefill that is stopped inside a chunk goes on there, to the same bits.
 *
 *     test_parked [DUMP...]     default: the GLM dumps in build/oracle that have an MTP layer
 *
 *   everywhere  cancelled after every slice (attention, MLP, experts, finish, head, MTP), parked, resumed:
 *               logits and drafts of an undisturbed run, with other sessions decoding in between, with and
 *               without drafts, resident and streaming with 1, 2, all slots; no layer is routed twice and no
 *               byte is read twice
 *   drops       other tokens, a shorter prompt, a decode step, a draft, a truncation, memory needed elsewhere
 *   failures    a read that fails parks too
 *   slow disk   a step returns while a read hangs, and so does a cancel; other sessions decode meanwhile
 *   fault       a parked chunk that comes back changed must be noticed
 * COLIBRI_TEST_QUICK=1 stops at fewer slices, for emulated processors and sanitizers.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine.h"
#include "fault.h"
#include "flatdump.h"
#include "io_internal.h"
#include "test.h"

#define CONTEXT 256
#define HELD 5   /* tokens of the session before the prefill that is stopped */
#define CHUNK 20 /* less than what follows, so that a chunk has a next one */
#define TOKENS 48
#define DRAFTS 3

static int quick;
static char err[512];

/* A prompt and what an undisturbed engine makes of it. */
typedef struct {
    const flatdump *dump;
    const int32_t *tokens; /* [TOKENS] */
    float *logits;         /* [TOKENS][vocab] */
    int32_t drafts[DRAFTS];
} text;

static colibri_engine_options options_of(int32_t slots, int32_t drafts)
{
    return (colibri_engine_options){.struct_size = sizeof(colibri_engine_options),
                                    .context = CONTEXT,
                                    .threads = 2,
                                    .sessions = 3,
                                    .prefill_chunk = CHUNK,
                                    .expert_slots = slots,
                                    .drafts = drafts};
}

static colibri_engine *open_at(const flatdump *dump, const char *path, const colibri_engine_options *options)
{
    colibri_engine *engine = NULL;
    int32_t status = colibri_engine_open(options, &dump->geometry, &path, 1, dump->tensors, dump->n_tensors,
                                         &engine, err, sizeof err);
    CHECK_MSG(status == COLIBRI_OK, "%s: open: %s", path, err);
    return engine;
}

static colibri_engine *open_engine(const text *t, const colibri_engine_options *options)
{
    return open_at(t->dump, t->dump->path, options);
}

/* One slice after the other to the end of what was announced; returns the status. */
static int32_t finish(colibri_session *session, int32_t max_ms)
{
    colibri_prefill_progress progress = {0};
    int32_t status = COLIBRI_OK;
    while (status == COLIBRI_OK && !progress.finished)
        status = colibri_prefill_step(session, max_ms, &progress, err, sizeof err);
    return status;
}

static int32_t start(colibri_session *session, const text *t, int32_t from, int32_t to)
{
    return colibri_prefill_start(session, t->tokens + from, to - from, NULL, err, sizeof err);
}

static colibri_session *filled(colibri_engine *engine, const text *t, int32_t n)
{
    colibri_session *session = NULL;
    CHECK(colibri_session_create(engine, &session, err, sizeof err) == COLIBRI_OK);
    CHECK(start(session, t, 0, n) == COLIBRI_OK && finish(session, 0) == COLIBRI_OK);
    return session;
}

static int same_logits(colibri_session *session, const text *t, int32_t length)
{
    int32_t vocab = t->dump->geometry.vocab;
    float *got = malloc((size_t)vocab * sizeof *got);
    int ok = colibri_session_length(session) == length &&
             colibri_session_logits(session, got, vocab, err, sizeof err) == COLIBRI_OK &&
             memcmp(got, t->logits + (int64_t)(length - 1) * vocab, (size_t)vocab * sizeof *got) == 0;
    free(got);
    return ok;
}

/* Drafts tell whether the MTP layer's keys and hidden states are right too. */
static int same_drafts(colibri_session *session, const text *t, int32_t depth)
{
    int32_t drafts[DRAFTS], n = 0;
    return depth == 0 ||
           (colibri_session_draft(session, t->tokens[0], depth, drafts, &n, err, sizeof err) == COLIBRI_OK &&
            n == depth && memcmp(drafts, t->drafts, (size_t)depth * sizeof *drafts) == 0);
}

static colibri_engine_snapshot_t counters(const colibri_engine *engine)
{
    colibri_engine_snapshot_t s = {.struct_size = sizeof s};
    colibri_engine_snapshot(engine, &s);
    return s;
}

/* ---- stopping everywhere ------------------------------------------------------------------- */

typedef struct {
    const char *name;
    int32_t slots, drafts, no_prefetch;
    int mate;   /* 1 = another session decodes between slices */
    int stride; /* stops after every so many slices */
} variant;

static const variant variants[] = {
    {"resident", 0, DRAFTS, 0, 1, 1},         {"resident without drafts", 0, 0, 0, 0, 5},
    {"one slot", 1, DRAFTS, 0, 1, 19},        {"two slots", 2, 0, 0, 1, 13},
    {"two slots, alone", 2, DRAFTS, 1, 0, 1}, {"all slots", 1 << 20, DRAFTS, 1, 0, 5},
};

/* Between two slices: a step of the mate, which must have the right logits as well. */
static int mate_step(colibri_session *mate, const text *t)
{
    int32_t length = colibri_session_length(mate);
    if (length == TOKENS)
        return colibri_session_truncate(mate, 1, err, sizeof err) == COLIBRI_OK;
    return colibri_decode(&mate, t->tokens + length, 1, err, sizeof err) == COLIBRI_OK &&
           same_logits(mate, t, length + 1);
}

/* Prefills all tokens with a stop after `slices` slices (-1 = none). *finished: the end came before. */
static int stopped_run(const text *t, const variant *v, int32_t fault, int32_t slices, int *finished,
                       int *was_parked, colibri_engine_snapshot_t *end)
{
    colibri_engine_options o = options_of(v->slots, v->drafts);
    o.no_prefetch = v->no_prefetch;
    o.fault = fault;
    colibri_engine *engine = open_engine(t, &o);
    if (engine == NULL)
        return 0;
    colibri_session *mate = v->mate ? filled(engine, t, 1) : NULL, *session = filled(engine, t, HELD);
    colibri_prefill_progress progress = {0};
    int ok = start(session, t, HELD, TOKENS) == COLIBRI_OK, mates_ok = 1;
    for (int32_t i = 0; ok && i != slices && !progress.finished; i++) {
        ok = colibri_prefill_step(session, -1, &progress, err, sizeof err) == COLIBRI_OK;
        mates_ok &= mate == NULL || mate_step(mate, t);
    }
    *finished = progress.finished;
    *was_parked = 0;
    if (ok && !progress.finished) {
        colibri_session_cancel(session);
        ok = colibri_prefill_step(session, 0, &progress, err, sizeof err) == COLIBRI_ERROR_CANCELLED;
        int32_t held = colibri_session_length(session), parked = colibri_session_parked(session);
        *was_parked = parked > 0;
        ok &= held == HELD + progress.tokens_done && parked <= CHUNK;
        ok &= colibri_session_truncate(session, held, err, sizeof err) == COLIBRI_OK;
        ok &= colibri_session_parked(session) == parked;
        mates_ok &= mate == NULL || mate_step(mate, t);
        ok &= start(session, t, held, TOKENS) == COLIBRI_OK && finish(session, -1) == COLIBRI_OK;
    }
    *end = counters(engine);
    ok = ok && same_logits(session, t, TOKENS) && same_drafts(session, t, v->drafts);
    if (fault == 0)
        CHECK_MSG(mates_ok, "%s: %s: a decode step beside a stop after slice %d differs", t->dump->path,
                  v->name, (int)slices);
    colibri_session_close(mate);
    colibri_session_close(session);
    colibri_engine_close(engine);
    return ok;
}

static void stop_everywhere(const text *t, const variant *v)
{
    colibri_engine_snapshot_t whole, end;
    int finished = 0, parked, stops = 0, parks = 0, noticed = 0;
    CHECK_MSG(stopped_run(t, v, 0, -1, &finished, &parked, &whole), "%s: %s: undisturbed: %s", t->dump->path,
              v->name, err);
    finished = 0;
    for (int32_t slices = 0; !finished; slices += quick ? 17 : v->stride) {
        CHECK_MSG(stopped_run(t, v, 0, slices, &finished, &parked, &end),
                  "%s: %s: stopped after slice %d, it differs: %s", t->dump->path, v->name, (int)slices, err);
        stops++;
        parks += parked;
        if (v->mate)
            continue;
        CHECK_MSG(end.expert_lookups == whole.expert_lookups,
                  "%s: %s: stopped after slice %d, %lld experts were asked for in place of %lld",
                  t->dump->path, v->name, (int)slices, (long long)end.expert_lookups,
                  (long long)whole.expert_lookups);
        CHECK_MSG(end.expert_bytes_read == whole.expert_bytes_read,
                  "%s: %s: stopped after slice %d, %lld bytes were read in place of %lld", t->dump->path,
                  v->name, (int)slices, (long long)end.expert_bytes_read, (long long)whole.expert_bytes_read);
    }
    for (int32_t slices = 3; slices < 40 && !noticed; slices += 7)
        noticed = !stopped_run(t, v, CLB_FAULT_PARKED, slices, &finished, &parked, &end);
    CHECK_MSG(noticed, "%s: %s: a parked chunk that came back changed went unnoticed", t->dump->path,
              v->name);
    /* Only the first stop and those between two chunks find nothing to park. */
    CHECK_MSG(parks > 0 && (v->stride > 1 || quick || stops - parks <= stops / 10),
              "%s: %s: %d of %d stops were parked", t->dump->path, v->name, parks, stops);
    if (!quick && v->stride == 1)
        printf("%s: %s: %d slices\n", t->dump->path, v->name, stops - 1);
}

/* ---- what drops it, what does not ----------------------------------------------------------- */

/* A session with HELD tokens whose prefill up to `n` tokens is parked after a few slices. */
static colibri_session *parked_session(colibri_engine *engine, const text *t, int32_t n, int32_t slices)
{
    colibri_session *session = filled(engine, t, HELD);
    CHECK(start(session, t, HELD, n) == COLIBRI_OK);
    for (int32_t i = 0; i < slices; i++)
        CHECK(colibri_prefill_step(session, -1, NULL, err, sizeof err) == COLIBRI_OK);
    colibri_session_cancel(session);
    CHECK(colibri_prefill_step(session, 0, NULL, err, sizeof err) == COLIBRI_ERROR_CANCELLED);
    CHECK(colibri_session_parked(session) > 0 && colibri_session_length(session) == HELD);
    return session;
}

static void other_uses_drop_it(const text *t)
{
    colibri_engine_options o = options_of(2, DRAFTS);
    colibri_engine *engine = open_engine(t, &o);
    int32_t other[TOKENS], drafts[DRAFTS], n = 0, token = t->tokens[HELD], bad = -1;
    memcpy(other, t->tokens, sizeof other);
    other[HELD + 7] = (other[HELD + 7] + 1) % t->dump->geometry.vocab;
    colibri_session *s = parked_session(engine, t, TOKENS, 9);
    /* A refusal leaves it. */
    CHECK(colibri_prefill_start(s, &bad, 1, NULL, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_truncate(s, HELD + 1, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_session_parked(s) == CHUNK);
    /* Another token inside the chunk. */
    CHECK(colibri_prefill_start(s, other + HELD, TOKENS - HELD, NULL, err, sizeof err) == COLIBRI_OK);
    CHECK(finish(s, 0) == COLIBRI_OK && !same_logits(s, t, TOKENS));
    CHECK(colibri_session_truncate(s, HELD, err, sizeof err) == COLIBRI_OK);
    CHECK(start(s, t, HELD, TOKENS) == COLIBRI_OK && finish(s, 0) == COLIBRI_OK && same_logits(s, t, TOKENS));
    CHECK(same_drafts(s, t, DRAFTS));
    colibri_session_close(s);
    /* Fewer tokens than the chunk has; more than the prompt had. */
    s = parked_session(engine, t, TOKENS, 9);
    CHECK(start(s, t, HELD, HELD + CHUNK - 1) == COLIBRI_OK && colibri_session_parked(s) == 0);
    CHECK(finish(s, 0) == COLIBRI_OK && same_logits(s, t, HELD + CHUNK - 1));
    colibri_session_close(s);
    s = parked_session(engine, t, HELD + CHUNK - 3, 30);
    int64_t lookups = counters(engine).expert_lookups;
    CHECK(start(s, t, HELD, TOKENS) == COLIBRI_OK && finish(s, 0) == COLIBRI_OK && same_logits(s, t, TOKENS));
    int64_t resumed = counters(engine).expert_lookups - lookups;
    CHECK(same_drafts(s, t, DRAFTS));
    CHECK(colibri_session_truncate(s, HELD, err, sizeof err) == COLIBRI_OK);
    lookups = counters(engine).expert_lookups;
    CHECK(start(s, t, HELD, TOKENS) == COLIBRI_OK && finish(s, 0) == COLIBRI_OK);
    CHECK_MSG(resumed < counters(engine).expert_lookups - lookups, "a longer prompt did not resume");
    colibri_session_close(s);
    /* Decode, draft, truncation below. */
    s = parked_session(engine, t, TOKENS, 12);
    CHECK(colibri_decode(&s, &token, 1, err, sizeof err) == COLIBRI_OK && colibri_session_parked(s) == 0);
    CHECK(same_logits(s, t, HELD + 1));
    colibri_session_close(s);
    s = parked_session(engine, t, TOKENS, 12);
    CHECK(colibri_session_draft(s, token, DRAFTS, drafts, &n, err, sizeof err) == COLIBRI_OK && n == DRAFTS);
    CHECK(colibri_session_parked(s) == 0);
    colibri_session_close(s);
    s = parked_session(engine, t, TOKENS, 12);
    CHECK(colibri_session_truncate(s, HELD - 1, err, sizeof err) == COLIBRI_OK &&
          colibri_session_parked(s) == 0);
    CHECK(start(s, t, HELD - 1, TOKENS) == COLIBRI_OK && finish(s, 0) == COLIBRI_OK &&
          same_logits(s, t, TOKENS));
    CHECK(same_drafts(s, t, DRAFTS));
    colibri_session_close(s);
    CHECK(engine->n_chunks == 0 && engine->parked == NULL);
    colibri_engine_close(engine);
}

/* A session that shares the parked one's blocks writes into copies, and so does the parked one. */
static void a_fork_beside_a_parked_chunk_disturbs_neither(const text *t)
{
    colibri_engine_options o = options_of(2, DRAFTS);
    colibri_engine *engine = open_engine(t, &o);
    for (int32_t slices = 6; slices < 28; slices += 9) {
        colibri_session *s = parked_session(engine, t, TOKENS, slices), *fork = NULL;
        CHECK(colibri_session_create(engine, &fork, err, sizeof err) == COLIBRI_OK);
        CHECK(colibri_session_fork(s, HELD, fork, err, sizeof err) == COLIBRI_OK);
        CHECK(colibri_session_parked(s) > 0 && colibri_session_parked(fork) == 0);
        for (int i = 0; i < 3; i++)
            CHECK(mate_step(fork, t));
        CHECK(start(s, t, HELD, TOKENS) == COLIBRI_OK && finish(s, -1) == COLIBRI_OK);
        CHECK(same_logits(s, t, TOKENS) && same_drafts(s, t, DRAFTS));
        CHECK(mate_step(fork, t));
        colibri_session_close(s);
        colibri_session_close(fork);
    }
    colibri_engine_close(engine);
}

/* All logits asked for on resume: whatever phase it stopped in, every row must be there. */
static void logits_of_all_tokens_are_complete(const text *t)
{
    colibri_engine_options o = options_of(2, DRAFTS);
    o.prefill_chunk = TOKENS;
    colibri_engine *engine = open_engine(t, &o);
    int32_t vocab = t->dump->geometry.vocab, n = TOKENS - HELD;
    size_t bytes = (size_t)n * (size_t)vocab * sizeof(float);
    float *all = malloc(bytes), *before = malloc(bytes);
    int parked = 1, wrong = 0, stops = 0;
    for (int32_t slices = 1; parked; slices += quick ? 23 : 3) {
        colibri_session *s = filled(engine, t, HELD);
        int32_t status = colibri_prefill_start(s, t->tokens + HELD, n, before, err, sizeof err);
        colibri_prefill_progress progress = {0};
        for (int32_t i = 0; i < slices && status == COLIBRI_OK && !progress.finished; i++)
            status = colibri_prefill_step(s, -1, &progress, err, sizeof err);
        colibri_session_cancel(s);
        if (!progress.finished)
            colibri_prefill_step(s, 0, NULL, err, sizeof err);
        parked = colibri_session_parked(s) > 0;
        if (parked) {
            memset(all, 0, bytes);
            wrong += colibri_prefill_start(s, t->tokens + HELD, n, all, err, sizeof err) != COLIBRI_OK ||
                     finish(s, -1) != COLIBRI_OK ||
                     memcmp(all, t->logits + (int64_t)HELD * vocab, bytes) != 0 || !same_logits(s, t, TOKENS);
            stops++;
        }
        colibri_session_close(s);
    }
    CHECK_MSG(wrong == 0 && stops > 2, "%s: %d of %d resumed prefills lack logits", t->dump->path, wrong,
              stops);
    free(all);
    free(before);
    colibri_engine_close(engine);
}

static void memory_needed_elsewhere_drops_the_oldest(const text *t)
{
    colibri_engine_options o = options_of(0, 0);
    o.sessions = 2;
    colibri_engine *engine = open_engine(t, &o);
    colibri_session *a = parked_session(engine, t, TOKENS, 5), *b = parked_session(engine, t, TOKENS, 6);
    CHECK(engine->n_chunks == 2);
    colibri_session *c = filled(engine, t, 9);
    CHECK(colibri_session_parked(a) == 0 && colibri_session_parked(b) > 0);
    CHECK(start(b, t, HELD, TOKENS) == COLIBRI_OK && finish(b, -1) == COLIBRI_OK &&
          same_logits(b, t, TOKENS));
    CHECK(start(a, t, HELD, TOKENS) == COLIBRI_OK && finish(a, -1) == COLIBRI_OK &&
          same_logits(a, t, TOKENS));
    colibri_session_close(a);
    colibri_session_close(b);
    colibri_session_close(c);
    CHECK(engine->n_chunks == 0 && engine->parked == NULL && counters(engine).kv_bytes == 0);
    colibri_engine_close(engine);
}

/* ---- progress ------------------------------------------------------------------------------- */

typedef struct {
    double fraction;
    int64_t bytes_read, first_left;
    int wrong, slices;
} watched;

/* Slices up to `most` (-1 = all) with progress that may only grow. */
static void watch(colibri_session *session, int32_t most, watched *w)
{
    colibri_prefill_progress p = {0};
    for (int32_t i = 0; i != most && !p.finished; i++) {
        if (colibri_prefill_step(session, -1, &p, err, sizeof err) != COLIBRI_OK) {
            w->wrong++;
            return;
        }
        w->wrong += !(p.fraction >= w->fraction && p.fraction <= 1 && p.resumed <= p.fraction &&
                      p.bytes_read >= w->bytes_read && p.bytes_left >= 0);
        w->fraction = p.fraction;
        w->bytes_read = p.bytes_read;
        if (w->slices++ == 0)
            w->first_left = p.bytes_left;
    }
    w->wrong += p.finished && (p.fraction != 1 || p.bytes_left != 0);
}

static void progress_only_grows_and_counts_what_was_resumed(const text *t)
{
    colibri_engine_options o = options_of(2, DRAFTS);
    o.no_prefetch = 1;
    colibri_engine *engine = open_engine(t, &o);
    colibri_session *s = filled(engine, t, HELD);
    watched first = {0}, second = {0}, resident = {0};
    int64_t before = counters(engine).expert_bytes_read;
    CHECK(start(s, t, HELD, HELD + CHUNK) == COLIBRI_OK);
    watch(s, 18, &first);
    CHECK_MSG(first.wrong == 0 && first.fraction > 0 && first.fraction < 1, "%d steps of %d, up to %g",
              first.wrong, first.slices, first.fraction);
    colibri_session_cancel(s);
    CHECK(colibri_prefill_step(s, 0, NULL, err, sizeof err) == COLIBRI_ERROR_CANCELLED);
    CHECK(start(s, t, HELD, HELD + CHUNK) == COLIBRI_OK);
    second.fraction = first.fraction;
    watch(s, -1, &second);
    colibri_prefill_progress p = {0};
    CHECK_MSG(second.wrong == 0 && second.fraction == 1, "resumed: %d steps of %d, up to %g", second.wrong,
              second.slices, second.fraction);
    int64_t read = counters(engine).expert_bytes_read - before;
    /* Reads that were under way when it stopped are counted by whoever sees them arrive. */
    CHECK_MSG(first.bytes_read + second.bytes_read <= read && second.bytes_read > 0,
              "%lld and %lld bytes counted of %lld", (long long)first.bytes_read,
              (long long)second.bytes_read, (long long)read);
    CHECK_MSG(first.first_left > read / 3 && first.first_left < read * 3,
              "%lld bytes were expected, %lld read", (long long)first.first_left, (long long)read);
    /* In a longer prompt the parked chunk is a smaller share. */
    CHECK(colibri_session_truncate(s, HELD, err, sizeof err) == COLIBRI_OK);
    CHECK(start(s, t, HELD, HELD + CHUNK) == COLIBRI_OK);
    first.fraction = 0;
    first.bytes_read = 0;
    watch(s, 18, &first);
    CHECK(colibri_session_truncate(s, HELD, err, sizeof err) == COLIBRI_OK);
    CHECK(start(s, t, HELD, TOKENS) == COLIBRI_OK);
    CHECK(colibri_prefill_step(s, -1, &p, err, sizeof err) == COLIBRI_OK);
    CHECK(p.resumed > 0 && p.resumed < first.fraction && p.fraction >= p.resumed);
    colibri_session_close(s);
    colibri_engine_close(engine);
    o = options_of(0, 0);
    engine = open_engine(t, &o);
    s = filled(engine, t, HELD);
    CHECK(start(s, t, HELD, TOKENS) == COLIBRI_OK);
    watch(s, -1, &resident);
    CHECK(resident.wrong == 0 && resident.bytes_read == 0 && resident.first_left == 0);
    colibri_session_close(s);
    colibri_engine_close(engine);
}

/* ---- the disk ------------------------------------------------------------------------------- */

static void a_failed_read_parks(const text *t)
{
    char path[] = "/tmp/colibri-parked-XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0 && write(file, t->dump->bytes, t->dump->n_bytes) == (ssize_t)t->dump->n_bytes);
    colibri_engine_options o = options_of(2, DRAFTS);
    o.no_prefetch = 1;
    colibri_engine *engine = open_at(t->dump, path, &o);
    colibri_session *whole = filled(engine, t, HELD), *s = filled(engine, t, HELD);
    int64_t before = counters(engine).expert_lookups;
    CHECK(start(whole, t, HELD, TOKENS) == COLIBRI_OK && finish(whole, -1) == COLIBRI_OK);
    int64_t lookups = counters(engine).expert_lookups - before;
    before = counters(engine).expert_lookups;
    CHECK(start(s, t, HELD, TOKENS) == COLIBRI_OK);
    int32_t status = COLIBRI_OK;
    for (int i = 0; i < 25; i++)
        CHECK(colibri_prefill_step(s, -1, NULL, err, sizeof err) == COLIBRI_OK);
    CHECK(ftruncate(file, 4096) == 0);
    status = finish(s, -1);
    CHECK_MSG(status == COLIBRI_ERROR_IO && strstr(err, path) != NULL, "a file cut off: %d, %s", (int)status,
              err);
    CHECK(colibri_session_parked(s) > 0);
    CHECK(lseek(file, 0, SEEK_SET) == 0 &&
          write(file, t->dump->bytes, t->dump->n_bytes) == (ssize_t)t->dump->n_bytes);
    int32_t held = colibri_session_length(s);
    CHECK(start(s, t, held, TOKENS) == COLIBRI_OK && finish(s, -1) == COLIBRI_OK);
    CHECK_MSG(same_logits(s, t, TOKENS) && same_drafts(s, t, DRAFTS),
              "resumed after a failed read, it differs");
    CHECK_MSG(counters(engine).expert_lookups - before <= lookups + DRAFTS * 4,
              "after a failed read experts were asked for again");
    colibri_session_close(whole);
    colibri_session_close(s);
    colibri_engine_close(engine);
    close(file);
    unlink(path);
}

/* Reads hang while the gate is closed. */
static int64_t hold_read(void *context, int32_t file, int64_t offset, int64_t bytes, uint8_t *buffer,
                         int64_t result)
{
    (void)file, (void)offset, (void)bytes, (void)buffer;
    atomic_int *open = context;
    while (!atomic_load(open))
        nanosleep(&(struct timespec){0, 200000}, NULL);
    return result;
}

static void a_hanging_read_holds_nobody_up(const text *t)
{
    atomic_int open = 1;
    const clb_io_test_hooks hooks = {hold_read, &open};
    colibri_engine_options o = options_of(2, 0);
    o.io_mode = COLIBRI_IO_THREADS;
    colibri_engine *engine = open_engine(t, &o);
    clb_io_set_test_hooks(engine->store.io, &hooks);
    colibri_session *mate = filled(engine, t, 1), *s = filled(engine, t, HELD);
    CHECK(start(s, t, HELD, TOKENS) == COLIBRI_OK);
    colibri_prefill_progress progress = {0};
    int32_t status = COLIBRI_OK;
    int mates = 0, wrong = 0, cancels = 0;
    while (status == COLIBRI_OK && !progress.finished) {
        /* The step ends although the disk gives nothing; the mate's own reads come through. */
        atomic_store(&open, 0);
        status = colibri_prefill_step(s, 2, &progress, err, sizeof err);
        if (status == COLIBRI_OK && !progress.finished && mates % 8 == 5) {
            colibri_session_cancel(s);
            cancels += colibri_prefill_step(s, 2, &progress, err, sizeof err) == COLIBRI_ERROR_CANCELLED;
            wrong += start(s, t, colibri_session_length(s), TOKENS) != COLIBRI_OK;
        }
        atomic_store(&open, 1);
        wrong += !mate_step(mate, t);
        mates++;
        /* Two slots cannot hold what arrives for both, so the gate stays open for one slice. */
        if (status == COLIBRI_OK && !progress.finished)
            status = colibri_prefill_step(s, -1, &progress, err, sizeof err);
    }
    CHECK_MSG(status == COLIBRI_OK && same_logits(s, t, TOKENS), "beside a hanging disk it differs: %s", err);
    CHECK_MSG(wrong == 0 && mates > 8 && cancels > 0, "%d of %d steps beside it went wrong, %d cancels",
              wrong, mates, cancels);
    colibri_session_close(mate);
    colibri_session_close(s);
    colibri_engine_close(engine);
}

/* ---- all ------------------------------------------------------------------------------------ */

static void test_dump(const char *path)
{
    flatdump dump;
    if (flatdump_open(path, &dump, err, sizeof err) != 0) {
        CHECK_MSG(0, "%s: %s; make the dumps with python -m tests.oracle.flatdump build/oracle", path, err);
        return;
    }
    const flatdump_prompt *p = &dump.prompts[0];
    for (int i = 1; i < dump.n_prompts; i++)
        if (dump.prompts[i].n_prompt + dump.prompts[i].n_greedy > p->n_prompt + p->n_greedy)
            p = &dump.prompts[i];
    CHECK_MSG(dump.geometry.n_mtp_layers > 0 && p->n_prompt + p->n_greedy >= TOKENS,
              "%s: no MTP layer, or no prompt of %d tokens", path, TOKENS);
    text t = {&dump, p->tokens, NULL, {0}};
    t.logits = malloc((size_t)TOKENS * (size_t)dump.geometry.vocab * sizeof *t.logits);
    colibri_engine_options o = options_of(0, DRAFTS);
    colibri_engine *engine = open_engine(&t, &o);
    colibri_session *session = NULL;
    int32_t n = 0;
    CHECK(colibri_session_create(engine, &session, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_prefill_start(session, t.tokens, TOKENS, t.logits, err, sizeof err) == COLIBRI_OK);
    CHECK(finish(session, 0) == COLIBRI_OK);
    CHECK(colibri_session_draft(session, t.tokens[0], DRAFTS, t.drafts, &n, err, sizeof err) == COLIBRI_OK);
    CHECK(n == DRAFTS);
    colibri_session_close(session);
    colibri_engine_close(engine);
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        stop_everywhere(&t, &variants[i]);
    other_uses_drop_it(&t);
    a_fork_beside_a_parked_chunk_disturbs_neither(&t);
    logits_of_all_tokens_are_complete(&t);
    memory_needed_elsewhere_drops_the_oldest(&t);
    progress_only_grows_and_counts_what_was_resumed(&t);
    a_failed_read_parks(&t);
    a_hanging_read_holds_nobody_up(&t);
    free(t.logits);
    flatdump_close(&dump);
}

int main(int argc, char **argv)
{
    quick = getenv("COLIBRI_TEST_QUICK") != NULL;
    for (int i = 1; i < argc; i++)
        test_dump(argv[i]);
    if (argc == 1) {
        test_dump("build/oracle/glm_dsa.dump");
        test_dump("build/oracle/glm_gs64.dump");
    }
    return test_report();
}
