"""A GGUF of a Mixture-of-Experts model for the peer: as large as our synthetic one, random weights.

For: `moe_peer.py`, which measures the peer on a model that does not fit into memory. The shape is
that of our synthetic model as far as an architecture of the peer has it: as many sparse layers and
experts, of the same sizes, in Q4_0, whose 4.5 bits per weight equal our groups of 64. Attention is
grouped-query with about as many weights per layer. Codes are random and the router is a random
matrix, so routing is near uniform, as ours. Not for: text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

ARCHITECTURE = "qwen3moe"
HEAD_DIM = 128
CONTEXT = 8192
_BLOCK = 32  # weights that share a scale
_BLOCK_BYTES = 18
_DEVIATION = 4.2  # of the codes -7..7
_PIECE = 1 << 24  # weights made at once


@dataclass(frozen=True)
class MoeShape:
    """Sizes of the peer's model; `layers` are all sparse."""

    layers: int
    hidden: int
    experts: int
    top_k: int
    expert_ffn: int
    vocab: int
    heads: int
    kv_heads: int


def write_moe(path: Path, shape: MoeShape, seed: int = 1) -> None:
    """Writes the file, complete or not at all."""
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, ARCHITECTURE)
    _metadata(writer, shape)
    tensors = _tensors(shape)
    for name, dims in tensors:
        quantized = _is_quantized(name)
        count = int(np.prod(dims, dtype=np.int64))
        # The writer takes bytes along the last axis for quantized types.
        given = (*dims[:-1], dims[-1] // _BLOCK * _BLOCK_BYTES) if quantized else dims
        writer.add_tensor_info(
            name,
            given,
            np.dtype(np.uint8 if quantized else np.float32),
            count // _BLOCK * _BLOCK_BYTES if quantized else 4 * count,
            gguf.GGMLQuantizationType.Q4_0 if quantized else None,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(seed)
    for name, dims in tensors:
        writer.write_tensor_data(_values(name, dims, random))
    writer.close()
    partial.rename(path)


def _metadata(writer: gguf.GGUFWriter, shape: MoeShape) -> None:
    writer.add_block_count(shape.layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(2 * shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e6)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.top_k)
    writer.add_expert_feed_forward_length(shape.expert_ffn)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(shape.vocab)


def _tensors(shape: MoeShape) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes, rows first."""
    hidden, ffn, experts = shape.hidden, shape.expert_ffn, shape.experts
    wide, narrow = shape.heads * HEAD_DIM, shape.kv_heads * HEAD_DIM
    tensors: list[tuple[str, tuple[int, ...]]] = [
        ("token_embd.weight", (shape.vocab, hidden)),
        ("output_norm.weight", (hidden,)),
        ("output.weight", (shape.vocab, hidden)),
    ]
    for layer in range(shape.layers):
        parts: dict[str, tuple[int, ...]] = {
            "attn_norm": (hidden,),
            "attn_q": (wide, hidden),
            "attn_k": (narrow, hidden),
            "attn_v": (narrow, hidden),
            "attn_output": (hidden, wide),
            "attn_q_norm": (HEAD_DIM,),
            "attn_k_norm": (HEAD_DIM,),
            "ffn_norm": (hidden,),
            "ffn_gate_inp": (experts, hidden),
            "ffn_gate_exps": (experts, ffn, hidden),
            "ffn_up_exps": (experts, ffn, hidden),
            "ffn_down_exps": (experts, hidden, ffn),
        }
        tensors += [(f"blk.{layer}.{name}.weight", dims) for name, dims in parts.items()]
    return tensors


def _is_quantized(name: str) -> bool:
    return "norm" not in name and "gate_inp" not in name


def _values(name: str, dims: tuple[int, ...], random: np.random.Generator) -> NDArray[np.generic]:
    count = int(np.prod(dims, dtype=np.int64))
    if "norm" in name:
        return np.ones(dims, np.float32)
    if not _is_quantized(name):
        return random.standard_normal(dims, np.float32)
    blocks = np.empty((count // _BLOCK, _BLOCK_BYTES), np.uint8)
    scale = np.float16(1.0 / (_DEVIATION * np.sqrt(dims[-1])))
    blocks[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    step = _PIECE // _BLOCK
    for first in range(0, len(blocks), step):
        part = blocks[first : first + step]
        codes = random.integers(0, 256, (len(part), _BLOCK_BYTES - 2), np.uint8)
        # Without -8 the codes are symmetric. A mean would add up to one direction that all tokens
        # share, and then all would ask for the same experts.
        codes |= ((codes & 0x0F) == 0).astype(np.uint8) << 3
        codes |= ((codes & 0xF0) == 0).astype(np.uint8) << 7
        part[:, 2:] = codes
    return blocks.reshape(*dims[:-1], -1)
