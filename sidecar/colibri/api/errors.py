"""Errors as HTTP answers, in the shape that the clients of a path expect.

For: the Flask app, which routes every exception here; the server, for what never gets to the app;
and streams, which send the same object in band. Not for: deciding what is an error.

    elsewhere       {"error": {"message": ..., "type": ..., "param": ..., "code": ...,
                               "commands": lines to copy, where some command would help}}
    /v1/messages*   {"type": "error", "error": {"type": ..., "message": ...}, "request_id": ...}

An error may carry `details`, an object that Anthropic's clients read; it is sent on their paths.
Threads: the functions read the request id of the thread that serves the request.
"""

from __future__ import annotations

import http.client
import logging
import re
from typing import Any

import msgspec
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from colibri import errors
from colibri.errors import BusyError, ColibriError, RequestError
from colibri.logs import request_id

log = logging.getLogger(__name__)

_SERVER_FAULT = 500
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
# With /v1 forgotten or given twice, as the routes are served.
_ANTHROPIC_PATH = re.compile(r"(/v1){0,2}/messages(/|$)")
_RETRY_SECONDS = 5
# Of a path that a client made up.
_MOST_SHOWN = 100
# The name under which Anthropic's clients look for what is x-request-id everywhere.
ANTHROPIC_ID_HEADER = "request-id"


def is_anthropic(path: str) -> bool:
    """Whether clients of this path speak Anthropic's dialect."""
    return _ANTHROPIC_PATH.match(path) is not None


def _message(error: ColibriError) -> str:
    message = f"{error.message} {error.hint}" if error.hint else error.message
    if error.where and not isinstance(error, RequestError):
        message = f"{error.where}: {message}"
    return message


def body(error: ColibriError) -> dict[str, Any]:
    """The JSON object of an error, OpenAI's shape."""
    status = error.http_status
    kind = "server_error" if status >= _SERVER_FAULT else "invalid_request_error"
    inside: dict[str, Any] = {
        "message": _message(error),
        "type": _OPENAI_TYPES.get(status, kind),
        "param": getattr(error, "param", None),
        "code": error.code,
    }
    commands = getattr(error, "commands", None)
    if commands is not None:
        inside["commands"] = commands
    return {"error": inside}


def anthropic_body(error: ColibriError) -> dict[str, Any]:
    """The JSON object of an error, Anthropic's shape; also the data of an `error` event."""
    status = error.http_status
    kind = "api_error" if status >= _SERVER_FAULT else "invalid_request_error"
    inside: dict[str, Any] = {
        "type": _ANTHROPIC_TYPES.get(status, kind),
        "message": _message(error),
    }
    details = getattr(error, "details", None)
    if details is not None:
        inside["details"] = details
    return {"type": "error", "error": inside, "request_id": request_id.get()}


def render(error: ColibriError, path: str) -> tuple[str, list[tuple[str, str]], bytes]:
    """Status line, headers and body of the answer to an error on a path."""
    anthropic = is_anthropic(path)
    data = msgspec.json.encode(anthropic_body(error) if anthropic else body(error))
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
    if anthropic:
        headers.append((ANTHROPIC_ID_HEADER, request_id.get()))
    if isinstance(error, BusyError):
        headers.append(("Retry-After", str(error.retry_after)))
    elif error.http_status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append(("Retry-After", str(_RETRY_SECONDS)))
    if error.http_status == http.HTTPStatus.UNAUTHORIZED:
        headers.append(("WWW-Authenticate", "Bearer"))
    phrase = http.client.responses.get(error.http_status, "Error")
    return f"{error.http_status} {phrase}", headers, data


def answer(error: ColibriError) -> Response:
    """The HTTP answer to an error of the request at hand; 429 and 503 say when to come back."""
    status, headers, data = render(error, request.path)
    return Response(data, status, headers)


def internal_error() -> ColibriError:
    """What a client is told about a fault of ours."""
    return ColibriError(
        "The server met an internal error.",
        hint=f"Its log tells more under request id {request_id.get()}.",
    )


def _allowed(error: HTTPException) -> list[str]:
    """The methods that a route answers, where the error is about them."""
    return sorted(getattr(error, "valid_methods", None) or ())


def _from_http(error: HTTPException) -> ColibriError:
    """Flask's own refusals, in our words."""
    kinds: dict[int | None, ColibriError] = {
        404: errors.NotFoundError(
            f"There is no route {request.path[:_MOST_SHOWN]!r}.",
            hint="/v1/openapi.json describes those that are served.",
        ),
        405: errors.MethodNotAllowedError(
            f"The route {request.path[:_MOST_SHOWN]!r} does not answer {request.method}.",
            hint=f"It answers {', '.join(_allowed(error))}.",
        ),
        413: errors.BodyTooLargeError("The request body is larger than the server accepts."),
    }
    return kinds.get(error.code) or RequestError(
        f"The request cannot be understood: {error.description}", code="bad_request"
    )


def install(app: Flask) -> None:
    """Routes every exception of a request through `answer`."""

    @app.errorhandler(ColibriError)
    def expected(error: ColibriError) -> Response:
        if error.http_status >= _SERVER_FAULT:
            log.error("%s", error)
        else:
            log.info("refused with %d: %s", error.http_status, error.code)
        return answer(error)

    @app.errorhandler(HTTPException)
    def from_flask(error: HTTPException) -> Response:
        response = answer(_from_http(error))
        if allowed := _allowed(error):
            response.headers["Allow"] = ", ".join(allowed)
        return response

    @app.errorhandler(Exception)
    def unexpected(error: Exception) -> Response:
        log.error("a request failed on an internal error", exc_info=error)
        return answer(internal_error())
