"""Checks what git tracks: nothing that belongs to one machine, nothing that does not belong at all.

Run by `make lint`; also imported by its test. Each problem is one line; none means exit code 0.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FILE_LIMIT = 1 << 20  # bytes; fixtures of the oracle may be larger
FIXTURE_LIMIT = 8 << 20
# The one model that is a part of the program; `make starter` makes it.
BUILTIN = "sidecar/colibri/builtin/"
BUILTIN_LIMIT = 12_000_000
WEIGHTS = (".safetensors", ".gguf", ".pt", ".pth", ".onnx", ".npz")
# An absolute path into someone's home or workplace.
MACHINE_PATH = re.compile(r"(?<![\w./~-])/(?:work|root|home|Users)/[\w.]")
# Build inputs name packages, never where they come from.
BUILD_INPUT = re.compile(
    r"(^|/)(requirements/.*|\.ci/.*|Makefile|CMakeLists\.txt|pyproject\.toml)$"
)
ADDRESS = re.compile(r"[a-z]+://|--(extra-)?index-url|--find-links|--trusted-host")


def tracked() -> list[str]:
    """Paths that git tracks, relative to the root."""
    command = ["git", "ls-files", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    return [name for name in listing.decode().split("\0") if name and (ROOT / name).is_file()]


def case_collisions(names: Iterable[str]) -> list[str]:
    """Names that a case-insensitive file system would take for one another."""
    seen: dict[str, str] = {}
    problems = []
    for name in names:
        first = seen.setdefault(name.casefold(), name)
        if first != name:
            problems.append(f"{name}: differs from {first} in case only; rename one")
    return problems


def file_problems(name: str, data: bytes) -> list[str]:
    """What is wrong with one tracked file."""
    problems = []
    fixture, builtin = "/fixtures/" in name, name.startswith(BUILTIN)
    if name.endswith(WEIGHTS) and not fixture and not builtin:
        problems.append(f"{name}: weights are not tracked; fetch or generate them")
    limit = BUILTIN_LIMIT if builtin else FIXTURE_LIMIT if fixture else FILE_LIMIT
    if len(data) > limit:
        problems.append(f"{name}: {len(data)} bytes, more than {limit}; generate it instead")
    if b"\0" in data:
        return problems
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        if MACHINE_PATH.search(line):
            problems.append(f"{name}:{number}: names a path of one machine; make it relative")
        if BUILD_INPUT.search(name) and not name.endswith(".py") and ADDRESS.search(line):
            problems.append(
                f"{name}:{number}: a build input holds an address; name the package only"
            )
        if line.startswith(("<<<<<<< ", ">>>>>>> ")):
            problems.append(f"{name}:{number}: conflict mark; resolve it")
    return problems


def main() -> int:
    names = tracked()
    problems = case_collisions(names)
    for name in names:
        problems += file_problems(name, (ROOT / name).read_bytes())
    print("\n".join(problems), end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
