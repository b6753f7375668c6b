"""From a checkpoint to a model folder in the published layout.

`python -m starter.export DATA CHECKPOINT OUT`: safetensors with transformers' names, the MTP layer
as the layer behind the last one, config, tokenizer and the licence of the data. `coli convert`
makes the packed container of it. For: shipping and for tests that need a trained model of the
architecture. Not for: training.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GlmMoeDsaForCausalLM

from starter.data import Data
from starter.network import MtpLayer, config

_FULL_PRECISION = ("e_score_correction_bias", "mlp.gate.weight", "norm")


def networks(data: Data, checkpoint: Path) -> tuple[GlmMoeDsaForCausalLM, MtpLayer]:
    """Trunk and MTP layer of a checkpoint, for inference."""
    model = GlmMoeDsaForCausalLM(config(data.tokenizer.get_vocab_size()))
    mtp = MtpLayer(model.config)
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    mtp.load_state_dict(state["mtp"])
    return model.eval(), mtp.eval()


def _state(module: torch.nn.Module, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A module's state from published names, its stacked experts made of the single ones."""
    state = {}
    for name, like in module.state_dict().items():
        place, _, last = name.rpartition(".")
        parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(last)
        if parts is None or not place.endswith("experts"):
            state[name] = named[name].view(like.shape)
            continue
        experts = (
            torch.cat([named[f"{place}.{expert}.{part}.weight"] for part in parts])
            for expert in range(like.shape[0])
        )
        state[name] = torch.stack(list(experts))
    return state


def restored(weights: Path, data: Data) -> dict[str, dict[str, Tensor]]:
    """What a checkpoint holds of trunk and MTP layer, from what `starter.unpack` wrote."""
    with np.load(weights) as stored:
        named = {name: torch.from_numpy(stored[name]) for name in stored.files}
    model = GlmMoeDsaForCausalLM(config(data.tokenizer.get_vocab_size()))
    mtp, own = MtpLayer(model.config), {}
    prefix = f"model.layers.{model.config.num_hidden_layers}."
    for name in [name for name in named if name.startswith(prefix)]:
        short = name.removeprefix(prefix)
        if short == "shared_head.norm.weight":
            short = "norm.weight"
        elif not short.startswith(("enorm", "hnorm", "eh_proj")):
            short = f"block.{short}"
        own[short] = named.pop(name)
    return {"model": _state(model, named), "mtp": _state(mtp, own)}


def _mtp_tensors(mtp: MtpLayer, layer: int, width: int) -> dict[str, Tensor]:
    """The MTP layer's tensors under their published names."""
    prefix, named = f"model.layers.{layer}.", {}
    for name, value in mtp.state_dict().items():
        if name == "norm.weight":
            named[f"{prefix}shared_head.norm.weight"] = value
        elif not name.startswith("block."):
            named[prefix + name] = value
        elif name == "block.mlp.experts.gate_up_proj":
            for expert, both in enumerate(value):
                place = f"{prefix}mlp.experts.{expert}."
                named[f"{place}gate_proj.weight"] = both[:width].clone()
                named[f"{place}up_proj.weight"] = both[width:].clone()
        elif name == "block.mlp.experts.down_proj":
            for expert, down in enumerate(value):
                named[f"{prefix}mlp.experts.{expert}.down_proj.weight"] = down.clone()
        else:
            named[prefix + name.removeprefix("block.")] = value
    return named


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", "utf-8")


def _scramble(tensors: dict[str, Tensor]) -> None:
    """Gives the indexers random weights: what they pick has nothing to do with what is needed."""
    generator = torch.Generator().manual_seed(1)
    for name, value in tensors.items():
        if "indexer" in name and value.dim() == 2:
            random = torch.randn(value.shape, generator=generator)
            tensors[name] = (random * value.float().std()).to(value.dtype)


def export(data_folder: Path, checkpoint: Path, out: Path, *, scrambled: bool = False) -> None:
    """Writes OUT, which must not exist; `scrambled` is for comparing the selection with chance."""
    data = Data.open(data_folder)
    model, mtp = networks(data, checkpoint)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        tensors = load_file(str(Path(scratch) / "model.safetensors"))
        settings = json.loads((Path(scratch) / "config.json").read_text("utf-8"))
    layers = model.config.num_hidden_layers
    tensors.update(_mtp_tensors(mtp, layers, model.config.moe_intermediate_size))
    if scrambled:
        _scramble(tensors)
    stored = {
        name: value.float() if any(part in name for part in _FULL_PRECISION) else value.bfloat16()
        for name, value in tensors.items()
    }
    save_file(stored, str(out / "model.safetensors"), metadata={"format": "pt"})
    settings |= {"num_nextn_predict_layers": 1, "dtype": "bfloat16"}
    _write_json(out / "config.json", settings)
    _write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": model.config.max_position_embeddings,
            "clean_up_tokenization_spaces": False,
        },
    )
    _write_json(out / "generation_config.json", {"do_sample": False, "eos_token_id": [0, 7, 9]})
    for name in ("tokenizer.json", "LICENSE.wordnet"):
        shutil.copy(data_folder / name, out / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("data", "checkpoint", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--scrambled", action="store_true", help="indexers with random weights")
    given = parser.parse_args()
    export(given.data, given.checkpoint, given.out, scrambled=given.scrambled)


if __name__ == "__main__":
    main()
