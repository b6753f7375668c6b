"""The description of the API, OpenAPI 3.1, made from the routes and their types.

For: `/openapi.json`, clients that generate code, and the tests that hold the server to it. A route
is in it if its view carries an `Operation` (`describe`). Not for: the dashboard's pages. Routes
that are served at several places stand at `/v1/...`. Threads: made once per app, then constant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from flask import Blueprint, Flask, Response, current_app
from msgspec import UNSET, UnsetType
from werkzeug.routing import Rule

from colibri import __version__
from colibri.api import errors
from colibri.api.describe import Operation, describe, operation_of

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"<(?:\w+(?:\([^)]*\))?:)?(\w+)>")
_EXTENSION = "colibri_openapi"

# What the guard, the server and the engine may answer on every route.
EVERYWHERE = {
    400: "The request is wrong; the message names the field.",
    401: "The key is missing or wrong.",
    403: "The Host or the Origin is not trusted.",
    404: "There is no such route or object.",
    405: "The route does not answer this method.",
    408: "The request did not arrive in time.",
    413: "The body is too large.",
    414: "The address is too long.",
    415: "The body is not declared as JSON, or is compressed.",
    417: "An expectation cannot be met.",
    431: "The headers are too large.",
    500: "The engine or the server failed; the message has the cause.",
    503: "The server cannot answer now; Retry-After says when to come back.",
    505: "Only HTTP/1.0 and HTTP/1.1 are spoken.",
}
_FURTHER = {
    409: "It contradicts what is there.",
    422: "A file that the answer stands in cannot be used; the message names it.",
    429: "The queue is full, or the wait was too long; Retry-After says when to come back.",
}
_RETRY = frozenset({429, 503})


class ErrorInside(msgspec.Struct, rename={"kind": "type"}):
    """What is wrong: `message` for people, `code` for programs, `param` is the field's name;
    `commands` are lines for a terminal that help.
    """

    message: str
    kind: str
    param: str | None
    code: str
    commands: list[str] | msgspec.UnsetType = msgspec.UNSET


class Error(msgspec.Struct):
    """Every error, but those of Anthropic's routes."""

    error: ErrorInside


class AnthropicErrorInside(msgspec.Struct, rename={"kind": "type"}):
    """What is wrong: `message` for people, `type` for programs, and with some errors `details`,
    which the SDKs read (`error_code`, and what is `unsupported`).
    """

    kind: str
    message: str
    details: dict[str, Any] | UnsetType = UNSET


class AnthropicError(msgspec.Struct, tag="error"):
    """Every error of Anthropic's routes."""

    error: AnthropicErrorInside
    request_id: str


def description(app: Flask, *, secured: bool) -> dict[str, Any]:
    """The whole document. `secured`: a key is demanded."""
    operations = list(_operations(app))
    kinds: list[Any] = [Error, AnthropicError]
    for _, _, operation in operations:
        for kind in (operation.request, operation.answer, operation.stream, operation.failure):
            kinds += _alternatives(kind)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    known = dict(zip(map(repr, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for path, method, operation in operations:
        paths.setdefault(path, {})[method.lower()] = _operation(path, operation, known, secured)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Colibri",
            "version": __version__,
            "description": "A local server that speaks OpenAI's and Anthropic's dialect. Routes "
            "below /v1 also answer without /v1. Unknown fields of a request are ignored.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": components},
    }
    if secured:
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
    return document


def _operations(app: Flask) -> Iterator[tuple[str, str, Operation]]:
    """(path, method, operation) of every described route, in the order of their paths."""
    places: dict[tuple[str, str], list[Rule]] = {}
    for rule in app.url_map.iter_rules():
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            places.setdefault((rule.endpoint, method), []).append(rule)
    found = []
    for (endpoint, method), rules in places.items():
        operation = operation_of(app.view_functions[endpoint])
        if operation is not None:
            path = _PARAMETER.sub(r"{\1}", _main(rules).rule)
            found.append((path, method, operation))
    yield from sorted(found, key=lambda item: item[:2])


def _main(rules: list[Rule]) -> Rule:
    """Of all places of a route the one below a single /v1, else the shortest."""
    return min(rules, key=lambda rule: (not re.match(r"/v1/(?!v1/)", rule.rule), len(rule.rule)))


def _operation(
    path: str, operation: Operation, known: dict[str, Any], secured: bool
) -> dict[str, Any]:
    kind = AnthropicError if errors.is_anthropic(path) else Error
    headers = {"x-request-id": _header("The id of the request, also in the server's log.")}
    success: dict[str, Any] = {"description": "The answer.", "headers": headers}
    if operation.media != "application/json":
        success["content"] = {operation.media: {"schema": {"type": "string"}}}
    elif operation.answer is not None:
        shapes = [known[repr(kind)] for kind in _alternatives(operation.answer)]
        success["content"] = _json(shapes[0] if len(shapes) == 1 else {"anyOf": shapes})
    if operation.text is not None:
        success["content"][operation.text] = {"schema": {"type": "string"}}
    if operation.stream is not None:
        success["description"] = (
            "The answer, or with `stream` server-sent events: each `data` is a "
            f"{operation.stream.__name__}."
        )
        success["content"]["text/event-stream"] = {
            "schema": _event(known[repr(operation.stream)], known[repr(kind)], operation.end)
        }
    wrong = _json(known[repr(kind)])
    responses: dict[str, Any] = {str(operation.status): success}
    if operation.also is not None:
        responses[str(operation.also)] = success
    texts = {**EVERYWHERE, **{status: _FURTHER.get(status) for status in operation.errors}}
    for status, text in sorted(texts.items()):
        answer: dict[str, Any] = {
            "description": text or EVERYWHERE[status],
            "headers": dict(headers),
            "content": wrong,
        }
        if status in _RETRY:
            answer["headers"]["Retry-After"] = _header("Seconds.", "integer")
        if status == 503 and operation.failure is not None:  # noqa: PLR2004 - the status itself
            both = [known[repr(operation.failure)], known[repr(kind)]]
            answer["content"] = _json({"anyOf": both})
        responses.setdefault(str(status), answer)
    result: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", path)
    ]
    parameters += [
        {"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()
    ]
    if parameters:
        result["parameters"] = parameters
    if operation.request is not None:
        body = _json(known[repr(operation.request)])
        result["requestBody"] = {"required": True, "content": body}
    if secured:
        result["security"] = [{"bearer": []}, {"header": []}] + [{}] * operation.open
    return result


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if kind is None:
        return ()
    return kind if isinstance(kind, tuple) else (kind,)


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _event(schema: Any, error: Any, end: str | None) -> dict[str, Any]:
    """One server-sent event; 3.1 has no words for a stream of them."""
    content = {"contentMediaType": "application/json", "contentSchema": {"anyOf": [schema, error]}}
    data = content if end is None else {"anyOf": [{"const": end}, content]}
    return {
        "type": "object",
        "description": "Each event of the stream.",
        "required": ["data"],
        "properties": {"event": {"type": "string"}, "data": {"type": "string", **data}},
    }


def _header(text: str, kind: str = "string") -> dict[str, Any]:
    return {"description": text, "schema": {"type": kind}}


def blueprint(*, secured: bool) -> Blueprint:
    """`/openapi.json`, also below /v1."""
    routes = Blueprint("openapi", __name__)

    @describe("This description.", answer=dict)
    def openapi() -> Response:
        app = current_app
        if _EXTENSION not in app.extensions:
            document = description(app, secured=secured)
            app.extensions[_EXTENSION] = msgspec.json.encode(document)
        return Response(app.extensions[_EXTENSION], content_type="application/json")

    for prefix in ("", "/v1", "/v1/v1"):
        routes.add_url_rule(f"{prefix}/openapi.json", view_func=openapi)
    return routes
