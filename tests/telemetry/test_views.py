"""Turns, rates, the named bottleneck, lines of the log and the machine's load."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from colibri.engine.protocol import Accepted, Done, Failed, JobEvent, Progress, Tokens, Usage
from colibri.engine.work import Found, Phases, Times, Work
from colibri.hardware import gpu
from colibri.hardware.monitor import Monitor
from colibri.scheduler import Generation, GenerationRequest
from colibri.scheduler.patience import Patience
from colibri.telemetry.bottleneck import judge
from colibri.telemetry.hub import Sample, rates
from colibri.telemetry.logring import LogRing
from colibri.telemetry.turns import TurnLog, breakdown, turn_json

IDLE = Work()


def work(phase: str = "decode", **ms: float) -> Work:
    times = Times(**{f"{name}_ms": value for name, value in ms.items()})
    return Work(**{phase: Phases(time=times)})


@pytest.mark.parametrize(
    ("recent", "code", "word"),
    [
        (work(disk=70, experts=20, attention=10), "decode_disk", "70%"),
        (work(disk=10, experts=60, other=30), "decode_experts", "experts"),
        (work(attention=60, other=30), "decode_attention", "attention"),
        (work(head=60, other=30), "decode_head", "output"),
        (work(other=60, head=30), "decode_other", "dense"),
        (work("prefill", disk=70, experts=30), "prefill_disk", "70%"),
        (work("prefill", disk=40, experts=30, attention=30), "prefill_compute", "60%"),
    ],
)
def test_the_bottleneck_is_what_takes_most_of_the_time(recent: Work, code: str, word: str) -> None:
    found = judge("ready", 1, recent, None)
    assert found["code"] == code
    assert word in found["text"]
    assert 0 < found["values"]["share"] <= 1
    after = judge("ready", 0, IDLE, recent)
    assert after["code"] == code
    assert after["text"].startswith("Last turn: ")


def test_without_work_nothing_is_named() -> None:
    assert judge("ready", 0, IDLE, None)["code"] == "idle"
    assert judge("ready", 1, IDLE, work(disk=100))["code"] == "starting"
    assert judge("loading", 1, IDLE, None)["code"] == "loading"
    assert judge("failed", 0, IDLE, work(disk=100))["code"] == "stopped"


def test_a_breakdown_sums_up() -> None:
    parts = breakdown(Times(disk_ms=1, experts_ms=2, attention_ms=3, head_ms=4, other_ms=5))
    assert parts.pop("total_ms") == sum(parts.values()) == 15


def test_rates_are_taken_over_the_samples() -> None:
    assert rates(deque()) == (0.0, 0.0, 0.0, None)
    first = Sample(at=1.0, prompt=10.0, generated=5, work=Work())
    later = Sample(
        at=3.0,
        prompt=30.0,
        generated=9,
        work=Work(decode=Phases(time=Times(disk_ms=30, head_ms=10)), bytes_read=1000),
    )
    assert rates(deque([first])) == (0.0, 0.0, 0.0, None)
    assert rates(deque([first, later])) == (2.0, 10.0, 500.0, 0.75)


class NoEngine:
    def cancel(self, job: str) -> None:
        raise AssertionError("nothing is cancelled")


def generation(job: str = "j", prompt: int = 40) -> Generation:
    request = GenerationRequest(
        id=job, prompt=[1] * prompt, max_tokens=50, temperature=0.5, top_p=1, seed=1
    )
    return Generation(request, NoEngine(), 12, Patience())  # type: ignore[arg-type]


def tell(log: TurnLog, made: Generation, *events: JobEvent) -> None:
    for event in events:
        made.take(event)
        log.observe(made, event)


def test_a_turn_is_kept_with_its_numbers_and_without_text() -> None:
    changed: list[int] = []
    log = TurnLog(lambda: changed.append(1))
    made = generation()
    part = Work(decode=Phases(time=Times(head_ms=3), found=Found(warm=2)), bytes_read=9)
    tell(log, made, Accepted(job="j", prompt=40, cached=10, slot=2))
    tell(log, made, Progress(job="j", done=25, total=40, fraction=0.5))
    assert log.totals() == (15.0, 0)
    tell(log, made, Tokens(job="j", parts=(), generated=1))
    usage = Usage(prompt=40, cached=10, completion=11)
    done = Done(
        job="j", finish_reason="stop", usage=usage, prefill_ms=100, decode_ms=500, work=part
    )
    tell(log, made, done)
    assert log.totals() == (30.0, 11)
    (turn,) = log.last()
    shown = turn_json(turn)
    assert (shown["outcome"], shown["slot"], shown["queue_wait_ms"]) == ("stop", 2, 12)
    assert (shown["prompt_tokens"], shown["cached_tokens"], shown["completion_tokens"]) == (
        40,
        10,
        11,
    )
    assert shown["decode_tokens_per_second"] == 20.0
    assert shown["prefill_tokens_per_second"] == 300.0
    assert shown["ttft_ms"] >= 12
    assert shown["decode"]["head_ms"] == 3
    assert shown["lookups"]["decode"]["warm"] == 2
    assert shown["bytes_read"] == 9
    assert len(changed) == 4
    assert log.averages() == (20.0, 300.0)


def test_a_turn_that_failed_is_kept_with_its_code() -> None:
    log = TurnLog()
    made = generation()
    tell(log, made, Accepted(job="j", prompt=40, cached=0))
    tell(log, made, Failed(job="j", code="engine_lost", message="gone"))
    (turn,) = log.last()
    assert (turn.outcome, turn.decode_tokens_per_second, turn.ttft_ms) == (
        "engine_lost",
        None,
        None,
    )
    assert log.averages() == (None, None)


def test_the_log_of_turns_has_an_end_and_the_latest_first() -> None:
    log = TurnLog()
    for number in range(300):
        tell(log, generation(f"j{number}"), Failed(job=f"j{number}", code="x", message="y"))
    assert [turn.id for turn in log.last(2)] == ["j299", "j298"]
    assert len(log.last()) == 200


def test_lines_of_the_log_are_kept_numbered_and_filtered() -> None:
    ring = LogRing()
    logger = logging.getLogger("colibri.test.ring")
    logger.addHandler(ring)
    logger.setLevel("DEBUG")
    try:
        logger.info("one %d", 1)
        logger.error("two")
        try:
            raise ValueError("three")
        except ValueError:
            logger.exception("failed")
    finally:
        logger.removeHandler(ring)
    entries, following = ring.after(0)
    assert [entry["message"] for entry in entries] == ["one 1", "two", "failed: ValueError: three"]
    assert [entry["seq"] for entry in entries] == [1, 2, 3]
    assert following == 3
    assert set(entries[0]) == {"seq", "at_ms", "level", "logger", "message", "request_id"}
    assert [e["message"] for e in ring.after(0, logging.ERROR, 1)[0]] == [
        "failed: ValueError: three"
    ]
    assert ring.after(3) == ([], 3)


def wait_for(check: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while not (found := check()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


def monitor(**options: Any) -> Monitor:
    values: dict[str, Any] = {
        "probe_gpus": gpu.Gpus,
        "load": lambda: 50.0,
        "figures": lambda: (100, 40),
        "every": 0.01,
        **options,
    }
    return Monitor(lambda: 7, **values)


def test_the_machine_is_looked_at_in_the_background() -> None:
    made = monitor()
    first = made.look()
    assert first["cpu"]["load"] is None
    assert first["gpus"] == []
    seen = wait_for(lambda: made.look()["cpu"]["load"] and made.look())
    made.stop()
    assert seen["cpu"]["load"] == 0.5
    assert seen["cpu"]["threads"] >= 1
    assert seen["ram"] == {"total_bytes": 100, "available_bytes": 40, "ours_bytes": 7}


@pytest.mark.parametrize("load", [math.nan, math.inf, -5.0, 900.0])
def test_nonsense_of_a_probe_is_no_number(load: float) -> None:
    made = monitor(load=lambda: load)
    seen = wait_for(lambda: made.look()["ram"]["total_bytes"] and made.look())
    made.stop()
    value = seen["cpu"]["load"]
    assert value is None or 0 <= value <= 1


def test_a_driver_that_hangs_delays_nobody() -> None:
    free = threading.Event()

    def hangs() -> gpu.Gpus:
        free.wait(60)
        return gpu.Gpus()

    made = monitor(probe_gpus=hangs)
    wait_for(lambda: made.look()["cpu"]["load"])
    assert made.look()["note"] == "GPUs are being looked for."
    free.set()
    made.stop()


def test_a_gpu_stays_on_the_list_while_its_driver_is_silent() -> None:
    one = gpu.Gpu(
        index=0, name="G", driver="1", memory_total=8, memory_used=None, memory_free=None, load=0.25
    )
    answers = [gpu.Gpus(gpus=(one,))]

    def probe() -> gpu.Gpus:
        return answers.pop() if answers else gpu.Gpus(problem="it does not answer")

    made = monitor(probe_gpus=probe)
    seen = wait_for(lambda: made.look()["gpu_problem"] and made.look())
    made.stop()
    assert seen["gpus"][0]["name"] == "G"
    assert (seen["gpus"][0]["load"], seen["gpus"][0]["experts"]) == (0.25, 0)
    assert seen["gpus"][0]["memory_used_bytes"] is None


def test_looking_ends_when_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colibri.hardware.monitor._LINGER_SECONDS", 0.02)
    made = monitor()
    made.look()
    wait_for(lambda: not made._threads)
    made.look()
    wait_for(lambda: made.look()["cpu"]["load"])
    made.stop()
