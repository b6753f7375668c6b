"""The same context is never read twice, on the real engine: experts that do not all fit, 16-bit KV.

A conversation goes on after restarts, after others, with its last answer changed, from a shared
beginning, and from a fork; only what is new is computed, and the answer is that of a cold start.
Covers R052, R053, R097, R104, R105, R108, R110, R112, R113, R114, R116, R117, R118.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from colibri.engine import worker as loop_module
from colibri.engine.ffi import Session
from colibri.engine.protocol import Cancel, Done, Event, Progress, Tokens
from colibri.engine.status import EngineError, Status
from colibri.kv.inventory import STORE_NAME
from tests.support import draftmodel
from tests.support.streamed import Answer, Streamed, streamed

BLOCK = 128
SYSTEM = draftmodel.prompt(1, 500)
ASK = draftmodel.prompt(2, 150)
OTHER = draftmodel.prompt(3, 400)
NEXT = draftmodel.prompt(4, 30)
FAULT_SHARED_BLOCK, FAULT_PARKED = 5, 6  # native/src/fault.h


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draftmodel.make(tmp_path_factory.mktemp("reuse") / "model")


class Cold:
    """Answers of an engine that held nothing, one start each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[tuple[int, ...], tuple[tuple[list[int], str, bytes], list[bytes]]] = {}

    def __call__(self, prompt: list[int]) -> tuple[list[int], str, bytes]:
        return self._of(prompt)[0]

    def kv(self, prompt: list[int]) -> list[bytes]:
        return self._of(prompt)[1]

    def _of(self, prompt: list[int]) -> tuple[tuple[list[int], str, bytes], list[bytes]]:
        key = tuple(prompt)
        if key not in self._known:
            with streamed(self._folder) as server:
                answer = server.answer(prompt)
                assert answer.cached == 0
                self._known[key] = answer.same, server.kv(len(prompt))
        return self._known[key]


@pytest.fixture(scope="module")
def cold(folder: Path) -> Cold:
    return Cold(folder)


@pytest.fixture(params=["0", "2"], ids=["no drafts", "drafts"])
def drafts(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def turn2(first: list[int], answer: list[int]) -> list[int]:
    return [*first, *answer, *NEXT]


def talk(server: Streamed, first: list[int] = SYSTEM + ASK) -> list[int]:
    """A first turn; returns the prompt of the second one, which repeats the answer exactly."""
    return turn2(first, server.answer(first).ids)


def whole(tokens: int) -> int:
    return tokens // BLOCK * BLOCK


def check(answer: Answer, held: int, prompt: list[int], cold: Cold) -> None:
    """At least `held` tokens were not computed, and nothing of the answer is different."""
    assert answer.prompt == len(prompt)
    assert held <= answer.cached < len(prompt)
    assert answer.same == cold(prompt)


def test_a_second_turn_computes_only_what_is_new(folder: Path, cold: Cold, drafts: str) -> None:
    with streamed(folder, drafts=drafts) as server:
        prompt = talk(server)
        before = server.backend.counters().prompt_tokens
        answer = server.answer(prompt)
        check(answer, len(prompt) - len(NEXT), prompt, cold)
        # `cached_tokens` is what was not computed, by the engine's own count.
        assert server.backend.counters().prompt_tokens - before == len(prompt) - answer.cached
        if drafts == "0":
            assert server.kv(len(prompt)) == cold.kv(prompt)


def test_R117_after_a_restart_the_second_turn_is_warm(
    folder: Path, tmp_path: Path, cold: Cold, drafts: str
) -> None:
    with streamed(folder, tmp_path, drafts=drafts) as server:
        prompt = talk(server)
    with streamed(folder, tmp_path, drafts=drafts) as server:
        answer = server.answer(prompt)
        check(answer, len(prompt) - len(NEXT), prompt, cold)
        assert server.backend.counters().prompt_tokens == len(prompt) - answer.cached
        if drafts == "0":
            assert server.kv(len(prompt)) == cold.kv(prompt)


def test_R112_another_context_size_finds_the_same_blocks(
    folder: Path, tmp_path: Path, cold: Cold
) -> None:
    with streamed(folder, tmp_path, context=4096) as server:
        prompt = talk(server)
    with streamed(folder, tmp_path, context=2000) as server:
        check(server.answer(prompt), len(prompt) - len(NEXT), prompt, cold)


@pytest.mark.parametrize("order", [("2", "0", "2"), ("0", "2", "0")], ids="-".join)
def test_R112_what_was_kept_with_drafts_serves_a_run_without_them_and_the_reverse(
    folder: Path, tmp_path: Path, cold: Cold, order: tuple[str, ...]
) -> None:
    """`--ram` alone may switch drafts off. What the trunk keeps is the same either way; the MTP
    layer's part is left out or taken as it is there, and no token differs.
    """
    prompt: list[int] = []
    for drafts in order:
        with streamed(folder, tmp_path, drafts=drafts) as server:
            if prompt:
                check(server.answer(prompt), len(prompt) - len(NEXT), prompt, cold)
            prompt = turn2(prompt, server.slot().history[len(prompt) :]) if prompt else talk(server)
    assert {path.name for path in tmp_path.glob(".coli_kv*")} == {".coli_kv", STORE_NAME}


def test_drafts_wait_until_the_mtp_layer_has_seen_enough_of_a_restored_context(
    folder: Path, tmp_path: Path, cold: Cold
) -> None:
    with streamed(folder, tmp_path, drafts="0") as server:
        prompt = talk(server)
    with streamed(folder, tmp_path, drafts="2") as server:
        check(server.answer(prompt), len(prompt) - len(NEXT), prompt, cold)
        slot = server.slot()
        assert slot.session.draftless() == len(prompt) - len(NEXT)
        assert not slot.lag.ready(len(slot.history))
    shutil.rmtree(tmp_path)
    with streamed(folder, tmp_path, drafts="2") as server:
        server.answer(SYSTEM + ASK)
    with streamed(folder, tmp_path, drafts="2") as server:
        server.answer(prompt)
        assert server.slot().session.draftless() == 0
        assert server.slot().lag.ready(len(prompt))


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_another_conversation_in_between_takes_nothing_away(
    folder: Path, tmp_path: Path, cold: Cold, drafts: str, restart: bool
) -> None:
    """R104, with one slot: the other one takes it in between."""
    server = Streamed(folder, tmp_path, drafts=drafts)
    prompt = talk(server)
    server.answer(OTHER)
    held = len(prompt) - len(NEXT)
    if restart:
        server.stop()
        server = Streamed(folder, tmp_path, drafts=drafts)
    check(server.answer(prompt), held, prompt, cold)
    server.stop()


def test_R110_memory_for_others_moves_a_conversation_to_disk_and_loses_nothing(
    folder: Path, tmp_path: Path, cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one comes at once and needs all KV, before the first one could be written."""
    with streamed(folder, tmp_path) as server:
        prompt = talk(server)
        monkeypatch.setattr(server.backend, "kv_room", lambda: 0)
        server.answer(OTHER)
        assert server.loop.worker._slots.kept == 0
        check(server.answer(prompt), len(prompt) - len(NEXT), prompt, cold)


def test_R104_two_conversations_that_take_turns_each_find_their_own(
    folder: Path, cold: Cold
) -> None:
    first, second = SYSTEM + ASK, OTHER
    with streamed(folder, slots=2, parallel=2) as server:
        for slot in (0, 1):
            server.answer((first, second)[slot], slot)
        for slot, start in ((0, first), (1, second)):
            prompt = turn2(start, server.slot(slot).history[len(start) :])
            check(server.answer(prompt, slot), len(prompt) - len(NEXT), prompt, cold)


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("change", ["reasoning stripped", "one newline different"])
def test_R108_a_changed_last_answer_is_all_that_is_read_again(
    folder: Path, tmp_path: Path, cold: Cold, drafts: str, restart: bool, change: str
) -> None:
    first = SYSTEM + ASK
    server = Streamed(folder, tmp_path, drafts=drafts)
    said = server.answer(first).ids
    if change == "reasoning stripped":  # the first half of what was generated
        prompt, held = turn2(first, said[len(said) // 2 :]), len(first)
    else:
        prompt = turn2(first, [*said[:-1], (said[-1] + 1) % draftmodel.CHARACTERS])
        held = len(first) + len(said) - 1
    if restart:
        server.stop()
        server = Streamed(folder, tmp_path, drafts=drafts)
    check(server.answer(prompt), held, prompt, cold)
    server.stop()


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_R105_a_shared_system_prompt_is_computed_once(
    folder: Path, tmp_path: Path, cold: Cold, drafts: str, restart: bool
) -> None:
    other = SYSTEM + draftmodel.prompt(9, 90)
    server = Streamed(folder, tmp_path, drafts=drafts, slots=2)
    talk(server)
    held = len(SYSTEM)
    if restart:
        server.stop()
        server = Streamed(folder, tmp_path, drafts=drafts, slots=2)
    check(server.answer(other, slot=1), held, other, cold)
    server.stop()


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_a_fork_leaves_both_branches(
    folder: Path, tmp_path: Path, cold: Cold, drafts: str, restart: bool
) -> None:
    """The same question edited, then back to the first wording: neither costs the other."""
    server = Streamed(folder, tmp_path, drafts=drafts)
    first = SYSTEM + ASK
    prompt = talk(server, first)
    edited = [*first[:-40], *draftmodel.prompt(6, 60)]
    check(server.answer(edited), len(first) - 40, edited, cold)
    held = len(prompt) - len(NEXT)
    if restart:
        server.stop()
        server = Streamed(folder, tmp_path, drafts=drafts)
    check(server.answer(prompt), held, prompt, cold)
    check(server.answer(edited), len(edited) - 1, edited, cold)
    server.stop()


def test_at_a_temperature_the_seed_gives_the_same_tokens_cold_and_warm(
    folder: Path, tmp_path: Path
) -> None:
    """A draw shows a difference in the logits long before the greedy token does."""
    prompt = SYSTEM + ASK
    with streamed(folder, tmp_path) as server:
        first = server.answer(prompt, temperature=1.0, seed=7)
        again = server.answer(prompt, temperature=1.0, seed=7)
    with streamed(folder, tmp_path) as server:
        restarted = server.answer(prompt, temperature=1.0, seed=7)
    assert (first.cached, again.cached) == (0, len(prompt) - 1)
    assert restarted.cached == len(prompt) - 1
    assert first.same == again.same == restarted.same


def test_no_disk_means_no_files_and_a_cold_restart(
    folder: Path, tmp_path: Path, cold: Cold
) -> None:
    """`--prefix-store-gb 0`."""
    with streamed(folder, tmp_path, prefix_store_gb=0) as server:
        prompt = talk(server)
    assert not (tmp_path / STORE_NAME).exists()
    assert not list(tmp_path.glob(".coli_kv*"))
    with streamed(folder, tmp_path, prefix_store_gb=0) as server:
        answer = server.answer(prompt)
        assert answer.cached == 0
        assert answer.same == cold(prompt)


def test_R116_the_budget_holds_and_the_longest_unused_conversation_goes(
    folder: Path, tmp_path: Path, cold: Cold
) -> None:
    talks = [draftmodel.prompt(seed, 5 * BLOCK + 1) for seed in range(30, 36)]
    with streamed(folder, tmp_path) as server:
        disk = server.backend.disk
        assert disk is not None
        budget = 16 * disk.store.geometry.stride
    shutil.rmtree(tmp_path / STORE_NAME)
    for prompt in talks:
        with streamed(folder, tmp_path, prefix_store_gb=budget / 1e9) as server:
            check(server.answer(prompt), 0, prompt, cold)
    assert sum(path.stat().st_size for path in (tmp_path / STORE_NAME).glob("*.seg*")) <= budget
    with streamed(folder, tmp_path, prefix_store_gb=budget / 1e9) as server:
        check(server.answer(talks[-1]), 5 * BLOCK, talks[-1], cold)
        oldest = server.answer(talks[0])
        assert oldest.cached < BLOCK
        assert oldest.same == cold(talks[0])


def test_R118_blocks_that_find_no_room_in_memory_are_a_miss(
    folder: Path, tmp_path: Path, cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    with streamed(folder, tmp_path) as server:
        prompt = talk(server)
    taken: list[int] = []
    bring = Session.import_block

    def full_at_the_third(session: Session, tokens: list[int], data: memoryview) -> None:
        if len(taken) == 2:
            raise EngineError(Status.MEMORY, "no memory for KV")
        taken.append(len(tokens))
        bring(session, tokens, data)

    monkeypatch.setattr(Session, "import_block", full_at_the_third)
    with streamed(folder, tmp_path) as server:
        answer = server.answer(prompt)
        assert answer.cached == 2 * BLOCK
        assert answer.same == cold(prompt)


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_R053_what_an_abandoned_turn_has_computed_stays(
    folder: Path, tmp_path: Path, cold: Cold, restart: bool
) -> None:
    """The client's time limit is over before the answer is: the retry computes nothing again, and
    neither does a turn that takes up what was generated by then.
    """
    prompt = SYSTEM + ASK
    server = Streamed(folder, tmp_path)
    job = server.loop.submit(prompt, cache_slot=0)
    while not isinstance(event := server.loop.events.get(timeout=60), Tokens) or (
        event.generated < 12
    ):
        pass
    server.loop.worker.handle(Cancel(job=job))
    while not isinstance(server.loop.events.get(timeout=60), Done):
        pass
    said = server.slot().history[len(prompt) :]
    assert len(said) >= 11
    if restart:
        server.stop()
        server = Streamed(folder, tmp_path)
    check(server.answer(prompt), len(prompt) - 1, prompt, cold)
    going_on = turn2(prompt, said)
    check(server.answer(going_on), len(prompt) + len(said), going_on, cold)
    server.stop()


@pytest.mark.parametrize("parallel", [1, 3])
def test_R097_three_requests_that_are_dropped_at_once_evict_nothing(
    folder: Path, cold: Cold, parallel: int
) -> None:
    """Opening and leaving an agent: a warm-up, a title and a message, and nobody waits for them."""
    with streamed(folder, slots=parallel, parallel=parallel) as server:
        prompt = talk(server)
        sides = [draftmodel.prompt(40 + number, 200) for number in range(3)]
        jobs = [server.loop.submit(side) for side in sides]
        for job in jobs:
            server.loop.worker.handle(Cancel(job=job))
        for events in server.loop.ends(*jobs).values():
            assert isinstance(events[-1], Done)
            assert events[-1].finish_reason == "cancelled"
        assert not server.loop.worker.snapshot().jobs
        check(server.answer(prompt), len(prompt) - len(NEXT), prompt, cold)


# ---- the tests above can fail --------------------------------------------------------------------


def test_a_wrong_byte_in_an_imported_block_would_be_noticed(
    folder: Path, tmp_path: Path, cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    with streamed(folder, tmp_path) as server:
        prompt = talk(server)
    with streamed(folder, tmp_path) as server:
        disk = server.backend.disk
        assert disk is not None
        read = disk.store.read

        def wrong(ref: object, into: memoryview) -> bool:
            found = read(ref, into)  # type: ignore[arg-type]
            into[len(into) // 2] ^= 0x20
            return found

        monkeypatch.setattr(disk.store, "read", wrong)
        answer = server.answer(prompt)
        assert answer.cached == len(prompt) - len(NEXT)
        assert server.kv(len(prompt)) != cold.kv(prompt)


def test_blocks_attached_to_other_tokens_would_be_noticed(
    folder: Path, tmp_path: Path, cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    with streamed(folder, tmp_path) as server:
        talk(server)
    foreign = [*draftmodel.prompt(8, len(SYSTEM + ASK)), *NEXT]
    with streamed(folder, tmp_path) as server:
        disk = server.backend.disk
        assert disk is not None
        match = disk.store.match
        monkeypatch.setattr(disk.store, "match", lambda _tokens: match(SYSTEM + ASK))
        answer = server.answer(foreign)
        assert answer.cached == whole(len(SYSTEM + ASK))
        assert answer.same != cold(foreign)


def test_a_write_into_a_shared_block_would_be_noticed(folder: Path, cold: Cold) -> None:
    with streamed(folder, fault=FAULT_SHARED_BLOCK) as server:
        first = SYSTEM + ASK
        prompt = talk(server, first)
        edited = [*first[:-40], *draftmodel.prompt(6, 60)]
        server.answer(edited)
        server.answer(prompt)
        assert server.kv(len(prompt)) != cold.kv(prompt)


# ---- dropped and sent again ----------------------------------------------------------------------


class Dropping:
    """Cancels a job as soon as the prompt is read up to the next of some shares."""

    def __init__(self, server: Streamed, shares: list[float]) -> None:
        self._server = server
        self._before = 0
        self.slice = 0  # most work between two events, as the engine counts it
        self.shares = list(shares)
        self.resumed: list[float] = []
        self.reached: list[float] = []
        self._fresh = True

    def __call__(self, event: Event) -> None:
        if isinstance(event, Done):
            self._fresh = True
        if not isinstance(event, Progress):
            return
        now = self._server.backend.counters().progress
        self.slice, self._before = max(self.slice, now - self._before), now
        if self._fresh:
            self.resumed.append(event.fraction)
            self._fresh = False
        if self.shares and event.fraction >= self.shares[0]:
            self.shares.pop(0)
            self.reached.append(event.fraction)
            self._server.loop.worker.handle(Cancel(job=event.job))


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices as small as they get, and an event for each."""
    monkeypatch.setattr(loop_module, "SLICE_MS", -1)
    monkeypatch.setattr(loop_module, "PROGRESS_SECONDS", 0)


def work(server: Streamed) -> tuple[int, int, int]:
    """What was computed: tokens of prompts, layers and reads, lookups of experts."""
    counters = server.backend.counters()
    return counters.prompt_tokens, counters.progress, counters.expert_lookups


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("chunk", [1024, BLOCK], ids=["inside one chunk", "over the prefill"])
def test_R052_five_drops_and_resends_compute_the_prompt_once(
    folder: Path, cold: Cold, drafts: str, chunk: int
) -> None:
    prompt = SYSTEM + ASK
    with streamed(folder, drafts=drafts, prefill_chunk=chunk) as server:
        server.answer(prompt, max_tokens=1)
        once = work(server)
    with streamed(folder, drafts=drafts, prefill_chunk=chunk) as server:
        dropping = Dropping(server, [0.1, 0.25, 0.45, 0.6, 0.8])
        server.loop.on_event = dropping
        cached = []
        for _ in range(5):
            answer = server.answer(prompt, max_tokens=1)
            assert answer.text == ""
            cached.append(answer.cached)
        assert not dropping.shares
        assert server.answer(prompt, max_tokens=1).text
        total = work(server)
        check(server.answer(prompt), len(prompt) - 1, prompt, cold)
    assert total[0] == once[0] == len(prompt)
    # A drop moves the borders of slices: a slice or two more or less each, and no expert twice.
    assert abs(total[1] - once[1]) <= 10 * dropping.slice <= once[1] // 20
    assert total[2] == once[2]
    if chunk > len(prompt):
        assert cached == [0] * 5, "it was one chunk, dropped inside"
        assert dropping.resumed[1:6] == pytest.approx(dropping.reached, abs=0.03)
    else:
        assert cached[-1] >= BLOCK, "finished chunks count as cached"


@pytest.mark.usefixtures("small_slices")
def test_a_parked_chunk_that_comes_back_changed_would_be_noticed(folder: Path, cold: Cold) -> None:
    """The fault changes one value of the last row a little; not every row shows it in int8."""
    seen = 0
    for seed in range(20, 28):
        prompt = draftmodel.prompt(seed, 2 * BLOCK)
        with streamed(folder, prefill_chunk=1024, fault=FAULT_PARKED) as server:
            server.loop.on_event = Dropping(server, [0.2])
            server.answer(prompt)
            seen += server.answer(prompt).same != cold(prompt)
    assert seen > 0


@pytest.mark.usefixtures("small_slices")
def test_chunks_of_a_dropped_prefill_survive_a_restart(
    folder: Path, tmp_path: Path, cold: Cold
) -> None:
    """R090, R096: a retry after the client's time limit, even with the server started anew."""
    prompt = SYSTEM + ASK
    with streamed(folder, tmp_path, prefill_chunk=BLOCK) as server:
        server.loop.on_event = Dropping(server, [0.7])
        server.answer(prompt)
    with streamed(folder, tmp_path, prefill_chunk=BLOCK) as server:
        check(server.answer(prompt), 3 * BLOCK, prompt, cold)


# ---- damaged files -------------------------------------------------------------------------------


def test_R114_a_flipped_byte_anywhere_costs_time_and_never_a_token(
    folder: Path, tmp_path: Path, cold: Cold
) -> None:
    """Sampled bytes of every saved file, each in a fresh copy; a cut file too."""
    saved = tmp_path / "saved"
    with streamed(folder, saved) as server:
        prompt = talk(server)
    files = [path for path in sorted(saved.rglob("*")) if path.is_file() and path.stat().st_size]
    kv = [p for p in files if STORE_NAME in p.parts or p.name.startswith(".coli_kv")]
    assert {p.name.split(".")[1] for p in kv if p.parent == saved} == {"coli_kv"}
    assert len(kv) >= 2
    less = 0
    for path in kv:
        size = path.stat().st_size
        for number, offset in enumerate((0, 9, size // 3, size // 2, size - 1)):
            copy = tmp_path / "copy"
            shutil.copytree(saved, copy)
            target = copy / path.relative_to(saved)
            data = bytearray(target.read_bytes())
            data[offset] ^= 0x10
            target.write_bytes(data[: size // 2] if number == 3 else data)
            with streamed(folder, copy) as server:
                answer = server.answer(prompt)
                assert answer.same == cold(prompt), (path.name, offset)
                less += answer.cached < len(prompt) - len(NEXT)
            # And the next start is as any other.
            with streamed(folder, copy) as server:
                assert server.answer(prompt).same == cold(prompt)
            shutil.rmtree(copy)
    assert less > 0, "no flip met a block"
