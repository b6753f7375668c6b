"""When drafting pays, decided from simulated steps: noise, gains, losses and changes of both.

Covers R136 and R138 as far as deciding and saying why is concerned.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest

from colibri.engine.draft_policy import FIRST_REST, DraftPolicy, StepCost

# What a step of one token costs here, ms.
PLAIN_MS = 100.0
SETTLED = 260  # steps by which every first decision has been made


class World:
    """A model whose drafts are kept with probability `hit` at each place, one after the other.

    A draft adds `extra` of a plain step's time and `more_bytes` of its bytes. `noise` is the
    deviation of the logarithm of a step's time.
    """

    def __init__(
        self,
        *,
        hit: float,
        extra: float,
        noise: float = 0.1,
        more_bytes: float = 0.0,
        wait: float = 0.0,
        seed: int = 1,
    ) -> None:
        self.hit, self.extra, self.noise = hit, extra, noise
        self.more_bytes, self.wait, self.scale = more_bytes, wait, 1.0
        self.random = random.Random(seed)  # noqa: S311
        self.ms = 0.0
        self.tokens = 0

    def step(self, depth: int) -> StepCost:
        kept = 0
        while kept < depth and self.random.random() < self.hit:
            kept += 1
        ms = PLAIN_MS * self.scale * (1 + self.extra * depth) * self._noise()
        self.ms += ms
        self.tokens += 1 + kept
        read = int(1e9 * (1 + self.more_bytes * depth) * self._noise())
        return StepCost(tokens=1 + kept, ms=ms, bytes=read, wait_ms=self.wait * ms)

    def _noise(self) -> float:
        return math.exp(self.random.gauss(0, self.noise))


def play(
    policy: DraftPolicy, world: World, steps: int, look: Callable[[int], None] | None = None
) -> list[int]:
    """Depths in use after each step."""
    used = []
    for _ in range(steps):
        policy.note(world.step(policy.wanted))
        used.append(policy.depth)
        if look is not None:
            look(policy.wanted)
    return used


def switches(used: list[int]) -> int:
    return sum(a != b for a, b in itertools.pairwise(used))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_without_a_gain_it_ends_at_off_and_stays_there(noise: float, seed: int) -> None:
    """Two tokens for twice the time: 1.0x, which is not worth it."""
    policy = DraftPolicy(3)
    used = play(policy, World(hit=1.0, extra=1.0, noise=noise, seed=seed), 3000)
    assert used[SETTLED] == 0
    assert set(used[SETTLED:]) == {0}
    assert "time per token" in policy.reason


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_a_great_gain_switches_on_and_stays(noise: float, seed: int) -> None:
    policy = DraftPolicy(3)
    used = play(policy, World(hit=0.9, extra=0.1, noise=noise, seed=seed), 3000)
    assert min(used[SETTLED:]) >= 1
    assert max(used) >= 2, "deeper drafts pay too"
    assert "fell to" in policy.reason
    assert switches(used[SETTLED:]) <= 2


@pytest.mark.parametrize("seed", range(8))
def test_a_great_loss_is_noticed_within_a_few_blocks(seed: int) -> None:
    """Nothing is kept and every draft costs: off after a few dozen steps."""
    policy = DraftPolicy(3)
    used = play(policy, World(hit=0.02, extra=0.5, seed=seed), 60)
    assert used[-1] == 0
    assert "time per token rose" in policy.reason


@pytest.mark.parametrize("seed", range(8))
def test_the_depth_that_pays_best_is_found(seed: int) -> None:
    """A place kept in 60 % of the cases at 30 % of a step: one draft is best, two nearly as good,
    three too many."""
    policy = DraftPolicy(3)
    world = World(hit=0.6, extra=0.3, noise=0.05, seed=seed)
    assert play(policy, world, 1500)[-1] in (1, 2)
    policy, world = DraftPolicy(3), World(hit=0.97, extra=0.1, noise=0.05, seed=seed)
    assert play(policy, world, 3000)[-1] == 3


@pytest.mark.parametrize("seed", range(8))
def test_a_gain_that_turns_into_a_loss_switches_off(seed: int) -> None:
    policy = DraftPolicy(3)
    world = World(hit=0.9, extra=0.1, seed=seed)
    assert play(policy, world, 600)[-1] > 0
    world.hit = 0.05
    used = play(policy, world, 400)
    assert used[-1] == 0
    assert switches(used) <= 3


@pytest.mark.parametrize("seed", range(8))
def test_a_loss_that_turns_into_a_gain_switches_on_again(seed: int) -> None:
    """The drafts got cheap and good, and plain steps twice as fast: something has changed, so the
    rest ends at once instead of after a thousand steps."""
    policy = DraftPolicy(3)
    world = World(hit=0.1, extra=0.6, seed=seed)
    assert play(policy, world, 1500)[-1] == 0
    world.hit, world.extra, world.scale = 0.9, 0.1, 0.5
    used = play(policy, world, 400)
    assert used[-1] > 0


@pytest.mark.parametrize("seed", range(8))
def test_it_also_looks_again_by_itself(seed: int) -> None:
    """What a plain step costs has not changed: only a look can find out."""
    policy = DraftPolicy(1)
    world = World(hit=0.1, extra=0.6, seed=seed)
    assert play(policy, world, 300)[-1] == 0
    world.hit, world.extra = 0.95, 0.1
    assert play(policy, world, 1500)[-1] == 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("hit", "extra"), [(0.1, 0.5), (0.5, 0.5), (0.9, 0.1)])
def test_probing_costs_a_few_percent(hit: float, extra: float, seed: int) -> None:
    """After the first decision, against a world that is always at the best depth."""
    policy, world = DraftPolicy(3), World(hit=hit, extra=extra, noise=0.05, seed=seed)
    play(policy, world, 600)
    world.ms = world.tokens = 0
    play(policy, world, 4000)
    found = world.ms / world.tokens

    def cost(depth: int) -> float:
        kept = sum(hit ** (i + 1) for i in range(depth))
        return PLAIN_MS * (1 + extra * depth) / (1 + kept)

    noise = math.exp(0.05**2 / 2)
    used = cost(policy.depth) * noise
    assert found < 1.04 * used
    # The hysteresis may leave a gain of a few percent on the table, never more.
    assert used < 1.08 * min(cost(depth) for depth in range(4)) * noise


@pytest.mark.parametrize("seed", range(8))
def test_more_bytes_per_token_switch_off_although_time_falls(seed: int) -> None:
    """R136: when the disk is what a step waits for, its bytes must fall as well."""
    policy = DraftPolicy(2)
    world = World(hit=0.5, extra=0.1, more_bytes=1.1, wait=0.5, seed=seed)
    assert play(policy, world, SETTLED)[-1] == 0
    assert policy.reason.startswith("bytes per accepted token rose 1.")


@pytest.mark.parametrize("seed", range(8))
def test_bytes_that_no_step_waits_for_do_not_matter(seed: int) -> None:
    policy = DraftPolicy(1)
    world = World(hit=0.9, extra=0.1, more_bytes=1.5, wait=0.01, seed=seed)
    assert play(policy, world, SETTLED)[-1] == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_slow_growth_of_all_costs_does_not_decide_anything(seed: int) -> None:
    """A context that gets longer makes every step slower: blocks in turns see through that."""
    policy, world = DraftPolicy(2), World(hit=0.9, extra=0.05, noise=0.05, seed=seed)

    def grow(_: int) -> None:
        world.scale *= 1.003

    assert min(play(policy, world, 1500, grow)[SETTLED:]) > 0


def test_steps_that_tell_nothing_are_left_out() -> None:
    policy, world = DraftPolicy(1), World(hit=0.0, extra=0.5)
    for _ in range(500):
        policy.note(None)
    assert policy.depth == 1
    play(policy, world, 60)
    assert policy.depth == 0


def test_no_probe_is_made_while_the_jobs_cannot_be_drafted_for() -> None:
    policy, world = DraftPolicy(1), World(hit=0.0, extra=0.5)
    play(policy, world, 60)
    assert policy.depth == 0
    wanted = set()
    for _ in range(10 * FIRST_REST):
        cost = world.step(policy.wanted)
        wanted.add(policy.wanted)
        policy.note(StepCost(tokens=cost.tokens, ms=cost.ms, bytes=0, wait_ms=0, ready=False))
    assert wanted == {0}


def test_a_failure_switches_off_says_why_and_is_retried_later() -> None:
    policy, world = DraftPolicy(1), World(hit=1.0, extra=0.1)
    policy.fail("drafting failed: layer 3 gave non-finite values")
    assert (policy.depth, policy.wanted) == (0, 0)
    assert play(policy, world, FIRST_REST - 1)[-1] == 0
    assert "layer 3" in policy.reason
    assert play(policy, world, 100)[-1] == 1


def test_short_answers_are_measured_together() -> None:
    """Every third step is the last of an answer and tells nothing."""
    policy, world = DraftPolicy(1), World(hit=0.0, extra=0.5)
    for number in range(90):
        policy.note(None if number % 3 == 2 else world.step(policy.wanted))
    assert policy.depth == 0


def test_one_that_follows_another_begins_without_a_trial() -> None:
    first, world = DraftPolicy(2), World(hit=0.0, extra=0.5)
    play(first, world, 60)
    second = DraftPolicy(2)
    second.follow(first)
    assert set(play(second, world, FIRST_REST - 1, lambda wanted: None)) == {0}
    assert second.reason == first.reason
    unsettled = DraftPolicy(2)
    unsettled.follow(DraftPolicy(2))
    assert unsettled.depth == 1
