"""The Flask application: guard, errors and routes over given services.

For: the server and tests. Not for: starting anything; whoever made the services owns them.
"""

from __future__ import annotations

from flask import Flask

from colibri.api import errors, guard, health, metrics, openapi
from colibri.api.anthropic import routes as anthropic
from colibri.api.openai import routes as openai
from colibri.api.services import Services
from colibri.api.ui import (
    atlas,
    chats,
    inspector,
    live,
    models,
    pages,
    server,
    session,
    snapshots,
)


def create_app(services: Services) -> Flask:
    """An app that serves `services`; it holds no other state."""
    app = Flask("colibri", static_folder=None)
    app.url_map.strict_slashes = False
    guard.install(app, services.settings, services.token)
    errors.install(app)
    app.register_blueprint(health.blueprint(services))
    app.register_blueprint(metrics.blueprint(services))
    app.register_blueprint(openapi.blueprint(secured=services.settings.api_key is not None))
    app.register_blueprint(openai.blueprint(services))
    app.register_blueprint(anthropic.blueprint(services))
    app.register_blueprint(pages.blueprint())
    app.register_blueprint(session.blueprint(services.instance))
    app.register_blueprint(chats.blueprint(services.chats))
    requests = inspector.Inspector(
        services.hub.turns, services.model_id, services.scheduler.activities
    )
    inspector.install(app, requests)
    app.register_blueprint(
        snapshots.blueprint(services.hub, services.engine, requests, services.ring)
    )
    app.register_blueprint(models.blueprint(services.shelf, services.loader))
    app.register_blueprint(atlas.blueprint(services))
    app.register_blueprint(server.blueprint(services))
    live.install(app, services.hub, services.ring)
    return app
