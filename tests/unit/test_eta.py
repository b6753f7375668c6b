"""What is told of the time that a prompt still takes."""

from __future__ import annotations

import math

import pytest

from colibri.engine.eta import LEAST_SECONDS, eta_seconds


def test_a_steady_rate_gives_what_is_left() -> None:
    assert eta_seconds(30, 0, 0.25) == pytest.approx(90)


def test_a_resumed_prompt_counts_only_what_it_did_itself() -> None:
    assert eta_seconds(10, 0.5, 0.6) == pytest.approx(40)


@pytest.mark.parametrize(
    ("elapsed", "resumed", "fraction"),
    [
        (0, 0, 0),
        (0, 0, 0.5),
        (LEAST_SECONDS / 2, 0, 0.5),
        (1000, 0, 0),
        (1000, 0.4, 0.4),
        (1000, 0.4, 0.3),
        (1000, 0, 1e-12),
        (-1, 0, 0.5),
        (math.nan, 0, 0.5),
    ],
)
def test_nothing_is_told_before_it_can_be_known(
    elapsed: float, resumed: float, fraction: float
) -> None:
    assert eta_seconds(elapsed, resumed, fraction) is None


def test_it_ends_at_nothing() -> None:
    assert eta_seconds(0, 0, 1) == 0
    assert eta_seconds(50, 0.5, 1.0) == 0


@pytest.mark.parametrize("jitter", [0.0, 0.3])
def test_it_falls_as_the_work_goes_on(jitter: float) -> None:
    """Each moment's guess plus the time so far stays near the truth, whatever the pace's ripple."""
    truth, guesses = 400.0, []
    for second in range(1, 400):
        share = (second + jitter * math.sin(second / 3) * 5) / truth
        left = eta_seconds(second, 0, share)
        if second > 20 and left is not None:
            guesses.append(second + left)
    assert len(guesses) > 370
    assert all(abs(guess - truth) < 0.1 * truth for guess in guesses)


def test_it_is_never_negative_nor_endless() -> None:
    for elapsed in (1.0, 10.0, 1e9):
        for fraction in (0.002, 0.5, 1 - 1e-15, 1.0, 1.5):
            left = eta_seconds(elapsed, 0, fraction)
            assert left is not None
            assert 0 <= left < math.inf
