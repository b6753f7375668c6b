"""What is told while a model is opened: the bytes that are read, not those that stay on disk; and a
model that is opened although it does not fit.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from colibri.errors import ResourceError
from colibri.models import backend
from colibri.models.backend import NativeBackend, Options
from colibri.models.model import open_model
from tests.support import draftmodel, streamed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draftmodel.make(tmp_path_factory.mktemp("loading") / "model")


def heard(folder: Path, *, streaming: bool) -> list[tuple[int, int]]:
    told: list[tuple[int, int]] = []
    options = {"folder": str(folder), "context": 256, "threads": 1, "drafts": "2"}
    factory = streamed.open_backend if streaming else backend.open_backend
    factory(options, lambda done, total: told.append((done, total))).close()
    return told


def test_it_is_told_to_its_end_and_experts_that_stay_on_disk_are_no_part_of_it(
    folder: Path,
) -> None:
    tensors = open_model(folder).tensors
    everything = sum(tensor.bytes + tensor.scale_bytes for tensor in tensors)
    experts = sum(t.bytes + t.scale_bytes for t in tensors if ".mlp.experts." in t.name)
    for streaming, expected in ((False, everything), (True, everything - experts)):
        told = heard(folder, streaming=streaming)
        assert told[-1] == (expected, expected)
        done = [read for read, _ in told]
        assert done == sorted(done)


def test_what_does_not_fit_is_opened_by_force_alone_and_with_the_least_memory(
    folder: Path,
) -> None:
    tight = Options(folder=str(folder), context=256, threads=1, ram="1MB")
    with pytest.raises(ResourceError, match="--force"):
        NativeBackend(tight)
    forced = NativeBackend(msgspec.structs.replace(tight, force=True))
    try:
        memory = forced.info.memory
        assert memory is not None
        assert memory.budget is not None
        assert memory.budget == forced.info.memory_budget > 1_000_000
        assert memory.origin == "flag"
    finally:
        forced.close()
    # Where it fits, force is no reason for less.
    roomy = NativeBackend(msgspec.structs.replace(tight, ram="4GB", force=True))
    assert roomy.info.memory_budget == 4_000_000_000
    roomy.close()
