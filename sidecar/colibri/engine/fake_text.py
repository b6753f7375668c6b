"""The text side of the scripted engine: token ids, letters, and a vocabulary for grammars.

For: `fake`, and tests that need the ids or the tokenizer of its model. Token ids: 0..2 end a turn,
10..265 are bytes, from 266 on the markers of all dialects as control tokens, from 1000 up the
pieces of the scripts. A piece may be text or raw bytes, so a character can be cut into tokens
anywhere; a control token is the piece `control(marker)`. GLM and Inkling have all their markers as
control tokens and read their letters as ordinary text, Hermes has none. Under a mask, and for
forced tokens, a script is spelled in bytes and control tokens. Thread rule: pure functions and
constants, but `FakeLetters` has one owner.
"""

from __future__ import annotations

import codecs
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from colibri.text.dialect import GLM, HERMES, INKLING, Dialect
from colibri.text.parts import MARK
from colibri.text.tokenizer import Tokenizer, byte_alphabet, from_json

END_IDS: Final = frozenset({0, 1, 2})
FIRST_BYTE: Final = 10
FIRST_PIECE: Final = 1000
_FIRST_CONTROL: Final = FIRST_BYTE + 256
DIALECTS: Final = {dialect.name: dialect for dialect in (GLM, HERMES, INKLING)}
_MARKERS: Final = tuple(
    dict.fromkeys(marker for dialect in DIALECTS.values() for marker in dialect.markers)
)
CONTROL_IDS: Final = {marker: _FIRST_CONTROL + at for at, marker in enumerate(_MARKERS)}
_MARKER_OF: Final = {token: marker for marker, token in CONTROL_IDS.items()}
# What ends an answer soonest, for a script that says what the grammar does not allow.
_CLOSERS: Final = (
    "</arg_value>", "</arg_key>", "</think>", "</tool_call>", "<|end_message|>", "<|content_text|>",
)  # fmt: skip
_LETTERS: Final = b'"}]0123456789:,' + bytes(range(0x21, 0x7F))


def encode(text: str) -> list[int]:
    """Token ids of a prompt: one per byte."""
    return [FIRST_BYTE + byte for byte in text.encode()]


def control(marker: str) -> str:
    """The piece of a script that is the control token of a marker."""
    return MARK + marker


def marked(text: str, dialect: str) -> tuple[str, ...]:
    """A text as pieces in which every marker is a control token."""
    pieces = [text]
    for marker in DIALECTS[dialect].markers:
        split: list[str] = []
        for piece in pieces:
            if piece.startswith(MARK):
                split.append(piece)
                continue
            first, *rest = piece.split(marker)
            split.append(first)
            for part in rest:
                split += [control(marker), part]
        pieces = [piece for piece in split if piece]
    return tuple(pieces)


def control_id(piece: str | bytes) -> int | None:
    """Token id of a piece that is a control token."""
    if isinstance(piece, str) and piece.startswith(MARK):
        return CONTROL_IDS.get(piece.removeprefix(MARK))
    return None


def spelled(pieces: Sequence[str | bytes], control_tokens: Mapping[str, int]) -> list[int]:
    """The pieces of a script as bytes and control tokens."""
    tokens: list[int] = []
    for piece in pieces:
        data = piece if isinstance(piece, bytes) else piece.removeprefix(MARK).encode()
        token = control_id(piece)
        if token is not None and token in control_tokens.values():
            tokens.append(token)
        else:
            tokens += [FIRST_BYTE + byte for byte in data]
    return tokens


def allows(mask: bytes, token: int) -> bool:
    return token < 8 * len(mask) and bool(mask[token // 8] >> token % 8 & 1)


@functools.cache
def _preferred() -> tuple[int, ...]:
    first = [*END_IDS, *(CONTROL_IDS[marker] for marker in _CLOSERS)]
    letters = [FIRST_BYTE + byte for byte in _LETTERS]
    return tuple(dict.fromkeys([*first, *letters, *range(FIRST_PIECE)]))


def first_allowed(mask: bytes) -> int:
    """An allowed token that brings the answer to its end; -1 when the mask allows none."""
    return next((token for token in _preferred() if allows(mask, token)), -1)


@functools.cache
def tokenizer(dialect: str) -> Tokenizer:
    """The tokenizer of a fake model: bytes and the dialect's control tokens, without merges."""
    alphabet = {char: FIRST_BYTE + byte for char, byte in byte_alphabet().items()}
    ids = {f"<|end{token}|>": token for token in sorted(END_IDS)}
    ids |= {f"<|none{token}|>": token for token in range(len(ids), FIRST_BYTE)}
    ids |= tokens_of(DIALECTS[dialect])
    added = [
        {
            "id": token,
            "content": text,
            "special": token < FIRST_BYTE,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for text, token in ids.items()
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    spec = {
        "added_tokens": added,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": alphabet | ids, "merges": []},
    }
    return from_json(json.dumps(spec).encode(), "the scripted engine")


def tokens_of(dialect: Dialect) -> dict[str, int]:
    """The markers that are control tokens of a fake model of this dialect."""
    if dialect is HERMES:
        return {}
    return {marker: CONTROL_IDS[marker] for marker in dialect.markers}


class FakeLetters:
    """`colibri.text.answer.Letters` over the tokens of scripts. `marks`: the control tokens that
    come behind MARK; the others are their letters.
    """

    def __init__(self, piece: Callable[[int], bytes], marks: Iterable[int]) -> None:
        self._piece = piece
        self._marks = frozenset(marks)
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def push(self, ids: Iterable[int]) -> str:
        return "".join(map(self._letters, ids))

    def _letters(self, token: int) -> str:
        marker = _MARKER_OF.get(token)
        if marker is None:
            text = self._decoder.decode(self._piece(token))
            return text.replace(MARK, "\ufffd") if self._marks else text
        self.drop()
        return MARK + marker if token in self._marks else marker

    def drop(self) -> None:
        self._decoder.reset()
