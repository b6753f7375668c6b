"""Which slot a prompt gets, and that nothing that any session holds is computed again."""

from __future__ import annotations

import random
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from colibri.engine import fake
from colibri.engine.slots import LEAST_KEPT, MOST_KEPT, Slot, Slots, common_prefix

A = list(range(100, 300))
B = list(range(400, 700))


def _slots(count: int = 1, parallel: int = 1) -> tuple[fake.FakeBackend, Slots]:
    backend = fake.FakeBackend()
    return backend, Slots(backend, count, parallel)


def _run(slots: Slots, prompt: list[int], pinned: int | None = None) -> tuple[Slot, int]:
    """A whole job; returns its slot and the tokens that were held already."""
    slot = slots.choose(prompt, pinned)
    assert slot is not None
    held = slots.prepare(slot, prompt)
    assert len(slot.session) == held
    assert slot.history == prompt[:held]
    slot.session.prefill_start(prompt[held:])
    assert slot.session.prefill_step(0).finished
    slot.history = list(prompt)
    return slot, held


@given(st.lists(st.integers(0, 1), max_size=9), st.lists(st.integers(0, 1), max_size=9))
def test_the_common_prefix_of_short_lists(a: list[int], b: list[int]) -> None:
    expected = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
    assert common_prefix(a, b) == expected


@given(st.integers(0, 20_000), st.integers(0, 20_000), st.randoms(use_true_random=False))
def test_the_common_prefix_of_long_lists(n: int, at: int, chance: random.Random) -> None:
    a = [chance.randrange(3) for _ in range(n)]
    b = [*a[: min(at, n)], 7]
    assert common_prefix(a, b) == min(at, n)
    assert common_prefix(a, b, min(at, n) // 2) == min(at, n)


def test_one_after_the_other_jobs_take_slot_0_unless_pinned() -> None:
    _, slots = _slots(count=3)
    assert _run(slots, A)[0].index == 0
    assert _run(slots, B)[0].index == 0
    assert _run(slots, A, pinned=2)[0].index == 2
    slots.slots[0].busy = True
    assert slots.choose(A, None) is None


def test_side_by_side_jobs_take_the_free_slot_that_holds_most_of_the_prompt() -> None:
    _, slots = _slots(count=3, parallel=2)
    _run(slots, A, pinned=1)
    _run(slots, B, pinned=2)
    assert _run(slots, [*A, 1])[0].index == 1
    assert _run(slots, [*B, 1])[0].index == 2
    assert _run(slots, [9] * 40)[0].index == 0
    slots.slots[1].busy = True
    assert slots.choose([*A, 1, 2], 1) is None
    other = slots.choose([*A, 1, 2], None)
    assert other is not None
    assert other.index == 0
    other.busy = True
    assert slots.choose(B, None) is None


def test_a_slot_that_a_pinned_job_waits_for_is_left_to_it_while_another_is_free() -> None:
    _, slots = _slots(count=3, parallel=3)
    _run(slots, A, pinned=1)
    slot = slots.choose([*A, 1], None, {1})
    assert slot is not None
    assert slot.index == 0
    # What slot 1 holds is shared, so nothing is lost by it.
    assert slots.prepare(slot, [*A, 1]) == len(A)
    slots.slots[0].busy = slots.slots[2].busy = True
    last = slots.choose([*A, 1], None, {1})
    assert last is not None
    assert last.index == 1


def test_sessions_that_are_on_disk_make_room_first() -> None:
    backend, slots = _slots()
    for start in (1000, 2000, 3000):
        _run(slots, list(range(start, start + 100)))
    unsaved = slots._kept[0]
    slots.is_saved = lambda holding: holding is not unsaved
    dropped: list[object] = []
    slots.may_drop = lambda holding: dropped.append(holding) or True
    backend.room = 0
    slots._drop_oldest()
    assert dropped
    assert unsaved not in dropped
    slots._drop_oldest()
    assert dropped[-1] is unsaved, "one that is not goes too when there is no other"


def test_conversations_that_take_turns_on_one_slot_are_not_read_again() -> None:
    _, slots = _slots()
    a, b = list(A), list(B)
    _run(slots, a)
    assert _run(slots, b)[1] == 0
    for turn in range(5):
        a += [turn] * 40
        assert _run(slots, a)[1] == len(a) - 40
        b += [turn] * 40
        assert _run(slots, b)[1] == len(b) - 40


def test_a_new_conversation_shares_the_system_prompt_of_another() -> None:
    _, slots = _slots(count=2, parallel=2)
    first, _ = _run(slots, [*A, *B])
    first.busy = True
    second, held = _run(slots, [*A, 1, 2, 3])
    assert (second.index, held) == (1, len(A))
    assert first.history == [*A, *B]


def test_another_turn_of_a_conversation_leaves_the_first_one_there() -> None:
    _, slots = _slots()
    _run(slots, [*A, *B])
    assert _run(slots, [*A, *reversed(B)])[1] == len(A)
    assert _run(slots, [*A, *B, 5])[1] == len(A) + len(B)
    assert _run(slots, [*A, *reversed(B), 5])[1] == len(A) + len(B)


def test_where_windows_have_passed_on_a_prompt_goes_back_to_a_checkpoint() -> None:
    backend, slots = _slots()
    backend.window = 10
    slot, _ = _run(slots, A)
    slot.session.checkpoint()
    _run(slots, [*A, *B])
    assert _run(slots, [*A, *B[:-5], 1])[1] == len(A) + len(B) - 5
    assert _run(slots, [*A, *B[:100], 1])[1] == len(A)
    assert _run(slots, [*A[:50], 1])[1] == 0


def test_the_last_token_is_always_computed() -> None:
    _, slots = _slots()
    _run(slots, A)
    assert _run(slots, A)[1] == len(A) - 1
    assert _run(slots, A[:50])[1] == 49


def test_kept_sessions_go_when_their_kv_is_needed_and_never_become_too_many() -> None:
    backend, slots = _slots()
    for first in range(MOST_KEPT + 20):
        _run(slots, [first] * LEAST_KEPT)
    assert slots.kept == MOST_KEPT
    assert backend.open_sessions == MOST_KEPT + 1
    backend.room = 5
    slots.make_room(5)
    assert slots.kept == MOST_KEPT
    rooms = iter(range(5, 100))
    backend.kv_room = lambda: next(rooms)  # type: ignore[method-assign]
    slots.make_room(8)
    assert slots.kept == MOST_KEPT - 3
    # The newest are still there.
    assert _run(slots, [MOST_KEPT + 18] * LEAST_KEPT)[1] == LEAST_KEPT - 1


def test_idle_slots_give_their_kv_after_kept_sessions_and_busy_ones_never() -> None:
    backend, slots = _slots(3)
    for index in (2, 0, 1):
        slots.prepare(slots.slots[index], [index] * 100)
        slots.slots[index].session.prefill_start([index] * 100)
        slots.slots[index].session.prefill_step(0)
        slots.slots[index].history = [index] * 100
    slots.prepare(slots.slots[2], [7] * 100)  # keeps what slot 2 held, and holds nothing yet
    slots.slots[1].busy = True
    assert slots.kept == 1
    rooms = iter(range(100))
    backend.kv_room = lambda: next(rooms)  # type: ignore[method-assign]
    slots.make_room(1)
    assert [len(slot.history) for slot in slots.slots] == [100, 100, 0]
    assert slots.kept == 0
    backend.kv_room = lambda: 0  # type: ignore[method-assign]
    slots.make_room(1)
    assert [len(slot.history) for slot in slots.slots] == [0, 100, 0]
    assert (slots.dropped, backend.open_sessions) == (2, 3)


def test_the_oldest_kept_session_may_be_the_one_that_is_needed() -> None:
    _, slots = _slots()
    _run(slots, A)
    for first in range(MOST_KEPT):
        _run(slots, [first] * LEAST_KEPT)
    assert slots.kept == MOST_KEPT
    assert _run(slots, [*A[:150], 5])[1] == 150


def test_a_short_history_is_not_kept() -> None:
    backend, slots = _slots()
    _run(slots, [1] * (LEAST_KEPT - 1))
    _run(slots, [2] * 100)
    assert slots.kept == 0
    assert backend.open_sessions == 1


def test_an_unfinished_prefill_comes_back_with_its_session() -> None:
    _, slots = _slots()
    _run(slots, A)
    parked = slots.slots[0].session
    _run(slots, B)
    slot, held = _run(slots, [*A, 1, 2])
    assert held == len(A)
    assert slot.session is cast(object, parked)


def test_a_prompt_that_was_broken_off_comes_back_to_the_slot_that_has_begun_it() -> None:
    """Among equals the engine would otherwise read it again from the start in the lowest slot."""
    _, slots = _slots(count=3, parallel=3)
    slots.slots[2].holding.begun = A[:150]
    assert slots.choose(A, None) is slots.slots[2]
    assert slots.choose(B, None) is slots.slots[0]
    # What is held counts as well, and what was begun only behind all of it.
    slots.slots[1].history = A[:10]
    slots.slots[1].session.prefill_start(A[:10])
    slots.slots[1].session.prefill_step(0)
    assert slots.choose(A, None) is slots.slots[2]
    slots.slots[1].history = []
    slots.slots[1].session.truncate(0)
    # Begun is not held: it is computed unless the engine still has it.
    assert slots.prepare(slots.slots[2], A) == 0
    slots.cut(slots.slots[2], 0)
    assert slots.choose(A, None) is slots.slots[2]
