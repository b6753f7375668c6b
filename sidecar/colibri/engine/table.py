"""What Python hands to the engine: one geometry, one table of tensors, one set of options.

For: model loading (`colibri.models`) fills these, `colibri.engine.ffi` turns them into the C
structs of `colibri.h`. Field names, meanings and defaults are those of the header; nothing is
computed here. Not for: reading files, guessing formats (that is the models package) or talking to
C. Threads: every value is immutable and may be shared freely.

The enums repeat the header's numbers so that this module imports without the compiled extension; a
test compares each of them with the extension's constants.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Family(IntEnum):
    """Which graph runs (`colibri_family`)."""

    LLAMA = 1
    GLM_MOE_DSA = 2


class Format(IntEnum):
    """How the numbers of a matrix are stored (`colibri_format`)."""

    F32 = 1
    BF16 = 2
    F16 = 3
    I8_ROW = 4
    I4_ROW = 5
    I4_GROUP = 6
    FP8_BLOCK = 7
    Q4_0 = 8
    Q4_1 = 9
    Q8_0 = 10


class Layout(IntEnum):
    """Row-major as published, or interleaved for the kernels (`colibri_layout`)."""

    PLAIN = 0
    PACKED = 1


class Precision(IntEnum):
    """Fast kernels, or the f32 reference path (`colibri_precision`)."""

    FAST = 0
    F32 = 1


class KvType(IntEnum):
    """How keys and values are stored (`colibri_kv_type`)."""

    AUTO = 0
    F32 = 1
    BF16 = 2


class Isa(IntEnum):
    """Instruction set of the kernels (`colibri_isa`)."""

    AUTO = 0
    BASELINE = 1
    AVX2 = 2
    AVX512 = 3
    NEON = 4


class Tensor(msgspec.Struct, frozen=True):
    """One tensor of the table: where its bytes are and what they mean.

    `file` and `scale_file` index the path list given to the engine; `scale_file` -1 means that
    there is no scale span. A vector has `rows` = 1. `group` is the number of columns per scale
    (`Format.I4_GROUP` only, else 0). Offsets and sizes are in bytes from the start of the file.
    """

    name: str
    format: int
    rows: int
    cols: int
    file: int
    offset: int
    bytes: int
    layout: int = Layout.PLAIN
    group: int = 0
    scale_file: int = -1
    scale_offset: int = 0
    scale_bytes: int = 0


class Geometry(msgspec.Struct, frozen=True, kw_only=True):
    """Shape of the model (`colibri_geometry`). Fields of the other family stay 0.

    `layer_sparse` and `layer_indexer` hold one byte (0 or 1) per layer; empty means NULL: all
    layers dense, and no indexer at all.
    """

    family: int
    n_layers: int
    hidden: int
    vocab: int
    vocab_used: int = 0
    ffn: int = 0
    n_heads: int = 0
    n_kv_heads: int = 0
    head_dim: int = 0
    max_position: int = 0
    tied_embeddings: bool = False
    norm_eps: float = 0.0
    latent_eps: float = 0.0
    rope_theta: float = 0.0
    q_lora: int = 0
    kv_lora: int = 0
    qk_nope: int = 0
    qk_rope: int = 0
    v_head: int = 0
    index_heads: int = 0
    index_dim: int = 0
    index_topk: int = 0
    n_experts: int = 0
    experts_per_token: int = 0
    n_shared_experts: int = 0
    expert_ffn: int = 0
    n_group: int = 0
    topk_group: int = 0
    norm_topk: bool = False
    routed_scale: float = 0.0
    n_mtp_layers: int = 0
    layer_sparse: bytes = b""
    layer_indexer: bytes = b""


class IoMode(IntEnum):
    """How experts are read from disk (`colibri_io_mode`)."""

    AUTO = 0
    URING = 1
    THREADS = 2
    BUFFERED = 3


class MirrorState(IntEnum):
    """Whether a set of files is read (`colibri_mirror_state`)."""

    IN_USE = 0
    FAILED = 1


class MirrorCounters(msgspec.Struct, frozen=True):
    """One set of weight files that experts are read from (`colibri_mirror_t`).

    `state` is a `MirrorState`, `refused` counts files given and left out, `rate` is in bytes per
    second (0 = not measured yet).
    """

    state: int
    files: int
    refused: int
    bytes: int
    reads: int
    failures: int
    rate: int


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to open the engine (`colibri_engine_options`); 0 is always the engine's own choice.

    `context` is the most tokens a session may hold, `memory_budget` the most bytes that the engine
    and `caller_bytes` (what the caller's own processes hold) may take together, `sessions` how many
    full contexts that must include, `fault` plants a numbered fault (tests only). Experts stream
    from disk when they do not fit, or through exactly `expert_slots` cached ones of each size;
    `io_mode`, `io_buffered` and `no_prefetch` choose how they are read. `drafts` loads the MTP
    layer and is the most drafts per step.
    """

    precision: int = Precision.FAST
    kv_type: int = KvType.AUTO
    isa: int = Isa.AUTO
    threads: int = 0
    pin_threads: bool = False
    context: int = 0
    prefill_chunk: int = 0
    memory_budget: int = 0
    fault: int = 0
    sessions: int = 0
    expert_slots: int = 0
    io_mode: int = IoMode.AUTO
    io_buffered: bool = False
    no_prefetch: bool = False
    drafts: int = 0
    caller_bytes: int = 0


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How to draw the next token (`colibri_sampling`). Temperature 0 is greedy, `top_p` 1 is off.

    `mask` is empty (every token allowed) or holds ceil(vocab / 32) little-endian 32-bit words in
    which bit i % 32 of word i // 32 allows token i.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    mask: bytes = b""
