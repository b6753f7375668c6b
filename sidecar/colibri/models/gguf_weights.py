"""From GGUF tensors to the engine's tensors: names, row order, formats.

For: the converter. Q4_0, Q4_1, Q8_0, F16, BF16 and F32 keep their bits. Every other type (K-quants,
IQ) is dequantized with the `gguf` package and stored as BF16: its rounding (2^-9 of a weight) is
some eight times smaller than that of int8 rows, and below the noise that the 4- to 6-bit source
already has. Thread rule: pure functions; numpy is imported here, so keep this module out of
start-up paths.

Files of architecture `llama` store the rows of q and k so that a rotary pair is two neighbours; the
engine rotates halves, so the rows are put back: [heads, dim/2, 2] -> [heads, 2, dim/2].
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from colibri.engine.table import Format
from colibri.errors import ModelError
from colibri.families.values import show
from colibri.models.gguf import GgufFile, GgufTensor

KEPT: Final = {
    "F32": Format.F32,
    "F16": Format.F16,
    "BF16": Format.BF16,
    "Q4_0": Format.Q4_0,
    "Q4_1": Format.Q4_1,
    "Q8_0": Format.Q8_0,
}
_OUTSIDE: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK: Final = re.compile(r"blk\.(\d{1,4})\.([a-z_]+)\.weight\Z")
_IGNORED: Final = re.compile(r"blk\.\d+\.attn_rot_embd\.weight\Z")


def canonical_names(file: GgufFile) -> dict[str, GgufTensor]:
    """Tensors by their Hugging Face name; one that has no place in a llama model is refused by
    name.
    """
    result = {}
    for tensor in file.tensors.values():
        match = _BLOCK.match(tensor.name)
        if match is not None and match[2] in _IN_LAYER:
            result[f"model.layers.{int(match[1])}.{_IN_LAYER[match[2]]}.weight"] = tensor
        elif tensor.name in _OUTSIDE:
            result[_OUTSIDE[tensor.name]] = tensor
        elif not _IGNORED.match(tensor.name):
            raise ModelError(
                f"tensor {show(tensor.name)} has no place in a dense llama model.",
                where=str(file.path),
            )
    return result


def output_format(tensor: GgufTensor) -> Format:
    """Format that the tensor has after `load`."""
    return KEPT.get(tensor.type, Format.BF16)


def load(file: GgufFile, name: str, tensor: GgufTensor, heads: int) -> NDArray[np.uint8]:
    """Plain bytes of a tensor under its canonical name, as [rows, bytes per row].

    `heads` is the number of heads of q or k, 0 for every other tensor.
    """
    data = np.frombuffer(file.read(tensor), dtype=np.uint8).reshape(tensor.rows, -1)
    if tensor.type not in KEPT:
        data = as_bf16(_dequantize(file, tensor, data))
    if heads:
        per_head = tensor.rows // heads
        if per_head * heads != tensor.rows or per_head % 2:
            raise ModelError(
                f"tensor {show(tensor.name)} has {tensor.rows} rows, no multiple of {2 * heads}.",
                where=str(file.path),
            )
        data = data.reshape(heads, per_head // 2, 2, -1).swapaxes(1, 2).reshape(tensor.rows, -1)
    return np.ascontiguousarray(data)


def _dequantize(file: GgufFile, tensor: GgufTensor, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    from gguf import GGMLQuantizationType, quants  # noqa: PLC0415 - slow to import, rarely needed

    try:
        kind: Any = GGMLQuantizationType[tensor.type]
        values = np.asarray(quants.dequantize(data, kind), dtype=np.float32)
    except (KeyError, NotImplementedError, ValueError) as error:
        raise ModelError(
            f"tensor {show(tensor.name)}: the type {tensor.type} cannot be converted ({error}).",
            where=str(file.path),
        ) from error
    return values.reshape(tensor.rows, tensor.cols)


def as_bf16(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Rounds f32 [rows, cols] to bf16 bytes [rows, 2 * cols], nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    result = np.where(np.isnan(values), quiet, rounded).astype("<u2")
    return result.view(np.uint8).reshape(values.shape[0], -1)
