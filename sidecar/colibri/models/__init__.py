"""Model files: reading containers, converting into our own, finding installed models.

For: the server, the worker and the commands. `model.open_model` is the usual entry. Not for: chat
text (`colibri.text`) or computing (`colibri.engine`). Everything read here is untrusted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from colibri.models.model import Model

__all__ = ["load_model"]


def load_model(folder: Path) -> Model:
    """`model.open_model`, imported when it is called: the package itself stays cheap to import."""
    from colibri.models.model import open_model  # noqa: PLC0415

    return open_model(folder)
