"""A chunk of a prompt that is killed in the middle goes on at the layers that were saved last.

The real engine, experts that do not all fit. Prompts are one chunk each, read in small slices; what
is saved every ten seconds otherwise is saved as often as it can be. Covers R052, R096, R114, R117.
"""

from __future__ import annotations

import queue
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from colibri.engine import parking
from colibri.engine import worker as loop_module
from colibri.engine.child import ChildSpec
from colibri.engine.process import ProcessEngine
from colibri.engine.protocol import Done, Event, JobEvent, Progress, Submit
from colibri.kv import parked
from colibri.kv.inventory import STORE_NAME
from tests.support import draftmodel
from tests.support.streamed import Answer, Streamed, options, streamed

TIMEOUT = 60
LAYERS = draftmodel.LAYERS
FIRST = draftmodel.prompt(1, 300)
PROMPT = draftmodel.prompt(2, 500)
MORE = draftmodel.prompt(3, 450)

Same = tuple[list[int], str, bytes]
Cold = Callable[[list[int]], tuple[Same, int]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draftmodel.make(tmp_path_factory.mktemp("chunks") / "model")


@pytest.fixture(scope="module")
def cold(folder: Path) -> Cold:
    """What a fresh engine answers, and how many experts it asks for until the prompt is read."""
    known: dict[tuple[int, ...], tuple[Same, int]] = {}

    def answer(prompt: list[int]) -> tuple[Same, int]:
        key = tuple(prompt)
        if key not in known:
            with streamed(folder) as server:
                same = server.answer(prompt).same
            with streamed(folder) as server:
                server.answer(prompt, max_tokens=1)
                known[key] = same, server.backend.counters().expert_lookups
        return known[key]

    return answer


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "SLICE_MS", -1)
    monkeypatch.setattr(loop_module, "PROGRESS_SECONDS", 0)
    monkeypatch.setattr(parking, "SECONDS", 0)


def rows_on_disk(state: Path) -> list[Path]:
    return list((state / STORE_NAME / parked.NAME).glob(f"*/{parked.ROWS}"))


class Killed:
    """Copies the state directory once the chunk up to token `end` has `layers` layers on disk and
    is still being read: what a process killed there would leave. What it does then is not in it.
    """

    def __init__(self, server: Streamed, state: Path, end: int, layers: int) -> None:
        self.copy = state.with_name(f"{state.name}-killed")
        self.lookups = 0
        self._server, self._state, self._end, self._layers = server, state, end, layers

    def __call__(self, event: Event) -> None:
        disk = self._server.backend.disk
        if not isinstance(event, Progress) or event.fraction == 1 or self.copy.exists():
            return
        assert disk is not None
        disk.writer.flush(TIMEOUT)
        known = disk.parked._known.values()
        if any(one.chunk.end == self._end and one.chunk.layers == self._layers for one in known):
            shutil.copytree(self._state, self.copy)
            self.lookups = self._server.backend.counters().expert_lookups


def read_and_kill(
    folder: Path, state: Path, prompt: list[int], layers: int, *, first: list[int], drafts: str
) -> Killed:
    """A conversation whose next prompt is killed; `first` has been answered before."""
    with streamed(folder, state, drafts=drafts, prefill_chunk=1024) as server:
        if first:
            server.answer(first, max_tokens=1)
        before = server.backend.counters().expert_lookups
        server.loop.on_event = killed = Killed(server, state, len(prompt), layers)
        server.answer(prompt, max_tokens=1)
        assert killed.copy.exists(), "no chunk was saved"
        killed.lookups -= before
    return killed


def resume(folder: Path, state: Path, prompt: list[int], drafts: str) -> tuple[Answer, float, int]:
    """Answers in a new engine: the answer, what was done when reading began, and the experts that
    were asked for while reading.
    """
    with streamed(folder, state, drafts=drafts, prefill_chunk=1024) as server:
        seen: list[float] = []
        lookups: list[int] = []

        def note(event: Event) -> None:
            if isinstance(event, Progress):
                seen.append(event.fraction)
                lookups.append(server.backend.counters().expert_lookups)

        server.loop.on_event = note
        return server.answer(prompt), seen[0], lookups[-1]


@pytest.mark.parametrize("drafts", [("0", "0"), ("2", "2"), ("2", "0"), ("0", "2")], ids="-".join)
@pytest.mark.parametrize("layers", range(1, LAYERS))
def test_R052_a_killed_chunk_goes_on_at_the_layer_that_was_saved(
    folder: Path, tmp_path: Path, cold: Cold, drafts: tuple[str, str], layers: int
) -> None:
    killed = read_and_kill(folder, tmp_path / "state", PROMPT, layers, first=[], drafts=drafts[0])
    answer, begun, lookups = resume(folder, killed.copy, PROMPT, drafts[1])
    same, once = cold(PROMPT)
    assert answer.same == same
    assert answer.cached == 0, "a chunk that is not finished is no cached token"
    assert begun >= layers / (LAYERS + 1)
    if drafts == ("0", "0"):
        # All layers but the first have experts. The one in work at the kill is computed again, no
        # other.
        assert lookups == once * (LAYERS - layers) / (LAYERS - 1)
        assert killed.lookups + lookups <= once * (1 + 1 / (LAYERS - 1))


@pytest.mark.parametrize("drafts", ["0", "2"])
def test_R117_a_later_turns_chunk_begins_inside_a_block(
    folder: Path, tmp_path: Path, cold: Cold, drafts: str
) -> None:
    """Where the tail of the turn before is not on disk, or goes on otherwise, it comes with the
    chunk.
    """
    prompt = FIRST[:-3] + MORE
    killed = read_and_kill(folder, tmp_path / "state", prompt, 2, first=FIRST, drafts=drafts)
    answer, begun, _ = resume(folder, killed.copy, prompt, drafts)
    assert answer.same == cold(prompt)[0]
    assert answer.cached == len(FIRST) - 3
    assert begun >= 2 / (LAYERS + 1)


def test_a_chunk_that_is_finished_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    read_and_kill(folder, tmp_path / "state", PROMPT, 1, first=[], drafts="0")
    assert rows_on_disk(tmp_path / "state-killed")
    assert not list((tmp_path / "state" / STORE_NAME / parked.NAME).iterdir())


def test_a_quick_chunk_is_not_saved(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "SECONDS", 1000)
    with streamed(folder, tmp_path, prefill_chunk=1024) as server:
        server.answer(PROMPT, max_tokens=1)
    assert not (tmp_path / STORE_NAME / parked.NAME).exists()


def test_another_prompt_does_not_take_it_up(folder: Path, tmp_path: Path, cold: Cold) -> None:
    killed = read_and_kill(folder, tmp_path / "state", PROMPT, 2, first=[], drafts="0")
    other = [*PROMPT[:-50], *draftmodel.prompt(7, 50)]
    answer, begun, _ = resume(folder, killed.copy, other, "0")
    assert answer.same == cold(other)[0]
    assert begun < 1 / LAYERS


def test_an_engine_with_smaller_chunks_computes_it_anew(
    folder: Path, tmp_path: Path, cold: Cold
) -> None:
    killed = read_and_kill(folder, tmp_path / "state", PROMPT, 2, first=[], drafts="0")
    with streamed(folder, killed.copy, prefill_chunk=128) as server:
        assert server.answer(PROMPT).same == cold(PROMPT)[0]


def test_R114_a_flipped_byte_of_a_saved_chunk_costs_time_and_never_a_token(
    folder: Path, tmp_path: Path, cold: Cold
) -> None:
    prompt = FIRST[:-3] + MORE
    killed = read_and_kill(folder, tmp_path / "state", prompt, 2, first=FIRST, drafts="0")
    (rows,) = rows_on_disk(killed.copy)
    pieces = sorted(path.name for path in rows.parent.iterdir())
    assert pieces == ["kv-000", "kv-001", "lead", "rows"]
    for name in pieces:
        size = (rows.parent / name).stat().st_size
        for number, offset in enumerate((1, 12, 40, 120, size // 2, size - 1)):
            copy = tmp_path / "copy"
            shutil.copytree(killed.copy, copy)
            target = copy / rows.parent.relative_to(killed.copy) / name
            data = bytearray(target.read_bytes())
            data[offset] ^= 0x10
            target.write_bytes(data[: size // 2] if number == 3 else data)
            answer, begun, _ = resume(folder, copy, prompt, "0")
            assert answer.same == cold(prompt)[0], (name, offset)
            assert begun < 1 / LAYERS, (name, offset)
            shutil.rmtree(copy)


def test_rows_that_come_back_changed_would_be_noticed(
    folder: Path, tmp_path: Path, cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = read_and_kill(folder, tmp_path / "state", PROMPT, 2, first=[], drafts="0")
    read = parked.ParkedChunks.read

    def wrong(
        chunks: parked.ParkedChunks, one: parked.Parked, piece: str, into: memoryview
    ) -> bool:
        found = read(chunks, one, piece, into)
        if piece == parked.ROWS:
            into[-1] ^= 0x40
        return found

    monkeypatch.setattr(parked.ParkedChunks, "read", wrong)
    assert resume(folder, killed.copy, PROMPT, "0")[0].same != cold(PROMPT)[0]


def test_R117_kill_9_in_the_middle_of_a_chunk(folder: Path, tmp_path: Path, cold: Cold) -> None:
    """A real process, killed as soon as rows are on disk, at whatever it does then."""
    state = tmp_path / "state"
    spec = ChildSpec(
        factory="tests.support.streamed:open_that_saves_chunks",
        options=options(folder, state, prefill_chunk=2048),
    )
    prompt = draftmodel.prompt(9, 2000)
    for _ in range(3):
        engine = ProcessEngine(spec)
        engine.start()
        engine.wait_ready(TIMEOUT)
        pid = engine.status().pid
        assert pid is not None
        process = psutil.Process(pid)
        events: queue.Queue[JobEvent] = queue.Queue()
        engine.submit(
            Submit(job="job", prompt=prompt, max_tokens=1, temperature=0, top_p=1, seed=1),
            events.put,
        )
        end = time.monotonic() + TIMEOUT
        before = [path.stat().st_mtime_ns for path in rows_on_disk(state)]
        while [path.stat().st_mtime_ns for path in rows_on_disk(state)] == before:
            assert time.monotonic() < end
            assert not any(isinstance(event, Done) for event in events.queue)
            time.sleep(0.001)
        process.kill()
        process.wait(TIMEOUT)
        engine.stop()
        if before:
            break  # the second life has saved more than the first
    answer, begun, _ = resume_wide(folder, state, prompt)
    assert answer.same == cold(prompt)[0]
    assert begun >= 2 / (LAYERS + 1)


def resume_wide(folder: Path, state: Path, prompt: list[int]) -> tuple[Answer, float, int]:
    with streamed(folder, state, prefill_chunk=2048) as server:
        seen: list[float] = []
        server.loop.on_event = lambda event: (
            seen.append(event.fraction) if isinstance(event, Progress) else None
        )
        return server.answer(prompt), seen[0], 0
