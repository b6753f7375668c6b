"""GET /health: is the server able to answer, what does it run, what is it doing.

For: people, supervisors and the dashboard. With an API key set, a request without it learns the
status only. The HTTP status is 200 while requests can be served, else 503.
"""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Blueprint, Response, current_app, request

from colibri import __version__
from colibri.api.guard import Guard
from colibri.api.services import Services
from colibri.engine.protocol import EngineInfo, JobState

STATUS = {"ready": "ok"}
# The worker answers in well under a millisecond; one that hangs must not hang its health.
SNAPSHOT_SECONDS = 0.5


def report(services: Services) -> dict[str, Any]:
    """Everything /health tells. Sizes in bytes, lengths in tokens.

    `experts`, `drafts` and `kv` are null while the worker does not answer.
    """
    engine, scheduler, model = services.engine.status(), services.scheduler, services.model
    info, snapshot = engine.info, services.engine.snapshot(SNAPSHOT_SECONDS)
    drafts = {job.job: job for job in snapshot.jobs} if snapshot else {}
    return {
        "status": STATUS.get(engine.state, engine.state),
        "version": __version__,
        "model": {
            "id": model.id,
            "family": model.family,
            "context_length": services.known_context(),
        },
        "scheduler": {
            **msgspec.structs.asdict(scheduler.counters()),
            "parallel": scheduler.parallel,
            "kv_slots": services.settings.kv_slots,
            "max_queue": scheduler.max_queue,
            "queue_timeout_seconds": scheduler.queue_timeout,
        },
        "requests": [
            {**msgspec.structs.asdict(activity), **_drafts_of(drafts.get(activity.id))}
            for activity in scheduler.activities()
        ],
        "engine": {
            "state": engine.state,
            "restarts": engine.restarts,
            "last_failure": engine.last_failure,
            "pid": engine.pid,
            "rss_bytes": engine.rss_bytes,
            **_facts(info),
            "experts": msgspec.structs.asdict(snapshot.experts) if snapshot else None,
            "drafts": msgspec.structs.asdict(snapshot.drafts) if snapshot else None,
            "kv": msgspec.structs.asdict(snapshot.kv) if snapshot else None,
        },
    }


def _facts(info: EngineInfo | None) -> dict[str, Any]:
    """What was known when the engine was opened; of drafts the state now tells more."""
    facts = {} if info is None else msgspec.structs.asdict(info)
    return {name: value for name, value in facts.items() if not name.startswith("drafts")}


def _drafts_of(job: JobState | None) -> dict[str, int]:
    proposed, accepted = (job.drafts_proposed, job.drafts_accepted) if job else (0, 0)
    return {"drafts_proposed": proposed, "drafts_accepted": accepted}


def blueprint(services: Services) -> Blueprint:
    """The health route, and a word for those who only knock at the door."""
    routes = Blueprint("health", __name__)

    @routes.get("/health")
    def health() -> Response:
        data = report(services)
        guard: Guard = current_app.extensions["colibri_guard"]
        code = 200 if data["status"] == "ok" else 503
        if not guard.authorised(request):
            data = {"status": data["status"]}
        return Response(msgspec.json.encode(data), code, content_type="application/json")

    @routes.get("/")
    def root() -> Response:
        data = {"name": "colibri", "version": __version__, "api": "/v1", "health": "/health"}
        return Response(msgspec.json.encode(data), content_type="application/json")

    return routes
