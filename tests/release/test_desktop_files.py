"""Icons, menu entry, AppStream data and the .deb's layout."""

from __future__ import annotations

import configparser
import gzip
import struct
from pathlib import Path

import pytest
from defusedxml import ElementTree

from release import debian, icons
from release.variants import APP_ID

PACKAGING = Path(__file__).resolve().parent.parent.parent / "packaging"


def png(size: int) -> bytes:
    return (PACKAGING / "icons" / f"colibri-{size}.png").read_bytes()


@pytest.mark.parametrize("size", icons.SIZES)
def test_an_icon_has_the_size_that_its_name_says(size: int) -> None:
    assert icons.png_size(png(size)) == (size, size)
    with pytest.raises(ValueError, match="PNG"):
        icons.png_size(b"GIF89a" + bytes(20))


def test_the_icon_files_hold_the_drawn_images() -> None:
    """A new drawing whose icons were not made again fails here."""
    images = {size: png(size) for size in icons.SIZES}
    ico = (PACKAGING / "icons" / "colibri.ico").read_bytes()
    assert ico == icons.ico({size: images[size] for size in icons.ICO_SIZES})
    icns = (PACKAGING / "icons" / "colibri.icns").read_bytes()
    assert icns == icons.icns(images)


def test_an_ico_file_says_where_its_images_lie() -> None:
    data = icons.ico({16: png(16), 256: png(256)})
    assert struct.unpack("<HHH", data[:6]) == (0, 1, 2)
    for index, size in enumerate((16, 256)):
        entry = struct.unpack("<BBBBHHII", data[6 + 16 * index : 22 + 16 * index])
        assert entry[0] == size % 256
        assert data[entry[7] : entry[7] + entry[6]] == png(size)


def test_an_icns_file_says_how_long_it_and_its_images_are() -> None:
    data = icons.icns({size: png(size) for size in icons.SIZES})
    assert data[:4] == b"icns" and struct.unpack(">I", data[4:8]) == (len(data),)
    place, kinds = 8, []
    while place < len(data):
        kinds.append(data[place : place + 4])
        place += struct.unpack(">I", data[place + 4 : place + 8])[0]
    assert place == len(data) and kinds == list(icons.ICNS_KINDS)


def test_the_menu_entry_names_a_command_and_an_icon_that_are_installed(tmp_path: Path) -> None:
    lay_out(tmp_path)
    entry = configparser.ConfigParser(interpolation=None)
    entry.optionxform = str  # type: ignore[assignment,method-assign]
    share = tmp_path / "root" / "usr" / "share"
    entry.read(share / "applications" / f"{APP_ID}.desktop", encoding="utf-8")
    fields = entry["Desktop Entry"]
    command = tmp_path / "root" / "usr" / "bin" / fields["Exec"].split()[0]
    assert command.resolve() == (tmp_path / "root/usr/lib/colibri-llm/sidecar").resolve()
    for kind in ("scalable/apps/{}.svg", "48x48/apps/{}.png"):
        assert (share / "icons" / "hicolor" / kind.format(fields["Icon"])).is_file()
    assert {"Name", "Comment", "Comment[de]", "Categories"} <= set(fields)


def test_the_appstream_data_names_the_same_things_as_the_menu_entry(tmp_path: Path) -> None:
    lay_out(tmp_path)
    path = tmp_path / "root" / "usr" / "share" / "metainfo" / f"{APP_ID}.metainfo.xml"
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    assert root.findtext("id") == APP_ID
    assert root.findtext("launchable") == f"{APP_ID}.desktop"
    assert {item.text for item in root.iter("binary")} == set(debian.COMMANDS)
    (release,) = root.iter("release")
    assert release.attrib == {"version": "0.1.0", "date": "2023-11-14"}


def lay_out(folder: Path) -> None:
    bundle = folder / "bundle"
    bundle.mkdir()
    (bundle / "sidecar").touch(0o755)
    (bundle / "coli").symlink_to("sidecar")
    debian.lay_out(bundle, folder / "root", PACKAGING, "licences", "0.1.0", 1_700_000_000)


def test_the_package_holds_program_commands_and_licences(tmp_path: Path) -> None:
    lay_out(tmp_path)
    usr = tmp_path / "root" / "usr"
    assert {path.name for path in (usr / "bin").iterdir()} == set(debian.COMMANDS)
    assert all(path.exists() for path in (usr / "bin").iterdir())
    documents = usr / "share" / "doc" / "colibri-llm"
    assert (documents / "copyright").read_text() == "licences"
    assert b"Changelog" in gzip.decompress((documents / "changelog.gz").read_bytes())
    # Nothing runs at installation or removal, so nothing of a person's can be touched.
    assert not (tmp_path / "root" / "DEBIAN").exists()


def test_the_control_file_says_what_the_window_needs() -> None:
    text = debian.control("0.1.0", "amd64", 1_000_001, "2.36")
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line[:20])
    assert fields["Installed-Size"] == "977"
    assert "gir1.2-webkit2-4.1" in fields["Depends"] and "libc6 (>= 2.36)" in fields["Depends"]
    assert all(len(line) <= 80 or not line.startswith(" ") for line in text.splitlines())
