"""The HTTP client of `coli chat`: one server, its model, streamed answers.

For: `colibri.cli.chat`. It speaks the OpenAI dialect of our own server and uses the standard
library alone, without proxies, so that the command starts at once. Not for: other programs; they
have clients of their own. Thread rule: one thread.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from colibri.errors import ColibriError, NetworkError, RequestError, UsageError

# A server on this machine answers at once or is not there.
_PROBE_SECONDS: Final = 2.0
_CLIENT_ERRORS: Final = range(400, 500)


@dataclass(frozen=True, slots=True)
class Model:
    """The model that a server offers; `starter`: the one that comes with the program."""

    id: str
    note: str = ""
    examples: tuple[str, ...] = ()
    starter: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer as it arrives; `finish` is why it ended, in the last piece."""

    kind: Literal["text", "reasoning", "end"]
    text: str = ""
    finish: str | None = None


class Client:
    """A server at `url`, such as http://localhost:8000; a path like /v1 behind it is dropped."""

    def __init__(self, url: str, key: str | None = None) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("it must look like http://localhost:8000")
            self._host, self._port = parts.hostname, parts.port
        except ValueError as error:
            raise UsageError(
                f"{url!r} is no address of a server: {error}.", where="--url"
            ) from None
        self._secure = parts.scheme == "https"
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def _connect(self, timeout: float | None) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=timeout)

    def model(self) -> Model:
        """The model that is served. Raises NetworkError when nobody of ours answers."""
        connection = self._connect(_PROBE_SECONDS)
        try:
            connection.request("GET", "/v1/models", headers=self._headers)
            response = connection.getresponse()
            body = response.read()
            _refuse(response.status, body)
            entry = json.loads(body)["data"][0]
            about = entry.get("about") or {}
            return Model(
                entry["id"],
                about.get("note", ""),
                tuple(about.get("examples", ())),
                about.get("starter") is True,
            )
        except (OSError, http.client.HTTPException) as error:
            raise NetworkError(f"no server answers: {error}.", where=self.url) from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise NetworkError("what answers is no such server.", where=self.url) from error
        finally:
            connection.close()

    def answer(
        self, model: str, messages: Sequence[Mapping[str, str]], *, thinking: bool
    ) -> Generator[Piece, None, None]:
        """The pieces of the next answer. Closing the iterator early stops the answer.

        Raises RequestError for what the server refuses, NetworkError when it goes away.
        """
        body = {
            "model": model,
            "messages": list(messages),
            "stream": True,
            "enable_thinking": thinking,
        }
        connection = self._connect(None)
        try:
            connection.request(
                "POST", "/v1/chat/completions", json.dumps(body), headers=self._headers
            )
            response = connection.getresponse()
            if response.status != http.client.OK:
                _refuse(response.status, response.read())
            yield from _pieces(response)
        except (OSError, http.client.HTTPException) as error:
            raise NetworkError(f"the answer broke off: {error}.", where=self.url) from error
        finally:
            with suppress(OSError):
                connection.close()


def _refuse(status: int, body: bytes) -> None:
    """Raises what an answer with this status says; nothing for a good one."""
    if status == http.client.OK:
        return
    message, code = f"the server answered with status {status}.", None
    with suppress(ValueError, LookupError, TypeError):
        error = json.loads(body)["error"]
        message, code = str(error["message"]), error.get("code")
    kind: type[ColibriError] = RequestError if status in _CLIENT_ERRORS else NetworkError
    raise kind(message, code=code if isinstance(code, str) else None)


def _pieces(response: http.client.HTTPResponse) -> Generator[Piece, None, None]:
    ended = False
    for raw in response:
        line = raw.decode("utf-8", "replace").strip()
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            ended = True
            break
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            raise NetworkError(str(event["error"].get("message", "the answer failed.")))
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {}
            if delta.get("reasoning_content"):
                yield Piece("reasoning", delta["reasoning_content"])
            if delta.get("content"):
                yield Piece("text", delta["content"])
            if choice.get("finish_reason"):
                yield Piece("end", finish=choice["finish_reason"])
    if not ended:
        raise NetworkError("the answer broke off.")
