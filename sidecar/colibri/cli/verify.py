"""`coli verify`: is a container fit to be published, every byte of it read.

For: whoever converts models for others, and anyone who wants certainty about a download. Not for:
the checks themselves (`models.verify`), which are imported when the command runs. Ctrl-C ends it at
once and leaves nothing behind.
"""

from __future__ import annotations

import json

import click

from colibri import findings
from colibri.cli.convert import ProgressLine
from colibri.cli.doctor import SCHEMA, as_plain, folders, mirror_option, show
from colibri.errors import ResourceError


@click.command()
@click.argument("model")
@click.option("--manifest", is_flag=True, help="Write the list of files and hashes beside it.")
@click.option("--repo", metavar="OWNER/NAME", help="Where it will be published; in the manifest.")
@mirror_option
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(
    model: str,
    manifest: bool,
    repo: str | None,
    mirrors: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> int:
    """Check MODEL (a name or a folder) completely: layers, shapes, hashes, text, side files."""
    from colibri.models import catalog  # noqa: PLC0415 - reads configs
    from colibri.models import manifest as manifests  # noqa: PLC0415
    from colibri.models import verify as checks  # noqa: PLC0415 - numpy, tokenizers

    if repo is not None and not manifests.is_repo(repo):
        raise click.BadParameter("expected OWNER/NAME", param_hint="--repo")
    folder = catalog.resolve(model)
    report = checks.verify(
        folder, hashes=manifest, progress=ProgressLine(quiet), mirrors=folders(mirrors)
    )
    code = findings.exit_code(report.findings)
    try:
        written = checks.write_manifest(report, repo or "") if manifest and code == 0 else None
    except OSError as error:
        raise ResourceError(
            f"the manifest cannot be written: {error.strerror or error}.", where=str(folder)
        ) from error
    if as_json:
        content = {
            "schema": SCHEMA,
            "model": str(folder),
            "kind": report.kind,
            "bytes": report.deep.bytes if report.deep is not None else 0,
            "bytes_with_hash": report.deep.hashed if report.deep is not None else 0,
            "manifest": str(written) if written is not None else None,
            "worst": findings.worst(report.findings),
            "exit_code": code,
            "findings": as_plain(report.findings),
        }
        click.echo(json.dumps(content, indent=2, allow_nan=False))
        return code
    show(report.findings)
    if written is not None:
        click.echo(f"Written: {written}", err=True)
    return code
