"""Is this model folder whole? Every problem at once, each with its remedy.

For: `coli doctor` and `coli verify`. Not for: opening (`container`, which refuses at the first
problem) or the machine (`colibri.hardware`). Nothing in a folder, however damaged or hostile, makes
this raise: what hides everything else becomes a finding, and the check goes on with the rest.
Thread rule: one call at a time per folder; see `deep_check` for its readers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from colibri import findings
from colibri.engine import ffi_plan
from colibri.engine.status import EngineError
from colibri.engine.table import EngineOptions, Geometry, Precision
from colibri.errors import ColibriError
from colibri.families import detect
from colibri.families.values import parse_object
from colibri.findings import Finding
from colibri.hardware import disk
from colibri.hardware.disk import Read
from colibri.models import container, deep_check, manifest, mirror, packed, shard_check
from colibri.models import model as opening
from colibri.models.budget import (
    choose,
    grammar_bytes,
    idle_slot_bytes,
    program_bytes,
    remedy,
    store_queue_bytes,
)
from colibri.models.container import Inspection, ModelFiles
from colibri.models.deep_check import Deep, Progress
from colibri.models.limits import stretched
from colibri.models.manifest import Manifest
from colibri.models.missing import Absent
from colibri.models.shard_check import Scan
from colibri.settings import Settings

_WEAK: Final = "one scale per row"
# Public containers of models that people have; only ever suggested, never fetched.
_PUBLISHED: Final = {
    ("glm_moe_dsa", 78, 6144): "mastouri/GLM-5.2-colibri-int4-g64-with-int8-mtp",
}
_MOUNT: Final = (
    "If this is where a drive belongs, mount it: do not download again before you have looked."
)
_REPLACE: Final = "Copy the file from the model's source again."


@dataclass(slots=True)
class Report:
    """What one look at a folder gave. `files` is the model where it can be opened, else None."""

    folder: Path
    mirrors: tuple[Path, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    files: ModelFiles | None = None
    known: Manifest | None = None
    scan: Scan | None = None
    index: packed.Index | None = None
    deep: Deep | None = None

    @property
    def kind(self) -> str | None:
        """`original`, `published` or `packed`; None when it cannot be told."""
        return self.files.kind if self.files is not None else None


@contextlib.contextmanager
def _noted(report: Report, where: Path, fix: str = _REPLACE) -> Iterator[None]:
    """Turns what a step raises for a bad file into a finding."""
    try:
        yield
    except ColibriError as failure:
        report.findings.append(findings.from_error(failure, str(where), fix))
    except OSError as failure:
        report.findings.append(findings.from_os_error(failure, str(where)))


def examine(
    folder: Path,
    *,
    deep: bool = False,
    always_hash: bool = False,
    progress: Progress | None = None,
    read: Read = disk.pread,
    mirrors: Sequence[Path] = (),
) -> Report:
    """Looks at a folder; `deep` reads every byte. `read` is `os.pread`, or a test's own.

    Of `mirrors` each copy is compared with the folder's file, as opening the model does; a file
    that only a mirror has is part of the model.
    """
    report = Report(folder, mirrors=tuple(mirrors))
    with _noted(report, folder, "Check the path, and whether its drive is mounted."):
        if not folder.is_dir():
            raise NotADirectoryError(20, "this is no folder", str(folder))
        if not any(folder.iterdir()):
            what = "the folder is empty."
            report.findings.append(findings.error("not_found", what, str(folder), _MOUNT))
    if report.findings:
        return report
    _unfinished(report)
    with _noted(report, folder / manifest.MANIFEST_NAME, "Fetch the manifest again or remove it."):
        report.known = manifest.read(folder)
    with _noted(report, folder, "Check the folder and its drive."):
        report.scan = shard_check.scan(folder, report.known, read, report.mirrors)
        report.findings += report.scan.findings
    if (folder / packed.INDEX_NAME).exists():
        _packed_files(report)
    if report.scan is not None:
        with _noted(report, folder / "config.json"):
            _inspect(report, report.scan)
    if report.mirrors and report.scan is not None:
        with _noted(report, folder):
            _copies(report, report.scan)
    with _noted(report, folder / "tokenizer.json"):
        _text(report)
    if deep and report.scan is not None:
        _deep(report, report.scan, progress, always_hash, read)
    _sum_up(report)
    return report


def _unfinished(report: Report) -> None:
    """Conversions that were interrupted: beside this folder, or this folder itself."""
    folder = report.folder
    with _noted(report, folder):
        partial = folder if folder.name.endswith(".partial") else None
        if (folder / packed.STATE_NAME).exists():
            partial = folder
        if partial is not None:
            what = "this is a conversion that is not finished."
            target = folder.with_name(folder.name.removesuffix(".partial"))
            fix = f"Give the same command again; it goes on: coli convert SOURCE {target}"
            report.findings.append(findings.error("model", what, str(partial), fix))


def _packed_files(report: Report) -> None:
    """Sizes of all files of a packed container, then its index."""
    folder = report.folder
    path = folder / packed.INDEX_NAME
    again = "Convert the model again, or copy the file from where it is whole."
    with _noted(report, path, again):
        before = len(report.findings)
        listed = parse_object(container.read_file(path), str(path)).get("files")
        for item in listed if isinstance(listed, list) else []:
            _packed_file(report, item, again)
        if len(report.findings) == before:
            report.index = packed.read_index(folder, report.mirrors)


def _packed_file(report: Report, item: Any, again: str) -> None:
    name = item.get("name") if isinstance(item, dict) else None
    size = item.get("bytes") if isinstance(item, dict) else None
    if not isinstance(name, str) or not manifest.is_plain_name(name):
        return  # reading the index says so
    path = report.folder / name
    if not path.is_file():
        path = next((p / name for p in report.mirrors if (p / name).is_file()), path)
    with _noted(report, path, again):
        found = path.stat().st_size if path.is_file() else None
        if found is None:
            report.findings.append(
                findings.error("model", "the file is missing.", str(path), again)
            )
        elif isinstance(size, int) and found != size:
            what = f"the file holds {found:,} bytes, the index says {size:,}."
            report.findings.append(findings.error("integrity", what, str(path), again))


def _inspect(report: Report, scan: Scan) -> None:
    """Tensors against config.json."""
    folder = report.folder
    if (folder / packed.INDEX_NAME).exists() and report.index is None:
        return  # what is wrong with the index hides its tensors
    mirrors = report.mirrors if report.index is not None else ()
    found = container.inspect(folder, scan.shards, mirrors=mirrors)
    report.files = found.files
    again = _again(report, scan, found)
    for sentence in found.lost:
        report.findings.append(findings.error("model", f"{sentence}.", str(folder), again))
    gaps = [gap for gap in found.absent if _is_absent(scan, gap)]
    for gap in gaps:
        report.findings.append(findings.error("model", f"{gap.sentence}.", str(folder), again))
    if found.lost_bytes and gaps:
        report.findings.append(_amount(report, scan, found, again))
    for sentence in found.problems:
        report.findings.append(
            findings.error("model", f"{sentence}.", str(folder), _fix_tensor(report))
        )
    for sentence in found.notes:
        report.findings.append(_note(report, sentence))


def _copies(report: Report, scan: Scan) -> None:
    """How much of each mirror can be read, and what cannot."""
    mirror.check_folders(report.folder, report.mirrors)
    index = report.index
    files = index.paths if index is not None else tuple(scan.shards.paths)
    for place in mirror.places(report.folder, report.mirrors, files)[1:]:
        where = str(place.folder)
        for shard in place.bad:
            stop = "" if shard.reason.endswith("?") else "."
            what = f"{shard.name or 'the mirror'} is left out: {shard.reason}{stop}"
            fix = "Copy it again from the model's folder, or mount the drive."
            report.findings.append(findings.warning("model", what, where, fix))
        if place.files or not place.bad:
            what = f"a mirror with {place.files} of {len(files)} files."
            report.findings.append(findings.ok("model", what, where))


def _is_absent(scan: Scan, gap: Absent) -> bool:
    """Whether a gap is one, and not just a file that is there and damaged."""
    if gap.names:
        return any(not scan.sizes.get(name) for name in gap.names)
    return not scan.damaged


def _amount(report: Report, scan: Scan, found: Inspection, again: str) -> Finding:
    """How much is still to come."""
    sizes = sorted(size for size in scan.sizes.values() if size)
    typical = sizes[len(sizes) // 2] if sizes else 0
    files = max(1, round(found.lost_bytes / typical)) if typical else 0
    many = f"{files} file{'' if files == 1 else 's'}"
    about = f", about {many} of the usual size" if files else ""
    what = f"about {findings.size_text(found.lost_bytes)} are still missing{about}."
    return findings.error("model", what, str(report.folder), again)


def _again(report: Report, scan: Scan, found: Inspection) -> str:
    """The command that fetches what is absent or damaged."""
    folder = report.folder
    if (folder / packed.INDEX_NAME).exists():
        return "Convert the model again, or copy the folder from where it is whole."
    names = [*scan.damaged, *(name for gap in found.absent for name in gap.names)]
    known = report.known
    if known is not None and known.complete:
        names += [name for name in known.files if not (folder / name).is_file()]
    pattern = found.absent[0].pattern if found.absent else "*.safetensors"
    command = manifest.fetch_command(folder, sorted(set(names)), known, pattern)
    return f"Go on with: {command}{_which_repo(report)}"


def _which_repo(report: Report) -> str:
    if report.known is not None and report.known.repo:
        return ""
    text = " (REPO is the repository that the model came from"
    with contextlib.suppress(ColibriError, OSError):
        _, reader = container.read_config(report.folder)
        family = detect(reader.values, reader.where)
        geometry: Geometry = family.geometry(reader)
        guess = _PUBLISHED.get((family.name, geometry.n_layers, geometry.hidden))
        if guess is not None:
            text += f", for example {guess}"
    return text + ")"


def _fix_tensor(report: Report) -> str:
    return (
        "config.json and weights are not of the same model, or the file is damaged: copy both from "
        f"the same source{_which_repo(report)}."
    )


def _note(report: Report, sentence: str) -> Finding:
    where = str(report.folder)
    if _WEAK in sentence:
        fix = "Prefer a container with one scale per 64 columns (int4 gs64)."
        return findings.warning("model", f"{sentence}.", where, fix)
    if sentence.endswith("empty files were skipped"):
        return findings.note("model", f"{sentence}: they hold no tensors.", where)
    return findings.note("model", f"{sentence}.", where)


def _text(report: Report) -> None:
    """Tokenizer, template, end ids."""
    text = opening.open_text(report.folder)
    ends = ", ".join(map(str, sorted(text.end_ids))) or "none"
    chat = "a chat template" if text.template is not None else "no chat template"
    report.findings.append(
        findings.ok("model", f"tokenizer with {chat}, end ids {ends}.", str(report.folder))
    )


def _deep(
    report: Report, scan: Scan, progress: Progress | None, always_hash: bool, read: Read
) -> None:
    with _noted(report, report.folder):
        result = deep_check.read_all(
            scan, report.index, progress, always_hash=always_hash, read=read
        )
        report.deep = result
        report.findings += result.findings
        if any(item.level == "error" for item in result.findings):
            return
        total = f"all {findings.size_text(result.bytes)} were read"
        if result.hashed >= result.bytes * 0.99:
            said = f"{total} and agree with their hashes."
        elif result.hashed:
            said = f"{total}; {findings.size_text(result.hashed)} have hashes, and they agree."
        else:
            said = (
                f"{total}; nothing says which hashes they should have. "
                "No NaN and no empty stretches."
            )
        report.findings.append(findings.ok("integrity", said, str(report.folder)))


def _sum_up(report: Report) -> None:
    files = report.files
    if files is None:
        return
    size = sum(report.scan.sizes.values()) if report.scan is not None else 0
    used = {(tensor.file, tensor.offset) for tensor in files.tensors}
    count = len(files.paths)
    many = f"{count} file{'' if count == 1 else 's'}"
    what = (
        f"{files.family.name}, {files.kind}: {len(used)} tensors in {many}, "
        f"{findings.size_text(size)}; all layers are there."
    )
    report.findings.append(findings.ok("model", what, str(report.folder)))
    if report.known is not None and report.known.complete:
        what = f"{len(report.known.files)} files are compared with the manifest."
        report.findings.append(findings.note("model", what, report.known.origin))


def fit(
    files: ModelFiles, budget: int | None, chosen: Settings, program: int
) -> tuple[dict[str, Any], Finding]:
    """Whether the model fits into `budget`, by the arithmetic that opening it uses.

    `program` is what one of our processes holds before the engine is opened. `budget` None: the
    free memory is unknown.
    """
    where = str(files.folder)
    geometry = stretched(files.geometry, chosen.ctx or 0)
    tokenizer = files.folder / opening.TOKENIZER_FILE
    base = EngineOptions(
        precision=Precision[chosen.precision.upper()],
        threads=chosen.threads,
        memory_budget=budget or 0,
        caller_bytes=program_bytes(program, program)
        + idle_slot_bytes(geometry, chosen.kv_slots - chosen.parallel)
        + store_queue_bytes(chosen.prefix_store_gb, geometry, chosen.prefill_chunk)
        + grammar_bytes(tokenizer.stat().st_size if tokenizer.is_file() else 0),
        sessions=chosen.parallel,
        prefill_chunk=chosen.prefill_chunk,
    )
    try:
        plan = choose(
            geometry,
            ffi_plan.Planner(geometry, files.tensors).plan,
            base,
            context=chosen.ctx or 0,
            drafts=chosen.drafts,
        ).plan
    except EngineError as failure:
        return {}, findings.error("model", f"{failure}.", where, _REPLACE)
    facts = {
        "budget": budget,
        "fits": bool(plan.fits),
        "streaming": bool(plan.streaming),
        "context": plan.context,
        "dense": plan.dense_bytes,
        "experts": plan.expert_bytes,
        "total": plan.total_bytes,
        "least_budget": plan.least_budget,
        "resident_budget": plan.resident_budget,
    }
    weights = findings.size_text(plan.dense_bytes + plan.expert_bytes)
    if budget is None:
        what = f"{weights} of weights; the free memory is unknown, so nobody says if they fit."
        return facts, findings.note("machine", what, where)
    room = f"{findings.size_text(budget)} of memory"
    if not plan.fits:
        least = findings.size_text(plan.least_budget)
        what = (
            f"the model needs {least} at least, with its context and the program; there are {room}."
        )
        return facts, findings.error("machine", what, where, remedy(plan))
    if plan.streaming:
        what = (
            f"{weights} of weights do not fit into {room}: experts are read from disk as they are "
            f"needed, with a context of {plan.context} tokens."
        )
        fix = "`coli plan MODEL` says how fast that will be."
        return facts, findings.note("machine", what, where, fix)
    what = f"{weights} of weights and a context of {plan.context} tokens fit into {room}."
    return facts, findings.ok("machine", what, where)
