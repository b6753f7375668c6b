"""Request bodies: from bytes to a typed struct, or an error that names the field.

For: every dialect's handler. Not for: what a dialect allows beyond types; its schemas check that.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from flask import Request

from colibri.errors import BodyTooLargeError, MediaTypeError, RequestError

T = TypeVar("T")

MAX_BODY_BYTES = 32 << 20

# The library's sentence: "Expected `int | null`, got `str` - at `$.messages[0].role`".
_MISMATCH = re.compile(r"^Expected `([^`]+)`, got `([^`]+)`(?: - at `\$\.?([^`]*)`)?$")
# "Object missing required field `role` - at `$.messages[0]`"
_MISSING = re.compile(r"^Object missing required field `([^`]+)`(?: - at `\$\.?([^`]*)`)?$")
_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")
_ARTICLES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def _describe(kinds: str) -> str:
    names = [_ARTICLES.get(kind, kind) for kind in kinds.split(" | ") if kind != "null"]
    return " or ".join(names) or "null"


def read(request: Request) -> bytes:
    """The whole body, once. Raises BodyTooLargeError, MediaTypeError."""
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise BodyTooLargeError(
            f"The request body is larger than the {MAX_BODY_BYTES >> 20} MB the server accepts."
        )
    coding = request.headers.get("Content-Encoding", "")
    if coding.strip().lower() not in ("", "identity"):
        raise MediaTypeError(
            f"The body has the content encoding {coding[:40]!r}.",
            hint="Send it as it is, without Content-Encoding.",
        )
    return request.get_data(cache=False)


def decode(body: bytes, kind: type[T]) -> T:
    """The body as `kind`. Unknown fields are ignored. Raises RequestError with `param`."""
    if not body:
        raise RequestError("The request has no body; send a JSON object.", code="invalid_json")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _mismatch(str(error)) from None
    except msgspec.DecodeError as error:
        raise RequestError(
            f"The request body is not valid JSON: {error}.", code="invalid_json"
        ) from None
    except RecursionError:
        raise RequestError("The request body is nested too deeply.", code="invalid_json") from None


def _mismatch(text: str) -> RequestError:
    match = _MISMATCH.match(text)
    if match:
        expected, got, place = match.groups()
        name = f"'{place}'" if place else "The request body"
        return RequestError(
            f"{name} must be {_describe(expected)}, not {_describe(got)}.",
            param=place or None,
            code="invalid_type",
        )
    missing = _MISSING.match(text)
    if missing:
        place = ".".join(part for part in (missing[2], missing[1]) if part)
        return RequestError(f"'{place}' is missing.", param=place, code="missing_field")
    found = _PLACE.search(text)
    place = found.group(1) if found else ""
    sentence = _PLACE.sub("", text)
    return RequestError(
        f"'{place}': {sentence}." if place else f"{sentence}.",
        param=place or None,
        code="invalid_type",
    )
