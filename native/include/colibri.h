/* colibri.h - the engine's only public boundary.
 *
 * What it is: a C11 inference engine for transformer models whose routed experts may be placed in
 * memory or on disk. The caller reads configs and headers, hands over one geometry struct and one
 * table of tensors, and drives the engine in bounded steps.
 * What it is not: it parses no JSON, reads no environment variable, never calls back, never exits.
 *
 * Contract shared by all functions
 * - Status: every fallible function returns a colibri_status and, on failure, writes one English
 *   sentence (what, where, what to do) into `err` (at most `err_len` bytes, always terminated; both
 *   may be NULL/0). On failure out-parameters are set to NULL/0 and nothing else has changed.
 * - Structs passed in start with `struct_size = sizeof(struct)`; a smaller size means the caller was
 *   built against an older header and the missing fields take their defaults (0).
 * - Threads: an engine and its sessions belong to ONE calling thread at a time, except
 *   colibri_session_cancel, colibri_engine_snapshot, colibri_engine_mirrors, colibri_engine_usage,
 *   colibri_engine_experts, colibri_loading_look and the pure functions (colibri_weight_*, colibri_cpu_*,
 *   colibri_version, colibri_policy_replay), which may be called from any thread at any time while the object
 * is alive.
 * - Numerics: for one engine (model, precision, kv type, instruction set) the logits of a token
 *   depend only on the tokens before it. Threads, slice sizes, batch mates, expert placement and
 *   the way the prompt was cut change speed, never a bit of the result.
 * - Sizes are in bytes unless the name says otherwise; token positions and counts are in tokens.
 */
#ifndef COLIBRI_H
#define COLIBRI_H

#include <stddef.h>
#include <stdint.h>

#if defined(COLIBRI_BUILD) && defined(__GNUC__)
#define COLIBRI_API __attribute__((visibility("default")))
#else
#define COLIBRI_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* CFFI-BEGIN: everything up to CFFI-END is also what the Python binding declares. Keep it free of
 * preprocessor lines and of expressions in array sizes. */

typedef enum {
    COLIBRI_OK = 0,
    COLIBRI_ERROR_INVALID = 1,    /* an argument or option is out of range */
    COLIBRI_ERROR_IO = 2,         /* a file could not be opened or read */
    COLIBRI_ERROR_FORMAT = 3,     /* tensor table or geometry contradicts itself or the files */
    COLIBRI_ERROR_MEMORY = 4,     /* an allocation failed or the budget would be exceeded */
    COLIBRI_ERROR_CANCELLED = 5,  /* the session was cancelled; see colibri_session_cancel */
    COLIBRI_ERROR_CONTEXT = 6,    /* the session has no room left for the token(s) */
    COLIBRI_ERROR_NUMERIC = 7,    /* logits became non-finite; the message names layer and position */
    COLIBRI_ERROR_UNSUPPORTED = 8 /* known, but not by this build or this processor */
} colibri_status;

/* Families: which graph runs. */
typedef enum {
    COLIBRI_FAMILY_LLAMA = 1,      /* dense GQA transformer (SmolLM2 and its like) */
    COLIBRI_FAMILY_GLM_MOE_DSA = 2 /* GLM-5.x: MLA, DSA indexer, sigmoid-routed MoE */
} colibri_family;

/* How the numbers of a weight matrix [rows, cols] are stored. "Plain" = row-major as published;
 * the same formats exist "packed" = interleaved for the kernels (colibri_weight_pack). */
typedef enum {
    COLIBRI_FORMAT_F32 = 1,
    COLIBRI_FORMAT_BF16 = 2,
    COLIBRI_FORMAT_F16 = 3,
    COLIBRI_FORMAT_I8_ROW = 4, /* int8; plain scales: f32[rows] in a second span */
    COLIBRI_FORMAT_I4_ROW = 5, /* nibble-8, low nibble = even column; row = ceil(cols/2) bytes; f32[rows] */
    /* Same nibbles; f32[rows*ceil(cols/group)], group in 16 32 48 64 96 128 192 256. */
    COLIBRI_FORMAT_I4_GROUP = 6,
    COLIBRI_FORMAT_FP8_BLOCK = 7, /* e4m3fn; f32[ceil(rows/128)*ceil(cols/128)] multiplied in */
    COLIBRI_FORMAT_Q4_0 = 8,      /* GGUF block of 32: f16 d, 16 bytes (low nibble = first half); d*(q-8) */
    COLIBRI_FORMAT_Q4_1 = 9,      /* GGUF block of 32: f16 d, f16 m, 16 bytes; d*q+m */
    COLIBRI_FORMAT_Q8_0 = 10      /* GGUF block of 32: f16 d, 32 int8; d*q */
} colibri_format;

typedef enum {
    COLIBRI_LAYOUT_PLAIN = 0, /* row-major as published; scales (if any) in the scale span */
    COLIBRI_LAYOUT_PACKED = 1 /* interleaved, scales inside; exactly colibri_weight_packed_bytes() long */
} colibri_layout;

/* One tensor of the table. `name` is the canonical Hugging Face name (model.layers.0....weight).
 * Vectors have rows = 1. Untrusted: the engine checks every span against the file's real size and
 * every byte count against format and shape, and refuses by name. */
typedef struct {
    const char *name;
    int32_t format; /* colibri_format */
    int32_t layout; /* colibri_layout */
    int32_t group;  /* columns per scale, COLIBRI_FORMAT_I4_GROUP only, else 0 */
    int32_t file;   /* index into the path list */
    int64_t rows;
    int64_t cols;
    int64_t offset;
    int64_t bytes;
    int32_t scale_file; /* -1 = no scale span */
    int32_t reserved;
    int64_t scale_offset;
    int64_t scale_bytes;
} colibri_tensor;

/* Shape of the model. Fields of the other family stay 0. */
typedef struct {
    uint32_t struct_size;
    int32_t family; /* colibri_family */
    int32_t n_layers;
    int32_t hidden;
    int32_t vocab;      /* rows of the embedding */
    int32_t vocab_used; /* logits at and above this id are masked when sampling; 0 = vocab */
    int32_t ffn;        /* width of a dense MLP */
    int32_t n_heads;
    int32_t n_kv_heads;
    int32_t head_dim;
    int32_t max_position; /* longest context the model was made for */
    int32_t tied_embeddings;
    float norm_eps;
    float latent_eps; /* RMSNorm of the MLA latents (GLM: 1e-6) */
    double rope_theta;
    /* MLA */
    int32_t q_lora;
    int32_t kv_lora;
    int32_t qk_nope;
    int32_t qk_rope;
    int32_t v_head;
    /* DSA indexer; index_topk 0 = dense attention */
    int32_t index_heads;
    int32_t index_dim;
    int32_t index_topk;
    /* MoE */
    int32_t n_experts;
    int32_t experts_per_token;
    int32_t n_shared_experts;
    int32_t expert_ffn;
    int32_t n_group;
    int32_t topk_group;
    int32_t norm_topk;
    float routed_scale;
    int32_t n_mtp_layers;
    /* [n_layers] 1 = routed experts, 0 = dense MLP; NULL = all dense */
    const uint8_t *layer_sparse;
    /* [n_layers] 1 = own indexer, 0 = shares the selection below; NULL = none */
    const uint8_t *layer_indexer;
} colibri_geometry;

typedef enum {
    COLIBRI_PRECISION_FAST = 0, /* weights as stored, int8 or bf16 activations, fast kernels */
    COLIBRI_PRECISION_F32 = 1   /* reference: every weight dequantized, everything in f32 */
} colibri_precision;

typedef enum {
    COLIBRI_KV_AUTO = 0, /* bf16 on the fast path, f32 on the reference path */
    COLIBRI_KV_F32 = 1,  /* reference path only */
    COLIBRI_KV_BF16 = 2
} colibri_kv_type;

typedef enum {
    COLIBRI_ISA_AUTO = 0,
    COLIBRI_ISA_BASELINE = 1, /* portable C (x86-64-v2 or plain AArch64) */
    COLIBRI_ISA_AVX2 = 2,     /* AVX2 + FMA + F16C */
    COLIBRI_ISA_AVX512 = 3,   /* AVX-512 F/BW/DQ/VL + VNNI + BF16 + VBMI */
    COLIBRI_ISA_NEON = 4      /* AArch64 Advanced SIMD + dot product */
} colibri_isa;

typedef enum {
    COLIBRI_IO_AUTO = 0,
    COLIBRI_IO_URING = 1,
    COLIBRI_IO_THREADS = 2,
    COLIBRI_IO_BUFFERED = 3
} colibri_io_mode;

/* How far opening is: bytes of weights that stay in memory, as stored. The caller's, all zero at first, at
 * the same place until open returns; total is 0 until open has planned, and done reaches it with the last
 * tensor. */
typedef struct {
    int64_t done;
    int64_t total;
} colibri_loading;

typedef struct {
    uint32_t struct_size;
    int32_t precision;     /* colibri_precision */
    int32_t kv_type;       /* colibri_kv_type */
    int32_t isa;           /* colibri_isa; one the processor lacks is COLIBRI_ERROR_UNSUPPORTED */
    int32_t threads;       /* 0 = one per usable core */
    int32_t pin_threads;   /* 1 = pin workers to cores */
    int32_t context;       /* most tokens a session may hold; 0 = max_position */
    int32_t prefill_chunk; /* tokens computed together in prefill; 0 = engine's choice */
    int64_t memory_budget; /* most bytes for the engine and caller_bytes together; 0 = no limit */
    int32_t fault;         /* tests only: plants a numbered fault, see src/fault.h; 0 = none */
    int32_t sessions;      /* sessions whose full context the budget must hold; 0 = 1 */
    /* Where routed experts live. With everything inside the budget they are all resident; else they
     * stream from disk through a cache that takes what the budget leaves. */
    int32_t expert_slots; /* >0 = stream with exactly this many cached experts of each size */
    int32_t io_mode;      /* colibri_io_mode */
    int32_t io_buffered;  /* 1 = through the page cache instead of direct I/O */
    int32_t no_prefetch;  /* 1 = no reads on a guess */
    int32_t drafts;       /* most drafts of the MTP layer per step, 0..3; 0 = the layer is not loaded */
    int32_t reserved;
    /* Copies of the weight files on other drives: [n_mirrors][n_paths], NULL = the mirror lacks the file;
     * a path given to open may then be NULL where a mirror has the file. What a copy cannot vouch for by
     * size and header is left out. Which copy is read never changes a token. */
    const char *const *mirror_paths;
    int32_t n_mirrors;        /* at most 31 */
    int64_t caller_bytes;     /* part of memory_budget that the caller's own processes hold */
    colibri_loading *loading; /* NULL = nobody looks how far opening is */
} colibri_engine_options;

/* Experts of one size. */
typedef struct {
    int64_t slot_bytes; /* memory that one of them takes in the cache */
    int64_t experts;    /* of the model */
    int64_t slots;      /* that the cache holds together; all of them when resident */
} colibri_plan_class;

/* Where the memory of an engine goes, all sizes as allocated. Opening computes the same and holds it:
 * total_bytes = caller + dense + experts or cache + staging + tables + sessions + prefill + work. */
typedef struct {
    uint32_t struct_size;
    int32_t fits;      /* 1 = opening would accept these options */
    int32_t streaming; /* 1 = experts come from disk through a cache */
    int32_t context;   /* tokens of a session */
    int32_t sessions;
    int32_t threads;
    int32_t prefill_chunk;      /* tokens of a prompt computed together */
    int32_t n_classes;          /* of experts by size; the first 8 are listed */
    int64_t budget;             /* as given, 0 = no limit */
    int64_t caller_bytes;       /* as given */
    int64_t dense_bytes;        /* weights that stay in memory */
    int64_t expert_bytes;       /* all routed experts if they were resident */
    int64_t cache_bytes;        /* slots of the expert cache; 0 when resident */
    int64_t staging_bytes;      /* reads in flight */
    int64_t table_bytes;        /* lists of tensors and experts */
    int64_t sessions_bytes;     /* all sessions with a full context */
    int64_t prefill_bytes;      /* chunks of all sessions and the temporaries of one slice */
    int64_t work_bytes;         /* buffers of threads and decode steps, the engine's own code */
    int64_t total_bytes;        /* most that is held at any time */
    int64_t kv_bytes_per_token; /* exact size over all layers */
    int64_t session_bytes;      /* one session with a full context */
    int64_t largest_expert;     /* bytes of the largest slot */
    int64_t least_budget;       /* from here on these options open, experts streaming if there are any */
    int64_t resident_budget;    /* from here on everything is resident */
    int32_t largest_context;    /* longest that fits this budget, 0 = none */
    int32_t most_sessions;      /* that fit this budget with this context, 0 = none */
    colibri_plan_class classes[8];
} colibri_plan;

typedef struct colibri_engine colibri_engine;
typedef struct colibri_session colibri_session;

/* Kinds of steps, and what their time goes to; the kinds of a phase sum up to the time of its steps. */
typedef enum { COLIBRI_PHASE_PREFILL = 0, COLIBRI_PHASE_DECODE = 1 } colibri_phase;
typedef enum {
    COLIBRI_TIME_DISK = 0,      /* waiting for experts that were not in memory */
    COLIBRI_TIME_EXPERTS = 1,   /* matrices of routed and shared experts */
    COLIBRI_TIME_ATTENTION = 2, /* with its projections */
    COLIBRI_TIME_HEAD = 3,      /* logits */
    COLIBRI_TIME_OTHER = 4      /* dense layers, routers, drafts' input, bookkeeping */
} colibri_time;

/* Where an expert was when it was asked for. */
typedef enum {
    COLIBRI_FOUND_RESIDENT = 0, /* all experts are in memory */
    COLIBRI_FOUND_WARM = 1,     /* in a slot since it was loaded in advance (colibri_engine_warm) */
    COLIBRI_FOUND_CACHED = 2,   /* in a slot from an earlier request */
    COLIBRI_FOUND_GUESSED = 3,  /* read, or being read, on a guess */
    COLIBRI_FOUND_DISK = 4      /* nowhere: read because it was asked for */
} colibri_found;

/* Where an expert is now. */
typedef enum {
    COLIBRI_TIER_DISK = 0,
    COLIBRI_TIER_RAM = 1,
    COLIBRI_TIER_VRAM = 2,    /* none in this version */
    COLIBRI_TIER_READING = 3, /* on its way from disk */
    COLIBRI_TIER_NONE = 255   /* there is no such expert: a dense layer, or one that is not loaded */
} colibri_tier;

/* Counters; monotonic unless named otherwise. Filled without stopping the engine. */
typedef struct {
    uint32_t struct_size;
    int32_t isa; /* colibri_isa in use */
    int32_t precision;
    int32_t kv_type;
    int32_t threads;
    int32_t context;
    int32_t sparse_attention; /* 1 = DSA indexer present and used */
    int32_t has_mtp;          /* 1 = MTP weights recognised */
    int32_t sessions;         /* open now */
    int32_t reserved;
    int64_t weight_bytes;       /* resident now */
    int64_t expert_bytes;       /* part of weight_bytes held by routed experts */
    int64_t kv_bytes;           /* allocated now */
    int64_t kv_bytes_per_token; /* exact semantic size over all layers */
    int64_t scratch_bytes;
    int64_t progress; /* grows with every layer computed: stands still only if the engine is stuck */
    int64_t prompt_tokens;
    int64_t decoded_tokens;
    int64_t expert_lookups;
    int64_t expert_misses;
    int64_t expert_bytes_read;
    int32_t streaming;      /* 1 = experts come from disk through a cache */
    int32_t expert_slots;   /* experts that fit in memory together */
    int64_t guessed_bytes;  /* read on a guess of the next layer's router */
    int64_t useful_bytes;   /* of those, asked for in time */
    int64_t wasted_bytes;   /* of those, given up unused */
    int64_t disk_wait_ns;   /* time spent waiting for the disk */
    int64_t cached_experts; /* slots that hold an expert, or await one that is being read */
    int64_t time_ns[10];    /* [colibri_phase][colibri_time] */
    int64_t found[10];      /* [colibri_phase][colibri_found]: lookups; sums up to expert_lookups */
    int64_t step_ns[2];     /* [colibri_phase] whole steps: what time_ns sums up to, measured apart */
} colibri_engine_snapshot_t;

typedef enum {
    COLIBRI_MIRROR_IN_USE = 0,
    COLIBRI_MIRROR_FAILED = 1 /* its last read failed; it is given one to try from time to time */
} colibri_mirror_state;

/* One set of weight files from which experts are read: the model's own paths, or a mirror. */
typedef struct {
    uint32_t struct_size;
    int32_t state;   /* colibri_mirror_state */
    int32_t files;   /* in use */
    int32_t refused; /* given and left out: cannot be opened, or another size or header */
    int64_t bytes;   /* of experts, read so far */
    int64_t reads;   /* ranges of experts read so far */
    int64_t failures;
    int64_t rate; /* bytes per second, moving average; 0 = not measured yet */
} colibri_mirror_t;

/* Sampling parameters of one call. The random draw depends only on (seed, position of the new
 * token), so a restart or other requests beside this one do not change the text. */
typedef struct {
    uint32_t struct_size;
    float temperature; /* 0 = greedy (lowest id wins a tie) */
    float top_p;       /* (0, 1]; 1 = off */
    int32_t reserved;
    uint64_t seed;
    const uint32_t *mask; /* bit i of word i/32 set = token i allowed; NULL = all; ceil(vocab/32) words */
} colibri_sampling;

/* Progress of a prefill after a step. */
typedef struct {
    int32_t finished; /* 1 = all tokens are in the session and its logits are those of the last one */
    int32_t tokens_done;
    int32_t tokens_total;
    int32_t layer; /* layers finished in the current chunk */
    int32_t n_layers;
    int32_t reserved;
    /* Share of the work that is done, tokens times layers over all that was announced: 0..1, never falls. */
    double fraction;
    double resumed;     /* of that, what a parked chunk brought */
    int64_t bytes_read; /* from disk since the prefill was announced */
    int64_t bytes_left; /* estimate of what is still to be read */
} colibri_prefill_progress;

const char *colibri_version(void);
int32_t colibri_abi(void); /* grows with every incompatible change of this header */
const char *colibri_status_name(int32_t status);

/* Whether the engine can run here at all: on x86 that takes x86-64-v2 (SSE4.2, POPCNT). On a processor for
 * which this is 0 every other function may end the process, except those of this paragraph. */
int32_t colibri_cpu_is_supported(void);
/* Best instruction set of this processor (never COLIBRI_ISA_AUTO), and whether one is usable. */
int32_t colibri_cpu_best_isa(void);
int32_t colibri_cpu_has_isa(int32_t isa);
const char *colibri_isa_name(int32_t isa);

/* Bytes of a matrix in the plain layout (data and scale span) and in the packed layout.
 * Negative = the combination is invalid or overflows. */
int64_t colibri_weight_plain_bytes(int32_t format, int64_t rows, int64_t cols);
int64_t colibri_weight_scale_bytes(int32_t format, int32_t group, int64_t rows, int64_t cols);
int64_t colibri_weight_packed_bytes(int32_t format, int32_t group, int64_t rows, int64_t cols);
/* Plain -> packed, lossless. `scales` may be NULL where the format has none. `out` holds
 * colibri_weight_packed_bytes(). Fails only on invalid sizes. */
int32_t colibri_weight_pack(int32_t format, int32_t group, int64_t rows, int64_t cols, const void *data,
                            int64_t data_bytes, const void *scales, int64_t scale_bytes, void *out,
                            int64_t out_bytes, char *err, size_t err_len);
/* Packed -> f32 [rows, cols]: what every kernel computes with, dequantized exactly. */
int32_t colibri_weight_unpack(int32_t format, int32_t group, int64_t rows, int64_t cols, const void *packed,
                              int64_t packed_bytes, float *out, char *err, size_t err_len);

/* Opens the files, checks the table, loads what is resident. Everything passed in may be freed
 * afterwards. `paths` are UTF-8. */
int32_t colibri_engine_open(const colibri_engine_options *options, const colibri_geometry *geometry,
                            const char *const *paths, int32_t n_paths, const colibri_tensor *tensors,
                            int64_t n_tensors, colibri_engine **out, char *err, size_t err_len);
/* Copies what `loading` says now, while another thread opens or afterwards. */
void colibri_loading_look(const colibri_loading *loading, colibri_loading *out);
/* What opening with these options would hold, without reading any data. Options that do not fit are no
 * error: out->fits says so, and the last fields what would. */
int32_t colibri_engine_plan(const colibri_engine_options *options, const colibri_geometry *geometry,
                            const colibri_tensor *tensors, int64_t n_tensors, colibri_plan *out, char *err,
                            size_t err_len);
/* All sessions must be closed first; NULL is allowed. */
void colibri_engine_close(colibri_engine *engine);
void colibri_engine_snapshot(const colibri_engine *engine, colibri_engine_snapshot_t *out);
/* Fills up to `n` of: the model's own paths (first), then the mirrors in the order given. out[0].struct_size
 * says how large each element is. Returns how many there are; 0 = nothing is read any more, all experts are
 * in memory. Any thread. */
int32_t colibri_engine_mirrors(const colibri_engine *engine, colibri_mirror_t *out, int32_t n);

/* Use counts: counts[layer * n_experts + expert], n = (n_layers + n_mtp_layers) * n_experts; layers without
 * routed experts hold zeros. An expert is counted once for each decode step that asked for it; long prompts
 * are not counted. usage gives those since opening, from any thread. set_usage tells the cache what was
 * learnt before (it changes speed, never a token); on an engine that does not stream it does nothing. */
int32_t colibri_engine_usage(const colibri_engine *engine, int64_t *counts, int64_t n, char *err,
                             size_t err_len);
int32_t colibri_engine_set_usage(colibri_engine *engine, const int64_t *counts, int64_t n, char *err,
                                 size_t err_len);
/* Where every expert is (colibri_tier) and how many requests asked for it since opening, those of prompts
 * included; indexed as usage, n as there. `tiers` or `asked` may be NULL. Any thread: experts move while this
 * looks, so each entry is right for itself. */
int32_t colibri_engine_experts(const colibri_engine *engine, uint8_t *tiers, uint32_t *asked, int64_t n,
                               char *err, size_t err_len);
/* Loads the experts that set_usage named, hottest first, into free slots. Returns after about max_ms or, with
 * *done = 1, when there is nothing left to load or no free slot. Evicts nothing; a damaged expert is left
 * out. Call it while no prefill or decode is running. */
int32_t colibri_engine_warm(colibri_engine *engine, int32_t max_ms, int32_t *done, char *err, size_t err_len);
/* Gives up cached experts, for good, until they take no more than expert_bytes (at least one slot of each
 * size stays), and their memory back to the system. Between steps only. */
int32_t colibri_engine_shrink(colibri_engine *engine, int64_t expert_bytes, char *err, size_t err_len);
/* Records routed experts in a ring of so many int32 words (held beside the budget), 0 = off, the default.
 * trace_read moves whole records out, oldest first, as colibri_policy_replay takes them, with the model's
 * layer numbers; the MTP layer is n_layers. *lost counts records that found the ring full since trace was
 * called. Between steps only. */
int32_t colibri_engine_trace(colibri_engine *engine, int64_t words, char *err, size_t err_len);
int32_t colibri_engine_trace_read(colibri_engine *engine, int32_t *out, int64_t room, int64_t *n,
                                  int64_t *lost, char *err, size_t err_len);

int32_t colibri_session_create(colibri_engine *engine, colibri_session **out, char *err, size_t err_len);
void colibri_session_close(colibri_session *session);
/* Tokens held. */
int32_t colibri_session_length(const colibri_session *session);
/* Copies up to `n` token ids from the start of the history; returns the number copied. */
int32_t colibri_session_tokens(const colibri_session *session, int32_t *out, int32_t n);
/* Drops everything from position `length` on (0 empties it), an unfinished or parked prefill included. With
 * exactly the length that is held nothing is dropped and an unfinished prefill is parked. The logits are
 * gone until the next token. Refused if length is larger than what is held. */
int32_t colibri_session_truncate(colibri_session *session, int32_t length, char *err, size_t err_len);

/* Tokens of the parked chunk, 0 = none. A prefill that was cancelled, or whose reading failed, inside a chunk
 * leaves that chunk parked: colibri_session_length does not count its tokens, but a prefill from the same
 * position whose tokens begin with the chunk's goes on where it stopped, and nothing that was read for it is
 * read again. Any other prefill, a decode step, a draft, a truncation below, and memory that is needed
 * elsewhere drop it. */
int32_t colibri_session_parked(const colibri_session *session);

/* From now on counts, beginning at 0, which experts the session's tokens are routed to: those at position
 * `from` and behind it, a token once in each layer for each expert that its router chose; -1 = no longer. A
 * parked chunk is dropped. Exact however prompts are cut and steps are shared; drafts that are rejected,
 * failed steps and what is computed again after a truncation count too, the MTP layer does not. A step all of
 * whose sessions count adds nothing to colibri_engine_usage. Not in the middle of a prefill. */
int32_t colibri_session_count(colibri_session *session, int32_t from, char *err, size_t err_len);
/* The counts so far, indexed as colibri_engine_usage, n as there. Between steps only. */
int32_t colibri_session_counts(const colibri_session *session, uint32_t *counts, int64_t n, char *err,
                               size_t err_len);

/* ---- KV blocks: sharing, leaving the engine and coming back ----
 * KV comes in blocks of block_tokens positions, all layers together. Sessions share blocks until one of
 * them writes; blocks can be stored elsewhere and put back in order, also by another process whose engine
 * names the same layout and has the same weights. */

/* Makes the empty session `into` hold the first `length` tokens of `from`, without copying their KV. It
 * has no logits until its next token. */
int32_t colibri_session_fork(const colibri_session *from, int32_t length, colibri_session *into, char *err,
                             size_t err_len);
int32_t colibri_engine_block_tokens(const colibri_engine *engine);
int64_t colibri_engine_block_bytes(const colibri_engine *engine);
/* KV blocks that sessions may still take inside the budget, which holds full contexts of the sessions it
 * was made for, however many there are; -1 = no limit. */
int32_t colibri_engine_kv_room(const colibri_engine *engine);
/* One line of text that is equal exactly when blocks of two engines with equal weights are
 * interchangeable (family, kernels, KV type, parts); never depends on the context size or on drafts. Writes
 * at most out_len bytes, always terminated; returns the length of the whole text. */
int32_t colibri_engine_kv_layout(const colibri_engine *engine, char *out, size_t out_len);
/* Layers with a window drop what it has passed, so a session cannot go back to any length: this is the
 * greatest one, not above `length`, to which it can be truncated or forked. Always `length` for models
 * without windows. */
int32_t colibri_session_reusable(const colibri_session *session, int32_t length);
/* Keeps the present length reusable (a turn's end, say), beside those of every 4,096 tokens; of many the
 * closest to each other go first. */
void colibri_session_checkpoint(colibri_session *session);
/* Copies block number `block` (0 = the first); `bytes` must be block_bytes. The last one may be incomplete:
 * what it says of positions that the session does not hold means nothing. */
int32_t colibri_session_export_block(const colibri_session *session, int32_t block, void *out, int64_t bytes,
                                     char *err, size_t err_len);
/* Appends n tokens, 1 to block_tokens, whose KV is `data`, to a session whose length is a multiple of
 * block_tokens. A block may be used for fewer tokens than it was exported with. The data is taken as it is:
 * the caller has checked that it was exported after exactly these tokens. */
int32_t colibri_session_import_block(colibri_session *session, const int32_t *tokens, int32_t n,
                                     const void *data, int64_t bytes, char *err, size_t err_len);

/* Tokens whose blocks were put back without keys of the MTP layer, because the engine that they came from had
 * it not loaded: drafts behind them are worse. 0 for an engine without drafts. */
int32_t colibri_session_draftless(const colibri_session *session);

/* ---- An unfinished chunk, parked or not, leaves the engine and comes back ----
 * In pieces: 0, 1, ... = the KV that one layer keeps of the chunk's positions, -1 = its rows between two
 * layers. The chunk can be filled again, also by another process whose engine names the same layout and has
 * the same weights, in a session that holds exactly the tokens before it. */
typedef struct {
    uint32_t struct_size;
    int32_t first;  /* tokens before the chunk */
    int32_t tokens; /* 0 = there is none, or it has come too far to be worth it: no place to leave is left */
    int32_t layers; /* finished: their pieces can be exported from now on, and change no more */
    int32_t
        between; /* 1 = the rows can be exported now, and with the pieces of `layers` layers are all of it */
    int32_t reserved;
} colibri_chunk;
/* Fills `out`, whose struct_size is set. */
void colibri_session_chunk(const colibri_session *session, colibri_chunk *out);
/* From now on (1) or no longer (0) a prefill step returns early where the rows can be exported. */
void colibri_session_pause(colibri_session *session, int32_t on);
/* Bytes of a piece of the session's chunk; 0 = there is no such piece. */
int64_t colibri_session_chunk_bytes(const colibri_session *session, int32_t piece);
int32_t colibri_session_export_chunk(const colibri_session *session, int32_t piece, void *out, int64_t bytes,
                                     char *err, size_t err_len);
/* Makes room for a chunk of n tokens with so many finished layers, COLIBRI_ERROR_MEMORY if this engine's
 * chunks are smaller; then fill_chunk takes pieces 0 .. layers - 1 and -1, in this order. With the last one
 * the chunk is parked; whatever drops a parked chunk drops one that is being filled. The data is taken as it
 * is. */
int32_t colibri_session_import_chunk(colibri_session *session, const int32_t *tokens, int32_t n,
                                     int32_t layers, char *err, size_t err_len);
int32_t colibri_session_fill_chunk(colibri_session *session, int32_t piece, const void *data, int64_t bytes,
                                   char *err, size_t err_len);

/* Announces tokens to append. `logits` is NULL, or f32 [n, vocab] that receives the logits of every
 * token (must stay valid until the prefill has finished). Ids outside the vocabulary are refused. */
int32_t colibri_prefill_start(colibri_session *session, const int32_t *tokens, int32_t n, float *logits,
                              char *err, size_t err_len);
/* Works for about `max_ms`: returns when they have passed, also while waiting for the disk (0 = to the end;
 * negative = one small slice, for tests). After COLIBRI_ERROR_CANCELLED or COLIBRI_ERROR_IO what is finished
 * is kept: tokens_done tells how much the session holds, colibri_session_parked what can be resumed. Other
 * failures drop the unfinished chunk. */
int32_t colibri_prefill_step(colibri_session *session, int32_t max_ms, colibri_prefill_progress *progress,
                             char *err, size_t err_len);

/* One decode step: appends tokens[i] to sessions[i] (all different, none in prefill) and computes
 * the logits of each. All or nothing: after a failure no session has grown, and none has logits. */
int32_t colibri_decode(colibri_session *const *sessions, const int32_t *tokens, int32_t n, char *err,
                       size_t err_len);
/* The same with counts[i] tokens for session i, tokens one session after the other; counts NULL = one
 * each. The logits after each of these tokens stay available to colibri_session_sample_at, also after
 * a truncation to a length inside the step. */
int32_t colibri_decode_many(colibri_session *const *sessions, const int32_t *tokens, const int32_t *counts,
                            int32_t n, char *err, size_t err_len);
/* Guesses up to `depth` tokens that may follow `next`, the token about to be appended. *n_drafts may be
 * smaller, 0 if the engine was opened without drafts. Append `next` and the drafts with
 * colibri_decode_many, keep the drafts that equal what colibri_session_sample_at gives at their place,
 * truncate the others away: the text is then bit for bit the one without drafts. */
int32_t colibri_session_draft(colibri_session *session, int32_t next, int32_t depth, int32_t *drafts,
                              int32_t *n_drafts, char *err, size_t err_len);
/* Samples the token that follows the first `length` ones, from the logits of the last step. */
int32_t colibri_session_sample_at(colibri_session *session, int32_t length, const colibri_sampling *sampling,
                                  int32_t *token, char *err, size_t err_len);
/* Samples from the session's current logits; does not append. */
int32_t colibri_session_sample(colibri_session *session, const colibri_sampling *sampling, int32_t *token,
                               char *err, size_t err_len);
/* Copies the current logits, f32 [vocab]. */
int32_t colibri_session_logits(const colibri_session *session, float *out, int32_t n, char *err,
                               size_t err_len);

/* Any thread. The running or next prefill step of this session returns COLIBRI_ERROR_CANCELLED after the
 * slice that it is in, or within a quarter of a second while it waits for the disk; the flag is then
 * cleared. */
void colibri_session_cancel(colibri_session *session);

/* Cache policies that a trace of routed experts can be replayed through. */
typedef enum {
    COLIBRI_POLICY_OURS = 0,        /* what the engine runs */
    COLIBRI_POLICY_LRU = 1,         /* least recently used goes first */
    COLIBRI_POLICY_LFU = 2,         /* least often used of all time */
    COLIBRI_POLICY_DECAYED_LFU = 3, /* the same with counts that halve every half_life steps */
    COLIBRI_POLICY_BELADY = 4       /* the optimum, which knows the future */
} colibri_policy_kind;

typedef struct {
    uint32_t struct_size;
    int32_t kind; /* colibri_policy_kind */
    int32_t n_layers;
    int32_t n_experts;
    int32_t slots;     /* experts that fit in memory together */
    float half_life;   /* steps, COLIBRI_POLICY_DECAYED_LFU only */
    float guess_share; /* COLIBRI_POLICY_OURS: the next request is guessed, this share of it right; 0 = off */
    int32_t fault;     /* tests only, see src/fault.h */
} colibri_replay_options;

typedef struct {
    uint32_t struct_size;
    int32_t reserved;
    int64_t lookups; /* experts that decode steps asked for */
    int64_t hits;    /* of those, in memory when asked for */
    int64_t guesses; /* experts loaded on a guess */
    int64_t guesses_useful;
    /* Experts asked for that gave way to a guess although guesses held their share of slots already; a guess
     * within it takes the place that the load it saved would have taken. 0 by design. */
    int64_t demand_evictions;
} colibri_replay_result;

/* Replays a trace in memory: records of int32 words, {step, layer, rows, n, n experts}, steps ascending, each
 * one layer's request; those of a prompt passing (more than 64 rows, or several and most experts) count no
 * lookups. With slots < 1
 * or a trace that contradicts itself or the sizes: COLIBRI_ERROR_INVALID or _FORMAT. A pure function. */
int32_t colibri_policy_replay(const colibri_replay_options *options, const int32_t *records, int64_t n_words,
                              colibri_replay_result *result, char *err, size_t err_len);

/* CFFI-END */

#ifdef __cplusplus
}
#endif
#endif
