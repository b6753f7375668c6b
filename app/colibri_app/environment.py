"""What other programs are started with: our own environment without what only we need.

For: `entry`, first thing, and everything that opens a file or an address with the system's
programs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# Set in everything that a window starts: what it starts must not open windows itself.
CHILD_MARK = "COLIBRI_APP_CHILD"


def restore_library_path() -> None:
    """Undoes what the frozen program's loader has put into the library path: the system's own
    programs and the web view's helpers would load our libraries instead of theirs. What this
    process loads later is not affected, because the loader has read the variable at its start.

    Our own program as a child (engine process, sidecar of a window) is to start from the beginning:
    without the word for it, its loader believes that the path has been set already, and finds
    libraries only where the system happens to have them.
    """
    if not getattr(sys, "frozen", False):
        return
    os.environ["PYINSTALLER_RESET_ENVIRONMENT"] = "1"
    if os.name == "nt":
        return
    for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"):
        original = os.environ.pop(f"{name}_ORIG", None)
        if original:
            os.environ[name] = original
        else:
            os.environ.pop(name, None)


def open_path(path: Path) -> bool:
    """Shows a file or folder with the program that the system has for it; whether one was found."""
    if os.name == "nt":
        os.startfile(path)  # type: ignore[attr-defined,unused-ignore]  # noqa: S606
        return True
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    try:
        subprocess.Popen(  # noqa: S603 - a fixed program
            [opener, str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return False
    return True
