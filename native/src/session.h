/* session.h - what session.c, prefill.c, decode.c and draft.c share. */
#ifndef CLB_SESSION_H
#define CLB_SESSION_H

#include "engine.h"

/* Phases of a chunk. The first four belong to a layer; after the trunk's last layer come the head and, for
 * drafts, the input of the MTP layer, which then runs as one more layer. */
enum clb_phase {
    CLB_PHASE_ATTEND,
    CLB_PHASE_MLP, /* dense: the whole MLP; sparse: norm and router */
    CLB_PHASE_EXPERTS,
    CLB_PHASE_FINISH,
    CLB_PHASE_HEAD, /* row i is normed into h[i+1], so that h[0] is free for the position before */
    CLB_PHASE_JOIN
};

/* ---- KV blocks (blocks.c) ---- */
/* Once the family has listed its parts: adds what a block needs besides them. */
void clb_blocks_finish_layout(colibri_engine *engine);
/* KV blocks for all positions below `length`, those from the session's length on its own. */
int32_t clb_session_reserve(colibri_session *session, int32_t length, const clb_error *error);
/* Copies blocks from position `first` on that other sessions hold too: what follows writes there. */
int32_t clb_session_own(colibri_session *session, int32_t first, const clb_error *error);
/* Empty tables for the blocks of a new session; frees all of it. */
int32_t clb_blocks_open(colibri_session *session);
void clb_blocks_close(colibri_session *session);
/* After the length has grown from `before`: drops what no window reaches any more. */
void clb_session_grown(colibri_session *session, int32_t before);
/* Bytes that the KV of a session takes at most, apart from what it shares. */
int64_t clb_kv_session_bytes(const colibri_engine *engine);
/* Drops all but the first `keep` spans, and checkpoints behind them. */
void clb_blocks_keep(colibri_session *session, int32_t keep);
void clb_blocks_free_spare(colibri_engine *engine);

/* Forgets an unfinished prefill, parked or not, and the KV blocks it took. */
void clb_session_drop_pending(colibri_session *session);
void clb_session_drop_chunk(colibri_session *session);
/* Ends a prefill where it is: its chunk stays for one that begins with the same tokens. */
void clb_session_park(colibri_session *session);
/* The parked chunk is taken up again. */
void clb_session_unpark(colibri_session *session);
/* Drops the chunk that has been parked longest; 0 = there is none. For allocations that need the room. */
int clb_session_drop_oldest(colibri_engine *engine);
int32_t clb_check_tokens(const colibri_engine *engine, const int32_t *tokens, int32_t n,
                         const clb_error *error);
/* Counts a finished piece of work, so that a watchdog sees the difference between slow and stuck. */
void clb_note_progress(colibri_engine *engine);
/* A session that counts notes what its rows chose: ids [n][experts_per_token] (routed.c). */
void clb_count_routed(colibri_engine *engine, const clb_batch *batch, int32_t layer, const int32_t *ids);
/* Tests: turns position 3 into NaN after layer 1 if that fault is planted. */
void clb_plant_nan(const colibri_engine *engine, const clb_batch *batch, int32_t layer);

/* Where `rows` rows of logits for a session that will hold `length` tokens go; they become valid with
 * clb_session_logits_done. NULL when out of memory. */
float *clb_session_logit_rows(colibri_session *session, int32_t rows);
void clb_session_logits_done(colibri_session *session, int32_t rows);
/* Logits of the session as it was when it held `length` tokens, or NULL. */
const float *clb_session_logits_at(const colibri_session *session, int32_t length);

/* ---- chunks (prefill.c, chunk.c) ---- */
/* KV blocks and memory for a chunk of n tokens, which lie behind the session's length, and its first rows. */
int32_t clb_chunk_open(colibri_session *session, int32_t n, const clb_error *error);
/* Whether the chunk's rows can leave the engine now. */
int clb_chunk_between(const colibri_session *session);
/* Puts a chunk without pending tokens at the end of those that are parked. */
void clb_session_add_parked(colibri_session *session);

/* ---- progress (progress.c) ---- */
/* Share of the announced work that is done. */
double clb_prefill_fraction(const colibri_session *session);
colibri_prefill_progress clb_prefill_progress(const colibri_session *session, int finished);

/* Runs the router of `layer` one layer early and tells the store, which may read ahead (decode.c). */
int32_t clb_guess_next(colibri_engine *engine, const clb_batch *batch, int32_t layer, const clb_error *error);
/* One whole layer over the rows of a step (decode.c). */
int32_t clb_decode_layer(colibri_engine *engine, const clb_batch *batch, int32_t layer,
                         const clb_error *error);

/* ---- drafts (draft.c) ---- */
/* Keeps the normed hidden states of the last `rows` tokens, whose successors may be unknown. */
void clb_draft_keep(colibri_session *session, const float *hidden, int32_t rows);
/* After a truncation. */
void clb_draft_truncate(colibri_session *session, int32_t length);

#endif
