"""Native version of the kernel that samples a token by adding Gumbel noise to the logits."""

import numpy as np
import torch
from numba import njit

from .memory import address, float32_at, int64_at
from .noise import gumbel_noise32, gumbel_noise64
from .registry import native

_DRAFT_STREAM = 1 << 30
"""Added to a draft's positions, so that a draft and its verification share no noise."""


@njit(cache=True)
def _block_argmax(logits, block_size, block_argmax, block_max):
    for block in range((logits.size + block_size - 1) // block_size):
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
def _greedy_rows(
    block_argmax,
    block_argmax_stride,
    block_max,
    block_max_stride,
    logits,
    logits_stride,
    slots,
    temperatures,
    vocab_size,
    block_size,
    num_rows,
):
    slots = int64_at(slots)
    temperatures = float32_at(temperatures)
    num_sampled_rows = 0
    for row in range(num_rows):
        if slots[row] >= 0 and temperatures[slots[row]] != 0.0:
            num_sampled_rows += 1
            continue
        _block_argmax(
            float32_at(logits)[row * logits_stride : row * logits_stride + vocab_size],
            block_size,
            int64_at(block_argmax)[row * block_argmax_stride :],
            float32_at(block_max)[row * block_max_stride :],
        )
    return num_sampled_rows


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


def _keep_logits(
    cache: torch.Tensor, columns: torch.Tensor, source: torch.Tensor, slots: torch.Tensor
) -> None:
    """Copy row `r` of `source` [R, V] to `cache[slots[r], columns[r], :V]`; slot -1 keeps none."""
    for row, (slot, column) in enumerate(zip(slots.tolist(), columns.tolist(), strict=True)):
        if slot >= 0:
            cache[slot, column, : source.shape[1]] = source[row]


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
    if logits_cache_ptr is not None:
        assert logits_cache_col_ptr is not None and logits_cache_source_ptr is not None
        _keep_logits(
            logits_cache_ptr,
            logits_cache_col_ptr.expand(expanded_idx_mapping_ptr.numel()),
            logits_cache_source_ptr,
            expanded_idx_mapping_ptr,
        )
    logits = logits_ptr.float()
    block_max = torch.empty_like(local_max_ptr, dtype=torch.float32) if USE_FP64 else local_max_ptr
    num_sampled_rows = _greedy_rows(
        address(local_argmax_ptr, torch.int64),
        local_argmax_stride,
        address(block_max, torch.float32),
        block_max.stride(0),
        address(logits, torch.float32),
        logits.stride(0),
        address(expanded_idx_mapping_ptr, torch.int64),
        address(temp_ptr, torch.float32),
        vocab_size,
        BLOCK_SIZE,
        expanded_idx_mapping_ptr.numel(),
    )
    if USE_FP64:
        local_max_ptr.copy_(block_max)
    if num_sampled_rows == 0:
        return
    for row, slot in enumerate(expanded_idx_mapping_ptr.tolist()):
        temperature = float(temp_ptr[slot]) if slot >= 0 else 0.0
        if temperature == 0.0:
            continue
        noised = _noised(
            logits[row].numpy(),
            int(seeds_ptr[slot]),
            int(pos_ptr[row]) + (_DRAFT_STREAM if IS_DRAFTING else 0),
            np.float32(temperature if APPLY_TEMPERATURE else 1.0),
            USE_FP64,
        )
        _block_argmax(noised, BLOCK_SIZE, local_argmax_ptr[row].numpy(), local_max_ptr[row].numpy())
