"""When a sidecar that ended is started again: the policy alone, without a process or a clock.

For: `supervisor`. Waits double from half a second to half a minute while the sidecar keeps ending
soon; one that ran for a while starts the count anew. What a restart cannot cure (a wrong option, no
model, a model that does not open) is not tried again, and after five ends within two minutes
nothing is tried any more: the person at the window decides.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

# Exit codes of the command line: usage, model not found, model or engine, out of resources,
# integrity. The same command would end the same way.
HOPELESS_CODES: Final = frozenset({2, 3, 4, 5, 7})


@dataclass(slots=True)
class Restarts:
    """The ends so far. All times are seconds of one monotonic clock."""

    first_wait: float = 0.5
    longest_wait: float = 30.0
    most: int = 5
    window: float = 120.0
    _ends: deque[float] = field(default_factory=deque)
    _wait: float = 0.0

    def after(self, code: int, *, started: float, now: float) -> float | None:
        """Seconds to wait before the next start, None when there should be none.

        `code` is the exit code (negative: the signal), `started` when the sidecar was started.
        """
        if now - started > self.window:
            self._ends.clear()
            self._wait = 0.0
        self._ends.append(now)
        while now - self._ends[0] > self.window:
            self._ends.popleft()
        if code in HOPELESS_CODES or len(self._ends) >= self.most:
            return None
        self._wait = min(2 * self._wait, self.longest_wait) if self._wait else self.first_wait
        return self._wait

    def forget(self) -> None:
        """A person asks for another try."""
        self._ends.clear()
        self._wait = 0.0
