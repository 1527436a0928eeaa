"""What the target computes at the nodes of a tree."""

from __future__ import annotations

from typing import Any

import torch

from tests.engine import oracles, watch
from tests.engine.engine import Engine
from tests.engine.prompts import MIXED
from tests.engine.reference_target import ReferenceTarget


def nodes(engine: Engine) -> dict[str, Any]:
    """Rows of random trees: positions, slots, and logits against a causal run of prompt + path."""
    target = ReferenceTarget(engine.spec["directories"]["target"])
    with watch.verified_trees(engine) as steps:
        run = engine.generate(MIXED[:3], 30, oracles.bushy)
    worst, largest, num_nodes = 0.0, 0.0, 0
    wrong_positions, shared_slots, siblings = [], [], 0
    for tree in (tree for step in steps for tree in step):
        num_nodes += len(tree.tokens)
        siblings += len(tree.parents) - len(set(tree.parents))
        if len(set(tree.slots)) != len(tree.slots):
            shared_slots.append(tree.slots)
        for node in range(-1, len(tree.tokens)):
            path = tree.path(node)
            if tree.positions[node + 1] != len(tree.history) - 1 + len(path):
                wrong_positions.append((len(tree.history), len(path), tree.positions[node + 1]))
            expected = target.logits(tree.history + path)[-1]
            worst = max(worst, float((tree.logits[node + 1] - expected).abs().max()))
            largest = max(largest, float(expected.abs().max()))
    return {
        "wrong": engine.wrong(MIXED[:3], run),
        "nodes": num_nodes,
        "siblings": siblings,
        "wrong_positions": wrong_positions,
        "shared_slots": shared_slots,
        "worst": worst,
        "largest": largest,
    }


def influence(engine: Engine) -> dict[str, Any]:
    """Which rows' logits change when one node's token is changed: itself and what is below it."""
    prompt = MIXED[1]
    unexpected = []
    num_changed = num_unchanged = 0
    for seed in range(3):
        template = oracles.random_tree(seed, engine.oracle.budget, engine.oracle.depth)
        base = _first_tree(engine, prompt, template)
        for node in range(0, len(template), 3):
            changed = list(template)
            token, parent, score = changed[node]
            changed[node] = (token + 1, parent, score)
            other = _first_tree(engine, prompt, changed)
            for row in range(len(template) + 1):
                same = torch.equal(base.logits[row], other.logits[row])
                below = node in _ancestors(template, row - 1)
                num_changed += not same
                num_unchanged += same
                if same == below:
                    unexpected.append({"seed": seed, "changed": node, "row": row, "same": same})
    return {"unexpected": unexpected, "changed": num_changed, "unchanged": num_unchanged}


def _first_tree(engine: Engine, prompt: list[int], nodes: list[oracles.Node]) -> watch.VerifiedTree:
    with watch.verified_trees(engine) as steps:
        engine.generate([prompt], 2, lambda *_: nodes)
    return steps[0][0]


def _ancestors(nodes: list[oracles.Node], node: int) -> list[int]:
    """`node` and its ancestors; the root has none."""
    return [] if node < 0 else [node, *_ancestors(nodes, nodes[node][1])]
