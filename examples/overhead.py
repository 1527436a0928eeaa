"""What the plugin's path costs when nothing is drafted: a decode step against stock vLLM's.

``python examples/overhead.py`` (or ``make benchmark-overhead``). Stock vLLM on Model Runner V1 and
the plugin on Model Runner V2 take turns. vLLM's own schedule plans no draft tokens here, so both
engines run the same rows through the same target. The exit code is 1 above ``--limit``.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench_environment import environment
from demo_target import ensure_target
from engine_worker import Engine, start_all
from offline import BATCH_SIZES, common_arguments, engine_args, load_prompts
from rich import box
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

STOCK, PLUGIN = "stock", "plugin"
NO_DRAFTS = [[1, 256, 0]]  # for batches of 1 to 256 requests: 0 draft tokens


@dataclass(frozen=True)
class Overhead:
    """Milliseconds per decode step, one median per round, and the ratio of their medians.

    ratios: by round, plugin over the stock run just before it.
    """

    batch_size: int
    stock: list[float]
    plugin: list[float]

    @property
    def ratio(self) -> float:
        return median(self.plugin) / median(self.stock)

    @property
    def ratios(self) -> list[float]:
        return [ours / theirs for theirs, ours in zip(self.stock, self.plugin, strict=True)]


def start(target: Path, drafter: Path, dtype: str) -> dict[str, Engine]:
    speculative_config = {
        "method": "dartree",
        "model": str(drafter),
        "num_speculative_tokens_per_batch_size": NO_DRAFTS,
    }
    return start_all(
        (
            Engine(STOCK, engine_args(target, dtype, None), plugin=False),
            Engine(PLUGIN, engine_args(target, dtype, speculative_config), plugin=True),
        )
    )


def measure(
    engines: dict[str, Engine], prompts: list[list[int]], steps: int, rounds: int
) -> list[Overhead]:
    """Interleaved rounds of `steps` decode steps at each batch size."""
    found = []
    for batch_size in BATCH_SIZES:
        medians: dict[str, list[float]] = {STOCK: [], PLUGIN: []}
        for _ in range(rounds):
            for engine in engines.values():
                batch = prompts[:batch_size]
                engine.call("step_milliseconds", prompts=batch, num_tokens=8)  # settle the cores
                times = engine.call("step_milliseconds", prompts=batch, num_tokens=steps)
                medians[engine.name].append(median(times))
        found.append(Overhead(batch_size, medians[STOCK], medians[PLUGIN]))
    return found


def check_no_drafts(plugin: Engine, prompts: list[list[int]]) -> None:
    """Raises:
    RuntimeError: draft tokens were verified, or the drafter ran; the comparison is void.
    """
    result = plugin.call("generate", prompts=prompts[:1], max_tokens=8, batch_size=1)
    if result["drafts"]:
        raise RuntimeError(f"{result['drafts']} rounds verified drafts, expected none")
    if result["stages"]["build"]:
        raise RuntimeError("trees were built although none is verified")


def print_table(console: Console, found: list[Overhead], limit: float, markdown: bool) -> None:
    table = Table(title="Milliseconds per decode step, medians", title_justify="left")
    if markdown:
        table.box = box.MARKDOWN
    for column in ("batch", "stock V1", "plugin, no drafts", "ratio", "min-max", "limit"):
        table.add_column(column, justify="right")
    for item in found:
        within = item.ratio <= limit
        table.add_row(
            str(item.batch_size),
            f"{median(item.stock):.2f}",
            f"{median(item.plugin):.2f}",
            f"[{'green' if within else 'red'}]{item.ratio:.3f}[/]",
            f"{min(item.ratios):.3f}-{max(item.ratios):.3f}",
            f"{limit:.2f}",
        )
    console.print(table)


def main() -> int:
    args = parse_arguments()
    console = Console()
    target = ensure_target()
    prompts = load_prompts(AutoTokenizer.from_pretrained(target))
    console.print(f"target {target}\nstarting two engines", style="dim")
    engines = start(target, args.drafter, args.dtype)
    try:
        check_no_drafts(engines[PLUGIN], prompts)
        found = measure(engines, prompts, args.steps, args.rounds)
    finally:
        for engine in engines.values():
            engine.close()
    print_table(console, found, args.limit, args.markdown)
    if args.json is not None:
        args.json.write_text(json.dumps(to_json(found, args), indent=2) + "\n")
    return 0 if all(item.ratio <= args.limit for item in found) else 1


def to_json(found: list[Overhead], args: argparse.Namespace) -> dict[str, Any]:
    results = [asdict(item) | {"ratio": item.ratio, "ratios": item.ratios} for item in found]
    return {
        "environment": environment(),
        "dtype": args.dtype,
        "steps": args.steps,
        "limit": args.limit,
        "results": results,
    }


def parse_arguments() -> argparse.Namespace:
    parser = common_arguments(__doc__, rounds=7)
    parser.add_argument("--steps", type=int, default=128, help="decode steps per measurement")
    parser.add_argument("--limit", type=float, default=1.10, help="largest ratio that passes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
