"""What the HTTP side and the engine worker say to each other, as typed messages and frames.

For: both ends of a transport (`thread`, `process`) and the scripted fake engine. Not for: HTTP
bodies; a dialect's encoder turns parts and usage into those.

    commands   Submit  Cancel  TakeSnapshot  Stop
    events     Loading*, Loaded | LoadFailed, then per job: Accepted (Progress | Tokens)*
               (Done | Failed), and Telemetry, Experts

Every accepted job ends with exactly one Done or Failed. Text is final: it is detokenised, stop
strings are cut, and usage counts exactly the tokens sampled to make it, because all of that runs
in the worker between two engine steps. A frame is a little-endian u32 length and that many bytes
of msgpack. Thread rule: messages are immutable values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, BinaryIO, Literal, TypeAlias

import msgspec

from colibri.engine.answer import AnswerForm, Notice, Part, Text
from colibri.engine.work import Work

# Longest frame either end accepts. A prompt of a million tokens takes 5 MB; a corrupt length would
# otherwise ask for gigabytes.
MAX_FRAME_BYTES = 64 << 20
_LENGTH = struct.Struct("<I")

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "cancelled"]
Phase: TypeAlias = Literal["waiting", "prefill", "decode"]


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all messages: immutable, told apart by `type`."""


# ---- commands ------------------------------------------------------------------------------------


class Submit(_Message, frozen=True, tag="submit"):
    """Generate a continuation of `prompt` (token ids), at most `max_tokens` long.

    All defaults are already resolved: the worker knows nothing of requests, launch options or
    models. `cache_slot` pins the job to a KV slot, for which it then waits. With `count_from` the
    job is a measurement: every prompt token from this position on is computed, nothing is drafted,
    neither use counts nor stored context know of it, and Done tells its routing.
    """

    job: str
    prompt: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stops: tuple[str, ...] = ()
    ignore_leading_stop: bool = False
    cache_slot: int | None = None
    answer: AnswerForm = AnswerForm()
    count_from: int | None = None


class Cancel(_Message, frozen=True, tag="cancel"):
    """End a job now: it answers Done(finish_reason="cancelled") unless it has ended already."""

    job: str


class TakeSnapshot(_Message, frozen=True, tag="snapshot"):
    """Answer with Telemetry of the same serial, at once, also in the middle of a step."""

    serial: int


class TakeExperts(_Message, frozen=True, tag="take_experts"):
    """Answer with Experts of the same serial, at once, also in the middle of a step."""

    serial: int


class Stop(_Message, frozen=True, tag="stop"):
    """End every job, close the engine, leave."""


Command: TypeAlias = Submit | Cancel | TakeSnapshot | TakeExperts | Stop


# ---- events --------------------------------------------------------------------------------------


class MemoryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The budget and what was granted of it, in bytes. None = no limit, or not known.

    `origin` says where the budget came from: flag, available, cgroup or unknown.
    """

    budget: int | None
    origin: str
    available: int | None
    program: int
    weights: int
    experts: int
    kv: int
    scratch: int
    prefill_chunk: int


class ExpertLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The routed experts of a model: `cols` in each of the model's `layers` that have some, the MTP
    layer's last; the last `draft_layers` of them are MTP layers. `bytes` is what all of them take
    in memory; a token goes to `per_token` of each layer.
    """

    layers: tuple[int, ...]
    cols: int
    bytes: int
    per_token: int = 1
    draft_layers: int = 0


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a loaded engine. Sizes in bytes; a budget of 0 means no limit. `trained_context` is
    the longest context that the model was made for, 0 when that is not known.
    """

    context: int
    vocab: int
    isa: str
    precision: str
    threads: int
    weight_bytes: int
    kv_bytes_per_token: int
    memory_budget: int
    trained_context: int = 0
    # Most drafts of the MTP layer per step; 0 with the reason why there are none.
    drafts: int = 0
    drafts_reason: str = "no MTP layer"
    memory: MemoryInfo | None = None
    experts: ExpertLayout | None = None


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job stands: prompt tokens read of all, tokens generated, drafts made and kept, and
    what the engine did while it ran.
    """

    job: str
    phase: Phase
    prompt_done: int
    prompt_total: int
    generated: int
    drafts_proposed: int = 0
    drafts_accepted: int = 0
    work: Work = Work()


class DraftState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the MTP layer drafts, how deep, why, and what it brings.

    `acceptance` is the share of all drafts that were kept, `tokens_per_forward` what a step with
    drafts gave per job. Costs per token are the latest measured, None before that.
    """

    on: bool = False
    depth: int = 0
    most: int = 0
    proposed: int = 0
    accepted: int = 0
    acceptance: float | None = None
    tokens_per_forward: float | None = None
    ms_per_token_with: float | None = None
    ms_per_token_without: float | None = None
    bytes_per_token_with: int | None = None
    bytes_per_token_without: int | None = None
    reason: str = "off: no MTP layer"


class MirrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """One place that experts are read from: the model's own folder first, then its mirrors.

    `files` of the model's files are read here; `left_out` tells which are not, and why. `failed`:
    the last read failed, and only one read now and then finds out whether the drive is back.
    """

    folder: str
    files: int
    left_out: tuple[str, ...] = ()
    failed: bool = False
    bytes_read: int = 0
    reads: int = 0
    failures: int = 0
    bytes_per_second: int = 0


class ExpertState(msgspec.Struct, frozen=True, kw_only=True):
    """Routed experts: where they are and what reading them took since the engine was opened.

    With `streaming` they come from disk through a cache of `slots` experts, of which it holds
    `cached` now. Of the bytes read on a
    guess, `useful_bytes` were asked for in time and `wasted_bytes` given up unused.
    """

    streaming: bool = False
    slots: int = 0
    cached: int = 0
    lookups: int = 0
    misses: int = 0
    bytes_read: int = 0
    guessed_bytes: int = 0
    useful_bytes: int = 0
    wasted_bytes: int = 0
    disk_wait_ms: float = 0.0
    mirrors: tuple[MirrorReport, ...] = ()


class KvSlotState(msgspec.Struct, frozen=True, kw_only=True):
    """A KV slot: whether a job has it, and how many tokens it holds."""

    index: int
    busy: bool
    tokens: int


class StoreState(msgspec.Struct, frozen=True, kw_only=True):
    """The prefix store: `state` is ready, read-only or off, with a word why in `note`.

    Blocks and bytes as they are now, the rest counted since the engine was opened. Of the blocks
    handed to the writer, `waiting_blocks` are not on disk yet; refused and failed ones are computed
    again when they are needed.
    """

    state: str
    note: str
    blocks: int
    bytes: int
    budget_bytes: int
    put_blocks: int
    read_blocks: int
    evicted_blocks: int
    damaged_blocks: int
    waiting_blocks: int
    refused_blocks: int
    failed_blocks: int


class KvState(msgspec.Struct, frozen=True, kw_only=True):
    """Context that is kept. `kept_sessions` lie beside the slots; `dropped_sessions` conversations
    had to go, there or in idle slots, because KV was needed; `room_blocks` of KV, each
    `block_tokens` long, may still be taken (None = no limit). Of `prompt_tokens` asked for so far
    `cached_tokens` were not computed. `store` is None without one.
    """

    slots: tuple[KvSlotState, ...] = ()
    kept_sessions: int = 0
    dropped_sessions: int = 0
    block_tokens: int = 0
    room_blocks: int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    store: StoreState | None = None


class EngineSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and jobs at one moment. `progress` stands still only if the engine is stuck: it
    grows with layers computed, bytes of experts read, tokens drawn and blocks taken from disk.
    """

    progress: int
    prompt_tokens: int
    decoded_tokens: int
    weight_bytes: int
    kv_bytes: int
    scratch_bytes: int
    jobs: tuple[JobState, ...]
    experts: ExpertState = ExpertState()
    drafts: DraftState = DraftState()
    kv: KvState = KvState()
    work: Work = Work()


class ExpertMap(msgspec.Struct, frozen=True, kw_only=True):
    """Of each expert, row by row: tier (0 disk, 1 RAM, 2 VRAM, 3 being read; a byte), heat of all
    time (0 to 255; a byte) and how often turn number `turn` asked for it (little-endian u16).
    """

    turn: int
    tiers: bytes
    heat: bytes
    hits: bytes


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """How often a job's tokens were routed to each expert: `layers` are the model's numbers of the
    rows, each of `cols` experts, of which a token goes to `per_token`; counts are little-endian
    u32, row by row. `prompt` counts the prompt from `Submit.count_from` on, `answer` the generated
    tokens that were computed: all, but the last one where the answer was cut. A row without any is
    that of an MTP layer.
    """

    layers: tuple[int, ...]
    cols: int
    per_token: int
    prompt: bytes
    answer: bytes


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one job. `cached` of the `prompt` tokens were already held and not computed;
    `reasoning` of the `completion` tokens belong to the reasoning.
    """

    prompt: int
    cached: int
    completion: int
    reasoning: int = 0


class Loading(_Message, frozen=True, tag="loading"):
    """The engine is being opened: bytes read of the weights that stay in memory."""

    bytes_read: int
    bytes_total: int


class Loaded(_Message, frozen=True, tag="loaded"):
    """The engine is open and takes jobs."""

    info: EngineInfo


class LoadFailed(_Message, frozen=True, tag="load_failed"):
    """The engine could not be opened; the worker leaves. Fields as in `ColibriError`."""

    kind: str
    code: str
    message: str
    hint: str | None = None
    where: str | None = None


class Accepted(_Message, frozen=True, tag="accepted"):
    """A job has its KV slot; `cached` prompt tokens need no computing."""

    job: str
    prompt: int
    cached: int
    slot: int = 0


class Progress(_Message, frozen=True, tag="progress"):
    """Prompt tokens in the slot so far, cached ones included, and how far the reading is.

    A model that streams reads thousands of tokens layer by layer, so `done` stands still for long:
    `fraction` is the share of the work that is done, `layer` of `layers` where the tokens in work
    are. Bytes are those read from disk for this prompt, and an estimate of those to come.
    """

    job: str
    done: int
    total: int
    fraction: float = 0.0
    layer: int = 0
    layers: int = 0
    bytes_read: int = 0
    bytes_left: int = 0
    eta_seconds: float | None = None


class Tokens(_Message, frozen=True, tag="tokens"):
    """New output. `generated` counts the job's sampled tokens so far."""

    job: str
    parts: tuple[Part, ...]
    generated: int

    @property
    def text(self) -> str:
        """The visible text among the parts."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))


class Done(_Message, frozen=True, tag="done"):
    """A job ended as it should. Times in milliseconds. `tool_calls`: at least one call was made;
    `generated` are then all the tokens of the answer, the end token left out.
    """

    job: str
    finish_reason: FinishReason
    usage: Usage
    prefill_ms: float
    decode_ms: float
    notice: Notice | None = None
    generated: tuple[int, ...] = ()
    # What the engine did while the job ran.
    work: Work = Work()
    routing: Routing | None = None  # of a measurement

    @property
    def prefill_per_second(self) -> float | None:
        """Prompt tokens computed a second; None if there was nothing to compute."""
        return per_second(self.usage.prompt - self.usage.cached, self.prefill_ms)

    @property
    def decode_per_second(self) -> float | None:
        """Tokens generated a second after the first one, which comes out of the prompt's last step;
        None for an answer of one token.
        """
        return per_second(self.usage.completion - 1, self.decode_ms)


def per_second(tokens: int, milliseconds: float) -> float | None:
    """The rate of so many tokens in such a time; None without tokens or time."""
    if tokens < 1 or milliseconds <= 0:
        return None
    return round(tokens / milliseconds * 1000, 2)


class Failed(_Message, frozen=True, tag="failed"):
    """A job ended because something went wrong; `code` as in `ColibriError`."""

    job: str
    code: str
    message: str
    hint: str | None = None


class Experts(_Message, frozen=True, tag="experts"):
    """Answer to TakeExperts; None for a dense model."""

    serial: int
    map: ExpertMap | None


class Telemetry(_Message, frozen=True, tag="telemetry"):
    """Answer to TakeSnapshot."""

    serial: int
    snapshot: EngineSnapshot


JobEvent: TypeAlias = Accepted | Progress | Tokens | Done | Failed
Event: TypeAlias = Loading | Loaded | LoadFailed | JobEvent | Telemetry | Experts
Sink: TypeAlias = Callable[[JobEvent], None]


# ---- frames --------------------------------------------------------------------------------------


class FrameError(Exception):
    """The other end sent what is no frame of ours; the connection cannot be used any more."""


_encoder = msgspec.msgpack.Encoder()


def write_frame(stream: BinaryIO, message: Any) -> None:
    """Writes one message and flushes. Raises OSError when the other end is gone."""
    body = _encoder.encode(message)
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def _read_body(stream: BinaryIO) -> bytes | None:
    head = stream.read(_LENGTH.size)
    if not head:
        return None
    if len(head) < _LENGTH.size:
        raise FrameError("a frame ends inside its length")
    (size,) = _LENGTH.unpack(head)
    if size > MAX_FRAME_BYTES:
        raise FrameError(f"a frame claims {size} bytes, more than {MAX_FRAME_BYTES}")
    body = stream.read(size)
    if len(body) < size:
        raise FrameError(f"a frame of {size} bytes ends after {len(body)}")
    return body


def read_frame(stream: BinaryIO, kind: Any) -> Any:
    """Next message of the msgspec type `kind`, or None at the end of the stream.

    `stream` must be buffered, so that a read returns all that was asked for. Raises FrameError.
    """
    body = _read_body(stream)
    if body is None:
        return None
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise FrameError(f"a frame holds no valid message: {error}") from error
