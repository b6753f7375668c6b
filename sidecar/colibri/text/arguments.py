"""Arguments of tool calls: which JSON type a parameter has, and writing the object piece by piece.

For: the parsers of tool calls. `Tools` holds what a request declares; `CallWriter` writes one call.
The declared type decides: a string stays the model's letters ("0044", "true"), everything else is
read as JSON. Strings go out while they arrive; what could still be of another type waits until the
value is complete. A parameter that is not declared is a string unless it is other valid JSON. The
object is always valid JSON, whatever the model wrote; of a repeated parameter the first stays.
Not for: validating a schema. Thread rule: `Tools` is immutable, a writer has one owner.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from colibri.engine.answer import CallArguments, CallEnd, CallStart, Part
from colibri.text.parts import NewId, plain

_MAX_DEPTH: Final = 24
_MAX_LITERAL: Final = 1 << 13  # the pattern below may look at a text again from each quote
_TYPES: Final = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_STRING: Final = frozenset({"string"})
_STRING_OR_NULL: Final = frozenset({"string", "null"})
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class ValueType:
    """What a parameter may be: names of JSON types, None for anything; `enum` lists the only
    values.
    """

    types: frozenset[str] | None = None
    enum: tuple[Any, ...] | None = None

    @property
    def text_only(self) -> bool:
        """Always a string, so that it can be written while it arrives."""
        return self.types == _STRING

    @property
    def text_or_null(self) -> bool:
        """A string unless the whole value is `null`."""
        return self.types == _STRING_OR_NULL


ANY: Final = ValueType()


class Tools:
    """The tools of one request, by name. Takes tools as clients send them: `{"function": {...}}`
    or the bare description, `parameters` or `input_schema`. What is no usable tool is left out.
    """

    def __init__(self, tools: Iterable[Mapping[str, Any]] = ()) -> None:
        self._schemas: dict[str, Any] = {}
        for tool in tools:
            inner = tool.get("function")
            spec = inner if isinstance(inner, Mapping) else tool
            name = spec.get("name")
            if isinstance(name, str) and name:
                self._schemas[name] = spec.get("parameters", spec.get("input_schema"))
        self._known: dict[tuple[str, str], ValueType] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    def __bool__(self) -> bool:
        return bool(self._schemas)

    @property
    def names(self) -> tuple[str, ...]:
        """In the order in which they were declared."""
        return tuple(self._schemas)

    def schema(self, name: str) -> Any:
        """The schema of a tool's arguments as it was sent; None without one."""
        return self._schemas[name]

    def may_begin(self, text: str) -> bool:
        """Whether some tool's name begins with `text`."""
        return any(name.startswith(text) for name in self._schemas)

    def value_type(self, tool: str, parameter: str) -> ValueType:
        """What a parameter may be; ANY when that is not declared."""
        key = (tool, parameter)
        if key not in self._known:
            root = self._schemas.get(tool)
            found = _property(root, parameter, root, 0)
            self._known[key] = ANY if found is _MISSING else _type_of(found, root, 0)
        return self._known[key]


# ---- schemas -------------------------------------------------------------------------------------


def _resolve(schema: Any, root: Any, depth: int) -> Any:
    """Follows `$ref` inside the document; a reference that leads nowhere gives an empty schema."""
    while isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        depth += 1
        target: Any = root if schema["$ref"].startswith("#") and depth < _MAX_DEPTH else {}
        for step in schema["$ref"].removeprefix("#").split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, Mapping):
                target = target.get(name, {})
            elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            else:
                target = {}
        schema = target
    return schema


def _lists(schema: Mapping[str, Any], *keys: str) -> list[Any]:
    return [item for key in keys if isinstance(schema.get(key), list) for item in schema[key]]


def _property(schema: Any, name: str, root: Any, depth: int) -> Any:
    """The schema of a property, also behind references and combinations; _MISSING without one."""
    schema = _resolve(schema, root, depth)
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return _MISSING
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    for inner in _lists(schema, "allOf", "anyOf", "oneOf"):
        found = _property(inner, name, root, depth + 1)
        if found is not _MISSING:
            return found
    extra = schema.get("additionalProperties")
    return extra if isinstance(extra, Mapping) else _MISSING


def _type_of(schema: Any, root: Any, depth: int) -> ValueType:
    schema = _resolve(schema, root, depth)
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return ANY
    types = _named_types(schema)
    enum: tuple[Any, ...] | None = None
    if "const" in schema:
        enum = (schema["const"],)
    elif isinstance(schema.get("enum"), list):
        enum = tuple(schema["enum"])
    choices = [_type_of(item, root, depth + 1) for item in _lists(schema, "anyOf", "oneOf")]
    if choices:
        union = _union(choice.types for choice in choices)
        types = _both(types, union)
        if enum is None and all(choice.enum is not None for choice in choices):
            enum = tuple(value for choice in choices for value in choice.enum or ())
    for item in _lists(schema, "allOf"):
        inner = _type_of(item, root, depth + 1)
        types = _both(types, inner.types)
        enum = inner.enum if enum is None else enum
    if enum is not None:
        types = _both(types, frozenset(map(type_name, enum)))
    if types is None and "properties" in schema:
        types = frozenset({"object"})
    elif types is None and "items" in schema:
        types = frozenset({"array"})
    if types is not None and schema.get("nullable") is True:
        types |= {"null"}
    return ValueType(types, enum)


def _named_types(schema: Mapping[str, Any]) -> frozenset[str] | None:
    named = schema.get("type")
    names = named if isinstance(named, list) else [named]
    types = frozenset(name for name in names if isinstance(name, str)) & _TYPES
    return types or None


def _union(many: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    result: frozenset[str] = frozenset()
    for types in many:
        if types is None:
            return None
        result |= types
    return result


def _both(one: frozenset[str] | None, two: frozenset[str] | None) -> frozenset[str] | None:
    """Types that both sides allow; the first side when they contradict each other."""
    if one is None or two is None:
        return two if one is None else one
    return (one & two) or one


# ---- values --------------------------------------------------------------------------------------


def type_name(value: Any) -> str:
    """The JSON type of a Python value; whole numbers are `integer`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list | tuple) else "object"


def quote(text: str) -> str:
    """A JSON string; lone surrogates become U+FFFD."""
    return '"' + escaped(text) + '"'


def escaped(text: str) -> str:
    """The inside of a JSON string: pieces escaped one by one equal the whole escaped at once."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8") if _has_surrogate(text) else text
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


def parse_json(text: str) -> Any:
    """The value of a strict JSON text, or ValueError. Numbers must be finite."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("a number outside the range")
    return value


_PYTHON: Final = re.compile(
    r"""'(?P<single>(?:[^'\\\n]|\\.)*)'|"(?:[^"\\\n]|\\.)*"|(?P<word>True|False|None)\b"""
    r"""|(?P<comma>,)\s*(?=[\]\})])|(?P<open>\()|(?P<close>\))|[^'"TFN,()]+|.""",
    re.DOTALL,
)
_WORDS: Final = {"True": "true", "False": "false", "None": "null"}


def _from_python(text: str) -> str:
    """JSON of a Python literal (`True`, `'a'`, `(1, 2)`), so far as letters can tell."""

    def one(match: re.Match[str]) -> str:
        if match["single"] is not None:
            return '"' + re.sub(r'\\\'|(?<!\\)"', _requote, match["single"]) + '"'
        if match["word"]:
            return _WORDS[match["word"]]
        if match["comma"]:
            return ""
        return "[" if match["open"] else "]" if match["close"] else match[0]

    return _PYTHON.sub(one, text)


def _requote(match: re.Match[str]) -> str:
    return "'" if match[0] == "\\'" else '\\"'


def _fits(value: Any, types: frozenset[str]) -> bool:
    name = type_name(value)
    return name in types or (name == "integer" and "number" in types)


def json_of_text(raw: str, want: ValueType) -> str:
    """JSON for a complete value that the model wrote as bare text."""
    if want.text_only:
        return quote(raw)
    text = raw.strip()
    try:
        value = parse_json(text)
    except ValueError:
        value = _MISSING
    listed = _listed(raw, text, value, want.enum or ())
    if listed is not None:
        return listed
    valid = value is not _MISSING and not isinstance(value, str)
    if want.types is None:
        return text if valid else quote(raw)
    if valid and _fits(value, want.types):
        return _whole(text, value, want.types)
    if "string" in want.types:
        return quote(raw)
    return text if valid else _coerced(raw, text, value, want.types)


def _listed(raw: str, text: str, value: Any, enum: tuple[Any, ...]) -> str | None:
    """The value if it is one of an enum's, as JSON first, then as a string."""
    if value is not _MISSING and any(_same(value, item) for item in enum):
        return text
    for candidate in (raw, text):
        if candidate in enum:
            return quote(candidate)
    return None


def _whole(text: str, value: Any, types: frozenset[str]) -> str:
    """`3.0` where only a whole number may stand is 3."""
    if isinstance(value, float) and "number" not in types:
        return str(int(value))
    return text


def _coerced(raw: str, text: str, value: Any, types: frozenset[str]) -> str:
    """What is no JSON of the declared type: a Python literal, or JSON inside a string, or text."""
    candidates = [value] if isinstance(value, str) else []
    if len(text) <= _MAX_LITERAL:
        candidates.append(_from_python(text))
    candidates.append(text.lower())
    for candidate in candidates:
        try:
            inner = parse_json(candidate)
        except ValueError:
            continue
        if not isinstance(inner, str) and _fits(inner, types):
            return _whole(candidate.strip(), inner, types)
    return quote(value) if isinstance(value, str) else quote(raw)


def json_of_json(raw: str, want: ValueType) -> str:
    """JSON for a complete value that the model wrote as JSON other than a string."""
    text = raw.strip()
    value = parse_json(text)
    if want.types is None or value is None:
        return text
    if _fits(value, want.types):
        return _whole(text, value, want.types)
    return quote(text) if "string" in want.types else text


def json_of_quoted(text: str, want: ValueType) -> str:
    """JSON for a complete value that the model wrote as a JSON string with these letters."""
    if want.types is None or "string" in want.types:
        return quote(text)
    result = json_of_text(text, want)
    return result if not result.startswith('"') else quote(text)


def _same(one: Any, two: Any) -> bool:
    """Equal as JSON: 1 is not true, 1.0 is 1."""
    return type_name(one) == type_name(two) and one == two


# ---- writing -------------------------------------------------------------------------------------


class CallWriter:
    """Writes one call into `out`: `begin`, then values, then `finish`. Nothing here raises.

    A value that arrives as bare text: `open_value`, `text`..., `close_value`. A JSON string:
    the same with `quoted`, the letters already decoded. Any other JSON: `json_value`.
    """

    def __init__(self, tools: Tools, index: int, new_id: NewId, out: list[Part]) -> None:
        self._tools = tools
        self._index = index
        self._new_id = new_id
        self.out = out
        self.started = False
        self._name = ""
        self._keys: set[str] = set()
        self._key = ""
        self._want: ValueType | None = None
        self._quoted = False
        self._streaming = False
        self._held = ""

    def begin(self, name: str) -> None:
        """The name is known and declared."""
        self.started = True
        self._name = name
        self.out.append(CallStart(self._index, self._new_id(), name))

    def open_value(self, key: str, *, quoted: bool = False) -> None:
        """A value begins; its text follows."""
        key = plain(key)
        self._key = key
        self._quoted = quoted
        self._held = ""
        self._streaming = False
        fresh = bool(key.strip()) and key not in self._keys
        self._want = self._tools.value_type(self._name, key) if fresh else None
        if self._want is not None and (
            self._want.text_only or (quoted and self._want.text_or_null)
        ):
            self._start_string()

    def text(self, piece: str) -> None:
        """More of the value."""
        if self._want is None:
            return
        if self._streaming:
            self._write(escaped(plain(piece)))
            return
        self._held += plain(piece)
        if self._want.text_or_null and not "null".startswith(self._held.strip()):
            held = self._held
            self._start_string()
            self._write(escaped(held))

    def close_value(self) -> None:
        """The value is complete."""
        want, self._want = self._want, None
        if want is None:
            return
        if self._streaming:
            self._write('"')
            self._streaming = False
        elif self._quoted:
            self._pair(self._key, json_of_quoted(self._held, want))
        else:
            self._pair(self._key, json_of_text(self._held, want))

    def json_value(self, key: str, raw: str) -> None:
        """A complete value in JSON, no string; what is not valid is left out."""
        key = plain(key)
        if not key.strip() or key in self._keys:
            return
        try:
            value = json_of_json(plain(raw), self._tools.value_type(self._name, key))
        except ValueError:
            return
        self._pair(key, value)

    def finish(self, complete: bool) -> None:
        """The call is over; an open value is closed."""
        self.close_value()
        self._write("}" if self._keys else "{}")
        self.out.append(CallEnd(self._index, complete))

    def _start_string(self) -> None:
        self._pair(self._key, '"')
        self._streaming = True
        self._held = ""

    def _pair(self, key: str, value: str) -> None:
        self._write(f"{', ' if self._keys else '{'}{quote(key)}: {value}")
        self._keys.add(key)

    def _write(self, text: str) -> None:
        if text:
            self.out.append(CallArguments(self._index, text))
