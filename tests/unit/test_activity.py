"""What a running request looks like from outside, from the engine's events."""

from __future__ import annotations

from typing import Any, cast

from colibri.engine.protocol import Accepted, Done, Progress, Tokens, Usage
from colibri.scheduler.generation import Generation, GenerationRequest
from colibri.scheduler.patience import ABSURD_SECONDS, LEAST_TOKENS, Patience, warning


def generation(tokens: int, patience: Patience | None = None) -> Generation:
    request = GenerationRequest(
        id="a", prompt=[7] * tokens, max_tokens=5, temperature=0.0, top_p=1.0, seed=1
    )
    return Generation(request, cast(Any, None), 0, patience or Patience())


def test_a_prompt_shows_its_share_its_layer_its_bytes_and_the_time_left() -> None:
    job = generation(9000)
    job.take(Accepted(job="a", prompt=9000, cached=1000))
    waiting = job.activity()
    assert (waiting.phase, waiting.prompt_tokens_done, waiting.eta_seconds) == (
        "prefill",
        1000,
        None,
    )
    assert waiting.prompt_fraction == 0
    job.take(
        Progress(
            job="a",
            done=1000,
            total=9000,
            fraction=0.25,
            layer=30,
            layers=78,
            bytes_read=90_000_000_000,
            bytes_left=270_000_000_000,
            eta_seconds=1200.0,
        )
    )
    shown = job.activity()
    assert shown.phase == "prefill"
    assert (shown.prompt_fraction, shown.layer, shown.layers) == (0.25, 30, 78)
    assert (shown.bytes_read, shown.bytes_left) == (90_000_000_000, 270_000_000_000)
    assert shown.eta_seconds is not None
    assert 1100 < shown.eta_seconds <= 1200


def test_a_prompt_that_is_read_has_no_time_left_to_tell() -> None:
    job = generation(20)
    job.take(Accepted(job="a", prompt=20, cached=0))
    job.take(Progress(job="a", done=20, total=20, fraction=1.0, eta_seconds=0.0))
    job.take(Tokens(job="a", parts=(), generated=1))
    shown = job.activity()
    assert (shown.phase, shown.prompt_fraction, shown.eta_seconds) == ("decode", 1.0, None)


def test_a_speed_is_told_once_there_is_time_to_bear_it() -> None:
    job = generation(20)
    job.take(Tokens(job="a", parts=(), generated=1))
    job.take(Tokens(job="a", parts=(), generated=5))
    assert job.activity().tokens_per_second is None
    job._started -= 2  # as if the first one had come two seconds ago
    speed = job.activity().tokens_per_second
    assert speed is not None
    assert 0 < speed <= 2


def test_an_expected_time_that_has_passed_is_nothing_left_not_less() -> None:
    job = generation(20)
    job.take(Accepted(job="a", prompt=20, cached=0))
    job.take(Progress(job="a", done=0, total=20, fraction=0.9, eta_seconds=0.0))
    assert job.activity().eta_seconds == 0


def read(tokens: int, seconds: float, *, cached: int = 0, completion: int = 1) -> Done:
    """The end of a job whose prompt computed so many tokens in so long."""
    return Done(
        job="before",
        finish_reason="stop",
        usage=Usage(prompt=tokens + cached, cached=cached, completion=completion),
        prefill_ms=seconds * 1000,
        decode_ms=1.0,
    )


def test_R034_a_prompt_that_would_take_hours_is_warned_of_before_it_is_read() -> None:
    """25,000 tokens at ten a second, known from the prompt before: said once, at once."""
    patience = Patience()
    patience.learn(read(2000, 200.0))
    job = generation(25_000, patience)
    job.take(Accepted(job="a", prompt=25_000, cached=0))
    assert job.notice is not None
    assert job.notice.code == "slow_prompt"
    assert "25,000 tokens will take about 42 minutes" in job.notice.message
    first = job.notice
    job.take(Progress(job="a", done=0, total=25_000, fraction=0.1, eta_seconds=90_000.0))
    assert job.notice is first
    held = generation(25_000, patience)
    held.take(Accepted(job="a", prompt=25_000, cached=24_000))
    assert held.notice is None, "what is held need not be read"


def test_R034_the_first_prompt_is_warned_of_as_soon_as_its_pace_is_known() -> None:
    job = generation(25_000)
    job.take(Accepted(job="a", prompt=25_000, cached=0))
    job.take(Progress(job="a", done=0, total=25_000, fraction=0.001))
    assert job.notice is None
    job.take(Progress(job="a", done=0, total=25_000, fraction=0.002, eta_seconds=76_000.0))
    assert job.notice is not None
    assert "about 21 hours" in job.notice.message


def test_short_and_broken_off_prompts_say_nothing_about_long_ones() -> None:
    patience = Patience()
    patience.learn(read(LEAST_TOKENS - 1, 9000.0, cached=5000))
    patience.learn(read(LEAST_TOKENS, 9000.0, completion=0))
    assert patience.estimate(100_000) is None
    patience.learn(read(LEAST_TOKENS, 1.0))
    assert patience.estimate(2 * LEAST_TOKENS) == 2.0
    assert warning(5, None) is None
    assert warning(5, ABSURD_SECONDS - 1) is None
    assert warning(5, ABSURD_SECONDS) is not None
