"""Verification inside the engine: what it leaves alone, and rows that are no distributions."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tests.engine import oracles
from tests.engine.engine import Engine
from tests.engine.prompts import MIXED
from vllm_dartree.engine.rejection_sampler import TreeRejectionSampler

FINITE_TOKEN = 37


def purity(engine: Engine) -> dict[str, Any]:
    """Verify every step twice; compare logits before and after, and both outcomes."""
    original = TreeRejectionSampler.__call__
    report = {"calls": 0, "changed": 0, "different": 0}

    def watching(self: Any, logits: Tensor, input_batch: Any, *args: Any) -> Any:
        before = logits.clone()
        first = original(self, logits, input_batch, *args)
        second = original(self, logits, input_batch, *args)
        report["calls"] += 1
        report["changed"] += not torch.equal(before, logits)
        report["different"] += not (
            torch.equal(first.sampled_token_ids, second.sampled_token_ids)
            and torch.equal(first.num_sampled, second.num_sampled)
            and torch.equal(first.num_rejected, second.num_rejected)
        )
        return second

    with mock.patch.object(TreeRejectionSampler, "__call__", watching):
        run = engine.generate(MIXED[:4], 30, oracles.bushy, params={"logprobs": 2})
    return report | {"drafted": run.drafted}


def broken_rows(engine: Engine, kind: str) -> dict[str, Any]:
    """From its second token on, all logits of one of two requests are broken."""
    assert engine.oracle is not None
    original = TreeRejectionSampler.__call__
    steps_broken = 0

    def breaking(self: Any, logits: Tensor, input_batch: Any, *args: Any) -> Any:
        nonlocal steps_broken
        first, last = 0, 0
        for i, request_id in enumerate(input_batch.req_ids):
            first, last = last, int(input_batch.cu_num_logits_np[i + 1])
            if request_id.split("-")[0] == "bad":
                steps_broken += 1
                logits[first:last] = float("nan" if kind == "nan" else "-inf")
                if kind == "one finite":
                    logits[first:last, FINITE_TOKEN] = -3.0
        return original(self, logits, input_batch, *args)

    engine.oracle.shape = oracles.second
    engine.oracle.strays.add(tuple(MIXED[1]))
    drafted = engine.oracle.num_drafted
    engine.add("good", MIXED[0], 100)
    engine.add("bad", MIXED[1], 30)
    with mock.patch.object(TreeRejectionSampler, "__call__", breaking):
        tokens = engine.finish()
    engine.oracle.strays.clear()
    good, bad = tokens["good"], tokens["bad"]
    return {
        "steps_broken": steps_broken,
        "tokens": bad,
        "length": len(bad),
        "finite_token": FINITE_TOKEN,
        "outside": [t for t in bad if not 0 <= t < engine.oracle.vocab_size],
        "neighbour_wrong": [good] if good != engine.answer(MIXED[0], len(good)) else [],
        "drafted": engine.oracle.num_drafted - drafted,
    }
