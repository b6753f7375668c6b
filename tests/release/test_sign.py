"""Signing: the right commands with keys, and a loud word without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from release import sign


class Recorded(list[list[str]]):
    """Stands for running programs: keeps the command lines."""

    def __call__(self, command: object) -> None:
        self.append([str(word) for word in command])  # type: ignore[attr-defined]


def test_without_keys_a_release_is_made_and_called_unsigned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Recorded()
    for system in ("linux", "windows", "macos"):
        unsigned = sign.sign_programs(system, tmp_path / "Colibri.app", {}, run)
        unsigned += sign.sign_checksums(tmp_path / "SHA256SUMS", {}, run)
        sign.report(system, unsigned, tmp_path)
        note = (tmp_path / "UNSIGNED.txt").read_text()
        assert "COLIBRI_SIGN_GPG" in note and sign.UNSIGNED_NOTE[system] in note
        assert "UNSIGNED" in capsys.readouterr().err
    # The Mac's own seal for one computer is made again, because links were added to the app.
    assert run == [["codesign", "--force", "--deep", "--sign", "-", str(tmp_path / "Colibri.app")]]


def test_with_keys_everything_is_signed_and_checked(tmp_path: Path) -> None:
    run = Recorded()
    (tmp_path / "sidecar.exe").touch()
    keys = {
        "COLIBRI_SIGN_APPLE": "Developer ID",
        "COLIBRI_NOTARY_PROFILE": "profile",
        "COLIBRI_SIGN_WINDOWS": "AB12",
        "COLIBRI_SIGN_TIMESTAMP": "a time stamp server",
        "COLIBRI_SIGN_GPG": "me",
    }
    assert sign.sign_programs("windows", tmp_path, keys, run) == []
    assert sign.sign_programs("macos", tmp_path / "Colibri.app", keys, run) == []
    assert sign.sign_checksums(tmp_path / "SHA256SUMS", keys, run) == []
    programs = [command[:3] for command in run]
    assert ["signtool", "sign", "/sha1"] in programs and ["signtool", "verify", "/pa"] in programs
    assert ["codesign", "--verify", "--deep"] in programs
    assert ["xcrun", "notarytool", "submit"] in programs and [
        "xcrun",
        "stapler",
        "staple",
    ] in programs
    assert run[-1][0] == "gpg" and run[-1][-1].endswith("SHA256SUMS")
    assert any("runtime" in command for command in run)  # notarisation demands it


def test_a_signed_release_takes_back_the_note(tmp_path: Path) -> None:
    (tmp_path / "UNSIGNED.txt").touch()
    sign.report("linux", [], tmp_path)
    assert not (tmp_path / "UNSIGNED.txt").exists()


def test_signed_without_notary_is_said(tmp_path: Path) -> None:
    keys = {"COLIBRI_SIGN_APPLE": "Developer ID"}
    (problem,) = sign.sign_programs("macos", tmp_path / "Colibri.app", keys, Recorded())
    assert "notarised" in problem
