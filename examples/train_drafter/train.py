"""Step 2: train the drafter on the target's answers until a wall-clock budget is spent.

The drafter learns the target's whole distribution at each token as well as the token that follows
in the answer: with few answers the former is what keeps it from learning them by heart.
The learning rate and Domino's curriculum follow the share of the budget that is spent. A run is
saved every few minutes and continues where it stopped; logs are JSON lines beside the checkpoint.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data import Batch, Target, TrainingSet, fast_dtype, frequent_ids, load_answers
from demo_target import cache_root, ensure_target
from drafter import Drafter, DrafterConfig
from evaluate import acceptance, load_drafter, pooled
from export import plot_curves
from tqdm import tqdm


@dataclass(frozen=True)
class Candidates:
    """The columns of one step's softmax, a cheap stand-in for the whole vocabulary.

    ids [C]; log_weight [C] counts how many ids a column stands for; column_of [V], -1 elsewhere.
    """

    ids: Tensor
    log_weight: Tensor
    column_of: Tensor


def sample_candidates(frequent: Tensor, labels: Tensor, num_random: int, vocab: int) -> Candidates:
    """The frequent ids, the step's labels, and a fresh uniform sample of all other ids.

    A sampled id is weighted by the number of ids it represents, so the normaliser is that of the
    full vocabulary in expectation and no rare id keeps logits that could win at inference.
    """
    known = torch.zeros(vocab, dtype=torch.bool)
    known[frequent] = True
    known[labels] = True
    others = (~known).nonzero()[:, 0]
    sampled = others[torch.randperm(len(others))[:num_random]]
    ids = torch.cat([known.nonzero()[:, 0], sampled])
    log_weight = torch.zeros(len(ids))
    if len(sampled):
        log_weight[-len(sampled) :] = math.log(len(others) / len(sampled))
    column_of = torch.full((vocab,), -1)
    column_of[ids] = torch.arange(len(ids))
    return Candidates(ids, log_weight, column_of)


def sample_anchors(batch: Batch, count: int, shuffler: random.Random) -> tuple[Tensor, Tensor]:
    """Anchors [R, A] at answer tokens that have a successor, and which of them are real."""
    anchors = torch.zeros(len(batch.lengths), count, dtype=torch.long)
    real = torch.zeros(len(batch.lengths), count, dtype=torch.bool)
    for row, (prompt_length, length) in enumerate(
        zip(batch.prompt_lengths, batch.lengths, strict=True)
    ):
        possible = range(prompt_length, length - 1)
        chosen = sorted(shuffler.sample(possible, min(count, len(possible))))
        anchors[row, : len(chosen)] = torch.tensor(chosen)
        real[row, : len(chosen)] = True
    return anchors, real


def losses(
    drafter: Drafter, embedding: Tensor, batch: Batch, anchors: Tensor, real: Tensor,
    frequent: Tensor, args: argparse.Namespace,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Cross entropy of the corrected and of the base logits, both scalars.

    The wanted distribution is a mixture of the target's and of the answer's own token.
    """
    block_size = drafter.config.block_size
    positions = anchors[:, :, None] + 1 + torch.arange(block_size)
    valid = real[:, :, None] & (positions < torch.tensor(batch.lengths)[:, None, None])
    positions = positions.clamp(max=batch.token_ids.shape[1] - 1)
    rows = batch.token_ids[:, None].expand(-1, anchors.shape[1], -1)
    labels = rows.gather(2, positions)
    previous = torch.cat([rows.gather(2, anchors[:, :, None]), labels[:, :, :-1]], 2)
    # Slot k counts exp(-k / gamma). Drawing it that often costs half of what weighting it would.
    slots = torch.arange(block_size).expand_as(valid)
    valid = valid & (torch.rand(valid.shape) < torch.exp(-slots / args.gamma))
    slots = slots[valid]
    candidates = sample_candidates(frequent, labels[valid], args.random, len(embedding))
    columns = candidates.column_of[labels[valid]]
    with torch.autocast("cpu", torch.bfloat16, enabled=fast_dtype() is torch.bfloat16):
        hidden = drafter.block_hidden(batch.features, batch.token_ids, anchors, embedding)
        states = drafter.head_states(previous.flatten(0, 1), embedding)
        states = states.view(*previous.shape, -1)
        hidden, states = hidden[valid], states[valid]
        base = hidden @ embedding[candidates.ids].T
        bottleneck = drafter.correction_bottleneck(hidden, states)
        # pure_draft_prefix_len = 1: the first slot keeps its base logits.
        bottleneck = bottleneck * (slots > 0)[:, None]
        final = base + F.linear(bottleneck, drafter.correction_rows[candidates.ids])
    with torch.no_grad():
        # The state before a token predicts it.
        rows = torch.arange(len(batch.lengths))[:, None, None].expand_as(positions)[valid]
        teacher = batch.final[rows, positions[valid] - 1] @ embedding[candidates.ids].T
        wanted = args.distill * (teacher.float() + candidates.log_weight).softmax(-1)
        wanted[torch.arange(len(columns)), columns] += 1 - args.distill

    def cross_entropy(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.float() + candidates.log_weight, wanted)

    return cross_entropy(final), cross_entropy(base)


class Run:
    """What survives an interruption: weights, optimiser, step and seconds spent."""

    def __init__(self, directory: Path, seed: int, settings: dict[str, Any]) -> None:
        torch.manual_seed(seed)
        self.directory, self.settings = directory, settings
        self._lock = (directory / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(
                f"{directory} is in use by another training run: wait for it to end and use what "
                "it leaves there, or name another directory with --run"
            ) from None
        self.log_path = directory / "log.jsonl"
        self.drafter = Drafter(DrafterConfig())
        self.optimizer = torch.optim.AdamW(
            self.drafter.parameters(), betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        self.step, self.seconds = 0, 0.0
        if (directory / "state.pt").exists():
            saved = torch.load(directory / "state.pt")
            self.drafter.load_state_dict(saved["drafter"])
            self.drafter.feature_gain.copy_(saved["feature_gain"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.step, self.seconds = saved["step"], saved["seconds"]
        torch.manual_seed(seed + self.step)

    def begin(self, feature_gain: Tensor, start_from: Path | None) -> None:
        """Set the features' gain [M*H] and, if given, take over an exported drafter's weights."""
        self.drafter.feature_gain.copy_(feature_gain)
        if start_from is not None:
            self.drafter.load_state_dict(load_drafter(start_from).state_dict())
            self.drafter.fc.weight.data.div_(feature_gain)  # export folded the gain into fc

    def save(self) -> None:
        state = {
            "drafter": self.drafter.state_dict(),
            "feature_gain": self.drafter.feature_gain,
            "optimizer": self.optimizer.state_dict(),
            "config": self.drafter.config.to_dict(),
            "step": self.step,
            "seconds": self.seconds,
            **self.settings,
        }
        torch.save(state, self.directory / "state.tmp")
        (self.directory / "state.tmp").rename(self.directory / "state.pt")

    def log(self, **values: float | int | dict[str, float]) -> None:
        with self.log_path.open("a") as file:
            file.write(json.dumps({"step": self.step, "seconds": round(self.seconds), **values}))
            file.write("\n")


def train(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    start_from = str(args.start_from) if args.start_from else None
    settings = {"batch": args.batch, "anchors": args.anchors, "distill": args.distill}
    run = Run(args.run, args.seed, {**settings, "start_from": start_from})
    drafter = run.drafter
    data = TrainingSet(
        args.run / "train.jsonl", len(drafter.config.target_layer_ids), drafter.config.hidden_size
    )
    answers = data.answers
    held_out = load_answers(args.run / "held_out.jsonl")[:: args.held_out_stride]
    frequent, covered = frequent_ids(answers, args.frequent)
    tokens = sum(len(answer.answer_ids) for answer in answers)
    print(f"{len(answers)} answers, {tokens} tokens, {len(frequent)} ids cover {covered:.2%}")
    target = Target(ensure_target(), drafter.config.target_layer_ids)
    if run.step == 0:
        run.begin(1 / data.feature_scale(), args.start_from)
    shuffler = random.Random(args.seed + run.step)
    budget = 60 * args.minutes
    saved_at = evaluated_at = run.seconds
    recent: list[Tensor] = []
    bar = tqdm(total=round(budget), initial=round(run.seconds), unit="s", mininterval=10)
    while run.seconds < budget:
        for members in data.epoch(args.batch, shuffler):
            began = time.monotonic()
            progress = run.seconds / budget
            if progress >= 1:
                break
            cosine = 0.5 * (1 + math.cos(math.pi * progress))
            rate = args.lr * min(1.0, (run.step + 1) / args.warmup) * (0.98 * cosine + 0.02)
            run.optimizer.param_groups[0]["lr"] = rate
            batch = data.batch(members)
            anchors, real = sample_anchors(batch, args.anchors, shuffler)
            final, base = losses(drafter, target.embedding, batch, anchors, real, frequent, args)
            # Domino's curriculum: the base logits first, then the corrected ones. The floor keeps
            # the base logits good, because they choose every depth's candidates.
            share = max(args.base_floor, 1 - progress / args.curriculum)
            run.optimizer.zero_grad()
            ((1 - share) * final + share * base).backward()
            torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
            run.optimizer.step()
            run.step += 1
            run.seconds += time.monotonic() - began
            recent.append(torch.stack([final, base]).detach())
            if run.step % 20 == 0:
                mean = torch.stack(recent).mean(0)
                recent.clear()
                run.log(loss=mean[0].item(), base_loss=mean[1].item(), lr=rate)
                bar.set_postfix_str(f"step {run.step} loss {mean[0]:.3f} base {mean[1]:.3f}")
                bar.update(round(run.seconds) - bar.n)
            if run.seconds - evaluated_at > 60 * args.evaluate_minutes:
                evaluated_at = run.seconds
                totals = acceptance(drafter, target, held_out)
                run.log(accepted=pooled(totals), accepted_untrained=pooled(totals, trained=False))
            if run.seconds - saved_at > 60 * args.save_minutes:
                saved_at = run.seconds
                run.save()
                plot_curves(run.log_path, args.run / "curves.png")
    bar.close()
    totals = acceptance(drafter, target, held_out)
    run.log(accepted=pooled(totals), accepted_untrained=pooled(totals, trained=False))
    run.save()
    plot_curves(run.log_path, args.run / "curves.png")
    print(f"{run.step} steps, {pooled(totals):.2f} tokens per round on held-out prompts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=cache_root() / "train_drafter")
    parser.add_argument("--minutes", type=float, default=85.0, help="training time, all runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4, help="sequences per step")
    parser.add_argument("--anchors", type=int, default=48, help="anchors per sequence")
    parser.add_argument("--lr", type=float, default=1.2e-3)
    parser.add_argument("--warmup", type=int, default=50, help="steps")
    parser.add_argument("--gamma", type=float, default=4.0, help="slot k weighs exp(-k / gamma)")
    parser.add_argument("--curriculum", type=float, default=0.6, help="share of the budget")
    parser.add_argument("--base-floor", type=float, default=0.1, help="least weight of base loss")
    parser.add_argument(
        "--distill", type=float, default=0.7, help="share of the target's distribution in the loss"
    )
    parser.add_argument(
        "--start-from", type=Path, help="an exported drafter whose weights a new run begins with"
    )
    parser.add_argument("--frequent", type=int, default=3000, help="ids in every softmax")
    parser.add_argument("--random", type=int, default=500, help="other ids, fresh each step")
    parser.add_argument("--save-minutes", type=float, default=5.0)
    parser.add_argument("--evaluate-minutes", type=float, default=8.0)
    parser.add_argument("--held-out-stride", type=int, default=4, help="evaluate every n-th answer")
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
