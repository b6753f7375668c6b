"""Small model files for tests, written by hand: safetensors, GGUF, tokenizers, model folders.

For: tests of `colibri.models` and `colibri.text`. Written apart from the product's readers, so that
a misreading does not cancel itself out. Random numbers come from fixed seeds.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DTYPES = {"F32": np.float32, "F16": np.float16, "U8": np.uint8, "I8": np.int8}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 320,
    "eos_token_id": 1,
}
GLM = {
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 4,
    "hidden_size": 160,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 192,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 96,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 8e6},
    "index_topk": 16,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "indexer_types": ["full", "shared", "full", "shared"],
    "num_nextn_predict_layers": 1,
    "eos_token_id": [1, 2, 3],
}
SPECIALS = ("<|unknown|>", "<|im_end|>", "<|user|>", "<|observation|>", "<|im_start|>")
MARKERS = ("<think>", "</think>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Raw = tuple[str, Sequence[int], bytes]


def safetensors(
    tensors: Mapping[str, Raw], metadata: Mapping[str, str] | None = None, pad: int = 0
) -> bytes:
    """A safetensors file from (dtype, shape, bytes) by name; `pad` is a gap before each tensor."""
    header: dict[str, Any] = {}
    if metadata:
        header["__metadata__"] = dict(metadata)
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        data += bytes(pad)
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    return raw_safetensors(header, data)


def raw_safetensors(header: Any, data: bytes) -> bytes:
    """A safetensors file with any header, valid or not."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def raw(array: NDArray[Any], dtype: str | None = None) -> Raw:
    """(dtype, shape, bytes) of an array."""
    names = {np.dtype(value): key for key, value in DTYPES.items()}
    return dtype or names[array.dtype], array.shape, np.ascontiguousarray(array).tobytes()


def llama_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a llama checkpoint, written down once more."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    head = hidden // config["num_attention_heads"]
    kv = config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        shapes[prefix + "self_attn.q_proj.weight"] = (hidden, hidden)
        shapes[prefix + "self_attn.k_proj.weight"] = (kv, hidden)
        shapes[prefix + "self_attn.v_proj.weight"] = (kv, hidden)
        shapes[prefix + "self_attn.o_proj.weight"] = (hidden, hidden)
        shapes[prefix + "mlp.gate_proj.weight"] = (ffn, hidden)
        shapes[prefix + "mlp.up_proj.weight"] = (ffn, hidden)
        shapes[prefix + "mlp.down_proj.weight"] = (hidden, ffn)
    return shapes


def weights(shapes: Mapping[str, tuple[int, ...]], seed: int = 7) -> dict[str, NDArray[np.float32]]:
    """Small random f32 weights."""
    random = np.random.default_rng(seed)
    return {
        name: random.standard_normal(shape).astype(np.float32) * np.float32(0.1)
        for name, shape in shapes.items()
    }


def tokenizer(extra: Sequence[str] = ()) -> dict[str, Any]:
    """A byte-level BPE tokenizer.json with a few merges, end tokens and two markers."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = [chr(byte) for byte in printable] + [chr(256 + n) for n in range(len(others))]
    merges = [["h", "i"], ["Ġ", "t"], ["Ġt", "he"], ["h", "e"]]
    merges = [merges[0], merges[1], merges[3], merges[2]]
    tokens = [*SPECIALS, *alphabet, *("".join(pair) for pair in merges), *MARKERS, *extra]
    added = [*SPECIALS, *MARKERS, *extra]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": tokens.index(text),
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": text in SPECIALS,
            }
            for text in added
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {text: number for number, text in enumerate(tokens)},
            "merges": merges,
        },
    }


def text_files(folder: Path, config: Mapping[str, Any], template: str | None = CHATML) -> None:
    """config.json, tokenizer.json and the chat template of a model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)


def llama_folder(
    folder: Path, config: Mapping[str, Any] = LLAMA, shards: int = 1
) -> dict[str, NDArray[np.float32]]:
    """A complete llama model folder in F32; returns its weights."""
    text_files(folder, config)
    arrays = weights(llama_shapes(config))
    names = list(arrays)
    for number in range(shards):
        part = names[number * len(names) // shards : (number + 1) * len(names) // shards]
        path = folder / f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        path.write_bytes(safetensors({name: raw(arrays[name]) for name in part}))
    return arrays


def gguf(
    metadata: Sequence[tuple[str, int, Any]],
    tensors: Sequence[tuple[str, Sequence[int], int, bytes]],
    alignment: int = 32,
) -> bytes:
    """A GGUF v3 file. Metadata: (key, type id, value), arrays as (element type, list)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, kind, value in metadata:
        head += _gguf_text(key) + struct.pack("<I", kind) + _gguf_value(kind, value)
    data = b""
    for name, dims, kind, content in tensors:
        data += bytes(-len(data) % alignment)
        head += _gguf_text(name) + struct.pack("<I", len(dims))
        head += struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, len(data))
        data += content
    return head + bytes(-len(head) % alignment) + data


def _gguf_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _gguf_value(kind: int, value: Any) -> bytes:
    if kind == 8:
        return _gguf_text(value)
    if kind == 9:
        inner, items = value
        head = struct.pack("<IQ", inner, len(items))
        return head + b"".join(_gguf_value(inner, item) for item in items)
    return struct.pack("<" + {4: "I", 5: "i", 6: "f", 7: "?", 10: "Q"}[kind], value)
