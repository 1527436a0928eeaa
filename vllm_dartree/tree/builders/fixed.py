"""No pruning: the budget is spread evenly over the depths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_dartree.tree.builders.supertree import grow, prune
from vllm_dartree.tree.draft_tree import DraftTree

if TYPE_CHECKING:
    from vllm_dartree.heads.base import CorrectionHead
    from vllm_dartree.tree.block import DraftBlock
    from vllm_dartree.tree.options import TreeOptions


def fixed(block: DraftBlock, head: CorrectionHead, options: TreeOptions) -> DraftTree:
    """A beam of B/J nodes per depth, all of them verified (paper: fixed-width construction).

    The tree is smaller than B where a depth has fewer children than its share.

    Example: five nodes over two depths are three and two; the root has only two candidates.

        >>> import torch
        >>> from vllm_dartree.heads import NullHead
        >>> from vllm_dartree.tree import DraftBlock, TreeOptions
        >>> logits = torch.tensor([3.0, 1.0]).log().expand(1, 2, 2)
        >>> block = DraftBlock.from_logits(torch.tensor([9]), torch.zeros(1, 2, 1), (0, 1),
        ...     logits, num_candidates=2)
        >>> tree = fixed(block, NullHead(), TreeOptions(budget=5, depth_bonus=0.0))
        >>> tree.depths.tolist(), tree.tokens.tolist()
        ([[1, 2, 1, 2, 0]], [[0, 0, 1, 1, -1]])
    """
    widths = even_widths(options.budget, block.num_depths)
    return prune(grow(block.by_token(), head, widths, options.depth_bonus), options.budget)


def even_widths(budget: int, num_depths: int) -> list[int]:
    """Nodes per depth: as even as possible, the remainder to the shallow depths, no zeros.

    >>> even_widths(64, 15)[:5], even_widths(2, 4)
    ([5, 5, 5, 5, 4], [1, 1])
    """
    share, remainder = divmod(budget, num_depths)
    widths = [share + (depth < remainder) for depth in range(num_depths)]
    return [width for width in widths if width > 0]
