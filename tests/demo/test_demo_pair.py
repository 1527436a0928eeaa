"""The demo pair on real prompts: greedy output is plain vLLM's own, and trees shorten it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.demo.demo_runs import DRAFTER, STOCK, demo_target, evaluation_prompts, greedy, top_two
from tests.engine_process import run_engine

BUDGET = 8
# Two float32 runs sum in another order, which moves logits by some 1e-5: a choice between two
# tokens closer than this may fall either way.
NEAR_TIE = 1e-4
# bfloat16 keeps 8 bits: logits of 10 to 20 move by up to about 1/8 with the number of rows.
NEAR_TIE_BFLOAT16 = 0.25


@dataclass(frozen=True)
class Divergence:
    prompt: int
    position: int
    gap: float


def test_float32_greedy_output_is_stock_vllm_s_and_pruned_needs_fewer_rounds_than_chain() -> None:
    plain, chain, pruned = _three_runs(evaluation_prompts(24), max_tokens=48, dtype="float32")

    for name, run in (("chain", chain), ("pruned", pruned)):
        divergences = _divergences(plain, run, "float32")
        print(name, divergences)
        assert all(divergence.gap < NEAR_TIE for divergence in divergences), divergences
        assert 0 < run["rounds"] < _num_tokens(run), "drafts must be accepted"
    assert pruned["rounds"] < chain["rounds"]


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_hundred_prompts_of_128_tokens_diverge_at_near_ties_only(dtype: str) -> None:
    limit = {"float32": NEAR_TIE, "bfloat16": NEAR_TIE_BFLOAT16}[dtype]
    plain, chain, pruned = _three_runs(evaluation_prompts(200), max_tokens=128, dtype=dtype)

    for name, run in (("chain", chain), ("pruned", pruned)):
        divergences = _divergences(plain, run, dtype)
        same = len(plain["token_ids"]) - len(divergences)
        per_round = _num_tokens(run) / run["rounds"]
        print(f"{dtype} {name}: identical {same}, {per_round:.2f} tokens per round", divergences)
        assert all(divergence.gap < limit for divergence in divergences), divergences


def _three_runs(texts: list[str], max_tokens: int, dtype: str) -> list[dict[str, Any]]:
    """Stock vLLM without the plugin, then `chain` and `pruned`."""
    target = str(demo_target())
    runs = []
    for builder in (None, "chain", "pruned"):
        trees = builder and {
            "method": "dartree",
            "model": str(DRAFTER),
            "num_speculative_tokens": BUDGET,
            "dartree_builder": builder,
        }
        runs.append(
            run_engine(
                greedy,
                environment=None if trees else STOCK,
                timeout_s=3600,
                target=target,
                texts=texts,
                max_tokens=max_tokens,
                dtype=dtype,
                batch=8,
                speculative_config=trees,
            )
        )
    return runs


def _divergences(plain: dict[str, Any], run: dict[str, Any], dtype: str) -> list[Divergence]:
    """Where each output first leaves plain vLLM's, with the target's gap between its two best."""
    places = []
    for prompt, (ours, theirs) in enumerate(zip(run["token_ids"], plain["token_ids"], strict=True)):
        if ours != theirs:
            pairs = zip(ours, theirs, strict=False)
            first = next(
                (i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs))
            )
            places.append((prompt, first))
    if not places:
        return []
    prefixes = [plain["prompt_ids"][p] + plain["token_ids"][p][:i] for p, i in places]
    best_two = run_engine(
        top_two,
        environment=STOCK,
        target=str(demo_target()),
        prefixes=prefixes,
        dtype=dtype,
    )
    gaps = [first[1] - second[1] for first, second in best_two]
    return [Divergence(p, i, gap) for (p, i), gap in zip(places, gaps, strict=True)]


def _num_tokens(run: dict[str, Any]) -> int:
    return sum(map(len, run["token_ids"]))
