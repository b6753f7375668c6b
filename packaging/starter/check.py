"""Whether the fast forward computes what transformers' own classes compute.

`python -m starter.check`: logits in dense and sparse attention, and gradients, on random weights.
For: everyone who touches `network`. Prints the largest differences and fails beyond the limits.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F
from transformers import GlmMoeDsaForCausalLM

from starter.network import MtpLayer, Report, config, initialise, losses, trunk

_LOGIT_LIMIT: Final = 1e-3
_GRADIENT_LIMIT: Final = 1e-4


def main() -> None:
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model, ids = GlmMoeDsaForCausalLM(config()), torch.randint(20, 4000, (2, 160))
    mtp = MtpLayer(model.config)
    initialise(model, mtp, 3)
    for length, mode in ((60, "dense"), (160, "sparse")):
        part = ids[:, :length]
        with torch.no_grad():
            theirs = model(part).logits
            _, hidden = trunk(model, part, mode, Report())  # type: ignore[arg-type]
            ours = model.lm_head(hidden)
        worst = float((theirs - ours).abs().max())
        print(f"{mode}, {length} tokens: logits differ by at most {worst:.2g}")
        if worst > _LOGIT_LIMIT:
            raise SystemExit("the forward differs from transformers'")
    part, labels = ids[:, :60], torch.roll(ids[:, :60], -1, 1)
    F.cross_entropy(model(part).logits.reshape(-1, 4096), labels.reshape(-1)).backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    losses(model, None, part, labels, "dense", Report())[0].backward()
    worst = max(
        float((p.grad - wanted[name]).norm() / (wanted[name].norm() + 1e-12))
        for name, p in model.named_parameters()
        if name in wanted and p.grad is not None
    )
    print(f"gradients differ by at most {worst:.2g} of their size")
    if worst > _GRADIENT_LIMIT:
        raise SystemExit("the gradients differ from transformers'")


if __name__ == "__main__":
    main()
