"""Where the context of a model's slots is kept over restarts.

For: the model's backend. Not for: what is stored there (`colibri.kv`). Threads: one call while a
model opens.
"""

from __future__ import annotations

import logging

from colibri import paths
from colibri.engine.ffi import Engine
from colibri.kv.disk import Disk
from colibri.kv.inventory import STORE_NAME
from colibri.kv.store import budget_bytes
from colibri.kv.writer import DEFAULT_QUEUE_BYTES
from colibri.models.container import ModelFiles
from colibri.models.identity import content_id

log = logging.getLogger(__name__)


def open_disk(
    engine: Engine,
    files: ModelFiles,
    state_dir: str | None,
    gigabytes: float | None,
    queue_bytes: int = DEFAULT_QUEUE_BYTES,
) -> Disk | None:
    """Store and slot files of an open model; None if switched off (0) or not usable.

    Without a number of gigabytes the disk's free room decides. `queue_bytes` may wait for the disk
    in memory.
    """
    if gigabytes == 0:
        return None
    state = paths.learnt_dir(files.folder, state_dir)
    try:
        model, layout = content_id(files), engine.kv_layout()
        state.mkdir(parents=True, exist_ok=True)
        budget = budget_bytes(state / STORE_NAME, gigabytes)
        block = engine.block_tokens, engine.block_bytes
        return Disk(state, model, layout, block, budget, queue_bytes)
    except OSError as error:
        log.warning("context is not kept over restarts: %s: %s", state, error.strerror or error)
    except ValueError as error:
        log.warning("context is not kept over restarts: %s", error)
    return None
