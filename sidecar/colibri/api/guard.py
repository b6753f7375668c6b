"""Who may talk to the server: Host, Origin, key, content type, body size; before any route runs.

For: every route of the app, unknown ones included. Not for: rights of users; whoever passes may
do all.

    Host      a page of an attacker can make its own name point here (DNS rebinding); such a
    request carries
              that name. Trusted: addresses, localhost, *.localhost and *.local (none of which
              public DNS can give away), the bind address, --allowed-host. All others: 403, on
              every method.
    Origin    a page may send requests without reading the answer. What changes state and names a
    foreign
              Origin is refused; allowed ones get CORS headers, and their preflight needs no key.
    type      without a key header a POST must be declared as JSON, which a page cannot do unasked.
    key       Authorization: Bearer or x-api-key, compared in constant time. None set: any is
    accepted.

Thread rule: immutable after construction.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets

from flask import Flask, Request, Response, request

from colibri.api.body import MAX_BODY_BYTES
from colibri.errors import AuthenticationError, ForbiddenError, MediaTypeError, RequestError
from colibri.logs import request_id
from colibri.settings import Settings

# Front ends under development and desktop shells on this machine: Vite, and Tauri on its platforms.
LOCAL_ORIGINS = frozenset(
    {
        "http://localhost:5173",
        "http://127.0.0.1:5173",
        "tauri://localhost",
        "http://tauri.localhost",
        "https://tauri.localhost",
    }
)
_STATE_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_HOST = re.compile(r"^(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::\d{1,5})?$")
_EXPOSED = "x-request-id, x-colibri-queue-wait-ms, retry-after"


def host_name(header: str) -> str | None:
    """Name or address in a Host header, lower case, without port; None if it is malformed."""
    match = _HOST.match(header)
    if match is None:
        return None
    return (match["v6"] or match["name"]).lower().rstrip(".")


def is_address(name: str) -> bool:
    """Whether a name is an IP address in the usual notation."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """The checks of the module's text for one set of settings."""

    def __init__(self, settings: Settings) -> None:
        self._hosts = {name.lower() for name in (*settings.allowed_hosts, settings.host)}
        self._origins = {origin.lower() for origin in settings.cors_origins} | LOCAL_ORIGINS
        self._any_origin = "*" in settings.cors_origins
        self._key = settings.api_key.encode() if settings.api_key else None

    def check_host(self, header: str | None) -> None:
        """Raises ForbiddenError unless the Host header names a trusted place."""
        if not header:
            raise RequestError("The request has no Host header.", code="missing_host")
        name = host_name(header)
        if name is None or not (
            name == "localhost"
            or name.endswith((".localhost", ".local"))
            or is_address(name)
            or name in self._hosts
        ):
            raise ForbiddenError(
                f"The host name {header[:100]!r} is not trusted.",
                hint="If it is yours, start the server with --allowed-host NAME "
                "(or COLI_ALLOWED_HOSTS).",
                code="host_not_allowed",
            )

    def allows_origin(self, origin: str, host: str) -> bool:
        """Whether pages of `origin` may call us; those served by ourselves always may."""
        origin = origin.lower()
        own = (f"http://{host}".lower(), f"https://{host}".lower())
        return self._any_origin or origin in self._origins or origin in own

    def authorised(self, incoming: Request) -> bool:
        """Whether the key fits, or none is needed. Never raises, whatever the header holds."""
        if self._key is None:
            return True
        scheme, _, bearer = incoming.headers.get("Authorization", "").partition(" ")
        given = [incoming.headers.get("x-api-key", "")]
        if scheme.lower() == "bearer":
            given.append(bearer.strip())
        # Headers arrive as latin-1; comparing bytes takes any character in stride.
        matches = [
            hmac.compare_digest(key.encode("latin-1", "replace"), self._key) for key in given
        ]
        return any(matches)

    def check_media_type(self, incoming: Request) -> None:
        """Raises MediaTypeError for a body that a foreign page could have sent unasked."""
        has_key_header = "Authorization" in incoming.headers or "x-api-key" in incoming.headers
        if not (incoming.is_json or has_key_header):
            raise MediaTypeError(
                f"The content type is {incoming.mimetype or 'missing'!r}.",
                hint="Send JSON with the header Content-Type: application/json.",
            )


def _preflight() -> Response:
    """The browser asks before it sends; the names it asks for are granted as they are."""
    response = Response(status=204)
    wanted = request.headers.get("Access-Control-Request-Headers", "authorization, content-type")
    response.headers["Access-Control-Allow-Methods"] = "GET, HEAD, POST, PUT, PATCH, DELETE"
    response.headers["Access-Control-Allow-Headers"] = wanted
    response.headers["Access-Control-Max-Age"] = "600"
    if request.headers.get("Access-Control-Request-Private-Network") == "true":
        response.headers["Access-Control-Allow-Private-Network"] = "true"
    return response


def install(app: Flask, settings: Settings) -> None:
    """Puts the guard before every request of the app, and ids and CORS headers on every answer."""
    guard = Guard(settings)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES

    @app.before_request
    def check() -> Response | None:
        request_id.set(f"req_{secrets.token_hex(12)}")
        guard.check_host(request.headers.get("Host"))
        origin = request.headers.get("Origin")
        allowed = origin is None or guard.allows_origin(origin, request.headers["Host"])
        is_preflight = (
            request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        )
        if not allowed and (is_preflight or request.method in _STATE_CHANGING):
            raise ForbiddenError(
                f"The web origin {(origin or '')[:100]!r} may not call this server.",
                hint="If it is yours, start the server with --cors-origin ORIGIN.",
                code="origin_not_allowed",
            )
        if is_preflight:
            return _preflight()
        if not guard.authorised(request) and request.path != "/health":
            raise AuthenticationError(
                "The API key is missing or wrong.",
                hint="Send it as Authorization: Bearer KEY or as x-api-key: KEY.",
            )
        if request.method in _STATE_CHANGING:
            guard.check_media_type(request)
        return None

    @app.after_request
    def finish(response: Response) -> Response:
        response.headers["x-request-id"] = request_id.get()
        response.headers["X-Content-Type-Options"] = "nosniff"
        origin = request.headers.get("Origin")
        host = request.headers.get("Host", "")
        if origin is not None:
            response.headers.add("Vary", "Origin")
            if guard.allows_origin(origin, host):
                response.headers["Access-Control-Allow-Origin"] = origin
                response.headers["Access-Control-Expose-Headers"] = _EXPOSED
        return response

    app.extensions["colibri_guard"] = guard
