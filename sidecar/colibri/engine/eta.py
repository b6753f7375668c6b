"""How long reading a prompt will still take, from how far it is.

For: `worker`, for its progress events. Not for: measuring; time and shares come in. Threads: a pure
function.
"""

from __future__ import annotations

from typing import Final

# Before that, what was measured is the start of a chunk and the disk waking up.
LEAST_SECONDS: Final = 1.0
LEAST_SHARE: Final = 0.002


def eta_seconds(elapsed: float, resumed: float, fraction: float) -> float | None:
    """Seconds left after `elapsed` ones brought the work from share `resumed` to `fraction`.

    None as long as that cannot be told.
    """
    if fraction >= 1:
        return 0.0
    gained = fraction - resumed
    if not (elapsed >= LEAST_SECONDS and gained >= LEAST_SHARE):
        return None
    return elapsed * (1 - fraction) / gained
