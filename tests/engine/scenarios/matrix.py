"""Every oracle at every batch size."""

from __future__ import annotations

from typing import Any

from tests.engine.engine import Engine
from tests.engine.oracles import SHAPES
from tests.engine.prompts import MATRIX

# Enough for 20 rounds of one request and to reach its third KV block.
NUM_TOKENS = {
    "perfect": 190,
    "second": 190,
    "zigzag": 130,
    "never": 64,
    "until_depth": 70,
    "duplicate": 190,
    "short": 130,
    "bushy": 90,
}
BATCHES = {1: 3, 3: 6, 8: 8}  # batch size: prompts


def shape(engine: Engine, name: str) -> dict[str, Any]:
    """Batches of 1, 3 and 8 under one oracle, compared with stock vLLM's answers."""
    block_size = engine.spec["options"].get("block_size", 32)
    report = {}
    for batch_size, num_prompts in BATCHES.items():
        prompts = MATRIX[block_size][:num_prompts]
        batches = [prompts[i : i + batch_size] for i in range(0, num_prompts, batch_size)]
        limit = NUM_TOKENS[name]
        runs = [engine.generate(batch, limit, SHAPES[name]) for batch in batches]
        wrong = [engine.wrong(batch, run) for batch, run in zip(batches, runs, strict=True)]
        report[str(batch_size)] = {
            "wrong": [entry for batch in wrong for entry in batch],
            "drafted": sum(run.drafted for run in runs),
            "fewest_rounds": min(run.rounds for run in runs),
            # The first token comes from the prefill.
            "tokens_per_round": (limit - 1) * len(runs) / sum(run.rounds for run in runs),
            "blocks_spanned": min(-(-(max(map(len, b)) + limit) // block_size) for b in batches),
        }
    return report
