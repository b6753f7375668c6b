"""What a running request looks like from outside, from the engine's events."""

from __future__ import annotations

from typing import Any, cast

from colibri.engine.protocol import Accepted, Progress, Tokens
from colibri.scheduler.admission import Generation, GenerationRequest


def generation(tokens: int) -> Generation:
    request = GenerationRequest(
        id="a", prompt=[7] * tokens, max_tokens=5, temperature=0.0, top_p=1.0, seed=1
    )
    return Generation(request, cast(Any, None), 0)


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


def test_an_expected_time_that_has_passed_is_nothing_left_not_less() -> None:
    job = generation(20)
    job.take(Accepted(job="a", prompt=20, cached=0))
    job.take(Progress(job="a", done=0, total=20, fraction=0.9, eta_seconds=0.0))
    assert job.activity().eta_seconds == 0
