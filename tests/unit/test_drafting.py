"""Drafts in the engine loop, over the scripted engine: the text is the one without them.

Covers R136, R138, R140 and R144 as far as the loop is concerned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from colibri.engine import fake
from colibri.engine.draft_policy import DraftPolicy
from colibri.engine.drafting import Lag
from colibri.engine.fake import FakeBackend, Options, Script
from colibri.engine.protocol import (
    Accepted,
    Cancel,
    Done,
    Event,
    Failed,
    Tokens,
)
from tests.support.engineloop import TIMEOUT, EngineLoop, Fixed, text_of

WORDS = tuple(f"word{i} " for i in range(40))


class Harness(EngineLoop):
    """A worker over a scripted engine with drafts; prompts are texts."""

    def __init__(
        self,
        drafts: int = 3,
        parallel: int = 1,
        context: int = 4096,
        policy: Callable[[int], DraftPolicy] = Fixed,
    ) -> None:
        self.backend = FakeBackend(Options(context=context, drafts=drafts))
        # The scripts' own time: a busy machine decides nothing here.
        super().__init__(self.backend, parallel, policy, lambda: self.backend.step_ms / 1000)

    def ask(self, prompt: str = "hi", **fields: object) -> str:
        return self.submit(fake.encode(prompt), **fields)

    def say(self, prompt: str = "hi", **fields: object) -> tuple[str, Done]:
        return self.answer(fake.encode(prompt), **fields)


@pytest.fixture
def harness() -> Iterator[Harness]:
    made = Harness()
    yield made
    made.close()


HITS = [(True,), (False,), (True, False), (True, True, False), (False, False, True, True)]


@pytest.mark.parametrize("hits", HITS)
@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_the_text_and_its_usage_are_those_without_drafts(
    drafts: int, hits: tuple[bool, ...]
) -> None:
    harness = Harness(drafts)
    harness.backend.enqueue(Script(pieces=WORDS, hits=hits))
    text, done = harness.say()
    assert text == "".join(WORDS)
    assert (done.finish_reason, done.usage.completion) == ("stop", len(WORDS))
    state = harness.worker.snapshot().drafts
    assert (state.accepted > 0) == any(hits)
    harness.close()


def test_accepted_drafts_save_steps(harness: Harness) -> None:
    harness.backend.enqueue(Script(pieces=WORDS))
    harness.say()
    assert len(harness.backend.steps) == len(WORDS) // 4
    state = harness.worker.snapshot().drafts
    assert state.tokens_per_forward is not None
    assert state.tokens_per_forward > 3.5


@pytest.mark.parametrize("limit", range(1, 12))
def test_no_token_beyond_max_tokens_is_told_or_computed(harness: Harness, limit: int) -> None:
    harness.backend.enqueue(Script(pieces=WORDS))
    text, done = harness.say(max_tokens=limit)
    assert text == "".join(WORDS[:limit])
    assert (done.finish_reason, done.usage.completion) == ("length", limit)
    assert harness.backend.longest < len("hi") + limit or limit == 1


@pytest.mark.parametrize("context", range(8, 16))
def test_no_token_beyond_the_context_is_computed(context: int) -> None:
    harness = Harness(context=context)
    harness.backend.enqueue(Script(pieces=("x",), repeat=True))
    text, done = harness.say("1234")
    assert text == "x" * (context - 4)
    assert done.finish_reason == "length"
    assert harness.backend.longest < context
    harness.close()


@pytest.mark.parametrize("stop", [f"word{i} " for i in range(8)])
def test_a_stop_text_inside_an_accepted_run_ends_text_usage_and_history_there(
    harness: Harness, stop: str
) -> None:
    harness.backend.enqueue(Script(pieces=WORDS))
    text, done = harness.say("prompt", stops=(stop,))
    number = WORDS.index(stop)
    assert text == "".join(WORDS[:number])
    assert (done.finish_reason, done.usage.completion) == ("stop", number + 1)
    (slot,) = harness.worker._slots.slots
    assert len(slot.history) == len(slot.session) == len("prompt") + number


@pytest.mark.parametrize("length", range(9))
def test_an_end_id_inside_an_accepted_run_ends_the_turn(harness: Harness, length: int) -> None:
    """The engine also drafts what would come behind the end; none of that is told or kept."""
    harness.backend.enqueue(Script(pieces=WORDS[:length]))
    text, done = harness.say("prompt")
    assert text == "".join(WORDS[:length])
    assert (done.finish_reason, done.usage.completion) == ("stop", length)
    (slot,) = harness.worker._slots.slots
    assert len(slot.history) == len(slot.session) == len("prompt") + length


@pytest.mark.parametrize("after", range(1, 9))
def test_a_cancel_in_the_middle_of_an_accepted_run_ends_there(harness: Harness, after: int) -> None:
    """The cancel comes with the n-th token out; none more is told, counted or kept."""

    def cancel(event: Event) -> None:
        if isinstance(event, Tokens) and event.generated == after:
            harness.worker.handle(Cancel(job=event.job))

    harness.on_event = cancel
    harness.backend.enqueue(Script(pieces=WORDS))
    text, done = harness.say("prompt")
    assert text == "".join(WORDS[:after])
    assert (done.finish_reason, done.usage.completion) == ("cancelled", after)
    (slot,) = harness.worker._slots.slots
    assert len(slot.history) == len(slot.session) <= len("prompt") + after
    harness.on_event = lambda event: None
    assert harness.say("prompt")[0] == "ok"


def test_what_a_slot_holds_afterwards_serves_the_next_prompt(harness: Harness) -> None:
    harness.backend.enqueue(Script(pieces=WORDS), Script(pieces=WORDS))
    harness.say("the same beginning, one end")
    text, done = harness.say("the same beginning, another end")
    assert done.usage.cached == len("the same beginning, ")
    assert text == "".join(WORDS)


def test_jobs_side_by_side_draft_to_different_depths() -> None:
    """One is foretold rightly, one never, one at its first place only."""
    harness = Harness(parallel=3)
    scripts = [
        Script(pieces=WORDS * 4, hits=(True,)),
        Script(pieces=WORDS * 4, hits=(False,)),
        Script(pieces=WORDS * 4, hits=(True, False)),
    ]
    harness.backend.enqueue(*scripts)
    jobs = [harness.ask(f"prompt {n}") for n in range(3)]
    ends = harness.ends(*jobs)
    assert {text_of(events) for events in ends.values()} == {"".join(WORDS * 4)}
    wide = [step for step in harness.backend.steps if len(step) > 1]
    assert any(len(set(step)) > 1 for step in wide)
    assert any(1 in step and 4 in step for step in wide), "a useless draft costs its neighbours"
    harness.close()


def test_a_step_that_fails_is_repeated_without_drafts(harness: Harness) -> None:
    """R144: what only a rejected draft would have met is no failure; what the text meets is one,
    at the very token where it would be one without drafts, with the engine's sentence."""
    harness.backend.enqueue(Script(pieces=WORDS[:20], break_at=9))
    job = harness.ask()
    events = harness.ends(job)[job]
    failed = events[-1]
    assert isinstance(failed, Failed)
    assert text_of(events) == "".join(WORDS[:10])
    assert failed.code == "engine_numeric"
    assert "layer 1" in failed.message
    assert "position 11" in failed.message
    assert harness.say()[0] == "ok"


def test_a_step_that_only_a_wrong_draft_breaks_is_no_failure(harness: Harness) -> None:
    """The text ends before the place that cannot be computed."""
    harness.backend.enqueue(Script(pieces=WORDS[:6], break_at=6))
    assert harness.say()[0] == "".join(WORDS[:6])


def test_not_finite_logits_at_a_drafted_place_fail_where_they_would_without(
    harness: Harness,
) -> None:
    """R144: the error comes after the accepted tokens before it."""
    harness.backend.enqueue(Script(pieces=WORDS, fail_at=6))
    job = harness.ask()
    events = harness.ends(job)[job]
    failed = events[-1]
    assert isinstance(failed, Failed)
    assert "not finite" in failed.message
    assert text_of(events) == "".join(WORDS[:6])


def test_one_failing_job_of_a_drafting_batch_does_not_take_the_others_down() -> None:
    harness = Harness(parallel=3)
    harness.backend.enqueue(
        Script(pieces=WORDS), Script(pieces=WORDS, break_at=13), Script(pieces=WORDS)
    )
    jobs = [harness.ask(f"prompt {n}") for n in range(3)]
    ends = harness.ends(*jobs)
    texts = sorted(text_of(events) for events in ends.values())
    assert texts == sorted(["".join(WORDS), "".join(WORDS), "".join(WORDS[:14])])
    assert sorted(type(events[-1]).__name__ for events in ends.values()) == [
        "Done",
        "Done",
        "Failed",
    ]
    harness.close()


def test_a_draft_that_fails_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """The MTP layer alone is at fault: the text does not need it."""
    caplog.set_level("INFO")
    harness = Harness(policy=DraftPolicy)
    harness.backend.enqueue(Script(pieces=WORDS, fail_draft="layer 78 gave non-finite values"))
    assert harness.say()[0] == "".join(WORDS)
    state = harness.worker.snapshot().drafts
    assert (state.on, state.reason) == (
        False,
        "off: drafting failed: layer 78 gave non-finite values",
    )
    assert "depth 1 -> 0, off: drafting failed" in caplog.text
    harness.close()


def test_drafts_that_bring_nothing_switch_off_and_say_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R138: the state has a reason, a switch is a line in the log."""
    caplog.set_level("INFO")
    harness = Harness(policy=DraftPolicy)
    harness.backend.enqueue(
        Script(pieces=WORDS, repeat=True, hits=(False,), token_ms=1, draft_ms=1)
    )
    harness.say(max_tokens=150)
    state = harness.worker.snapshot().drafts
    assert not state.on
    assert state.reason.startswith("off: time per token rose ")
    assert state.acceptance == 0
    assert state.ms_per_token_with is not None
    assert state.ms_per_token_without is not None
    assert state.ms_per_token_with > state.ms_per_token_without
    assert "drafts: depth 1 -> 0, off: time per token rose" in caplog.text
    harness.close()


def test_drafts_that_read_more_than_they_bring_switch_off() -> None:
    """R136: the acceptance is measured, and bytes per accepted token that go up end it."""
    harness = Harness(policy=DraftPolicy)
    script = Script(
        pieces=WORDS,
        repeat=True,
        hits=(True, False, False),
        token_ms=2,
        token_bytes=10**6,
        draft_bytes=10**6,
    )
    harness.backend.enqueue(script)
    harness.say(max_tokens=200)
    state = harness.worker.snapshot().drafts
    assert state.reason.startswith("off: bytes per accepted token rose 1.")
    assert state.acceptance is not None
    assert 0.2 < state.acceptance < 0.5
    harness.close()


def test_more_jobs_begin_with_what_fewer_have_found() -> None:
    """A loss that was seen with one job is not paid for again with two."""
    harness = Harness(policy=DraftPolicy, parallel=2)
    harness.backend.enqueue(
        Script(pieces=WORDS, repeat=True, hits=(False,), token_ms=1, draft_ms=1)
    )
    harness.say(max_tokens=120)
    assert not harness.worker.snapshot().drafts.on
    harness.backend.steps.clear()
    harness.backend.enqueue(*[Script(pieces=WORDS, token_ms=1)] * 2)
    harness.ends(harness.ask("a" * 40), harness.ask("b" * 40))
    wide = [step for step in harness.backend.steps if len(step) == 2]
    assert len(wide) > 20
    assert set(wide) == {(1, 1)}
    harness.close()


def test_drafts_that_pay_stay_on_with_their_figures() -> None:
    harness = Harness(policy=DraftPolicy)
    harness.backend.enqueue(Script(pieces=WORDS, repeat=True, token_ms=2))
    harness.say(max_tokens=400)
    state = harness.worker.snapshot().drafts
    assert state.on
    assert state.depth >= 1
    assert state.reason.startswith("on: time per token fell to 0.")
    assert state.acceptance == 1
    assert state.ms_per_token_with is not None
    assert state.ms_per_token_without is not None
    assert state.ms_per_token_with < state.ms_per_token_without
    harness.close()


def test_without_drafts_none_are_asked_for_and_the_state_says_why() -> None:
    harness = Harness(drafts=0)
    harness.backend.enqueue(Script(pieces=WORDS))
    harness.say()
    assert set(harness.backend.steps) == {(1,)}
    state = harness.worker.snapshot().drafts
    assert (state.on, state.most, state.reason) == (False, 0, "off: no MTP layer")
    harness.close()


def test_a_job_tells_its_own_drafts(harness: Harness) -> None:
    harness.backend.enqueue(Script(pieces=("x",), repeat=True, token_ms=1))
    job = harness.ask(max_tokens=3000)
    while not isinstance(harness.events.get(timeout=TIMEOUT), Tokens):
        pass
    states = [state for state in harness.worker.snapshot().jobs if state.job == job]
    while states and states[0].drafts_accepted == 0:
        states = [state for state in harness.worker.snapshot().jobs if state.job == job]
    assert states[0].drafts_proposed >= states[0].drafts_accepted > 0
    harness.worker.handle(Cancel(job=job))
    harness.ends(job)


def test_the_steps_of_a_job_are_measured_with_their_tokens() -> None:
    made: list[Fixed] = []

    def policy(most: int) -> DraftPolicy:
        made.append(Fixed(most))
        return made[-1]

    harness = Harness(policy=policy)
    harness.backend.enqueue(Script(pieces=WORDS[:12], token_ms=3, token_bytes=7))
    job = harness.ask()
    assert isinstance(harness.ends(job)[job][0], Accepted)
    costs = [cost for cost in made[0].costs if cost is not None]
    assert [cost.tokens for cost in costs] == [4, 4, 4]
    assert [(round(cost.ms, 6), cost.bytes) for cost in costs] == [(3, 7)] * 3
    harness.close()


# ---- what the MTP layer has not seen -----------------------------------------------------------


def test_a_layer_that_lags_a_little_catches_up() -> None:
    lag = Lag()
    for length in range(100, 164):
        lag.step(length, 1, drafted=False)
    assert lag.ready(164)
    lag.step(165, 1, drafted=True)
    assert lag.ready(165)


def test_a_layer_that_has_missed_too_much_is_not_ready_until_it_is_cut_off() -> None:
    lag = Lag()
    for length in range(101, 201):
        lag.step(length, 1, drafted=False)
    assert not lag.ready(200)
    lag.cut(190)
    assert not lag.ready(190)
    lag.cut(90)
    assert lag.ready(90)


def test_what_is_cut_off_together_with_the_lag_is_not_missing() -> None:
    lag = Lag()
    for length in range(21, 61):
        lag.step(length, 1, drafted=False)
    kept = lag.fork(59)
    lag.cut(20)
    assert lag.ready(20)
    assert not kept.ready(59)


def test_a_session_that_shares_tokens_shares_what_is_missing() -> None:
    lag = Lag()
    for length in range(101, 201):
        lag.step(length, 1, drafted=False)
    assert not lag.fork(190).ready(190)
    assert lag.fork(90).ready(90)
    assert not lag.ready(200)


def test_a_few_missing_tokens_of_a_long_session_do_not_matter() -> None:
    lag = Lag()
    for length in range(5001, 5201):
        lag.step(length, 1, drafted=False)
    lag.cut(5200)
    assert lag.ready(5200)
