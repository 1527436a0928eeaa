"""What the KV cache holds after every step."""

from __future__ import annotations

from typing import Any

import torch

from tests.engine import oracles, watch
from tests.engine.engine import Engine
from tests.engine.prompts import LONG, MATRIX, NEAR_END, Prompt


def contents(engine: Engine, shape: str) -> dict[str, Any]:
    """Compare the cache of three requests, after each step, with one fresh prefill each."""
    assert engine.oracle is not None
    engine.oracle.shape = oracles.SHAPES[shape]
    prompts = MATRIX[32][:3]
    layers = {"target": watch.target_layers(engine), "draft": watch.draft_layers(engine)}
    dumps: dict[str, list[watch.Cached]] = {f"r{i}": [] for i in range(len(prompts))}
    assert engine.llm.reset_prefix_cache()
    for name, prompt in zip(dumps, prompts, strict=True):
        engine.add(name, prompt, 70)

    def dump() -> None:
        for name in engine.running:
            dumps[name].append(watch.cached(engine, name, layers["target"] + layers["draft"]))

    tokens = engine.finish(dump)
    of_name = dict(zip(dumps, prompts, strict=True))
    report: dict[str, Any] = {
        "wrong": [n for n, prompt in of_name.items() if tokens[n] != engine.answer(prompt, 70)],
        "steps": sum(map(len, dumps.values())),
        "layers": layers,
        "positions": 0,
        "worst": dict.fromkeys(layers, 0.0),
    }
    for name, prompt in of_name.items():
        fresh = fresh_prefill(engine, prompt + tokens[name], layers["target"] + layers["draft"])
        for found in dumps[name]:
            keys, _ = next(iter(found.values()))
            report["positions"] += len(keys)
            report["dtype"] = str(keys.dtype)
            for kind, names in layers.items():
                worst = max(difference(found[layer], fresh[layer]) for layer in names)
                report["worst"][kind] = max(report["worst"][kind], worst)
    return report


def contents_in_bfloat16(engine: Engine) -> dict[str, Any]:
    """The same, where rounding may turn a token: the oracle follows this engine's own answers."""
    assert engine.oracle is not None
    prompts = MATRIX[32][:3]
    for prompt in prompts:
        engine.answers.pop(tuple(prompt))
    answers = engine.generate(prompts, 90, oracles.nothing).tokens
    for prompt, answer in zip(prompts, answers, strict=True):
        engine.learn(prompt, answer)
        engine.oracle.strays.add(tuple(prompt))
    before = engine.counts()
    report = contents(engine, "zigzag")
    engine.oracle.strays.clear()
    drafted, rounds = engine.counts()
    return report | {"drafted": drafted - before[0], "rounds": rounds - before[1]}


def fresh_prefill(engine: Engine, tokens: Prompt, layers: list[str]) -> watch.Cached:
    """The cache after a prefill of `tokens` with nothing reused."""
    assert engine.llm.reset_prefix_cache()
    engine.add("fresh", tokens, 2)
    steps = engine.steps()
    next(steps)
    found = watch.cached(engine, "fresh", layers)
    for _ in steps:
        pass
    return found


def difference(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> float:
    """The largest absolute difference over the positions that both still have."""
    num = min(len(found[0]), len(expected[0]))
    worst = []
    for ours, theirs in zip(found, expected, strict=True):
        both = ~(ours[:num] + theirs[:num]).isnan().flatten(1).any(1)
        assert both.any()
        worst.append(float((ours[:num] - theirs[:num])[both].abs().max()))
    return max(worst)


def slots(engine: Engine) -> dict[str, Any]:
    """Whether every write goes to a block of a running request that nobody shares."""
    assert engine.oracle is not None
    manager, size = engine.scheduler.kv_cache_manager, engine.scheduler.block_size
    strangers: list[int] = []
    num_writes = 0

    def check(slots: list[int]) -> None:
        nonlocal num_writes
        running = [request.request_id for request in engine.scheduler.running]
        owned = {b for name in running for group in manager.get_block_ids(name) for b in group}
        blocks = {slot // size for slot in slots}
        shared = {b for b in blocks if manager.block_pool.blocks[b].ref_cnt > 1}
        strangers.extend((blocks - owned) | shared)
        num_writes += len(slots)

    # 33 + 15 tokens end at 15 mod 16; the second batch runs into the model's limit.
    batches = [[(MATRIX[32][2], 15)], [(p, 40) for p in NEAR_END], [(p, 60) for p in LONG]]
    free_before = engine.num_free_blocks
    for shape in ("second", "short", "never"):
        engine.oracle.shape = oracles.SHAPES[shape]
        for batch in batches:
            assert engine.llm.reset_prefix_cache()
            for i, (prompt, limit) in enumerate(batch):
                engine.add(f"r{i}", prompt, limit)
            with watch.cache_writes(engine, check):
                engine.finish()
    return {
        "strangers": strangers,
        "writes": num_writes,
        "free_before": free_before,
        "free_after": engine.num_free_blocks,
    }


def leftovers(engine: Engine) -> dict[str, Any]:
    """Generate in a cache full of large numbers wherever nothing was written."""
    layers = engine.runner.compilation_config.static_forward_context.values()
    assert engine.llm.reset_prefix_cache()
    for layer in layers:
        layer.kv_cache.uniform_(-1000, 1000)
    prompts = MATRIX[32][:3]
    run = engine.generate(prompts, 70, oracles.zigzag)
    for layer in layers:
        layer.kv_cache.zero_()
    return {"wrong": engine.wrong(prompts, run), "drafted": run.drafted, "rounds": run.rounds}
