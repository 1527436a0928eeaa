"""The exact node-by-node heap, with head inference between pops.

The sequential method that DARTree replaces: the oracle of ``pruned`` and the latency baseline.
It loops in Python over requests and nodes and reads scores back to the host.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vllm_dartree.tree.builders.scoring import child_scores
from vllm_dartree.tree.draft_tree import NEG_INF, DraftTree

if TYPE_CHECKING:
    from vllm_dartree.heads.base import CorrectionHead
    from vllm_dartree.tree.block import DraftBlock
    from vllm_dartree.tree.options import TreeOptions


def best_first(block: DraftBlock, head: CorrectionHead, options: TreeOptions) -> DraftTree:
    """The B nodes that a best-first search over all prefixes pops, in that order.

    Example: q = 3/4, 1/4 at both depths.

        >>> from vllm_dartree.heads import NullHead
        >>> from vllm_dartree.tree import DraftBlock, TreeOptions
        >>> logits = torch.tensor([3.0, 1.0]).log().expand(1, 2, 2)
        >>> block = DraftBlock.from_logits(torch.tensor([9]), torch.zeros(1, 2, 1), (0, 1),
        ...     logits, num_candidates=2)
        >>> tree = best_first(block, NullHead(), TreeOptions(budget=3, depth_bonus=0.0))
        >>> tree.tokens.tolist(), tree.parents.tolist()
        ([[0, 0, 1]], [[-1, 0, -1]])
    """
    block = block.by_token()
    nodes = [
        _search(block.request(request), head, options) for request in range(block.num_requests)
    ]
    tree = DraftTree.from_nodes(nodes, options.budget)
    device = block.base_logits.device
    return DraftTree(*(getattr(tree, name).to(device) for name in DraftTree.__match_args__))


def _search(
    block: DraftBlock, head: CorrectionHead, options: TreeOptions
) -> list[tuple[int, int, float]]:
    """(token, parent node, score) of the popped nodes of the single request in ``block``."""
    tokens_of_depth: list[list[int]] = block.candidate_tokens[0].tolist()
    nodes: list[tuple[int, int, float]] = []
    # (-score, depth, parent node, token): tuple order is the tie rule. A parent and a token name
    # a child, so comparisons never reach the parent's state.
    heap: list[tuple[float, int, int, int, Tensor]] = []

    def push_children(parent: int, parent_score: float, depth: int, state: Tensor) -> None:
        logits = head.score(depth, block, state)
        score_of_parent = logits.new_full((1, 1), parent_score)
        scores = child_scores(logits, score_of_parent, options.depth_bonus).flatten().tolist()
        for token, score in zip(tokens_of_depth[depth - 1], scores, strict=True):
            if score > NEG_INF:
                heapq.heappush(heap, (-score, depth, parent, token, state))

    push_children(-1, 0.0, 1, head.root_state(block))
    while heap and len(nodes) < options.budget:
        negated, depth, parent, token, parent_state = heapq.heappop(heap)
        nodes.append((token, parent, -negated))
        if depth < block.num_depths and len(nodes) < options.budget:
            taken = torch.tensor([[token]], device=block.anchors.device)
            state = head.advance(depth, block, parent_state, taken)
            push_children(len(nodes) - 1, -negated, depth + 1, state)
    return nodes
