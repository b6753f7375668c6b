"""What the dialects' parsers share: text that arrives in pieces drives a machine of states.

For: `tagged` and `inkling`. Not for: what the states are. Thread rule: one owner at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from colibri.engine.answer import Part
from colibri.text.parts import MarkFilter, joined


class StateMachine:
    """Push and flush of a `PartsParser`. `_state` is told whether the text has ended, takes from
    `_text`, adds to `_out`, and returns whether another state may go on.
    """

    _state: Callable[[bool], bool]

    def __init__(self, tokens: Collection[str]) -> None:
        """`tokens`: the markers that arrive behind MARK."""
        self._filter = MarkFilter(tokens)
        self._text = ""
        self._out: list[Part] = []

    def push(self, text: str) -> list[Part]:
        """See `PartsParser`."""
        self._text += self._filter.push(text, False)
        return self._run(final=False)

    def flush(self) -> list[Part]:
        """See `PartsParser`."""
        self._text += self._filter.push("", True)
        return self._run(final=True)

    def _run(self, final: bool) -> list[Part]:
        self._out = []
        while self._state(final):
            pass
        return joined(self._out)

    def _take(self, length: int) -> str:
        taken, self._text = self._text[:length], self._text[length:]
        return taken
