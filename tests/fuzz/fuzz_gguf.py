"""Hostile GGUF files: header, metadata, tensors, and the tokenizer and config built from them."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz import plain_import  # noqa: F401 - its import is the effect

with atheris.instrument_imports(include=["colibri"]):
    from colibri.models import gguf, gguf_text, gguf_weights

from tests.fuzz import target

STRING, ARRAY, UINT32, FLOAT32 = 8, 9, 4, 6


def read(data: bytes, folder: Path) -> None:
    path = folder / "model.gguf"
    path.write_bytes(data if data[:1] < b"\x20" else gguf.MAGIC + data[1:])
    file = gguf.read(path)
    gguf_text.check_architecture(file)
    gguf_text.config(file)
    gguf_text.tokenizer(file)
    gguf_text.tokenizer_config(file)
    gguf_text.template(file)
    gguf_weights.canonical_names(file)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def number(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", UINT32, value)


def words(key: str, values: list[str]) -> bytes:
    head = text(key) + struct.pack("<IIQ", ARRAY, STRING, len(values))
    return head + b"".join(map(text, values))


def tiny_llama() -> bytes:
    """A header that the converter accepts up to the weights; the leading ~ stands for the magic."""
    metadata = [
        text("general.architecture") + struct.pack("<I", STRING) + text("llama"),
        number("llama.block_count", 1),
        number("llama.embedding_length", 8),
        number("llama.feed_forward_length", 8),
        number("llama.attention.head_count", 2),
        number("llama.attention.head_count_kv", 1),
        number("llama.context_length", 128),
        text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", FLOAT32, 1e-5),
        text("llama.rope.freq_base") + struct.pack("<If", FLOAT32, 10000.0),
        text("tokenizer.ggml.model") + struct.pack("<I", STRING) + text("gpt2"),
        text("tokenizer.ggml.pre") + struct.pack("<I", STRING) + text("smollm"),
        words("tokenizer.ggml.tokens", ["<|im_start|>", "<|im_end|>", "a", "b", "ab"]),
        words("tokenizer.ggml.merges", ["a b"]),
        text("tokenizer.ggml.token_type") + struct.pack("<IIQ5i", ARRAY, 5, 5, 3, 3, 1, 1, 1),
        number("tokenizer.ggml.eos_token_id", 1),
        text("tokenizer.chat_template") + struct.pack("<I", STRING) + text("{{ messages }}"),
    ]
    tensor = text("token_embd.weight") + struct.pack("<IQQIQ", 2, 8, 5, 0, 0)
    head = b"~" + struct.pack("<IQQ", 3, 1, len(metadata)) + b"".join(metadata) + tensor
    return head + bytes(-(len(head) + 3) % 32) + bytes(8 * 5 * 4)


if __name__ == "__main__":
    target.run(read, {"llama": tiny_llama()})
