"""`experts.json`, a measurement's file and files of topics: written, read again, never trusted."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri.errors import ColibriError, ModelError, UsageError
from colibri.models.atlas import file, runs, topics
from colibri.models.atlas.analysis import analyze
from colibri.models.atlas.measure import Measured
from colibri.models.atlas.runs import Run
from tests.models.atlasdata import COLS, LAYERS, PER_TOKEN, TOPICS, header, measurement

PLANTED = ((0, 3, "code"),)
ENTRY = {"affinity": {"x": 0.75, "y": 0.25}, "entropy": 0.811, "top": "x", "label": "generalist"}


def atlas_json(**changes: Any) -> bytes:
    return json.dumps({"categories": ["x", "y"], "experts": {"1:2": ENTRY}, **changes}).encode()


# ---- experts.json --------------------------------------------------------------------------------


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    atlas = analyze(measurement(PLANTED))
    path = tmp_path / "state" / file.NAME
    file.write(path, file.render(atlas, now_ms=5))
    data = json.loads(path.read_text())
    assert data["categories"] == list(TOPICS)
    assert data["experts"]["1:3"]["label"] == "specialist: code"
    assert data["experts"]["1:4"]["label"] == "generalist"
    assert data["measurement"]["measured_at_ms"] == 5
    columns = file.parse(path.read_bytes())
    assert list(zip(columns.layer, columns.expert, strict=True)) == [
        (one.layer, one.expert) for one in atlas.experts
    ]
    for number, expert in enumerate(atlas.experts):
        own = columns.affinity[4 * number : 4 * number + 4]
        assert own == [round(1000 * round(share, 4)) for share in expert.affinity]
        assert columns.specialist[number] == expert.specialist
    assert columns.tokens == [expert.tokens for expert in atlas.experts]
    assert [one.name for one in path.parent.iterdir()] == [file.NAME]


def test_a_file_of_another_program_is_read() -> None:
    columns = file.parse(atlas_json(experts={"10:0": ENTRY, "2:5": ENTRY}, version="7", note=None))
    assert (columns.layer, columns.expert) == ([2, 10], [5, 0])
    assert (columns.affinity, columns.tokens, columns.measurement) == ([750, 250] * 2, None, None)


FIGURES = {
    "measured_at_ms": 5, "topics": 2, "prompts": 3, "tokens": 4, "counted": "both", "left_out": 0,
    "specialists": 1, "mutual_information_bits": 0.25, "chance_bits": 0.01, "prediction": 0.5,
    "prediction_chance": 0.5, "sets": {"a": {"found": 0.25, "chance": 0.01}},
}  # fmt: skip


def figures(**changes: Any) -> bytes:
    return atlas_json(measurement={**FIGURES, **changes})


def entry(**changes: Any) -> dict[str, Any]:
    return {"experts": {"1:2": {**ENTRY, **changes}}}


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "not UTF-8": b'{"categories": ["\xff"], "experts": {}}',
    "a list": b"[]",
    "no categories": atlas_json(categories=[]),
    "too many categories": atlas_json(categories=[str(i) for i in range(65)]),
    "categories twice": atlas_json(categories=["x", "x"]),
    "a category that cannot be printed": atlas_json(categories=["x", "y\x1b[2J"]),
    "a long category": atlas_json(categories=["x", "y" * 61]),
    "experts as a list": atlas_json(experts=[ENTRY]),
    "a key without layer": atlas_json(experts={"12": ENTRY}),
    "a negative layer": atlas_json(experts={"-1:2": ENTRY}),
    "a huge layer": atlas_json(experts={f"{10**30}:2": ENTRY}),
    "an expert twice": atlas_json(experts={"01:2": ENTRY}),
    "a foreign topic": atlas_json(**entry(affinity={"z": 1.0})),
    "no affinity": atlas_json(**entry(affinity={})),
    "a negative affinity": atlas_json(**entry(affinity={"x": 2.0, "y": -1.0})),
    "NaN": atlas_json(**entry(entropy=float("nan"))),
    "infinite": b'{"categories": ["x"], "experts": {"1:2": {"affinity": {"x": 1e999}}}}',
    "impossible entropy": atlas_json(**entry(entropy=9)),
    "an unknown top": atlas_json(**entry(top="z")),
    "a label of another topic": atlas_json(**entry(label="specialist: y")),
    "a label in HTML": atlas_json(**entry(label="<img src=x onerror=alert(1)>")),
    "tokens below 0": atlas_json(**entry(tokens=-1)),
    "a wrong measurement": atlas_json(measurement={"measured_at_ms": "x"}),
    "a key in other digits": atlas_json(experts={"1\u0663:2": ENTRY}),
    "a moment that no calendar has": figures(measured_at_ms=8_640_000_000_000_001),
    "a number that does not leave as JSON": figures(tokens=1 << 64),
    "a number of four hundred digits": figures(prompts=10**400),
    "a prediction above certainty": figures(prediction=1e308),
    "an agreement above 1": figures(agreement=1.5),
    "more bits than there are": figures(sets={"a": {"found": 1e30}}),
    "deep": b'{"categories": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


def test_a_measurement_is_taken_as_it_stands() -> None:
    assert file.parse(figures()).measurement == file.Figures(**FIGURES)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / file.NAME
    path.write_bytes(HOSTILE[name])
    with pytest.raises(ModelError):
        file.parse(HOSTILE[name])
    with pytest.raises(file.AtlasDamagedError, match=file.NAME):
        file.AtlasFile().get(tmp_path, None, [])


def test_an_expert_that_the_model_lacks_is_refused() -> None:
    columns = file.parse(atlas_json())
    file.check_shape(columns, [1], 3, "m")
    for layers, cols in (([2], 3), ([1], 2)):
        with pytest.raises(file.AtlasDamagedError, match="1:2"):
            file.check_shape(columns, layers, cols, "m")


def test_the_state_folder_comes_before_the_models_own(tmp_path: Path) -> None:
    model, state, shelf = tmp_path / "model", tmp_path / "state", file.AtlasFile()
    model.mkdir()
    with pytest.raises(file.AtlasMissingError) as caught:
        shelf.get(model, str(state), ["do this"])
    assert caught.value.commands == ["do this"]
    (model / file.NAME).write_bytes(atlas_json())
    first, tag = shelf.get(model, str(state), [])
    assert shelf.get(model, str(state), []) == (first, tag)
    file.write(file.place(model, str(state)), atlas_json(categories=["y", "x"]))
    second, other = shelf.get(model, str(state), [])
    assert (first.categories, second.categories) == (("x", "y"), ("y", "x"))
    assert tag != other


# ---- the file of a measurement -------------------------------------------------------------------

PROMPTS = topics.Topics({t: {"a": (f"a {t}",), "b": (f"b {t}",)} for t in TOPICS}).prompts()


def measured(number: int) -> Measured:
    sample = measurement().samples[number]
    return Measured(LAYERS, COLS, PER_TOKEN, sample.prompt, sample.answer)


def begin(path: Path, count: int) -> None:
    with Run(path) as run:
        run.check(weights="w", topics=TOPICS, tokens=8)
        for number, prompt in enumerate(PROMPTS[:count]):
            if prompt.key not in run.done:
                run.add(header(), prompt, measured(number))


def test_a_measurement_goes_on_wherever_it_was_killed(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    begin(whole, len(PROMPTS))
    data, expected = whole.read_bytes(), runs.load(whole)
    assert len(expected.samples) == len(PROMPTS)
    assert (expected.samples[3].answer == measured(3).answer).all()
    lines = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    path = tmp_path / "killed"
    for cut in (0, 5, *lines, *(line + 9 for line in lines[:-1]), lines[-1] - 1):
        path.write_bytes(data[:cut])
        with Run(path) as run:
            kept = len(run.done)
        assert kept >= sum(line <= cut for line in lines) - 1
        begin(path, len(PROMPTS))
        assert path.read_bytes() == data


def test_two_runs_do_not_write_into_one_file(tmp_path: Path) -> None:
    with Run(tmp_path / "x"), pytest.raises(UsageError, match="another"), Run(tmp_path / "x"):
        pass
    with Run(tmp_path / "x"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change", [{"weights": "v"}, {"topics": ("law",)}, {"tokens": 9}]
)  # fmt: skip
def test_what_is_of_another_measurement_is_not_mixed_in(tmp_path: Path, change: Any) -> None:
    path = tmp_path / "run"
    begin(path, 2)
    wanted: dict[str, Any] = {"weights": "w", "topics": TOPICS, "tokens": 8, **change}
    with Run(path) as run, pytest.raises(UsageError, match="--restart"):
        run.check(**wanted)
    with Run(path, restart=True) as run:
        run.check(**wanted)
        assert not run.done


def test_counts_of_another_shape_are_refused(tmp_path: Path) -> None:
    begin(tmp_path / "run", 1)
    with Run(tmp_path / "run") as run, pytest.raises(UsageError, match="other experts"):
        found = measured(1)
        run.add(
            header(),
            PROMPTS[1],
            Measured((1, 2), COLS, PER_TOKEN, found.prompt[:2], found.answer[:2]),
        )


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


# Unpacked, far more than the counts of all experts.
BOMB = base64.b64encode(zlib.compress(bytes(1 << 24))).decode()
DAMAGE: dict[str, tuple[int, Callable[[dict[str, Any]], Any]]] = {
    "no header": (0, lambda line: {}),
    "another version": (0, lambda line: {**line, "atlas": 2}),
    "no layers": (0, lambda line: {**line, "layers": []}),
    "layers twice": (0, lambda line: {**line, "layers": [1, 1, 5]}),
    "absurd sizes": (0, lambda line: {**line, "cols": 1 << 40}),
    "a topic that cannot be printed": (0, lambda line: {**line, "topics": ["\n"]}),
    "an unknown topic": (1, lambda line: {**line, "topic": "none"}),
    "an unknown set": (1, lambda line: {**line, "set": "c"}),
    "no base64": (1, lambda line: {**line, "answer": "!"}),
    "not compressed": (1, lambda line: {**line, "answer": "aGVsbG8="}),
    "too much": (1, lambda line: {**line, "answer": BOMB}),
    "no object": (1, lambda line: [1]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_measurement_is_refused_by_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    begin(path, 2)
    number, change = DAMAGE[name]
    lines = lines_of(path)
    lines[number] = change(lines[number])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ModelError) as caught:
        runs.load(path)
    assert str(path) in str(caught.value)


# ---- topics --------------------------------------------------------------------------------------


def test_the_bundled_topics_are_balanced_and_take_turns() -> None:
    bundled = topics.load(topics.BUNDLED)
    assert len(bundled.names) >= 10
    prompts = bundled.prompts()
    assert len({prompt.key for prompt in prompts}) == len(prompts) >= 16 * len(bundled.names)
    first = bundled.prompts(1)
    assert len(first) == 2 * len(bundled.names)
    assert prompts[: len(first)] == first


def test_a_models_own_topics_come_before_the_bundled_ones(tmp_path: Path) -> None:
    assert topics.find(tmp_path) == topics.find(None) == topics.BUNDLED
    (tmp_path / topics.NAME).write_text('[x]\na = ["1"]\nb = ["2"]\n[y]\na = ["3"]\nb = ["4"]\n')
    assert topics.load(topics.find(tmp_path)).names == ("x", "y")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[x",
        '[x]\na = ["1"]\nb = ["2"]\n',
        '[x]\na = ["1"]\nb = ["2"]\n[y]\na = ["3"]\n',
        '[x]\na = ["1"]\nb = ["2"]\n[y]\na = ["3"]\nb = ["1"]\n',
        '[x]\na = ["1"]\nb = []\n[y]\na = ["3"]\nb = ["4"]\n',
        '[x]\na = ["1"]\nb = [7]\n[y]\na = ["3"]\nb = ["4"]\n',
        '[x]\na = ["1"]\nb = [" "]\n[y]\na = ["3"]\nb = ["4"]\n',
        '["x\\u001b"]\na = ["1"]\nb = ["2"]\n[y]\na = ["3"]\nb = ["4"]\n',
        "x = 1\ny = 2\n",
    ],
)  # fmt: skip
def test_wrong_topics_are_refused_with_their_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "topics.toml"
    path.write_text(text)
    with pytest.raises(ColibriError, match=r"topics\.toml"):
        topics.load(path)
