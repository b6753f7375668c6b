"""The step before a container is published: complete, readable, hashed, and nothing private in it.

For: `coli verify`. It is the doctor's look with every byte read, and the rules that only matter to
those who fetch the container later. Not for: uploading. Thread rule: as `models.doctor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from colibri import findings
from colibri.engine.table import Format
from colibri.errors import ColibriError, IntegrityError
from colibri.findings import Finding
from colibri.hardware import disk
from colibri.hardware.disk import Read
from colibri.models import deep_check, doctor, manifest
from colibri.models.container import ModelFiles
from colibri.models.deep_check import Progress
from colibri.models.doctor import Report
from colibri.models.model import TEMPLATE_FILE, open_text

# What a model can do without, and what is then lost.
_WANTED: Final = {
    "generation_config.json": "the sampling its makers recommend, and often further end ids",
    "tokenizer_config.json": "the end token's text, and often the chat template",
}
# Text or habits of the person who ran the model.
_PRIVATE: Final = (".coli_kv", ".coli_usage", ".coli_atlas")
# Left behind by writers that were interrupted.
_LEFTOVER_ENDINGS: Final = (".tmp", ".lock", ".incomplete", ".partial", ".part", ".aria2")
_LEFTOVER_NAMES: Final = frozenset({".out-progress.json", ".out-params.json", ".convert.json"})
_GOOD_GROUP: Final = 64
_QUANTIZED_4: Final = frozenset({Format.I4_ROW, Format.I4_GROUP})


def verify(
    folder: Path,
    *,
    hashes: bool = False,
    progress: Progress | None = None,
    read: Read = disk.pread,
    mirrors: Sequence[Path] = (),
) -> Report:
    """Everything that speaks against publishing a folder. `hashes`: compute SHA-256 of each file.
    `mirrors` are looked at too, as `doctor.examine` does.

    Raises only KeyboardInterrupt; everything else is a finding.
    """
    report = doctor.examine(
        folder, deep=True, always_hash=hashes, progress=progress, read=read, mirrors=mirrors
    )
    if not folder.is_dir():
        return report
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as failure:
        report.findings.append(findings.from_os_error(failure, str(folder)))
        return report
    report.findings += _side_files(folder, names)
    report.findings += _end_ids(folder)
    if report.files is not None:
        report.findings += _formats(report.files)
        if report.files.kind != "packed" and report.known is None and not hashes:
            what = "nothing lists the files and hashes, so nobody can check a download in seconds."
            fix = f"coli verify {folder} --manifest writes {manifest.MANIFEST_NAME}."
            report.findings.append(findings.note("model", what, str(folder), fix))
    return report


def _side_files(folder: Path, names: list[str]) -> list[Finding]:
    found = []
    for name, use in _WANTED.items():
        if name not in names:
            fix = f"Copy {name} of the original model, if it has one."
            what = f"{name} is missing: it holds {use}."
            found.append(findings.warning("model", what, str(folder), fix))
    private = [name for name in names if name.startswith(_PRIVATE)]
    if private:
        what = f"{', '.join(private)}: what you talked about, or which experts you use."
        fix = "Remove them before publishing."
        found.append(findings.warning("model", what, str(folder), fix))
    left = [name for name in names if name.endswith(_LEFTOVER_ENDINGS) or name in _LEFTOVER_NAMES]
    if left:
        what = f"left over from an interrupted writer: {', '.join(left[:4])}."
        fix = "Finish that work, or remove them."
        found.append(findings.warning("model", what, str(folder), fix))
    return found


def _end_ids(folder: Path) -> list[Finding]:
    try:
        text = open_text(folder)
    except (ColibriError, OSError):
        return []  # the doctor's look has said why
    found = []
    if not text.end_ids:
        what = "no end-of-turn token is named, so an answer only ends at its length."
        fix = 'Add "eos_token_id" to generation_config.json.'
        found.append(findings.error("model", what, str(folder), fix))
    if text.template is None:
        what = f"there is no chat template ({TEMPLATE_FILE}): the model only completes text."
        fix = "Copy the original's template if the model is one for chats."
        found.append(findings.warning("model", what, str(folder), fix))
    return found


def _formats(files: ModelFiles) -> list[Finding]:
    """Precisions that are known to be weak."""
    found = []
    where = str(files.folder)
    weak = any(
        item.format == Format.I4_ROW and ".mlp.experts." in item.name and item.cols > _GOOD_GROUP
        for item in files.tensors
    )
    if weak and files.kind == "packed":  # of published ones the doctor's look says so
        what = (
            "experts are int4 with one scale per row, which answers clearly worse than one scale "
            "per 64 columns."
        )
        fix = "Convert from the original with groups of 64 columns."
        found.append(findings.warning("model", what, where, fix))
    first_mtp = files.geometry.n_layers
    heads = [
        item
        for item in files.tensors
        if files.geometry.n_mtp_layers and item.name.startswith(f"model.layers.{first_mtp}.")
    ]
    if any(Format(item.format) in _QUANTIZED_4 for item in heads):
        what = "the MTP head has 4-bit weights: almost none of its drafts are kept."
        fix = "Convert the head (the last layer) with int8 weights."
        found.append(findings.warning("model", what, where, fix))
    return found


def write_manifest(report: Report, repo: str = "") -> Path:
    """Writes the list of files and hashes of a folder that was verified with `hashes`.

    Raises IntegrityError when the folder has errors: a manifest promises a whole container.
    """
    folder = report.folder
    if report.deep is None or findings.exit_code(report.findings):
        raise IntegrityError(
            "the container has errors, so no manifest is written.",
            where=str(folder),
            hint="Put the errors right and verify again.",
        )
    small = [
        path.name
        for path in sorted(folder.iterdir())
        if path.is_file()
        and path.name not in report.deep.hashes
        and path.name != manifest.MANIFEST_NAME
        and manifest.is_plain_name(path.name)
        and not path.name.startswith(".")
        and not path.name.endswith(_LEFTOVER_ENDINGS)
    ]
    hashes = {**report.deep.hashes, **deep_check.hash_files(folder, small)}
    return manifest.write(folder, hashes, {"repo": repo} if repo else None)
