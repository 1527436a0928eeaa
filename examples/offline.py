"""Plain vLLM, the drafter's chain and its draft trees on the same prompts: speed and sameness.

``python examples/offline.py`` (or ``make demo``). Three engines live in processes of their own and
take turns, so that a slow moment of the machine hits all of them. Greedy decoding; in float32 every
answer has to be the plain one, token for token, or the exit code is 1. In bfloat16 near-ties of the
target flip with the number of rows, and each first difference is listed with the gap of its logits.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from demo_target import ensure_target
from divergences import find_divergences
from engine_worker import Engine, start_all
from offline_report import print_divergences, print_results, summarise, to_json
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers import AutoTokenizer

HERE = Path(__file__).resolve().parent
DRAFTER = HERE / "drafters" / "smollm2-135m-domino"
BATCH_SIZES = (1, 8)
PLAIN = "plain"


def configurations(drafter: Path) -> dict[str, dict[str, Any] | None]:
    """What is compared: name -> speculative_config, None for stock vLLM."""
    dartree = {"method": "dartree", "model": str(drafter)}
    return {
        PLAIN: None,
        "chain": {**dartree, "dartree_builder": "chain"},
        "pruned": {**dartree, "dartree_builder": "pruned"},
    }


def engine_args(target: Path, dtype: str, speculative_config: dict | None) -> dict[str, Any]:
    """The same engine for every configuration, quick to start on a small machine."""
    return {
        "model": str(target),
        "dtype": dtype,
        "max_model_len": 1024,
        "max_num_seqs": max(BATCH_SIZES),
        "kv_cache_memory_bytes": 1 << 30,
        "enforce_eager": True,
        "enable_prefix_caching": False,  # every round does the same work
        "speculative_config": speculative_config,
    }


def start_engines(target: Path, drafter: Path, dtype: str) -> dict[str, Engine]:
    """One engine per configuration, all starting at the same time."""
    return start_all(
        Engine(name, engine_args(target, dtype, config), plugin=config is not None)
        for name, config in configurations(drafter).items()
    )


def load_prompts(tokenizer: Any) -> list[list[int]]:
    """The demo's prompts as token ids, in the target's chat template."""
    lines = (HERE / "demo_prompts.jsonl").read_text().splitlines()
    chats = [[{"role": "user", "content": json.loads(line)["text"]}] for line in lines]
    return [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        for chat in chats
    ]


def turns(engines: dict[str, Engine], rounds: int) -> Iterator[tuple[int, Engine]]:
    """A B C A B C ... for each batch size."""
    for batch_size in BATCH_SIZES:
        for _ in range(rounds):
            for engine in engines.values():
                yield batch_size, engine


def measure(
    engines: dict[str, Engine], prompts: list[list[int]], max_tokens: int, rounds: int
) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """What `engine_worker.generate` returned, for each configuration and batch size by round."""
    results: dict[tuple[str, int], list[dict[str, Any]]] = {}
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=rounds * len(engines) * len(BATCH_SIZES))
        for batch_size, engine in turns(engines, rounds):
            progress.update(task, description=f"{engine.name}, batch {batch_size}")
            # The engine that ran before may still spin on the cores: not on measured time.
            engine.call("generate", prompts=prompts[:1], max_tokens=4, batch_size=1)
            result = engine.call(
                "generate", prompts=prompts, max_tokens=max_tokens, batch_size=batch_size
            )
            results.setdefault((engine.name, batch_size), []).append(result)
            progress.advance(task)
    return results


def main() -> int:
    args = parse_arguments()
    console = Console()
    target = ensure_target()
    tokenizer = AutoTokenizer.from_pretrained(target)
    prompts = load_prompts(tokenizer)
    console.print(f"target {target}\ndrafter {args.drafter}\nstarting three engines", style="dim")
    engines = start_engines(target, args.drafter, args.dtype)
    try:
        results = measure(engines, prompts, args.max_tokens, args.rounds)
        divergences = find_divergences(engines[PLAIN], prompts, results, tokenizer)
    finally:
        for engine in engines.values():
            engine.close()
    rows = summarise(results)
    print_results(console, rows, args)
    print_divergences(console, divergences, args.dtype)
    if args.json is not None:
        args.json.write_text(json.dumps(to_json(rows, divergences, args), indent=2) + "\n")
    return 1 if divergences and args.dtype == "float32" else 0


def parse_arguments() -> argparse.Namespace:
    parser = common_arguments(__doc__, rounds=3)
    parser.add_argument("--max-tokens", type=int, default=64, help="new tokens per prompt")
    return parser.parse_args()


def common_arguments(description: str | None, rounds: int) -> argparse.ArgumentParser:
    """What every comparison of engines on the demo pair can be told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=rounds, help="measurements per engine")
    parser.add_argument("--drafter", type=Path, default=DRAFTER, help="directory of the drafter")
    parser.add_argument("--json", type=Path, help="write the results to this file as well")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
