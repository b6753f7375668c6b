"""What makes two folders the same model: the key under which computed context is stored.

For: the prefix store, whose KV must never meet other weights. Not for: proving that a download is
whole (`coli verify`). Only content counts: a copied or renamed folder is the same model.

A packed container's index holds a hash of every tensor, so its own hash says all. Of other files
the size, the header and some pages spread over the data are hashed: weights that were trained on,
quantized or converted differently differ in every page. Thread rule: pure functions over files.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from colibri import regular
from colibri.models import packed
from colibri.models.container import ModelFiles

_PAGE: Final = 4096
# Headers of the largest published shards take a few MB.
_HEADER: Final = 1 << 20
_SAMPLES: Final = 16
_TEXT_FILES: Final = ("config.json", "tokenizer.json")


def content_id(files: ModelFiles) -> str:
    """A hexadecimal name of weights, shape and tokenizer. Raises OSError."""
    digest = hashlib.blake2b(digest_size=16)
    for name in _TEXT_FILES:
        path = files.folder / name
        data = regular.read_file(path) if path.is_file() else b""
        digest.update(f"{name} {len(data)}\n".encode() + data)
    index = files.folder / packed.INDEX_NAME
    if files.kind == "packed" and index.is_file():
        digest.update(regular.read_file(index))
    else:
        for path in sorted(files.paths, key=lambda item: item.name):
            _add_samples(digest, path)
    return digest.hexdigest()


def _add_samples(digest: hashlib.blake2b, path: Path) -> None:
    size = path.stat().st_size
    digest.update(f"{path.name} {size}\n".encode())
    with regular.open_file(path) as stream:
        digest.update(stream.read(_HEADER))
        for i in range(1, _SAMPLES + 1):
            stream.seek(max(0, size * i // _SAMPLES - _PAGE))
            digest.update(stream.read(_PAGE))
