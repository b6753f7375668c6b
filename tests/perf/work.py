"""What a token costs on the weights of a GGUF file: bytes and operations behind the limits.

For: `run.py`. Reads the tensor table only.
"""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFReader

from tests.perf.rows import Work

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"


def work_of(path: Path) -> Work:
    """Work of a dense llama model. A tied embedding is the head and counts as such."""
    reader = GGUFReader(path)
    names = {tensor.name for tensor in reader.tensors}
    head = HEAD if HEAD in names else EMBEDDING
    weight_bytes = layer_params = head_params = 0
    for tensor in reader.tensors:
        if len(tensor.shape) != 2 or (tensor.name == EMBEDDING and head != EMBEDDING):
            continue
        weight_bytes += int(tensor.n_bytes)
        if tensor.name == head:
            head_params = int(tensor.n_elements)
        else:
            layer_params += int(tensor.n_elements)
    layers = _number(reader, "llama.block_count")
    width = _number(reader, "llama.embedding_length")
    return Work(weight_bytes, layer_params, head_params, layers * width)


def _number(reader: GGUFReader, key: str) -> int:
    found = reader.get_field(key)
    if found is None:
        raise ValueError(f"the GGUF file has no {key}; only llama files are measured")
    return int(found.parts[found.data[0]][0])
