"""Hostile model folders: config.json, colibri.json or tokenizer files of any content.

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
    from colibri.models import container, model

from tests.fuzz import target

LLAMA = {
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
GLM = {
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "vocab_size": 5,
    "max_position_embeddings": 128,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2,
    "v_head_dim": 4,
    "q_lora_rank": 4,
    "kv_lora_rank": 4,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "n_shared_experts": 1,
    "moe_intermediate_size": 4,
    "first_k_dense_replace": 1,
    "index_topk": 4,
    "index_n_heads": 2,
    "index_head_dim": 4,
    "indexer_types": ["full", "shared"],
}
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [
        {
            "id": 4,
            "content": "<|im_end|>",
            "special": True,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
    ],
    "decoder": {"type": "ByteLevel", **dict.fromkeys(("add_prefix_space", "trim_offsets"), False)},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": [["a", "b"]]},
}
PACKED = {"format": 1, "family": "llama", "files": [], "tensors": {}}
FILES = [
    "config.json",
    "colibri.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
]
VALID: dict[str, object] = {"config.json": LLAMA, "tokenizer.json": TOKENIZER}


def read(data: bytes, folder: Path) -> None:
    chosen = FILES[data[0] % len(FILES)] if data else FILES[0]
    for name in FILES:
        path = folder / name
        if name == chosen:
            path.write_bytes(data[1:])
        elif name in VALID:
            path.write_text(json.dumps(VALID[name]))
        else:
            path.unlink(missing_ok=True)
    if "token" in chosen or "generation" in chosen:
        model.open_text(folder)
    else:
        container.open_folder(folder)


def seed(name: str, content: object) -> bytes:
    return bytes([FILES.index(name)]) + json.dumps(content).encode()


if __name__ == "__main__":
    target.run(
        read,
        {
            "llama": seed("config.json", LLAMA),
            "glm": seed("config.json", GLM),
            "packed": seed("colibri.json", PACKED),
            "tokenizer": seed("tokenizer.json", TOKENIZER),
            "tokenizer_config": seed("tokenizer_config.json", {"chat_template": "{{ messages }}"}),
            "generation": seed("generation_config.json", {"eos_token_id": [4], "temperature": 0.6}),
        },
    )
