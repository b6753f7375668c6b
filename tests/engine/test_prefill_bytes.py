"""A long prompt reads each expert that it touches once per chunk, whatever happens in between.

By the engine's counters, so the figures are the same on every machine.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from colibri.engine.ffi import Engine, EngineCancelled, Session
from colibri.engine.table import EngineOptions, Tensor
from colibri.models import synthetic
from colibri.models.model import Model, open_model
from colibri.models.synthetic import Shape

SHAPE = Shape(layers=5, hidden=256, experts=64, top_k=4, expert_ffn=256, mtp=True)
PROMPT = 4096


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("models") / "streamed"
    synthetic.make(folder, SHAPE)
    return open_model(folder)


def is_expert(tensor: Tensor) -> bool:
    return ".mlp.experts." in tensor.name


def expert_bytes(model: Model, mtp: bool) -> int:
    """Of all experts of the layers that run."""
    last = f"model.layers.{model.geometry.n_layers}."
    return sum(
        t.bytes for t in model.tensors if is_expert(t) and (mtp or not t.name.startswith(last))
    )


def slots_for(model: Model, share: float) -> int:
    """Slots of each size that hold this share of the trunk's experts."""
    return int(share * model.geometry.n_experts * (model.geometry.n_layers - 1))


def prompt(model: Model, n: int) -> list[int]:
    ids = np.random.default_rng(5).integers(300, model.geometry.vocab, n)
    return [int(i) for i in ids]


def open_engine(model: Model, **options: int) -> Engine:
    return Engine(
        model.paths,
        model.geometry,
        model.tensors,
        EngineOptions(**{"context": PROMPT + 64, "threads": 2, "sessions": 2, **options}),
    )


@pytest.mark.parametrize("drafts", [0, 3])
def test_4096_tokens_at_a_quarter_of_the_memory_read_each_expert_once(
    model: Model, drafts: int
) -> None:
    """At most 1.1 times the bytes of the experts touched, the MTP layer's included."""
    options = {"expert_slots": slots_for(model, 0.25), "prefill_chunk": PROMPT, "drafts": drafts}
    with open_engine(model, **options) as engine, engine.session() as session:
        session.prefill(prompt(model, PROMPT))
        after = engine.snapshot()
    every = expert_bytes(model, mtp=drafts > 0)
    # All are touched: 4096 tokens ask for 256 experts' worth each.
    assert after.expert_lookups == 64 * (SHAPE.layers - 1 + (drafts > 0))
    assert every <= after.expert_bytes_read <= 1.1 * every
    # And nearly all of it while something else was computed, none of it in vain.
    assert after.guessed_bytes > 0.2 * every
    assert after.useful_bytes == after.guessed_bytes
    assert after.wasted_bytes == 0


def test_a_chunk_reads_ahead_across_its_border(model: Model) -> None:
    """Between two chunks the disk goes on: without it each first layer would come unguessed."""
    options = {"expert_slots": slots_for(model, 0.5), "prefill_chunk": 1024}
    with open_engine(model, **options) as engine, engine.session() as session:
        ids = prompt(model, 3072)
        session.prefill(ids[:1024])
        alone = engine.snapshot()
        session.truncate(0)
        session.prefill(ids)
        after = engine.snapshot()
    per_chunk = expert_bytes(model, mtp=False)
    assert after.expert_bytes_read - alone.expert_bytes_read <= 1.1 * 3 * per_chunk
    assert after.guessed_bytes - alone.guessed_bytes > 0
    assert after.wasted_bytes - alone.wasted_bytes <= 0.05 * per_chunk


def cancel_after(session: Session, slices: int) -> None:
    """Runs so many slices, then cancels inside the chunk."""
    for _ in range(slices):
        session.prefill_step(-1)
    session.cancel()
    with pytest.raises(EngineCancelled):
        session.prefill_step()


def test_a_prompt_cancelled_inside_its_chunk_reads_nothing_again(model: Model) -> None:
    """Also with another session decoding between the slices, which has reads of its own."""
    ids = prompt(model, 1024)
    options = {"expert_slots": slots_for(model, 0.25), "prefill_chunk": 1024, "drafts": 0}
    expected = None
    for slices in (0, 3, 70, 140, 200, 330):
        with open_engine(model, **options) as engine, engine.session() as session:
            session.prefill_start(ids)
            if slices:
                cancel_after(session, slices)
                assert len(session) == 0
                assert session.parked == 1024
                session.truncate(0)
                session.prefill_start(ids)
                assert session.prefill_step(-1).resumed > 0
            while not session.prefill_step(50).finished:
                pass
            logits, read = session.logits(), engine.snapshot().expert_bytes_read
        expected = logits if expected is None else expected
        assert np.array_equal(logits, expected), slices
        assert read <= 1.1 * expert_bytes(model, mtp=False), slices


def test_steps_of_another_session_leave_what_was_read_ahead_alone(model: Model) -> None:
    """Each step's own guesses would else push out half of the next layer, slice after slice."""
    ids = prompt(model, 1024)
    options = {"expert_slots": slots_for(model, 0.25), "prefill_chunk": 1024}
    with (
        open_engine(model, **options) as engine,
        engine.session() as mate,
        engine.session() as session,
    ):
        mate.prefill(ids[:20])
        before = engine.snapshot()
        session.prefill_start(ids)
        slices = 0
        while not session.prefill_step(-1).finished:
            slices += 1
            if slices % 8 == 0:
                engine.decode([mate], [ids[slices % len(ids)]])
        after = engine.snapshot()
    assert slices > 100
    wasted = after.wasted_bytes - before.wasted_bytes
    assert wasted <= 0.1 * (after.expert_bytes_read - before.expert_bytes_read)


def test_few_tokens_share_their_experts(model: Model) -> None:
    """A short prompt asks for each expert once, where single steps ask again and again."""
    ids = prompt(model, 16)
    lookups = {}
    for together in (True, False):
        with (
            open_engine(model, expert_slots=slots_for(model, 0.25)) as engine,
            engine.session() as session,
        ):
            session.prefill(prompt(model, 40))
            before = engine.snapshot()
            if together:
                session.prefill(ids)
            else:
                for token in ids:
                    engine.decode([session], [token])
            after = engine.snapshot()
        lookups[together] = after.expert_lookups - before.expert_lookups
        # Guesses beside them stay few.
        assert after.wasted_bytes <= 0.35 * after.expert_bytes_read
    assert lookups[True] < 0.8 * lookups[False]


def test_an_expert_that_nearly_every_token_wants_is_computed_in_pieces_to_the_same_bits(
    tmp_path: Path,
) -> None:
    synthetic.make(
        tmp_path / "skewed",
        Shape(layers=3, hidden=128, experts=16, top_k=2, expert_ffn=64, skew=1.5),
    )
    skewed = open_model(tmp_path / "skewed")
    ids, logits = prompt(skewed, 2500), []
    for chunk in (256, 2500):
        with (
            open_engine(skewed, expert_slots=4, prefill_chunk=chunk) as engine,
            engine.session() as session,
        ):
            session.prefill(ids)
            logits.append(session.logits())
    assert np.array_equal(*logits)
