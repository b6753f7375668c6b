"""What stands inside a tool call: tags in the way of GLM, or JSON with name and arguments.

For: the dialects. A body takes text as it arrives and writes the call (`arguments.CallWriter`). It
tells how much it has used; what it has not used it wants to see again, with more behind it. Not
for: where a call begins. Thread rule: one owner at a time.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Final, Protocol

from colibri.text.arguments import CallWriter, Tools, parse_json
from colibri.text.parts import first_of, open_tail, plain

_BLANK: Final = re.compile(r"(?:\s|\\n)*")
_NAME: Final = re.compile(r"\s*([^\s<\\\ufdd0]*)")
_MAX_KEY: Final = 1024


class Status(enum.Enum):
    """Where a body stands after it has taken text."""

    MORE = enum.auto()  # wants more text
    DONE = enum.auto()  # the call is complete, its end marker used
    CUT = enum.auto()  # the call's value is complete, but something else follows than its end
    BROKEN = enum.auto()  # no call, or one that breaks off


class Body(Protocol):
    """The inside of one call."""

    def take(self, text: str, final: bool) -> tuple[int, Status]:
        """Uses a beginning of `text`. With `final` nothing follows, and MORE is no answer."""
        ...


class GlmBody:
    """`NAME<arg_key>K</arg_key><arg_value>V</arg_value>...</tool_call>`.

    Blanks and a literal `\\n` between tags do not count. The first `</arg_value>` ends a value. An
    end of the call inside a value counts if a control token says so, or if nothing or the next call
    follows; otherwise it is part of the value, which may be about tool calls.
    """

    def __init__(
        self,
        tools: Tools,
        writer: CallWriter,
        spell: Callable[[str], str],
        opener: str,
        closer: str,
        firm: bool,
    ) -> None:
        self._tools = tools
        self._writer = writer
        self._opener, self._closer, self._firm = opener, closer, firm
        self._key, self._key_end = spell("<arg_key>"), spell("</arg_key>")
        self._value, self._value_end = spell("<arg_value>"), spell("</arg_value>")
        self._next = self._name
        self._text = ""
        self._final = False
        self._parameter = ""

    def take(self, text: str, final: bool) -> tuple[int, Status]:
        """See `Body`."""
        self._text, self._final = text, final
        at = 0
        while True:
            before = at, self._next
            at, status = self._next(at)
            if status is not Status.MORE or (at, self._next) == before:
                return at, status

    def _ahead(self, at: int, markers: tuple[str, ...]) -> tuple[int, str | None]:
        """Behind blanks: (position, the marker there); "" when none is, None when it may come."""
        match = _BLANK.match(self._text, at)
        pos = match.end() if match else at
        for marker in markers:
            if self._text.startswith(marker, pos):
                return pos, marker
        rest = self._text[pos:]
        waiting = rest in ("", "\\") or any(marker.startswith(rest) for marker in markers)
        return pos, None if waiting and not self._final else ""

    def _name(self, at: int) -> tuple[int, Status]:
        match = _NAME.match(self._text, at)
        name = match[1] if match else ""
        end = match.end() if match else at
        if end == len(self._text) and not self._final:
            return at, Status.MORE if self._tools.may_begin(name) else Status.BROKEN
        if name not in self._tools:
            return at, Status.BROKEN
        pos, marker = self._ahead(end, (self._key, self._closer, self._opener))
        if marker is None:
            return at, Status.MORE
        if marker == "" and pos < len(self._text):
            return at, Status.BROKEN
        self._writer.begin(name)
        self._next = self._between
        return end, Status.MORE

    def _between(self, at: int) -> tuple[int, Status]:
        pos, marker = self._ahead(at, (self._key, self._closer, self._opener))
        if marker is None:
            return at, Status.MORE
        if marker == self._key:
            self._next = self._in_key
            return pos + len(marker), Status.MORE
        if marker == self._closer:
            return pos + len(marker), Status.DONE
        return pos, Status.CUT if marker else Status.BROKEN

    def _in_key(self, at: int) -> tuple[int, Status]:
        ends = (self._key_end, self._value, self._closer, self._opener)
        pos, marker = first_of(self._text, ends, at)
        length = (pos if pos >= 0 else len(self._text) - len(max(ends, key=len))) - at
        if length > _MAX_KEY:
            return at, Status.BROKEN
        if pos < 0:
            return (len(self._text), Status.BROKEN) if self._final else (at, Status.MORE)
        if marker not in ends[:2]:
            return pos + (len(marker) if marker == self._closer else 0), Status.BROKEN
        self._parameter = self._text[at:pos].strip()
        if marker == self._value:
            self._writer.open_value(self._parameter)
            self._next = self._in_value
        else:
            self._next = self._before_value
        return pos + len(marker), Status.MORE

    def _before_value(self, at: int) -> tuple[int, Status]:
        pos, marker = self._ahead(at, (self._value, self._closer))
        if marker is None:
            return at, Status.MORE
        if marker != self._value:
            return pos + len(marker), Status.BROKEN
        self._writer.open_value(self._parameter)
        self._next = self._in_value
        return pos + len(marker), Status.MORE

    def _in_value(self, at: int) -> tuple[int, Status]:
        ends = (self._value_end, self._closer)
        pos, marker = first_of(self._text, ends, at)
        if pos < 0:
            end = len(self._text)
            end -= 0 if self._final else open_tail(self._text[at:], ends)
            self._writer.text(self._text[at:end])
            if self._final:
                return end, Status.BROKEN
            return end, Status.MORE
        self._writer.text(self._text[at:pos])
        if marker == self._value_end:
            self._writer.close_value()
            self._next = self._between
            return pos + len(marker), Status.MORE
        after = pos + len(marker)
        ends_call = closes(self._text[after:], self._opener, self._firm, self._final)
        if ends_call is None:
            return pos, Status.MORE
        if ends_call:
            return after, Status.DONE
        self._writer.text(marker)
        return after, Status.MORE


def closes(rest: str, opener: str, firm: bool, final: bool) -> bool | None:
    """Whether an end of call inside a value is one, from what follows; None when that is open."""
    if firm:
        return True
    rest = rest.lstrip()
    if rest.startswith(opener):
        return True
    if final:
        return not rest
    return None if opener.startswith(rest) else False


_ESCAPES: Final = {
    '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip
_HEX: Final = re.compile(r"[0-9a-fA-F]{4}")


def read_string(text: str, at: int, stop: str, final: bool) -> tuple[int, str, bool]:
    """Decodes a JSON string from inside it: (position, letters, whether its end was reached).

    Stops before the end quote, before the character `stop` (first of a marker; "" for none), and
    before an escape that is not complete. A wrong escape stays as it stands.
    """
    pieces: list[str] = []
    pattern = re.compile(f'["\\\\{re.escape(stop)}]')
    while True:
        match = pattern.search(text, at)
        if match is None:
            return len(text), "".join([*pieces, text[at:]]), False
        pieces.append(text[at : match.start()])
        at = match.start()
        if match[0] != "\\":
            return at, "".join(pieces), match[0] == '"'
        used, letters = _escape(text, at, final)
        if not used:
            return at, "".join(pieces), False
        pieces.append(letters)
        at += used


def _escape(text: str, at: int, final: bool) -> tuple[int, str]:
    """(length, letters) of the escape at a backslash; length 0 when more text is needed."""
    char = text[at + 1 : at + 2]
    if char == "u":
        return _unicode_escape(text, at, final)
    if char in _ESCAPES:
        return 2, _ESCAPES[char]
    return (1, "\\") if char or final else (0, "")


def _unicode_escape(text: str, at: int, final: bool) -> tuple[int, str]:
    code, low = _unit(text, at), _unit(text, at + 6)
    if code is None:
        return (0, "") if _unit_open(text, at) and not final else (2, "\\u")
    if code & 0xF800 != 0xD800:  # noqa: PLR2004 - no surrogate
        return 6, chr(code)
    if code < 0xDC00:  # noqa: PLR2004 - the first of a pair
        if low is not None and low & 0xFC00 == 0xDC00:  # noqa: PLR2004
            return 12, chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))
        if low is None and not final and _unit_open(text, at + 6):
            return 0, ""
    return 6, "\ufffd"


def _unit(text: str, at: int) -> int | None:
    match = _HEX.match(text, at + 2) if text.startswith("\\u", at) else None
    return int(match[0], 16) if match else None


def _unit_open(text: str, at: int) -> bool:
    """Whether the text ends in what may still become `\\uXXXX`."""
    rest = text[at : at + 6]
    return at + 6 > len(text) and re.fullmatch(r"(?:\\(?:u[0-9a-fA-F]{0,3})?)?", rest) is not None


class _ValueEnd:
    """Finds the end of a JSON value that begins with `{`, `[`, a digit or a word."""

    def __init__(self) -> None:
        self._depth = 0
        self._string = False
        self._escape = False
        self.text: list[str] = []

    def take(self, text: str, at: int) -> tuple[int, bool]:
        """(position, whether the value has ended); collects what it passes in `text`."""
        start = at
        while at < len(text):
            char = text[at]
            if self._string:
                if self._escape:
                    self._escape = False
                elif char == "\\":
                    self._escape = True
                elif char == '"':
                    self._string = False
            elif char == '"' and self._depth:
                self._string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]" and self._depth:
                self._depth -= 1
                if not self._depth:
                    self.text.append(text[start : at + 1])
                    return at + 1, True
            elif not self._depth and char not in "+-.0123456789abcdefghijklmnopqrstuvwxyzEINT":
                self.text.append(text[start:at])
                return at, True
            at += 1
        self.text.append(text[start:])
        return at, False


class JsonBody:
    """`{"name": NAME, "arguments": {...}}` and then the end of the call.

    Keys in any order; other keys are passed over; arguments may also be a JSON string that holds
    the object, or null. The declared types decide, as everywhere: a number for a string parameter
    becomes a string. Wrong escapes and line breaks in strings are taken as meant.
    """

    def __init__(
        self,
        tools: Tools,
        writer: CallWriter,
        opener: str,
        closers: tuple[str, ...],
        firm: bool,
        keys: tuple[str, ...] = ("arguments", "parameters", "args"),
    ) -> None:
        self._tools = tools
        self._writer = writer
        self._opener, self._closers, self._firm = opener, closers, firm
        self._keys = keys
        self._stop = closers[0][0]
        self._next = self._start
        self._text = ""
        self._final = False
        self._letters: list[str] = []  # of the string that is being read
        self._value = _ValueEnd()
        self._key = ""
        self._name: str | None = None
        self._early: str | None = None  # arguments that came before the name
        self._in_arguments = False
        self._whole = False  # the arguments are complete

    def take(self, text: str, final: bool) -> tuple[int, Status]:
        """See `Body`."""
        self._text, self._final = text, final
        at = 0
        while True:
            before = at, self._next
            at, status = self._next(at)
            if status is Status.MORE and (at, self._next) == before:
                if not final:
                    return at, status
                at, status = self._cut_off(at)
            if status is Status.BROKEN and self._whole:
                status = Status.CUT
            if status is not Status.MORE:
                return at, status

    # What is left when the text ends inside the call.
    def _cut_off(self, at: int) -> tuple[int, Status]:
        if not self._writer.started and self._name is not None and self._early is None:
            self._writer.begin(self._name)
        return (len(self._text) if self._writer.started else at), Status.BROKEN

    def _char(self, at: int) -> tuple[int, str]:
        """The next character that is no blank, "" when there is none yet."""
        while at < len(self._text) and self._text[at].isspace():
            at += 1
        return at, self._text[at : at + 1]

    def _start(self, at: int) -> tuple[int, Status]:
        pos, char = self._char(at)
        if char == "{":
            self._next = self._member
            return pos + 1, Status.MORE
        return at, Status.BROKEN if char else Status.MORE

    def _member(self, at: int) -> tuple[int, Status]:
        pos, char = self._char(at)
        if char == ",":
            return pos + 1, Status.MORE
        if char == '"':
            self._letters = []
            self._next = self._member_key
            return pos + 1, Status.MORE
        if char == "}":
            if self._in_arguments:
                self._in_arguments, self._whole = False, True
            else:
                self._next = self._end
            return pos + 1, Status.MORE
        return pos, Status.BROKEN if char else Status.MORE

    def _string(self, at: int) -> tuple[int, bool]:
        """Reads on in the string at hand: (position, whether it is complete)."""
        pos, letters, ended = read_string(self._text, at, "", self._final)
        self._letters.append(letters)
        return pos + ended, ended

    def _member_key(self, at: int) -> tuple[int, Status]:
        pos, ended = self._string(at)
        if ended:
            self._key = "".join(self._letters)
            self._next = self._colon
        return pos, Status.MORE

    def _colon(self, at: int) -> tuple[int, Status]:
        pos, char = self._char(at)
        if char == ":":
            self._next = self._argument if self._in_arguments else self._top_value
            return pos + 1, Status.MORE
        return pos, Status.BROKEN if char else Status.MORE

    # ---- members of the outer object

    def _top_value(self, at: int) -> tuple[int, Status]:
        pos, char = self._char(at)
        if not char:
            return pos, Status.MORE
        is_name = self._key == "name" and self._name is None
        is_arguments = self._key in self._keys and not self._whole and self._early is None
        self._letters = []
        self._value = _ValueEnd()
        if is_name:
            self._next = self._name_string
            return (pos + 1, Status.MORE) if char == '"' else (pos, Status.BROKEN)
        if not is_arguments:
            self._next = self._passed_string if char == '"' else self._passed_value
            return pos + (char == '"'), Status.MORE
        if char == '"':
            self._next = self._arguments_string
            return pos + 1, Status.MORE
        if char == "{" and self._name is not None:
            self._begin()
            self._next = self._member
            return pos + 1, Status.MORE
        self._next = self._arguments_value
        return (pos, Status.MORE) if char in "{n" else (pos, Status.BROKEN)

    def _name_string(self, at: int) -> tuple[int, Status]:
        pos, ended = self._string(at)
        name = "".join(self._letters)
        # A wrong name is not used up, so that what may stand behind it is looked at anew.
        if not ended:
            return (pos, Status.MORE) if self._tools.may_begin(name) else (at, Status.BROKEN)
        if name not in self._tools:
            return at, Status.BROKEN
        self._name = name
        self._next = self._member
        return pos, self._replay() if self._early is not None else Status.MORE

    def _passed_string(self, at: int) -> tuple[int, Status]:
        pos, ended = self._string(at)
        if ended:
            self._next = self._member
        return pos, Status.MORE

    def _passed_value(self, at: int) -> tuple[int, Status]:
        pos, ended = self._value.take(self._text, at)
        if ended:
            self._next = self._member
        return pos, Status.BROKEN if ended and not "".join(self._value.text) else Status.MORE

    def _arguments_string(self, at: int) -> tuple[int, Status]:
        pos, ended = self._string(at)
        return pos, self._have("".join(self._letters)) if ended else Status.MORE

    def _arguments_value(self, at: int) -> tuple[int, Status]:
        pos, ended = self._value.take(self._text, at)
        if not ended:
            return pos, Status.MORE
        raw = "".join(self._value.text)
        return pos, self._have("{}" if raw == "null" else raw)

    def _have(self, raw: str) -> Status:
        """Arguments that are complete as a text of their own."""
        self._early = raw.strip() or "{}"
        self._next = self._member
        return self._replay() if self._name is not None else Status.MORE

    def _begin(self) -> None:
        self._writer.begin(self._name or "")
        self._in_arguments = True

    def _replay(self) -> Status:
        """Writes the arguments that were kept as if they came now."""
        raw, self._early = plain(self._early or "{}"), None
        try:
            if not isinstance(parse_json(raw), dict):
                return Status.BROKEN
        except ValueError:
            return Status.BROKEN
        kept = self._text, self._final, self._closers
        self._closers = ()  # this text is complete: nothing in it ends the call
        self._begin()
        self._next = self._member
        self.take(raw[raw.index("{") + 1 :], False)
        self._text, self._final, self._closers = kept
        self._in_arguments, self._whole = False, True
        self._next = self._member
        return Status.MORE

    # ---- arguments

    def _argument(self, at: int) -> tuple[int, Status]:
        pos, char = self._char(at)
        if not char:
            return pos, Status.MORE
        if char == '"':
            self._writer.open_value(self._key, quoted=True)
            self._next = self._argument_string
            return pos + 1, Status.MORE
        self._value = _ValueEnd()
        self._next = self._argument_value
        return pos, Status.MORE

    def _argument_string(self, at: int) -> tuple[int, Status]:
        pos, letters, ended = read_string(self._text, at, self._stop, self._final)
        self._writer.text(letters)
        if ended:
            self._writer.close_value()
            self._next = self._member
            return pos + 1, Status.MORE
        if not self._text.startswith(self._stop, pos):
            return pos, Status.MORE
        for closer in self._closers:
            if self._text.startswith(closer, pos):
                after = pos + len(closer)
                ends = closes(self._text[after:], self._opener, self._firm, self._final)
                if ends is None:
                    return pos, Status.MORE
                if ends:
                    return after, Status.BROKEN
        rest = self._text[pos:]
        if not self._final and any(
            len(closer) > len(rest) and closer.startswith(rest) for closer in self._closers
        ):
            return pos, Status.MORE
        self._writer.text(self._stop)
        return pos + 1, Status.MORE

    def _argument_value(self, at: int) -> tuple[int, Status]:
        pos, ended = self._value.take(self._text, at)
        if not ended and not self._final:
            return pos, Status.MORE
        raw = "".join(self._value.text)
        if ended and not raw:
            return pos, Status.BROKEN
        self._writer.json_value(self._key, raw)
        self._next = self._member
        return pos, Status.MORE

    def _end(self, at: int) -> tuple[int, Status]:
        if not self._writer.started:
            if self._name is None or self._early is not None:
                return at, Status.BROKEN
            self._writer.begin(self._name)
        pos, _ = self._char(at)
        for closer in self._closers:
            if self._text.startswith(closer, pos):
                return pos + len(closer), Status.DONE
        rest = self._text[pos:]
        waiting = any(marker.startswith(rest) for marker in (*self._closers, self._opener))
        if waiting and not self._final:
            return at, Status.MORE
        return pos, Status.CUT
