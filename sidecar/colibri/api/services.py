"""What the HTTP side is given to work with.

For: `create_app` and the handlers; tests hand over the same struct with a scripted engine. Not
for: making any of it, which `colibri.cli.serve` does.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flask import g, has_request_context, request

from colibri import paths
from colibri.api.connection import client_gone
from colibri.chats import ChatStore
from colibri.engine.client import EngineClient
from colibri.engine.protocol import EngineInfo
from colibri.errors import NotFoundError
from colibri.hardware import memory
from colibri.hardware.monitor import Monitor
from colibri.models.limits import beyond_training
from colibri.models.loading import Loaded, Loader
from colibri.models.served import ServedModel
from colibri.models.shelf import Shelf
from colibri.scheduler import Scheduler
from colibri.settings import Settings
from colibri.telemetry import Hub, LogRing

# Where a request keeps the model that it found first.
_LOADED = "colibri_loaded"
# And how long it has waited for a model to be loaded.
_WAITED = "colibri_waited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The collaborators of every handler; all of them may be used from any thread. `settings` are
    those that the server was started with, `loaded` has those of the model.
    """

    settings: Settings
    engine: EngineClient
    scheduler: Scheduler
    loader: Loader
    chats: ChatStore = field(default_factory=lambda: ChatStore(paths.data_dir() / "chats.db"))
    # Tells one run of the server from the next.
    instance: str = field(default_factory=lambda: secrets.token_hex(8))
    # Counts as the API key: for the window that started this server.
    token: str | None = None
    ring: LogRing = field(default_factory=LogRing)
    hub: Hub = field(init=False)
    shelf: Shelf = field(init=False)

    def __post_init__(self) -> None:
        hub = Hub(
            settings=self.current_settings,
            model=self.current_model,
            engine=self.engine,
            scheduler=self.scheduler,
            instance=self.instance,
            monitor=Monitor(self._own_bytes),
            context=self.known_context,
            warnings=self.warnings,
            chat_changes=lambda: self.chats.changes,
        )
        object.__setattr__(self, "hub", hub)
        object.__setattr__(self, "shelf", Shelf(self.loader))
        self.loader.held = self._own_bytes
        self.loader.changed = lambda: hub.model_changed(self._number())

    def close(self) -> None:
        """Ends what watches and what is being done with models; pages that watch are let go."""
        self.hub.stop()
        self.loader.tasks.close()
        self.chats.close()

    def _own_bytes(self) -> int:
        return memory.rss() + (self.engine.status().rss_bytes or 0)

    def _number(self) -> int:
        loaded = self.loader.loaded
        return loaded.number if loaded else -1

    # ---- the model ----

    @property
    def loaded(self) -> Loaded:
        """The model that the request at hand is answered by, the same from its beginning to its
        end. While another one is being loaded, waits for that in the queue.

        Raises NoModelError without a model, and as `Scheduler.wait_loaded` does.
        """
        if not has_request_context():
            return self.loader.require()
        found: Loaded | None = g.get(_LOADED)
        if found is None:
            gone = client_gone(request.environ)
            while self.scheduler.held:
                self._wait_loaded(gone)
            found = self.loader.require()
            setattr(g, _LOADED, found)
        return found

    @property
    def model(self) -> ServedModel:
        """That of `loaded`."""
        return self.loaded.model

    def current_model(self) -> ServedModel | None:
        """The model that is there now, None without one; never waits."""
        loaded = self.loader.loaded
        return loaded.model if loaded else None

    def model_id(self) -> str | None:
        """Its name in the API."""
        model = self.current_model()
        return model.id if model else None

    def current_settings(self) -> Settings:
        """The settings of the model that is there now, else those of the start."""
        loaded = self.loader.loaded
        return loaded.settings if loaded else self.settings

    def known_context(self) -> int | None:
        """Most tokens of prompt and answer together; None until the engine was loaded once."""
        info = self.engine.status().info
        return info.context if info else None

    def context(self) -> int:
        """The same, waited for in the queue while the model is being loaded for the first time.

        Raises as `Scheduler.wait_loaded` does, also when the client of the request at hand leaves.
        """
        known = self.known_context()
        if known is not None:
            return known
        gone = client_gone(request.environ) if has_request_context() else lambda: False
        return self._wait_loaded(gone).context

    def _wait_loaded(self, gone: Callable[[], bool]) -> EngineInfo:
        begun = time.monotonic()
        try:
            return self.scheduler.wait_loaded(gone)
        finally:
            if has_request_context():
                setattr(g, _WAITED, self.waited_seconds() + time.monotonic() - begun)

    def waited_seconds(self) -> float:
        """What the request at hand has waited for a model to be loaded."""
        return float(g.get(_WAITED, 0.0)) if has_request_context() else 0.0

    def trained_context(self) -> int | None:
        """The longest context that the model was made for; None while that is not known."""
        info = self.engine.status().info
        return (info.trained_context or None) if info else None

    def warnings(self) -> list[str]:
        """What whoever chooses or judges the model should know."""
        beyond = beyond_training(self.known_context() or 0, self.trained_context() or 0)
        return [f"{beyond[0].upper()}{beyond[1:]}"] if beyond else []

    def check_model(self, name: str | None) -> None:
        """Raises NotFoundError if a request names another model than the one there is, and the
        server was started with --strict-model.
        """
        model = self.model
        if self.settings.strict_model and name != model.id:
            raise self.no_such_model(name or "")

    def no_such_model(self, name: str) -> NotFoundError:
        """The error for a model that is not served."""
        model = self.current_model()
        has = f"this server has {model.id!r}" if model else "no model is loaded"
        return NotFoundError(
            f"The model {name[:100]!r} does not exist; {has}.",
            param="model",
            code="model_not_found",
        )
