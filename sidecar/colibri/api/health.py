"""GET /health: is the server able to answer, what does it run, what is it doing.

For: people, supervisors and the dashboard. With an API key set, a request without it learns the
status only. The HTTP status is 200 while requests can be served, else 503.
"""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Blueprint, Response, current_app, request

from colibri import __version__
from colibri.api.describe import describe
from colibri.api.guard import Guard
from colibri.api.services import Services
from colibri.engine.protocol import EngineInfo
from colibri.telemetry import state
from colibri.telemetry.turns import lookups

STATUS = {"ready": "ok"}
# The worker answers in well under a millisecond; one that hangs must not hang its health.
SNAPSHOT_SECONDS = 0.5


class Health(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The answer of GET /health. Without the key only the status; `report` tells what the objects
    hold.
    """

    status: str
    version: str | msgspec.UnsetType = msgspec.UNSET
    model: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    scheduler: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    requests: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET
    engine: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


def report(services: Services) -> dict[str, Any]:
    """Everything /health tells. Sizes in bytes, lengths in tokens.

    `experts`, `drafts` and `kv` are null while the worker does not answer.
    """
    engine, scheduler = services.engine.status(), services.scheduler
    model = services.current_model()
    info, snapshot = engine.info, services.engine.snapshot(SNAPSHOT_SECONDS)
    jobs = {job.job: job for job in snapshot.jobs} if snapshot else {}
    return {
        "status": STATUS.get(engine.state, engine.state),
        "version": __version__,
        "model": model
        and {
            "id": model.id,
            "family": model.family,
            "context_length": services.known_context(),
            "trained_context_length": services.trained_context(),
            "warnings": services.warnings(),
        },
        "scheduler": state.scheduler_section(scheduler, services.current_settings()),
        "requests": [
            state.request_entry(activity, jobs.get(activity.id))
            for activity in scheduler.activities()
        ],
        "engine": {
            "state": engine.state,
            "restarts": engine.restarts,
            "last_failure": engine.last_failure,
            "pid": engine.pid,
            "rss_bytes": engine.rss_bytes,
            "loading": state.loading_section(engine),
            **_facts(info),
            "experts": msgspec.structs.asdict(snapshot.experts) if snapshot else None,
            "drafts": msgspec.structs.asdict(snapshot.drafts) if snapshot else None,
            "kv": msgspec.structs.asdict(snapshot.kv) if snapshot else None,
        },
        "tiers": state.tiers_section(info, snapshot),
        "lookups": lookups(snapshot.work) if snapshot else None,
    }


def _facts(info: EngineInfo | None) -> dict[str, Any]:
    """What was known when the engine was opened; of drafts the state now tells more."""
    facts = {} if info is None else msgspec.structs.asdict(info)
    return {name: value for name, value in facts.items() if not name.startswith("drafts")}


def blueprint(services: Services) -> Blueprint:
    """The health route."""
    routes = Blueprint("health", __name__)

    @routes.get("/health")
    @describe(
        "Whether requests can be served (200) or not (503), and by what.",
        answer=Health,
        failure=Health,
        open=True,
    )
    def health() -> Response:
        data = report(services)
        guard: Guard = current_app.extensions["colibri_guard"]
        code = 200 if data["status"] == "ok" else 503
        if not guard.authorised(request):
            data = {"status": data["status"]}
        return Response(msgspec.json.encode(data), code, content_type="application/json")

    return routes
