"""From counts to an atlas: what experts are for, and whether any of it is more than chance.

For: `coli atlas analyze`. Not for: files. Pure functions; the same samples give the same result.

    share        of a prompt's tokens in a layer, the part that went to an expert
    mean share   over the prompts of a topic, so that long answers weigh no more than short ones
    affinity     of an expert: its mean shares over all topics, scaled to sum up to 1
    entropy H    of the affinity; concentration 1 - H / ln C is 0 for an expert that serves all C
                 topics alike, 1 for one that serves a single topic

An expert is told of if at least `min_tokens` tokens went to it: fewer look concentrated by chance.
It is a specialist if its concentration is at least a half in both prompt sets together and in each
of them alone, with the same topic on top: what does not replicate is luck.

Whether routing knows of topics at all is asked three times, each time against the same samples with
topics that were dealt out anew: the mutual information of topic and expert; how far the two sets
agree, as the correlation of what each topic adds to the share of each expert; and how often the
topic of an answer is guessed right from its experts alone, by a naive Bayes that has learnt from
the other set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from colibri.errors import UsageError
from colibri.models.atlas.runs import Measurement
from colibri.models.atlas.topics import SETS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Counted = Literal["prompt", "answer", "both"]

SPECIALIST: Final = 0.5
# Tokens per topic that an expert needs to be told of.
TOKENS_PER_TOPIC: Final = 4
_LEAST_TOKENS: Final = 32
_SHUFFLES: Final = 20
_SEED: Final = 1
# Added to each count by the naive Bayes, as a share of what an even split would give an expert.
_SMOOTHING: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Expert:
    """One expert. `affinity` by number of the topic; `entropy` in bits."""

    layer: int
    expert: int
    tokens: int
    affinity: tuple[float, ...]
    entropy: float
    top: int
    specialist: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """A figure, and the same of topics dealt out at random: mean and greatest of 20 deals."""

    found: float
    chance: float
    chance_most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """`information` in bits per layer, mean over layers, of all prompts and of each set;
    `by_layer`: of all prompts. `agreement` of the sets is -1 to 1. `prediction` is a share of
    answers; `majority` what always naming the most frequent topic would reach.
    """

    information: Against
    by_layer: tuple[float, ...]
    by_set: dict[str, Against]
    agreement: Against
    prediction: Against
    majority: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Atlas:
    """What a measurement says. `left_out` experts had too few tokens, `topics` those measured."""

    topics: tuple[str, ...]
    layers: tuple[int, ...]
    cols: int
    counted: Counted
    min_tokens: int
    prompts: int
    tokens: int
    experts: tuple[Expert, ...]
    left_out: int
    evidence: Evidence

    @property
    def specialists(self) -> int:
        return sum(expert.specialist for expert in self.experts)


def analyze(
    measurement: Measurement, counted: Counted = "both", min_tokens: int | None = None
) -> Atlas:
    """The atlas of a measurement. Raises UsageError if it is too small to say anything: two topics
    with a prompt in each set are the least.
    """
    data = _Data(measurement, counted)
    least = min_tokens or max(_LEAST_TOKENS, TOKENS_PER_TOPIC * len(data.topics))
    tokens = data.counts.sum(axis=0)
    everything = _affinity(mean_share(data.shares, data.topic, len(data.topics)))
    halves = [
        _affinity(
            mean_share(
                data.shares[data.side == side], data.topic[data.side == side], len(data.topics)
            )
        )
        for side in range(len(SETS))
    ]
    special = _replicated(everything, halves)
    entropy = _entropy(everything)
    top = everything.argmax(axis=0)
    told = tokens >= least
    layers = measurement.header.layers
    experts = tuple(
        Expert(
            layer=layers[row],
            expert=int(col),
            tokens=int(tokens[row, col]),
            affinity=tuple(everything[:, row, col].tolist()),
            entropy=float(entropy[row, col]),
            top=int(top[row, col]),
            specialist=bool(special[row, col]),
        )
        for row, col in np.argwhere(told).tolist()
    )
    return Atlas(
        topics=data.topics,
        layers=layers,
        cols=measurement.header.cols,
        counted=counted,
        min_tokens=least,
        prompts=len(data.topic),
        tokens=int(tokens[0].sum()) // measurement.header.per_token,
        experts=experts,
        left_out=int((~told).sum()),
        evidence=_evidence(data, measurement),
    )


class _Data:
    """Samples as arrays: counts [n, layers, cols], shares alike, topic [n], side [n]."""

    def __init__(self, measurement: Measurement, counted: Counted) -> None:
        samples = measurement.samples
        present = {sample.topic for sample in samples}
        self.topics = tuple(name for name in measurement.header.topics if name in present)
        number = {name: i for i, name in enumerate(self.topics)}
        counts = _counts(measurement, counted)
        used = counts.sum(axis=2).all(axis=1)
        self.topic = np.array([number[sample.topic] for sample in samples], np.int64)[used]
        self.side = np.array([SETS.index(sample.set) for sample in samples], np.int64)[used]
        self.counts = counts[used]
        self.shares: Floats = self.counts / self.counts.sum(axis=2, keepdims=True)
        self._check(counted)

    def _check(self, counted: str) -> None:
        per_set = [set(self.topic[self.side == side].tolist()) for side in range(len(SETS))]
        lacking = [
            name for i, name in enumerate(self.topics) if not all(i in found for found in per_set)
        ]
        if len(self.topics) < 2 or lacking:  # noqa: PLR2004 - two to compare
            what = f"of {', '.join(lacking)}" if lacking else "of a second topic"
            raise UsageError(
                f"prompts {what} are still to be measured in both sets ({counted} counted).",
                hint="Let `coli atlas run` go on; it continues where it stopped.",
            )


def _counts(measurement: Measurement, counted: Counted) -> Ints:
    header = measurement.header
    parts = {
        "prompt": lambda sample: sample.prompt,
        "answer": lambda sample: sample.answer,
        "both": lambda sample: sample.prompt + sample.answer,
    }
    found = np.array([parts[counted](sample) for sample in measurement.samples], np.int64)
    return found.reshape(-1, len(header.layers), header.cols)


def mean_share(shares: Floats, topic: Ints, topics: int) -> Floats:
    """Mean of shares [n, layers, cols] over the samples of each topic: [topics, layers, cols], 0
    for a topic without any.
    """
    chosen = np.zeros((topics, len(topic)))
    chosen[topic, np.arange(len(topic))] = 1
    chosen /= np.maximum(chosen.sum(axis=1, keepdims=True), 1)
    found: Floats = np.tensordot(chosen, shares, axes=1)
    return found


def _affinity(mean: Floats) -> Floats:
    total = mean.sum(axis=0)
    even = 1 / len(mean)
    found: Floats = np.where(total > 0, mean / np.where(total > 0, total, 1), even)
    return found


def _entropy(affinity: Floats) -> Floats:
    """Bits."""
    logs = np.log2(affinity, out=np.zeros_like(affinity), where=affinity > 0)
    found: Floats = np.maximum(-(affinity * logs).sum(axis=0), 0)
    return found


def _replicated(everything: Floats, halves: Sequence[Floats]) -> NDArray[np.bool_]:
    """Which experts are specialists: together and in each half, of the same topic."""
    most = math.log2(len(everything))
    special = np.ones(everything.shape[1:], np.bool_)
    for affinity in (everything, *halves):
        special &= 1 - _entropy(affinity) / most >= SPECIALIST
        special &= affinity.argmax(axis=0) == everything.argmax(axis=0)
    return special


# ---- more than chance? ---------------------------------------------------------------------------


def information(mean: Floats) -> Floats:
    """Mutual information of topic and expert in bits, per layer, of mean shares [topics, layers,
    cols], all topics being equally frequent.
    """
    joint = mean / len(mean)
    alone = joint.sum(axis=0, keepdims=True) / len(mean)
    ratio = np.divide(joint, alone, out=np.ones_like(joint), where=joint > 0)
    found: Floats = (joint * np.log2(ratio)).sum(axis=(0, 2))
    return found


def _evidence(data: _Data, measurement: Measurement) -> Evidence:
    topics = len(data.topics)
    frequencies = np.bincount(data.topic, minlength=topics)
    by_set = {}
    for number, side in enumerate(SETS):
        own = data.side == number
        by_set[side] = _information(data.shares[own], data.topic[own], topics)
    # Of answers where there are any: what somebody asks tells its topic by its words.
    answers = _counts(measurement, "answer")
    counts = data.counts
    if len(answers) == len(counts) and answers.sum(axis=2).all():
        counts = answers
    return Evidence(
        information=_information(data.shares, data.topic, topics),
        by_layer=tuple(information(mean_share(data.shares, data.topic, topics)).tolist()),
        by_set=by_set,
        agreement=_agreement(data.shares, data.topic, data.side, topics),
        prediction=_prediction(counts, data.topic, data.side, topics),
        majority=float(frequencies.max() / frequencies.sum()),
    )


def _shuffled(topic: Ints) -> list[Ints]:
    random = np.random.default_rng(_SEED)
    return [random.permutation(topic) for _ in range(_SHUFFLES)]


def _against(figure: Callable[[Ints], float], topic: Ints) -> Against:
    chance = [figure(labels) for labels in _shuffled(topic)]
    return Against(
        found=figure(topic), chance=float(np.mean(chance)), chance_most=float(np.max(chance))
    )


def _information(shares: Floats, topic: Ints, topics: int) -> Against:
    return _against(
        lambda labels: float(information(mean_share(shares, labels, topics)).mean()), topic
    )


def _agreement(shares: Floats, topic: Ints, side: Ints, topics: int) -> Against:
    def correlation(labels: Ints) -> float:
        halves = [mean_share(shares[side == n], labels[side == n], topics) for n in (0, 1)]
        first, second = (half - half.mean(axis=0) for half in halves)
        size = float(np.sqrt((first**2).sum() * (second**2).sum()))
        return float((first * second).sum()) / size if size > 0 else 0.0

    return _against(correlation, topic)


def _prediction(counts: Ints, topic: Ints, side: Ints, topics: int) -> Against:
    """Share of samples whose topic the other set foretells."""

    def right(labels: Ints) -> float:
        hits = 0
        for held_out in range(len(SETS)):
            known = side != held_out
            guesses = _guess(counts[known], labels[known], counts[~known], topics)
            hits += int((guesses == topic[~known]).sum())
        return hits / len(topic)

    return _against(right, topic)


def _guess(known: Ints, labels: Ints, asked: Ints, topics: int) -> Ints:
    """The likeliest topic of each sample of `asked`, all being equally likely beforehand."""
    sums = np.zeros((topics, *known.shape[1:]))
    np.add.at(sums, labels, known)
    even = _SMOOTHING * sums.sum() / sums.size
    sums += max(even, 1e-12)
    logs = np.log(sums / sums.sum(axis=2, keepdims=True))
    likely: Floats = np.tensordot(asked, logs, axes=([1, 2], [1, 2]))
    found: Ints = likely.argmax(axis=1)
    return found


# ---- telling -------------------------------------------------------------------------------------


def report(atlas: Atlas) -> dict[str, Any]:
    """All figures as plain data, for `--json`; the part of it that a page shows is
    `file.measurement_of`.
    """
    evidence = atlas.evidence

    def against(found: Against) -> dict[str, float]:
        return {
            "found": round(found.found, 6),
            "chance": round(found.chance, 6),
            "chance_most": round(found.chance_most, 6),
        }

    return {
        "topics": list(atlas.topics),
        "layers": list(atlas.layers),
        "experts_per_layer": atlas.cols,
        "counted": atlas.counted,
        "prompts": atlas.prompts,
        "tokens": atlas.tokens,
        "min_tokens": atlas.min_tokens,
        "experts": len(atlas.experts),
        "left_out": atlas.left_out,
        "specialists": atlas.specialists,
        "specialists_by_topic": {
            name: sum(expert.specialist and expert.top == i for expert in atlas.experts)
            for i, name in enumerate(atlas.topics)
        },
        "mutual_information_bits": against(evidence.information),
        "mutual_information_by_layer": {
            str(layer): round(bits, 6)
            for layer, bits in zip(atlas.layers, evidence.by_layer, strict=True)
        },
        "mutual_information_by_set": {
            side: against(found) for side, found in evidence.by_set.items()
        },
        "agreement_of_sets": against(evidence.agreement),
        "prediction": against(evidence.prediction),
        "prediction_majority": round(evidence.majority, 6),
    }
