"""`/api/server`: how this server may be reached and by whom, for the dashboard's page about it.

For: people who connect an editor or wonder why a page is refused. Never the key itself, only
whether there is one. Not for: changing anything; settings are those of the start.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from flask import Blueprint, Response

from colibri import paths
from colibri.api.guard import LOCAL_ORIGINS
from colibri.api.replies import json_response
from colibri.api.services import Services
from colibri.settings import Settings


def _this_machine_only(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def report(settings: Settings, url: str | None) -> dict[str, Any]:
    """What the route answers; `url` is where the server listens."""
    return {
        "url": url,
        "host": settings.host,
        "this_machine_only": _this_machine_only(settings.host),
        "key_set": settings.api_key is not None,
        "allowed_hosts": list(settings.allowed_hosts),
        "cors_origins": list(settings.cors_origins),
        "local_origins": sorted(LOCAL_ORIGINS),
        "strict_model": settings.strict_model,
        "config_file": str(paths.config_file()),
    }


def blueprint(services: Services) -> Blueprint:
    """The route."""
    routes = Blueprint("server", __name__)

    @routes.get("/api/server")
    def server() -> Response:
        return json_response(report(services.settings, services.hub.url))

    return routes
