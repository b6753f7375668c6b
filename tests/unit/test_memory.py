"""How much memory and context are chosen, from given figures.

Covers R164.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from colibri.errors import ResourceError
from colibri.hardware import memory
from colibri.models.backend import MemoryPlan, choose_context

GB = 10**9


def group(folder: Path, limit: str, usage: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(limit)
    (folder / "memory.current").write_text(usage)


def test_the_tightest_control_group_counts(tmp_path: Path) -> None:
    root, listing = tmp_path / "cgroup", tmp_path / "listing"
    listing.write_text("0::/outer/inner\n")
    group(root / "outer", str(4 * GB), str(3 * GB))
    group(root / "outer" / "inner", "max", "5")
    assert memory.cgroup_left(root, listing) == GB
    group(root / "outer" / "inner", str(GB), str(GB - 7))
    assert memory.cgroup_left(root, listing) == 7


def test_the_older_kind_of_control_group_counts_too(tmp_path: Path) -> None:
    folder = tmp_path / "cgroup" / "memory"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(str(2 * GB))
    (folder / "memory.usage_in_bytes").write_text(str(GB))
    assert memory.cgroup_left(tmp_path / "cgroup", tmp_path / "no-listing") == GB


def test_no_limit_is_no_limit(tmp_path: Path) -> None:
    assert memory.cgroup_left(tmp_path, tmp_path / "nothing") is None
    group(tmp_path, "max", "5")
    assert memory.cgroup_left(tmp_path, tmp_path / "nothing") is None


def test_a_probe_that_says_nothing_is_not_taken_for_a_fact(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R164."""
    monkeypatch.setattr(memory, "cgroup_left", lambda: None)
    monkeypatch.setattr(
        memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=0, total=8 * GB)
    )
    assert memory.budget() == 4 * GB - memory.RESERVE_BYTES

    def broken() -> None:
        raise OSError("no such file")

    monkeypatch.setattr(memory.psutil, "virtual_memory", broken)
    assert memory.budget() == 0
    assert "no limit is kept" in caplog.text
    monkeypatch.setattr(memory, "cgroup_left", lambda: 3 * GB)
    assert memory.budget() == 3 * GB - memory.RESERVE_BYTES


@pytest.mark.parametrize(
    ("wanted", "longest", "per_token", "budget", "context"),
    [
        (0, 8192, 1000, 0, 8192),
        (0, 8192, 1000, 2 * GB, 8192),
        (0, 131_072, 100_000, 3 * GB, 10_000),
        (0, 131_072, 100_000, GB + GB // 2, 4096),
        (0, 2048, 1000, 2 * GB, 2048),
        (3000, 8192, 1000, 2 * GB, 3000),
        (16_384, 8192, 1000, 0, 16_384),
    ],
)
def test_the_context_is_what_was_asked_for_or_what_fits(
    wanted: int, longest: int, per_token: int, budget: int, context: int
) -> None:
    """Never below 4,096 unasked, and half of what is free at most beyond that."""
    plan = MemoryPlan(budget=budget, weights=GB, can_stream=False)
    assert choose_context(wanted, longest, per_token, plan) == context


def test_experts_on_disk_leave_a_quarter_of_the_memory_to_the_context() -> None:
    plan = MemoryPlan(budget=8 * GB, weights=300 * GB, can_stream=True)
    assert choose_context(0, 131_072, 100_000, plan) == 20_000
    assert choose_context(0, 8192, 100_000, plan) == 8192
    assert choose_context(50_000, 131_072, 100_000, plan) == 50_000


def test_a_context_that_does_not_fit_is_refused_with_numbers_and_the_one_that_does() -> None:
    plan = MemoryPlan(budget=GB + GB // 2, weights=GB, can_stream=False)
    with pytest.raises(ResourceError, match=r"8192 tokens takes 0\.82 GB; .* 0\.50 GB are free"):
        choose_context(8192, 8192, 100_000, plan)
    with pytest.raises(ResourceError) as refused:
        choose_context(8192, 8192, 100_000, plan)
    assert "--ctx 5000" in str(refused.value.hint)
    nothing_free = MemoryPlan(budget=GB - 5, weights=GB, can_stream=False)
    with pytest.raises(ResourceError, match="4096 tokens") as refused:
        choose_context(0, 8192, 100_000, nothing_free)
    assert "smaller model" in str(refused.value.hint)
