"""The one table of settings: from it come flags, environment, config file keys, help and docs.

For: every command and the server; the fields of `Settings` ARE the table. Adding a setting is
adding one field. Not for: paths of our own folders (`colibri.paths`) and choices of one request
(the API's schemas).

    precedence   flag > COLI_* variable > config.toml > default
    flag         --name-with-dashes, unless the field says otherwise
    variable     COLI_ + field name in capitals; lists are comma-separated
    config key   section.name, as TOML of the field's own type

Where a value came from is kept (`Resolved.origins`). A COLI_* variable or a config key that
nobody knows is warned about with its nearest neighbour, because a misspelt setting otherwise
fails in silence. Thread rule: everything here is immutable after `resolve`.
"""

from __future__ import annotations

import difflib
import math
import os
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from colibri import paths, sizes
from colibri.errors import UsageError

ENV_PREFIX = "COLI_"
# Of the benchmarks (docs/benchmarks.md), which start servers with them in the environment.
_BENCH_PREFIX = f"{ENV_PREFIX}BENCH_"
MAX_PORT = 65535
SMALLEST_CONTEXT = 64
# Far beyond any model; larger numbers are slips of the finger.
LARGEST_CONTEXT = 1 << 24
MAX_SLOTS = 16
LARGEST_TEMPERATURE = 2.0

Check = Callable[[Any], str | None]


def _plain(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def _between(low: float, high: float | None = None) -> Check:
    def check(value: Any) -> str | None:
        if math.isfinite(value) and low <= value and (high is None or value <= high):
            return None
        limit = "" if high is None else f" and at most {_plain(high)}"
        return f"must be at least {low:g}{limit}"

    return check


def _not_blank(value: Any) -> str | None:
    return None if value.strip() else "must not be empty"


def _size(value: Any) -> str | None:
    try:
        sizes.parse(value)
    except ValueError as error:
        return str(error)
    return None


def _hosts(value: Any) -> str | None:
    for host in value:
        if "*" in host or "/" in host or not host.strip():
            return f"must be exact host names without wildcard, scheme or path, not {host!r}"
    return None


def _folders(value: Any) -> str | None:
    return None if all(name.strip() for name in value) else "must name a folder"


def _origins(value: Any) -> str | None:
    for origin in value:
        if origin != "*" and ("://" not in origin or origin.endswith("/")):
            return f"must look like https://ui.example (no trailing slash) or be *, not {origin!r}"
    return None


def _setting(
    default: Any,
    key: str,
    help: str,
    *,
    flags: tuple[str, ...] | None = None,
    metavar: str | None = None,
    check: Check | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    metadata = {
        "key": key,
        "help": help,
        "flags": flags,
        "metavar": metavar,
        "check": check,
        "choices": choices,
        "secret": secret,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every value a user can choose. Section of the key = group of commands that take the flag."""

    model: str | None = _setting(
        None,
        "model.name",
        "Model to run: a folder, or the name of an installed model.",
        metavar="NAME|DIR",
        check=_not_blank,
    )
    model_id: str | None = _setting(
        None,
        "model.id",
        "Name of the model in the API; default: the family's, else the folder's.",
        metavar="ID",
        check=_not_blank,
    )
    strict_model: bool = _setting(
        False,
        "model.strict",
        "Refuse requests that name another model than the one served, instead of answering them.",
    )
    ctx: int | None = _setting(
        None,
        "model.context",
        "Most tokens of prompt and answer together; default: what model and memory allow. More "
        "than the model was made for is allowed, with a warning.",
        metavar="TOKENS",
        check=_between(SMALLEST_CONTEXT, LARGEST_CONTEXT),
    )
    temperature: float | None = _setting(
        None,
        "model.temperature",
        "Sampling temperature of requests that name none; 0 is greedy.",
        flags=("--temperature", "--temp"),
        check=_between(0, LARGEST_TEMPERATURE),
    )
    top_p: float | None = _setting(
        None,
        "model.top_p",
        "Nucleus sampling of requests that name none; 1 switches it off.",
        check=_between(0, 1),
    )
    max_tokens: int | None = _setting(
        None,
        "model.max_tokens",
        "Most tokens one answer may have; default: the room left.",
        metavar="TOKENS",
        check=_between(1, LARGEST_CONTEXT),
    )

    precision: str = _setting(
        "fast",
        "engine.precision",
        "fast, or f32 for the slow reference path.",
        choices=("fast", "f32"),
    )
    isa: str = _setting(
        "auto",
        "engine.isa",
        "Instruction set; auto takes the best this processor has.",
        choices=("auto", "baseline", "avx2", "avx512", "neon"),
    )
    kv_slots: int = _setting(
        1,
        "engine.kv_slots",
        "KV slots: conversations whose context stays ready; a request may name one (cache_slot).",
        metavar="N",
        check=_between(1, MAX_SLOTS),
    )
    parallel: int = _setting(
        1,
        "engine.parallel",
        "Requests that run at once, each in a KV slot of its own; at most the number of slots.",
        metavar="N",
        check=_between(1, MAX_SLOTS),
    )
    threads: int = _setting(
        0,
        "engine.threads",
        "Compute threads; 0 means one per usable core.",
        check=_between(0, 256),
    )
    ram: str | None = _setting(
        None,
        "engine.ram",
        "Most memory for the model and the program together, in GB, or as 12GiB or 50%; default: "
        "what is free, less a reserve.",
        metavar="SIZE",
        check=_size,
    )
    io_mode: str = _setting(
        "auto",
        "engine.io_mode",
        "How experts are read from disk; auto takes io_uring where it works, else threads.",
        choices=("auto", "uring", "threads", "buffered"),
    )
    mirrors: tuple[str, ...] = _setting(
        (),
        "engine.mirrors",
        "Folder on another drive with copies of the model's files, or with a part of them "
        "(repeatable); experts are read from all drives by their speed.",
        flags=("--mirror",),
        metavar="DIR",
        check=_folders,
    )
    prefetch: str = _setting(
        "on",
        "engine.prefetch",
        "Read experts ahead that the next layer will probably need.",
        choices=("on", "off"),
    )
    prefill_chunk: int = _setting(
        0,
        "engine.prefill_chunk",
        "Tokens of a prompt that are computed together; 0 means what the memory allows.",
        metavar="TOKENS",
        check=_between(0, 16_384),
    )
    drafts: str = _setting(
        "auto",
        "engine.drafts",
        "Most tokens that the model's MTP layer drafts per step. auto: up to 3 if memory allows; "
        "0: the layer is not loaded. Drafts that do not pay are switched off.",
        choices=("auto", "0", "1", "2", "3"),
    )
    state_dir: str | None = _setting(
        None,
        "engine.state_dir",
        "Folder for what is kept about the model: use counts and stored context; default: the "
        "model's own if it can be written, else one below the user's state.",
        metavar="DIR",
        check=_not_blank,
    )
    prefix_store_gb: float | None = _setting(
        None,
        "engine.prefix_store_gb",
        "Disk that stored context may take, in GB; 0 switches it off. Default: a tenth of the "
        "disk's room, at most 32.",
        metavar="GB",
        check=_between(0, 1_000_000),
    )
    trace: str | None = _setting(
        None,
        "engine.trace",
        "Record which experts are asked for in this file, for `coli bench policy`.",
        metavar="FILE",
        check=_not_blank,
    )

    host: str = _setting(
        "127.0.0.1", "server.host", "Address to listen on.", metavar="ADDRESS", check=_not_blank
    )
    port: int = _setting(
        8000,
        "server.port",
        "Port to listen on; 0 lets the system choose.",
        check=_between(0, MAX_PORT),
    )
    api_key: str | None = _setting(
        None,
        "server.api_key",
        "Key that clients must send. Has no flag: command lines can be read by everyone.",
        flags=(),
        secret=True,
        check=_not_blank,
    )
    insecure_bind: bool = _setting(
        False, "server.insecure_bind", "Allow an address beyond this machine without an API key."
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (),
        "server.allowed_hosts",
        "Host name to trust besides this machine's own (repeatable, exact).",
        flags=("--allowed-host",),
        metavar="NAME",
        check=_hosts,
    )
    cors_origins: tuple[str, ...] = _setting(
        (),
        "server.cors_origins",
        "Web origin that may call the API from a browser (repeatable; * trusts all).",
        flags=("--cors-origin",),
        metavar="ORIGIN",
        check=_origins,
    )
    no_model: bool = _setting(
        False,
        "server.no_model",
        "Start without a model, whatever --model says; one is loaded later, from the dashboard.",
    )
    force: bool = _setting(
        False,
        "server.force",
        "Open the model of the start also where it does not fit, with the least memory that it "
        "needs; the system may then swap or end it.",
    )
    max_queue: int = _setting(
        8,
        "server.max_queue",
        "Requests that may wait; further ones are answered 429.",
        metavar="N",
        check=_between(0, 10_000),
    )
    queue_timeout: float = _setting(
        300.0,
        "server.queue_timeout",
        "Seconds a request may wait for its turn.",
        metavar="SECONDS",
        check=_between(0.1),
    )

    no_window: bool = _setting(False, "app.no_window", "Run the server alone, without a window.")
    no_browser: bool = _setting(False, "app.no_browser", "Do not open a web browser.")

    log_level: str = _setting(
        "info", "log.level", "How much to log.", choices=("debug", "info", "warning", "error")
    )
    log_file: str | None = _setting(
        None,
        "log.file",
        "Also log to this file, one JSON object a line.",
        metavar="FILE",
        check=_not_blank,
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table, read off a field of `Settings`."""

    name: str
    kind: type
    default: Any
    key: str
    flags: tuple[str, ...]
    env: str
    help: str
    metavar: str | None
    check: Check | None
    choices: tuple[str, ...]
    secret: bool

    @property
    def group(self) -> str:
        return self.key.partition(".")[0]

    @property
    def type_name(self) -> str:
        """For people: what may stand there."""
        if self.choices:
            return " \\| ".join(self.choices)
        names = {str: "text", int: "integer", float: "number", bool: "true/false", tuple: "list"}
        return names[self.kind]

    @property
    def _expected(self) -> str:
        return " or ".join(self.choices) if self.choices else self.type_name

    def show(self, value: Any) -> str:
        """The value as text for people; a secret is never shown."""
        if value is None or value == ():
            return "-"
        if self.secret:
            return "(set)"
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, tuple) else f"{value}"

    def validate(self, value: Any, where: str) -> Any:
        """Returns `value` if the check accepts it, else raises UsageError naming `where`."""
        problem = self.check(value) if self.check and value is not None else None
        if self.choices and value not in self.choices:
            problem = f"must be one of {', '.join(self.choices)}"
        if problem:
            shown = "" if self.secret or value == "" else f", not {self.show(value)}"
            raise UsageError(f"{problem}{shown}.", where=where)
        return value

    def parse(self, text: str, where: str) -> Any:
        """Value of an environment variable's text."""
        try:
            if self.kind is tuple:
                value: Any = tuple(part.strip() for part in text.split(",") if part.strip())
            elif self.kind is bool:
                value = _BOOLEANS[text.strip().lower()]
            elif self.kind is str:
                value = text
            else:
                value = self.kind(text.strip())
        except (KeyError, ValueError):
            raise UsageError(f"expected {self._expected}, got {text!r}.", where=where) from None
        return self.validate(value, where)

    def convert(self, value: Any, where: str) -> Any:
        """Value of a TOML entry, which already has a type."""
        if self.kind is float and type(value) is int:
            value = float(value)
        if self.kind is tuple and isinstance(value, list) and all(type(v) is str for v in value):
            value = tuple(value)
        if (self.choices or self.check is _size) and type(value) in (int, float):
            value = str(value)
        if type(value) is not self.kind:
            raise UsageError(f"expected {self._expected}, got {value!r}.", where=where)
        return self.validate(value, where)


_BOOLEANS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def _row(entry: Field[Any], annotation: Any) -> Setting:
    if typing.get_origin(annotation) is types.UnionType:
        annotation = next(a for a in typing.get_args(annotation) if a is not type(None))
    flags = entry.metadata["flags"]
    if entry.default is MISSING:
        raise TypeError(f"setting {entry.name} has no default")
    return Setting(
        name=entry.name,
        kind=typing.get_origin(annotation) or annotation,
        default=entry.default,
        key=entry.metadata["key"],
        flags=("--" + entry.name.replace("_", "-"),) if flags is None else flags,
        env=ENV_PREFIX + entry.name.upper(),
        help=entry.metadata["help"],
        metavar=entry.metadata["metavar"],
        check=entry.metadata["check"],
        choices=entry.metadata["choices"],
        secret=entry.metadata["secret"],
    )


_HINTS = typing.get_type_hints(Settings)
TABLE: tuple[Setting, ...] = tuple(_row(entry, _HINTS[entry.name]) for entry in fields(Settings))


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings with the origin of every value and what looked misspelt."""

    settings: Settings
    origins: Mapping[str, str]
    warnings: tuple[str, ...]


def read_config(path: Path) -> dict[str, Any]:
    """Flat {section.name: value} of a TOML file; empty if there is none. Raises UsageError."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}.", where=str(path)) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot be read as TOML: {error}.", where=str(path)) from error
    flat: dict[str, Any] = {}
    for section, entries in tree.items():
        if isinstance(entries, dict):
            flat.update({f"{section}.{name}": value for name, value in entries.items()})
        else:
            flat[section] = entries
    return flat


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"unknown {what} {name} is ignored" + (f"; did you mean {near[0]}?" if near else "")


def resolve(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    config_path: Path | None = None,
) -> Resolved:
    """Values of all settings. `flags` maps names to what was given; None and () mean not given.

    An empty variable counts as not set. Raises UsageError naming flag, variable or file and key.
    """
    flags = flags or {}
    environ = os.environ if environ is None else environ
    config_path = config_path or paths.config_file()
    config = read_config(config_path)
    keys = {row.key for row in TABLE}
    variables = {row.env for row in TABLE}
    warnings = [
        _unknown("environment variable", name, variables)
        for name in environ
        if name.startswith(ENV_PREFIX)
        and not name.startswith(_BENCH_PREFIX)
        and name not in variables
    ]
    warnings += [
        f"{config_path}: {_unknown('key', key, keys)}" for key in config if key not in keys
    ]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for row in TABLE:
        given = flags.get(row.name)
        if given is not None and given != ():
            values[row.name] = row.validate(given, row.flags[0] if row.flags else row.name)
            origins[row.name] = "flag"
        elif environ.get(row.env, "") != "":
            values[row.name] = row.parse(environ[row.env], row.env)
            origins[row.name] = row.env
        elif row.key in config:
            values[row.name] = row.convert(config[row.key], f"{config_path}, key {row.key}")
            origins[row.name] = str(config_path)
        else:
            origins[row.name] = "default"
    return Resolved(Settings(**values), origins, tuple(sorted(warnings)))


def reference() -> str:
    """The table as Markdown, for docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "A flag wins over an environment variable, the variable over `config.toml`, the file over",
        "the default. `coli config show --origin` prints every value and where it came from.",
        "This page is generated: `coli config reference > docs/settings.md`.",
        "",
        "`coli config path` prints where the file belongs. A key `server.port` is `port` below",
        '`[server]`, with TOML\'s own types: `port = 9000`, `force = true`, `mirrors = ["DIR"]`.',
        "A variable separates the entries of a list by commas; true/false is one of 1, true, yes,",
        "on and 0, false, no, off; an empty variable counts as not set. Where files lie is said",
        "by two other variables: `COLIBRI_HOME` moves them all, `COLIBRI_MODELS_DIR` the models.",
        "",
        "| flag | variable | config key | type | default | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for row in TABLE:
        flags = ", ".join(f"`{flag}`" for flag in row.flags) or "-"
        default = f"`{row.show(row.default)}`" if row.default not in (None, ()) else "-"
        lines.append(
            f"| {flags} | `{row.env}` | `{row.key}` | {row.type_name} | {default} | {row.help} |"
        )
    return "\n".join(lines) + "\n"
