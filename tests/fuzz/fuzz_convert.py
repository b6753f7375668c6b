"""Hostile sources of a conversion: a shard's header or the index, beside a valid config.

The first byte chooses the file that the rest becomes. What opens is read and widened to f32, as a
conversion would do it; nothing is written.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz import plain_import  # noqa: F401 - its import is the effect

with atheris.instrument_imports(include=["colibri"]):
    from colibri.models import quantize, recipe, sources

from colibri.families.glm_moe_dsa import GLM_MOE_DSA
from colibri.families.values import ConfigReader
from tests.fuzz import target
from tests.fuzz.fuzz_folder import GLM, TOKENIZER

CONFIG = {**GLM, "num_nextn_predict_layers": 1, "eos_token_id": 4}
SHARD, INDEX = "model-00001-of-00001.safetensors", "model.safetensors.index.json"
DATA_BYTES = 64 << 10


def entries(fp8: bool, fused: bool) -> dict[str, Any]:
    """Header of a complete checkpoint of CONFIG."""
    table: list[tuple[str, str, list[int]]] = []
    geometry = GLM_MOE_DSA.geometry(ConfigReader(CONFIG, "seed"))
    for spec in GLM_MOE_DSA.tensors(geometry):
        if fused and spec.expert >= 0:
            if spec.expert == 0 and "gate" in spec.name:
                prefix = spec.name.rsplit(".", 3)[0]
                experts, width, hidden = geometry.n_experts, spec.rows, spec.cols
                table.append((f"{prefix}.gate_up_proj", "BF16", [experts, 2 * width, hidden]))
                table.append((f"{prefix}.down_proj", "BF16", [experts, hidden, width]))
            continue
        coded = fp8 and not spec.is_vector and "proj" in spec.name
        shape = [spec.cols] if spec.is_vector else [spec.rows, spec.cols]
        table.append((spec.name, "F8_E4M3" if coded else "BF16", shape))
        if coded:
            table.append((spec.name + "_scale_inv", "F32", [1, 1]))
    header: dict[str, Any] = {}
    end = 0
    for name, dtype, shape in table:
        size = {"F8_E4M3": 1, "BF16": 2, "F32": 4}[dtype]
        for extent in shape:
            size *= extent
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return header


def shard(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + bytes(DATA_BYTES)


VALID = shard(json.dumps(entries(fp8=True, fused=False)).encode())


def read(data: bytes, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    index = folder / INDEX
    index.unlink(missing_ok=True)
    if data[:1] < b"\x40":
        index.write_bytes(data[1:])
        (folder / SHARD).write_bytes(VALID)
    else:
        (folder / SHARD).write_bytes(shard(data[1:]))
    opened = sources.open_source(folder)
    for weight in opened.weights:
        spec = weight.spec
        content, scales = weight.load(0, spec.rows)
        recipe.target(recipe.GS64, spec, weight.format, weight.group)
        if quantize.can_widen(weight.format):
            values = quantize.widen(weight.format, spec.rows, spec.cols, content, scales)
            quantize.as_int4(values, 64, spec.name)
            quantize.as_int8(values, spec.name)


if __name__ == "__main__":
    seeds = {
        name: b"~" + json.dumps(entries(**kinds)).encode()
        for name, kinds in {
            "bf16": {"fp8": False, "fused": False},
            "fp8": {"fp8": True, "fused": False},
            "fused": {"fp8": False, "fused": True},
        }.items()
    }
    names = entries(fp8=True, fused=False)
    seeds["index"] = b"!" + json.dumps({"weight_map": dict.fromkeys(names, SHARD)}).encode()
    target.run(read, seeds)
