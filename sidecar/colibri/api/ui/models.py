"""`/api/models` and `/api/tasks`: the installed models over HTTP.

For: the dashboard and scripts. Not for: `/v1/models`, which lists what is loaded, nor for what is
done with models (`models.shelf`, `models.loading`).
"""

from __future__ import annotations

from typing import Literal

import msgspec
from flask import Blueprint, Response, request

from colibri.api.body import decode, read
from colibri.api.replies import json_response
from colibri.models.loading import Loader, Wishes
from colibri.models.shelf import Shelf


class _Confirmation(msgspec.Struct):
    confirm: str | None = None


class _Unload(msgspec.Struct):
    when: Literal["free", "idle", "now"] = "free"


def blueprint(shelf: Shelf, loader: Loader) -> Blueprint:
    """The routes over a shelf and what loads from it."""
    routes = Blueprint("models", __name__)

    @routes.get("/api/models")
    def models() -> Response:
        return json_response(shelf.overview())

    @routes.get("/api/models/<name>/fit")
    def fit(name: str) -> Response:
        return json_response(shelf.fit(name))

    @routes.post("/api/models/<name>/load")
    def load(name: str) -> Response:
        wishes = decode(read(request), Wishes)
        return json_response({"task": loader.load(shelf.find(name).folder, wishes)}, 202)

    @routes.post("/api/models/unload")
    def unload() -> Response:
        when = decode(read(request), _Unload).when
        return json_response({"task": loader.unload(when)}, 202)

    @routes.post("/api/models/<name>/delete")
    def delete(name: str) -> Response:
        given = decode(read(request), _Confirmation)
        if given.confirm is None:
            return json_response(shelf.propose_delete(name))
        return json_response({"deleted": True, "freed_bytes": shelf.delete(name, given.confirm)})

    @routes.post("/api/models/<name>/verify")
    def verify(name: str) -> Response:
        return json_response({"task": shelf.verify(name)}, 202)

    @routes.get("/api/tasks")
    def tasks() -> Response:
        return json_response({"tasks": loader.tasks.all()})

    @routes.delete("/api/tasks/<task>")
    def cancel(task: str) -> Response:
        loader.tasks.cancel(task)
        return Response(status=204)

    return routes
