"""The atlas on counts with a known truth: what is there is found, what is not there is not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from colibri.errors import UsageError
from colibri.models.atlas.analysis import (
    Atlas,
    Expert,
    analyze,
    information,
    mean_share,
    report,
)
from colibri.models.atlas.runs import Measurement
from tests.models.atlasdata import COLS, LAYERS, TOPICS, measurement

PLANTED = ((0, 3, "code"), (1, 7, "poetry"), (2, 15, "law"))


def found(atlas: Atlas, row: int, col: int) -> Expert:
    return next(one for one in atlas.experts if (one.layer, one.expert) == (LAYERS[row], col))


def test_planted_specialists_are_found_and_nobody_else() -> None:
    atlas = analyze(measurement(PLANTED))
    special = {
        (one.layer, one.expert): atlas.topics[one.top] for one in atlas.experts if one.specialist
    }
    assert special == {(LAYERS[row], col): topic for row, col, topic in PLANTED}
    code = found(atlas, 0, 3)
    assert code.affinity[TOPICS.index("code")] == pytest.approx(1)
    assert code.entropy == pytest.approx(0, abs=1e-9)
    other = found(atlas, 0, 4)
    assert sum(other.affinity) == pytest.approx(1)
    assert other.entropy > 0.9 * math.log2(len(TOPICS))
    assert len(atlas.experts) + atlas.left_out == COLS * len(LAYERS)


def test_uniform_routing_has_no_specialists_and_knows_no_topics() -> None:
    atlas = analyze(measurement())
    assert atlas.specialists == 0
    evidence = atlas.evidence
    assert evidence.information.found <= 1.3 * evidence.information.chance_most
    assert evidence.prediction.found <= evidence.prediction.chance_most
    assert abs(evidence.agreement.found) < 0.3
    assert evidence.majority == pytest.approx(1 / len(TOPICS))


def test_routing_by_topic_is_far_above_chance_in_both_sets() -> None:
    evidence = analyze(measurement(PLANTED)).evidence
    for figure in (evidence.information, *evidence.by_set.values()):
        assert figure.found > 3 * figure.chance_most
    assert evidence.agreement.found > 0.8 > evidence.agreement.chance_most
    assert evidence.prediction.found == 1
    assert evidence.prediction.chance < 0.4


def test_what_only_one_set_shows_is_no_specialist() -> None:
    atlas = analyze(measurement(PLANTED, only="a"))
    assert atlas.specialists == 0
    # Both sets together still show a preference: the rule of replication alone decides.
    assert found(atlas, 0, 3).affinity[TOPICS.index("code")] > 0.5


def test_experts_with_few_tokens_are_left_out() -> None:
    small = measurement(PLANTED, prompts=1, tokens=3)
    atlas = analyze(small)
    assert atlas.min_tokens == 32
    assert all(expert.tokens >= 32 for expert in atlas.experts)
    assert atlas.left_out > 0
    everyone = analyze(small, min_tokens=1)
    assert len(everyone.experts) > len(atlas.experts)


def test_long_answers_weigh_no_more_than_short_ones() -> None:
    made = measurement(PLANTED)
    long = tuple(
        replace(sample, answer=sample.answer * 7) if number % 2 else sample
        for number, sample in enumerate(made.samples)
    )
    longer = Measurement(made.header, long)
    shares = [
        mean_share(
            np.array([(s.answer / s.answer.sum(axis=1, keepdims=True)) for s in one.samples]),
            np.array([TOPICS.index(s.topic) for s in one.samples]),
            len(TOPICS),
        )
        for one in (made, longer)
    ]
    assert np.allclose(*shares)


def test_information_is_that_of_a_worked_example() -> None:
    # Two topics, two experts: each topic has one of its own. One bit; without a choice none.
    assert information(np.array([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist() == [1.0]
    assert information(np.array([[[0.5, 0.5]], [[0.5, 0.5]]])).tolist() == [0.0]


def test_tokens_are_counted_once_whatever_they_leave_in_each_layer() -> None:
    made = measurement()
    assert analyze(made, "both").tokens == 60 * len(made.samples)
    assert analyze(made, "prompt").tokens == 20 * len(made.samples)
    assert analyze(made, "answer").tokens == 40 * len(made.samples)


def test_the_same_counts_give_the_same_report() -> None:
    first, second = (report(analyze(measurement(PLANTED))) for _ in range(2))
    assert first == second
    assert first["specialists_by_topic"] == {"code": 1, "law": 1, "cooking": 0, "poetry": 1}


@pytest.mark.parametrize("kept", ["nothing", "one topic", "one set", "no answers"])
def test_too_little_is_refused_with_what_is_lacking(kept: str) -> None:
    made = measurement()
    samples = {
        "nothing": (),
        "one topic": tuple(s for s in made.samples if s.topic == "law"),
        "one set": tuple(s for s in made.samples if s.set == "a"),
        "no answers": tuple(replace(s, answer=s.answer * 0) for s in made.samples),
    }[kept]
    with pytest.raises(UsageError, match="still to be measured") as caught:
        analyze(Measurement(made.header, samples), "answer")
    assert "coli atlas run" in str(caught.value)
