"""Tree attention written out; every faster version is tested against it."""

from __future__ import annotations

import torch
from torch import Tensor


def tree_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    prefix_keys: Tensor,
    prefix_values: Tensor,
    visible: Tensor,
    depths: Tensor,
    scale: float,
    soft_cap: float = 0.0,
    window: int = 0,
) -> Tensor:
    """Attention of one tree's M rows (root first) over S committed tokens and the rows themselves.

    query: [M, num_heads, D]. keys, values: [M, num_kv_heads, D], the rows' own.
    prefix_keys, prefix_values: [S, num_kv_heads, D], positions 0..S-1.
    visible: [M, M] bool, whether a row may look at another.
    depths: [M] int64; row m stands at position S + depths[m].
    soft_cap: scores become soft_cap * tanh(score / soft_cap); 0 for none. window: a row sees only
    what lies fewer than `window` positions back; 0 for no limit.
    Returns [M, num_heads, D] float32; softmax and sums are in float32.

    Two sibling rows that see one prefix token and themselves, all keys equal: each averages.

        >>> one = torch.ones(2, 1, 1)
        >>> values, prefix = torch.tensor([[[2.0]], [[4.0]]]), torch.zeros(1, 1, 1)
        >>> tree_attention(one, one, values, torch.ones(1, 1, 1), prefix,
        ...     torch.eye(2, dtype=torch.bool), torch.tensor([0, 1]), scale=1.0).flatten().tolist()
        [1.0, 2.0]
    """
    num_prefix = prefix_keys.shape[0]
    group = query.shape[1] // keys.shape[1]
    all_keys = torch.cat([prefix_keys, keys]).float().repeat_interleave(group, dim=1)
    all_values = torch.cat([prefix_values, values]).float().repeat_interleave(group, dim=1)
    scores = torch.einsum("mhd,nhd->hmn", query.float(), all_keys) * scale
    if soft_cap > 0:
        scores = soft_cap * torch.tanh(scores / soft_cap)

    row_positions = num_prefix + depths
    positions = torch.cat([torch.arange(num_prefix, device=depths.device), row_positions])
    on_prefix = torch.ones(len(depths), num_prefix, dtype=torch.bool, device=depths.device)
    seen = torch.cat([on_prefix, visible], dim=1)
    if window > 0:
        seen = seen & (row_positions[:, None] - positions < window)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hmn,nhd->mhd", weights, all_values)
