"""The window alone, with a sidecar of another Python: `python -m colibri_app --sidecar PROGRAM
...`.

For: `make app`, where the system's Python has the window toolkit and the project's environment has
everything else. Not for: users; theirs is the command `sidecar` (`entry`).
"""

from __future__ import annotations

import sys

from colibri_app import shell

_USAGE = "usage: python -m colibri_app --sidecar PROGRAM [OPTIONS OF THE SIDECAR]"


def main() -> int:
    """Returns the exit code when there was nothing to run; see `shell.run`."""
    if sys.argv[1:2] != ["--sidecar"] or len(sys.argv) < 3:  # noqa: PLR2004 - flag and its value
        print(_USAGE, file=sys.stderr)
        return 2
    program, *arguments = sys.argv[2:]
    try:
        return shell.run([program, "--app-child"], arguments)
    except shell.NoWindowError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
