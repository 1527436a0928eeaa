"""Native versions of the kernels that report on a step's logits: support of the draw, NaN count."""

import numpy as np
import torch
from numba import njit

from .registry import native


@njit(cache=True)
def _collect_support(logits, token_ids, packed_mask):
    packed_mask[:] = 0
    count = 0
    for token in range(logits.size):
        if np.isfinite(logits[token]):
            if count < token_ids.size:
                token_ids[count] = token
            packed_mask[token // 8] |= np.uint8(1 << (token % 8))
            count += 1
    return count


@native("gpu.sample.output._compact_sampling_mask_kernel")
def compact_sampling_mask(
    logits_ptr: torch.Tensor,
    logits_row_stride: int,
    logits_col_stride: int,
    cu_num_logits_ptr: torch.Tensor,
    num_sampled_tokens_ptr: torch.Tensor,
    token_ids_ptr: torch.Tensor,
    token_ids_row_stride: int,
    packed_mask_ptr: torch.Tensor,
    packed_mask_row_stride: int,
    counts_ptr: torch.Tensor,
    vocab_size: int,
    max_num_kept: int,
    ROWS_PER_REQUEST: int = 1,
    BLOCK_SIZE: int = 8192,
) -> None:
    """Stands for `_compact_sampling_mask_kernel`: which tokens each draw chose from.

    For each of a request's `ROWS_PER_REQUEST` rows: the first `max_num_kept` tokens of finite
    logit, all of them as bits, and their number; a row that sampled nothing counts 0.
    """
    logits = logits_ptr.float().contiguous().numpy()
    first_rows = cu_num_logits_ptr.numpy()
    num_sampled = num_sampled_tokens_ptr.numpy()
    token_ids = token_ids_ptr.numpy()
    packed_mask = packed_mask_ptr.numpy()
    counts = counts_ptr.numpy()
    for row in range(counts.size):
        request, local_row = divmod(row, ROWS_PER_REQUEST)
        if local_row >= num_sampled[request]:
            counts[row] = 0
            continue
        row_logits = logits[first_rows[request] + local_row]
        counts[row] = _collect_support(row_logits, token_ids[row, :max_num_kept], packed_mask[row])


@native("gpu.metrics.logits._num_nans_kernel")
def num_nans(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    num_nans_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int = 8192,
) -> None:
    """Stands for `_num_nans_kernel`: NaNs in each row of logits."""
    torch.sum(logits_ptr.isnan(), dim=-1, dtype=torch.int32, out=num_nans_ptr)
