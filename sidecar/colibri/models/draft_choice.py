"""Whether an engine is opened with drafts, and why not if it is not: pure choices.

For: `models.backend`, which opens it. Not for: whether drafting pays while it runs
(`engine.draft_policy`). Threads: pure functions.
"""

from __future__ import annotations

from typing import Final

from colibri.engine.drafting import MOST_DRAFTS

AUTO: Final = "auto"
NO_MTP_LAYER: Final = "no MTP layer"
NO_MEMORY: Final = "no memory for the MTP layer"


def drafts_wanted(setting: str, mtp_layers: int) -> tuple[int, str]:
    """Most drafts per step for a value of `--drafts`; 0 comes with its reason."""
    if setting == "0":
        return 0, "--drafts 0"
    if mtp_layers == 0:
        return 0, NO_MTP_LAYER
    return (MOST_DRAFTS if setting == AUTO else int(setting)), ""


def costs_residence(budget: int, plain: int, with_drafts: int) -> bool:
    """Whether the MTP layer would push experts out of memory that all fit without it: reading them
    from disk costs far more than drafts can bring. Sizes in bytes, budget 0 = no limit.
    """
    return budget > 0 and plain <= budget < with_drafts
