"""What the HTTP side is given to work with.

For: `create_app` and the handlers; tests hand over the same struct with a scripted engine. Not
for: making any of it, which `colibri.cli.serve` does.
"""

from __future__ import annotations

from dataclasses import dataclass

from colibri.engine.client import EngineClient
from colibri.models.served import ServedModel
from colibri.scheduler import Scheduler
from colibri.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The collaborators of every handler; all of them may be used from any thread."""

    settings: Settings
    model: ServedModel
    engine: EngineClient
    scheduler: Scheduler

    def known_context(self) -> int | None:
        """Most tokens of prompt and answer together; None until the engine was loaded once."""
        info = self.engine.status().info
        return info.context if info else None

    def context(self) -> int:
        """The same; raises what keeps the engine from telling it."""
        known = self.known_context()
        return self.engine.wait_ready(0).context if known is None else known
