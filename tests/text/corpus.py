"""Generated texts with much regularity that are no loops, and a tokenizer to cut them.

For: the tests of loop detection. Everything is made here from a seed; nothing is anyone's text.
"""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Iterator

_WORDS = (
    "river", "stone", "lamp", "garden", "window", "market", "paper", "engine", "valley",
    "copper", "winter", "bridge", "candle", "harbour", "forest", "mirror", "letter", "basket",
    "meadow", "signal", "thread", "anchor", "ladder", "pocket", "silver", "orchard", "tunnel",
    "blanket", "kettle", "pencil", "saddle", "feather", "compass", "lantern", "velvet", "pebble",
    "whistle", "ribbon", "shutter",
)  # fmt: skip


def tokens(text: str, *, letters: bool = False) -> list[int]:
    """Ids as a tokenizer would give: words with their blank, up to three digits, single signs. With
    `letters` one per character, the other extreme.
    """
    pieces = list(text) if letters else re.findall(r" ?[^\W\d]+|\d{1,3}|\s+|[^\w\s]", text)
    return [hash_of(piece) for piece in pieces]


def hash_of(piece: str) -> int:
    """The same id for the same piece in every run."""
    return int.from_bytes(piece.encode(), "little") % 150_001


def sentence(random_: random.Random, length: int = 12) -> str:
    """Words without meaning."""
    return " ".join(random_.choice(_WORDS) for _ in range(length)).capitalize() + "."


def harmless(seed: int) -> Iterator[tuple[str, str]]:
    """(kind, text) of regular texts of thousands of tokens."""
    random_ = random.Random(seed)  # noqa: S311
    word = lambda: random_.choice(_WORDS)  # noqa: E731
    number = lambda: random_.randint(0, 9999)  # noqa: E731
    rows = range(900)
    yield "prose", " ".join(sentence(random_) for _ in range(400))
    yield "enumeration", ", ".join(map(str, range(1, 4000)))
    yield "long numbers", "\n".join(str(10_000_000 + n) for n in range(1500))
    yield "numbered list", "\n".join(f"{n}. {word()} {word()}" for n in rows)
    yield "same list", "\n".join(f"{n}. The item is checked." for n in rows)
    yield "files", "\n".join(f"data/part-{n:05d}.safetensors" for n in rows)
    yield "links", "\n".join(f"https://example.org/archive/items/{n}.html" for n in rows)
    yield "table", "\n".join(f"| {n} | {number()} | {word()} | yes |" for n in rows)
    yield (
        "small table",
        "\n".join(f"| {n % 10} | {random_.randint(0, 9)} | {word()} |" for n in rows),
    )
    yield (
        "times table",
        "\n".join(f"{a} x {b} = {a * b}" for a in range(1, 40) for b in range(1, 25)),
    )
    yield "squares", "\n".join(f"{n}^2 = {n * n}, so the sum is {n * (n + 1)}." for n in rows)
    yield "csv", "\n".join(f"{n},{number() / 100},{word()},true,false" for n in rows)
    yield "base64", base64.b64encode(random_.randbytes(6000)).decode()
    yield (
        "hex dump",
        "\n".join(
            f"{n * 16:08x}  " + " ".join(f"{b:02x}" for b in random_.randbytes(16))
            for n in range(150)
        ),
    )
    yield "json", json.dumps([{"id": n, "name": word(), "ok": n % 3 == 0} for n in rows], indent=2)
    yield (
        "code",
        "\n\n".join(
            f"def test_{word()}_{word()}() -> None:\n    {word()} = make({number()})\n"
            f"    assert {word()}.{word()} == {number()}"
            for _ in range(300)
        ),
    )
    yield "setters", "\n".join(f"    self.{word()}_{word()} = {word()}_{word()}" for _ in rows)
    yield "dates", "\n".join(f"2026-{n // 28 % 12 + 1:02d}-{n % 28 + 1:02d} {word()}" for n in rows)
    yield "trial", "\n".join(f"Let me try {n}: {n} * 7 = {n * 7}, too small." for n in rows)
    yield (
        "verses",
        "\n".join(
            f"{sentence(random_, 6)}\n{sentence(random_, 6)}\nAnd the river went on and on."
            for _ in rows
        ),
    )
