"""NVIDIA GPUs as the driver's own library tells them, asked so that it can neither hang nor crash
us.

For: the hardware monitor, which asks every few seconds: the library costs a few milliseconds where
nvidia-smi starts a program. Where there is no such library, or it refuses, the other way is taken
(`gpu.probe`). Not for: computing. What a GPU does not tell (a card that shares the system's memory,
a slice of one) is None. Threads: one caller at a time; a call that never returns keeps one sleeping
daemon thread, and until it returns no further one is made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from colibri.hardware import gpu
from colibri.hardware.gpu import Gpu, Gpus

TIMEOUT_SECONDS: Final = 5.0
SILENT: Final = "the NVIDIA driver does not answer"


def ask(library: Any = None) -> list[Gpu]:
    """What the library says. Raises whatever it raises; `library` is its Python module."""
    if library is None:
        import pynvml  # noqa: PLC0415 - only where somebody looks

        library = pynvml

    def told(read: Callable[..., Any], *values: Any) -> Any:
        try:
            return read(*values)
        except library.NVMLError:
            return None

    library.nvmlInit()
    try:
        driver = _text(told(library.nvmlSystemGetDriverVersion))
        found = []
        for index in range(library.nvmlDeviceGetCount()):
            handle = told(library.nvmlDeviceGetHandleByIndex, index)
            if handle is None:
                continue  # lost, or another user's
            memory = told(library.nvmlDeviceGetMemoryInfo, handle)
            use = told(library.nvmlDeviceGetUtilizationRates, handle)
            load = gpu.number(getattr(use, "gpu", None))
            found.append(
                Gpu(
                    index=index,
                    name=_text(told(library.nvmlDeviceGetName, handle)) or "unknown",
                    driver=driver,
                    memory_total=_bytes(getattr(memory, "total", None)) or None,
                    memory_used=_bytes(getattr(memory, "used", None)),
                    memory_free=_bytes(getattr(memory, "free", None)),
                    load=None if load is None else min(load / 100, 1.0),
                )
            )
        return found
    finally:
        told(library.nvmlShutdown)


def _text(value: object) -> str:
    """Older versions of the library give bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _bytes(value: object) -> int | None:
    result = gpu.number(value)
    return None if result is None else int(result)


class Probe:
    """Calling it gives the GPUs of this machine; never raises, and waits `seconds` at most for the
    library.
    """

    def __init__(
        self,
        library: Callable[[], list[Gpu]] = ask,
        otherwise: Callable[[], Gpus] = gpu.probe,
        seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._library, self._otherwise, self._seconds = library, otherwise, seconds
        self._asking: threading.Thread | None = None

    def __call__(self) -> Gpus:
        if self._asking is not None and self._asking.is_alive():
            return Gpus(problem=SILENT)
        answer: list[list[Gpu]] = []

        def call() -> None:
            try:
                answer.append(self._library())
            except Exception:
                # No driver, no library, or one that refuses: nvidia-smi can say more.
                answer.clear()

        self._asking = threading.Thread(target=call, name="nvml", daemon=True)
        self._asking.start()
        self._asking.join(self._seconds)
        if self._asking.is_alive():
            return Gpus(problem=SILENT)
        if answer and answer[0]:
            return Gpus(gpus=tuple(answer[0]))
        return self._otherwise()
