"""Who may talk to the server: Host, Origin, key, content type, body size; before any route runs.

For: every route of the app, unknown ones included. Not for: rights of users; whoever passes may
do all.

    Host      a page of an attacker can make its own name point here (DNS rebinding); such a
              request carries that name. Trusted: addresses, localhost, *.localhost and
              *.local (none of which public DNS can give away, whatever address the server listens
              on), the bind address, --allowed-host. All others: 403, on every method.
    Origin    a page may send requests without reading the answer. What changes state or opens a
              WebSocket and names a foreign Origin is refused; allowed ones get CORS headers, and
              their preflight needs no key. No Origin is no page: `sec-fetch-mode` says nothing,
              because other programs send it too.
    type      without a key header a POST must be declared as JSON, which a page cannot do unasked;
              other methods that change state are never sent without a preflight.
    key       Authorization: Bearer or x-api-key, compared in constant time; or the cookie of a
              login (`login`), from this server's own pages only. None set: any is accepted. The
              dashboard's files and its login are open. A window that started the server has a
              token that counts as the key until the server ends.
    id        every answer has an x-request-id: the client's own if it sent a sane one.

The server asks `Guard.refuses` before it takes a body, so that none is kept for a request that will
be refused; the answer to it is then made like every other.

Thread rule: immutable after construction.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from typing import TYPE_CHECKING

from flask import Flask, Request, Response, request

from colibri.api.body import MAX_BODY_BYTES
from colibri.api.ids import new_request_id
from colibri.api.login import Logins, cookie_name
from colibri.errors import AuthenticationError, ForbiddenError, MediaTypeError, RequestError
from colibri.logs import request_id
from colibri.settings import Settings

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

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
# What needs no key; /health and / tell more to those who have it.
_OPEN = frozenset({"/", "/health", "/app", "/api/session"})
_OPEN_BELOW = "/app/"
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

    def __init__(self, settings: Settings, token: str | None = None) -> None:
        self._hosts = {name.lower() for name in (*settings.allowed_hosts, settings.host)}
        self._origins = {origin.lower() for origin in settings.cors_origins} | LOCAL_ORIGINS
        self._any_origin = "*" in settings.cors_origins
        self._key = settings.api_key.encode() if settings.api_key else None
        self._known = [text.encode() for text in (settings.api_key, token) if text]
        self.logins = Logins(settings.api_key, token=token)

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
        return self._any_origin or origin.lower() in self._origins or self._is_own(origin, host)

    @staticmethod
    def _is_own(origin: str, host: str) -> bool:
        return origin.lower() in (f"http://{host}".lower(), f"https://{host}".lower())

    def authorised(self, incoming: Request) -> bool:
        """Whether the key fits, or none is needed. Never raises, whatever the header holds."""
        if self._key is None or self._logged_in(incoming):
            return True
        scheme, _, bearer = incoming.headers.get("Authorization", "").partition(" ")
        given = [incoming.headers.get("x-api-key", "")]
        if scheme.lower() == "bearer":
            given.append(bearer.strip())
        # Headers arrive as latin-1; comparing bytes takes any character in stride.
        matches = [
            hmac.compare_digest(key.encode("latin-1", "replace"), known)
            for key in given
            for known in self._known
        ]
        return any(matches)

    def _logged_in(self, incoming: Request) -> bool:
        """Whether a page of ours sends the cookie of a login. Pages of other sites never do, but
        what else listens on this machine is the same site to a browser, whatever its port.
        """
        host = incoming.headers.get("Host", "")
        token = incoming.cookies.get(cookie_name(host), "")
        if not token or not self.logins.holds(token):
            return False
        origin = incoming.headers.get("Origin")
        return origin is None or self._is_own(origin, host)

    def check_media_type(self, incoming: Request) -> None:
        """Raises MediaTypeError for a body that a foreign page could have sent unasked."""
        has_key_header = "Authorization" in incoming.headers or "x-api-key" in incoming.headers
        if not (incoming.is_json or has_key_header):
            raise MediaTypeError(
                f"The content type is {incoming.mimetype or 'missing'!r}.",
                hint="Send JSON with the header Content-Type: application/json.",
            )

    def check(self, incoming: Request) -> bool:
        """Raises what keeps this request out. True for a preflight, which goes no further."""
        self.check_host(incoming.headers.get("Host"))
        origin = incoming.headers.get("Origin")
        allowed = origin is None or self.allows_origin(origin, incoming.headers["Host"])
        preflight = (
            incoming.method == "OPTIONS" and "Access-Control-Request-Method" in incoming.headers
        )
        upgrade = "Upgrade" in incoming.headers
        if not allowed and (preflight or upgrade or incoming.method in _STATE_CHANGING):
            raise _foreign(origin or "")
        if preflight:
            return True
        is_open = incoming.path in _OPEN or incoming.path.startswith(_OPEN_BELOW)
        if not is_open and not self.authorised(incoming):
            raise AuthenticationError(
                "The API key is missing or wrong.",
                hint="Send it as Authorization: Bearer KEY or as x-api-key: KEY.",
            )
        # Where there is no such route nothing changes, and 404 or 405 says more.
        if incoming.method == "POST" and incoming.routing_exception is None:
            self.check_media_type(incoming)
        return False

    def refuses(self, environ: WSGIEnvironment) -> bool:
        """Whether a request will be refused, judged by its head alone."""
        incoming = Request(environ)
        try:
            self.check(incoming)
        except RequestError:
            return True
        return (incoming.content_length or 0) > MAX_BODY_BYTES


def _foreign(origin: str) -> ForbiddenError:
    return ForbiddenError(
        f"The web origin {origin[:100]!r} may not call this server.",
        hint="If it is yours, start the server with --cors-origin ORIGIN.",
        code="origin_not_allowed",
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


def install(app: Flask, settings: Settings, token: str | None = None) -> None:
    """Puts the guard before every request of the app, and ids and CORS headers on every answer."""
    guard = Guard(settings, token)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES

    @app.before_request
    def check() -> Response | None:
        request_id.set(new_request_id(request.headers.get("x-request-id")))
        return _preflight() if guard.check(request) else None

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
