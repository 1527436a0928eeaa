"""DARTree: a supertree of W nodes per depth, pruned to the B best (the default builder)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_dartree.tree.builders.supertree import grow, prune
from vllm_dartree.tree.draft_tree import DraftTree

if TYPE_CHECKING:
    from vllm_dartree.heads.base import CorrectionHead
    from vllm_dartree.tree.block import DraftBlock
    from vllm_dartree.tree.options import TreeOptions


def pruned(block: DraftBlock, head: CorrectionHead, options: TreeOptions) -> DraftTree:
    """The B best nodes of the depth-wise supertree of width W (paper Alg. 1 and Lemma 1).

    Equal to ``best_first`` node for node as soon as W >= B. A node of depth d has d - 1 ancestors
    in the tree, so no node is deeper than B and deeper levels are not grown.

    Example: the root's children 0 and 1 get q = 3/4 and 1/4 at both depths.

        >>> import torch
        >>> from vllm_dartree.heads import NullHead
        >>> from vllm_dartree.tree import DraftBlock, TreeOptions
        >>> logits = torch.tensor([3.0, 1.0]).log().expand(1, 2, 2)
        >>> block = DraftBlock.from_logits(torch.tensor([9]), torch.zeros(1, 2, 1), (0, 1),
        ...     logits, num_candidates=2)
        >>> tree = pruned(block, NullHead(), TreeOptions(budget=3, depth_bonus=0.0))
        >>> tree.tokens.tolist(), tree.parents.tolist(), tree.depths.tolist()
        ([[0, 0, 1]], [[-1, 0, -1]], [[1, 2, 1]])
    """
    depths = min(block.num_depths, options.budget)
    levels = grow(block.by_token(), head, [options.width] * depths, options.depth_bonus)
    return prune(levels, options.budget)
