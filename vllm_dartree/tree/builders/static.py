"""A fixed shape: which child ranks to draft is decided beforehand (EAGLE's token trees)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vllm_dartree.tree.builders.scoring import child_scores, usable_logits
from vllm_dartree.tree.builders.supertree import Level, prune
from vllm_dartree.tree.draft_tree import DraftTree
from vllm_dartree.tree.order import score_keys
from vllm_dartree.tree.token_tree import TokenTree

if TYPE_CHECKING:
    from vllm_dartree.heads.base import CorrectionHead
    from vllm_dartree.tree.block import DraftBlock
    from vllm_dartree.tree.options import TreeOptions


def static(block: DraftBlock, head: CorrectionHead, options: TreeOptions) -> DraftTree:
    """The tree whose paths of child ranks are ``options.token_tree``.

    A child's rank is its place among its siblings by (corrected logit, token id). Raises
    ValueError if there is no token tree, or if it is deeper than the drafter's horizon or asks
    for a rank beyond the candidates.

    Example: the two best tokens, and the best one after the best.

        >>> from vllm_dartree.heads import NullHead
        >>> from vllm_dartree.tree import DraftBlock, TreeOptions, parse_token_tree
        >>> logits = torch.tensor([3.0, 1.0]).log().expand(1, 2, 2)
        >>> block = DraftBlock.from_logits(torch.tensor([9]), torch.zeros(1, 2, 1), (0, 1),
        ...     logits, num_candidates=2)
        >>> paths = parse_token_tree("[(0,), (1,), (1, 0)]")
        >>> tree = static(block, NullHead(), TreeOptions(budget=3, token_tree=paths))
        >>> tree.tokens.tolist(), tree.parents.tolist()
        ([[0, 1, 0]], [[-1, -1, 1]])
    """
    if options.token_tree is None:
        raise ValueError("the static builder needs token_tree, e.g. '[(0,), (1,), (0, 0)]'")
    _check_fits(options.token_tree, block.num_depths, block.num_candidates)
    block = block.by_token()
    num_candidates = block.num_candidates
    shapes = _level_shapes(options.token_tree, block.base_logits.device)
    # Of the level above, only the nodes that have children: head state, score, place in the level.
    state = head.root_state(block)
    parent_scores = block.base_logits.new_zeros((block.num_requests, 1))
    parent_places = torch.zeros_like(parent_scores, dtype=torch.int64)
    levels: list[Level] = []
    for depth, shape in enumerate(shapes, start=1):
        logits = head.score(depth, block, state)
        ranking = usable_logits(logits).sort(dim=-1, descending=True, stable=True).indices
        candidates = ranking[:, shape.parents, shape.ranks]
        tokens = block.candidate_tokens[:, depth - 1].gather(1, candidates)
        children = child_scores(logits, parent_scores, options.depth_bonus)
        scores = children.flatten(1).gather(1, shape.parents * num_candidates + candidates)

        places_above = parent_places.index_select(1, shape.parents)
        order = score_keys(scores, places_above * num_candidates + candidates).argsort(dim=1)
        levels.append(
            Level(tokens.gather(1, order), places_above.gather(1, order), scores.gather(1, order))
        )
        if depth < len(shapes):
            parent_states = state.index_select(1, shape.parents_of_inner)
            inner_tokens = tokens.index_select(1, shape.inner)
            state = head.advance(depth, block, parent_states, inner_tokens)
            parent_scores = scores.index_select(1, shape.inner)
            parent_places = order.argsort(dim=1).index_select(1, shape.inner)
    return prune(levels, options.budget)


@dataclass(frozen=True)
class _LevelShape:
    """The nodes of one depth in the order of the token tree.

    ``parents`` are positions among the level above's nodes that have children; ``inner`` are the
    nodes of this level that have children, ``parents_of_inner`` their ``parents``.
    """

    parents: Tensor
    ranks: Tensor
    inner: Tensor
    parents_of_inner: Tensor


# Cached for the same reason as the supertree's columns: no host-to-device copy in a CUDA graph.
@lru_cache(maxsize=64)
def _level_shapes(tree: TokenTree, device: torch.device) -> tuple[_LevelShape, ...]:
    has_children = {path[:-1] for path in tree}
    shapes = []
    above: list[tuple[int, ...]] = [()]
    for depth in range(1, max(map(len, tree)) + 1):
        level = [path for path in tree if len(path) == depth]
        parents = [above.index(path[:-1]) for path in level]
        inner = [node for node, path in enumerate(level) if path in has_children]
        columns = (parents, [path[-1] for path in level], inner, [parents[n] for n in inner])
        shapes.append(
            _LevelShape(*(torch.tensor(c, dtype=torch.int64, device=device) for c in columns))
        )
        above = [level[node] for node in inner]
    return tuple(shapes)


def _check_fits(tree: TokenTree, num_depths: int, num_candidates: int) -> None:
    for path in tree:
        if len(path) > num_depths:
            raise ValueError(
                f"token_tree path {path} is {len(path)} deep, but the drafter predicts depths "
                f"1..{num_depths}: drop the deeper paths"
            )
        if path[-1] >= num_candidates:
            raise ValueError(
                f"token_tree path {path} asks for child rank {path[-1]}, the allowed range is "
                f"0..{num_candidates - 1}: raise the number of candidates or drop the path"
            )
