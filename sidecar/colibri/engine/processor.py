"""Whether this processor can run the engine at all.

For: the engine process and the command line, which ask before, or when, a compiled library fails.
Not for: which kernels run; the engine chooses those itself. Only this module may be used on a
processor of which nothing is known. Thread rule: pure.
"""

from __future__ import annotations

from colibri.errors import EngineFailure

TOO_OLD = (
    "this processor is too old: it lacks instructions that Colibri needs (x86-64-v2: SSE4.2 and "
    "POPCNT, which processors have had since about 2009)."
)


def require() -> None:
    """Raises EngineFailure on a processor that cannot run the engine."""
    try:
        from colibri.engine import _colibri  # noqa: PLC0415 - compiled
    except ImportError:
        return  # who needs the engine says what is wrong with its build
    if not _colibri.lib.colibri_cpu_is_supported():
        raise EngineFailure(
            TOO_OLD,
            hint="Use a newer computer; in a virtual machine, pass the host's processor through.",
        )
