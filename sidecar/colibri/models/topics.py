"""Embedding and head of a synthetic model whose text stays on a topic, so that its routing does.

For: `synthetic`, for the kinds of routing `sticky` and `drifting`. A router sees hidden states, and
what they have in common from token to token is what the tokens have in common: here every token id
belongs to a topic, a direction that all its tokens share, and the head makes a token of the topic
at hand the likely next one. Whoever decodes what the model samples at temperature 1 gets

    sticky     tokens of one topic, most experts the same from step to step; now and then another
    drifting   tokens that differ more, of topics that overlap with their neighbours and follow
               each other, so that the experts in fashion change slowly

Text that is fed instead of sampled has the topics of its own ids. Not for: text with a meaning.
Threads: pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from colibri.errors import UsageError

STEADY: Final = "steady"
KINDS: Final = (STEADY, "sticky", "drifting")
_TOPICS: Final = 16
# What each layer adds to a hidden state that enters with the size 1, measured on such models.
_ADDED_PER_LAYER: Final = 0.55

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Kind:
    shared: float  # of an embedding, the part that the topic's tokens share (squared: of 1)
    overlap: float  # of neighbouring topics
    stay: float  # logits by which the topic's tokens exceed others
    follow: float  # the same for those of the topic that follows


_KINDS: Final = {
    "sticky": _Kind(shared=0.98, overlap=0.0, stay=8.5, follow=0.0),
    "drifting": _Kind(shared=0.8, overlap=0.6, stay=9.0, follow=2.5),
}


def check(kind: str) -> None:
    """Raises UsageError for a kind that nobody knows."""
    if kind not in KINDS:
        raise UsageError(f"{kind!r} is no kind of routing.", hint=f"Choose {', '.join(KINDS)}.")


def topic_of(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Topic of each token id."""
    return tokens % _TOPICS


def _directions(kind: _Kind, hidden: int, seed: int) -> Floats:
    """[topics, hidden], elements of deviation 1, neighbours overlapping."""
    own = np.random.default_rng([seed, 1]).standard_normal((_TOPICS, hidden))
    mixed = own + kind.overlap * np.roll(own, -1, axis=0)
    result: Floats = (mixed / np.sqrt(1 + kind.overlap**2)).astype(np.float32)
    return result


def embedding(name: str, vocab: int, hidden: int, seed: int) -> Floats:
    """[vocab, hidden], elements of deviation 1."""
    kind = _KINDS[name]
    own = np.random.default_rng([seed, 2]).standard_normal((vocab, hidden), dtype=np.float32)
    shared = _directions(kind, hidden, seed)[topic_of(np.arange(vocab))]
    rest = np.float32(np.sqrt(1 - kind.shared**2))
    result: Floats = np.float32(kind.shared) * shared + rest * own
    return result


def head(name: str, vocab: int, hidden: int, layers: int, seed: int) -> Floats:
    """[vocab, hidden]: logits of a topic's tokens exceed others by `stay` and `follow`."""
    kind = _KINDS[name]
    directions = _directions(kind, hidden, seed)
    # The normed hidden state has length sqrt(hidden); this much of it points at the topic.
    share = kind.shared / np.sqrt(1 + _ADDED_PER_LAYER * layers)
    before = np.roll(directions, 1, axis=0)
    wanted = (kind.stay * directions + kind.follow * before) / (share * hidden)
    result: Floats = wanted[topic_of(np.arange(vocab))].astype(np.float32)
    return result
