"""What a sidecar and the window that started it say to each other, one JSON line each way.

For: `entry`, which answers as the sidecar, and `supervisor`, which asks. Not for: anything after
the start; from then on both speak HTTP.

    window -> sidecar   stdin    Wishes, then silence; when it ends, the window is gone
    sidecar -> window   stdout   Handshake, once it answers HTTP

Pure: no process, no socket. Whatever a line holds, `parse` returns or raises ValueError.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeGuard
from urllib.parse import urlsplit

# Tells the line from whatever else a library prints.
MARK: Final = "colibri_handshake"
WISH_MARK: Final = "colibri_wishes"
VERSION: Final = 1
LONGEST_LINE: Final = 65_536
_MAX_PORT: Final = 65_535
_MAX_TEXT: Final = 1000


@dataclass(frozen=True, slots=True)
class Handshake:
    """Where the sidecar answers, and how to know it again.

    `token` stands for the API key while this sidecar lives; None for a server that was there
    before. `instance` is what `/api/session` of the same server says. `wanted_port` is the port
    that was asked for where another program has it; None when the server got what it wanted.
    """

    url: str
    port: int
    pid: int
    token: str | None
    version: str
    instance: str
    wanted_port: int | None = None

    @property
    def reused(self) -> bool:
        """Whether the server was running already and goes on without the window."""
        return self.token is None


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the window would like: `ports` to try when the wanted one is taken, in this order, and
    whether a server of ours that runs already may be used instead of a new one.
    """

    ports: tuple[int, ...] = ()
    reuse: bool = False


def encode(message: Handshake | Wishes) -> bytes:
    """The message as one line."""
    mark = MARK if isinstance(message, Handshake) else WISH_MARK
    return json.dumps({mark: VERSION, **asdict(message)}).encode("ascii") + b"\n"


def is_handshake(line: bytes) -> bool:
    """Whether a line claims to be a handshake; only then is it worth to be parsed."""
    return line.lstrip().startswith(b'{"' + MARK.encode() + b'"')


def parse_handshake(line: bytes) -> Handshake:
    """The handshake of a line. Raises ValueError saying what is wrong with it."""
    data = _object(line, MARK)
    port = _port(data, "port")
    url = _text(data, "url")
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.port != port:
        raise ValueError(f"the address {url!r} is none of a server at port {port}")
    pid = data.get("pid")
    if type(pid) is not int or pid <= 0:
        raise ValueError("the process id is missing")
    wanted = None if data.get("wanted_port") is None else _port(data, "wanted_port")
    token = None if data.get("token") is None else _text(data, "token")
    return Handshake(
        url=url,
        port=port,
        pid=pid,
        token=token,
        version=_text(data, "version"),
        instance=_text(data, "instance"),
        wanted_port=wanted,
    )


def parse_wishes(line: bytes) -> Wishes:
    """The wishes of a line. Raises ValueError; whoever is not started by a window gets none."""
    data = _object(line, WISH_MARK)
    ports = data.get("ports")
    if not isinstance(ports, list) or not all(_is_port(port) for port in ports):
        raise ValueError("the ports are no list of ports")
    reuse = data.get("reuse")
    if type(reuse) is not bool:
        raise ValueError("whether a server may be used again is not said")
    return Wishes(ports=tuple(ports), reuse=reuse)


def _object(line: bytes, mark: str) -> dict[str, Any]:
    if len(line) > LONGEST_LINE:
        raise ValueError("the line is too long")
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the line is no JSON: {error}") from error
    if not isinstance(data, dict) or data.get(mark) != VERSION:
        raise ValueError(f"the line is no {mark} of version {VERSION}")
    return data


def _is_port(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 < value <= _MAX_PORT


def _port(data: dict[str, Any], name: str) -> int:
    value = data.get(name)
    if not _is_port(value):
        raise ValueError(f"{name} is no port: {value!r}")
    return value


def _text(data: dict[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT:
        raise ValueError(f"{name} is missing")
    return value
