"""Draws the program's icons from `packaging/icons/colibri.svg`: PNG, ICO for Windows, ICNS for
macOS.

Run by hand after a change of the drawing, `PYTHONPATH=packaging python -m release.icons`; needs
`rsvg-convert` (Debian: librsvg2-bin). The results are tracked, so that nothing else needs it.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "icons"
SIZES = (16, 24, 32, 48, 64, 128, 256, 512)
ICO_SIZES = (16, 24, 32, 48, 64, 256)
# Each holds a PNG of the size; those of 32, 64 and 512 points at double density share their pixels.
ICNS_KINDS = {b"icp4": 16, b"icp5": 32, b"icp6": 64, b"ic07": 128, b"ic08": 256, b"ic09": 512}


def png_size(png: bytes) -> tuple[int, int]:
    """Width and height in pixels. Raises ValueError for what is no PNG."""
    if png[:8] != b"\x89PNG\r\n\x1a\n" or png[12:16] != b"IHDR":
        raise ValueError("this is no PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def ico(images: Mapping[int, bytes]) -> bytes:
    """An ICO file of PNG images by size (at most 256)."""
    header = struct.pack("<HHH", 0, 1, len(images))
    offset = len(header) + 16 * len(images)
    table, data = b"", b""
    for size, png in sorted(images.items()):
        side = size % 256  # 0 says 256
        table += struct.pack("<BBBBHHII", side, side, 0, 0, 1, 32, len(png), offset + len(data))
        data += png
    return header + table + data


def icns(images: Mapping[int, bytes]) -> bytes:
    """An ICNS file of PNG images by size."""
    body = b""
    for kind, size in ICNS_KINDS.items():
        body += kind + struct.pack(">I", 8 + len(images[size])) + images[size]
    return b"icns" + struct.pack(">I", 8 + len(body)) + body


def main() -> None:
    convert = shutil.which("rsvg-convert")
    if convert is None:
        raise SystemExit("icons: rsvg-convert is needed (Debian: apt-get install librsvg2-bin)")
    images = {}
    for size in SIZES:
        target = FOLDER / f"colibri-{size}.png"
        command = [convert, "--width", str(size), "--height", str(size), "--output", str(target)]
        subprocess.run([*command, str(FOLDER / "colibri.svg")], check=True)  # noqa: S603
        images[size] = target.read_bytes()
    (FOLDER / "colibri.ico").write_bytes(ico({size: images[size] for size in ICO_SIZES}))
    (FOLDER / "colibri.icns").write_bytes(icns(images))


if __name__ == "__main__":
    main()
