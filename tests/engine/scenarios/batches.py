"""Batches that mix requests in different states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.engine import oracles, watch
from tests.engine.engine import Engine
from tests.engine.prompts import LONG, MATRIX, MIXED, NEAR_END, SHORT, Prompt


def short_prompts(engine: Engine) -> dict[str, Any]:
    """Prompts of 1..B+2 tokens, joining while trees of others are verified."""
    return _compared(engine, [*MIXED[:2], *SHORT], 40, oracles.second)


def chunked_prefills(engine: Engine) -> dict[str, Any]:
    """Long prompts whose chunks, tails of any length included, share steps with trees."""
    report = _compared(engine, [*MIXED, *LONG, *MATRIX[128][:3]], 50, oracles.zigzag)
    return report


def tight_budget(engine: Engine) -> dict[str, Any]:
    """Three trees of B nodes, for which one step has not enough tokens."""
    return _compared(engine, MIXED[:3], 60, oracles.perfect)


def near_the_end(engine: Engine) -> dict[str, Any]:
    """Requests that reach max_model_len within one or a few rounds."""
    return _compared(engine, NEAR_END, 100, oracles.second)


def max_tokens(engine: Engine) -> dict[str, Any]:
    """max_tokens of 1..B+2 under a drafter that is always right; also in one batch."""
    limits = list(range(1, 19))
    alone = [_compared(engine, [MIXED[0]], limit, oracles.perfect) for limit in limits]
    together = _compared(engine, SHORT, limits, oracles.perfect)
    return {"alone": alone, "together": together, "limits": limits}


def tree_sizes(engine: Engine) -> dict[str, Any]:
    """Trees of no node, one node and B nodes in every batch."""
    shapes = [oracles.nothing, oracles.single, oracles.second, oracles.zigzag]
    return _compared(engine, MIXED[:8], 50, shapes * 2)


def condensing(engine: Engine) -> dict[str, Any]:
    """Six requests of different lengths and trees; others join while they leave."""
    assert engine.oracle is not None
    shapes = list(oracles.SHAPES.values())
    engine.oracle.shape_of = {tuple(p): s for p, s in zip(MIXED, shapes, strict=True)}
    limits = [12, 70, 25, 55, 8, 40, 60, 33]
    before = engine.counts()
    for i in range(6):
        engine.add(f"r{i}", MIXED[i], limits[i])
    late = [6, 7]
    tokens: dict[str, list[int]] = {}
    for step, outputs in enumerate(engine.steps()):
        tokens |= {
            name: list(output.outputs[0].token_ids)
            for name, output in outputs.items()
            if output.finished
        }
        if step in (3, 9) and late:
            i = late.pop(0)
            engine.add(f"r{i}", MIXED[i], limits[i])
    engine.oracle.shape_of = {}
    wrong = [i for i, p in enumerate(MIXED) if tokens[f"r{i}"] != engine.answer(p, limits[i])]
    drafted, rounds = engine.counts()
    return {
        "wrong": wrong,
        "finished": len(tokens),
        "joined_late": 2 - len(late),
        "drafted": drafted - before[0],
        "rounds": rounds - before[1],
    }


def shrinking(engine: Engine) -> dict[str, Any]:
    """Requests of different lengths under vLLM's schedule of drafts by batch size."""
    limits = [20, 40, 60, 80]
    with watch.batches(engine) as seen:
        run = engine.generate(MIXED[:4], limits, oracles.zigzag)
    planned: dict[str, set[int]] = {}
    for batch in seen:
        if batch.nodes:
            planned.setdefault(str(len(batch.rows)), set()).update(batch.drafts)
    return {
        "wrong": engine.wrong(MIXED[:4], run),
        "drafted": run.drafted,
        "rounds": run.rounds,
        "planned": {size: sorted(drafts) for size, drafts in planned.items()},
    }


def stops(engine: Engine) -> dict[str, Any]:
    """Stop tokens in the middle of an accepted path."""
    prompts = MIXED[:4]
    # The 8th token of each answer ends it, wherever it comes first.
    params = [{"stop_token_ids": [engine.answer(p, 8)[-1]]} for p in prompts]
    run = engine.generate(prompts, 40, oracles.perfect, params=params)
    expected = []
    for prompt, param in zip(prompts, params, strict=True):
        answer = engine.answer(prompt, 40)
        expected.append(answer[: answer.index(param["stop_token_ids"][0]) + 1])
    return {
        "got": run.tokens,
        "expected": expected,
        "finish_reasons": run.finish_reasons,
        "drafted": run.drafted,
    }


def _compared(
    engine: Engine,
    prompts: list[Prompt],
    limits: int | list[int],
    shapes: oracles.Shape | Sequence[oracles.Shape],
) -> dict[str, Any]:
    """Run a batch and report on its tokens, lengths and what the steps looked like."""
    assert engine.oracle is not None
    if isinstance(shapes, Sequence):
        engine.oracle.shape_of = {tuple(p): s for p, s in zip(prompts, shapes, strict=True)}
    with watch.batches(engine) as seen:
        run = engine.generate(prompts, limits, None if isinstance(shapes, Sequence) else shapes)
    engine.oracle.shape_of = {}
    budget = engine.oracle.budget
    # Requests without a tree whose rows are as few as a tree's, beside trees.
    short = [
        rows
        for b in seen
        for rows, drafts in zip(b.rows, b.drafts, strict=True)
        if b.nodes and not drafts and rows <= budget + 1
    ]
    return {
        "wrong": engine.wrong(prompts, run),
        "lengths": [len(t) for t in run.tokens],
        "finish_reasons": run.finish_reasons,
        "drafted": run.drafted,
        "rounds": run.rounds,
        "tokens": sum(map(len, run.tokens)),
        "short_prefills_beside_trees": sorted(set(short)),
        "truncated_trees": sum(0 < d < budget for b in seen for d in b.drafts),
        "more_nodes_than_planned": [
            (b.drafts, b.nodes)
            for b in seen
            if any(n > d for n, d in zip(b.nodes, b.drafts, strict=False))
        ],
        "tree_sizes": sorted({tuple(b.nodes) for b in seen if len(b.nodes) > 1}),
    }


def inputs(engine: Engine) -> dict[str, Any]:
    """Token ids and positions that reach the target while one-token prompts join trees."""
    assert engine.oracle is not None
    engine.oracle.shape = oracles.second
    config = engine.llm.llm_engine.vllm_config.scheduler_config
    joining = [SHORT[0], SHORT[1], SHORT[0], SHORT[2]]
    with watch.target_inputs(engine) as fed, watch.batches(engine) as seen:
        for i, prompt in enumerate(MIXED[:4]):
            engine.add(f"r{i}", prompt, 50)
        for step, _ in enumerate(engine.steps()):
            if step < len(joining):
                engine.add(f"late{step}", joining[step], 20)
    ids = [int(t) for step in fed for t in step["input_ids"]]
    positions = [int(p) for step in fed for p in step["positions"]]
    return {
        "asynchronous": config.async_scheduling,
        "scheduler": type(engine.scheduler).__name__,
        "ids": [min(ids), max(ids)],
        "positions": [min(positions), max(positions)],
        "vocab_size": engine.oracle.vocab_size,
        # A joining request of one token is padded with placeholders, which are no nodes.
        "placeholders": sum(
            drafts > 0 and nodes == 0
            for b in seen
            for drafts, nodes in zip(b.drafts, b.nodes, strict=False)
        ),
        # Requests that a step left out: running, but without rows.
        "fewest_requests": min(len(b.rows) for b in seen[4:8]),
    }
