"""`coli bench policy`: traces in, hit rates out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colibri import cli
from colibri.models import routing, trace
from colibri.models.routing import RoutingShape

SHAPE = RoutingShape(steps=40, layers=2, experts=16, top_k=2)


def bench(*arguments: str) -> int:
    return cli.run(cli.coli, "coli", ["bench", "policy", *arguments])


def test_a_trace_file_is_replayed_at_the_sizes_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.trace"
    trace.save(path, routing.trace("zipf:0.8", SHAPE))
    assert bench(str(path), "--slots", "8", "--share", "50", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    assert [(row["trace"], row["slots"]) for row in found["rates"]] == [("mine", 8), ("mine", 16)]
    for row in found["rates"]:
        best = max(row["lru"], row["lfu"], row["decayed_lfu"])
        assert row["margin"] == pytest.approx(row["ours"] - best)
        assert best <= row["belady"] <= 1


def test_the_table_names_every_trace_and_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--routing", "sticky:0.9", "--share", "25", "--share", "50") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("sticky:0.9") for line in lines[1:])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["missing.trace"], 2),
        (["--routing", "square"], 2),
        (["--slots", "0"], 2),
        (["--share", "101"], 2),
        ([__file__], 4),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*arguments) == code
    assert capsys.readouterr().err
