"""Native version of the kernel for allowed tokens, logit bias and min_tokens."""

import numpy as np
import torch
from numba import njit

from .memory import address, float32_at, int32_at, int64_at
from .registry import native


@njit(cache=True)
def _keep_allowed(logits, allowed):
    kept = np.empty(allowed.size, np.float32)
    for i in range(allowed.size):
        kept[i] = logits[allowed[i]]
    logits[:] = -np.inf
    for i in range(allowed.size):
        logits[allowed[i]] = kept[i]


@njit(cache=True)
def _forbid_stops(logits, stops, restore_when_all_masked):
    kept = np.empty(stops.size, np.float32)
    for i in range(stops.size):
        kept[i] = logits[stops[i]]
    for i in range(stops.size):
        logits[stops[i]] = -np.inf
    if not restore_when_all_masked:
        return
    for token in range(logits.size):
        if logits[token] > -np.inf:
            return
    # A grammar allows nothing but stopping: let it.
    for i in range(stops.size):
        if np.isfinite(kept[i]):
            logits[stops[i]] = kept[i]


@njit(cache=True)
def _bias_rows(
    logits,
    logits_stride,
    vocab_size,
    expanded_idx_mapping,
    num_allowed_token_ids,
    allowed_token_ids,
    allowed_token_ids_stride,
    num_logit_bias,
    bias_token_ids,
    bias_token_ids_stride,
    bias,
    bias_stride,
    pos,
    min_lens,
    num_stop_token_ids,
    restore_when_all_masked,
    stop_token_ids,
    stop_token_ids_stride,
    check_all_masked_rows,
    num_rows,
):
    logits = float32_at(logits)
    expanded_idx_mapping = int64_at(expanded_idx_mapping)
    num_allowed_token_ids = int32_at(num_allowed_token_ids)
    allowed_token_ids = int32_at(allowed_token_ids)
    num_logit_bias = int32_at(num_logit_bias)
    bias_token_ids = int32_at(bias_token_ids)
    bias = float32_at(bias)
    pos = int64_at(pos)
    min_lens = int32_at(min_lens)
    num_stop_token_ids = int32_at(num_stop_token_ids)
    restore_when_all_masked = int32_at(restore_when_all_masked)
    stop_token_ids = int32_at(stop_token_ids)
    for row in range(num_rows):
        slot = expanded_idx_mapping[row]
        row_logits = logits[row * logits_stride : row * logits_stride + vocab_size]
        num_allowed = num_allowed_token_ids[slot]
        if num_allowed > 0:
            start = slot * allowed_token_ids_stride
            _keep_allowed(row_logits, allowed_token_ids[start : start + num_allowed])
        for i in range(num_logit_bias[slot]):
            token = bias_token_ids[slot * bias_token_ids_stride + i]
            row_logits[token] += bias[slot * bias_stride + i]
        num_stops = num_stop_token_ids[slot]
        if num_stops > 0 and pos[row] + 1 < min_lens[slot]:
            start = slot * stop_token_ids_stride
            restore = check_all_masked_rows and restore_when_all_masked[slot] != 0
            _forbid_stops(row_logits, stop_token_ids[start : start + num_stops], restore)


@native("gpu.sample.logit_bias._bias_kernel")
def apply_logit_bias(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    vocab_size: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    num_allowed_token_ids_ptr: torch.Tensor,
    allowed_token_ids_ptr: torch.Tensor,
    allowed_token_ids_stride: int,
    num_logit_bias_ptr: torch.Tensor,
    bias_token_ids_ptr: torch.Tensor,
    bias_token_ids_stride: int,
    bias_ptr: torch.Tensor,
    bias_stride: int,
    pos_ptr: torch.Tensor,
    min_lens_ptr: torch.Tensor,
    num_stop_token_ids_ptr: torch.Tensor,
    restore_when_all_masked_ptr: torch.Tensor,
    stop_token_ids_ptr: torch.Tensor,
    stop_token_ids_stride: int,
    BLOCK_SIZE: int = 1024,
    LOGITS_BLOCK_SIZE: int = 8192,
    CHECK_ALL_MASKED_ROWS: bool = False,
) -> None:
    """Stands for `_bias_kernel`; changes the float32 logits in place."""
    _bias_rows(
        address(logits_ptr, torch.float32),
        logits_stride,
        vocab_size,
        address(expanded_idx_mapping_ptr, torch.int64),
        address(num_allowed_token_ids_ptr, torch.int32),
        address(allowed_token_ids_ptr, torch.int32),
        allowed_token_ids_stride,
        address(num_logit_bias_ptr, torch.int32),
        address(bias_token_ids_ptr, torch.int32),
        bias_token_ids_stride,
        address(bias_ptr, torch.float32),
        bias_stride,
        address(pos_ptr, torch.int64),
        address(min_lens_ptr, torch.int32),
        address(num_stop_token_ids_ptr, torch.int32),
        address(restore_when_all_masked_ptr, torch.int32),
        address(stop_token_ids_ptr, torch.int32),
        stop_token_ids_stride,
        CHECK_ALL_MASKED_ROWS,
        expanded_idx_mapping_ptr.numel(),
    )
