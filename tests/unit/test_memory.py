"""How much memory and context are chosen, from given figures.

Covers R164.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from colibri.engine.ffi_plan import Plan
from colibri.engine.table import Geometry
from colibri.hardware import memory
from colibri.models.budget import choose_context, program_bytes, remedy, store_queue_bytes
from colibri.sizes import Size, parse

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
    monkeypatch.setattr(memory, "meminfo", lambda: (0, 0))
    monkeypatch.setattr(memory, "_sysconf_figures", lambda: (0, 0))
    monkeypatch.setattr(
        memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=0, total=8 * GB)
    )
    assert memory.budget() == 4 * GB - memory.reserve(4 * GB)

    assert "reports no available memory" in caplog.text, "loud, and then asked another way"

    def broken() -> None:
        raise OSError("no such file")

    monkeypatch.setattr(memory.psutil, "virtual_memory", broken)
    assert memory.budget() == 0
    assert "no limit is kept" in caplog.text
    monkeypatch.setattr(memory, "cgroup_left", lambda: 3 * GB)
    assert memory.budget() == 3 * GB - memory.reserve(3 * GB)


def test_the_second_probe_answers_when_the_first_says_zero(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """R164: 85 GB are 85 GB, whoever has to be asked."""
    listing = tmp_path / "meminfo"
    listing.write_text("MemTotal: 131072000 kB\nMemFree: 1000 kB\nMemAvailable: 85000000 kB\n")
    figures = memory.meminfo(listing)
    assert figures == (131072000 * 1024, 85000000 * 1024)
    monkeypatch.setattr(memory, "cgroup_left", lambda: None)
    monkeypatch.setattr(memory, "meminfo", lambda: figures)
    monkeypatch.setattr(
        memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=0, total=0)
    )
    assert memory.budget() == figures[1] - memory.RESERVE_BYTES


def test_page_cache_in_a_group_is_not_taken_for_used(tmp_path: Path) -> None:
    group(tmp_path, str(4 * GB), str(4 * GB))
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {GB}\nactive_file {2 * GB}\n")
    assert memory.cgroup_left(tmp_path, tmp_path / "none") == 3 * GB


def test_a_nested_group_of_the_older_kind_counts(tmp_path: Path) -> None:
    root, listing = tmp_path / "cgroup", tmp_path / "listing"
    folder = root / "memory" / "outer"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(str(2 * GB))
    (folder / "memory.usage_in_bytes").write_text(str(GB + 7))
    listing.write_text("5:memory:/outer\n3:cpu:/elsewhere\n")
    assert memory.cgroup_left(root, listing) == GB - 7


def machine(monkeypatch: pytest.MonkeyPatch, available: int, left: int | None = None) -> None:
    figures = SimpleNamespace(total=64 * GB, available=available)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: figures)
    monkeypatch.setattr(memory, "cgroup_left", lambda: left)


def test_the_budget_says_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 20 * GB)
    found = memory.allowance()
    assert (found.origin, found.bytes) == ("available", 20 * GB - memory.RESERVE_BYTES)
    machine(monkeypatch, 20 * GB, 2 * GB)
    found = memory.allowance()
    assert (found.origin, found.bytes) == ("cgroup", 2 * GB - memory.reserve(2 * GB))
    assert found.bytes > 1.8 * GB, "a small group is not eaten up by the reserve"
    found = memory.allowance(Size(bytes=GB))
    assert (found.origin, found.bytes, found.warnings) == ("flag", GB, ())


def test_what_our_processes_hold_already_is_part_of_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine(monkeypatch, 20 * GB)
    assert memory.allowance(held=(GB, GB)).bytes == 22 * GB - memory.RESERVE_BYTES


def test_more_than_there_is_is_forced_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 20 * GB)
    found = memory.allowance(Size(bytes=30 * GB))
    assert found.bytes == 30 * GB
    assert "30.00 GB" in found.warnings[0]
    assert "20.00 GB" in found.warnings[0]


def test_a_share_is_one_of_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 20 * GB)
    monkeypatch.setattr(memory, "total", lambda: 64 * GB)
    assert memory.allowance(Size(share=0.25)).bytes == 16 * GB


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("12", Size(bytes=12 * GB)),
        ("12GB", Size(bytes=12 * GB)),
        ("1.5 gib", Size(bytes=3 << 29)),
        ("900M", Size(bytes=900 * 10**6)),
        ("50%", Size(share=0.5)),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: Size) -> None:
    assert parse(text) == size


@pytest.mark.parametrize("text", ["", "0", "-3", "many", "12XB", "120%", "0%", "1e400", "9" * 400])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse(text)


# ---- context -------------------------------------------------------------------------------------


def plan_for(budget: int, *, weights: int = GB, streams: bool = False, per_token: int = 100_000):  # type: ignore[no-untyped-def]
    """The engine's answer for a context, with figures that can be followed by hand."""

    def plan(context: int) -> Plan:
        kv = context * per_token
        streaming = streams and bool(budget) and weights + kv > budget
        held = kv + (0 if streaming else weights)
        numbers = dict.fromkeys(Plan.__struct_fields__[:-1], 0)
        numbers |= {"context": context, "budget": budget, "sessions_bytes": kv}
        numbers |= {"streaming": int(streaming), "total_bytes": held}
        numbers["fits"] = int(budget == 0 or held <= budget)
        return Plan(**numbers)

    return plan


@pytest.mark.parametrize(
    ("wanted", "longest", "per_token", "budget", "context"),
    [
        (0, 8192, 1000, 0, 8192),
        (0, 8192, 1000, 2 * GB, 8192),
        (0, 131_072, 100_000, 3 * GB, 12_048),
        (0, 131_072, 100_000, GB + GB // 2, 4548),
        (0, 2048, 1000, 2 * GB, 2048),
        (3000, 8192, 1000, 2 * GB, 3000),
        (16_384, 8192, 1000, 0, 16_384),
    ],
)
def test_the_context_is_what_was_asked_for_or_what_fits(
    wanted: int, longest: int, per_token: int, budget: int, context: int
) -> None:
    """Never below 4,096 unasked, and half of what is free beyond that."""
    assert choose_context(wanted, longest, plan_for(budget, per_token=per_token)) == context


def test_R173_an_unasked_context_takes_little_from_experts_that_stream() -> None:
    plan = plan_for(8 * GB, weights=300 * GB, streams=True)
    assert choose_context(0, 131_072, plan) == 6400
    assert choose_context(0, 5000, plan) == 5000
    assert choose_context(50_000, 131_072, plan) == 50_000
    assert choose_context(0, 131_072, plan_for(GB, weights=300 * GB, streams=True)) == 4096


def test_a_model_that_can_be_resident_stays_so() -> None:
    context = choose_context(0, 131_072, plan_for(2 * GB, weights=GB, streams=True))
    assert 4096 <= context <= 10_000


def test_the_programs_own_memory_counts_both_processes() -> None:
    """The server may still be loading the same tokenizer."""
    assert program_bytes(300, 200) == program_bytes(300, 300)
    assert program_bytes(300, 500) - program_bytes(300, 400) == 100
    assert program_bytes(300, None) < program_bytes(300, 0)


def test_what_waits_for_the_prefix_store_is_part_of_the_budget() -> None:
    """A server that never stops decoding fills the queue, because it writes next to nothing."""
    dense, moe = small_geometry(0), small_geometry(8)
    assert store_queue_bytes(None, dense, 0) == store_queue_bytes(5, dense, 0) == 16 << 20
    assert store_queue_bytes(0, moe, 0) == 0
    # With routed experts a chunk takes minutes, and its rows are saved now and then.
    assert store_queue_bytes(5, moe, 0) == (16 << 20) + 4096 * 64 * 4
    assert store_queue_bytes(5, moe, 1000) == (16 << 20) + 1000 * 64 * 4


def small_geometry(experts: int) -> Geometry:
    return Geometry(
        family=2, n_layers=3, hidden=64, vocab=100, max_position=8192, n_experts=experts
    )


def test_the_remedy_names_flags_with_figures_that_suffice() -> None:
    numbers = dict.fromkeys(Plan.__struct_fields__[:-1], 0)
    numbers |= {"least_budget": 1_234_567_890, "largest_context": 8192}
    text = remedy(Plan(**numbers))
    assert "--ram 1.24" in text
    assert "--ctx 8192" in text
    assert "--parallel" not in text
