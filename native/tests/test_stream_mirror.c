/* test_stream_mirror.c - copies of a model on several drives: which one is read must not change a bit.
 *
 *     test_stream_mirror [DUMP...]     default: every GLM dump in build/oracle
 *
 * The model of a dump is written as shards with headers, plain or packed, into folders that stand for
 * drives. Against the resident engine (fast path, bf16 KV):
 *   whole       a full mirror, every way of reading, caches of 1, 2, 8 and all slots
 *   in mid-run  a mirror or the model's own files fail (EIO), are cut off or replaced: the turn goes on
 * (R158) partial     a mirror with some shards (R160), a model split over folders refused     copies of
 * another size or header are left out and counted (R161) noticed     a mirror with other weights must change
 * the logits: what the tests above compare can fail errors      with no replica left the request fails, says
 * what and where (R157), and the next one works; short and interrupted reads are continued (R152)
 */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "colibri.h"
#include "fault.h"
#include "flatdump.h"
#include "store_internal.h"
#include "table.h"
#include "test.h"

#define CONTEXT 256
#define SHARDS 3
#define HEADER 4096
#define FOLDERS 3

static int quick;
static char err[1024];

/* One model as shards in FOLDERS folders with the same content; tests damage and restore them. */
typedef struct {
    const flatdump *dump;
    const flatdump_prompt *prompt;
    int32_t n; /* tokens of prompt and answer */
    colibri_tensor *tensors;
    uint8_t *content[SHARDS];
    int64_t bytes[SHARDS];
    char folders[FOLDERS][64];
    char paths[FOLDERS][SHARDS][96];
    float *expected; /* [n][vocab] */
    float *got;
} model;

/* ---- the model on disk --------------------------------------------------------------------- */

static void append(model *m, int32_t shard, const void *data, int64_t bytes, int64_t align)
{
    int64_t at = (m->bytes[shard] + align - 1) / align * align;
    m->content[shard] = realloc(m->content[shard], (size_t)(at + bytes));
    memset(m->content[shard] + m->bytes[shard], 0, (size_t)(at - m->bytes[shard]));
    memcpy(m->content[shard] + at, data, (size_t)bytes);
    m->bytes[shard] = at + bytes;
}

static void add_plain(model *m, colibri_tensor *t, int32_t shard)
{
    append(m, shard, m->dump->bytes + t->offset, t->bytes, 8);
    const int64_t offset = m->bytes[shard] - t->bytes;
    if (t->scale_file >= 0) {
        append(m, shard, m->dump->bytes + t->scale_offset, t->scale_bytes, 8);
        t->scale_file = shard;
        t->scale_offset = m->bytes[shard] - t->scale_bytes;
    }
    t->file = shard;
    t->offset = offset;
}

static void add_packed(model *m, colibri_tensor *t, int32_t shard, int64_t align)
{
    const int64_t bytes = colibri_weight_packed_bytes(t->format, t->group, t->rows, t->cols);
    const void *scales = t->scale_file >= 0 ? m->dump->bytes + t->scale_offset : NULL;
    uint8_t *packed = malloc((size_t)bytes);
    CHECK(colibri_weight_pack(t->format, t->group, t->rows, t->cols, m->dump->bytes + t->offset, t->bytes,
                              scales, t->scale_file >= 0 ? t->scale_bytes : 0, packed, bytes, err,
                              sizeof err) == COLIBRI_OK);
    append(m, shard, packed, bytes, align);
    free(packed);
    t->layout = COLIBRI_LAYOUT_PACKED;
    t->file = shard;
    t->offset = m->bytes[shard] - bytes;
    t->bytes = bytes;
    t->scale_file = -1;
    t->scale_offset = t->scale_bytes = 0;
}

static colibri_tensor *sibling(model *m, const colibri_tensor *gate, const char *part)
{
    char name[256];
    snprintf(name, sizeof name, "%s", gate->name);
    char *at = strstr(name, "gate_proj");
    snprintf(at, sizeof name - (size_t)(at - name), "%s.weight", part);
    for (int64_t i = 0; i < m->dump->n_tensors; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    return NULL;
}

/* Plain: the shards' borders fall where they fall, also inside an expert. Packed: an expert is one
 * page-aligned range. */
static void make_shards(model *m, int packed)
{
    for (int32_t s = 0; s < SHARDS; s++) {
        uint8_t header[HEADER];
        for (int i = 0; i < HEADER; i++)
            header[i] = (uint8_t)(i * 7 + s);
        append(m, s, header, HEADER, 1);
    }
    const int64_t n = m->dump->n_tensors;
    for (int64_t i = 0; i < n; i++) {
        colibri_tensor *t = &m->tensors[i];
        const int32_t shard = (int32_t)(i * SHARDS / n);
        const int expert = strstr(t->name, "mlp.experts.") != NULL;
        if (!packed)
            add_plain(m, t, shard);
        else if (!expert)
            add_packed(m, t, shard, 64);
        else if (strstr(t->name, "gate_proj") != NULL) {
            add_packed(m, t, shard, 4096);
            add_packed(m, sibling(m, t, "up_proj"), shard, 1);
            add_packed(m, sibling(m, t, "down_proj"), shard, 1);
        }
    }
}

/* Writes one file as it should be. */
static void restore(const model *m, int folder, int32_t shard)
{
    FILE *f = fopen(m->paths[folder][shard], "r+b");
    if (f == NULL)
        f = fopen(m->paths[folder][shard], "wb");
    CHECK(f != NULL && fwrite(m->content[shard], 1, (size_t)m->bytes[shard], f) == (size_t)m->bytes[shard]);
    if (f != NULL)
        fclose(f);
    CHECK(truncate(m->paths[folder][shard], (off_t)m->bytes[shard]) == 0);
}

static void cut(const model *m, int folder)
{
    for (int32_t s = 0; s < SHARDS; s++)
        CHECK(truncate(m->paths[folder][s], HEADER) == 0);
}

static void restore_folder(const model *m, int folder)
{
    for (int32_t s = 0; s < SHARDS; s++)
        restore(m, folder, s);
}

static model *make_model(const flatdump *dump, int packed)
{
    model *m = calloc(1, sizeof *m);
    m->dump = dump;
    m->prompt = &dump->prompts[0];
    for (int i = 1; i < dump->n_prompts; i++)
        if (dump->prompts[i].n_prompt > m->prompt->n_prompt)
            m->prompt = &dump->prompts[i];
    m->n = m->prompt->n_prompt + m->prompt->n_greedy;
    const size_t n = (size_t)m->n * (size_t)dump->geometry.vocab;
    m->expected = malloc(n * sizeof *m->expected);
    m->got = malloc(n * sizeof *m->got);
    m->tensors = malloc((size_t)dump->n_tensors * sizeof *m->tensors);
    memcpy(m->tensors, dump->tensors, (size_t)dump->n_tensors * sizeof *m->tensors);
    make_shards(m, packed);
    for (int f = 0; f < FOLDERS; f++) {
        snprintf(m->folders[f], sizeof m->folders[f], "/tmp/colibri-drive-XXXXXX");
        CHECK(mkdtemp(m->folders[f]) != NULL);
        for (int32_t s = 0; s < SHARDS; s++)
            snprintf(m->paths[f][s], sizeof m->paths[f][s], "%s/out-0000%d.safetensors", m->folders[f],
                     (int)s);
        restore_folder(m, f);
    }
    return m;
}

static void free_model(model *m)
{
    for (int f = 0; f < FOLDERS; f++) {
        for (int32_t s = 0; s < SHARDS; s++)
            unlink(m->paths[f][s]);
        CHECK_MSG(rmdir(m->folders[f]) == 0, "%s: %s", m->folders[f], strerror(errno));
    }
    for (int32_t s = 0; s < SHARDS; s++)
        free(m->content[s]);
    free(m->tensors);
    free(m->expected);
    free(m->got);
    free(m);
}

/* ---- engines and runs ------------------------------------------------------------------------ */

static colibri_engine_options defaults(int32_t slots)
{
    return (colibri_engine_options){.struct_size = sizeof(colibri_engine_options),
                                    .context = CONTEXT,
                                    .threads = 2,
                                    .expert_slots = slots};
}

/* `masks`: bit s = this folder's shard s is given. Folder 0 is the model's own list, the others mirrors. */
static int32_t try_open(const model *m, colibri_engine_options o, const unsigned masks[FOLDERS],
                        colibri_engine **engine)
{
    const char *paths[SHARDS], *mirrors[(FOLDERS - 1) * SHARDS];
    for (int32_t s = 0; s < SHARDS; s++) {
        paths[s] = masks[0] >> s & 1 ? m->paths[0][s] : NULL;
        for (int f = 1; f < FOLDERS; f++)
            mirrors[(f - 1) * SHARDS + s] = masks[f] >> s & 1 ? m->paths[f][s] : NULL;
    }
    o.mirror_paths = mirrors;
    o.n_mirrors = FOLDERS - 1;
    while (o.n_mirrors > 0 && masks[o.n_mirrors] == 0)
        o.n_mirrors--;
    return colibri_engine_open(&o, &m->dump->geometry, paths, SHARDS, m->tensors, m->dump->n_tensors, engine,
                               err, sizeof err);
}

static colibri_engine *open_masks(const model *m, colibri_engine_options o, unsigned own, unsigned first,
                                  unsigned second)
{
    colibri_engine *engine = NULL;
    const unsigned masks[FOLDERS] = {own, first, second};
    const int32_t status = try_open(m, o, masks, &engine);
    CHECK_MSG(status == COLIBRI_OK, "%s: open: %s", m->dump->path, err);
    return engine;
}

static colibri_engine *open_pair(const model *m, colibri_engine_options o)
{
    return open_masks(m, o, 7, 7, 0);
}

static int32_t prefill(colibri_session *session, const int32_t *tokens, int32_t n, float *logits)
{
    colibri_prefill_progress progress = {0};
    int32_t status = colibri_prefill_start(session, tokens, n, logits, err, sizeof err);
    while (status == COLIBRI_OK && !progress.finished)
        status = colibri_prefill_step(session, 1, &progress, err, sizeof err);
    return status;
}

/* Decodes the positions [from, to) of the text into m->got. */
static int32_t decode(const model *m, colibri_session *session, int32_t from, int32_t to)
{
    const int32_t vocab = m->dump->geometry.vocab;
    int32_t status = COLIBRI_OK;
    for (int32_t row = from; row < to && status == COLIBRI_OK; row++) {
        status = colibri_decode(&session, &m->prompt->tokens[row], 1, err, sizeof err);
        if (status == COLIBRI_OK)
            status = colibri_session_logits(session, m->got + (int64_t)row * vocab, vocab, err, sizeof err);
    }
    return status;
}

/* Half of the text as a prompt, the rest token by token; `middle` happens in between. */
static int32_t run_with(model *m, colibri_engine *engine, void (*middle)(const model *))
{
    colibri_session *session = NULL;
    int32_t status =
        engine == NULL ? COLIBRI_ERROR_INVALID : colibri_session_create(engine, &session, err, sizeof err);
    if (status == COLIBRI_OK)
        status = prefill(session, m->prompt->tokens, m->n / 2, m->got);
    if (status == COLIBRI_OK && middle != NULL)
        middle(m);
    if (status == COLIBRI_OK)
        status = decode(m, session, m->n / 2, m->n);
    colibri_session_close(session);
    return status;
}

static int32_t run(model *m, colibri_engine *engine)
{
    return run_with(m, engine, NULL);
}

static int equal(const model *m)
{
    return memcmp(m->expected, m->got, (size_t)m->n * (size_t)m->dump->geometry.vocab * sizeof *m->got) == 0;
}

static void expect_equal(model *m, colibri_engine *engine, const char *what)
{
    CHECK_MSG(run(m, engine) == COLIBRI_OK && equal(m), "%s: %s: %s", m->dump->path, what, err);
}

static int32_t look(const colibri_engine *engine, colibri_mirror_t out[FOLDERS])
{
    memset(out, 0, FOLDERS * sizeof *out);
    out[0].struct_size = sizeof *out;
    return colibri_engine_mirrors(engine, out, FOLDERS);
}

/* ---- whole mirrors --------------------------------------------------------------------------- */

static void test_R158_tokens_are_the_same_with_a_mirror(model *m)
{
    static const struct {
        const char *name;
        int32_t slots, io_mode, buffered, no_prefetch, chunk;
    } variants[] = {
        {"one slot", 1, 0, 0, 0, 0},
        {"two slots", 2, COLIBRI_IO_THREADS, 0, 0, 7},
        {"eight slots, buffered", 8, COLIBRI_IO_BUFFERED, 0, 0, 0},
        {"through the page cache", 3, COLIBRI_IO_THREADS, 1, 1, 0},
        {"all slots", 1 << 20, 0, 0, 0, 16},
    };
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        if (quick && i % 3 != 0)
            continue;
        colibri_engine_options o = defaults(variants[i].slots);
        o.io_mode = variants[i].io_mode;
        o.io_buffered = variants[i].buffered;
        o.no_prefetch = variants[i].no_prefetch;
        o.prefill_chunk = variants[i].chunk;
        colibri_engine *engine = open_masks(m, o, 7, 7, 7);
        expect_equal(m, engine, variants[i].name);
        colibri_mirror_t seen[FOLDERS];
        CHECK(look(engine, seen) == FOLDERS);
        colibri_engine_snapshot_t s = {.struct_size = sizeof s};
        colibri_engine_snapshot(engine, &s);
        int64_t bytes = 0;
        for (int f = 0; f < FOLDERS; f++) {
            CHECK_MSG(seen[f].bytes > 0 && seen[f].reads > 0, "%s: folder %d was never read",
                      variants[i].name, f);
            CHECK(seen[f].files == SHARDS && seen[f].refused == 0 && seen[f].failures == 0 &&
                  seen[f].state == COLIBRI_MIRROR_IN_USE);
            bytes += seen[f].bytes;
        }
        CHECK(s.expert_bytes_read > 0 && bytes > 0);
        colibri_engine_close(engine);
    }
}

static void test_R158_a_slow_drive_gets_the_smaller_share(model *m)
{
    colibri_engine_options o = defaults(2);
    o.io_mode = COLIBRI_IO_THREADS; /* where a slow read holds up nobody else */
    o.fault = CLB_FAULT_MIRROR_SLOW;
    colibri_engine *engine = open_pair(m, o);
    expect_equal(m, engine, "slow mirror");
    colibri_mirror_t seen[FOLDERS];
    CHECK(look(engine, seen) == 2);
    CHECK_MSG(seen[1].bytes > 0 && seen[0].bytes > 3 * seen[1].bytes,
              "%s: %lld bytes from the fast drive, %lld from the slow one", m->dump->path,
              (long long)seen[0].bytes, (long long)seen[1].bytes);
    CHECK(seen[0].rate > seen[1].rate && seen[1].rate > 0);
    colibri_engine_close(engine);
}

/* Same sizes, same headers, other weights: what no check at opening sees, the comparison of logits does. */
static void test_a_mirror_with_other_weights_is_noticed(model *m)
{
    for (int32_t s = 0; s < SHARDS; s++) {
        FILE *f = fopen(m->paths[1][s], "r+b");
        CHECK(f != NULL && fseek(f, HEADER, SEEK_SET) == 0);
        for (int64_t i = HEADER; f != NULL && i < m->bytes[s]; i++)
            fputc(m->content[s][i] ^ (i % 16 == 3 ? 0x11 : 0), f);
        if (f != NULL)
            fclose(f);
    }
    colibri_engine *engine = open_pair(m, defaults(2));
    CHECK_MSG(run(m, engine) != COLIBRI_OK || !equal(m), "%s: experts of another model went unnoticed",
              m->dump->path);
    colibri_engine_close(engine);
    restore_folder(m, 1);
}

/* ---- in mid-run -------------------------------------------------------------------------------- */

/* The files were there and right when the engine opened; every read from one of the drives fails. */
static void test_R158_a_drive_that_fails_changes_nothing(model *m, int32_t fault, int failing)
{
    static const int32_t modes[] = {COLIBRI_IO_AUTO, COLIBRI_IO_THREADS};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        colibri_engine_options o = defaults(2);
        o.fault = fault;
        o.io_mode = modes[i];
        colibri_engine *engine = open_pair(m, o);
        expect_equal(m, engine, failing ? "failing mirror" : "failing primary");
        colibri_mirror_t seen[FOLDERS];
        CHECK(look(engine, seen) == 2);
        CHECK_MSG(seen[failing].failures > 0 && seen[failing].reads == 0 &&
                      seen[failing].state == COLIBRI_MIRROR_FAILED,
                  "%s: no failure was met", m->dump->path);
        CHECK(seen[!failing].failures == 0 && seen[!failing].bytes > 0);
        /* Shrinking waits for reads that have to be made again. */
        CHECK(colibri_engine_shrink(engine, 1, err, sizeof err) == COLIBRI_OK);
        expect_equal(m, engine, "failing drive, fewer slots");
        colibri_engine_close(engine);
    }
}

static void cut_primary(const model *m)
{
    cut(m, 0);
}

static void cut_mirror(const model *m)
{
    cut(m, 1);
}

static void unlink_mirror(const model *m)
{
    for (int32_t s = 0; s < SHARDS; s++)
        CHECK(unlink(m->paths[1][s]) == 0);
    restore_folder(m, 1); /* another file of the same name */
}

static void test_R158_a_drive_cut_off_in_mid_run_changes_nothing(model *m)
{
    /* The drive that stays is slow, so that the other one is in use when it goes. */
    static const struct {
        const char *name;
        void (*middle)(const model *);
        int folder;
        int32_t fault;
    } ways[] = {{"primary", cut_primary, 0, CLB_FAULT_MIRROR_SLOW},
                {"mirror", cut_mirror, 1, CLB_FAULT_PRIMARY_SLOW},
                {"replaced mirror", unlink_mirror, 1, CLB_FAULT_PRIMARY_SLOW}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const int fails = ways[i].middle != unlink_mirror;
        colibri_engine_options o = defaults(2);
        o.io_mode = COLIBRI_IO_THREADS;
        o.fault = ways[i].fault;
        colibri_engine *engine = open_pair(m, o);
        CHECK_MSG(run_with(m, engine, ways[i].middle) == COLIBRI_OK && equal(m), "%s: %s cut off: %s",
                  m->dump->path, ways[i].name, err);
        colibri_mirror_t seen[FOLDERS];
        CHECK(look(engine, seen) == 2);
        /* At the latest when it has not been measured for a second it is read again. */
        for (int more = 0; more < 500 && fails && seen[ways[i].folder].failures == 0; more++) {
            expect_equal(m, engine, "cut off");
            look(engine, seen);
        }
        const int64_t failures = seen[ways[i].folder].failures;
        restore_folder(m, ways[i].folder);
        colibri_session *session = NULL; /* and goes on once the drive is back */
        CHECK(colibri_session_create(engine, &session, err, sizeof err) == COLIBRI_OK);
        CHECK(prefill(session, m->prompt->tokens, m->n, m->got) == COLIBRI_OK && equal(m));
        colibri_session_close(session);
        colibri_engine_close(engine);
        CHECK_MSG((failures > 0) == fails, "%s: %s: %lld failures", m->dump->path, ways[i].name,
                  (long long)failures);
    }
}

static void test_with_no_replica_left_the_request_fails_and_names_all(model *m)
{
    colibri_engine *engine = open_pair(m, defaults(2));
    cut(m, 0);
    cut(m, 1);
    CHECK_MSG(run(m, engine) == COLIBRI_ERROR_IO, "%s: reading what is gone succeeded", m->dump->path);
    CHECK_MSG(strstr(err, m->folders[0]) != NULL && strstr(err, m->folders[1]) != NULL &&
                  strstr(err, "offset") != NULL,
              "the message does not name both places: %s", err);
    restore_folder(m, 0);
    restore_folder(m, 1);
    expect_equal(m, engine, "once the files are whole again");
    colibri_engine_close(engine);
}

/* A bad place in one shard of each: every expert is still somewhere. */
static void test_damage_in_different_shards_of_both_copies_is_survived(model *m)
{
    colibri_engine *engine = open_pair(m, defaults(2));
    CHECK(truncate(m->paths[0][0], HEADER) == 0);
    CHECK(truncate(m->paths[1][1], HEADER) == 0);
    expect_equal(m, engine, "damage in both copies");
    restore_folder(m, 0);
    restore_folder(m, 1);
    colibri_engine_close(engine);
}

/* ---- parts ---------------------------------------------------------------------------------------- */

static void test_R160_a_partial_mirror_serves_what_it_holds(model *m)
{
    for (unsigned mask = 1; mask < 7; mask++) {
        colibri_engine *engine = open_masks(m, defaults(2), 7, mask, 0);
        expect_equal(m, engine, "partial mirror");
        colibri_mirror_t seen[FOLDERS];
        CHECK(look(engine, seen) == 2);
        CHECK(seen[1].files == __builtin_popcount(mask) && seen[1].failures == 0 && seen[0].bytes > 0);
        if (mask == 6)
            CHECK_MSG(seen[1].bytes > 0, "%s: the partial mirror was never read", m->dump->path);
        colibri_engine_close(engine);
    }
}

static void test_a_model_split_over_folders_is_one_model(model *m)
{
    static const unsigned splits[][FOLDERS] = {{5, 2, 0}, {1, 2, 4}, {3, 6, 1}};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        for (int resident = 0; resident < 2; resident++) {
            colibri_engine *engine =
                open_masks(m, defaults(resident ? 0 : 2), splits[i][0], splits[i][1], splits[i][2]);
            expect_equal(m, engine, "split model");
            colibri_engine_close(engine);
        }
    }
}

static void test_R161_copies_of_another_size_or_header_are_left_out(model *m)
{
    CHECK(truncate(m->paths[1][0], (off_t)(m->bytes[0] - 4096)) == 0);
    FILE *f = fopen(m->paths[1][1], "r+b");
    CHECK(f != NULL && fseek(f, 100, SEEK_SET) == 0 && fputc(1, f) == 1);
    if (f != NULL)
        fclose(f);
    CHECK(unlink(m->paths[1][2]) == 0);
    colibri_engine *engine = open_masks(m, defaults(2), 7, 7, 7);
    expect_equal(m, engine, "bad mirror");
    colibri_mirror_t seen[FOLDERS];
    CHECK(look(engine, seen) == FOLDERS);
    CHECK(seen[1].files == 0 && seen[1].refused == 3 && seen[1].bytes == 0 && seen[1].failures == 0);
    CHECK(seen[2].files == SHARDS && seen[2].bytes > 0);
    colibri_engine_close(engine);
    restore_folder(m, 1);
}

static void test_a_missing_file_is_taken_from_the_mirror_or_refused(model *m)
{
    colibri_engine *engine = NULL;
    CHECK(unlink(m->paths[0][0]) == 0); /* dense weights too */
    engine = open_pair(m, defaults(2));
    expect_equal(m, engine, "a shard that only the mirror has");
    colibri_engine_close(engine);
    CHECK(unlink(m->paths[1][0]) == 0);
    static const unsigned masks[FOLDERS] = {7, 7, 0}, none[FOLDERS] = {6, 6, 0};
    CHECK(try_open(m, defaults(2), masks, &engine) == COLIBRI_ERROR_IO && engine == NULL);
    CHECK_MSG(strstr(err, m->paths[0][0]) != NULL, "the message does not name the file: %s", err);
    CHECK(try_open(m, defaults(2), none, &engine) == COLIBRI_ERROR_INVALID && engine == NULL);
    restore_folder(m, 0);
    restore_folder(m, 1);
    colibri_engine_options o = defaults(2);
    o.n_mirrors = 32;
    const char *paths[SHARDS] = {m->paths[0][0], m->paths[0][1], m->paths[0][2]};
    o.mirror_paths = paths;
    CHECK(colibri_engine_open(&o, &m->dump->geometry, paths, SHARDS, m->tensors, m->dump->n_tensors, &engine,
                              err, sizeof err) == COLIBRI_ERROR_INVALID);
    o.n_mirrors = 1;
    o.mirror_paths = NULL;
    CHECK(colibri_engine_open(&o, &m->dump->geometry, paths, SHARDS, m->tensors, m->dump->n_tensors, &engine,
                              err, sizeof err) == COLIBRI_ERROR_INVALID);
}

/* The dense part: read by the table itself, before there is an engine. */
static void test_dense_weights_fall_back_to_a_mirror(model *m)
{
    const char *paths[SHARDS], *mirrors[SHARDS];
    for (int32_t s = 0; s < SHARDS; s++) {
        paths[s] = m->paths[0][s];
        mirrors[s] = m->paths[1][s];
    }
    clb_table table;
    const clb_error error = {err, sizeof err};
    CHECK(clb_table_open(&table, paths, SHARDS, mirrors, 1, m->tensors, m->dump->n_tensors, &error) ==
          COLIBRI_OK);
    const clb_entry *entry = &table.entries[0];
    uint8_t *bytes = malloc((size_t)entry->t.bytes);
    cut(m, 0);
    CHECK(clb_table_read(&table, entry, 0, 0, entry->t.bytes, bytes, &error) == COLIBRI_OK);
    CHECK(memcmp(bytes, m->content[entry->t.file] + entry->t.offset, (size_t)entry->t.bytes) == 0);
    cut(m, 1);
    CHECK(clb_table_read(&table, entry, 0, 0, entry->t.bytes, bytes, &error) == COLIBRI_ERROR_IO);
    CHECK_MSG(strstr(err, m->folders[0]) != NULL && strstr(err, "offset") != NULL &&
                  strstr(err, "copies") != NULL,
              "%s", err);
    free(bytes);
    clb_table_close(&table);
    restore_folder(m, 0);
    restore_folder(m, 1);
}

/* ---- errors without a mirror ------------------------------------------------------------------ */

static void test_R152_short_and_interrupted_reads_are_continued(model *m)
{
    static const int32_t modes[] = {COLIBRI_IO_AUTO, COLIBRI_IO_THREADS, COLIBRI_IO_BUFFERED};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        colibri_engine_options o = defaults(2);
        o.fault = CLB_FAULT_SHORT_READ;
        o.io_mode = modes[i];
        colibri_engine *engine = open_masks(m, o, 7, 0, 0);
        expect_equal(m, engine, "short reads");
        colibri_engine_close(engine);
    }
}

/* Reads fail for a while, in the middle of a prompt and then of an answer, and then work again: the
 * request fails with what, where and what to do, the session stays usable, no other token changes. */
static void test_R157_a_device_error_fails_one_request_and_names_the_place(model *m)
{
    const int32_t half = m->n / 2, vocab = m->dump->geometry.vocab;
    for (int in_prefill = 0; in_prefill < 2; in_prefill++) {
        colibri_engine_options o = defaults(2);
        o.fault = CLB_FAULT_EVERY_EIO;
        o.prefill_chunk = in_prefill ? 5 : 1;
        colibri_engine *engine = open_masks(m, o, 7, 0, 0);
        colibri_session *session = NULL;
        CHECK(colibri_session_create(engine, &session, err, sizeof err) == COLIBRI_OK);
        int failures = 0;
        int32_t done = 0, status;
        for (int attempt = 0; attempt < 200 && done < m->n; attempt++) {
            err[0] = 0;
            done = colibri_session_length(session);
            if (in_prefill && done < half)
                status =
                    prefill(session, m->prompt->tokens + done, half - done, m->got + (int64_t)done * vocab);
            else
                status = decode(m, session, done, m->n);
            done = colibri_session_length(session);
            if (status == COLIBRI_OK)
                continue;
            failures++;
            CHECK_MSG(status == COLIBRI_ERROR_IO && strstr(err, m->folders[0]) != NULL &&
                          strstr(err, "offset") != NULL && strstr(err, "do not download again") != NULL,
                      "%s: status %d: %s", m->dump->path, (int)status, err);
            CHECK(colibri_session_truncate(session, done, err, sizeof err) == COLIBRI_OK);
        }
        CHECK_MSG(failures > 0 && done == m->n && equal(m), "%s: %s: %d failures, %d of %d tokens, logits %s",
                  m->dump->path, in_prefill ? "prefill" : "decode", failures, (int)done, (int)m->n,
                  equal(m) ? "equal" : "differ");
        colibri_session_close(session);
        colibri_engine_close(engine);
    }
}

/* ---- guesses --------------------------------------------------------------------------------- */

/* R156: neither one read at a time on a fast drive nor many on a slow one. */
static void test_R156_guesses_in_flight_follow_the_speed_of_the_drives(void)
{
    const int64_t expert = (int64_t)2 << 20;
    clb_table table = {.n_replicas = 2};
    clb_store store = {.table = &table, .guess_bytes = expert};
    const int32_t unknown = clb_store_guess_reads(&store);
    store.replicas[0].rate = 0.1e9;
    const int32_t slow = clb_store_guess_reads(&store);
    store.replicas[0].rate = 2e9;
    CHECK(clb_store_guess_reads(&store) == unknown);
    store.replicas[0].rate = 7e9;
    const int32_t fast = clb_store_guess_reads(&store);
    store.replicas[1].rate = 7e9;
    const int32_t both = clb_store_guess_reads(&store);
    store.replicas[1].failures = 1;
    const int32_t lost = clb_store_guess_reads(&store);
    store.replicas[0].rate = 1e12;
    const int32_t absurd = clb_store_guess_reads(&store);
    CHECK(unknown == 4 && slow == 1 && lost == fast);
    CHECK_MSG(slow < unknown && unknown < fast && fast < both && both <= absurd && absurd == 17,
              "%d reads for a slow drive, %d unmeasured, %d fast, %d for two fast ones, at most %d", slow,
              unknown, fast, both, absurd);
}

/* ---- all ------------------------------------------------------------------------------------------- */

static void test_layout(const flatdump *dump, int packed)
{
    model *m = make_model(dump, packed);
    colibri_engine *resident = open_masks(m, defaults(0), 7, 0, 0);
    CHECK(run(m, resident) == COLIBRI_OK);
    memcpy(m->expected, m->got, (size_t)m->n * (size_t)dump->geometry.vocab * sizeof *m->got);
    CHECK_MSG(colibri_engine_mirrors(resident, NULL, 0) == 0, "a resident engine reads from drives");
    colibri_engine_close(resident);
    test_R158_tokens_are_the_same_with_a_mirror(m);
    test_a_mirror_with_other_weights_is_noticed(m);
    test_R158_a_drive_that_fails_changes_nothing(m, CLB_FAULT_MIRROR_EIO, 1);
    test_R158_a_drive_that_fails_changes_nothing(m, CLB_FAULT_PRIMARY_EIO, 0);
    test_R158_a_drive_cut_off_in_mid_run_changes_nothing(m);
    test_with_no_replica_left_the_request_fails_and_names_all(m);
    test_damage_in_different_shards_of_both_copies_is_survived(m);
    test_R160_a_partial_mirror_serves_what_it_holds(m);
    test_a_model_split_over_folders_is_one_model(m);
    test_R161_copies_of_another_size_or_header_are_left_out(m);
    test_a_missing_file_is_taken_from_the_mirror_or_refused(m);
    test_dense_weights_fall_back_to_a_mirror(m);
    test_R152_short_and_interrupted_reads_are_continued(m);
    test_R157_a_device_error_fails_one_request_and_names_the_place(m);
    if (!quick)
        test_R158_a_slow_drive_gets_the_smaller_share(m);
    free_model(m);
}

static void test_dump(const char *path)
{
    flatdump dump;
    if (flatdump_open(path, &dump, err, sizeof err) != 0) {
        CHECK_MSG(0, "%s: %s", path, err);
        return;
    }
    if (dump.geometry.n_experts > 0) {
        test_layout(&dump, 0);
        if (strstr(path, "glm_dsa") == NULL)
            test_layout(&dump, 1);
    }
    flatdump_close(&dump);
}

static int is_dump(const struct dirent *entry)
{
    /* One container of each kind: what differs between the others is not where they lie. */
    return strcmp(entry->d_name, "glm_gs64.dump") == 0 || strcmp(entry->d_name, "glm_dsa.dump") == 0;
}

int main(int argc, char **argv)
{
    quick = getenv("COLIBRI_TEST_QUICK") != NULL;
    for (int i = 1; i < argc; i++)
        test_dump(argv[i]);
    test_R156_guesses_in_flight_follow_the_speed_of_the_drives();
    if (argc == 1) {
        struct dirent **found = NULL;
        int n = scandir("build/oracle", &found, is_dump, alphasort);
        CHECK_MSG(
            n == 2,
            "dumps are missing in build/oracle; make them with python -m tests.oracle.flatdump build/oracle");
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
