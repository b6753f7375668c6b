"""Reading a model's JSON files with every value checked.

For: the family descriptors and whoever reads another JSON file of a model folder. A file that came
from a download is untrusted: a wrong type, a negative count or an absurd size ends here with the
file and the key named, before anything is allocated for it. Not for: requests (their schemas have
their own checks). Thread rule: pure values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from colibri.errors import ModelError

# A config is a few kilobytes, a tokenizer some tens of megabytes; more than this is no such file.
MAX_JSON_BYTES: Final = 256 << 20
_SHOWN: Final = 60
_MISSING: Final = object()


def show(value: object) -> str:
    """A value as it may stand in a message: short, whatever a hostile file put there."""
    try:
        text = json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def parse_json(data: bytes, where: str) -> Any:
    """Decodes strict JSON: UTF-8, no NaN or Infinity, no repeated key. Raises ModelError naming
    `where`.
    """
    if len(data) > MAX_JSON_BYTES:
        raise ModelError(
            f"the file holds {len(data):,} bytes of JSON, expected at most {MAX_JSON_BYTES:,}.",
            where=where,
        )
    try:
        return json.loads(
            data.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique_keys
        )
    except RecursionError:
        raise ModelError("the JSON is nested too deeply.", where=where) from None
    except ValueError as error:
        raise ModelError(
            f"this is not valid JSON: {_short(str(error))}.",
            where=where,
            hint="Fetch the file again; it may be truncated.",
        ) from None


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """`parse_json` for files whose top level must be an object."""
    value = parse_json(data, where)
    if not isinstance(value, dict):
        raise ModelError(f"expected a JSON object, found {show(value)}.", where=where)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {show(key)} stands twice in one object")
            seen.add(key)
    return result


def _short(text: str) -> str:
    return text if len(text) <= 4 * _SHOWN else text[: 4 * _SHOWN] + "..."


class ConfigReader:
    """Typed, bounded access to one JSON object; every failure is a ModelError naming file and key.

    A method without `default` requires the key; JSON `null` counts as absent.
    """

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.values = values
        self.where = where
        self._prefix = prefix

    def has(self, key: str) -> bool:
        """Whether the key is there with a value other than null."""
        return self.values.get(key) is not None

    def fail(self, key: str, expected: str) -> NoReturn:
        """Raises the error for a value that is not what it must be."""
        value = self.values.get(key)
        found = "nothing" if value is None else show(value)
        raise ModelError(
            f'"{self._prefix}{key}" must be {expected}, found {found}.', where=self.where
        )

    def unsupported(self, key: str, supported: str) -> NoReturn:
        """Raises the error for a value that is legal elsewhere but not computed by this engine."""
        raise ModelError(
            f'"{self._prefix}{key}" is {show(self.values.get(key))}; '
            f"this engine computes {supported}.",
            where=self.where,
        )

    def _get(self, key: str, default: object, expected: str) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is _MISSING:
            self.fail(key, expected)
        return default

    def integer(self, key: str, low: int, high: int, default: Any = _MISSING) -> int:
        """A whole number in [low, high]."""
        expected = f"a whole number from {low} to {high}"
        value = self._get(key, default, expected)
        if value is default:
            return value  # type: ignore[no-any-return]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.fail(key, expected)
        return value

    def number(self, key: str, low: float, high: float, default: Any = _MISSING) -> float:
        """A finite number in [low, high]."""
        expected = f"a number from {low:g} to {high:g}"
        value = self._get(key, default, expected)
        if value is default:
            return value  # type: ignore[no-any-return]
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(key, expected)
        if not (low <= value <= high) or not math.isfinite(value):
            self.fail(key, expected)
        return float(value)

    def boolean(self, key: str, default: Any = _MISSING) -> bool:
        """true or false."""
        value = self._get(key, default, "true or false")
        if value is default:
            return value  # type: ignore[no-any-return]
        if not isinstance(value, bool):
            self.fail(key, "true or false")
        return value

    def string(self, key: str, default: Any = _MISSING) -> str:
        """A text."""
        value = self._get(key, default, "a text")
        if value is default:
            return value  # type: ignore[no-any-return]
        if not isinstance(value, str):
            self.fail(key, "a text")
        return value

    def choices(self, key: str, allowed: Iterable[str], length: int) -> list[str]:
        """A list of exactly `length` texts, each one of `allowed`."""
        names = tuple(allowed)
        expected = f"a list of {length} values out of {', '.join(names)}"
        value = self._get(key, _MISSING, expected)
        if not isinstance(value, list) or len(value) != length:
            self.fail(key, expected)
        for item in value:
            if not isinstance(item, str) or item not in names:
                self.fail(key, expected)
        return value

    def object(self, key: str) -> ConfigReader | None:
        """The nested object, or None when it is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(key, "an object")
        return ConfigReader(value, self.where, f"{self._prefix}{key}.")

    def token_ids(self, key: str, vocab: int) -> list[int]:
        """One token id or a list of them, each in [0, vocab); absent gives an empty list."""
        value = self.values.get(key)
        if value is None:
            return []
        items = value if isinstance(value, list) else [value]
        expected = f"a token id below {vocab} or a list of at most 1000"
        if len(items) > 1000:  # noqa: PLR2004 - the sentence above names it
            self.fail(key, expected)
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < vocab:
                self.fail(key, expected)
        return items
