"""Generates the C source of the extension `colibri.engine._colibri` from the public header.

Called by CMake: `build_ffi.py HEADER OUTPUT`. The declarations between CFFI-BEGIN and CFFI-END are
used as they stand, and the compiler checks them against the whole header, so the binding cannot
drift away from the engine. In this (API) mode every call releases the interpreter lock.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cffi import FFI

MODULE = "colibri.engine._colibri"


def declarations(header: str) -> str:
    """The part of the header that Python sees, without comments."""
    begin, end = header.find("/* CFFI-BEGIN"), header.find("/* CFFI-END")
    if begin < 0 or end < begin:
        raise SystemExit("colibri.h: the CFFI-BEGIN and CFFI-END marks are missing or swapped")
    return re.sub(r"/\*.*?\*/", " ", header[begin:end], flags=re.DOTALL)


def main() -> None:
    header, output = Path(sys.argv[1]), Path(sys.argv[2])
    ffi = FFI()
    ffi.cdef(declarations(header.read_text(encoding="utf-8")))
    ffi.set_source(MODULE, '#include "colibri.h"')
    ffi.emit_c_code(str(output))


if __name__ == "__main__":
    main()
