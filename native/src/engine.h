/* engine.h - what the engine's own files share: engine, session, batch, family.
 *
 * One forward pass works on a BATCH: n rows (tokens), cut into RUNS of consecutive positions of one
 * session. A prefill chunk is one run of many rows, a decode step is many runs of one row; families
 * see no difference, which is how both give equal bits.
 *
 * Everything here belongs to the engine's calling thread; workers of the pool run inside it. Counters
 * and the cancel flag are atomic and may be touched from any thread.
 */
#ifndef CLB_ENGINE_H
#define CLB_ENGINE_H

#include <stdatomic.h>

#include "clock.h"
#include "colibri.h"
#include "error.h"
#include "kernels/kernels.h"
#include "load.h"
#include "pool.h"
#include "scratch.h"
#include "store.h"
#include "table.h"

/* KV blocks kept for reuse. */
#define CLB_MAX_SPARE 256
/* Most rows in one decode step. */
#define CLB_MAX_BATCH 64
/* Tokens whose hidden states wait for the MTP layer; more decoded without drafts than that leave a gap in
 * its keys, which only makes later drafts worse. */
#define CLB_MAX_HIDDEN 64
#define CLB_MAX_DRAFTS 3
/* Checkpoints of a session, and positions between those made by itself. */
#define CLB_MAX_CHECKPOINTS 16
#define CLB_CHECKPOINT_TOKENS 4096
/* Phases of a prefill chunk (session.h). */
#define CLB_N_PHASES 6

/* One kind of state that a layer keeps per token, and where it lies inside a KV block of CLB_SPAN
 * tokens. A part with a window looks back so many positions only (for rolling state, such as the inputs
 * of a short convolution: its taps); parts of one window share the blocks of a group, all layers
 * together, and blocks that no window reaches are dropped. Group 0 keeps everything. */
typedef enum {
    CLB_KV_GQA,     /* full K/V */
    CLB_KV_LATENT,  /* of MLA */
    CLB_KV_INDEX,   /* indexer keys */
    CLB_KV_WINDOW,  /* K/V of the last `window` positions */
    CLB_KV_ROLLING, /* rows of the last `window` positions */
} clb_kv_kind;

typedef struct {
    clb_kv_kind kind;
    int32_t layer;
    int64_t offset; /* in a block; -1 = of the MTP layer, which is not loaded: only outside the engine */
    int64_t bytes;  /* per block */
    int32_t group;
    int32_t window;  /* positions that are read, the current one included; 0 = all */
    int64_t outside; /* offset in a block that has left the engine (blocks.c) */
} clb_kv_part;

#define CLB_KV_GROUPS 4

typedef struct {
    int32_t window; /* 0 = all */
    int64_t block_bytes;
} clb_kv_group;

typedef struct {
    clb_kv_part *parts;
    int32_t n_parts;
    clb_kv_group groups[CLB_KV_GROUPS];
    int32_t n_groups;
    int64_t block_bytes;     /* of group 0 */
    int64_t bytes_per_token; /* semantic, without padding */
    int64_t outside_bytes;   /* of a block that has left the engine */
} clb_kv_layout;

typedef struct {
    colibri_session *session;
    int32_t row0;  /* first row of the batch */
    int32_t n;     /* rows */
    int32_t first; /* absolute position of the first row */
} clb_run;

typedef struct {
    int32_t n;
    float *x;          /* residual stream [n][hidden] */
    const float *rope; /* [n][rope_dim/2]{cos, sin} */
    const clb_run *runs;
    int32_t n_runs;
    /* DSA selection of each row, kept from a full layer to the layers that share it:
     * selected [n][index_topk]; n_selected[row] = -1 means all positions up to the row's own. */
    int32_t *selected;
    int32_t *n_selected;
} clb_batch;

struct colibri_engine;

/* What moe.c needs to know of a layer with routed experts. */
typedef struct {
    int32_t store_layer;
    int32_t hidden;
    int32_t ffn;
    int32_t per_token;
    /* Always-on expert(s) of this width, or NULL. */
    const clb_weight *shared_gate, *shared_up, *shared_down;
    int32_t shared_ffn;
} clb_moe_layer;

/* A family owns its architecture: weight names, graph, KV kinds. */
typedef struct {
    int32_t id; /* colibri_family */
    const char *name;
    /* Refuses impossible geometry; no allocation. */
    int32_t (*check)(const colibri_geometry *g, const clb_error *error);
    int32_t (*rope_dim)(const colibri_geometry *g);
    /* Allocates engine->model and binds its weights; fills the KV layout. */
    int32_t (*bind)(struct colibri_engine *engine, clb_loader *loader);
    /* x += attention(norm(x)) for the rows of the batch, keys and values stored first. */
    int32_t (*attention)(struct colibri_engine *engine, const clb_batch *batch, int32_t layer,
                         const clb_error *error);
    /* The second half of a layer. Dense: x += mlp(norm(x)). */
    int32_t (*mlp)(struct colibri_engine *engine, const clb_batch *batch, int32_t layer,
                   const clb_error *error);
    /* Sparse: *moe describes it (returns 0 for a dense layer), and route writes h = norm(x) [n][hidden],
     * ids and weights [n][per_token]; moe.c does the rest. */
    int (*moe)(const struct colibri_engine *engine, int32_t layer, clb_moe_layer *moe);
    int32_t (*route)(struct colibri_engine *engine, const clb_batch *batch, int32_t layer, float *h,
                     int32_t *ids, float *weights, const clb_error *error);
    /* Guesses the experts that `layer` will ask for from x, ids and weights [n][per_token]; may be NULL. */
    int32_t (*guess)(struct colibri_engine *engine, const clb_batch *batch, int32_t layer, int32_t *ids,
                     float *weights, const clb_error *error);
    /* MTP: x = projection of [norm(embedding of tokens) | norm(hidden)], rows as given; may be NULL. */
    int32_t (*draft_input)(struct colibri_engine *engine, const int32_t *tokens, const float *hidden,
                           int32_t n, float *x, const clb_error *error);
    /* Norm weights between the MTP layer and the head. */
    const float *(*draft_norm)(const struct colibri_engine *engine);
    /* Floats of temporaries that attention and the second half of a layer take per row. */
    int64_t (*row_floats)(const colibri_geometry *g);
    void (*release)(struct colibri_engine *engine);
} clb_family;

extern const clb_family clb_family_llama;
extern const clb_family clb_family_glm_moe_dsa;
/* Tests only: one family more, NULL in the product. */
extern const clb_family *clb_family_of_tests;

struct colibri_engine {
    colibri_engine_options options;
    colibri_geometry geometry; /* array pointers refer to the two copies below */
    uint8_t *layer_sparse;
    uint8_t *layer_indexer;
    const clb_family *family;
    const clb_kernels *kernels;
    clb_pool *pool;
    clb_table table;
    clb_kv_layout kv;
    uint8_t *spare[CLB_MAX_SPARE]; /* KV blocks of group 0 given back by sessions */
    int32_t n_spare;
    clb_store store;
    void *model;       /* the family's weights */
    colibri_plan plan; /* what the engine was opened with */
    int32_t context;
    int32_t prefill_chunk;
    int32_t n_chunks;                 /* in memory, of all sessions; at most clb_sessions() */
    colibri_session *parked;          /* sessions with a parked chunk, the one parked longest first */
    double row_seconds[CLB_N_PHASES]; /* of prefill slices lately, per row; 0 = not known */
    int32_t kv_f32;
    int32_t sparse_attention;
    int32_t has_mtp;
    int32_t drafts; /* depth the engine was opened for; 0 = the MTP layer is not loaded */

    /* Weights that every family has. */
    clb_weight embedding;
    clb_weight head;
    float *final_norm;
    float *inv_freq; /* [rope_dim/2] */

    uint8_t *dense;
    uint8_t *experts;
    int64_t region_bytes[2];

    clb_scratch scratch;     /* reset at every layer */
    int64_t gqa_bytes;       /* of it, where a family beside GQA has other attention (clb_gqa_announce) */
    uint8_t *worker_scratch; /* per worker, for attention */
    int64_t worker_bytes;
    /* Decode batch state, sized for CLB_MAX_BATCH rows. */
    float *decode_x;
    int32_t *decode_selected;

    /* First non-finite value met in this step: layer, or INT32_MAX. */
    atomic_int bad_layer;
    atomic_int bad_row;

    clb_clock clock;

    _Atomic int64_t scratch_bytes; /* of `scratch`, for the snapshot */
    _Atomic int64_t kv_bytes;
    _Atomic int32_t kv_blocks; /* of group 0, held by sessions */
    _Atomic int64_t progress;
    _Atomic int64_t prompt_tokens;
    _Atomic int64_t decoded_tokens;
    atomic_int sessions;
};

/* A prefill chunk between two slices: everything that a layer's rest needs. Layers run one after the
 * other over the whole chunk; within a layer attention goes by rows, experts by number. */
typedef struct {
    int32_t n;        /* rows, 0 = no chunk in progress */
    int32_t tokens;   /* of the prompt; the MTP layer may have one row less */
    int32_t first;    /* position of row 0 */
    int32_t layer;    /* layers finished */
    int32_t drafting; /* 1 = the rows are those of the MTP layer, which runs as layer n_layers */
    int32_t phase;    /* of the current layer, see clb_phase in session.h */
    int32_t row;      /* rows done in this phase */
    int32_t expert;   /* experts done in this phase */
    int32_t before;   /* 1 = the MTP layer's first row is that of the position before the chunk */
    int32_t unfilled; /* pieces that are still to come from outside (chunk.c); until then nothing goes on */
    uint8_t *memory;
    size_t bytes;
    float *x;
    float *rope;
    float *last; /* [hidden] normed output of the trunk for the last row */
    int32_t *selected, *n_selected;
    /* Layers with experts only. h: one row more than n, see PHASE_HEAD. */
    float *h, *sum;
    int32_t *ids;
    float *weights;
    void *plan_memory;
    int32_t *cursor;
    struct clb_moe_plan *plan;
    /* Guess for the layer after the one in work, most rows first. */
    int32_t *ahead; /* [n_experts] */
    int32_t n_ahead;
} clb_chunk;

struct colibri_session {
    colibri_engine *engine;
    int32_t length;
    int32_t *tokens;                 /* [context] history, then the pending prompt */
    uint8_t **blocks[CLB_KV_GROUPS]; /* [spans of the context], NULL = not held */
    int32_t n_blocks;                /* spans held so far, in every group */
    /* Lengths to which the session can go back although windows have passed on, ascending. */
    int32_t checkpoints[CLB_MAX_CHECKPOINTS];
    int32_t n_checkpoints;
    /* Logits of the last step: row r belongs to the session as it was at length
     * logits_end - n_logits + r + 1, so a truncation inside the step keeps them usable. */
    float *logits; /* [logit_rows][vocab] */
    int32_t logit_rows;
    int32_t n_logits;
    int32_t logits_end;
    /* MTP: normed hidden states of the last n_hidden tokens; the MTP layer holds keys and values of all
     * positions before them. */
    float *hidden; /* [CLB_MAX_HIDDEN][hidden] */
    int32_t n_hidden;
    int32_t hidden_end; /* length of the session when the last one was kept */
    atomic_int cancel;
    /* Prefill in progress: pending tokens lie in tokens[length ...]. A chunk without pending tokens is
     * parked: its own tokens lie there, and a prefill that begins with them goes on in it. */
    int32_t pending; /* tokens not yet in the session */
    int32_t total;   /* as announced */
    float *all_logits;
    clb_chunk chunk;
    int pause_between;                   /* 1 = a prefill step ends where the chunk's rows can leave */
    double resumed;                      /* share of the work that was done when it was announced */
    int64_t bytes_read;                  /* since then */
    struct colibri_session *next_parked; /* in engine->parked */
    uint32_t *routed;    /* [layers and MTP layers][experts], NULL = does not count (routed.c) */
    int32_t routed_from; /* first position that counts */
};

/* ---- graph helpers (graph.c) ---- */

/* One matrix times n rows. Jobs with equal (x, index, cols, kind) share the prepared activation. */
typedef struct {
    const clb_weight *w;
    const float *x; /* row t: x + (index ? index[t] : t)*ldx */
    int64_t ldx;
    const int32_t *index;
    int32_t n;
    float *y;
    int64_t ldy;
    int32_t flags; /* CLB_LINEAR_ADD */
} clb_job;

int32_t clb_run_jobs(colibri_engine *engine, const clb_job *jobs, int32_t n_jobs, const clb_error *error);

/* Calls fn on ranges of [0, n) in parallel; ranges are multiples of `grain` except the last. */
typedef void (*clb_range_fn)(void *context, int32_t begin, int32_t end, int worker);
void clb_for_range(colibri_engine *engine, int32_t n, int32_t grain, clb_range_fn fn, void *context);

/* out[row] = rms_norm(x[row]) for all rows; notes the first row with a non-finite value. */
void clb_norm_rows(colibri_engine *engine, float *out, const float *x, const float *weight, int32_t n,
                   int32_t width, float eps, int32_t layer);
void clb_swiglu_rows(colibri_engine *engine, float *out, const float *gate, const float *up, int32_t n,
                     int32_t width);

/* x += down(silu(gate h) * up h) for n rows of h. */
int32_t clb_dense_mlp(colibri_engine *engine, const clb_weight *gate, const clb_weight *up,
                      const clb_weight *down, const float *h, int32_t n, float *x, const clb_error *error);

/* Start of a part's bytes in the KV block of each span of a session. */
const uint8_t **clb_kv_blocks(colibri_engine *engine, const clb_run *run, const clb_kv_part *part,
                              const clb_error *error);
static inline uint8_t *clb_kv_at(const colibri_session *session, const clb_kv_part *part, int32_t position)
{
    return session->blocks[part->group][position / CLB_SPAN] + part->offset;
}
/* Bytes of one stored KV value. */
static inline int64_t clb_kv_value_bytes(const colibri_engine *engine)
{
    return engine->kv_f32 ? 4 : 2;
}
/* Appends a part to the layout while binding. One of the MTP layer takes no memory when that layer is not
 * loaded, but has its place in blocks outside the engine all the same: these are then equal either way. */
int32_t clb_kv_add(colibri_engine *engine, clb_kv_kind kind, int32_t layer, int32_t window,
                   int64_t bytes_per_block, int64_t bytes_per_token);

/* Scratch of a pool worker, engine->worker_bytes long. */
static inline uint8_t *clb_worker_scratch(const colibri_engine *engine, int worker)
{
    return engine->worker_scratch + (int64_t)worker * engine->worker_bytes;
}

/* Embeds tokens into x and fills the rope table. */
void clb_embed(colibri_engine *engine, const int32_t *tokens, float *x, int32_t n);
void clb_rope_table(const colibri_engine *engine, float *out, int32_t first, int32_t n);
/* COLIBRI_ERROR_NUMERIC naming layer and position if this step met a non-finite value. */
int32_t clb_check_finite(colibri_engine *engine, const clb_batch *batch, const clb_error *error);
/* logits [n][vocab] of n normed rows. `wide` only matters to a planted fault: whether the rows were
 * computed together with others. */
int32_t clb_head(colibri_engine *engine, float *normed, int32_t n, float *logits, int32_t wide,
                 const clb_error *error);

/* ---- prefill.c ---- */
/* Sessions that the budget must hold. */
static inline int64_t clb_sessions(const colibri_engine *engine)
{
    return engine->options.sessions > 0 ? engine->options.sessions : 1;
}
/* Bytes that a session holds while it prefills in chunks of so many tokens. */
int64_t clb_chunk_bytes(const colibri_engine *engine, int32_t tokens);
/* Bytes of the temporaries of the widest slice of such a chunk, or of a decode step. */
int64_t clb_slice_bytes(const colibri_engine *engine, int32_t tokens);

/* ---- sampler (sampler.c) ---- */
/* No token: the mask allows none; the largest logit is infinite, or all that are allowed are NaN. */
enum { CLB_SAMPLE_MASKED = -1, CLB_SAMPLE_NOT_FINITE = -2 };
/* Picks a token, or one of the above; `position` is that of the new token. */
int32_t clb_sample(const float *logits, int32_t vocab, int32_t vocab_used, const colibri_sampling *sampling,
                   int32_t position);

#endif
