"""The Flask application: guard, errors and routes over given services.

For: the server and tests. Not for: starting anything; whoever made the services owns them.
"""

from __future__ import annotations

from flask import Flask

from colibri.api import errors, guard, health
from colibri.api.openai import routes as openai
from colibri.api.services import Services


def create_app(services: Services) -> Flask:
    """An app that serves `services`; it holds no other state."""
    app = Flask("colibri", static_folder=None)
    app.url_map.strict_slashes = False
    guard.install(app, services.settings)
    errors.install(app)
    app.register_blueprint(health.blueprint(services))
    app.register_blueprint(openai.blueprint(services))
    return app
