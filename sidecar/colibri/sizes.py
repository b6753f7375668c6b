"""Sizes as people write them.

For: settings and commands (`--ram 12`, `12GB`, `12GiB`, `50%`). Not for: printing them. Thread
rule: pure values.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_SIZE: Final = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>%|[kmgt]?i?b?)", re.IGNORECASE)
_DECIMAL: Final = {"": 9, "b": 0, "k": 3, "m": 6, "g": 9, "t": 12}
_BINARY: Final = {"k": 10, "m": 20, "g": 30, "t": 40}
_MOST: Final = 1 << 52


class Size(msgspec.Struct, frozen=True):
    """A number of bytes, or a share of all there is."""

    bytes: int = 0
    share: float = 0.0

    def of(self, total: int) -> int:
        """Bytes, where `total` is all there is."""
        return self.bytes or max(int(total * self.share), 1)


def parse(text: str) -> Size:
    """The size; a bare number is GB. ValueError says what would be right."""
    found = _SIZE.fullmatch(text.strip())
    problem = "must be a size such as 12, 12GB, 12GiB or 50%"
    if found is None:
        raise ValueError(problem)
    number, unit = float(found["number"]), found["unit"].lower()
    if unit == "%":
        if not 0 < number <= 100:  # noqa: PLR2004
            raise ValueError("must be more than 0 and at most 100 %")
        return Size(share=number / 100)
    letter = unit[:1] if unit[:1] in _BINARY else unit
    if letter not in _DECIMAL:
        raise ValueError(problem)
    factor = 2 ** _BINARY[letter] if "i" in unit else 10 ** _DECIMAL[letter]
    if not 1 <= number * factor <= _MOST:
        raise ValueError("must be more than 0 and less than 4 PB")
    return Size(bytes=int(number * factor))
