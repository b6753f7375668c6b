"""Training the starter model: `python -m starter.train DATA OUT`, resumable, the same for the same
seed. `--schedule tune --warm CHECKPOINT` goes on from a trained model instead of from nothing.

Run as two processes of one thread each (`torchrun --nproc-per-node 2`), which is much faster on
two shared cores than one process with two threads. What a step sees depends on seed, rank and step
number alone. A checkpoint is written every few minutes and found again. Not for: data
(`starter.data` writes it) or export.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from transformers import GlmMoeDsaForCausalLM

from starter import schedule
from starter.conversations import Conversation, Maker
from starter.data import Data
from starter.export import restored
from starter.network import MtpLayer, Report, config, initialise, losses
from starter.rows import IGNORE, Row, RowMaker, padded

_BETAS: Final = (0.9, 0.98)
_CLIP: Final = 1.0
_MTP_WEIGHT: Final = 0.3
_BIAS_STEP: Final = 0.01
_INDEXER_RATE: Final = 3e-3
_SAVE_SECONDS: Final = 120
_LOG_SECONDS: Final = 20


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is determined by. `tokens` is its length; `topics` weighs the objective that
    sharpens topics (0: none). `schedule` is one of `schedule.BY_NAME`.
    """

    tokens: int = 32_000_000
    seed: int = 1
    topics: float = 0.03
    schedule: str = "full"


class Feeder:
    """Rows of each step."""

    def __init__(self, data: Data, options: Options, rank: int, world: int) -> None:
        self._data, self._plan = data, schedule.BY_NAME[options.schedule]
        self._seed, self._rank, self._world = options.seed, rank, world
        self._rows = RowMaker(data.tokenizer, "")
        self._blocks: dict[str, str] = {}

    def batch(self, step: int, progress: float) -> list[Row]:
        """The rows of this rank for one step; all ranks use one shape."""
        shape = schedule.shape(self._plan, progress, random.Random(f"{self._seed}/{step}"))
        own = random.Random(f"{self._seed}/{step}/{self._rank}")
        maker = Maker(self._data.vocabulary, self._data.facts, own.getrandbits(48))
        count = max(1, self._plan.batch // self._world // shape.length)
        rows: list[Row] = []
        while len(rows) < count:
            conversation = self._conversation(maker, shape.kind(own), shape.length, shape.band, own)
            block = self._block(conversation)
            row = self._rows.row(conversation, shape.length, block)
            if row is not None:
                rows.append(row)
        return list(padded(rows, self._rows.control("<|endoftext|>")))

    def _conversation(
        self, maker: Maker, kind: schedule.Kind, length: int, band: int | None, rng: random.Random
    ) -> Conversation:
        turns = max(2, length // 18)
        if kind == "thinking":
            return maker.thinking(rng.randint(1, 4))
        if kind == "calling":
            return maker.calling(turns)
        if kind == "notes":
            return maker.notes(rng.randint(3, turns))
        if kind == "drill":
            return maker.drill(turns)
        return maker.plain(turns, band)

    def _block(self, conversation: Conversation) -> str:
        if not conversation.tools:
            return ""
        key = json.dumps(conversation.tools)
        if key not in self._blocks:
            self._blocks[key] = self._data.tools_block(conversation.tools)
        return self._blocks[key]


class Trainer:
    """The state of a run. `start` is the checkpoint of another run whose weights and averages this
    one begins with.
    """

    def __init__(
        self,
        data: Data,
        out: Path,
        options: Options,
        rank: int = 0,
        world: int = 1,
        start: Path | None = None,
    ) -> None:
        self._out, self._options, self._rank, self._world = out, options, rank, world
        self._data = data
        self._plan = schedule.BY_NAME[options.schedule]
        self._feeder = Feeder(data, options, rank, world)
        self.model = GlmMoeDsaForCausalLM(config(data.tokenizer.get_vocab_size()))
        self.mtp = MtpLayer(self.model.config)
        initialise(self.model, self.mtp, options.seed)
        named = [*self.model.named_parameters(), *self.mtp.named_parameters()]
        self._parameters = [parameter for _, parameter in named]
        groups = [
            {"params": [p for name, p in named if "indexer" not in name]},
            {"params": [p for name, p in named if "indexer" in name]},
        ]
        self._optimiser = torch.optim.AdamW(
            groups, lr=schedule.LEARNING_RATE, betas=_BETAS, weight_decay=0, fused=True
        )
        self.step = self.tokens = 0
        self._topic_of = data.topic_numbers()
        self._n_topics = max(self._topic_of) + 1
        self._load(start)

    @property
    def progress(self) -> float:
        return self.tokens / self._options.tokens

    def run(self) -> None:
        """Steps until the tokens are used up."""
        saved = logged = time.monotonic()
        while self.progress < 1:
            figures = self._one_step()
            now = time.monotonic()
            if self._rank == 0 and now - logged > _LOG_SECONDS:
                logged = now
                self._log(figures)
            if now - saved > _SAVE_SECONDS:
                saved = now
                self._save()
        self._save()

    def _one_step(self) -> dict[str, float]:
        progress = self.progress
        rows = self._feeder.batch(self.step, progress)
        ids = torch.tensor([row.ids for row in rows])
        labels = torch.tensor([row.labels for row in rows])
        report = Report()
        mode = schedule.mode(self._plan, progress)
        mtp = self.mtp if schedule.with_mtp(self._plan, progress) else None
        # In 32 bits: for matrices this small, 16-bit products are slower even with units for them.
        int4 = schedule.with_int4(self._plan, progress)
        loss, later = losses(self.model, mtp, ids, labels, mode, report, int4)
        total = loss
        if later is not None:
            total = total + _MTP_WEIGHT * later
        if report.divergence:
            total = total + torch.stack(report.divergence).sum()
        if self._options.topics > 0:
            total = total - self._options.topics * self._topic_information(rows, report)
        total.backward()
        load, seen = self._reduce(report, ids.numel())
        torch.nn.utils.clip_grad_norm_(self._parameters, _CLIP)
        rate = schedule.learning_rate(self._plan, self.step, progress)
        self._balance(report, load, rate)
        self._optimiser.param_groups[0]["lr"] = schedule.LEARNING_RATE * rate
        self._optimiser.param_groups[1]["lr"] = (
            0.0 if mode == "dense" else _INDEXER_RATE * max(rate, 0.3)
        )
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += seen
        return {
            "loss": float(loss.detach()),
            "mtp": float(later.detach()) if later is not None else 0.0,
            "kl": float(torch.stack(report.divergence).mean().detach()) if report.divergence else 0,
            "load": float((load.max(1).values / load.mean(1)).mean()),
            "wanted": float((labels != IGNORE).float().mean()),
        }

    def _topic_information(self, rows: list[Row], report: Report) -> Tensor:
        """Mutual information of topic and expert in this step, mean over layers: more of it makes
        experts keep to topics.
        """
        entries = torch.tensor([entry for row in rows for entry in row.entries])
        topics = torch.tensor([self._topic_of[entry] if entry >= 0 else -1 for entry in entries])
        known = topics >= 0
        one_hot = F.one_hot(topics[known], self._n_topics).float()
        counts = one_hot.sum(0)
        found = []
        for _, _, scores in report.routed:
            if scores.shape[0] != len(topics):
                continue  # the MTP layer's rows are shifted
            shares = (2 * torch.logit(scores[known].float().clamp(1e-4, 1 - 1e-4))).softmax(-1)
            by_topic = (one_hot.t() @ shares) / counts.clamp(min=1)[:, None]
            overall = shares.mean(0)
            weight = counts / counts.sum()
            found.append((weight * (by_topic * ((by_topic + 1e-9) / overall).log()).sum(-1)).sum())
        return torch.stack(found).mean() if found else torch.zeros(())

    def _reduce(self, report: Report, seen: int) -> tuple[Tensor, int]:
        """Averages gradients over the ranks; returns how many tokens each expert got, and how many
        all ranks have seen: their rows differ in length, and all must agree on the progress.
        """
        experts = self.model.config.n_routed_experts
        load = torch.stack(
            [
                torch.bincount(chosen.reshape(-1), minlength=experts).float()
                for _, chosen, _ in report.routed
            ]
        )
        if self._world > 1:
            pieces = [
                p.grad.reshape(-1) if p.grad is not None else torch.zeros(p.numel())
                for p in self._parameters
            ]
            flat = torch.cat([*pieces, load.reshape(-1), torch.tensor([float(seen)])])
            dist.all_reduce(flat)
            at = 0
            for parameter in self._parameters:
                part = flat[at : at + parameter.numel()]
                at += parameter.numel()
                if parameter.grad is not None:
                    parameter.grad.copy_(part.view_as(parameter) / self._world)
            load, seen = flat[at:-1].view_as(load), int(flat[-1])
        return load, seen

    def _balance(self, report: Report, load: Tensor, rate: float) -> None:
        """Moves the routers' bias towards experts that got little."""
        with torch.no_grad():
            for (gate, _, _), counts in zip(report.routed, load, strict=True):
                gate.e_score_correction_bias.add_(
                    _BIAS_STEP * rate * torch.sign(counts.mean() - counts)
                )

    # ---- checkpoints ----

    @property
    def _path(self) -> Path:
        return self._out / "checkpoint.pt"

    def _save(self) -> None:
        if self._rank == 0:
            state: dict[str, Any] = {
                "options": asdict(self._options),
                "step": self.step,
                "tokens": self.tokens,
                "model": self.model.state_dict(),
                "mtp": self.mtp.state_dict(),
                "optimiser": self._optimiser.state_dict(),
            }
            partial = self._path.with_suffix(".partial")
            torch.save(state, partial)
            partial.replace(self._path)

    def _load(self, start: Path | None) -> None:
        """The run's own checkpoint if there is one, else the one to start from."""
        again = self._path.exists()
        if not again and start is None:
            return
        if not again and start is not None and start.suffix == ".npz":
            state = restored(start, self._data)
        else:
            path = self._path if again else start
            state = torch.load(path, map_location="cpu", weights_only=True)
        if again and state["options"] != asdict(self._options):
            raise SystemExit(f"{self._path} was made with other options; use another folder")
        self.model.load_state_dict(state["model"])
        self.mtp.load_state_dict(state["mtp"])
        # Without the averages the first steps would undo a good deal of what was learnt.
        if "optimiser" in state:
            self._optimiser.load_state_dict(state["optimiser"])
        if again:
            self.step, self.tokens = state["step"], state["tokens"]

    def _log(self, figures: dict[str, float]) -> None:
        line = {
            "step": self.step,
            "tokens": self.tokens,
            "progress": round(self.progress, 4),
            **{name: round(value, 4) for name, value in figures.items()},
        }
        print(json.dumps(line), flush=True)
        with (self._out / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    usual = Options()
    parser.add_argument("--tokens", type=int, default=usual.tokens)
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--topics", type=float, default=usual.topics)
    parser.add_argument("--schedule", choices=tuple(schedule.BY_NAME), default=usual.schedule)
    parser.add_argument(
        "--warm", type=Path, help="checkpoint, or weights of `starter.unpack`, to go on from"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    given.out.mkdir(parents=True, exist_ok=True)
    options = Options(given.tokens, given.seed, given.topics, given.schedule)
    Trainer(Data.open(given.data), given.out, options, rank, world, given.warm).run()


if __name__ == "__main__":
    main()
