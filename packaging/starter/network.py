"""The starter model's network: transformers' own parameters, a forward that is fast to train.

For: the trainer and its checks. The parameters are those of `GlmMoeDsaForCausalLM`, so saving and
loading are transformers'; the forward here computes the same numbers (`check.py` compares logits
and gradients) but sorts tokens by expert, and it can train the indexer, which transformers runs
without gradients. The MTP layer, which transformers does not have, is one more decoder layer of the
same class. Not for: inference; the engine does that.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM
from transformers.models.glm_moe_dsa.modeling_glm_moe_dsa import (
    GlmMoeDsaDecoderLayer,
    GlmMoeDsaRMSNorm,
)

# `dense`: all positions; `warm`: all positions, and the indexer learns what attention looks at;
# `sparse`: only the positions that the indexer picks.
Mode: TypeAlias = Literal["dense", "warm", "sparse"]

MAX_POSITION: Final = 2048
INT4_GROUP: Final = 64
_KINDS: Final = ("full", "full", "shared", "full", "shared")


def config(vocab: int = 4096) -> GlmMoeDsaConfig:
    """The starter model's geometry."""
    made = GlmMoeDsaConfig(
        vocab_size=vocab,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=64,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_shared_experts=1,
        n_routed_experts=32,
        num_experts_per_tok=4,
        routed_scaling_factor=2.5,
        first_k_dense_replace=1,
        q_lora_rank=128,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        index_topk=64,
        index_head_dim=32,
        index_n_heads=4,
        indexer_types=list(_KINDS),
        max_position_embeddings=MAX_POSITION,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        rms_norm_eps=1e-5,
        initializer_range=0.02,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=[0, 7, 9],
    )
    made._attn_implementation = "eager"
    return made


class MtpLayer(nn.Module):
    """The layer that drafts: from a token's embedding and the hidden state before it."""

    def __init__(self, cfg: GlmMoeDsaConfig) -> None:
        super().__init__()
        longer = copy.deepcopy(cfg)
        longer.num_hidden_layers += 1
        longer.mlp_layer_types = [*cfg.mlp_layer_types, "sparse"]
        longer.indexer_types = [*cfg.indexer_types, "full"]
        longer.layer_types = ["indexed_attention"] * longer.num_hidden_layers
        longer._attn_implementation = "eager"
        self.enorm = GlmMoeDsaRMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.hnorm = GlmMoeDsaRMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * cfg.hidden_size, cfg.hidden_size, bias=False)
        self.block = GlmMoeDsaDecoderLayer(longer, cfg.num_hidden_layers)
        self.norm = GlmMoeDsaRMSNorm(cfg.hidden_size, cfg.rms_norm_eps)


def initialise(model: GlmMoeDsaForCausalLM, mtp: MtpLayer, seed: int) -> None:
    """Weights to start from, scaled by fan-in; outputs of blocks smaller with depth."""
    generator = torch.Generator().manual_seed(seed)
    depth = math.sqrt(2 * model.config.num_hidden_layers)
    for name, parameter in [*model.named_parameters(), *mtp.named_parameters()]:
        if parameter.dim() < 2:
            continue
        scale = 0.8 / math.sqrt(parameter.shape[-1])
        if "embed" in name:
            scale = 0.1
        elif "lm_head" in name:
            scale = 0.02
        elif "gate.weight" in name:
            scale = 0.03
        elif "o_proj" in name or "down_proj" in name:
            scale /= depth
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)


@dataclass(slots=True)
class Report:
    """What a forward tells besides its losses: per MoE layer (gate, chosen experts, scores), and
    the indexers' divergences.
    """

    routed: list[tuple[Any, Tensor, Tensor]] = field(default_factory=list)
    divergence: list[Tensor] = field(default_factory=list)


class _Experts(torch.autograd.Function):
    """Routed experts over tokens sorted by expert: two matrix products for each expert."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor
    ) -> Tensor:
        """x [tokens, hidden], weight and chosen [tokens, k] -> [tokens, hidden]."""
        n_experts, width = gate_up.shape[0], gate_up.shape[1] // 2
        flat = chosen.reshape(-1)
        order = torch.argsort(flat, stable=True)
        token = torch.div(order, chosen.shape[1], rounding_mode="floor")
        counts = torch.bincount(flat, minlength=n_experts).tolist()
        inputs = x.index_select(0, token)
        shares = weight.reshape(-1).index_select(0, order)
        both = x.new_empty(len(order), 2 * width)
        for expert, rows in _spans(counts):
            torch.mm(inputs[rows], gate_up[expert].t(), out=both[rows])
        sigmoid = torch.sigmoid(both[:, :width])
        hidden = both[:, :width] * sigmoid * both[:, width:]
        weighted = hidden * shares[:, None]
        outputs = x.new_empty(len(order), x.shape[1])
        for expert, rows in _spans(counts):
            torch.mm(weighted[rows], down[expert].t(), out=outputs[rows])
        ctx.save_for_backward(token, order, inputs, both, sigmoid, hidden, shares, gate_up, down)
        ctx.counts, ctx.shape = counts, chosen.shape
        return torch.zeros_like(x).index_add_(0, token, outputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        token, order, inputs, both, sigmoid, hidden, shares, gate_up, down = ctx.saved_tensors
        width = hidden.shape[1]
        grad_out = grad.index_select(0, token)
        grad_weighted = torch.empty_like(hidden)
        grad_down, grad_gate_up = torch.zeros_like(down), torch.zeros_like(gate_up)
        for expert, rows in _spans(ctx.counts):
            torch.mm(grad_out[rows], down[expert], out=grad_weighted[rows])
            scaled = hidden[rows] * shares[rows, None]
            torch.mm(grad_out[rows].t(), scaled, out=grad_down[expert])
        grad_shares = (grad_weighted * hidden).sum(1)
        grad_hidden = grad_weighted * shares[:, None]
        gate, up = both[:, :width], both[:, width:]
        grad_both = torch.empty_like(both)
        grad_both[:, width:] = grad_hidden * gate * sigmoid
        grad_both[:, :width] = grad_hidden * up * sigmoid * (1 + gate * (1 - sigmoid))
        grad_inputs = torch.empty_like(inputs)
        for expert, rows in _spans(ctx.counts):
            torch.mm(grad_both[rows], gate_up[expert], out=grad_inputs[rows])
            torch.mm(grad_both[rows].t(), inputs[rows], out=grad_gate_up[expert])
        grad_x = torch.zeros_like(grad).index_add_(0, token, grad_inputs)
        grad_weight = torch.empty_like(grad_shares)
        grad_weight[order] = grad_shares
        return grad_x, grad_weight.view(ctx.shape), None, grad_gate_up, grad_down


class _Int4(torch.autograd.Function):
    """Expert weights as the converter stores them: int4 with a scale per 64 columns. Gradients pass
    through, so what is trained is what rounds well.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:  # type: ignore[override]
        groups = weight.reshape(*weight.shape[:-1], -1, INT4_GROUP)
        scale = (groups.abs().amax(-1, keepdim=True) / 7).clamp_(min=1e-8)
        return groups.div(scale).round_().mul_(scale).view_as(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad


def _spans(counts: list[int]) -> list[tuple[int, slice]]:
    spans, start = [], 0
    for expert, count in enumerate(counts):
        if count:
            spans.append((expert, slice(start, start + count)))
        start += count
    return spans


def _norm(module: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), module.weight, module.variance_epsilon)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Interleaved pairs, given back as halves; queries and keys alike, so products do not care."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.cat([even * cos - odd * sin, odd * cos + even * sin], -1)


def _mlp(module: Any, x: Tensor) -> Tensor:
    hidden = F.silu(module.gate_proj(x)) * module.up_proj(x)
    result: Tensor = module.down_proj(hidden)
    return result


def _moe(module: Any, x: Tensor, report: Report, int4: bool) -> Tensor:
    flat, gate = x.reshape(-1, x.shape[-1]), module.gate
    scores = F.linear(flat, gate.weight).sigmoid()
    biased = scores.detach() + gate.e_score_correction_bias
    chosen = torch.topk(biased, gate.top_k, dim=-1, sorted=False).indices
    weight = scores.gather(1, chosen)
    weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * gate.routed_scaling_factor
    gate_up, down = module.experts.gate_up_proj, module.experts.down_proj
    if int4:
        gate_up, down = _Int4.apply(gate_up), _Int4.apply(down)
    routed = _Experts.apply(flat, weight, chosen, gate_up, down)
    report.routed.append((gate, chosen, scores))
    return (routed + _mlp(module.shared_experts, flat)).view(x.shape)


@dataclass(slots=True)
class _Selection:
    """What a full layer's indexer picked, for itself and the shared layers above it."""

    allowed: Tensor
    scores: Tensor


def _index_scores(indexer: Any, x: Tensor, low: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Scores [batch, query, key] of an indexer; its inputs carry no gradient to the trunk."""
    batch, length, _ = x.shape
    rope = indexer.qk_rope_head_dim
    shape = (batch, length, indexer.n_heads, indexer.head_dim)
    query = indexer.wq_b(low).view(shape).transpose(1, 2)
    key = indexer.k_norm(indexer.wk(x)).unsqueeze(1)
    query = torch.cat([_rotate(query[..., :rope], cos, sin), query[..., rope:]], -1)
    key = torch.cat([_rotate(key[..., :rope], cos, sin), key[..., rope:]], -1)
    matches = F.relu(query @ key.transpose(-1, -2) * indexer.softmax_scale)
    weight = indexer.weights_proj(x) * indexer.n_heads**-0.5
    return (matches * weight.transpose(1, 2).unsqueeze(-1)).sum(1)


def _select(
    attention: Any, x: Tensor, low: Tensor, cos: Tensor, sin: Tensor, mode: Mode
) -> _Selection:
    batch, length, _ = x.shape
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    scores = _index_scores(attention.indexer, x.detach(), low.detach(), cos, sin)
    scores = scores.float().masked_fill(~causal, float("-inf"))
    topk = attention.indexer.index_topk
    allowed = causal.expand(batch, length, length)
    if mode == "sparse" and topk < length:
        picked = scores.detach().topk(topk, -1).indices
        blank = torch.zeros(batch, length, length, dtype=torch.bool)
        allowed = blank.scatter_(-1, picked, True) & causal
    return _Selection(allowed, scores)


def _divergence(selection: _Selection, attention: Tensor) -> Tensor:
    """How far the indexer's distribution is from where attention looks, heads averaged."""
    target = attention.detach().float().mean(1)
    log_index = selection.scores.masked_fill(~selection.allowed, float("-inf")).log_softmax(-1)
    log_index = log_index.masked_fill(~selection.allowed, 0)
    return (target * ((target + 1e-9).log() - log_index)).sum(-1).mean()


def _attention(
    module: Any,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    mode: Mode,
    selection: _Selection | None,
    report: Report,
) -> tuple[Tensor, _Selection | None]:
    batch, length, _ = x.shape
    nope, heads = module.qk_nope_head_dim, module.num_heads
    low = _norm(module.q_a_layernorm, module.q_a_proj(x))
    query = module.q_b_proj(low).view(batch, length, heads, module.qk_head_dim).transpose(1, 2)
    query = torch.cat([query[..., :nope], _rotate(query[..., nope:], cos, sin)], -1)
    latent = module.kv_a_proj_with_mqa(x)
    rank = module.kv_lora_rank
    rope_key = _rotate(latent[..., rank:].unsqueeze(1), cos, sin).expand(-1, heads, -1, -1)
    expanded = module.kv_b_proj(_norm(module.kv_a_layernorm, latent[..., :rank]))
    expanded = expanded.view(batch, length, heads, -1).transpose(1, 2)
    key = torch.cat([expanded[..., :nope], rope_key], -1)
    value = expanded[..., nope:]
    if mode == "dense":
        # Values as wide as keys: only for equal widths is there a fused kernel, twice as fast.
        padding = query.shape[-1] - value.shape[-1]
        mixed = F.scaled_dot_product_attention(
            query, key, F.pad(value, (0, padding)), is_causal=True, scale=module.scaling
        )[..., : value.shape[-1]]
    else:
        if module.indexer is not None:
            selection = _select(module, x, low, cos, sin, mode)
        assert selection is not None  # noqa: S101 - layer 0 has an indexer
        scores = (query @ key.transpose(-1, -2) * module.scaling).float()
        shares = scores.masked_fill(~selection.allowed.unsqueeze(1), float("-inf")).softmax(-1)
        if torch.is_grad_enabled():
            report.divergence.append(_divergence(selection, shares))
        mixed = shares.to(value.dtype) @ value
    return module.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1)), selection


def _block(
    layer: Any,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    mode: Mode,
    selection: _Selection | None,
    report: Report,
    int4: bool,
) -> tuple[Tensor, _Selection | None]:
    mixed, selection = _attention(
        layer.self_attn, _norm(layer.input_layernorm, x), cos, sin, mode, selection, report
    )
    x = x + mixed
    inner = _norm(layer.post_attention_layernorm, x)
    if hasattr(layer.mlp, "experts"):
        return x + _moe(layer.mlp, inner, report, int4), selection
    return x + _mlp(layer.mlp, inner), selection


def _angles(cfg: GlmMoeDsaConfig, length: int) -> tuple[Tensor, Tensor]:
    dim = cfg.qk_rope_head_dim
    frequency = cfg.rope_parameters["rope_theta"] ** (-torch.arange(0, dim, 2).float() / dim)
    angle = torch.arange(length).float()[:, None] * frequency
    return angle.cos(), angle.sin()


def trunk(
    model: GlmMoeDsaForCausalLM, ids: Tensor, mode: Mode, report: Report, int4: bool = False
) -> tuple[Tensor, Tensor]:
    """(embeddings, hidden states after the final norm), each [batch, length, hidden]; `int4`: with
    routed experts as they are shipped.
    """
    cos, sin = _angles(model.config, ids.shape[1])
    embedded = F.embedding(ids, model.model.embed_tokens.weight)
    x, selection = embedded, None
    for layer in model.model.layers:
        x, selection = _block(layer, x, cos, sin, mode, selection, report, int4)
    return embedded, _norm(model.model.norm, x)


def drafted(
    model: GlmMoeDsaForCausalLM,
    mtp: MtpLayer,
    embedded: Tensor,
    hidden: Tensor,
    mode: Mode,
    report: Report,
) -> Tensor:
    """The MTP layer's hidden states: position t has seen token t+1 and foretells token t+2."""
    length = embedded.shape[1] - 1
    cos, sin = _angles(model.config, length)
    inputs = [_norm(mtp.enorm, embedded[:, 1:]), _norm(mtp.hnorm, hidden[:, :-1])]
    x = mtp.eh_proj(torch.cat(inputs, -1))
    # This layer is shipped as int8, whose rounding costs nothing.
    x, _ = _block(mtp.block, x, cos, sin, mode, None, report, int4=False)
    return _norm(mtp.norm, x)


def losses(
    model: GlmMoeDsaForCausalLM,
    mtp: MtpLayer | None,
    ids: Tensor,
    labels: Tensor,
    mode: Mode,
    report: Report,
    int4: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """(loss of the next token, loss of the one after it); `labels[t]` follows `ids[t]`; `int4` as
    for `trunk`.
    """
    embedded, hidden = trunk(model, ids, mode, report, int4)
    wanted = labels >= 0
    loss = F.cross_entropy(model.lm_head(hidden[wanted]).float(), labels[wanted])
    if mtp is None:
        return loss, None
    draft = drafted(model, mtp, embedded, hidden, mode, report)
    both = wanted[:, 1:] & wanted[:, :-1]
    later = labels[:, 1:][both]
    return loss, F.cross_entropy(model.lm_head(draft[both]).float(), later)
