"""Every error that a person or a client may read, as one tree.

For: all of the sidecar. An error says what happened, where, and what to do; the command line
turns it into an exit code, the HTTP side into a status and the dialect's body. Not for:
programming mistakes, which stay ordinary exceptions, and the engine's own status codes
(`colibri.engine.status`), which are translated to this tree at the worker's edge. Thread rule:
errors are plain values.

    ColibriError                    1   500   anything below; `code` names the kind for programs
    |-- UsageError                  2   400   a flag, variable or config value is wrong
    |-- ModelNotFoundError          3   404   no installed model or folder of that name
    |-- ModelError                  4   500   the model's files are damaged or not supported
    |-- EngineFailure               4   500   the engine refused or failed
    |   |-- WorkerLostError         4   503   the engine process died or hung
    |   `-- WorkerUnavailableError  4   503   the engine process is gone for good
    |       `-- NoModelError        4   503   no model is loaded
    |-- ResourceError               5   503   memory or disk do not suffice
    |   `-- PortInUseError          5   503   another program listens on the address
    |-- NetworkError                6   502   a download or remote host failed
    |-- IntegrityError              7   500   bytes differ from what their checksum or manifest says
    |-- ClientGoneError             1   499   the client left; there is nobody to tell
    `-- RequestError                2   400   a client's request is wrong; `param` names the field
        |-- ContextLengthError      2   400   the prompt leaves no room in the context
        |-- AuthenticationError     2   401   the API key is missing or wrong
        |-- ForbiddenError          2   403   Host or Origin is not trusted
        |-- NotFoundError           2   404   no such route or object
        |-- MethodNotAllowedError   2   405   the route exists, not with this method
        |-- ConflictError           2   409   what is asked for contradicts what is there
        |-- BodyTooLargeError       2   413   the body exceeds the limit
        |-- MediaTypeError          2   415   the body is not declared as JSON
        |-- ProtocolError           2   4xx   the bytes are no request that HTTP allows
        `-- BusyError               5   429   the queue is full, or waiting took too long

First number: exit code of a command. Second: HTTP status.
"""

from __future__ import annotations

from typing import ClassVar


def printable(text: str) -> str:
    """Text for one line of a terminal: control characters, which names of files may have, escaped.

    A name must not be able to break a line in two or to move the cursor.
    """
    return "".join(c if c.isprintable() or c == " " else ascii(c)[1:-1] for c in text)


class ColibriError(Exception):
    """Base of the tree.

    `message` is one sentence about what happened, `hint` (optional) what to do about it, `where`
    (optional) a file, flag, field or address. `code` is stable and meant for programs.
    """

    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    default_code: ClassVar[str] = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        where: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where
        self.code = code or self.default_code

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        if not self.hint:
            return text
        return f"{text if text.endswith(('.', '!', '?')) else text + '.'} {self.hint}"


class UsageError(ColibriError):
    """A flag, an environment variable or a line of the config file is wrong."""

    exit_code = 2
    http_status = 400
    default_code = "usage_error"


class ModelNotFoundError(ColibriError):
    """No installed model and no folder has the name that was asked for."""

    exit_code = 3
    http_status = 404
    default_code = "model_not_found"


class ModelError(ColibriError):
    """A model's files are damaged, contradict each other, or are of a kind we cannot run."""

    exit_code = 4
    default_code = "model_invalid"


class EngineFailure(ColibriError):
    """The engine refused or failed; the message is the engine's own sentence."""

    exit_code = 4
    default_code = "engine_failed"


class WorkerLostError(EngineFailure):
    """The process that owns the engine died or stopped making progress; it is being restarted."""

    http_status = 503
    default_code = "engine_lost"


class WorkerUnavailableError(EngineFailure):
    """There is no engine to ask: it failed for good, is stopping, or this prompt brings it down."""

    http_status = 503
    default_code = "engine_unavailable"


class NoModelError(WorkerUnavailableError):
    """The server runs without a model; `reason` says why if it is not by choice."""

    default_code = "no_model_loaded"

    def __init__(self, reason: str = "") -> None:
        super().__init__(
            f"No model is loaded{f': {reason}' if reason else '.'}",
            hint="Load one on the dashboard's page Models, or with POST /api/models/NAME/load.",
        )


class ResourceError(ColibriError):
    """Memory, disk space or another resource of this machine does not suffice."""

    exit_code = 5
    http_status = 503
    default_code = "out_of_resources"


class PortInUseError(ResourceError):
    """Another program already listens where the server should."""

    default_code = "port_in_use"


class NetworkError(ColibriError):
    """A remote host could not be reached or answered wrongly."""

    exit_code = 6
    http_status = 502
    default_code = "network_error"


class IntegrityError(ColibriError):
    """Bytes differ from what their checksum or manifest promises."""

    exit_code = 7
    default_code = "integrity_error"


class ClientGoneError(ColibriError):
    """The client closed its connection. Ends work; its status only ever reaches the log."""

    http_status = 499
    default_code = "client_gone"


class RequestError(ColibriError):
    """A client's request cannot be served as it stands. `param` names the field at fault.

    `details` is an object for programs, sent to clients whose dialect has a place for it.
    """

    exit_code = 2
    http_status = 400
    default_code = "invalid_value"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        hint: str | None = None,
        where: str | None = None,
        code: str | None = None,
        details: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message, hint=hint, where=where, code=code)
        self.param = param
        self.details = details


class ContextLengthError(RequestError):
    """The prompt alone fills the model's context, so nothing could be generated: it has `tokens`,
    or more than that if it was not counted to its end (`counted`), and `limit` is the length of the
    context (0 where they are not known).
    """

    default_code = "context_length_exceeded"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        hint: str | None = None,
        code: str | None = None,
        tokens: int = 0,
        limit: int = 0,
        counted: bool = True,
    ) -> None:
        super().__init__(message, param=param, hint=hint, code=code)
        self.tokens = tokens
        self.limit = limit
        self.counted = counted


class AuthenticationError(RequestError):
    """The server wants an API key and the request carries none, or another one."""

    http_status = 401
    default_code = "invalid_api_key"


class ForbiddenError(RequestError):
    """The request's Host or Origin header names a place this server does not trust."""

    http_status = 403
    default_code = "forbidden"


class NotFoundError(RequestError):
    """No such route, or no such object behind it."""

    http_status = 404
    default_code = "not_found"


class MethodNotAllowedError(RequestError):
    """The route exists, but not for this HTTP method."""

    http_status = 405
    default_code = "method_not_allowed"


class ConflictError(RequestError):
    """What the request asks for contradicts what is there, or what is being done with it."""

    http_status = 409
    default_code = "conflict"


class BodyTooLargeError(RequestError):
    """The request body is longer than the server accepts."""

    http_status = 413
    default_code = "body_too_large"


class MediaTypeError(RequestError):
    """The request body is not declared as JSON, which is how browsers' simple requests look."""

    http_status = 415
    default_code = "unsupported_media_type"


class ProtocolError(RequestError):
    """The bytes on the wire are no HTTP request that is taken here; `status` is the answer's."""

    default_code = "bad_request"

    def __init__(self, message: str, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.http_status = status  # type: ignore[misc]


class BusyError(RequestError):
    """The queue is full or the wait was too long; `retry_after` is a number of seconds."""

    exit_code = 5
    http_status = 429
    default_code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after: int, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after
