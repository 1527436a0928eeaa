"""The demo's results as a table and as JSON."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from bench_environment import environment
from divergences import PLAIN, Divergence, first_difference
from rich import box
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One configuration at one batch size, over all rounds.

    tokens_per_second: by round. tokens_per_round: new tokens per request and verification, bonus
    included; None for plain vLLM. target_share: of the time of a round. identical: prompts whose
    answer was plain vLLM's in every round.
    """

    configuration: str
    batch_size: int
    tokens_per_second: list[float]
    speed_up: float
    tokens_per_round: float | None
    stages: dict[str, float]
    target_share: float | None
    identical: int
    prompts: int


def summarise(results: dict[tuple[str, int], list[dict[str, Any]]]) -> list[Row]:
    """One row per configuration and batch size, in the order measured."""
    rows = []
    for (name, batch_size), rounds in results.items():
        speeds = [_speed(result) for result in rounds]
        plain = results[PLAIN, batch_size]
        expected = plain[0]["tokens"]
        drafts = sum(result["drafts"] for result in rounds)
        stages = _shares(rounds)
        rows.append(
            Row(
                configuration=name,
                batch_size=batch_size,
                tokens_per_second=speeds,
                speed_up=median(speeds) / median(map(_speed, plain)),
                tokens_per_round=(
                    1 + sum(result["accepted"] for result in rounds) / drafts if drafts else None
                ),
                stages=stages,
                target_share=stages.get("target"),
                identical=sum(
                    all(first_difference(want, r["tokens"][i]) is None for r in rounds)
                    for i, want in enumerate(expected)
                ),
                prompts=len(expected),
            )
        )
    return rows


def _speed(result: dict[str, Any]) -> float:
    return sum(map(len, result["tokens"])) / result["seconds"]


def _shares(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """Each stage's part of the time of a round, summed over rounds; empty for plain vLLM."""
    seconds: dict[str, float] = {}
    for result in rounds:
        for stage, spent in result["stages"].items():
            seconds[stage] = seconds.get(stage, 0.0) + spent
    total = sum(seconds.values())
    return {stage: spent / total for stage, spent in seconds.items()} if total else {}


def print_results(console: Console, rows: list[Row], args: argparse.Namespace) -> None:
    title = f"{args.dtype}, {args.max_tokens} new tokens, greedy, medians of {args.rounds} rounds"
    caption = "tok/round: new tokens per verification, bonus included; target: its share of a round"
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    if args.markdown:
        table.box = box.MARKDOWN
    table.add_column("")
    for column in ("batch", "tok/s", "spread", "speed-up", "tok/round", "target", "identical"):
        table.add_column(column, justify="right")
    for row in rows:
        speeds = row.tokens_per_second
        middle = median(speeds)
        same = f"{row.identical}/{row.prompts}"
        table.add_row(
            row.configuration,
            str(row.batch_size),
            f"{middle:.1f}",
            f"±{(max(speeds) - min(speeds)) / 2 / middle:.1%}",
            f"{row.speed_up:.2f}x",
            f"{row.tokens_per_round:.2f}" if row.tokens_per_round else "",
            f"{row.target_share:.0%}" if row.target_share else "",
            same if row.identical == row.prompts else f"[red]{same}[/red]",
            end_section=not args.markdown and row.configuration == rows[-1].configuration,
        )
    console.print(table)


def print_divergences(console: Console, found: list[Divergence], dtype: str) -> None:
    if not found:
        console.print("Every answer is plain vLLM's, token for token.")
        return
    table = Table(title="First differences from plain vLLM", title_justify="left")
    for column in ("configuration", "batch", "prompt", "token", "plain", "other", "logit gap"):
        table.add_column(column)
    for item in found:
        table.add_row(
            item.configuration,
            str(item.batch_size),
            str(item.prompt),
            str(item.token),
            repr(item.plain),
            repr(item.other),
            f"{item.gap:.4f}",
        )
    console.print(table)
    if dtype == "float32":
        console.print("[red]In float32 no answer may differ.[/red]")


def to_json(rows: list[Row], found: list[Divergence], args: argparse.Namespace) -> dict[str, Any]:
    return {
        "environment": environment(),
        "dtype": args.dtype,
        "max_tokens": args.max_tokens,
        "rounds": args.rounds,
        "drafter": args.drafter.name,
        "results": [asdict(row) for row in rows],
        "divergences": [asdict(item) for item in found],
    }
