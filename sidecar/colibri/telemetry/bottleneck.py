"""One sentence that names what limits the speed now.

For: the runtime panel and scripts. Not for: advice in depth; `coli plan` and `coli tune` measure.
The code and the numbers are for translations, the text is English. Thread rule: pure functions.
"""

from __future__ import annotations

from typing import Any, Final

from colibri.engine.work import Times, Work

_NAMES: Final = {
    "disk": "waiting for the disk",
    "experts": "experts' matrices",
    "attention": "attention",
    "head": "the output layer",
    "other": "dense layers and all the rest",
}
_ADVICE: Final = {
    "disk": "more memory for experts or a faster drive helps most",
    "experts": "more cores or faster memory helps most",
    "attention": "a shorter context helps most",
    "head": "a smaller vocabulary is the model's choice",
    "other": "more cores help most",
}
# Less than this in a phase is too little to judge by.
_LEAST_MS: Final = 5.0
_DISK_BOUND: Final = 0.5


def shares(times: Times) -> dict[str, float]:
    """Each kind's share of a phase, 0..1."""
    total = times.total_ms or 1.0
    return {kind: getattr(times, f"{kind}_ms") / total for kind in _NAMES}


def _said(code: str, text: str, **values: float) -> dict[str, Any]:
    return {"code": code, "values": values, "text": text}


def judge(state: str, active: int, recent: Work, last: Work | None) -> dict[str, Any]:
    """What limits now: `recent` is what the engine did lately, `last` the turn that ended last."""
    if state in ("loading", "restarting"):
        return _said("loading", "The model is being loaded.")
    if state == "unloaded":
        return _said("unloaded", "No model is loaded.")
    if state != "ready":
        return _said("stopped", "The engine does not run.")
    work = recent if active else last
    busy = work is not None and work.prefill.time.total_ms + work.decode.time.total_ms >= _LEAST_MS
    if work is None or not busy:
        text = "Work has just begun." if active else "Nothing has run yet."
        return _said("starting" if active else "idle", text)
    decode = work.decode.time.total_ms >= work.prefill.time.total_ms
    times = work.decode.time if decode else work.prefill.time
    parts = shares(times)
    subject = "Generating" if decode else "Reading the prompt"
    prefix = "" if active else "Last turn: "
    kind = max(parts, key=lambda name: parts[name])
    if not decode and parts["disk"] < _DISK_BOUND:
        kind = max((name for name in parts if name != "disk"), key=lambda name: parts[name])
        share = 1 - parts["disk"]
        text = f"{subject} computes {share:.0%} of the time, most of it {_NAMES[kind]}."
        return _said("prefill_compute", prefix + text, share=round(share, 3))
    share = parts[kind]
    code = f"decode_{kind}" if decode else "prefill_disk"
    text = f"{subject} spends {share:.0%} of its time on {_NAMES[kind]}: {_ADVICE[kind]}."
    return _said(code, prefix + text, share=round(share, 3))
