"""Drafts on the real engine: from a model folder through the loop to text.

R136 int8 and int4 MTP layers, R137 a floor of the acceptance, R140 the same ids with and without,
R144 errors at the same token. The fast path with 16-bit KV, experts in a cache that does not hold
them all, unless a test says otherwise.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from colibri.engine.draft_policy import DraftPolicy
from colibri.engine.ffi import Engine, has_isa
from colibri.engine.protocol import Failed
from colibri.engine.status import EngineError
from colibri.engine.table import EngineOptions, Isa
from colibri.errors import ResourceError
from colibri.models import backend as opening
from colibri.models import draft_choice
from colibri.models.backend import NativeBackend, Options
from colibri.models.container import open_folder
from tests.oracle import fixture
from tests.support import draftmodel
from tests.support.engineloop import EngineLoop, Fixed, text_of

ISAS = [isa for isa in Isa if isa != Isa.AUTO and has_isa(isa)]
SLOTS = 5  # of 32 experts of the trunk, and of 16 of the MTP layer
PROMPTS = [draftmodel.prompt(seed, 12 + 9 * seed) for seed in range(8)]
TOKENS = 60
# Measured 0.91 greedy; everything that the fixture consists of is fixed.
ACCEPTANCE_FLOOR = 0.85
FAULT_BATCH_ORDER, FAULT_NAN = 1, 3  # native/src/fault.h

Open = Callable[..., NativeBackend]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draftmodel.make(tmp_path_factory.mktemp("drafts") / "int8")


@pytest.fixture
def open_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens the model (or another folder) with engine options that users do not have."""
    opened: list[NativeBackend] = []

    def open_one(
        drafts: str,
        *,
        path: Path = folder,
        expert_slots: int = SLOTS,
        fault: int = 0,
        isa: str = "auto",
        precision: str = "fast",
    ) -> NativeBackend:
        options = functools.partial(EngineOptions, expert_slots=expert_slots, fault=fault)
        monkeypatch.setattr(opening, "EngineOptions", options)
        opened.append(
            NativeBackend(
                Options(
                    folder=str(path),
                    context=512,
                    drafts=drafts,
                    threads=2,
                    parallel=8,
                    isa=isa,
                    precision=precision,
                )
            )
        )
        return opened[-1]

    yield open_one
    for backend in opened:
        backend.close()


@contextmanager
def looped(backend: NativeBackend, parallel: int = 1) -> Iterator[EngineLoop]:
    loop = EngineLoop(backend, parallel, Fixed)
    try:
        yield loop
    finally:
        loop.close()


def answers(backend: NativeBackend, **fields: object) -> list[tuple[list[int], str, int]]:
    """Ids, text and token count of the answer to each prompt, one after the other."""
    found = []
    with looped(backend) as loop:
        (slot,) = loop.worker._slots.slots
        for number, prompt in enumerate(PROMPTS):
            text, done = loop.answer(prompt, max_tokens=TOKENS, seed=number, **fields)
            # The last token is told and not appended.
            found.append((slot.history[len(prompt) :], text, done.usage.completion))
    return found


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.0}]
)
def test_R140_ids_and_text_are_the_same_with_and_without_drafts(
    open_model: Open, sampling: dict[str, float]
) -> None:
    """Greedy, and with a seed at a temperature: every draw depends on seed and position alone."""
    plain = open_model("0")
    expected = answers(plain, **sampling)
    assert plain.counters().streaming
    for depth in ("1", "2", "3"):
        drafting = open_model(depth)
        assert answers(drafting, **sampling) == expected
        assert drafting.counters().expert_misses > 0
    resident = open_model("3", expert_slots=0)
    assert not resident.counters().streaming
    assert answers(resident, **sampling) == expected


@pytest.mark.parametrize(
    "path",
    [{"isa": isa.name.lower()} for isa in ISAS] + [{"precision": "f32", "expert_slots": 0}],
    ids=lambda path: next(iter(path.values())),
)
def test_R140_on_every_instruction_set_and_the_reference_path(
    open_model: Open, path: dict[str, object]
) -> None:
    found = []
    for drafts in ("0", "3"):
        with looped(open_model(drafts, **path)) as loop:
            found.append([loop.answer(prompt, max_tokens=30)[0] for prompt in PROMPTS[:3]])
            accepted = loop.worker.snapshot().drafts.accepted
    assert found[0] == found[1]
    assert accepted > 60


def test_a_planted_dependence_on_the_width_of_a_step_breaks_the_equality_above(
    open_model: Open,
) -> None:
    expected = answers(open_model("0"), temperature=1.0)
    assert answers(open_model("3", fault=FAULT_BATCH_ORDER), temperature=1.0) != expected


def test_jobs_side_by_side_with_drafts_give_the_texts_of_each_alone_without(
    open_model: Open,
) -> None:
    expected = [text for _, text, _ in answers(open_model("0"), temperature=1.0)]
    with looped(open_model("3"), parallel=4) as loop:
        jobs = [
            loop.submit(prompt, max_tokens=TOKENS, seed=number, temperature=1.0)
            for number, prompt in enumerate(PROMPTS)
        ]
        ends = loop.ends(*jobs)
    assert [text_of(ends[job]) for job in jobs] == expected


def test_a_conversation_continues_from_what_drafts_left_in_the_slot(open_model: Open) -> None:
    """Turn two begins with turn one and its answer: what is cached is the same, and so is the text
    that follows."""
    seen = []
    for drafts in ("0", "3"):
        with looped(open_model(drafts)) as loop:
            (slot,) = loop.worker._slots.slots
            loop.answer(PROMPTS[3], max_tokens=TOKENS)
            second = slot.history + draftmodel.prompt(99)
            text, done = loop.answer(second, max_tokens=TOKENS)
            seen.append((text, done.usage.cached, done.usage.completion))
    assert seen[0] == seen[1]


def test_R137_the_acceptance_of_a_fixed_layer_on_fixed_prompts_has_a_floor(
    open_model: Open,
) -> None:
    """A text can be right while the layer has silently gone wrong."""
    backend = open_model("3")
    with looped(backend) as loop:
        for prompt in PROMPTS:
            loop.answer(prompt, max_tokens=TOKENS)
        state = loop.worker.snapshot().drafts
    assert state.acceptance is not None
    assert state.tokens_per_forward is not None
    assert state.acceptance >= ACCEPTANCE_FLOOR
    assert state.tokens_per_forward > 3


def test_R136_an_int4_layer_that_predicts_nothing_is_measured_as_such(
    open_model: Open, tmp_path: Path
) -> None:
    """One scale per row and an outlier in it: the same layer in int8 does well."""
    path = draftmodel.make(tmp_path / "int4", mtp="i4_row")
    with looped(open_model("3", path=path)) as loop:
        for prompt in PROMPTS:
            loop.answer(prompt, max_tokens=TOKENS)
        state = loop.worker.snapshot().drafts
    assert state.acceptance is not None
    assert state.acceptance < 0.05
    assert state.tokens_per_forward is not None
    assert state.tokens_per_forward < 1.05


def test_R136_such_a_layer_is_switched_off_while_the_text_stays(
    open_model: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = draftmodel.make(tmp_path / "int4", mtp="i4_row")
    expected = [text for _, text, _ in answers(open_model("0", path=path))]
    loop = EngineLoop(open_model("3", path=path), policy=DraftPolicy)
    texts = [loop.answer(prompt, max_tokens=TOKENS)[0] for prompt in PROMPTS]
    state = loop.worker.snapshot().drafts
    loop.close()
    assert texts == expected
    assert (state.on, state.depth) == (False, 0)
    assert state.reason.startswith(("off: time per token", "off: bytes per accepted token"))
    assert "drafts: depth 1 -> 0" in caplog.text


@pytest.mark.parametrize("length", [1, 2, 3])
def test_R144_not_finite_values_end_an_answer_at_the_same_token_with_the_same_words(
    open_model: Open, length: int
) -> None:
    """The planted fault spoils position 3, which drafts reach one to three steps early."""
    ends = []
    for drafts in ("0", "3"):
        with looped(open_model(drafts, fault=FAULT_NAN)) as loop:
            job = loop.submit(PROMPTS[0][:length], max_tokens=TOKENS)
            events = loop.ends(job)[job]
            failed = events[-1]
            assert isinstance(failed, Failed)
            ends.append((text_of(events), failed.code, failed.message))
    assert ends[0] == ends[1]
    text, code, message = ends[0]
    assert (len(text), code) == (4 - length, "engine_numeric")
    assert "position 3" in message
    assert "layer 2 of 3" in message  # whose input layer 1 has spoilt


def test_R144_not_finite_values_that_only_a_draft_meets_are_no_failure(open_model: Open) -> None:
    with looped(open_model("3", fault=FAULT_NAN)) as loop:
        _, done = loop.answer(PROMPTS[0][:1], max_tokens=3)
    assert done.usage.completion == 3


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", fixture.NAMES)
def test_R144_a_step_that_was_not_finite_leaves_nothing_behind(name: str, isa: Isa) -> None:
    """Kernels multiply masked positions by zero, and NaN times zero is NaN: what a failed step
    stored behind the end would spoil the step without drafts."""
    one = fixture.load(name)
    files, tokens = open_folder(one.model), one.prompts[2].tokens
    logits = []
    for fault in (0, FAULT_NAN):
        options = EngineOptions(isa=isa, threads=2, context=256, fault=fault)
        with Engine(files.paths, files.geometry, files.tensors, options) as engine:
            session = engine.session()
            session.prefill(tokens[:2])
            if fault:
                with pytest.raises(EngineError, match="position 3"):
                    engine.decode_many([session], [tokens[2:6]])
            engine.decode([session], [tokens[2]])
            logits.append(session.logits())
    assert np.array_equal(*logits)


def test_drafted_tokens_have_the_distribution_of_the_model(open_model: Open) -> None:
    """Six hundred seeds: the second token, drawn in a row of drafts, against the probabilities that
    the logits without drafts give; a chi-squared test at one in ten thousand."""
    prompt, most = PROMPTS[2], 600
    with looped(open_model("3"), parallel=8) as loop:
        jobs = [
            loop.submit(prompt, max_tokens=4, temperature=1.0, seed=1000 + seed)
            for seed in range(most)
        ]
        ends = loop.ends(*jobs)
    texts = [text_of(ends[job]) for job in jobs]
    first = Counter(text[:1] for text in texts).most_common(1)[0][0]
    seconds = Counter(text[1:2] for text in texts if text.startswith(first))
    plain = open_model("0")
    session = plain.session()
    session.prefill_start([*prompt, ord(first) - ord("!")])
    while not session.prefill_step(0).finished:
        pass
    logits = session.logits()
    chances = np.exp(logits - logits.max())
    chances /= chances.sum()
    n = seconds.total()
    assert n > most / 4
    common = [token for token in range(draftmodel.CHARACTERS) if chances[token] * n >= 5]
    assert len(common) >= 2
    expected = [chances[token] * n for token in common]
    observed = [float(seconds[chr(ord("!") + token)]) for token in common]
    expected.append(n - sum(expected))
    observed.append(n - sum(observed))
    squares = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    freedom = len(expected) - 1
    # Wilson and Hilferty's bound of the distribution at 3.72 deviations.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
    assert squares < limit


# ---- opening -----------------------------------------------------------------------------------


def test_auto_drafts_as_deep_as_the_engine_can(open_model: Open) -> None:
    info = open_model("auto").info
    assert (info.drafts, info.drafts_reason) == (3, "")


def test_zero_does_not_load_the_layer_and_says_so(open_model: Open) -> None:
    with_layer, without = open_model("3"), open_model("0")
    assert (without.info.drafts, without.info.drafts_reason) == (0, "--drafts 0")
    assert without.info.weight_bytes < with_layer.info.weight_bytes


def test_a_layer_for_which_there_is_no_memory_is_left_out_or_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left out if nobody asked for it; who asks for drafts hears what is missing."""
    real = opening.ffi.Engine

    def engine(*arguments: object) -> object:
        if arguments[3].drafts:
            raise EngineError(opening.Status.MEMORY, "the budget of 1 GB is too small")
        return real(*arguments)

    monkeypatch.setattr(opening.ffi, "Engine", engine)
    backend = NativeBackend(Options(folder=str(folder), context=512))
    assert (backend.info.drafts, backend.info.drafts_reason) == (0, "no memory for the MTP layer")
    backend.close()
    with pytest.raises((EngineError, ResourceError), match="too small"):
        NativeBackend(Options(folder=str(folder), context=512, drafts="2"))


def test_the_choices_before_opening() -> None:
    assert draft_choice.drafts_wanted("0", 1) == (0, "--drafts 0")
    assert draft_choice.drafts_wanted("2", 0) == (0, "no MTP layer")
    assert draft_choice.drafts_wanted("2", 1) == (2, "")
    assert draft_choice.drafts_wanted("auto", 1) == (3, "")


@pytest.mark.parametrize(
    ("budget", "costs"), [(0, False), (90, False), (100, True), (109, True), (110, False)]
)
def test_a_layer_that_would_push_experts_out_of_memory_is_not_worth_it(
    budget: int, costs: bool
) -> None:
    """All fits in 100 without the layer, in 110 with it; in less they stream either way."""
    assert draft_choice.costs_residence(budget, 100, 110) is costs
