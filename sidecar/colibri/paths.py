"""Where Colibri keeps its files, the same for every command.

For: everyone who reads or writes a file of ours. Not for: model folders that a user names by path.
`COLIBRI_HOME` moves everything below one folder (portable installs, tests); `COLIBRI_MODELS_DIR`
moves the models alone, because they are what does not fit on the system drive. Nothing is created
here: whoever writes a file makes its folder. Nothing is ever kept beside the executable. Thread
rule: pure functions of the environment.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import platformdirs

APP_NAME = "colibri"
# The model that comes with the program, served when no other is chosen.
STARTER_NAME = "colibri-starter"


def _home() -> Path | None:
    value = os.environ.get("COLIBRI_HOME", "").strip()
    return given(value).absolute() if value else None


def config_dir() -> Path:
    """Folder of `config.toml`."""
    home = _home()
    return (
        home / "config" if home else Path(platformdirs.user_config_dir(APP_NAME, appauthor=False))
    )


def config_file() -> Path:
    """The user's config file; it need not exist."""
    return config_dir() / "config.toml"


def data_dir() -> Path:
    """Folder of what must survive: models, chats."""
    home = _home()
    return home / "data" if home else Path(platformdirs.user_data_dir(APP_NAME, appauthor=False))


def models_dir() -> Path:
    """Folder whose sub-folders are the installed models."""
    value = os.environ.get("COLIBRI_MODELS_DIR", "").strip()
    return given(value).absolute() if value else data_dir() / "models"


def starter_dir() -> Path | None:
    """Folder of the model inside the package, None in a source tree that has none yet."""
    folder = Path(__file__).resolve().parent / "builtin" / STARTER_NAME
    return folder if (folder / "config.json").is_file() else None


def in_source_tree() -> bool:
    """Whether the program runs from its source tree, where `make` starts it."""
    sidecar = Path(__file__).resolve().parent.parent
    return sidecar.name == "sidecar" and (sidecar.parent / "Makefile").is_file()


def state_dir() -> Path:
    """Folder of what a restart may want: logs, recorded process ids."""
    home = _home()
    return home / "state" if home else Path(platformdirs.user_state_dir(APP_NAME, appauthor=False))


def model_state_dir(model: Path) -> Path:
    """Folder of what a model has learnt when its own folder cannot be written."""
    digest = hashlib.blake2b(str(model.absolute()).encode(), digest_size=4).hexdigest()
    return state_dir() / "models" / f"{model.name}-{digest}"


def learnt_dir(model: Path, chosen: str | None) -> Path:
    """Folder of what is learnt about the model in a folder: the chosen one (`--state-dir`), else
    the model's own if it can be written and is no part of the program, else one below the user's
    state.
    """
    if chosen:
        return given(chosen).absolute()
    folder = model.absolute()
    own = os.access(folder, os.W_OK) and folder.resolve() != starter_dir()
    return folder if own else model_state_dir(folder)


def log_dir() -> Path:
    """Folder of the rotating log files."""
    return state_dir() / "logs"


def cache_dir() -> Path:
    """Folder of what can be made again."""
    home = _home()
    return home / "cache" if home else Path(platformdirs.user_cache_dir(APP_NAME, appauthor=False))


def given(text: str) -> Path:
    """A path as a person wrote it, `~` expanded; as it is where no such user is known."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def web_dir() -> Path | None:
    """Folder of the dashboard's built files, None when nothing is built.

    In a wheel and in a frozen program they lie inside the package; in a checkout the front end's
    build writes them.
    """
    package = Path(__file__).resolve().parent
    checkout = package.parent.parent / "frontend"
    for folder in (package / "web", checkout / "dist"):
        if (folder / "index.html").is_file():
            return folder
    return None
