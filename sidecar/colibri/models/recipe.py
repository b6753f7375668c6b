"""Which format each tensor gets when a model is converted.

For: `convert`. A recipe is a name a person can choose (`--weights`). Not for: the arithmetic
(`quantize`) or what is in a source. Thread rule: pure functions.

`gs64` is what published containers of GLM-5.2 use, because it measured best for its size: int4 with
a scale per 64 columns for routed experts, attention, shared experts and dense layers; int8 for
embeddings, head and the whole MTP layer, whose drafts are nearly all rejected when it is int4; what
decides between experts or positions stays exact or int8. `gs64-dense8` spends memory instead:
everything that is resident becomes int8, only routed experts are int4.
"""

from __future__ import annotations

from typing import Final

from colibri.engine.table import Format
from colibri.families.base import TensorSpec

AUTO: Final = "auto"
AS_IS: Final = "as-is"
GS64: Final = "gs64"
GS64_DENSE8: Final = "gs64-dense8"
INT8: Final = "int8"
BF16: Final = "bf16"
NAMES: Final = (AUTO, AS_IS, GS64, GS64_DENSE8, INT8, BF16)

_GROUP: Final = 64
_EXACT_IN_F32: Final = (Format.F32, Format.BF16, Format.F16)
# Matrices whose small errors flip choices: the expert router, and the indexer's head weights.
_ROUTER: Final = "mlp.gate.weight"
_NEVER_REQUANTIZED: Final = (_ROUTER, "indexer.weights_proj.weight")


def resolve(name: str, kind: str, family: str) -> str:
    """The recipe that `auto` stands for: `gs64` for original checkpoints of GLM, else `as-is`."""
    if name != AUTO:
        return name
    return GS64 if kind == "original" and family == "glm_moe_dsa" else AS_IS


def target(recipe: str, spec: TensorSpec, fmt: Format, group: int) -> tuple[Format, int]:
    """(format, columns per scale) of a tensor that is stored as (`fmt`, `group`).

    Vectors and the router become F32, which 16-bit floats convert to exactly.
    """
    if recipe == AS_IS:
        return fmt, group
    if spec.is_vector or spec.name.endswith(_ROUTER):
        return (Format.F32, 0) if fmt in _EXACT_IN_F32 else (fmt, group)
    if spec.name.endswith(_NEVER_REQUANTIZED):
        return fmt, group
    if recipe == BF16:
        return Format.BF16, 0
    if recipe == INT8 or _is_int8(recipe, spec):
        return Format.I8_ROW, 0
    return Format.I4_GROUP, _GROUP


def _is_int8(recipe: str, spec: TensorSpec) -> bool:
    if spec.layer is None or spec.part in ("mtp", "indexer"):
        return True
    return recipe == GS64_DENSE8 and spec.expert < 0
