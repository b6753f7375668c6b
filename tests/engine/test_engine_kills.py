"""kill -9 of the engine process at random moments of reading, generating and saving.

After each death an engine opens what is left: every answer is the cold one, logits included, and
every start can read its files. Covers R114, R116, R117; the store alone is killed in tests/kv.
"""

from __future__ import annotations

import queue
import random
import shutil
import time
from pathlib import Path

import psutil
import pytest

from colibri.engine.child import ChildSpec
from colibri.engine.process import ProcessEngine
from colibri.engine.protocol import Done, Failed, JobEvent, Submit
from colibri.errors import WorkerUnavailableError
from tests.support import draftmodel
from tests.support.streamed import Answer, Streamed, options, streamed

READY_SECONDS = 60
# One as users have it; one that is always about to save an unfinished chunk.
FACTORIES = [
    "tests.support.streamed:open_backend",
    "tests.support.streamed:open_that_saves_chunks",
]
LONGEST_LIFE = 0.7
SYSTEM = draftmodel.prompt(1, 300)
# Three conversations with a common beginning; a turn is a prefix of the next one.
TURNS = [
    SYSTEM + draftmodel.prompt(10 + talk, 200 * turn) for talk in range(3) for turn in (1, 2, 3)
]

Same = tuple[list[int], str, bytes]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draftmodel.make(tmp_path_factory.mktemp("kills") / "model")


@pytest.fixture(scope="module")
def cold(folder: Path) -> list[Same]:
    """The answer to each turn from an engine that held nothing."""
    found = []
    for prompt in TURNS:
        with streamed(folder) as server:
            found.append(server.answer(prompt).same)
    return found


class Life:
    """An engine process that answers turns until it is killed."""

    def __init__(self, folder: Path, state: Path, rng: random.Random) -> None:
        self._rng = rng
        self.done = 0
        self.engine = ProcessEngine(
            ChildSpec(
                factory=rng.choice(FACTORIES),
                options=options(folder, state, drafts=rng.choice(["0", "2"])),
            )
        )
        self.engine.start()
        self.engine.wait_ready(READY_SECONDS)

    def live_and_die(self) -> None:
        """Answers for a random time; then the process is killed, with its supervisor told to stop.

        Nobody waits for the disk: the writer is at work nearly all of that time.
        """
        end = time.monotonic() + self._rng.random() * LONGEST_LIFE
        pid = self.engine.status().pid
        assert pid is not None
        process = psutil.Process(pid)
        events: queue.Queue[JobEvent] = queue.Queue()
        number = 0
        try:
            while time.monotonic() < end:
                number += 1
                command = Submit(
                    job=f"job{number}",
                    prompt=self._rng.choice(TURNS),
                    max_tokens=24,
                    temperature=0,
                    top_p=1,
                    seed=1,
                )
                self.engine.submit(command, events.put)
                self._wait(events, end)
        finally:
            process.kill()
            process.wait(READY_SECONDS)
            self.engine.stop()

    def _wait(self, events: queue.Queue[JobEvent], end: float) -> None:
        try:
            while not isinstance(
                event := events.get(timeout=max(0.001, end - time.monotonic())), Done | Failed
            ):
                pass
        except queue.Empty:
            return
        self.done += isinstance(event, Done)


def check(server: Streamed, turn: int, cold: list[Same]) -> Answer:
    answer = server.answer(TURNS[turn])
    assert answer.same == cold[turn]
    return answer


def kill_often(folder: Path, state: Path, cold: list[Same], rng: random.Random, times: int) -> None:
    done = cached = 0
    for _ in range(times):
        life = Life(folder, state, rng)
        life.live_and_die()
        done += life.done
        # In a copy: what is on disk comes from processes that were killed, from nothing else.
        copy = state.with_name("copy")
        shutil.copytree(state, copy)
        with streamed(folder, copy, drafts=rng.choice(["0", "2"])) as server:
            disk = server.backend.disk
            assert disk is not None
            assert disk.store.state == "ready", disk.store.note
            for turn in rng.sample(range(len(TURNS)), 2):
                cached += check(server, turn, cold).cached
        shutil.rmtree(copy)
    assert done > times // 3, "no process lived long enough to answer"
    assert cached > times * len(SYSTEM), "little was found on disk"


def test_an_engine_killed_at_random_moments_never_says_a_wrong_token(
    folder: Path, tmp_path: Path, cold: list[Same], seeded: random.Random
) -> None:
    kill_often(folder, tmp_path / "state", cold, seeded, 12)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_kills_never_bring_a_wrong_token(
    folder: Path, tmp_path: Path, cold: list[Same], seeded: random.Random, scale: int
) -> None:
    kill_often(folder, tmp_path / "state", cold, seeded, 200 * scale)


def test_the_supervisor_starts_a_killed_engine_again_with_what_it_held(
    folder: Path, tmp_path: Path
) -> None:
    prompt = TURNS[2]
    with streamed(folder, tmp_path) as server:
        expected = server.answer(prompt)
    engine = ProcessEngine(
        ChildSpec(factory="tests.support.streamed:open_backend", options=options(folder, tmp_path))
    )
    engine.start()
    try:
        engine.wait_ready(READY_SECONDS)
        for life in range(2):
            events: queue.Queue[JobEvent] = queue.Queue()
            job = Submit(
                job=f"life{life}", prompt=prompt, max_tokens=24, temperature=0, top_p=1, seed=1
            )
            engine.submit(job, events.put)
            text = ""
            while not isinstance(event := events.get(timeout=READY_SECONDS), Done):
                assert not isinstance(event, Failed), event
                text += "".join(part.text for part in getattr(event, "parts", ()))
            assert text == expected.text
            assert event.usage.cached == (len(prompt) - 1) // 128 * 128
            if life == 0:
                pid = engine.status().pid
                assert pid is not None
                psutil.Process(pid).kill()
                _wait_for_another(engine, pid)
    finally:
        engine.stop()


@pytest.mark.slow
def test_a_server_that_is_told_to_stop_waits_for_a_slow_disk(folder: Path, tmp_path: Path) -> None:
    prompt = draftmodel.prompt(40, 30 * 128)
    engine = ProcessEngine(
        ChildSpec(
            factory="tests.support.streamed:open_on_slow_disk", options=options(folder, tmp_path)
        )
    )
    engine.start()
    engine.wait_ready(READY_SECONDS)
    events: queue.Queue[JobEvent] = queue.Queue()
    engine.submit(
        Submit(job="job", prompt=prompt, max_tokens=1, temperature=0, top_p=1, seed=1), events.put
    )
    while not isinstance(event := events.get(timeout=READY_SECONDS), Done):
        assert not isinstance(event, Failed), event
    engine.stop()
    with streamed(folder, tmp_path) as server:
        assert server.answer([*prompt, 1]).cached == len(prompt)


def _wait_for_another(engine: ProcessEngine, pid: int) -> None:
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        try:
            engine.wait_ready(1)
        except WorkerUnavailableError:
            continue
        if engine.status().pid not in (pid, None):
            return
        time.sleep(0.02)
    pytest.fail("the engine did not come back")
