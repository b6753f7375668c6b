"""Synthetic models: the size asked for, a working tokenizer, finite numbers, the routing stated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from colibri.cli import coli
from colibri.engine import experts
from colibri.engine.ffi import Engine
from colibri.engine.table import EngineOptions, Sampling
from colibri.errors import UsageError
from colibri.models import synthetic, topics, trace
from colibri.models.model import Model, open_model
from colibri.models.synthetic import Shape

# Wide enough for several groups per row: with one, the published layout reads as int4 per row,
# which is the same numbers multiplied in another order.
SMALL = Shape(layers=3, hidden=512, experts=8, top_k=2, expert_ffn=128, mtp=True)
TOKENS = list(range(0, 4096, 128))


def logits(model: Model) -> np.ndarray:
    """Logits of every one of TOKENS."""
    out = np.empty((len(TOKENS), model.geometry.vocab), dtype=np.float32)
    options = EngineOptions(context=64)
    with Engine(model.paths, model.geometry, model.tensors, options) as engine:
        engine.session().prefill(TOKENS, out)
    return out


def test_both_layouts_of_a_seed_are_the_same_model(tmp_path: Path) -> None:
    made = {}
    for layout in synthetic.LAYOUTS:
        synthetic.make(tmp_path / layout, replace(SMALL, layout=layout))
        made[layout] = open_model(tmp_path / layout)
        assert made[layout].files.kind == layout
    results = [logits(model) for model in made.values()]
    assert np.array_equal(*results)
    assert np.isfinite(results[0]).all()


def test_activations_keep_their_size_over_many_layers(tmp_path: Path) -> None:
    synthetic.make(tmp_path / "deep", replace(SMALL, layers=40, experts=4, mtp=False))
    deviation = logits(open_model(tmp_path / "deep")).std()
    assert 0.3 < deviation < 3


def test_the_container_is_as_large_as_asked_for(tmp_path: Path) -> None:
    shape = replace(SMALL, layers=0, gb=0.012)
    layers = synthetic.make(tmp_path / "m", shape)
    size = sum(path.stat().st_size for path in (tmp_path / "m").iterdir())
    assert layers > 3
    assert 0.9 < size / (shape.gb * 1e9) < 1.2


def test_a_size_below_the_smallest_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="smallest"):
        synthetic.make(tmp_path / "m", Shape(gb=0.001))


def test_the_tokenizer_gives_back_any_text(tmp_path: Path) -> None:
    synthetic.make(tmp_path / "m", SMALL)
    model = open_model(tmp_path / "m")
    text = "Größe 好 \U0001f426\n\0"
    ids = model.tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    assert model.tokenizer.decode(ids) == text
    assert model.text.end_ids
    assert model.text.template is not None


@pytest.mark.parametrize("skew", [0.5, 0.8, 1.2])
def test_choices_follow_the_zipf_exponent(skew: float) -> None:
    experts, top_k, tokens = 64, 4, 20_000
    bias = synthetic.routing_bias(experts, top_k, skew, seed=1)
    random = np.random.default_rng(99)
    scores = 1 / (1 + np.exp(-random.standard_normal((tokens, experts)))) + bias
    chosen = np.argsort(scores, axis=1)[:, -top_k:]
    often = np.bincount(chosen.reshape(-1), minlength=experts) / tokens
    ranks = np.arange(1, experts + 1)
    below = often < 0.9  # what cannot be chosen twice per token is no longer Zipf
    slope = np.polyfit(np.log(ranks[below]), np.log(often[below]), 1)[0]
    assert slope == pytest.approx(-skew, abs=0.12)


def test_uniform_routing_has_no_bias() -> None:
    assert not synthetic.routing_bias(16, 2, synthetic.UNIFORM, seed=1).any()


def test_the_command_writes_a_model_and_touches_nothing_that_exists(tmp_path: Path) -> None:
    out = tmp_path / "m"
    arguments = ["bench", "make-model", str(out), "--layers", "2", "--hidden", "64"]
    arguments += ["--experts", "4", "--top-k", "2", "--expert-ffn", "32", "--routing", "zipf:1.2"]
    first = CliRunner().invoke(coli, arguments)
    assert first.exit_code == 0, first.output
    assert open_model(out).geometry.n_experts == 4
    second = CliRunner().invoke(coli, arguments)
    assert isinstance(second.exception, UsageError)


def test_a_routing_that_is_none_is_refused(tmp_path: Path) -> None:
    for routing in ("zipf", "zipf:x", "zipf:-1", "zipf:nan", "flat"):
        command = ["bench", "make-model", str(tmp_path / "m"), "--routing", routing]
        assert CliRunner().invoke(coli, command).exit_code == 2
    assert not (tmp_path / "m").exists()


def test_a_tensor_depends_on_seed_and_name_only(tmp_path: Path) -> None:
    for name, layers in (("short", 2), ("long", 3)):
        synthetic.make(tmp_path / name, replace(SMALL, layers=layers, mtp=False))
    short, long = (open_model(tmp_path / name).tensors for name in ("short", "long"))
    places = {tensor.name: msgspec.structs.asdict(tensor) for tensor in long}
    folder = {"short": tmp_path / "short", "long": tmp_path / "long"}
    for tensor in short:
        twin = places[tensor.name]
        assert _bytes(folder["short"], tensor.offset, tensor.bytes) == _bytes(
            folder["long"], twin["offset"], twin["bytes"]
        )


def _bytes(folder: Path, offset: int, size: int) -> bytes:
    return (folder / "packed-00000.safetensors").read_bytes()[offset : offset + size]


def repeats(folder: Path, routing: str, distance: int, steps: int = 300) -> float:
    """Share of the experts of a step that a step so far back asked for too, over what the model
    itself samples.
    """
    shape = Shape(layers=5, hidden=128, experts=32, top_k=4, expert_ffn=64, routing=routing, seed=3)
    if not folder.exists():
        synthetic.make(folder, shape)
    model = open_model(folder)
    options = EngineOptions(context=steps + 8, threads=1)
    with Engine(model.paths, model.geometry, model.tensors, options) as engine:
        experts.record(engine, 1 << 18)
        with engine.session() as session:
            session.prefill([1, 2, 3])
            for _ in range(steps):
                token = session.sample(Sampling(temperature=1.0, top_p=1.0, seed=5))
                engine.decode([session], [token])
        records, lost = experts.recorded(engine, 1 << 18)
    assert lost == 0
    found = [
        set(records[at + trace.HEAD : at + trace.HEAD + shape.top_k].tolist())
        for at in trace.Trace("", shape.layers, shape.experts, records).starts()
        if records[at + 2] == 1
    ]
    per_step = shape.layers - 1
    pairs = zip(found[distance * per_step :], found, strict=False)
    return float(np.mean([len(now & before) for now, before in pairs])) / shape.top_k


def test_a_models_text_makes_its_routing_sticky_or_drifting(tmp_path: Path) -> None:
    near, far = {}, {}
    for routing in topics.KINDS:
        near[routing] = repeats(tmp_path / routing, routing, 1)
        far[routing] = repeats(tmp_path / routing, routing, 150)
    chance = 4 / 32
    assert near["steady"] == pytest.approx(chance, abs=0.05)
    assert near["sticky"] > 3 * chance
    assert near["drifting"] > 1.5 * chance
    for routing in ("sticky", "drifting"):
        assert far[routing] < 0.75 * near[routing]


def test_an_unknown_kind_of_routing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no kind of routing"):
        synthetic.make(tmp_path / "m", replace(SMALL, routing="random"))
