"""Cutting generated text at the first stop sequence, whatever pieces the text arrives in.

For: one request; the same filter serves every route, streaming or not, so that they cannot differ.
Held back is only what may still become a stop: the longest end of the text that is a proper
beginning of a stop sequence. Not for: end-of-turn token ids (the worker compares ids), reasoning or
tool calls: an answer's parser runs before this filter, which sees only the visible text
(`answer.py`). Thread rule: one owner at a time.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Feeds text through; what `push` and `flush` return together is the text up to the first stop.

    `ignore_leading`: stop sequences that stand before the first other non-blank text are dropped,
    together with the blanks before them, instead of ending the answer
    (`x_colibri_ignore_leading_stop`). Empty stop sequences are refused with ValueError. After a
    match, `matched` names the sequence and everything later is discarded.
    """

    def __init__(self, stops: Sequence[str], *, ignore_leading: bool = False) -> None:
        if not all(stops):
            raise ValueError("a stop sequence must not be empty")
        self._stops = tuple(dict.fromkeys(stops))
        self._leading = ignore_leading
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Takes the next piece and returns what is certain to precede any stop sequence."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        self._held += text
        if self._leading and not self._skip_leading(final=False):
            return ""
        at, stop = self._first_match()
        open_end = len(self._held) - self._partial()
        if stop is not None and at <= open_end:
            return self._end(at, stop)
        # A match that begins later than what is still open waits: the open one may win.
        out, self._held = self._held[:open_end], self._held[open_end:]
        return out

    def flush(self) -> str:
        """The generation is over: what was held back can no longer become a longer stop."""
        if self._leading:
            self._skip_leading(final=True)
        at, stop = self._first_match()
        if stop is not None:
            return self._end(at, stop)
        out, self._held = self._held, ""
        return out

    def _end(self, at: int, stop: str) -> str:
        out, self._held, self.matched = self._held[:at], "", stop
        return out

    def _first_match(self) -> tuple[int, str | None]:
        """(position, stop) of the stop that begins first; of several there, the longest."""
        found = [(self._held.find(stop), -len(stop), stop) for stop in self._stops]
        at, _, stop = min((item for item in found if item[0] >= 0), default=(-1, 0, None))
        return at, stop

    def _partial(self) -> int:
        """Length of the longest end of the held text that is a proper beginning of a stop."""
        text = self._held
        longest = min(len(text), max(map(len, self._stops), default=1) - 1)
        for length in range(longest, 0, -1):
            tail = text[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0

    def _skip_leading(self, *, final: bool) -> bool:
        """Drops leading stops; False while the text so far is blank or may still become one."""
        while True:
            body = self._held.lstrip()
            fitting = [stop for stop in self._stops if body.startswith(stop)]
            open_ones = [
                stop for stop in self._stops if len(stop) > len(body) and stop.startswith(body)
            ]
            if open_ones and not final:
                return False
            if not fitting:
                self._leading = False
                return True
            self._held = body[len(max(fitting, key=len)) :]
