"""What a route takes and gives, said where the route is made.

For: the routes, which carry it as a decorator, and `openapi`, which writes the description of the
API from it. Not for: checking anything; handlers do that. Threads: values.

    @describe("An answer.", request=ChatRequest, answer=ChatCompletion, stream=ChatChunk,
              errors=GENERATION)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec


def says(**schema: Any) -> msgspec.Meta:
    """JSON schema of a field beyond its type; a part of the description that checks nothing."""
    return msgspec.Meta(extra_json_schema=schema)


# A number in a query.
POSITIVE = {"type": "integer", "minimum": 1}

View = TypeVar("View", bound=Callable[..., Any])
_ATTRIBUTE = "colibri_operation"

# Statuses of routes that wait for the engine: an unknown model, a full queue.
GENERATION = (404, 429)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route. Types are those of JSON bodies.

    `request`: what it takes. `answer`: what it gives with the status `status` (and `also`); a tuple
    where it may be one of several. `stream`: its events if it can stream, of which the last is the
    text `end`. `media`: an answer of another content type; `text`: one that may come as well.
    `failure`: a 503 that is no Error. `query`: JSON schemas of query parameters by name. `errors`:
    further statuses besides those that every route may answer (`openapi.EVERYWHERE`). `open`: needs
    no key.
    """

    summary: str
    request: Any = None
    answer: Any = None
    stream: Any = None
    end: str | None = None
    media: str = "application/json"
    text: str | None = None
    status: int = 200
    also: int | None = None
    query: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    errors: tuple[int, ...] = ()
    failure: Any = None
    open: bool = False


def describe(summary: str, **fields: Any) -> Callable[[View], View]:
    """Attaches an Operation to a view function."""

    def attach(view: View) -> View:
        setattr(view, _ATTRIBUTE, Operation(summary=summary, **fields))
        return view

    return attach


def operation_of(view: Callable[..., Any]) -> Operation | None:
    """The Operation of a view function, if it has one."""
    found: Operation | None = getattr(view, _ATTRIBUTE, None)
    return found
