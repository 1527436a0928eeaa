"""A step's trees without an engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tests.engine.oracles import Node
from vllm_dartree.engine.tree_state import TreeState
from vllm_dartree.tree import DraftTree

# root -> 1, 2, 3; 2 -> 4, 5; 5 -> 6 (rows of the verify batch; the token of row r is 10 + r)
BRANCHED: list[Node] = [(11, -1, -1.0), (12, -1, -2.0), (13, -1, -3.0)]
BRANCHED += [(14, 1, -4.0), (15, 1, -5.0), (16, 4, -6.0)]


def step_with(
    trees: Sequence[list[Node]],
    prefix_lens: Sequence[int],
    num_drafts: Sequence[int] | None = None,
    num_others: int = 0,
) -> TreeState:
    """A state whose `batch` holds `trees`, as many rows as `num_drafts` says (default: nodes).

    `num_others` requests without a tree follow, one row each.
    """
    drafts = [len(tree) for tree in trees] if num_drafts is None else list(num_drafts)
    budget = max(drafts)
    state = TreeState(len(trees) + num_others, budget, budget, torch.device("cpu"))
    slots = torch.arange(len(trees) + num_others)
    state.store(slots[: len(trees)], DraftTree.from_nodes(trees, budget))
    planned = np.array(drafts + [0] * num_others)
    computed = torch.tensor([*prefix_lens, *[0] * num_others], dtype=torch.int32)
    state.begin_step(slots, planned, np.concatenate([[0], np.cumsum(planned + 1)]), computed)
    assert state.batch is not None
    return state
