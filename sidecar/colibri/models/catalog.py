"""Which models are installed, and what `--model` means.

For: the commands and the server. An installed model is a folder inside the models folder
(`colibri.paths.models_dir`) that has a config.json; its name is the folder's. The starter model,
which lies inside the program, is found like one. Not for: downloading.
Thread rule: pure functions over files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from colibri import paths, regular
from colibri.errors import ModelError, ModelNotFoundError
from colibri.families import detect
from colibri.families.values import ConfigReader, parse_object
from colibri.models import packed

# A problem is one line of a list.
_PROBLEM_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class Installed:
    """One installed model as a list shows it. `problem` is empty when its config is readable."""

    name: str
    folder: Path
    family: str = ""
    kind: str = ""
    bytes: int = 0
    context: int = 0
    problem: str = ""


def installed(folder: Path | None = None) -> list[Installed]:
    """Installed models by name; one with a broken config is listed with its problem."""
    root = folder or paths.models_dir()
    if not root.is_dir():
        return []
    return [
        describe(path)
        for path in sorted(root.iterdir())
        if _is_file(path / "config.json") and not (path / packed.STATE_NAME).exists()
    ]


def available() -> list[Installed]:
    """The installed models, and behind them the program's own unless one has its name."""
    found, starter = installed(), paths.starter_dir()
    if starter is not None and starter.name not in {item.name for item in found}:
        found.append(describe(starter))
    return found


def _is_file(path: Path) -> bool:
    """Also False for what may not be looked at (`lost+found`) and for what is no path at all."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """False for what is no path at all, too."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _is_name(text: str) -> bool:
    """Whether a text can be the name of a folder, as opposed to a path."""
    return text not in {"", ".", ".."} and not set(text) & {"/", "\0", os.sep}


def describe(path: Path) -> Installed:
    """One model folder as a list shows it."""
    packed_kind = (path / packed.INDEX_NAME).is_file()
    size, where = 0, path / "config.json"
    try:
        size = sum(item.stat().st_size for item in path.glob("*.safetensors") if item.is_file())
        config = parse_object(regular.read_file(where), str(where))
        family = detect(config, str(where))
        geometry = family.geometry(ConfigReader(config, str(where)))
    except (ModelError, OSError) as error:
        return Installed(path.name, path, bytes=size, problem=str(error)[:_PROBLEM_CHARS])
    kind = "packed" if packed_kind else "published"
    return Installed(path.name, path, family.name, kind, size, geometry.max_position)


def resolve(model: str, folder: Path | None = None) -> Path:
    """The folder that `--model` means: the name of an installed model, or a path.

    A text with a path separator is a path; anything else is looked up among the installed models
    first and in the current folder second. ModelNotFoundError lists what is installed.
    """
    root = folder or paths.models_dir()
    if _is_name(model) and _is_file(root / model / "config.json"):
        return root / model
    starter = paths.starter_dir()
    if starter is not None and model == starter.name:
        return starter
    path = paths.given(model)
    if model and is_folder(path):
        if _is_file(path / "config.json"):
            return path
        ggufs = sorted(path.glob("*.gguf"))
        raise ModelNotFoundError(
            "the folder holds no config.json, so it is no model.",
            where=str(path),
            hint=f"Convert it first: coli convert {ggufs[0]} OUT"
            if ggufs
            else "Give the folder that holds config.json, tokenizer.json and the weights.",
        )
    if _is_file(path) and path.suffix == ".gguf":
        raise ModelNotFoundError(
            "a GGUF file is not opened directly.",
            where=str(path),
            hint=f"Convert it first: coli convert {path} {root / path.stem.lower()}",
        )
    names = [item.name for item in (installed(root) if folder else available())]
    known = f"installed: {', '.join(names)}" if names else f"no model is installed in {root}"
    if model and not _is_name(model):
        raise ModelNotFoundError(
            f"there is no such folder; {known}.",
            where=str(path),
            hint="It may have been moved, or its drive is not connected. --model takes the name of "
            "an installed model or the path of a model folder.",
        )
    raise ModelNotFoundError(
        f'there is no installed model and no folder "{model}"; {known}.',
        hint="Give the name of an installed model or the path of a model folder.",
    )
