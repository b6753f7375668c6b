/* test_stream.c - where experts lie and whether drafts are used must not change a bit.
 *
 *     test_stream [DUMP...]     default: every GLM dump in build/oracle
 *
 * Against the resident engine (fast path, bf16 KV), for each dump with experts:
 *   streaming  1, 2, 8, all slots; every way of reading; with and without guesses; packed and plain
 *              layout; prefill in chunks, decode alone and with mates, slices between which another
 *              session decodes
 *   drafts     depths 1..3: the same tokens, greedy and seeded, resident and streaming
 *   usage      use counts known or not, cache warm or cold, shrunk in mid-run, trace on: the same bits
 *   counters   where experts were found, where they are and where time went, also seen by another thread
 *   faults     a byte that arrives wrong must be noticed; a file cut off in mid-run is a named error and
 *              the engine goes on once it is whole again
 * COLIBRI_TEST_QUICK=1 runs fewer combinations, for emulated processors and sanitizers.
 */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "colibri.h"
#include "fault.h"
#include "flatdump.h"
#include "test.h"

#define CONTEXT 256
#define GENERATED 48

static int quick;
static char err[512];

/* A model in one of its layouts: where it is read from. */
typedef struct {
    const char *path;
    const colibri_geometry *geometry;
    const colibri_tensor *tensors;
    int64_t n;
} source;

static colibri_engine_options defaults(void)
{
    return (colibri_engine_options){
        .struct_size = sizeof(colibri_engine_options), .context = CONTEXT, .threads = 2};
}

static colibri_engine *open_engine(const source *from, const colibri_engine_options *options)
{
    colibri_engine *engine = NULL;
    int32_t status = colibri_engine_open(options, from->geometry, &from->path, 1, from->tensors, from->n,
                                         &engine, err, sizeof err);
    CHECK_MSG(status == COLIBRI_OK, "%s: open: %s", from->path, err);
    return engine;
}

static colibri_session *filled(colibri_engine *engine, const int32_t *tokens, int32_t n, float *logits)
{
    colibri_session *session = NULL;
    colibri_prefill_progress progress = {0};
    int32_t status = colibri_session_create(engine, &session, err, sizeof err);
    if (status == COLIBRI_OK)
        status = colibri_prefill_start(session, tokens, n, logits, err, sizeof err);
    while (status == COLIBRI_OK && !progress.finished)
        status = colibri_prefill_step(session, 1, &progress, err, sizeof err);
    if (status == COLIBRI_OK)
        return session;
    colibri_session_close(session);
    return NULL;
}

/* All logits of a text: prefilled up to `start`, decoded from there beside `mates` other sessions.
 * 0 on failure. */
static int run(colibri_engine *engine, const flatdump *dump, const flatdump_prompt *p, int32_t start,
               int mates, float *out)
{
    int32_t vocab = dump->geometry.vocab, n = p->n_prompt + p->n_greedy;
    colibri_session *all[4] = {filled(engine, p->tokens, start, out)};
    int32_t tokens[4], status = all[0] == NULL ? COLIBRI_ERROR_IO : COLIBRI_OK;
    for (int i = 1; i <= mates && status == COLIBRI_OK; i++) {
        all[i] = filled(engine, p->tokens, 1 + i, NULL);
        status = all[i] == NULL ? COLIBRI_ERROR_IO : COLIBRI_OK;
    }
    for (int32_t row = start; row < n && status == COLIBRI_OK; row++) {
        for (int i = 0; i <= mates; i++)
            tokens[i] = p->tokens[(row + i) % n];
        tokens[0] = p->tokens[row];
        status = colibri_decode(all, tokens, mates + 1, err, sizeof err);
        if (status == COLIBRI_OK)
            status = colibri_session_logits(all[0], out + (int64_t)row * vocab, vocab, err, sizeof err);
    }
    for (int i = 0; i < 4; i++)
        if (i <= mates)
            colibri_session_close(all[i]);
    return status == COLIBRI_OK;
}

typedef struct {
    const char *name;
    int32_t slots, chunk, io_mode, buffered, no_prefetch, threads, mates;
} variant;

static const variant variants[] = {
    {"one slot", 1, 0, 0, 0, 0, 1, 0},
    {"two slots", 2, 7, 0, 0, 0, 2, 0},
    {"eight slots", 8, 0, 0, 0, 0, 3, 2},
    {"all slots", 1 << 20, 16, 0, 0, 0, 2, 3},
    {"no guesses", 3, 0, 0, 0, 1, 2, 1},
    {"threads", 5, 0, COLIBRI_IO_THREADS, 0, 0, 2, 0},
    {"threads through the page cache", 2, 3, COLIBRI_IO_THREADS, 1, 0, 1, 1},
    {"buffered", 6, 0, COLIBRI_IO_BUFFERED, 0, 0, 2, 0},
};

static colibri_engine_options options_of(const variant *v)
{
    colibri_engine_options o = defaults();
    o.expert_slots = v->slots;
    o.prefill_chunk = v->chunk;
    o.io_mode = v->io_mode;
    o.io_buffered = v->buffered;
    o.no_prefetch = v->no_prefetch;
    o.threads = v->threads;
    return o;
}

static const flatdump_prompt *longest(const flatdump *dump)
{
    const flatdump_prompt *best = &dump->prompts[0];
    for (int i = 1; i < dump->n_prompts; i++)
        if (dump->prompts[i].n_prompt > best->n_prompt)
            best = &dump->prompts[i];
    return best;
}

static void test_placement(const flatdump *dump, const source *from, const float *expected, float *got)
{
    const flatdump_prompt *p = longest(dump);
    int32_t n = p->n_prompt + p->n_greedy;
    size_t bytes = (size_t)n * (size_t)dump->geometry.vocab * sizeof *got;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const variant *v = &variants[i];
        if (quick && i % 3 != 0)
            continue;
        colibri_engine_options o = options_of(v);
        colibri_engine *engine = open_engine(from, &o);
        if (engine == NULL)
            continue;
        int ok = run(engine, dump, p, n / 2, v->mates, got);
        CHECK_MSG(ok, "%s: %s: %s", from->path, v->name, err);
        CHECK_MSG(ok && memcmp(expected, got, bytes) == 0, "%s: %s: logits differ from the resident engine's",
                  from->path, v->name);
        colibri_engine_snapshot_t s = {.struct_size = sizeof s};
        colibri_engine_snapshot(engine, &s);
        CHECK_MSG(s.streaming && s.expert_lookups > 0 && s.expert_bytes_read > 0,
                  "%s: %s: the experts did not come from disk", from->path, v->name);
        colibri_engine_close(engine);
    }
}

/* A prefill in slices with another session decoding between them. */
static void test_interleaved(const flatdump *dump, const source *from, const float *expected)
{
    const flatdump_prompt *p = longest(dump);
    int32_t vocab = dump->geometry.vocab, n = p->n_prompt + p->n_greedy, at = 1;
    colibri_engine_options o = defaults();
    o.expert_slots = 3;
    o.prefill_chunk = 5;
    colibri_engine *engine = open_engine(from, &o);
    if (engine == NULL)
        return;
    float *logits = malloc((size_t)n * (size_t)vocab * sizeof *logits);
    colibri_session *slow = NULL, *fast = filled(engine, p->tokens, at, NULL);
    CHECK(colibri_session_create(engine, &slow, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_prefill_start(slow, p->tokens, n, logits, err, sizeof err) == COLIBRI_OK);
    colibri_prefill_progress progress = {0};
    long wrong = 0, steps = 0;
    float *one = malloc((size_t)vocab * sizeof *one);
    while (!progress.finished && colibri_prefill_step(slow, 1, &progress, err, sizeof err) == COLIBRI_OK) {
        steps++;
        if (at >= n || fast == NULL)
            continue;
        wrong += colibri_decode(&fast, &p->tokens[at], 1, err, sizeof err) != COLIBRI_OK;
        wrong += colibri_session_logits(fast, one, vocab, err, sizeof err) != COLIBRI_OK;
        wrong += memcmp(one, expected + (int64_t)at * vocab, (size_t)vocab * sizeof *one) != 0;
        at++;
    }
    CHECK_MSG(progress.finished && memcmp(logits, expected, (size_t)n * (size_t)vocab * sizeof *logits) == 0,
              "%s: a prefill interrupted by decode steps differs", from->path);
    CHECK_MSG(wrong == 0, "%s: %ld decode steps between prefill slices differ", from->path, wrong);
    CHECK(steps > 0);
    colibri_session_close(fast);
    colibri_session_close(slow);
    colibri_engine_close(engine);
    free(one);
    free(logits);
}

/* ---- usage --------------------------------------------------------------------------------- */

static int64_t n_counts(const flatdump *dump)
{
    return ((int64_t)dump->geometry.n_layers + dump->geometry.n_mtp_layers) * dump->geometry.n_experts;
}

static int warm_up(colibri_engine *engine)
{
    int32_t done = 0;
    for (int i = 0; i < 100000 && !done; i++)
        if (colibri_engine_warm(engine, 1, &done, err, sizeof err) != COLIBRI_OK)
            return 0;
    return done;
}

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static colibri_engine_snapshot_t counters(const colibri_engine *engine)
{
    colibri_engine_snapshot_t s = {.struct_size = sizeof s};
    colibri_engine_snapshot(engine, &s);
    return s;
}

/* What an engine has learnt, told to another one: the same bits, fewer reads once it is warm. */
static void test_usage(const flatdump *dump, const source *from, const float *expected, float *got)
{
    const flatdump_prompt *p = longest(dump);
    int32_t n = p->n_prompt + p->n_greedy, n_experts = dump->geometry.n_experts;
    size_t bytes = (size_t)n * (size_t)dump->geometry.vocab * sizeof *got;
    int64_t *counts = calloc((size_t)n_counts(dump), sizeof *counts), total = 0;
    colibri_engine_options o = defaults();
    o.expert_slots = 6;
    colibri_engine *engine = open_engine(from, &o);
    CHECK(run(engine, dump, p, n / 2, 0, got));
    CHECK(colibri_engine_usage(engine, counts, n_counts(dump) - 1, err, sizeof err) == COLIBRI_ERROR_INVALID);
    CHECK(colibri_engine_usage(engine, counts, n_counts(dump), err, sizeof err) == COLIBRI_OK);
    for (int64_t i = 0; i < n_counts(dump); i++) {
        total += counts[i];
        int64_t layer = i / n_experts;
        if (layer >= dump->geometry.n_layers || !dump->geometry.layer_sparse[layer])
            CHECK_MSG(counts[i] == 0, "%s: layer %lld without experts was used", from->path,
                      (long long)layer);
    }
    CHECK_MSG(total >= n - n / 2, "%s: %lld uses counted", from->path, (long long)total);
    colibri_engine_close(engine);

    for (int warm = 0; warm < 2; warm++) {
        engine = open_engine(from, &o);
        CHECK(colibri_engine_set_usage(engine, counts, n_counts(dump), err, sizeof err) == COLIBRI_OK);
        CHECK(!warm || warm_up(engine));
        colibri_engine_snapshot_t s = counters(engine);
        CHECK_MSG((s.expert_bytes_read > 0) == warm && s.expert_misses == 0, "%s: warming read %lld bytes",
                  from->path, (long long)s.expert_bytes_read);
        CHECK_MSG(run(engine, dump, p, n / 2, 0, got) && memcmp(expected, got, bytes) == 0,
                  "%s: use counts%s changed the logits: %s", from->path, warm ? " and a warm cache" : "",
                  err);
        colibri_engine_close(engine);
    }
    /* The test can fail: an expert that warming damages shows. */
    o.fault = CLB_FAULT_WARM_BYTE;
    engine = open_engine(from, &o);
    CHECK(colibri_engine_set_usage(engine, counts, n_counts(dump), err, sizeof err) == COLIBRI_OK);
    CHECK(warm_up(engine) && run(engine, dump, p, 1, 0, got));
    CHECK_MSG(memcmp(expected, got, bytes) != 0, "%s: a damaged expert of a warm cache went unnoticed",
              from->path);
    colibri_engine_close(engine);
    o.fault = 0;

    /* R173: experts known to be hot that nobody asks for any more leave no slot unused. */
    for (int64_t i = 0; i < n_counts(dump); i++)
        counts[i] = counts[i] > 0 ? 0 : 1000000;
    engine = open_engine(from, &o);
    CHECK(colibri_engine_set_usage(engine, counts, n_counts(dump), err, sizeof err) == COLIBRI_OK);
    CHECK_MSG(run(engine, dump, p, n / 2, 0, got) && memcmp(expected, got, bytes) == 0,
              "%s: wrong use counts changed the logits", from->path);
    colibri_engine_snapshot_t s = counters(engine);
    CHECK_MSG(s.cached_experts == s.expert_slots, "%s: %d of %d slots are used", from->path,
              (int)s.cached_experts, (int)s.expert_slots);
    colibri_engine_close(engine);
    free(counts);
}

/* R154: a cache made smaller in mid-run stays so, and answers stay the same. */
/* Looks at everything that any thread may look at, until told to stop. */
typedef struct {
    const colibri_engine *engine;
    int64_t n;
    atomic_int stop;
    _Atomic int64_t looks;
    int64_t wrong;
} onlooker;

static void *look_on(void *context)
{
    onlooker *o = context;
    char text[256];
    uint8_t *tiers = malloc((size_t)o->n);
    uint32_t *asked = malloc((size_t)o->n * sizeof *asked), *before = calloc((size_t)o->n, sizeof *before);
    while (!atomic_load(&o->stop)) {
        o->wrong += colibri_engine_experts(o->engine, tiers, asked, o->n, text, sizeof text) != COLIBRI_OK;
        for (int64_t i = 0; i < o->n; i++) {
            o->wrong += tiers[i] > COLIBRI_TIER_READING && tiers[i] != COLIBRI_TIER_NONE;
            o->wrong += asked[i] < before[i];
            before[i] = asked[i];
        }
        counters(o->engine);
        atomic_fetch_add(&o->looks, 1);
    }
    free(tiers);
    free(asked);
    free(before);
    return NULL;
}

static int64_t sum_of(const int64_t *values, int32_t n)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += values[i];
    return sum;
}

/* The counters of one engine after a run, beside what must hold between them. */
static void check_counters(const colibri_engine *engine, int64_t n, int32_t n_experts)
{
    colibri_engine_snapshot_t s = counters(engine);
    uint8_t *tiers = malloc((size_t)n);
    uint32_t *asked = malloc((size_t)n * sizeof *asked);
    int64_t *uses = malloc((size_t)n * sizeof *uses);
    CHECK(colibri_engine_experts(engine, tiers, asked, n, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_engine_usage(engine, uses, n, err, sizeof err) == COLIBRI_OK);
    int64_t in_ram = 0, all_asked = 0, none = 0;
    for (int64_t i = 0; i < n; i++) {
        in_ram += tiers[i] == COLIBRI_TIER_RAM || tiers[i] == COLIBRI_TIER_READING;
        none += tiers[i] == COLIBRI_TIER_NONE;
        all_asked += asked[i];
        CHECK((int64_t)asked[i] >= uses[i]);
        CHECK(tiers[i] != COLIBRI_TIER_NONE || asked[i] == 0);
        CHECK((tiers[i] == COLIBRI_TIER_NONE) == (tiers[i / n_experts * n_experts] == COLIBRI_TIER_NONE));
    }
    CHECK_MSG(in_ram == s.cached_experts, "%lld experts in memory, %lld counted", (long long)in_ram,
              (long long)s.cached_experts);
    CHECK(none < n);
    CHECK(all_asked == s.expert_lookups);
    CHECK_MSG(sum_of(s.found, 10) == s.expert_lookups, "%lld found of %lld", (long long)sum_of(s.found, 10),
              (long long)s.expert_lookups);
    const int64_t *prefill = s.found, *decode = s.found + 5;
    CHECK(sum_of(prefill, 5) > 0 && sum_of(decode, 5) > 0);
    if (s.streaming) {
        CHECK(prefill[COLIBRI_FOUND_RESIDENT] == 0 && decode[COLIBRI_FOUND_RESIDENT] == 0);
        CHECK(prefill[COLIBRI_FOUND_DISK] + decode[COLIBRI_FOUND_DISK] >= s.expert_misses);
    } else {
        CHECK(prefill[COLIBRI_FOUND_RESIDENT] + decode[COLIBRI_FOUND_RESIDENT] == s.expert_lookups);
        CHECK(s.time_ns[COLIBRI_TIME_DISK] == 0 && s.time_ns[5 + COLIBRI_TIME_DISK] == 0);
    }
    CHECK_MSG(s.time_ns[COLIBRI_TIME_DISK] + s.time_ns[5 + COLIBRI_TIME_DISK] == s.disk_wait_ns,
              "waited %lld and %lld of %lld ns", (long long)s.time_ns[0], (long long)s.time_ns[5],
              (long long)s.disk_wait_ns);
    for (int32_t phase = 0; phase < 2; phase++)
        for (int32_t kind = COLIBRI_TIME_EXPERTS; kind <= COLIBRI_TIME_OTHER; kind++)
            CHECK_MSG(s.time_ns[phase * 5 + kind] > 0, "phase %d kind %d", phase, kind);
    free(tiers);
    free(asked);
    free(uses);
}

static void test_counters(const flatdump *dump, const source *from, float *got)
{
    const flatdump_prompt *p = longest(dump);
    const int32_t slots[] = {0, 2, 8, 1 << 20};
    int64_t n = n_counts(dump);
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        colibri_engine_options o = defaults();
        o.expert_slots = slots[i];
        o.no_prefetch = i == 1;
        colibri_engine *engine = open_engine(from, &o);
        onlooker other = {.engine = engine, .n = n};
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, look_on, &other) == 0);
        // On a busy machine the run may be over before the thread has begun.
        while (atomic_load(&other.looks) == 0)
            sched_yield();
        double start = now_seconds();
        CHECK(run(engine, dump, p, p->n_prompt / 2, i % 2 == 0 ? 2 : 0, got));
        double took = now_seconds() - start;
        atomic_store(&other.stop, 1);
        pthread_join(thread, NULL);
        CHECK(other.wrong == 0);
        check_counters(engine, n, dump->geometry.n_experts);
        colibri_engine_snapshot_t s = counters(engine);
        CHECK_MSG((double)sum_of(s.time_ns, 10) * 1e-9 <= took, "%f s booked of %f",
                  (double)sum_of(s.time_ns, 10) * 1e-9, took);
        if (o.no_prefetch)
            CHECK(s.found[COLIBRI_FOUND_GUESSED] + s.found[5 + COLIBRI_FOUND_GUESSED] == 0);
        uint8_t tier;
        uint32_t asked;
        CHECK(colibri_engine_experts(engine, &tier, NULL, n - 1, err, sizeof err) == COLIBRI_ERROR_INVALID);
        CHECK(colibri_engine_experts(engine, NULL, &asked, n + 1, err, sizeof err) == COLIBRI_ERROR_INVALID);
        CHECK(colibri_engine_experts(engine, NULL, NULL, n, err, sizeof err) == COLIBRI_ERROR_INVALID);
        CHECK(colibri_engine_experts(NULL, &tier, NULL, n, err, sizeof err) == COLIBRI_ERROR_INVALID);
        CHECK(strstr(err, "places of experts") != NULL);
        colibri_engine_close(engine);
    }
}

/* What was loaded in advance is told apart from what an earlier request left (R188). */
static void test_found_warm(const flatdump *dump, const source *from, float *got)
{
    const flatdump_prompt *p = longest(dump);
    int64_t n = n_counts(dump), *learnt = malloc((size_t)n * sizeof *learnt);
    colibri_engine_options o = defaults();
    o.expert_slots = 1 << 20;
    colibri_engine *engine = open_engine(from, &o);
    for (int64_t i = 0; i < n; i++)
        learnt[i] = 1;
    CHECK(colibri_engine_set_usage(engine, learnt, n, err, sizeof err) == COLIBRI_OK);
    CHECK(warm_up(engine));
    CHECK(run(engine, dump, p, p->n_prompt, 0, got));
    colibri_engine_snapshot_t s = counters(engine);
    int64_t warm = s.found[COLIBRI_FOUND_WARM] + s.found[5 + COLIBRI_FOUND_WARM];
    CHECK_MSG(warm > 0 && s.found[5 + COLIBRI_FOUND_WARM] > 0, "%lld found warm", (long long)warm);
    int64_t guessed = s.found[COLIBRI_FOUND_GUESSED] + s.found[5 + COLIBRI_FOUND_GUESSED];
    CHECK_MSG(warm + guessed + s.found[COLIBRI_FOUND_DISK] + s.found[5 + COLIBRI_FOUND_DISK] +
                      s.found[COLIBRI_FOUND_CACHED] + s.found[5 + COLIBRI_FOUND_CACHED] ==
                  s.expert_lookups,
              "%lld lookups", (long long)s.expert_lookups);
    free(learnt);
    colibri_engine_close(engine);
}

static void test_shrink(const flatdump *dump, const source *from, const float *expected, float *got)
{
    const flatdump_prompt *p = longest(dump);
    int32_t n = p->n_prompt + p->n_greedy;
    size_t bytes = (size_t)n * (size_t)dump->geometry.vocab * sizeof *got;
    colibri_engine_options o = defaults();
    o.expert_slots = 12;
    colibri_engine *engine = open_engine(from, &o);
    CHECK(run(engine, dump, p, n / 2, 0, got));
    colibri_engine_snapshot_t before = counters(engine);
    CHECK(colibri_engine_shrink(engine, before.expert_bytes / 2, err, sizeof err) == COLIBRI_OK);
    colibri_engine_snapshot_t after = counters(engine);
    CHECK_MSG(after.expert_bytes <= before.expert_bytes / 2 &&
                  after.expert_slots <= before.expert_slots / 2 && after.weight_bytes < before.weight_bytes,
              "%s: %lld bytes of experts remain", from->path, (long long)after.expert_bytes);
    for (int round = 0; round < 3; round++) {
        CHECK_MSG(run(engine, dump, p, n / 2, round, got) && memcmp(expected, got, bytes) == 0,
                  "%s: a smaller cache changed the logits: %s", from->path, err);
        colibri_engine_snapshot_t s = counters(engine);
        CHECK_MSG(s.cached_experts <= after.expert_slots && s.expert_bytes == after.expert_bytes,
                  "%s: slots crept back: %d of %d", from->path, (int)s.cached_experts,
                  (int)after.expert_slots);
    }
    CHECK(colibri_engine_shrink(engine, 0, err, sizeof err) == COLIBRI_OK);
    CHECK(run(engine, dump, p, n / 2, 0, got) && memcmp(expected, got, bytes) == 0);
    colibri_engine_close(engine);
    o.expert_slots = 0;
    engine = open_engine(from, &o);
    CHECK(colibri_engine_shrink(engine, 1, err, sizeof err) == COLIBRI_ERROR_INVALID);
    colibri_engine_close(engine);
}

/* Recording changes nothing, and what it records can be replayed. A full ring loses, and says so. */
static void test_trace(const flatdump *dump, const source *from, const float *expected, float *got)
{
    const flatdump_prompt *p = longest(dump);
    int32_t n = p->n_prompt + p->n_greedy, steps = n - n / 2;
    size_t bytes = (size_t)n * (size_t)dump->geometry.vocab * sizeof *got;
    int64_t room = 1 << 20, words = 0, lost = 0;
    int32_t *records = malloc((size_t)room * sizeof *records);
    for (int slots = 0; slots < 5; slots += 4) {
        colibri_engine_options o = defaults();
        o.expert_slots = slots;
        colibri_engine *engine = open_engine(from, &o);
        CHECK(colibri_engine_trace(engine, room, err, sizeof err) == COLIBRI_OK);
        CHECK(run(engine, dump, p, n / 2, 0, got) && memcmp(expected, got, bytes) == 0);
        CHECK(colibri_engine_trace_read(engine, records, room, &words, &lost, err, sizeof err) == COLIBRI_OK);
        CHECK_MSG(words > 0 && lost == 0, "%s: %lld words, %lld lost: %s", from->path, (long long)words,
                  (long long)lost, err);
        int32_t decoded = 0, last = -1;
        for (int64_t at = 0; at < words; at += 4 + records[at + 3])
            if (records[at + 2] == 1 && records[at] != last) {
                CHECK(records[at + 3] == dump->geometry.experts_per_token);
                last = records[at];
                decoded++;
            }
        CHECK_MSG(decoded == steps, "%s: %d of %d steps recorded", from->path, (int)decoded, (int)steps);
        const colibri_replay_options options = {.struct_size = sizeof options,
                                                .n_layers = dump->geometry.n_layers,
                                                .n_experts = dump->geometry.n_experts,
                                                .slots = 8};
        colibri_replay_result result = {.struct_size = sizeof result};
        CHECK_MSG(colibri_policy_replay(&options, records, words, &result, err, sizeof err) == COLIBRI_OK &&
                      result.lookups > 0,
                  "%s: replay: %s", from->path, err);
        CHECK(colibri_engine_trace(engine, 16, err, sizeof err) == COLIBRI_OK);
        CHECK(run(engine, dump, p, n / 2, 0, got) && memcmp(expected, got, bytes) == 0);
        CHECK(colibri_engine_trace_read(engine, records, room, &words, &lost, err, sizeof err) == COLIBRI_OK);
        CHECK(words <= 16 && lost > 0);
        CHECK(colibri_engine_trace(engine, 0, err, sizeof err) == COLIBRI_OK);
        CHECK(run(engine, dump, p, n / 2, 0, got));
        CHECK(colibri_engine_trace_read(engine, records, room, &words, &lost, err, sizeof err) == COLIBRI_OK);
        CHECK(words == 0 && lost == 0);
        colibri_engine_close(engine);
    }
    free(records);
}

/* ---- drafts -------------------------------------------------------------------------------- */

/* Generates GENERATED tokens with drafts of the given depth. Returns how many drafts were accepted, -1 on
 * failure. */
static int generate(colibri_engine *engine, const flatdump_prompt *p, int32_t depth,
                    const colibri_sampling *sampling, int32_t *out)
{
    colibri_session *session = filled(engine, p->tokens, p->n_prompt, NULL);
    int32_t next, n = 0, accepted = 0;
    int32_t status = session == NULL ? COLIBRI_ERROR_IO
                                     : colibri_session_sample(session, sampling, &next, err, sizeof err);
    while (status == COLIBRI_OK && n < GENERATED) {
        int32_t step[4] = {next}, drafts = 0, length = colibri_session_length(session), kept = 0;
        if (depth > 0)
            status = colibri_session_draft(session, next, depth, step + 1, &drafts, err, sizeof err);
        int32_t count = 1 + drafts;
        if (status == COLIBRI_OK)
            status = colibri_decode_many(&session, step, &count, 1, err, sizeof err);
        out[n++] = next;
        while (status == COLIBRI_OK) {
            status = colibri_session_sample_at(session, length + 1 + kept, sampling, &next, err, sizeof err);
            if (status != COLIBRI_OK || kept == drafts || next != step[1 + kept])
                break;
            if (n < GENERATED)
                out[n++] = next;
            kept++;
            accepted++;
        }
        if (status == COLIBRI_OK)
            status = colibri_session_truncate(session, length + 1 + kept, err, sizeof err);
    }
    colibri_session_close(session);
    return status == COLIBRI_OK ? accepted : -1;
}

static void test_drafts(const flatdump *dump, const source *from)
{
    static const float temperatures[] = {0, 0.1f, 1.0f};
    const flatdump_prompt *p = longest(dump);
    int accepted = 0;
    for (size_t t = 0; t < sizeof temperatures / sizeof *temperatures; t++) {
        const colibri_sampling sampling = {
            .struct_size = sizeof sampling, .temperature = temperatures[t], .top_p = 0.95f, .seed = 11};
        int32_t expected[GENERATED + 4], got[GENERATED + 4];
        colibri_engine_options o = defaults();
        colibri_engine *plain = open_engine(from, &o);
        CHECK(generate(plain, p, 0, &sampling, expected) >= 0);
        colibri_engine_close(plain);
        for (int32_t depth = 1; depth <= 3; depth++)
            for (int streaming = 0; streaming < 2; streaming++) {
                if (quick && (depth == 2 || t == 1))
                    continue;
                o = defaults();
                o.drafts = depth;
                o.expert_slots = streaming ? 4 : 0;
                o.prefill_chunk = streaming ? 9 : 0;
                colibri_engine *engine = open_engine(from, &o);
                int result = generate(engine, p, depth, &sampling, got);
                CHECK_MSG(result >= 0, "%s: drafts: %s", from->path, err);
                CHECK_MSG(result >= 0 && memcmp(expected, got, GENERATED * sizeof *got) == 0,
                          "%s: depth %d, temperature %g, %s: drafts changed the text", from->path, (int)depth,
                          temperatures[t], streaming ? "streaming" : "resident");
                accepted += result > 0 ? result : 0;
                colibri_engine_close(engine);
            }
    }
    printf("%s: %d drafts accepted\n", from->path, accepted);
}

/* ---- faults -------------------------------------------------------------------------------- */

static void test_wrong_byte(const flatdump *dump, const source *from, const float *expected, float *got)
{
    const flatdump_prompt *p = longest(dump);
    int32_t n = p->n_prompt + p->n_greedy;
    colibri_engine_options o = defaults();
    o.expert_slots = 4;
    o.fault = CLB_FAULT_EXPERT_BYTE;
    colibri_engine *engine = open_engine(from, &o);
    CHECK_MSG(run(engine, dump, p, n / 2, 0, got) &&
                  memcmp(expected, got, (size_t)n * (size_t)dump->geometry.vocab * sizeof *got) != 0,
              "%s: an expert that arrived wrong went unnoticed", from->path);
    colibri_engine_close(engine);
}

/* R152, R162: the file shrinks while it is in use and is put back. */
static void test_cut_off(const flatdump *dump, const source *from, const float *expected, float *got)
{
    const flatdump_prompt *p = longest(dump);
    int32_t n = p->n_prompt + p->n_greedy;
    char path[] = "/tmp/colibri-stream-XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0 && write(file, dump->bytes, dump->n_bytes) == (ssize_t)dump->n_bytes);
    source copy = *from;
    copy.path = path;
    colibri_engine_options o = defaults();
    o.expert_slots = 2;
    colibri_engine *engine = open_engine(&copy, &o);
    CHECK(ftruncate(file, 4096) == 0);
    CHECK_MSG(!run(engine, dump, p, n / 2, 0, got), "%s: reading a file that was cut off succeeded",
              from->path);
    CHECK_MSG(strstr(err, path) != NULL, "the message does not name the file: %s", err);
    CHECK(lseek(file, 0, SEEK_SET) == 0 && write(file, dump->bytes, dump->n_bytes) == (ssize_t)dump->n_bytes);
    CHECK_MSG(run(engine, dump, p, n / 2, 0, got) &&
                  memcmp(expected, got, (size_t)n * (size_t)dump->geometry.vocab * sizeof *got) == 0,
              "%s: after the file was whole again: %s", from->path, err);
    colibri_engine_close(engine);
    close(file);
    unlink(path);
}

/* A budget below what the dense part needs is refused with numbers; one in between streams. */
static void test_budget(const flatdump *dump, const source *from, const float *expected, float *got)
{
    const flatdump_prompt *p = longest(dump);
    int32_t n = p->n_prompt + p->n_greedy;
    colibri_engine_options o = defaults();
    o.prefill_chunk = 16;
    colibri_engine *engine = open_engine(from, &o);
    colibri_engine_snapshot_t s = {.struct_size = sizeof s};
    colibri_engine_snapshot(engine, &s);
    CHECK(!s.streaming);
    colibri_engine_close(engine);
    o.memory_budget = 1000;
    engine = NULL;
    CHECK(colibri_engine_open(&o, from->geometry, &from->path, 1, from->tensors, from->n, &engine, err,
                              sizeof err) == COLIBRI_ERROR_MEMORY);
    CHECK_MSG(strstr(err, "budget") != NULL && strstr(err, "GB") != NULL, "the refusal gives no numbers: %s",
              err);
    colibri_plan plan = {.struct_size = sizeof plan};
    CHECK(colibri_engine_plan(&o, from->geometry, from->tensors, from->n, &plan, err, sizeof err) ==
          COLIBRI_OK);
    CHECK(!plan.fits && plan.largest_context == 0 && plan.most_sessions == 0);
    /* One byte below what the plan names is refused, that much opens. */
    o.memory_budget = plan.least_budget - 1;
    CHECK(colibri_engine_open(&o, from->geometry, &from->path, 1, from->tensors, from->n, &engine, err,
                              sizeof err) == COLIBRI_ERROR_MEMORY);
    o.memory_budget = plan.least_budget;
    engine = open_engine(from, &o);
    colibri_engine_close(engine);
    o.memory_budget = plan.resident_budget;
    s = (colibri_engine_snapshot_t){.struct_size = sizeof s};
    engine = open_engine(from, &o);
    if (engine != NULL)
        colibri_engine_snapshot(engine, &s);
    CHECK(engine != NULL && !s.streaming);
    colibri_engine_close(engine);
    engine = NULL;
    /* From there up, the first budget that opens must stream, hold, and answer the same. */
    int opened = 0;
    for (int64_t budget = 1 << 18; budget < INT64_C(1) << 32 && !opened; budget += budget / 8) {
        o.memory_budget = budget;
        if (colibri_engine_open(&o, from->geometry, &from->path, 1, from->tensors, from->n, &engine, err,
                                sizeof err) != COLIBRI_OK)
            continue;
        opened = 1;
        CHECK_MSG(run(engine, dump, p, n / 2, 0, got) &&
                      memcmp(expected, got, (size_t)n * (size_t)dump->geometry.vocab * sizeof *got) == 0,
                  "%s: budget %lld: %s", from->path, (long long)budget, err);
        s = (colibri_engine_snapshot_t){.struct_size = sizeof s};
        colibri_engine_snapshot(engine, &s);
        CHECK_MSG(s.weight_bytes + s.kv_bytes + s.scratch_bytes <= budget,
                  "%s: %lld bytes held under a budget of %lld", from->path,
                  (long long)(s.weight_bytes + s.kv_bytes + s.scratch_bytes), (long long)budget);
        colibri_engine_close(engine);
    }
    CHECK(opened);
}

/* ---- packed layout ------------------------------------------------------------------------- */

/* Writes the dump's tensors packed, experts as one page-aligned range each, into a file of its own. */
static int pack(const flatdump *dump, char *path, colibri_tensor *tensors)
{
    int file = mkstemp(path);
    int64_t end = 0;
    for (int64_t i = 0; i < dump->n_tensors; i++) {
        colibri_tensor *t = &tensors[i];
        *t = dump->tensors[i];
        int64_t bytes = colibri_weight_packed_bytes(t->format, t->group, t->rows, t->cols);
        uint8_t *packed = malloc((size_t)bytes);
        const void *scales = t->scale_file >= 0 ? dump->bytes + t->scale_offset : NULL;
        if (colibri_weight_pack(t->format, t->group, t->rows, t->cols, dump->bytes + t->offset, t->bytes,
                                scales, t->scale_file >= 0 ? t->scale_bytes : 0, packed, bytes, err,
                                sizeof err) != COLIBRI_OK)
            return -1;
        if (strstr(t->name, "gate_proj") != NULL || strstr(t->name, "mlp.experts.") == NULL)
            end = (end + 4095) / 4096 * 4096;
        t->layout = COLIBRI_LAYOUT_PACKED;
        t->offset = end;
        t->bytes = bytes;
        t->scale_file = -1;
        t->scale_offset = t->scale_bytes = 0;
        if (pwrite(file, packed, (size_t)bytes, end) != (ssize_t)bytes)
            return -1;
        end += bytes;
        free(packed);
    }
    close(file);
    return 0;
}

/* gate, up, down of an expert must follow each other: the order in which a container lists them does not. */
static int by_expert(const void *a, const void *b)
{
    static const char *const order[] = {"gate_proj", "up_proj", "down_proj"};
    const colibri_tensor *x = a, *y = b;
    const char *m = strstr(x->name, "mlp.experts."), *n = strstr(y->name, "mlp.experts.");
    if (m == NULL || n == NULL)
        return m != NULL ? 1 : n != NULL ? -1 : strcmp(x->name, y->name);
    size_t lx = (size_t)(strrchr(x->name, '_') - x->name), ly = (size_t)(strrchr(y->name, '_') - y->name);
    while (x->name[lx] != '.')
        lx--;
    while (y->name[ly] != '.')
        ly--;
    int c = strncmp(x->name, y->name, lx < ly ? lx : ly);
    if (c != 0 || lx != ly)
        return c != 0 ? c : lx < ly ? -1 : 1;
    int px = 0, py = 0;
    for (int i = 0; i < 3; i++) {
        px = strstr(x->name, order[i]) ? i : px;
        py = strstr(y->name, order[i]) ? i : py;
    }
    return px - py;
}

static void test_dump(const char *path)
{
    flatdump dump;
    if (flatdump_open(path, &dump, err, sizeof err) != 0) {
        CHECK_MSG(0, "%s: %s", path, err);
        return;
    }
    if (dump.geometry.n_experts > 0) {
        qsort(dump.tensors, (size_t)dump.n_tensors, sizeof *dump.tensors, by_expert);
        source plain = {dump.path, &dump.geometry, dump.tensors, dump.n_tensors};
        const flatdump_prompt *p = longest(&dump);
        size_t n = (size_t)(p->n_prompt + p->n_greedy) * (size_t)dump.geometry.vocab;
        float *expected = malloc(n * sizeof *expected), *got = malloc(n * sizeof *got);
        colibri_engine_options o = defaults();
        colibri_engine *resident = open_engine(&plain, &o);
        CHECK(run(resident, &dump, p, (p->n_prompt + p->n_greedy) / 2, 0, expected));
        colibri_engine_close(resident);
        test_placement(&dump, &plain, expected, got);
        test_interleaved(&dump, &plain, expected);
        test_usage(&dump, &plain, expected, got);
        test_counters(&dump, &plain, got);
        test_found_warm(&dump, &plain, got);
        test_shrink(&dump, &plain, expected, got);
        test_trace(&dump, &plain, expected, got);
        test_wrong_byte(&dump, &plain, expected, got);
        test_cut_off(&dump, &plain, expected, got);
        test_budget(&dump, &plain, expected, got);
        char packed_path[] = "/tmp/colibri-packed-XXXXXX";
        colibri_tensor *tensors = malloc((size_t)dump.n_tensors * sizeof *tensors);
        CHECK_MSG(pack(&dump, packed_path, tensors) == 0, "%s: packing: %s", path, err);
        source packed = {packed_path, &dump.geometry, tensors, dump.n_tensors};
        test_placement(&dump, &packed, expected, got);
        if (dump.geometry.n_mtp_layers > 0) {
            test_drafts(&dump, &plain);
            test_drafts(&dump, &packed);
        }
        unlink(packed_path);
        free(tensors);
        free(expected);
        free(got);
    }
    flatdump_close(&dump);
}

static int is_dump(const struct dirent *entry)
{
    size_t n = strlen(entry->d_name);
    return strncmp(entry->d_name, "glm", 3) == 0 && n > 5 && strcmp(entry->d_name + n - 5, ".dump") == 0;
}

int main(int argc, char **argv)
{
    quick = getenv("COLIBRI_TEST_QUICK") != NULL;
    for (int i = 1; i < argc; i++)
        test_dump(argv[i]);
    if (argc == 1) {
        struct dirent **found = NULL;
        int n = scandir("build/oracle", &found, is_dump, alphasort);
        CHECK_MSG(n > 0,
                  "no dumps in build/oracle; make them with python -m tests.oracle.flatdump build/oracle");
        for (int i = 0; i < n; i++) {
            char path[512];
            snprintf(path, sizeof path, "build/oracle/%s", found[i]->d_name);
            test_dump(path);
            free(found[i]);
        }
        free(found);
    }
    return test_report();
}
