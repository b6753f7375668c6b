"""Turning token ids into text while they arrive, never showing half a character.

For: one request, one detokeniser; its state is what the bytes so far leave open. Bytes of an
unfinished UTF-8 sequence wait for the next token; at the end of the text they are dropped, because
a cut character is not a character. The text over any split of the ids is the same. Not for: stop
sequences (`stop.py`). Thread rule: one owner at a time; the tokenizer behind it is shared.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable

from colibri.text.parts import MARK
from colibri.text.tokenizer import Tokenizer


class Detokenizer:
    """Incremental decoder of one request.

    `keep_special`: whether control tokens appear as their own text (markers for the parsers of
    reasoning and tool calls) or vanish. `marks`: ids whose text appears behind `parts.MARK` in any
    case. Ids outside the vocabulary give no text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        keep_special: bool = False,
        marks: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._marks = frozenset(marks)
        self._keep_special = keep_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = True

    def push(self, ids: Iterable[int]) -> str:
        """Text that the ids complete."""
        out: list[str] = []
        pieces: list[bytes] = []
        for token in ids:
            marked = token in self._marks
            data = self._tokenizer.token_bytes(token, keep_special=self._keep_special or marked)
            if not data:
                continue
            if marked:
                # A character that is still open ends here, as before any other wrong byte.
                out.append(self._letters([*pieces, data])[: -len(data.decode())])
                out.append(MARK + data.decode())
                pieces = []
            else:
                if self._first and self._tokenizer.strips_first_space:
                    data = data.removeprefix(b" ")
                pieces.append(data)
            self._first = False
        return "".join([*out, self._letters(pieces)])

    def _letters(self, pieces: list[bytes]) -> str:
        """Decodes on. A model cannot write MARK itself where that has a meaning."""
        text = self._decoder.decode(b"".join(pieces))
        return text.replace(MARK, "\ufffd") if self._marks and MARK in text else text

    def drop(self) -> None:
        """Forgets a character of which some bytes are missing."""
        self._decoder.reset()

    def flush(self) -> str:
        """End of the text: drops an unfinished character. Returns "" always, and is ready for new
        text.
        """
        self._decoder.reset()
        self._first = True
        return ""
