"""Hostile model folders under the doctor: any content of any file is findings, never an exception.

The input's first byte names the file that the rest becomes; the others stay valid.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz import plain_import  # noqa: F401 - its import is the effect

with atheris.instrument_imports(include=["colibri"]):
    from colibri.models import doctor

from tests.fuzz import target
from tests.models.files import raw_safetensors

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 5,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
SHARD = raw_safetensors(
    {"model.norm.weight": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}, bytes(32)
)
MANIFEST = {
    "schema": 1,
    "source": {"repo": "owner/name", "revision": "1"},
    "files": [{"name": "out-00000.safetensors", "bytes": len(SHARD), "sha256": "0" * 64}],
}
FILES = [
    "config.json",
    "colibri.json",
    "colibri-manifest.json",
    "tokenizer.json",
    "out-00000.safetensors",
    "out-00001.safetensors",
    "model.safetensors.index.json",
]
VALID = {"config.json": json.dumps(CONFIG).encode(), "out-00000.safetensors": SHARD}


def read(data: bytes, folder: Path) -> None:
    chosen = FILES[data[0] % len(FILES)] if data else FILES[0]
    for name in FILES:
        path = folder / name
        if name == chosen:
            path.write_bytes(data[1:])
        elif name in VALID:
            path.write_bytes(VALID[name])
        else:
            path.unlink(missing_ok=True)
    for item in doctor.examine(folder, deep=bool(data and data[0] & 0x80)).findings:
        if item.level in ("warning", "error") and not (item.what and item.where and item.fix):
            raise RuntimeError(f"a finding without place or remedy: {item}")


def seed(name: str, content: bytes) -> bytes:
    return bytes([FILES.index(name)]) + content


if __name__ == "__main__":
    target.run(
        read,
        {
            "config": seed("config.json", VALID["config.json"]),
            "shard": seed("out-00001.safetensors", SHARD),
            "manifest": seed("colibri-manifest.json", json.dumps(MANIFEST).encode()),
            "index": seed(
                "model.safetensors.index.json",
                json.dumps({"weight_map": {"a": "out-00002.safetensors"}}).encode(),
            ),
            "packed": seed(
                "colibri.json",
                json.dumps(
                    {
                        "format": "colibri-packed",
                        "version": 1,
                        "family": "llama",
                        "files": [{"name": "out-00000.safetensors", "bytes": len(SHARD)}],
                        "tensors": {},
                    }
                ).encode(),
            ),
        },
    )
