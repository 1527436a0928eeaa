"""Depth-wise supertree (DARTree Alg. 1) and its deferred best-first pruning (Lemma 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from vllm_dartree.tree.builders.scoring import child_scores
from vllm_dartree.tree.draft_tree import NEG_INF, DraftTree
from vllm_dartree.tree.order import best_columns

if TYPE_CHECKING:
    from vllm_dartree.heads.base import CorrectionHead
    from vllm_dartree.tree.block import DraftBlock


@dataclass(frozen=True)
class Level:
    """The supertree's nodes of one depth, in node order: all fields [R, width].

    ``parents`` are positions in the level above (0 at depth 1: the root is a level of one).
    """

    tokens: Tensor
    parents: Tensor
    scores: Tensor


def grow(
    block: DraftBlock, head: CorrectionHead, widths: Sequence[int], depth_bonus: float
) -> list[Level]:
    """The levels of the supertree: at depth d the ``widths[d - 1]`` best children of the last.

    ``block`` must be in ``by_token`` order: then the column of a child among all children,
    parent position * K + candidate position, is its place in the tie rule. A level has fewer
    columns than its width where there are fewer children.
    """
    num_requests, num_candidates = block.num_requests, block.num_candidates
    places = torch.arange(
        max(num_requests, num_candidates * max(1, *widths)), device=block.base_logits.device
    )
    scores = block.base_logits.new_zeros((num_requests, 1))
    state = head.root_state(block)
    levels = []
    for depth, width in enumerate(widths, start=1):
        logits = head.score(depth, block, state)
        children = child_scores(logits, scores, depth_bonus).flatten(1)
        num_children = children.shape[1]
        kept = best_columns(children, min(width, num_children), places[:num_children])
        parents = kept.div(num_candidates, rounding_mode="floor")
        tokens = block.candidate_tokens[:, depth - 1].gather(1, kept - parents * num_candidates)
        scores = children.gather(1, kept)
        levels.append(Level(tokens, parents, scores))
        if depth < len(widths):
            first_rows = places[:num_requests].unsqueeze(1) * state.shape[1]
            rows = (parents + first_rows).flatten()
            parent_states = state.flatten(0, 1).index_select(0, rows).unflatten(0, parents.shape)
            state = head.advance(depth, block, parent_states, tokens)
    return levels


def prune(levels: Sequence[Level], budget: int) -> DraftTree:
    """The ``budget`` best nodes of a supertree as a draft tree of ``budget`` columns.

    One selection over (score, level by level, position in the level), which is the tie rule.
    The root joins in with score 0 and column 0. It comes out first, and a node's place in the
    selection is its row. No child beats its parent, so with a node its parent was chosen too.

    Example: levels {5, 8} and {6 under 5, 7 under 8}, of which the best three are kept.

        >>> first = Level(torch.tensor([[5, 8]]), torch.tensor([[0, 0]]),
        ...     torch.tensor([[-0.1, -2.0]]))
        >>> second = Level(torch.tensor([[6, 7]]), torch.tensor([[0, 1]]),
        ...     torch.tensor([[-0.4, -2.5]]))
        >>> tree = prune([first, second], budget=3)
        >>> tree.tokens.tolist(), tree.parents.tolist()
        ([[5, 6, 8]], [[-1, 0, -1]])
    """
    widths = tuple(level.scores.shape[1] for level in levels)
    depth_of, level_above = _columns(widths, levels[0].scores.device)
    root_score = levels[0].scores.new_zeros((levels[0].scores.shape[0], 1))
    root_token = torch.full_like(root_score, -1, dtype=torch.int64)
    scores = torch.cat([root_score, *(level.scores for level in levels)], dim=1)
    tokens = torch.cat([root_token, *(level.tokens for level in levels)], dim=1)
    parents = torch.cat([root_token, *(level.parents for level in levels)], dim=1) + level_above

    order = best_columns(scores, min(budget + 1, scores.shape[1]))
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    row_of = torch.zeros_like(parents).scatter_(1, order, places)
    order = order[:, 1:]
    scores = scores.gather(1, order)
    tree = DraftTree(
        tokens=tokens.gather(1, order),
        parents=row_of.gather(1, parents.gather(1, order)) - 1,
        depths=depth_of[order],
        scores=scores,
        num_nodes=(scores > NEG_INF).sum(1),
    )
    return pad_columns(tree, budget).blank_padding()


def pad_columns(tree: DraftTree, budget: int) -> DraftTree:
    """The tree with ``budget`` columns, by appending padding columns."""
    missing = budget - tree.budget
    if missing == 0:
        return tree
    return DraftTree(
        tokens=F.pad(tree.tokens, (0, missing), value=-1),
        parents=F.pad(tree.parents, (0, missing), value=-1),
        depths=F.pad(tree.depths, (0, missing), value=0),
        scores=F.pad(tree.scores, (0, missing), value=NEG_INF),
        num_nodes=tree.num_nodes,
    )


# Cached, because copying a Python list to a GPU is not allowed while a CUDA graph is captured;
# the warm-up run before the capture fills the cache.
@lru_cache(maxsize=256)
def _columns(widths: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Depth of each supertree column, root first, and the first column of the level above it."""
    depths, above = [0], [1]  # the root's parent position is -1: above + (-1) is the root itself
    start, previous = 1, 0
    for depth, width in enumerate(widths, start=1):
        depths += [depth] * width
        above += [previous] * width
        previous, start = start, start + width
    return torch.tensor(depths, device=device), torch.tensor(above, device=device)
