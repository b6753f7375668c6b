"""Whether the page in the window lives: the judgement alone, without a window or a clock.

For: `window`, which feeds it. A web view may stay empty although the server is fine (drivers, a
sandbox, a web process that was ended for its memory), and nothing in it can say so then. So the
page says that it is there, again and again, and what says nothing for too long is told to the
person.

    loading(now) --- ready(now) ---> heard
        |                              |
        | nothing for `first` s        | nothing for `quiet` s
        v                              v
      EMPTY                          LOST

A verdict is given once; the next `loading` begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What to do about the page."""

    FINE = "fine"
    EMPTY = "empty"  # it never said that it is there
    LOST = "lost"  # it was there and says nothing any more


@dataclass(slots=True)
class Watchdog:
    """One page at a time. Times are seconds of one monotonic clock."""

    first: float = 30.0
    quiet: float = 30.0
    _since: float | None = None
    _begun: bool = False
    _ready: bool = False

    def loading(self, now: float) -> None:
        """A page is being loaded."""
        self._since, self._begun, self._ready = now, False, False

    def begun(self, now: float) -> None:
        """The page's script runs: the wait for the page itself begins now, on slow machines too."""
        if self._since is not None and not self._begun:
            self._since, self._begun = now, True

    def heard(self, now: float) -> None:
        """The page answered; from the first time on it counts as ready."""
        if self._since is not None:
            self._since, self._ready = now, True

    @property
    def ready(self) -> bool:
        """Whether the page has said that it is there."""
        return self._ready

    def rest(self) -> None:
        """Nothing is expected, until the next `loading`."""
        self._since = None

    def look(self, now: float) -> Verdict:
        """The verdict now; FINE again until the next `loading` once one was given."""
        if self._since is None:
            return Verdict.FINE
        silent = now - self._since
        if not self._ready and silent > self.first:
            self._since = None
            return Verdict.EMPTY
        if self._ready and silent > self.quiet:
            self._since = None
            return Verdict.LOST
        return Verdict.FINE
