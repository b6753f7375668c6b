/* test_cancel.c - cancel and snapshot from other threads while the engine computes.
 *
 * A cancelled prefill keeps what is finished and can be repeated to the same bits; a snapshot never
 * waits and its progress never goes back. Run under the thread sanitizer by `make test-long`. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "test.h"
#include "tiny_model.h"

#define N_PROMPT 256
#define VOCAB 40
#define ROUNDS 40

typedef struct {
    colibri_engine *engine;
    colibri_session *session;
    atomic_int stop;
    atomic_int cancels; /* how often to cancel */
    int went_back;
} watcher;

static void *watch(void *context)
{
    watcher *w = context;
    int64_t progress = 0;
    while (!atomic_load(&w->stop)) {
        colibri_engine_snapshot_t snapshot = {.struct_size = sizeof snapshot};
        colibri_engine_snapshot(w->engine, &snapshot);
        w->went_back += snapshot.progress < progress;
        progress = snapshot.progress;
        if (atomic_load(&w->cancels) > 0) {
            atomic_fetch_sub(&w->cancels, 1);
            colibri_session_cancel(w->session);
        }
        sched_yield();
    }
    return NULL;
}

static void cancelled_prefills_resume_to_the_same_bits(const tiny_model *m)
{
    colibri_engine_options options = {.threads = 2, .context = 300, .prefill_chunk = 32};
    colibri_engine *engine = tiny_model_open(m, &options);
    CHECK(engine != NULL);
    if (engine == NULL) {
        return;
    }
    char err[256];
    int32_t prompt[N_PROMPT];
    float expected[VOCAB];
    float found[VOCAB];
    colibri_session *session = NULL;
    colibri_prefill_progress progress = {0};
    for (int i = 0; i < N_PROMPT; i++) {
        prompt[i] = (i * 7 + 3) % VOCAB;
    }
    CHECK(colibri_session_create(engine, &session, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_prefill_start(session, prompt, N_PROMPT, NULL, err, sizeof err) == COLIBRI_OK);
    CHECK(colibri_prefill_step(session, 0, &progress, err, sizeof err) == COLIBRI_OK && progress.finished);
    CHECK(colibri_session_logits(session, expected, VOCAB, err, sizeof err) == COLIBRI_OK);

    watcher w = {.engine = engine, .session = session};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, watch, &w) == 0);
    int cancelled = 0;
    for (int round = 0; round < ROUNDS; round++) {
        CHECK(colibri_session_truncate(session, 0, err, sizeof err) == COLIBRI_OK);
        atomic_store(&w.cancels, round % 4);
        int32_t done = 0;
        while (done < N_PROMPT) {
            CHECK(colibri_prefill_start(session, prompt + done, N_PROMPT - done, NULL, err, sizeof err) ==
                  COLIBRI_OK);
            int32_t status = COLIBRI_OK;
            progress.finished = 0;
            while (status == COLIBRI_OK && !progress.finished) {
                status = colibri_prefill_step(session, round % 2, &progress, err, sizeof err);
            }
            CHECK_MSG(status == COLIBRI_OK || status == COLIBRI_ERROR_CANCELLED, "prefill: %s", err);
            if (status == COLIBRI_ERROR_CANCELLED) {
                cancelled++;
                CHECK(colibri_session_length(session) == done + progress.tokens_done);
                CHECK(colibri_session_truncate(session, colibri_session_length(session), err, sizeof err) ==
                      COLIBRI_OK);
            }
            done = colibri_session_length(session);
        }
        CHECK(colibri_session_logits(session, found, VOCAB, err, sizeof err) == COLIBRI_OK);
        CHECK_MSG(memcmp(expected, found, sizeof found) == 0, "round %d: other logits after a cancel", round);
    }
    atomic_store(&w.stop, 1);
    pthread_join(thread, NULL);
    CHECK_MSG(cancelled > 0, "no prefill was ever cancelled");
    CHECK(w.went_back == 0);
    colibri_session_close(session);
    colibri_engine_close(engine);
}

int main(void)
{
    static const int32_t families[] = {COLIBRI_FAMILY_LLAMA, COLIBRI_FAMILY_GLM_MOE_DSA};
    for (size_t i = 0; i < 2; i++) {
        tiny_model *m = tiny_model_create(families[i], COLIBRI_FORMAT_I8_ROW, 3);
        CHECK(m != NULL);
        if (m != NULL) {
            cancelled_prefills_resume_to_the_same_bits(m);
            tiny_model_destroy(m);
        }
    }
    return test_report();
}
