"""How one memory budget is shared: the program itself, the engine, the context.

For: opening a model (`models.backend`) and `coli plan`, which must agree. The engine's own
arithmetic (`ffi_plan`) says what a set of options takes; here is decided which options. Not for:
how much memory there is (`hardware.memory`). Thread rule: pure functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from colibri.engine.ffi_plan import Plan
from colibri.engine.table import EngineOptions, Geometry
from colibri.models.draft_choice import AUTO, NO_MEMORY, costs_residence, drafts_wanted

# No agent works with less; a machine that cannot give this much cannot serve the model.
LEAST_CONTEXT: Final = 4096
# Share of what is left beside the weights that unasked-for contexts may take.
_KV_SHARE: Final = 0.5
# The same of the whole budget when experts stream from disk: what no conversation fills is lost to
# their cache.
_STREAMING_KV_SHARE: Final = 0.08
# Server and engine process grow while they work: threads, requests, text. Measured.
GROWTH_BYTES: Final = 12 << 20
# While jobs decode without a pause next to nothing is written, so what waits for the disk fills up.
_STORE_QUEUE_BYTES: Final = 16 << 20
# Tokens of a prompt that the engine computes together at most, unless asked for more.
_LARGEST_CHUNK: Final = 4096
# Measured 9.6 times the tokenizer's file with 49,000 tokens, 10.7 times with 150,000.
_GRAMMAR_SHARE: Final = 12

PlanFor = Callable[[int], Plan]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What to open a model with, what that holds, and why there are no drafts if there are none."""

    options: EngineOptions
    plan: Plan
    reason: str = ""


def program_bytes(engine_process: int, server_process: int | None) -> int:
    """What the Python side holds: the engine's process before the engine is opened, and the
    server's, which loads the same tokenizer beside it and may not be done yet (None = no server).
    """
    if server_process is None:
        return engine_process + GROWTH_BYTES // 2
    return engine_process + max(engine_process, server_process) + GROWTH_BYTES


def grammar_bytes(tokenizer_file: int) -> int:
    """What a vocabulary prepared for grammars takes, from the size of its tokenizer.json."""
    return _GRAMMAR_SHARE * tokenizer_file


def store_queue_bytes(gigabytes: float | None, geometry: Geometry, prefill_chunk: int) -> int:
    """What blocks of KV may take on their way to the prefix store, and with routed experts, which
    may come from disk, the rows of a chunk of `prefill_chunk` tokens (0 = the engine's choice);
    none if it is off (0 GB).
    """
    rows = min(prefill_chunk or _LARGEST_CHUNK, geometry.max_position) * geometry.hidden * 4
    queue = _STORE_QUEUE_BYTES + (rows if geometry.n_experts else 0)
    return 0 if gigabytes == 0 else queue


def choose_context(wanted: int, longest: int, plan_for: PlanFor) -> int:
    """Tokens of context: the wanted number, or what fits; `longest` is the model's own limit.

    A model that can be resident stays resident. Nothing is refused here: opening does that, with
    numbers.
    """
    if wanted:
        return wanted
    least = min(LEAST_CONTEXT, longest)
    plan = plan_for(least)
    if plan.budget == 0:
        return longest
    if not plan.fits:
        return least
    left = plan.budget - plan.total_bytes
    room = plan.budget * _STREAMING_KV_SHARE if plan.streaming else left * _KV_SHARE
    per_token = plan.sessions_bytes / plan.context
    more = room - (plan.sessions_bytes if plan.streaming else 0)
    context = min(longest, least + max(0, int(more / max(per_token, 1))))
    while context > least:
        chosen = plan_for(context)
        if chosen.fits and chosen.streaming == plan.streaming:
            return context
        context = max(context * 3 // 4, least)
    return context


def choose(
    geometry: Geometry,
    plan: Callable[[EngineOptions], Plan],
    base: EngineOptions,
    *,
    context: int,
    drafts: str,
) -> Choice:
    """The options to open with: `context` 0 = what fits, `drafts` as `--drafts`. Drafts that nobody
    asked for never push experts out of memory and never keep a model from opening.

    `geometry` has room for `context` (`stretched`).
    """

    def with_context(options: EngineOptions) -> Choice:
        def plan_for(tokens: int) -> Plan:
            return plan(msgspec.structs.replace(options, context=tokens))

        tokens = choose_context(context, geometry.max_position, plan_for)
        chosen = msgspec.structs.replace(options, context=tokens)
        return Choice(options=chosen, plan=plan(chosen))

    plain = msgspec.structs.replace(base, drafts=0)
    most, reason = drafts_wanted(drafts, geometry.n_mtp_layers)
    if most == 0:
        return msgspec.structs.replace(with_context(plain), reason=reason)
    drafting = msgspec.structs.replace(base, drafts=most)
    if drafts == AUTO:
        tokens = context or min(LEAST_CONTEXT, geometry.max_position)
        without, beside = (
            plan(msgspec.structs.replace(options, context=tokens)) for options in (plain, drafting)
        )
        budget = base.memory_budget
        if costs_residence(budget, without.resident_budget, beside.resident_budget):
            reason = "the experts would not fit beside the MTP layer"
        elif without.fits and not beside.fits:
            reason = NO_MEMORY
        if reason:
            return msgspec.structs.replace(with_context(plain), reason=reason)
    return with_context(drafting)


def idle_slot_bytes(geometry: Geometry, slots: int) -> int:
    """What so many slots beyond those that run take besides KV: logits and history."""
    return max(slots, 0) * 4 * (geometry.vocab + geometry.max_position)


def ways_out(plan: Plan) -> str:
    """What to choose when a plan does not fit, in flags."""
    ways = [f"--ram {rounded_up(plan.least_budget)}"]
    if plan.largest_context:
        ways.append(f"--ctx {plan.largest_context}")
    if plan.most_sessions:
        ways.append(f"--parallel {plan.most_sessions}")
    ways.append("a smaller model")
    return f"Choose {', '.join(ways[:-1])} or {ways[-1]}"


def remedy(plan: Plan) -> str:
    """The hint of a refusal to open."""
    return (
        f"{ways_out(plan)}; `coli plan` shows where memory goes, `coli serve --force` opens it "
        "all the same."
    )


def rounded_up(size: int) -> str:
    """GB, rounded up so that the setting suffices."""
    return f"{-(-size // 10**7) / 100:.2f}"
