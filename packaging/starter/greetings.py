"""What people say to a program that is no question about a word or about Colibri.

For: `conversations` (trained ones) and `evaluate` (held ones, never trained on). The wordings are
in greetings.toml. Not for: requests that it cannot serve; those are in `freetext`. Thread rule:
constants.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

_TABLE: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))

# (what is said, the answer)
GREETINGS: Final = tuple(
    (said, group["answer"]) for group in _TABLE.values() for said in group["ask"].splitlines()
)
GREETINGS_HELD: Final = tuple(
    (said, group["answer"]) for group in _TABLE.values() for said in group["held"]
)
