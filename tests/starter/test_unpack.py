"""The shipped weights as numbers again, from which a tune goes on."""

from __future__ import annotations

import numpy as np

from colibri.models.container import open_folder
from starter.build import SHIPPED
from starter.unpack import tensors

GROUP = 64


def test_every_weight_comes_back_as_it_was_rounded() -> None:
    named = tensors(SHIPPED)
    entries = open_folder(SHIPPED).tensors
    assert named.keys() == {entry.name for entry in entries}
    assert all(named[e.name].shape == (e.rows, e.cols) for e in entries)
    assert all(np.isfinite(values).all() and values.any() for values in named.values())
    experts = [name for name in named if ".1.mlp.experts." in name]
    assert len(experts) == 32 * 3
    for name in experts:
        groups = named[name].reshape(-1, GROUP)
        # int4: sixteen steps of one width, the largest of them seven.
        steps = groups / (np.abs(groups).max(1, keepdims=True) / 7)
        assert np.abs(steps - steps.round()).max() < 1e-4
    # int8 has more of them.
    rows = named["model.embed_tokens.weight"]
    assert np.unique(rows[100].round(7)).size > 16
