"""The installed models as things that can be handled: described, fitted, verified, deleted.

For: the dashboard's list of models. Downloading will join it. Not for: the commands, which say the
same in their own way, nor for loading (`models.loading`).

Deleting takes two steps: the first names what would go and gives a token, the second takes the
token. Only what lies in the folder of models is ever deleted, never what is served. Verifying
reads every byte, so it is a task (`models.tasks`); one runs at a time. Threads: any.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from colibri import paths
from colibri.engine.status import EngineError
from colibri.engine.table import Format, Tensor
from colibri.errors import (
    ColibriError,
    ConflictError,
    ModelError,
    ModelNotFoundError,
    RequestError,
    ResourceError,
)
from colibri.hardware import cpu
from colibri.models import catalog
from colibri.models.catalog import Installed
from colibri.models.container import open_folder
from colibri.models.loading import Loader, unusable
from colibri.models.tasks import Job, Task

log = logging.getLogger(__name__)

_TOKEN_SECONDS: Final = 60
# Formats below this share of the bytes say little about a model.
_LEAST_SHARE: Final = 0.02
_NAMES: Final = {
    Format.F32: "f32",
    Format.BF16: "bf16",
    Format.F16: "f16",
    Format.I8_ROW: "int8",
    Format.I4_ROW: "int4 per row",
    Format.FP8_BLOCK: "fp8",
    Format.Q4_0: "q4_0",
    Format.Q4_1: "q4_1",
    Format.Q8_0: "q8_0",
}


def quantization(tensors: tuple[Tensor, ...]) -> str:
    """The formats of a model's weights in words, most bytes first."""
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        name = _NAMES.get(Format(tensor.format), f"int4 g{tensor.group}")
        sizes[name] += tensor.bytes + tensor.scale_bytes
    total = sum(sizes.values())
    return ", ".join(n for n, size in sizes.most_common() if size >= _LEAST_SHARE * total)


def _files(folder: Path) -> tuple[int, int]:
    """(files, bytes) below a folder, links not followed."""
    sizes = [
        (Path(place) / name).lstat().st_size
        for place, _, names in os.walk(folder)
        for name in names
    ]
    return len(sizes), sum(sizes)


class Shelf:
    """See the module's text. `loader` knows what is served and with which settings."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._tasks = loader.tasks
        self._lock = threading.Lock()
        self._described: dict[Path, tuple[int, dict[str, Any]]] = {}
        self._tokens: dict[str, tuple[str, float]] = {}
        self._memory_speed: float | None = None

    # ---- what is there ----

    def overview(self) -> dict[str, Any]:
        """Every installed model, and where they are kept with the room that is left."""
        root = paths.models_dir()
        found, served = catalog.available(), self._served
        if served and not any(item.folder.resolve() == served for item in found):
            found.insert(0, catalog.describe(served))
        entries = [self._entry(item) for item in found]
        return {"models": entries, "folder": str(root), "free_bytes": _free(root)}

    def fit(self, name: str) -> dict[str, Any]:
        """How the model fits this machine now. Measures disk and memory for a second.

        Raises ModelNotFoundError, and ConflictError for files that cannot be used.
        """
        from colibri.hardware import bandwidth  # noqa: PLC0415 - heavy
        from colibri.models import forecast  # noqa: PLC0415 - heavy

        folder = self.find(name).folder
        chosen = self._loader.settings_for(folder)
        with self._lock:
            if self._memory_speed is None:
                threads = chosen.threads or cpu.usable_cores()
                self._memory_speed = bandwidth.measure(threads)
            speed = self._memory_speed
        # It would take the place of what is loaded, not a place beside it.
        budget = forecast.allowance(chosen, (self._loader.held(),))
        try:
            return forecast.fit(chosen, folder, budget, speed)
        except EngineError as error:
            raise unusable(f"{error.message}.", folder) from error
        except (ModelError, OSError) as error:
            raise unusable(f"{error}", folder) from error

    @property
    def _served(self) -> Path | None:
        loaded = self._loader.loaded
        return loaded.folder.resolve() if loaded and loaded.folder else None

    def _entry(self, item: Installed) -> dict[str, Any]:
        return {
            "name": item.name,
            "folder": str(item.folder),
            "size_bytes": item.bytes,
            "family": item.family or None,
            "kind": item.kind or None,
            "context_length": item.context or None,
            **self._description(item),
            "loaded": item.folder.resolve() == self._served and not self._loader.opening,
            "problem": item.problem or None,
        }

    def _description(self, item: Installed) -> dict[str, Any]:
        """What only the files' headers tell; read again when the folder has changed."""
        nothing: dict[str, Any] = {"quantization": None, "experts": 0, "draft_experts": 0}
        if item.problem:
            return nothing
        try:
            changed = item.folder.stat().st_mtime_ns
            known = self._described.get(item.folder)
            if known is None or known[0] != changed:
                files = open_folder(item.folder)
                geometry = files.geometry
                sparse = sum(geometry.layer_sparse) + geometry.n_mtp_layers
                found = {
                    "quantization": quantization(files.tensors),
                    "experts": sparse * geometry.n_experts,
                    "draft_experts": geometry.n_mtp_layers * geometry.n_experts,
                }
                self._described[item.folder] = known = changed, found
        except (ColibriError, OSError):
            return nothing
        return known[1]

    def find(self, name: str) -> Installed:
        for item in catalog.available():
            if item.name == name:
                return item
        served = self._served
        if served is not None and served.name == name:
            return catalog.describe(served)
        raise ModelNotFoundError(
            f"no model named {name[:80]!r} is installed.", hint="GET /api/models lists them."
        )

    # ---- deleting ----

    def propose_delete(self, name: str) -> dict[str, Any]:
        """What deleting the model would remove, with the token that does it within a minute."""
        item = self.find(name)
        self._refuse_kept(item)
        count, size = _files(item.folder)
        token = secrets.token_urlsafe(16)
        with self._lock:
            now = time.monotonic()
            self._tokens = {t: v for t, v in self._tokens.items() if v[1] > now}
            self._tokens[token] = name, now + _TOKEN_SECONDS
        return {"confirm": token, "folder": str(item.folder), "bytes": size, "files": count}

    def delete(self, name: str, token: str) -> int:
        """Deletes the model; the bytes that were freed. Raises RequestError for another token."""
        with self._lock:
            known = self._tokens.pop(token, None)
        if known is None or known[0] != name or known[1] < time.monotonic():
            raise RequestError(
                "'confirm' is not the token of this deletion, or it is older than a minute.",
                param="confirm",
                hint="Ask again without it.",
            )
        item = self.find(name)
        self._refuse_kept(item)
        folder = item.folder
        if folder.is_symlink():
            folder.unlink()
            return 0
        _, size = _files(folder)
        try:
            # Without it the folder is no model any more, however far the rest comes.
            (folder / "config.json").unlink()
            shutil.rmtree(folder)
        except OSError as error:
            raise ResourceError(
                f"not everything could be deleted: {error.strerror or error}.",
                where=str(folder),
                hint="Remove the rest by hand.",
                code="delete_failed",
            ) from error
        log.info("the model %s was deleted (%d bytes)", name, size)
        return size

    def _refuse_kept(self, item: Installed) -> None:
        if item.folder == paths.starter_dir():
            raise ConflictError(f"{item.name} is a part of the program and cannot be deleted.")
        if self._loader.uses(item.folder):
            raise ConflictError(f"{item.name} is loaded.", hint="Unload it first.")

    # ---- tasks ----

    def verify(self, name: str) -> Task:
        """Begins to read every byte of the model. Raises ConflictError while another one does."""
        folder = self.find(name).folder
        return self._tasks.begin("verify", name, lambda job: _verify(folder, job), ("verify",))


def _verify(folder: Path, job: Job) -> str:
    from colibri.models import verify  # noqa: PLC0415 - heavy

    def progress(done: int, total: int) -> None:
        job.show("", done / total if total else 0.0)

    report = verify.verify(folder, progress=progress)
    job.found(report.findings)
    wrong = [item for item in report.findings if item.level in ("warning", "error")]
    errors = sum(item.level == "error" for item in wrong)
    return f"{errors} errors, {len(wrong) - errors} warnings" if wrong else "all is well"


def _free(folder: Path) -> int | None:
    """Bytes free where models are kept; the folder itself need not exist yet."""
    for place in (folder, *folder.parents):
        try:
            return shutil.disk_usage(place).free
        except OSError:
            continue
    return None
