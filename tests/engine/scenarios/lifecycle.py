"""Requests that are preempted, aborted, and come back."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

from tests.engine import oracles
from tests.engine.engine import Engine
from tests.engine.prompts import LONG, MIXED


def preemptions(engine: Engine, priorities: str = "equal") -> dict[str, Any]:
    """Four long requests in a cache that holds about two; the tree state of those resumed."""
    assert engine.oracle is not None
    engine.oracle.shape = oracles.zigzag
    free_before = engine.num_free_blocks
    trees = engine.speculator.trees
    model_state = engine.runner.model_state
    add_request = model_state.add_request
    nodes_after_joining: list[int] = []
    drafts_of_preempted: list[int] = []
    preempt = type(engine.scheduler)._preempt_request
    num_preemptions = 0

    def joining(req_index: int, new_req_data: Any) -> None:
        add_request(req_index, new_req_data)
        nodes_after_joining.append(int(trees.gather(_slots(req_index), _slots(10**6), 1).num_nodes))

    def preempting(scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal num_preemptions
        preempt(scheduler, request, *args, **kwargs)
        num_preemptions += 1
        drafts_of_preempted.append(len(request.spec_token_ids))

    model_state.add_request = joining
    for i, prompt in enumerate(LONG):
        priority = i % 2 if priorities == "mixed" else 0
        engine.add(f"r{i}", prompt, 150, priority=priority)
    with mock.patch.object(type(engine.scheduler), "_preempt_request", preempting):
        tokens = engine.finish()
    del model_state.add_request
    return {
        "wrong": [i for i, p in enumerate(LONG) if tokens[f"r{i}"] != engine.answer(p, 150)],
        "preemptions": num_preemptions,
        "joined": len(nodes_after_joining),
        "nodes_after_joining": sum(nodes_after_joining),
        "drafts_of_preempted": sum(drafts_of_preempted),
        "drafted": engine.oracle.num_drafted,
        "free_before": free_before,
        "free_after": engine.num_free_blocks,
    }


def _slots(index: int) -> Any:
    import torch

    return torch.tensor([index])


def aborts(engine: Engine) -> dict[str, Any]:
    """Requests aborted at random steps, their names used again at once."""
    assert engine.oracle is not None
    engine.oracle.shape = oracles.bushy
    rng = random.Random(0)
    prompts = MIXED[:4]
    free_before = engine.num_free_blocks
    num_aborted = num_finished = 0
    wrong = []
    for i, prompt in enumerate(prompts):
        engine.add(f"r{i}", prompt, 60)
    asked = 4
    for outputs in engine.steps():
        gone = set()
        for name, output in outputs.items():
            prompt = prompts[int(name[1:])]
            got = list(output.outputs[0].token_ids)
            if got != engine.answer(prompt, len(got)):
                wrong.append({"name": name, "got": got})
            if output.finished:
                num_finished += 1
                gone.add(name)
        running = engine.names(engine.scheduler.requests)
        if running and rng.random() < 0.5:
            gone.add(name := rng.choice(running))
            engine.llm.llm_engine.abort_request([name])
            num_aborted += 1
        for name in sorted(gone):
            if asked < 200:
                engine.add(name, prompts[int(name[1:])], rng.randrange(1, 60))
                asked += 1
    return {
        "wrong": wrong,
        "aborted": num_aborted,
        "finished": num_finished,
        "free_before": free_before,
        "free_after": engine.num_free_blocks,
        "slots_in_use": len(engine.runner.req_states.req_id_to_index),
    }
