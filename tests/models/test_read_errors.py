"""A model whose files fail in use: one request ends with a clear error, the next one works.

Covers R157 and R158 through the engine loop; the errors themselves are planted in
native/tests/test_stream_mirror.c.
"""

from __future__ import annotations

import os
import queue
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri.engine.protocol import Done, Event, Failed, Stop, Submit, Tokens
from colibri.engine.worker import Worker
from colibri.hardware import memory
from colibri.models import synthetic
from colibri.models.backend import NativeBackend, Options
from colibri.models.budget import program_bytes
from colibri.models.synthetic import Shape

SHAPE = Shape(layers=4, hidden=512, experts=64, top_k=4, expert_ffn=384)
# Too little for all experts, beside what this process holds.
ENGINE_BYTES = 52_000_000
TIMEOUT = 120


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "larger"
    synthetic.make(folder, SHAPE)
    return folder


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "model")
    return tmp_path / "model"


class Loop:
    """The engine loop over a real engine that streams, in a thread."""

    def __init__(self, model: Path, mirrors: tuple[str, ...] = ()) -> None:
        ram = f"{(program_bytes(memory.rss(), None) + ENGINE_BYTES) / 1e9:.6f}GB"
        self.backend = NativeBackend(
            Options(folder=str(model), mirrors=mirrors, context=1024, ram=ram)
        )
        assert self.backend.counters().streaming
        self.events: queue.Queue[Event] = queue.Queue()
        self.worker = Worker(self.backend, self.events.put)
        self.thread = threading.Thread(target=self.worker.run)
        self.thread.start()
        self._jobs = 0

    def ask(self, first: int, tokens: int = 12) -> tuple[str, Done | Failed]:
        """The text of an answer and how it ended. Prompts with another `first` share nothing."""
        self._jobs += 1
        job = f"job{self._jobs}"
        prompt = [(first + i * 37) % 4000 + 20 for i in range(150)]
        self.worker.handle(
            Submit(job=job, prompt=prompt, max_tokens=tokens, temperature=0.0, top_p=1.0, seed=1)
        )
        text = ""
        while True:
            event = self.events.get(timeout=TIMEOUT)
            if isinstance(event, Tokens):
                text += "".join(part.text for part in event.parts)
            if isinstance(event, Done | Failed):
                return text, event

    def close(self) -> None:
        self.worker.handle(Stop())
        self.thread.join(TIMEOUT)
        self.backend.close()


@pytest.fixture
def loop(model: Path) -> Iterator[Loop]:
    made = Loop(model)
    yield made
    made.close()


def cut(folder: Path) -> dict[Path, bytes]:
    """Cuts every shard off; what they held."""
    held = {path: path.read_bytes() for path in folder.glob("*.safetensors")}
    for path in held:
        os.truncate(path, 4096)
    return held


def restore(held: dict[Path, bytes]) -> None:
    for path, content in held.items():
        with path.open("r+b") as stream:
            stream.write(content)


def test_a_failed_read_ends_one_request_with_the_place_and_the_next_one_works(
    loop: Loop, model: Path
) -> None:
    text, end = loop.ask(1)
    assert isinstance(end, Done)
    held = cut(model)
    for first in (2, 3):
        _, end = loop.ask(first)
        assert isinstance(end, Failed)
        assert end.code == "engine_io"
        assert str(model) in end.message
        assert "offset" in end.message
    restore(held)
    assert loop.ask(1)[0] == text
    assert isinstance(loop.ask(2)[1], Done)


def test_R158_a_mirror_cut_off_in_mid_run_fails_no_turn(model: Path, tmp_path: Path) -> None:
    drive = tmp_path / "drive"
    drive.mkdir()
    for path in model.glob("*.safetensors"):
        shutil.copy(path, drive)
    alone = Loop(model)
    expected = [alone.ask(first)[0] for first in (1, 2, 3)]
    alone.close()
    loop = Loop(model, (str(drive),))
    try:
        assert loop.ask(1)[0] == expected[0]
        cut(drive)
        answers = [loop.ask(first) for first in (2, 3)]
        assert all(isinstance(end, Done) for _, end in answers)
        assert [text for text, _ in answers] == expected[1:]
        own, other = loop.worker.snapshot().experts.mirrors
        assert own.bytes_read > 0
        assert other.bytes_read > 0
        assert own.failures == 0
    finally:
        loop.close()


def test_with_folder_and_mirror_gone_the_message_names_both(model: Path, tmp_path: Path) -> None:
    drive = tmp_path / "drive"
    drive.mkdir()
    for path in model.glob("*.safetensors"):
        shutil.copy(path, drive)
    loop = Loop(model, (str(drive),))
    try:
        loop.ask(1)
        held = cut(drive) | cut(model)
        _, end = loop.ask(2)
        assert isinstance(end, Failed)
        assert str(model) in end.message
        assert str(drive) in end.message
        restore(held)
        assert isinstance(loop.ask(2)[1], Done)
    finally:
        loop.close()
