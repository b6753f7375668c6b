"""Model families: which architectures this program knows, and what each declares.

For: model loading, the catalogue, the HTTP side (capabilities, default model id). Adding a family
is one descriptor here and one C file. Not for: reading files. Thread rule: frozen values and pure
functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colibri.errors import ModelError
from colibri.families.base import Capabilities, Family, TensorSpec
from colibri.families.glm_moe_dsa import GLM_MOE_DSA
from colibri.families.llama import LLAMA
from colibri.families.values import show

FAMILIES: tuple[Family, ...] = (LLAMA, GLM_MOE_DSA)

__all__ = ["FAMILIES", "Capabilities", "Family", "TensorSpec", "detect"]


def detect(config: Mapping[str, Any], where: str) -> Family:
    """The family of a config.json; ModelError naming what was found and what is known."""
    for family in FAMILIES:
        if family.matches(config):
            return family
    found = config.get("model_type") or config.get("architectures")
    known = ", ".join(sorted(name for family in FAMILIES for name in family.model_types))
    raise ModelError(f'"model_type" is {show(found)}; this program runs {known}.', where=where)
