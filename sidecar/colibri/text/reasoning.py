"""When reasoning has to be ended: it goes in circles, or it has used up its budget.

For: the worker, which shows every token of the reasoning to a `ReasoningWatch` and, when that
returns an `Ending`, goes on as if the model had written `closing(...)`. A loop is text that
consists of few sequences of eight tokens again and again: at most an eighth of those in a window of
512 tokens (short cycles) or of 4,096 (cycles of up to 500 tokens) are distinct. Variation costs as
many sequences as it touches, so a cycle may vary a little, while tables, lists and enumerations, in
which every line brings something new, stay clear of the limit. Not for: visible text, where
repetition may be what was asked for. Thread rule: one owner at a time; pure, memory bounded by the
windows.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal

from colibri.text.dialect import Dialect
from colibri.text.tagged import THINK_END
from colibri.text.tokenizer import Tokenizer

_GRAM: Final = 8
WINDOWS: Final = (512, 4096)
_DISTINCT: Final = 8  # at most one in so many may be distinct


@dataclass(frozen=True, slots=True)
class Ending:
    """Why reasoning is to be ended, for the log and for the client."""

    kind: Literal["loop", "budget"]
    message: str


@dataclass(slots=True)
class _Window:
    """The last `size` sequences, and how often each occurs among them."""

    size: int
    grams: deque[tuple[int, ...]] = field(default_factory=deque)
    counts: dict[tuple[int, ...], int] = field(default_factory=dict)

    def push(self, gram: tuple[int, ...]) -> bool:
        """Whether the window is full and repeats itself."""
        self.grams.append(gram)
        self.counts[gram] = self.counts.get(gram, 0) + 1
        if len(self.grams) <= self.size:
            return False
        oldest = self.grams.popleft()
        left = self.counts[oldest] - 1
        if left:
            self.counts[oldest] = left
        else:
            del self.counts[oldest]
        return len(self.counts) * _DISTINCT <= self.size


class LoopDetector:
    """Tells when a stream of tokens has begun to repeat itself. `push` each token."""

    def __init__(self) -> None:
        self._last: deque[int] = deque(maxlen=_GRAM)
        self._windows = [_Window(size) for size in WINDOWS]

    def push(self, token: int) -> int | None:
        """How many tokens the repetition fills so far at least, None while there is none."""
        self._last.append(token)
        if len(self._last) < _GRAM:
            return None
        gram = tuple(self._last)
        found = [window.size for window in self._windows if window.push(gram)]
        return max(found, default=None)


class ReasoningWatch:
    """Watches the reasoning of one answer. `budget`: tokens that it may take, None for no limit."""

    def __init__(self, budget: int | None = None) -> None:
        self._budget = budget
        self._used = 0
        self._loop = LoopDetector()

    def begin(self) -> Ending | None:
        """Says whether the reasoning must end before its first token."""
        if self._budget is not None and self._used >= self._budget:
            return Ending(
                "budget", f"The reasoning used its budget of {self._budget} tokens and was ended."
            )
        return None

    def push(self, token: int) -> Ending | None:
        """Takes the next token of the reasoning; says when it must end. A loop is told once: if the
        reasoning goes on, or comes back, it is looked for anew.
        """
        self._used += 1
        repeated = self._loop.push(token)
        if repeated is not None:
            self._loop = LoopDetector()
            return Ending(
                "loop", f"The reasoning repeated itself for {repeated} tokens and was ended."
            )
        return self.begin()


def closing(dialect: Dialect, tokenizer: Tokenizer) -> list[int]:
    """The tokens with which the model itself would end its reasoning."""
    control = tokenizer.control_ids(dialect.markers)
    if dialect.name == "inkling":
        texts = ("<|end_message|>", "<|message_model|>", "<|content_text|>")
        return [control[text] for text in texts if text in control]
    end = [control[THINK_END]] if THINK_END in control else tokenizer.encode(f"\n{THINK_END}")
    return end if dialect.name == "glm" else [*end, *tokenizer.encode("\n\n")]
