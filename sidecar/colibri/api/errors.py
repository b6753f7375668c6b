"""Errors as HTTP answers, in one shape.

For: the Flask app, which routes every exception here, and streams, which send the same object in
band. Not for: deciding what is an error. A dialect with another envelope adds its own `body`.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from flask import Flask, Response
from werkzeug.exceptions import HTTPException

from colibri import errors
from colibri.errors import BusyError, ColibriError, RequestError
from colibri.logs import request_id

log = logging.getLogger(__name__)

_SERVER_FAULT = 500
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def body(error: ColibriError) -> dict[str, Any]:
    """The JSON object of an error."""
    message = f"{error.message} {error.hint}" if error.hint else error.message
    if error.where and not isinstance(error, RequestError):
        message = f"{error.where}: {message}"
    status = error.http_status
    kind = "server_error" if status >= _SERVER_FAULT else "invalid_request_error"
    return {
        "error": {
            "message": message,
            "type": _TYPES.get(status, kind),
            "param": getattr(error, "param", None),
            "code": error.code,
        }
    }


def answer(error: ColibriError) -> Response:
    """The HTTP answer to an error; 429 and 503 say when to come back."""
    response = Response(
        msgspec.json.encode(body(error)), error.http_status, content_type="application/json"
    )
    if isinstance(error, BusyError):
        response.headers["Retry-After"] = str(error.retry_after)
    elif error.http_status == 503:  # noqa: PLR2004 - the status itself
        response.headers["Retry-After"] = "5"
    if error.http_status == 401:  # noqa: PLR2004
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _from_http(error: HTTPException) -> ColibriError:
    """Flask's own refusals, in our words."""
    kinds: dict[int | None, ColibriError] = {
        404: errors.NotFoundError("There is no such route; see the README for those served."),
        405: errors.MethodNotAllowedError("This route does not answer this HTTP method."),
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
        allowed = getattr(error, "valid_methods", None)
        if allowed:
            response.headers["Allow"] = ", ".join(sorted(allowed))
        return response

    @app.errorhandler(Exception)
    def unexpected(error: Exception) -> Response:
        log.error("a request failed on an internal error", exc_info=error)
        return answer(
            ColibriError(
                "The server met an internal error.",
                hint=f"Its log tells more under request id {request_id.get()}.",
            )
        )
