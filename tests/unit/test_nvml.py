"""GPUs through the driver's library: what it does not tell is None, what it does not answer costs
nobody anything.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from colibri.hardware import nvml
from colibri.hardware.gpu import Gpu, Gpus


class NVMLError(Exception):
    pass


def library(**replaced: Any) -> Any:
    """The library of a machine with one GPU."""
    plain: dict[str, Any] = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.95",
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda _handle: b"NVIDIA H200",
        "nvmlDeviceGetMemoryInfo": lambda _handle: SimpleNamespace(total=100, used=40, free=60),
        "nvmlDeviceGetUtilizationRates": lambda _handle: SimpleNamespace(gpu=25),
    }
    return SimpleNamespace(**{**plain, **replaced})


def refuses(*_: object) -> Any:
    raise NVMLError("Not Supported")


def other() -> Gpus:
    return Gpus(problem="asked otherwise")


def test_a_gpu_is_told_in_bytes_and_shares() -> None:
    (found,) = nvml.ask(library())
    assert (found.name, found.driver, found.load) == ("NVIDIA H200", "580.95", 0.25)
    assert (found.memory_total, found.memory_used, found.memory_free) == (100, 40, 60)


def test_what_a_gpu_does_not_tell_is_none() -> None:
    silent = library(nvmlDeviceGetMemoryInfo=refuses, nvmlDeviceGetUtilizationRates=refuses)
    (found,) = nvml.ask(silent)
    assert found.memory_total is found.memory_used is found.memory_free is found.load is None
    odd = library(
        nvmlDeviceGetMemoryInfo=lambda _h: SimpleNamespace(total=0, used=float("nan"), free=-1)
    )
    (found,) = nvml.ask(odd)
    assert found.memory_total is found.memory_used is found.memory_free is None


def test_a_gpu_that_is_lost_is_left_out() -> None:
    assert nvml.ask(library(nvmlDeviceGetHandleByIndex=refuses)) == []


@pytest.mark.parametrize(
    "broken", [lambda: nvml.ask(library(nvmlInit=refuses)), lambda: [], refuses]
)
def test_without_the_library_the_other_way_is_taken(broken: Any) -> None:
    assert nvml.Probe(broken, other)() == other()


def test_a_driver_that_hangs_is_asked_once_until_it_answers() -> None:
    gate, calls = threading.Event(), []

    def hangs() -> list[Gpu]:
        calls.append(1)
        gate.wait(20)
        return nvml.ask(library())

    probe = nvml.Probe(hangs, other, seconds=0.05)
    assert [probe().problem for _ in range(3)] == [nvml.SILENT] * 3
    assert len(calls) == 1
    gate.set()
    probe._asking.join(20)  # type: ignore[union-attr]
    assert probe().gpus[0].name == "NVIDIA H200"
