"""Makes the committed oracle fixtures: tiny random models and what transformers computes from them.

    python -m tests.oracle.make_fixtures [--only NAME,NAME] [--out DIR]

Needs torch (CPU) and transformers 5.24, which nothing else here does; run it from the repository
root in an environment of its own. Every case is written to OUT/<name>/:

    model/                       a checkpoint (Hugging Face layout) or a published-style container
    oracle.json                  prompts, greedy tokens, smallest margins, checks
    oracle.safetensors           p<i>.logits    f32 [T, V]  all positions of prompt + greedy tokens
                                 p<i>.hidden.l  f32 [T, H]  before layer l, and after the last norm
                                 p<i>.topk.l    i32 [T, k]  the indexer's positions, -1 = none
                                 p<i>.mtp       f32 [T-1, V]  logits of the MTP layer
                                 (the last three for one prompt of some cases only)

The model that the oracle runs holds exactly the values that the written file stands for: bf16-exact
weights, or the dequantized ones. It runs in f32, so an engine that reads the file and computes in
f32 agrees to about 1e-5. Seeds are tried until no greedy choice, router cut or indexer cut is a
near-tie.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as glm_code

from . import published, reference
from .checkpoint import Array, Checkpoint, Raw, dequantize, to_bf16, write_safetensors

MARGIN = 2e-3  # smallest gap between the best and the second logit at a greedy step
CUT = 2e-5  # smallest gap between the last chosen and the first rejected (router, indexer)
LOWEST_ID = 3  # prompts use no smaller token: 0..2 are kept for special tokens
NEW_TOKENS = 10
SHORT, LONG = (1, 6, 23, 40), (1, 6, 23, 150)  # the long one crosses the KV block of 128 tokens
F32_ONLY = ("e_score_correction_bias",)


@dataclass(frozen=True)
class Case:
    """One fixture. `quantize` writes the container's files and returns the values that they stand
    for (None: a BF16 checkpoint is written); `debug` is the prompt whose hidden states are kept;
    `plain_config` is added to config.json only, not to the model that the oracle runs."""

    name: str
    config: Any
    lengths: tuple[int, ...] = SHORT
    mtp: bool = False
    quantize: Callable[[dict[str, Array], Path], dict[str, Array]] | None = None
    debug: int | None = None
    plain_config: dict[str, Any] = field(default_factory=dict)


# ---- weights ----------------------------------------------------------------------------------


def random_weight(name: str, shape: torch.Size, rng: torch.Generator) -> torch.Tensor:
    """Values that keep activations at about unit size; exact in bf16 unless the tensor is f32."""
    r = torch.randn(shape, generator=rng)
    if "e_score_correction_bias" in name:
        return r * 0.05
    if name.endswith("norm.weight"):
        r = 1 + 0.1 * r
    elif name.endswith("norm.bias"):
        r = 0.1 * r
    elif "embed_tokens" not in name:
        r = r * (1.3 / math.sqrt(shape[-1]))
    return r.to(torch.bfloat16).float()


def named_weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Views of every weight under its checkpoint name: packed experts come one by one."""
    buffers = ((n, b) for n, b in model.named_buffers() if "e_score" in n)
    tied = getattr(model.config, "tie_word_embeddings", False)
    for name, p in [*model.named_parameters(), *buffers]:
        if p.dim() != 3:
            if not (tied and name == "lm_head.weight"):
                yield name, p.data
            continue
        base, fused = name.rsplit(".", 1)
        half = p.shape[1] // 2
        for e in range(p.shape[0]):
            if fused == "gate_up_proj":
                yield f"{base}.{e}.gate_proj.weight", p.data[e, :half]
                yield f"{base}.{e}.up_proj.weight", p.data[e, half:]
            else:
                yield f"{base}.{e}.{fused}.weight", p.data[e]


class Mtp(torch.nn.Module):
    """One next-token-prediction layer, assembled from transformers' own decoder layer and norms."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        n, c = config.num_hidden_layers, copy.deepcopy(config)
        c.num_hidden_layers = n + 1
        c.indexer_types = [*config.indexer_types[:n], "full"]
        c.mlp_layer_types = [*config.mlp_layer_types[:n], "sparse"]
        c.layer_types = ["indexed_attention"] * (n + 1)
        c._attn_implementation = "eager"
        self.config = c
        self.enorm, self.hnorm, self.head_norm = (
            glm_code.GlmMoeDsaRMSNorm(c.hidden_size, c.rms_norm_eps) for _ in range(3)
        )
        self.eh_proj = torch.nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
        self.block = glm_code.GlmMoeDsaDecoderLayer(c, n)
        self.prefix = f"model.layers.{n}."

    def checkpoint_name(self, name: str) -> str:
        """Name of one of this module's weights in a checkpoint."""
        name = name.removeprefix("block.").replace("head_norm.", "shared_head.norm.")
        return self.prefix + name

    def logits(self, model: Any, ids: list[int], hidden: torch.Tensor) -> torch.Tensor:
        """[T - 1, V]: row t sees `hidden`[t] and token t + 1."""
        embedded = model.model.embed_tokens(torch.tensor([ids[1:]]))
        both = torch.cat([self.enorm(embedded), self.hnorm(hidden[None, :-1])], -1)
        x, n = self.eh_proj(both), len(ids) - 1
        mask = torch.full((n, n), torch.finfo(torch.float32).min).triu(1)[None, None]
        at = torch.arange(n)[None]
        rope = model.model.rotary_emb(x, at)
        x, _ = self.block(x, attention_mask=mask, position_ids=at, position_embeddings=rope)
        return model.lm_head(self.head_norm(x))[0]


class Pair:
    """The trunk and, if the case has one, its MTP layer."""

    def __init__(self, case: Case, seed: int) -> None:
        is_glm = case.config.model_type == "glm_moe_dsa"
        kind = GlmMoeDsaForCausalLM if is_glm else LlamaForCausalLM
        self.model = kind._from_config(copy.deepcopy(case.config), attn_implementation="eager")
        self.model.float().eval()
        self.mtp = Mtp(case.config).float().eval() if case.mtp else None
        self.views = dict(named_weights(self.model))
        if self.mtp:
            self.views |= {self.mtp.checkpoint_name(n): v for n, v in named_weights(self.mtp)}
        rng = torch.Generator().manual_seed(seed)
        for name in sorted(self.views):
            self.views[name].copy_(random_weight(name, self.views[name].shape, rng))

    def values(self) -> dict[str, Array]:
        """f32 copies of all weights by checkpoint name."""
        return {n: v.numpy().copy() for n, v in self.views.items()}

    def load(self, values: dict[str, Array]) -> None:
        """Replaces the weights named in `values`."""
        for name, value in values.items():
            self.views[name].copy_(torch.from_numpy(value.reshape(self.views[name].shape)))


# ---- running the oracle -----------------------------------------------------------------------


class Watch:
    """Hooks that record the indexer's choices and how close any cut was."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.topk: dict[int, torch.Tensor] = {}
        self.index_gap = self.route_gap = math.inf
        self._topk = torch.Tensor.topk
        for name, module in model.named_modules():
            kind = type(module).__name__
            if kind.endswith("Indexer"):
                layer = int(name.split(".layers.")[1].split(".")[0])
                module.register_forward_pre_hook(self._before_indexer)
                module.register_forward_hook(self._after_indexer(layer))
            elif kind.lower().endswith("topkrouter"):
                module.register_forward_hook(self._after_router)

    def _before_indexer(self, *_: Any) -> None:
        def spy(scores: torch.Tensor, k: int, *args: Any, **kwargs: Any) -> Any:
            self._scores = scores.clone()
            return self._topk(scores, k, *args, **kwargs)

        torch.Tensor.topk = spy

    def _after_indexer(self, layer: int) -> Callable[..., None]:
        def hook(_module: Any, _args: Any, chosen: torch.Tensor) -> None:
            torch.Tensor.topk = self._topk
            rows, k = [], chosen.shape[-1]
            for t, scores in enumerate(self._scores[0]):
                seen = scores[: t + 1]
                row = sorted(i for i in chosen[0, t].tolist() if i <= t)
                rows.append(row + [-1] * (k - len(row)))
                if t + 1 > k:
                    v = seen.sort(descending=True).values
                    self.index_gap = min(self.index_gap, float(v[k - 1] - v[k]))
            self.topk[layer] = torch.tensor(rows, dtype=torch.int32)

        return hook

    def _after_router(self, router: Any, _args: Any, out: Any) -> None:
        def gap(x: torch.Tensor, k: int) -> float:
            v = x.sort(dim=-1, descending=True).values
            return float((v[..., k - 1] - v[..., k]).min()) if k < v.shape[-1] else math.inf

        choice = out[0].float().sigmoid() + router.e_score_correction_bias
        if router.num_group > 1:
            groups = choice.view(choice.shape[0], router.num_group, -1)
            score = self._topk(groups, 2, dim=-1).values.sum(-1)
            self.route_gap = min(self.route_gap, gap(score, router.topk_group))
            kept = torch.zeros_like(score).scatter_(
                1, self._topk(score, router.topk_group).indices, 1
            )
            choice = groups.masked_fill(kept[..., None] == 0, -1e9).flatten(1)
        self.route_gap = min(self.route_gap, gap(choice, router.top_k))


def run(model: Any, ids: list[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits [T, V] and the hidden states of all layers, one pass without a cache."""
    out = model(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    return out.logits[0].float(), [h[0].float() for h in out.hidden_states]


def run_cached(model: Any, ids: list[int], first: int) -> torch.Tensor:
    """The same logits through the KV cache: `first` tokens together, then one at a time."""
    cache, out, at = None, [], 0
    for n in (first, *[1] * (len(ids) - first)):
        chunk = torch.tensor([ids[at : at + n]])
        step = model(input_ids=chunk, past_key_values=cache, use_cache=True)
        cache, at = step.past_key_values, at + n
        out.append(step.logits[0].float())
    return torch.cat(out)


def greedy(model: Any, prompt: list[int]) -> tuple[list[int], float]:
    """Greedy tokens, each step recomputed from the start, and the smallest margin on the way."""
    ids, margin = list(prompt), math.inf
    for _ in range(NEW_TOKENS):
        top = run(model, ids)[0][-1].topk(2)
        margin = min(margin, float(top.values[0] - top.values[1]))
        ids.append(int(top.indices[0]))
    return ids[len(prompt) :], margin


def prompts_of(case: Case) -> list[list[int]]:
    rng = torch.Generator().manual_seed(4242)
    vocab = case.config.vocab_size
    return [torch.randint(LOWEST_ID, vocab, (n,), generator=rng).tolist() for n in case.lengths]


# ---- files ------------------------------------------------------------------------------------


def write_bf16(values: dict[str, Array], path: Path) -> None:
    """The usual checkpoint: BF16, and F32 where a value must not pass through bf16."""
    raw = {
        n: Raw("F32", v.shape, v) if n.endswith(F32_ONLY) else Raw("BF16", v.shape, to_bf16(v))
        for n, v in sorted(values.items())
    }
    write_safetensors(path / "model.safetensors", raw)


def write_fp8(values: dict[str, Array], path: Path) -> dict[str, Array]:
    """An FP8 checkpoint: e4m3 matrices with a scale per block of 128x128, ragged at the edges;
    norms, router, head, embedding, eh_proj and the indexer's weights_proj stay as they are."""
    kept = ("embed_tokens.weight", "lm_head.weight", "eh_proj.weight")
    raw, means = {}, {}
    for name, v in sorted(values.items()):
        if not published.is_matrix(name) or name.endswith(kept):
            dtype = "F32" if name.endswith(F32_ONLY) else "BF16"
            raw[name] = Raw(dtype, v.shape, v if dtype == "F32" else to_bf16(v))
            continue
        stored = published.quantize(name, v, "fp8_block")
        grid = (-(-v.shape[0] // 128), -(-v.shape[1] // 128))
        raw[name] = Raw("F8_E4M3", v.shape, stored.data)
        raw[name + "_scale_inv"] = Raw("F32", grid, stored.scales)
        means[name] = dequantize(stored)
    write_safetensors(path / "model.safetensors", raw)
    return means


def write_published(style: published.Style) -> Callable[[dict[str, Array], Path], dict[str, Array]]:
    """A published-style container of this style, in several shards, one of them of 0 bytes."""

    def write(values: dict[str, Array], path: Path) -> dict[str, Array]:
        n = json.loads((path / "config.json").read_text())["num_hidden_layers"]
        entries, means = published.quantize_model(values, style, n)
        published.write_shards(path, entries, published.split_expert(n), ["out-00002.safetensors"])
        return means

    return write


def write_config(case: Case, path: Path) -> None:
    config = case.config.to_dict()
    config |= {"architectures": [case.config.architectures[0]], "dtype": "bfloat16"}
    config |= case.plain_config
    (path / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


def reload_difference(case: Case, values: dict[str, Array], expected: list[Any]) -> float:
    """Largest difference when transformers itself opens the values as a checkpoint (attention
    by SDPA): shows that the names and shapes are those of a real one."""
    kind = GlmMoeDsaForCausalLM if case.config.model_type == "glm_moe_dsa" else LlamaForCausalLM
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        case.config.save_pretrained(path)
        raw = {n: Raw("F32", v.shape, v) for n, v in values.items()}
        write_safetensors(path / "model.safetensors", raw)
        model = kind.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").eval()
    return max(float((run(model, ids)[0] - logits).abs().max()) for ids, logits in expected)


# ---- one fixture ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A seed without near-ties: the model, and the greedy tokens of every prompt."""

    seed: int
    pair: Pair
    watch: Watch
    values: dict[str, Array]
    prompts: list[tuple[list[int], list[int]]]
    margin: float


def search(case: Case, path: Path) -> Found:
    """Tries seeds until no step, router or indexer is a near-tie; writes quantized weights."""
    for seed in range(1, 1000):
        pair = Pair(case, seed)
        values = pair.values()
        if case.quantize:
            pair.load(case.quantize(values, path))
        watch, prompts, margin = Watch(pair.model), [], math.inf
        for prompt in prompts_of(case):
            tokens, gap = greedy(pair.model, prompt)
            margin = min(margin, gap)
            if margin < MARGIN or watch.index_gap < CUT or watch.route_gap < CUT:
                break
            prompts.append((prompt, tokens))
        else:
            return Found(seed, pair, watch, values, prompts, margin)
    raise SystemExit(f"{case.name}: no seed without near-ties")


def oracle_tensors(case: Case, found: Found) -> tuple[dict[str, Raw], list[Any], float]:
    """Entries of oracle.safetensors, (ids, logits) of every prompt, and how far cached decoding is
    from one pass over everything."""
    model, tensors, expected, worst = found.pair.model, {}, [], 0.0
    for i, (prompt, tokens) in enumerate(found.prompts):
        ids = prompt + tokens
        logits, hidden = run(model, ids)
        tensors[f"p{i}.logits"] = f32(logits)
        expected.append((ids, logits))
        if i == case.debug:
            for layer, h in enumerate(hidden):
                tensors[f"p{i}.hidden.{layer}"] = f32(h)
            for layer, chosen in found.watch.topk.items():
                tensors[f"p{i}.topk.{layer}"] = Raw("I32", tuple(chosen.shape), chosen.numpy())
            if found.pair.mtp:
                tensors[f"p{i}.mtp"] = f32(found.pair.mtp.logits(model, ids, hidden[-1]))
        for first in (1, len(prompt)):
            worst = max(worst, float((run_cached(model, ids, first) - logits).abs().max()))
    return tensors, expected, worst


def make(case: Case, out: Path) -> None:
    """Writes one fixture; replaces an older one."""
    path = out / case.name
    shutil.rmtree(path, ignore_errors=True)
    model = path / "model"
    model.mkdir(parents=True)
    write_config(case, model)
    found = search(case, model)
    if not case.quantize:
        write_bf16(found.values, model)
    tensors, expected, worst = oracle_tensors(case, found)
    write_safetensors(path / "oracle.safetensors", tensors)
    mtp_prefix = f"model.layers.{case.config.num_hidden_layers}."
    trunk = {n: v for n, v in found.pair.values().items() if not n.startswith(mtp_prefix)}
    report = {
        "name": case.name,
        "made_with": {"transformers": transformers.__version__, "torch": torch.__version__},
        "seed": found.seed,
        "smallest": {
            "greedy_margin": found.margin,
            "indexer_gap": finite(found.watch.index_gap),
            "router_gap": finite(found.watch.route_gap),
        },
        "largest_difference": {
            "cached_decode": worst,
            "reloaded_sdpa": reload_difference(case, trunk, expected),
            "numpy_reference": numpy_difference(model, expected),
        },
        "prompts": [{"prompt": p, "greedy": g} for p, g in found.prompts],
    }
    (path / "oracle.json").write_text(dump(report))
    print(json.dumps({k: v for k, v in report.items() if k != "prompts"}), flush=True)


def dump(report: dict[str, Any]) -> str:
    """Indented JSON with every token list on one line."""
    text = json.dumps(report, indent=1)
    return re.sub(r"\[[\d\s,]+\]", lambda m: str(json.loads(m[0])), text) + "\n"


def f32(t: torch.Tensor) -> Raw:
    return Raw("F32", tuple(t.shape), t.float().contiguous().numpy())


def finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def numpy_difference(path: Path, expected: list[Any]) -> float:
    """Largest logit difference of `reference.forward`, which reads the files just written."""
    w = Checkpoint(path)
    return max(
        float(np.abs(reference.forward(w, ids).logits - logits.numpy()).max())
        for ids, logits in expected
    )


# ---- cases ------------------------------------------------------------------------------------


def glm_config(**changes: Any) -> GlmMoeDsaConfig:
    """Small, but with every part: dense and sparse layers, layers that share a selection."""
    base = {
        "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
        "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 4,
        "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1, "kv_lora_rank": 32,
        "q_lora_rank": 40, "qk_rope_head_dim": 16, "qk_nope_head_dim": 24, "v_head_dim": 32,
        "index_topk": 8, "index_head_dim": 32, "index_n_heads": 8, "first_k_dense_replace": 3,
        "index_topk_freq": 4, "index_skip_topk_offset": 3, "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 8e6}, "n_group": 1,
        "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
        "rms_norm_eps": 1e-5, "bos_token_id": None, "eos_token_id": [2], "pad_token_id": None,
        "tie_word_embeddings": False, "attention_bias": False,
        "architectures": ["GlmMoeDsaForCausalLM"],
    }  # fmt: skip
    return GlmMoeDsaConfig(**(base | changes))


def llama_config(**changes: Any) -> LlamaConfig:
    base = {
        "vocab_size": 100, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True, "max_position_embeddings": 512, "bos_token_id": 1,
        "eos_token_id": 2, "architectures": ["LlamaForCausalLM"],
    }  # fmt: skip
    return LlamaConfig(**(base | changes))


def cases() -> list[Case]:
    """All fixtures, the smallest last."""
    # Columns of 160 and 224 tell groups of 64 from all others and leave a ragged group; latents and
    # experts of 40 and 32 columns are one short group.
    wide = {
        "hidden_size": 160, "intermediate_size": 224, "moe_intermediate_size": 40, "v_head_dim": 40,
        "n_routed_experts": 3, "num_hidden_layers": 3, "first_k_dense_replace": 1,
        "index_topk_freq": 2, "index_skip_topk_offset": 2, "index_n_heads": 16,
    }  # fmt: skip
    fp8 = {
        **wide, "moe_intermediate_size": 144, "intermediate_size": 272, "q_lora_rank": 136,
        "kv_lora_rank": 64, "index_n_heads": 8,
    }  # fmt: skip
    no_dsa = {"index_topk": 2048}
    mtp = {"num_nextn_predict_layers": 1}
    return [
        Case("glm_dsa", glm_config(), LONG, mtp=True, debug=2, plain_config=mtp),
        Case("glm_dsa_groups", glm_config(
            n_group=4, topk_group=2, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2,
            norm_topk_prob=False, num_hidden_layers=3, first_k_dense_replace=1, index_topk_freq=1)),
        Case("glm_dsa_dense_ctx", glm_config(num_hidden_layers=4, **no_dsa), LONG),
        Case("glm_dsa_fp8", glm_config(**fp8), quantize=write_fp8, plain_config={
            "quantization_config": {
                "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}}),
        Case("glm_gs64", glm_config(**wide, **no_dsa), LONG, mtp=True,
             quantize=write_published(published.Style("i4_group", 64)),
             plain_config={"index_topk": 8, **mtp}),
        Case("glm_i4_row", glm_config(**wide),
             quantize=write_published(published.Style("i4_row", indexer=True))),
        Case("glm_i8", glm_config(**wide, **no_dsa),
             quantize=write_published(published.Style("i8_row")), plain_config={"index_topk": 8}),
        Case("llama_tied", llama_config(), LONG, debug=2),
        Case("llama_untied", llama_config(
            hidden_size=72, head_dim=24, num_attention_heads=3, num_key_value_heads=1,
            intermediate_size=100, num_hidden_layers=3, tie_word_embeddings=False)),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "fixtures")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    only = set(args.only.split(",")) - {""}
    for case in cases():
        if not only or case.name in only:
            make(case, args.out)


if __name__ == "__main__":
    main()
