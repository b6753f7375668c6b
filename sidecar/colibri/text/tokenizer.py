"""The tokenizer of a model: text to ids, ids to bytes, and the rule that content is never control.

For: prompts (HTTP side) and the detokeniser (worker). A thin layer over the `tokenizers` library.
Not for: chat templates, which produce the text. Thread rule: immutable once built; shared freely.

Content cannot become a control token. A chat template mixes its own markers (`<|user|>`,
`</think>`) with text from users, files and tools, and the library would read both alike. So content
is marked before it goes into the template: `Guard.mark` puts an invisible character (a Unicode
noncharacter that occurs nowhere in the conversation) behind every character that could begin a
marker. In the rendered text a marker that still matches is therefore the template's own.
`encode_prompt` removes the guards and encodes the text as a whole, so harmless text gets exactly
the ids it would get anyway. Only if that yields other control tokens than the template wrote, the
text is cut at the template's markers and what lies between is encoded by a second tokenizer that
knows no markers at all.
"""

from __future__ import annotations

import codecs
import json
import re
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer as LibraryTokenizer

from colibri import regular
from colibri.errors import ModelError
from colibri.families.values import parse_object

# Noncharacters: never assigned, so no real text and no vocabulary contains them.
_GUARDS: Final = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
_MAX_VOCAB: Final = 1 << 24
# Of texts that have to be counted only until they are too long: characters that a token has seldom
# more of on average, characters that are counted at a time, and tokens that a cut may add.
_SPARSE: Final = 6
_PIECE: Final = 1 << 16
_CUT: Final = 16


class TooManyTokensError(Exception):
    """A text has more tokens than are wanted: certainly more than `tokens`."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"more than {tokens} tokens")
        self.tokens = tokens


class Guard:
    """Marks the content of one conversation; see the module's text.

    `texts` are all texts that will be rendered, the template included: the guard character is
    chosen so that none of them contains it.
    """

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        used = set().union(*(set(text) & set(_GUARDS) for text in texts)) if texts else set()
        free = [char for char in _GUARDS if char not in used]
        self.char = free[0] if free else _GUARDS[-1]
        self._clash = not free
        self._markers = tokenizer.marker_texts
        self._starts = tokenizer.marker_starts
        self._ends = tokenizer.marker_ends

    def mark(self, text: str) -> str:
        """Content as it goes into the template. Lone surrogates become U+FFFD."""
        text = valid_text(text)
        if self._clash:
            text = text.replace(self.char, "")
        marked = self._starts.sub(lambda match: match[0][0] + self.char + match[0][1:], text)
        # A beginning of the text that could complete a marker which the template has begun.
        body = marked.lstrip()
        blank = len(marked) - len(body)
        match = self._ends.match(body)
        if match is not None:
            cut = blank + match.end() - 1
            marked = marked[:cut] + self.char + marked[cut:]
        return marked

    def knows(self, marker: str) -> bool:
        """Whether a text is one of the tokenizer's markers."""
        return marker in self._markers

    def strip(self, text: str) -> str:
        """The text without guards."""
        return text.replace(self.char, "")


class Tokenizer:
    """A model's tokenizer. Built by `load`, `from_json`; raises ModelError for a broken file."""

    def __init__(
        self, library: LibraryTokenizer, spec: dict[str, Any], data: bytes, where: str
    ) -> None:
        self._library = library
        self._data = data
        self._lock = threading.Lock()
        self._plain: LibraryTokenizer | None = None
        self.where = where
        library.no_padding()
        library.no_truncation()
        added = library.get_added_tokens_decoder()
        self.added: dict[int, str] = {token: entry.content for token, entry in added.items()}
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        # Runs of blanks are vocabulary; every other added token structures a prompt.
        self.marker_ids = frozenset(
            token for token, entry in added.items() if entry.content.strip() or entry.special
        )
        self._ids_by_text = {
            self.added[token]: token for token in sorted(self.marker_ids, reverse=True)
        }
        self.marker_texts = tuple(
            sorted((t for t in self._ids_by_text if t), key=len, reverse=True)
        )
        self.marker_starts, self.marker_ends = _guard_patterns(self.marker_texts)
        self._marker_pattern = re.compile("|".join(map(re.escape, self.marker_texts)) or r"(?!)")
        # From the file: asking the library for its vocabulary costs a large one half a second.
        last = max(spec["model"]["vocab"].values())
        self.vocab_size = max(last, *self.added, 0) + 1
        if self.vocab_size > _MAX_VOCAB:
            raise ModelError(f"the tokenizer has an id above {_MAX_VOCAB}.", where=where)
        self._bytes = _ByteTable(library, spec)

    @property
    def strips_first_space(self) -> bool:
        """Whether the decoder drops the blank before the first word (Metaspace vocabularies)."""
        return self._bytes.strips_first_space

    @property
    def source(self) -> str:
        """The text of tokenizer.json that this tokenizer was built from."""
        return self._data.decode("utf-8")

    @property
    def source_bytes(self) -> int:
        """Size of that text."""
        return len(self._data)

    def encode(self, text: str, *, markers: bool = False) -> list[int]:
        """Ids of a text. Without `markers` nothing in the text can become a control token."""
        library = self._library if markers else self._markerless()
        return list(library.encode(valid_text(text), add_special_tokens=False).ids)

    def check_length(self, text: str, limit: int | None) -> None:
        """Raises TooManyTokensError for a text that is far beyond `limit` tokens, having looked at
        little more of it than that. One that is a little beyond may pass.
        """
        if limit is None or len(text) <= _SPARSE * limit:
            return
        found = begin = 0
        while begin < len(text):
            end = _cut(text, begin, begin + _PIECE)
            found += len(self.encode(text[begin:end], markers=True)) - _CUT
            if found > limit:
                raise TooManyTokensError(found)
            begin = end

    def _markerless(self) -> LibraryTokenizer:
        """Built at first use: a large vocabulary takes a second, and most prompts never need it."""
        with self._lock:
            if self._plain is None:
                spec = parse_object(self._data, self.where)
                self._plain = _without_markers(spec, self.marker_texts, self.where)
            return self._plain

    def encode_prompt(self, rendered: str, guard: Guard) -> list[int]:
        """Ids of a rendered template whose content was marked by `guard`."""
        text = guard.strip(rendered)
        own = [self._ids_by_text[match[0]] for match in self._marker_pattern.finditer(rendered)]
        ids = self.encode(text, markers=True)
        if [token for token in ids if token in self.marker_ids] == own:
            return ids
        ids = []
        end = 0
        for match in self._marker_pattern.finditer(rendered):
            ids += self.encode(guard.strip(rendered[end : match.start()]))
            ids.append(self._ids_by_text[match[0]])
            end = match.end()
        return ids + self.encode(guard.strip(rendered[end:]))

    def token_id(self, text: str) -> int | None:
        """Id of a control token by its text, or of a vocabulary entry."""
        token = self._ids_by_text.get(text)
        return token if token is not None else self._library.token_to_id(text)

    def control_ids(self, texts: Iterable[str]) -> dict[str, int]:
        """Those of `texts` that are control tokens of this model, with their ids."""
        return {text: self._ids_by_text[text] for text in texts if text in self._ids_by_text}

    def token_bytes(self, token: int, *, keep_special: bool = False) -> bytes:
        """Bytes that a token stands for; b"" for an unknown id and, unless kept, for control
        tokens.
        """
        if token in self.special_ids and not keep_special:
            return b""
        if token in self.added:
            return self.added[token].encode()
        return self._bytes.of(token) if 0 <= token < self.vocab_size else b""

    def decode(self, ids: Sequence[int], *, keep_special: bool = False) -> str:
        """Text of a whole sequence; an unfinished character at its end is dropped."""
        data = b"".join(self.token_bytes(token, keep_special=keep_special) for token in ids)
        if self.strips_first_space:
            data = data.removeprefix(b" ")
        return _decode_whole(data)


def _cut(text: str, begin: int, end: int) -> int:
    """A place behind `begin`, at most `end`, where a text can be cut into pieces of as many tokens
    as it has whole: in front of a blank, if there is one among the last characters.
    """
    if end >= len(text):
        return len(text)
    blank = re.compile(r"\s").search(text, max(begin + 1, end - 200), end)
    return blank.start() if blank else end


def load(path: Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json; ModelError naming the file when it is broken."""
    try:
        data = regular.read_file(path)
    except OSError as error:
        raise ModelError(
            f"the tokenizer cannot be read: {error.strerror or error}.",
            where=str(path),
            hint="Copy tokenizer.json of the model into its folder.",
        ) from error
    return from_json(data, str(path))


def from_json(data: bytes, where: str) -> Tokenizer:
    """The tokenizer from the bytes of a tokenizer.json."""
    spec = parse_object(data, where)
    model = spec.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not vocab or not isinstance(vocab, dict):
        raise ModelError(
            '"model" must be a BPE vocabulary; other kinds are not supported.', where=where
        )
    return Tokenizer(_build(data.decode("utf-8"), where), spec, data, where)


def _build(text: str, where: str) -> LibraryTokenizer:
    try:
        library = LibraryTokenizer.from_str(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library's panics do not derive from Exception
        raise ModelError(
            f"the tokenizer is broken: {str(error)[:300]}.",
            where=where,
            hint="Copy tokenizer.json of the model again.",
        ) from None
    return library


def _without_markers(spec: dict[str, Any], markers: Sequence[str], where: str) -> LibraryTokenizer:
    """The same tokenizer without control tokens: not even its merges can produce one."""
    texts = set(markers)
    plain = dict(spec)
    added = spec.get("added_tokens") or []
    plain["added_tokens"] = [entry for entry in added if entry.get("content") not in texts]
    plain["post_processor"] = None
    model = dict(spec.get("model") or {})
    vocab = model.get("vocab")
    if isinstance(vocab, dict) and texts & vocab.keys():
        model["vocab"] = {token: value for token, value in vocab.items() if token not in texts}
        merges = model.get("merges")
        if isinstance(merges, list):
            model["merges"] = [merge for merge in merges if not _touches(merge, texts)]
    if model.get("unk_token") in texts:
        model["unk_token"] = None
    plain["model"] = model
    return _build(json.dumps(plain, ensure_ascii=False), where)


def _touches(merge: Any, texts: set[str]) -> bool:
    parts = merge.split(" ") if isinstance(merge, str) else merge
    return "".join(parts) in texts or any(part in texts for part in parts)


def _guard_patterns(markers: Sequence[str]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """(where a marker may begin in content, how content may begin to end the template's marker).

    A marker that begins with a letter or digit is guarded only where it stands in full or is cut
    off by the end of the text: guarding every such letter would disturb templates that look at the
    content.
    """
    signs = sorted({text[0] for text in markers if not text[0].isalnum() and not text[0].isspace()})
    starts = [f"[{re.escape(''.join(signs))}]"] if signs else []
    for text in markers:
        if text[0].isalnum() or text[0].isspace():
            starts.append(re.escape(text))
            starts += [
                re.escape(text[:length]) + r"(?=\s*\Z)" for length in range(len(text) - 1, 0, -1)
            ]
    ends = {text[at:] for text in markers for at in range(1, len(text))}
    ends = {end for end in ends if not end.isalnum() and not end.isspace()}
    pattern = "|".join(re.escape(end) for end in sorted(ends, key=len, reverse=True))
    return re.compile("|".join(starts) or r"(?!)"), re.compile(pattern or r"(?!)")


class _ByteTable:
    """Bytes of vocabulary entries, by what the tokenizer's decoder says they are."""

    def __init__(self, library: LibraryTokenizer, spec: dict[str, Any]) -> None:
        self._library = library
        kinds = _decoder_kinds(spec.get("decoder"))
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        self._blank = "\u2581" if kinds & {"Metaspace", "Replace"} else ""
        self.strips_first_space = bool(kinds & {"Metaspace", "Strip"})
        self._known: dict[int, bytes] = {}

    def of(self, token: int) -> bytes:
        """Bytes of one id, remembered."""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._compute(self._library.id_to_token(token) or "")
        return known

    def _compute(self, text: str) -> bytes:
        if self._byte_level:
            return b"".join(_BYTE_OF.get(char) or char.encode() for char in text)
        if self._byte_fallback and re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", text):
            return bytes([int(text[3:5], 16)])
        return (text.replace(self._blank, " ") if self._blank else text).encode()


def _decoder_kinds(decoder: Any) -> set[str]:
    if not isinstance(decoder, dict):
        return set()
    kinds = {str(decoder.get("type"))}
    for inner in decoder.get("decoders") or []:
        kinds |= _decoder_kinds(inner)
    return kinds


def byte_alphabet() -> dict[str, int]:
    """The byte-level alphabet: printable bytes stand for themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    table.update({chr(0x100 + number): byte for number, byte in enumerate(others)})
    return table


_BYTE_OF: Final = {char: bytes([byte]) for char, byte in byte_alphabet().items()}


def valid_text(text: str) -> str:
    """The text with surrogate pairs joined and lone surrogates replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _decode_whole(data: bytes) -> str:
    """UTF-8 with damage shown as U+FFFD, but without an unfinished character at the end."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)
