"""`/api/session`: whether a key is needed, logging in with it, logging out.

For: the dashboard. Never needs a key itself. Not for: what a cookie is worth, see `api.login`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Blueprint, Response, current_app, request

from colibri import __version__
from colibri.api.body import decode, read
from colibri.api.describe import describe
from colibri.api.guard import Guard
from colibri.api.login import LIFETIME_SECONDS, cookie_name
from colibri.errors import AuthenticationError


class _Login(msgspec.Struct):
    key: str


class _Session(msgspec.Struct):
    login_required: bool
    logged_in: bool
    version: str
    instance: str


def blueprint(instance: str) -> Blueprint:
    """The routes of a server whose run is named `instance`."""
    routes = Blueprint("session", __name__)

    def guard() -> Guard:
        found: Guard = current_app.extensions["colibri_guard"]
        return found

    def answer(logged_in: bool) -> Response:
        data: dict[str, Any] = {
            "login_required": guard().logins.required,
            "logged_in": logged_in,
            "version": __version__,
            "instance": instance,
        }
        response = Response(msgspec.json.encode(data), content_type="application/json")
        response.headers["Cache-Control"] = "no-store"
        return response

    @routes.get("/api/session")
    @describe("Whether a key is needed, and was given.", answer=_Session, open=True)
    def look() -> Response:
        return answer(guard().authorised(request))

    @routes.post("/api/session")
    @describe("Logs in with the key.", request=_Login, answer=_Session, errors=(429,), open=True)
    def log_in() -> Response:
        given = decode(read(request), _Login)
        if not guard().logins.check_key(given.key, request.remote_addr or ""):
            raise AuthenticationError(
                "This is not the API key.",
                hint="It is what COLI_API_KEY was set to when the server was started.",
            )
        response = answer(True)
        if guard().logins.required:
            response.set_cookie(
                cookie_name(request.host),
                guard().logins.token(),
                max_age=LIFETIME_SECONDS,
                path="/",
                secure=request.is_secure,
                httponly=True,
                samesite="Strict",
            )
        return response

    @routes.delete("/api/session")
    @describe("Logs out.", answer=_Session, open=True)
    def log_out() -> Response:
        name = cookie_name(request.host)
        guard().logins.void(request.cookies.get(name, ""))
        response = answer(not guard().logins.required)
        response.delete_cookie(name, path="/", httponly=True, samesite="Strict")
        return response

    return routes
