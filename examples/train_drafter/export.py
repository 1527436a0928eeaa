"""Step 4: write the checkpoint in the dialect of the published Domino drafters, with its card."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib
import torch
from data import Target, load_answers
from demo_target import cache_root, ensure_target
from drafter import Drafter, DrafterConfig
from evaluate import acceptance, load_drafter, pooled
from prompts import EVALUATION_KINDS
from safetensors.torch import save_file

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def read_log(path: Path) -> list[dict[str, Any]]:
    """The log's entries, without the steps that an interrupted run lost and repeated."""
    entries: list[dict[str, Any]] = []
    for line in path.open():
        entry = json.loads(line)
        while entries and entries[-1]["seconds"] > entry["seconds"]:
            entries.pop()
        entries.append(entry)
    return entries


def plot_curves(log_path: Path, png_path: Path) -> None:
    """Loss and tokens per round over the minutes of training."""
    entries = read_log(log_path)
    figure, (loss_axis, accepted_axis) = plt.subplots(1, 2, figsize=(9, 3.2))
    for key, label in (("base_loss", "base logits"), ("loss", "with the Domino head")):
        points = [(e["seconds"] / 60, e[key]) for e in entries if key in e]
        if points:
            loss_axis.plot(*zip(*points, strict=True), label=label, linewidth=1)
    curves = (("accepted", "held-out, trained kinds"), ("accepted_untrained", "other kinds"))
    for key, label in curves:
        points = [(e["seconds"] / 60, e[key]) for e in entries if key in e]
        if points:
            accepted_axis.plot(*zip(*points, strict=True), label=label, marker=".", linewidth=1)
    loss_axis.set(xlabel="minutes of training", ylabel="cross entropy", ylim=(None, 5))
    accepted_axis.set(xlabel="minutes of training", ylabel="tokens per round, greedy chain")
    for axis in (loss_axis, accepted_axis):
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(png_path, dpi=110)
    plt.close(figure)


def export_weights(state: dict[str, Any], out_dir: Path) -> int:
    """Write config.json and model.safetensors (bf16); returns the number of bytes of weights."""
    settings = state["config"]
    config = DrafterConfig(**{**settings, "target_layer_ids": tuple(settings["target_layer_ids"])})
    drafter = Drafter(config)
    drafter.load_state_dict(state["drafter"])
    drafter.fc.weight.data.mul_(state["feature_gain"])
    weights = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in drafter.state_dict().items()
    }
    out_dir.mkdir(parents=True, exist_ok=True)
    # Rename into place: a reader of the old file keeps it, and never sees half of a new one.
    partial = out_dir / "model.safetensors.tmp"
    save_file(weights, partial, metadata={"format": "pt"})
    partial.chmod(0o644)
    partial.rename(out_dir / "model.safetensors")
    (out_dir / "config.json").write_text(json.dumps(config.to_checkpoint(), indent=2) + "\n")
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())


CARD = """---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
tags: [speculative-decoding, dflash, domino]
---
# A Domino drafter for SmolLM2-135M-Instruct

A small demonstration checkpoint: a block-parallel drafter (DFlash backbone, {layers} layers) with
Domino's causal correction head. It drafts {block} tokens per pass, anchor first. It was trained on
two CPU cores in {minutes:.0f} minutes by the scripts in `examples/train_drafter/`. It predicts what
this one target writes and is of no use without it. The embedding and the LM head are the target's
and are not in the file ({megabytes:.1f} MB, bf16).

## Training
- Data: {answers} answers ({tokens} tokens) that the target wrote itself, two thirds greedy and one
  third at temperature 0.7, to the prompts below. Nobody else's answers were used.
- AdamW with a cosine schedule, Domino's curriculum from base logits to corrected logits. Each run
  begins with the weights of the one before it and has answers of its own; the loss is the cross
  entropy to a mixture of the answer's token and, at the share given, the target's distribution.

{runs_table}

| prompts | kind | training answers | licence of the prompts |
|---|---|---|---|
{data_table}

## Acceptance
Tokens per round, bonus included, of the greedy `chain`: rounds are counted along the target's own
greedy answers to held-out prompts, without early stopping.

| kind | prompts | tokens per round | seen in training |
|---|---|---|---|
{acceptance_table}
| **all held-out prompts of the trained kinds** | {trained_prompts} | **{trained:.2f}** | |
| mean of the trained kinds | | {mean_of_kinds:.2f} | |
| all prompts of the other kinds | {other_prompts} | {other:.2f} | |

The prompts of GSM8K, HumanEval and MT-Bench were never trained on, with one caveat: `gsm_symbolic`
fills about a hundred templates, which are GSM8K test questions, with other names and numbers. So
its held-out prompts share their templates with training, and about 5 of our 100 GSM8K questions are
such a template's original. Averages over kinds depend on the mix of prompts; compare by kind.
Which prompts are held out is decided by `is_held_out` in `examples/prompts.py`.

Loss and acceptance over the last run:

![loss and acceptance](curves.png)

## Licence
Apache-2.0. The target, SmolLM2-135M-Instruct, is Apache-2.0 (Hugging Face).
"""

LICENCES = {
    "chat": ("templates written for this project", "Apache-2.0"),
    "code": ("templates written for this project", "Apache-2.0"),
    "self_written": ("user turns written by the target itself", "Apache-2.0"),
    "writing": ("WritingBench, from `inspect-evals`", "MIT"),
}
GENERATED = ("`reasoning-gym`", "Apache-2.0")


def data_table(runs: list[dict[str, Any]]) -> str:
    kinds: Counter[str] = Counter()
    for run in runs:
        kinds.update(run["answers"])
    rows = []
    for kind, count in kinds.most_common():
        source, licence = LICENCES.get(kind, GENERATED)
        rows.append(f"| {source} | {kind} | {count} | {licence} |")
    return "\n".join(rows)


def runs_table(runs: list[dict[str, Any]]) -> str:
    rows = [
        "| run | answers | tokens | steps | sequences x anchors | minutes | target's share | loss "
        "| loss of the base logits |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for number, run in enumerate(runs, 1):
        rows.append(
            f"| {number} | {sum(run['answers'].values())} | {run['tokens']} | {run['steps']} "
            f"| {run['batch']} x {run['anchors']} | {run['minutes']:.0f} | {run['distill']} "
            f"| {run['loss']:.2f} | {run['base_loss']:.2f} |"
        )
    return "\n".join(rows)


def all_runs(run_dir: Path, state: dict[str, Any]) -> list[dict[str, Any]]:
    """What training.json keeps of each run that led to these weights, the last one included."""
    earlier = []
    if state["start_from"] is not None:
        earlier = json.loads((Path(state["start_from"]) / "training.json").read_text())
    answers = load_answers(run_dir / "train.jsonl")
    last = [entry for entry in read_log(run_dir / "log.jsonl") if "loss" in entry][-1]
    run = {
        "answers": dict(Counter(answer.kind for answer in answers)),
        "tokens": sum(len(answer.answer_ids) for answer in answers),
        "steps": state["step"],
        "batch": state["batch"],
        "anchors": state["anchors"],
        "minutes": round(state["seconds"] / 60),
        "distill": state["distill"],
        "loss": round(last["loss"], 3),
        "base_loss": round(last["base_loss"], 3),
    }
    return [*earlier, run]


def acceptance_table(totals: dict[str, tuple[int, int]], prompts: Counter[str]) -> str:
    rows = []
    for kind, (tokens, rounds) in sorted(totals.items()):
        seen = "no" if kind in EVALUATION_KINDS else "yes"
        rows.append(f"| {kind} | {prompts[kind]} | {tokens / rounds:.2f} | {seen} |")
    return "\n".join(rows)


def write_card(run_dir: Path, out_dir: Path, runs: list[dict[str, Any]], num_bytes: int) -> None:
    """Evaluate the exported drafter on all held-out answers and write README.md."""
    held_out = load_answers(run_dir / "held_out.jsonl")
    drafter = load_drafter(out_dir)
    target = Target(ensure_target(), drafter.config.target_layer_ids)
    totals = acceptance(drafter, target, held_out)
    prompts = Counter(answer.kind for answer in held_out)
    trained_kinds = [kind for kind in totals if kind not in EVALUATION_KINDS]
    mean_of_kinds = sum(totals[kind][0] / totals[kind][1] for kind in trained_kinds)
    mean_of_kinds /= len(trained_kinds)
    num_other = sum(prompts[kind] for kind in EVALUATION_KINDS)
    card = CARD.format(
        layers=drafter.config.num_layers,
        block=drafter.config.block_size,
        minutes=sum(run["minutes"] for run in runs),
        megabytes=num_bytes / 1e6,
        answers=sum(sum(run["answers"].values()) for run in runs),
        tokens=sum(run["tokens"] for run in runs),
        runs_table=runs_table(runs),
        data_table=data_table(runs),
        acceptance_table=acceptance_table(totals, prompts),
        trained_prompts=prompts.total() - num_other,
        trained=pooled(totals),
        mean_of_kinds=mean_of_kinds,
        other_prompts=num_other,
        other=pooled(totals, trained=False),
    )
    (out_dir / "README.md").write_text(card)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    shipped = Path(__file__).resolve().parents[1] / "drafters" / "smollm2-135m-domino"
    parser.add_argument("--run", type=Path, default=cache_root() / "train_drafter")
    parser.add_argument("--out", type=Path, default=shipped)
    args = parser.parse_args()
    state = torch.load(args.run / "state.pt")
    runs = all_runs(args.run, state)
    num_bytes = export_weights(state, args.out)
    (args.out / "training.json").write_text(json.dumps(runs, indent=1) + "\n")
    plot_curves(args.run / "log.jsonl", args.out / "curves.png")
    write_card(args.run, args.out, runs, num_bytes)
    print(f"{args.out}: {num_bytes / 1e6:.1f} MB of weights after {state['step']} steps")


if __name__ == "__main__":
    main()
