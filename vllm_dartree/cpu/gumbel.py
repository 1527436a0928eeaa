"""Native version of the kernel that samples a token by adding Gumbel noise to the logits."""

import numpy as np
import torch
from numba import njit

from .noise import gumbel_noise32, gumbel_noise64
from .registry import native

_DRAFT_STREAM = 1 << 30
"""Added to a draft's positions, so that a draft and its verification share no noise."""


@njit(cache=True)
def _block_argmax(logits, block_size, block_argmax, block_max):
    for block in range(block_argmax.size):
        start = block * block_size
        best = start
        best_value = -np.inf
        for token in range(start, min(start + block_size, logits.size)):
            if logits[token] > best_value:
                best = token
                best_value = logits[token]
        block_argmax[block] = best
        block_max[block] = best_value


@njit(cache=True)
def _possible_tokens(logits, tokens):
    count = 0
    for token in range(logits.size):
        if logits[token] != -np.inf:
            tokens[count] = token
            count += 1
    return count


def _noised(
    logits: np.ndarray, seed: int, position: int, temperature: np.float32, use_fp64: bool
) -> np.ndarray:
    """Logits [V] plus their Gumbel noise, in the dtype of the noise."""
    if temperature != 1.0:
        logits = logits / temperature
    # No noise lifts -inf, so tokens that top-k and the like have removed need no draw.
    tokens = np.empty(logits.size, np.int32)
    tokens = tokens[: _possible_tokens(logits, tokens)]
    noise = (gumbel_noise64 if use_fp64 else gumbel_noise32)(seed, position, tokens)
    if tokens.size == logits.size:
        return logits + noise
    noised = np.full(logits.size, -np.inf, noise.dtype)
    noised[tokens] = logits[tokens] + noise
    return noised


@native("gpu.sample.gumbel._gumbel_sample_kernel")
def gumbel_sample(
    local_argmax_ptr: torch.Tensor,
    local_argmax_stride: int,
    local_max_ptr: torch.Tensor,
    local_max_stride: int,
    logits_cache_ptr: torch.Tensor | None,
    logits_cache_stride_0: int,
    logits_cache_stride_1: int,
    logits_cache_col_ptr: torch.Tensor | None,
    logits_cache_source_ptr: torch.Tensor | None,
    logits_cache_source_stride: int,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    seeds_ptr: torch.Tensor,
    pos_ptr: torch.Tensor,
    temp_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int = 1024,
    IS_DRAFTING: bool = False,
    APPLY_TEMPERATURE: bool = True,
    USE_FP64: bool = False,
    PER_TOKEN_COL: bool = False,
) -> None:
    """Stands for `_gumbel_sample_kernel`: argmax of each vocabulary block of each row.

    Rows at temperature 0, and rows of request slot -1, take the plain argmax; others add the
    request's noise for the row's position. With a logits cache, each row of
    `logits_cache_source_ptr` is also kept in its request's slot and column.
    """
    slots = expanded_idx_mapping_ptr.tolist()
    if logits_cache_ptr is not None:
        assert logits_cache_col_ptr is not None and logits_cache_source_ptr is not None
        columns = logits_cache_col_ptr.view(-1).tolist()
        for row, slot in enumerate(slots):
            if slot >= 0:
                column = columns[row if PER_TOKEN_COL else 0]
                cached = logits_cache_ptr[slot, column, :vocab_size]
                cached.copy_(logits_cache_source_ptr[row])

    # Element by element: these run for one row per request, and a scalar costs less than a gather.
    temperatures = temp_ptr.numpy()
    seeds = seeds_ptr.numpy()
    positions = pos_ptr.numpy()
    logits = logits_ptr.float().numpy()
    block_argmax = local_argmax_ptr.numpy()
    block_max = local_max_ptr.numpy()
    for row, slot in enumerate(slots):
        row_logits = logits[row]
        temperature = temperatures[slot] if slot >= 0 else np.float32(0.0)
        if temperature != 0.0:
            position = int(positions[row]) + (_DRAFT_STREAM if IS_DRAFTING else 0)
            scale = temperature if APPLY_TEMPERATURE else np.float32(1.0)
            row_logits = _noised(row_logits, int(seeds[slot]), position, scale, USE_FP64)
        _block_argmax(row_logits, BLOCK_SIZE, block_argmax[row], block_max[row])
