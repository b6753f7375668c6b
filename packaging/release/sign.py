"""Signing and notarising, where the keys for it are given; loud where they are not.

For: `release.build`. The variables, each a path or a name and never a secret in a file of ours:

    COLIBRI_SIGN_GPG         key id: detached signature of SHA256SUMS
    COLIBRI_SIGN_APPLE       identity in the keychain: codesign of Colibri.app
    COLIBRI_NOTARY_PROFILE   profile in the keychain: notarytool, staple
    COLIBRI_SIGN_WINDOWS     thumbprint in the certificate store: signtool of every .exe
    COLIBRI_SIGN_TIMESTAMP   address of the time stamp server for it (without one a signature ends
    with
                             the certificate)

A release without signature works; the systems warn of it, and UNSIGNED.txt beside it says what to
do. None of this has been run with real keys yet.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

UNSIGNED_NOTE = {
    "linux": "Compare the checksums: sha256sum --check SHA256SUMS",
    "windows": (
        "Windows says that it protected your PC: choose More info, then Run anyway. Before that, "
        "compare the checksum: Get-FileHash FILE"
    ),
    "macos": (
        "macOS says that the app is damaged or cannot be checked. In a terminal: "
        "xattr -dr com.apple.quarantine Colibri.app"
    ),
}

Run = Callable[[Sequence[str]], object]


def _run(command: Sequence[str]) -> object:
    return subprocess.run(command, check=True)  # noqa: S603 - fixed programs


def sign_programs(
    platform: str, bundle: Path, environment: Mapping[str, str], run: Run = _run
) -> list[str]:
    """Signs the programs in a bundle, before it is packed. Returns what was left unsigned."""
    if platform == "macos":
        return _sign_mac(bundle, environment, run)
    if platform == "windows":
        thumbprint = environment.get("COLIBRI_SIGN_WINDOWS")
        if not thumbprint:
            return ["the programs are not signed (COLIBRI_SIGN_WINDOWS is not set)"]
        programs = [str(path) for path in sorted(bundle.glob("*.exe"))]
        stamp = ["/fd", "sha256"]
        if server := environment.get("COLIBRI_SIGN_TIMESTAMP"):
            stamp += ["/tr", server, "/td", "sha256"]
        run(["signtool", "sign", "/sha1", thumbprint, *stamp, *programs])
        run(["signtool", "verify", "/pa", *programs])
    return []


def _sign_mac(bundle: Path, environment: Mapping[str, str], run: Run) -> list[str]:
    identity = environment.get("COLIBRI_SIGN_APPLE")
    if not identity:
        # PyInstaller has signed it for this computer alone; that seal is older than our links.
        run(["codesign", "--force", "--deep", "--sign", "-", str(bundle)])
        return ["Colibri.app is not signed (COLIBRI_SIGN_APPLE is not set)"]
    entitlements = Path(__file__).resolve().parent.parent / "macos" / "entitlements.plist"
    options = ["--force", "--deep", "--timestamp", "--options", "runtime"]
    run(
        ["codesign", *options, "--entitlements", str(entitlements), "--sign", identity, str(bundle)]
    )
    run(["codesign", "--verify", "--deep", "--strict", str(bundle)])
    profile = environment.get("COLIBRI_NOTARY_PROFILE")
    if not profile:
        return ["Colibri.app is signed but not notarised (COLIBRI_NOTARY_PROFILE is not set)"]
    archive = bundle.with_suffix(".notary.zip")
    run(["ditto", "-c", "-k", "--keepParent", str(bundle), str(archive)])
    run(["xcrun", "notarytool", "submit", str(archive), "--keychain-profile", profile, "--wait"])
    run(["xcrun", "stapler", "staple", str(bundle)])
    archive.unlink(missing_ok=True)
    return []


def sign_checksums(sums: Path, environment: Mapping[str, str], run: Run = _run) -> list[str]:
    """A detached signature SHA256SUMS.asc. Returns what was left unsigned."""
    key = environment.get("COLIBRI_SIGN_GPG")
    if not key:
        return ["SHA256SUMS is not signed (COLIBRI_SIGN_GPG is not set)"]
    options = ["--batch", "--yes", "--armor", "--local-user", key]
    run(["gpg", *options, "--output", f"{sums}.asc", "--detach-sign", str(sums)])
    return []


def report(platform: str, unsigned: Sequence[str], folder: Path) -> None:
    """Says loudly what is unsigned, on stderr and in UNSIGNED.txt; removes a stale one."""
    note = folder / "UNSIGNED.txt"
    if not unsigned:
        note.unlink(missing_ok=True)
        return
    text = "".join(f"{line}\n" for line in unsigned)
    note.write_text(f"{text}{UNSIGNED_NOTE[platform]}\n", encoding="utf-8")
    print(f"release: UNSIGNED: {'; '.join(unsigned)}", file=sys.stderr)
