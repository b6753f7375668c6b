"""A server that runs already, as a command sees it: finding it, asking it, and its refusals.

For: commands that leave their work to a server if one has the model loaded (`cache_warm`, `atlas`).
Not for: starting one. Requests go past all proxies. Thread rule: pure functions.
"""

from __future__ import annotations

import json
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, cast
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from colibri import errors
from colibri.errors import NetworkError, ResourceError, UsageError
from colibri.settings import Settings

MAX_ANSWER_BYTES: Final = 32 << 20
_KNOCK_SECONDS: Final = 3.0


def find(chosen: Settings, url: str | None) -> str | None:
    """Base URL of the server to use: the one at `url`, or one on the configured address if it
    serves the model that is asked for; None = there is none. Raises UsageError if `url` is none,
    NetworkError if nobody answers there.
    """
    host = "127.0.0.1" if chosen.host in ("0.0.0.0", "") else chosen.host  # noqa: S104
    address = f"[{host}]" if ":" in host else host
    base = _base(url) if url is not None else f"http://{address}:{chosen.port}"
    if url is None and not chosen.port:
        return None
    served = served_model(base, chosen, named=url is not None)
    if served is None or (url is None and not is_wanted(served, chosen)):
        return None
    return base


def _base(url: str) -> str:
    """What a person gave as the address, as a base URL: `localhost:8000` means http."""
    base = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(base)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return base
    except ValueError:
        pass  # a port that is no number
    raise UsageError(
        f"{url!r} is no address of a server.",
        where="--url",
        hint="It looks like http://localhost:8000.",
    )


def served_model(base: str, chosen: Settings, *, named: bool) -> str | None:
    """Id of the model that a Colibri at this address serves; None if there is none.

    Raises NetworkError instead if somebody has `named` the address.
    """
    try:
        if ask(base, "/", chosen)["name"] == "colibri":
            return str(ask(base, "/v1/models", chosen)["data"][0]["id"])
        reason = "another program does"
    except HTTPError as error:
        error.close()
        reason = f"status {error.code}"
    except (OSError, HTTPException) as error:
        reason = words(error)
    except (ValueError, LookupError, TypeError):
        reason = "no such server is there"
    if not named:
        return None
    raise NetworkError(
        f"no Colibri server answers: {reason}.",
        where=base,
        hint="Check the address, and COLI_API_KEY if the server wants a key.",
    )


def is_wanted(served: str, chosen: Settings) -> bool:
    """Whether a server with this model has the one that is asked for."""
    if chosen.model is None:
        return True
    from colibri.models import catalog  # noqa: PLC0415
    from colibri.models.model import open_text  # noqa: PLC0415

    return served in (chosen.model_id, open_text(catalog.resolve(chosen.model)).model_id)


def send(
    base: str, path: str, chosen: Settings, timeout: float, body: bytes | None = None
) -> HTTPResponse:
    """Sends a request. Raises HTTPError for a status of 400 and above; OSError, HTTPException or
    ValueError for what is no HTTP.
    """
    if not base.startswith(("http://", "https://")):
        raise ValueError("not a URL")
    headers = {"Content-Type": "application/json"}
    if chosen.api_key:
        headers["Authorization"] = f"Bearer {chosen.api_key}"
    request = Request(base + path, body, headers)  # noqa: S310 - checked above
    return cast(HTTPResponse, build_opener(ProxyHandler({})).open(request, timeout=timeout))


def ask(base: str, path: str, chosen: Settings) -> Any:
    """A JSON answer that comes at once. Raises as `send` does."""
    with send(base, path, chosen, _KNOCK_SECONDS) as answer:
        return json.loads(answer.read(MAX_ANSWER_BYTES))


def words(error: Exception) -> str:
    """What an error says, shortly."""
    cause = getattr(error, "reason", error)
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def refusal(answer: HTTPError, base: str) -> errors.ColibriError:
    """The error that a server's answer is to whoever asked."""
    try:
        message = str(json.loads(answer.read())["error"]["message"])
    except (OSError, ValueError, LookupError, TypeError):
        message = f"the server answers with status {answer.code}."
    finally:
        answer.close()
    code = answer.code
    if code in (401, 403):
        return errors.AuthenticationError(message, where=base, hint="Set COLI_API_KEY.")
    if code == 429:  # noqa: PLR2004
        return ResourceError(message, where=base)
    if code < 500:  # noqa: PLR2004
        return errors.RequestError(message, where=base)
    return errors.EngineFailure(message, where=base)
