"""Who sees whom in the verify batch."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_dartree.tree.draft_tree import DraftTree


def ancestor_mask(tree: DraftTree) -> Tensor:
    """[R, B + 1, B + 1] bool: entry (i, j) says whether row i attends to row j.

    A row sees the root, its ancestors and itself; a padding row sees itself alone, so that no
    softmax row is ever empty.

    Example: 5 -> 6, and 8 beside 5; the last row is padding.

        >>> tree = DraftTree.from_nodes([[(5, -1, -0.1), (6, 0, -0.4), (8, -1, -2.0)]], budget=4)
        >>> ancestor_mask(tree).int().tolist()[0]
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    """
    num_requests, num_rows = tree.tokens.shape[0], tree.budget + 1
    rows = torch.arange(num_rows, device=tree.tokens.device)
    # The root and padding rows point at themselves: following the pointer adds nothing to them.
    pointer = rows.repeat(num_requests, 1)
    pointer[:, 1:] = torch.where(tree.valid, tree.parent_rows, pointer[:, 1:])
    mask = (rows == rows.unsqueeze(1)).repeat(num_requests, 1, 1)
    # Pointer doubling: after i rounds a row has joined the masks of its 2**i - 1 nearest ancestors.
    for _ in range(tree.budget.bit_length()):
        mask = mask | mask.gather(1, pointer.unsqueeze(-1).expand(-1, -1, num_rows))
        pointer = pointer.gather(1, pointer)
    return mask
