"""Contexts longer than the model was made for: what it takes to open one, and the words about it.

For: whoever opens, plans or shows a model. Not for: what fits in memory (`models.budget`). Thread
rule: pure functions.
"""

from __future__ import annotations

import msgspec

from colibri.engine.table import Geometry


def stretched(geometry: Geometry, context: int) -> Geometry:
    """The geometry with room for a context that was asked for, also one that is longer than the
    model was made for: positions simply count on. `beyond_training` has the words to warn with.
    """
    if context <= geometry.max_position:
        return geometry
    return msgspec.structs.replace(geometry, max_position=context)


def beyond_training(context: int, trained: int) -> str | None:
    """The warning about a context longer than the model was made for; None when it is not."""
    if not 0 < trained < context:
        return None
    return (
        f"the context of {context} tokens is longer than the {trained} that the model was made "
        f"for: what it writes beyond {trained} tokens may make no sense."
    )
