"""Native versions of the kernels for repetition, frequency and presence penalties."""

import numpy as np
import torch
from numba import njit

from .memory import address, float32_at, int32_at, int64_at
from .registry import native


@njit(cache=True)
def _penalise_rows(
    logits,
    logits_stride,
    expanded_idx_mapping,
    token_ids,
    expanded_local_pos,
    repetition_penalty,
    frequency_penalty,
    presence_penalty,
    prompt_bin_mask,
    prompt_bin_mask_stride,
    output_bin_counts,
    output_bin_counts_stride,
    vocab_size,
    num_rows,
):
    logits = float32_at(logits)
    expanded_idx_mapping = int64_at(expanded_idx_mapping)
    token_ids = int32_at(token_ids)
    expanded_local_pos = int32_at(expanded_local_pos)
    repetition_penalty = float32_at(repetition_penalty)
    frequency_penalty = float32_at(frequency_penalty)
    presence_penalty = float32_at(presence_penalty)
    prompt_bin_mask = int32_at(prompt_bin_mask)
    output_bin_counts = int32_at(output_bin_counts)
    one = np.float32(1.0)
    counts = np.empty(vocab_size, np.int32)
    for row in range(num_rows):
        slot = expanded_idx_mapping[row]
        repetition = repetition_penalty[slot]
        frequency = frequency_penalty[slot]
        presence = presence_penalty[slot]
        if repetition == one and frequency == 0.0 and presence == 0.0:
            continue
        for token in range(vocab_size):
            counts[token] = output_bin_counts[slot * output_bin_counts_stride + token]
        # The drafts up to this row count as output: local rows 1, 2, ... of its request.
        local_pos = expanded_local_pos[row]
        for i in range(local_pos):
            drafted = token_ids[row - local_pos + i + 1]
            if 0 <= drafted < vocab_size:
                counts[drafted] += 1
        for token in range(vocab_size):
            logit = logits[row * logits_stride + token]
            count = counts[token]
            if repetition != one:
                word = prompt_bin_mask[slot * prompt_bin_mask_stride + token // 32]
                if count > 0 or (word >> (token % 32)) & 1:
                    logit *= one / repetition if logit > 0 else repetition
            logit -= frequency * np.float32(count)
            logit -= presence * np.float32(1 if count > 0 else 0)
            logits[row * logits_stride + token] = logit


@native("gpu.sample.penalties._penalties_kernel")
def apply_penalties(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    token_ids_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
    repetition_penalty_ptr: torch.Tensor,
    frequency_penalty_ptr: torch.Tensor,
    presence_penalty_ptr: torch.Tensor,
    prompt_bin_mask_ptr: torch.Tensor,
    prompt_bin_mask_stride: int,
    output_bin_counts_ptr: torch.Tensor,
    output_bin_counts_stride: int,
    vocab_size: int,
    BLOCK_SIZE: int = 8192,
) -> None:
    """Stands for `_penalties_kernel`; changes the float32 logits in place.

    A row's earlier drafts are the rows just above it, as in a chain.
    """
    _penalise_rows(
        address(logits_ptr, torch.float32),
        logits_stride,
        address(expanded_idx_mapping_ptr, torch.int64),
        address(token_ids_ptr, torch.int32),
        address(expanded_local_pos_ptr, torch.int32),
        address(repetition_penalty_ptr, torch.float32),
        address(frequency_penalty_ptr, torch.float32),
        address(presence_penalty_ptr, torch.float32),
        address(prompt_bin_mask_ptr, torch.int32),
        prompt_bin_mask_stride,
        address(output_bin_counts_ptr, torch.int32),
        output_bin_counts_stride,
        vocab_size,
        expanded_idx_mapping_ptr.numel(),
    )


@njit(cache=True)
def _count_tokens(
    slots,
    all_token_ids,
    all_token_ids_stride,
    prompt_len,
    prefill_len,
    prompt_bin_mask,
    prompt_bin_mask_stride,
    output_bin_counts,
    output_bin_counts_stride,
    num_reqs,
):
    slots = int64_at(slots)
    all_token_ids = int32_at(all_token_ids)
    prompt_len = int32_at(prompt_len)
    prefill_len = int32_at(prefill_len)
    prompt_bin_mask = int32_at(prompt_bin_mask)
    output_bin_counts = int32_at(output_bin_counts)
    for i in range(num_reqs):
        slot = slots[i]
        for position in range(prefill_len[slot]):
            token = all_token_ids[slot * all_token_ids_stride + position]
            if position < prompt_len[slot]:
                bit = np.int32(np.int64(1) << (token % 32))
                prompt_bin_mask[slot * prompt_bin_mask_stride + token // 32] |= bit
            else:
                output_bin_counts[slot * output_bin_counts_stride + token] += 1


@native("gpu.sample.penalties._bincount_kernel")
def bincount(
    expanded_idx_mapping_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    prompt_len_ptr: torch.Tensor,
    prefill_len_ptr: torch.Tensor,
    prompt_bin_mask_ptr: torch.Tensor,
    prompt_bin_mask_stride: int,
    output_bin_counts_ptr: torch.Tensor,
    output_bin_counts_stride: int,
    BLOCK_SIZE: int = 1024,
) -> None:
    """Stands for `_bincount_kernel`: which tokens a prompt holds, how often its output has each."""
    _count_tokens(
        address(expanded_idx_mapping_ptr, torch.int64),
        address(all_token_ids_ptr, torch.int32),
        all_token_ids_stride,
        address(prompt_len_ptr, torch.int32),
        address(prefill_len_ptr, torch.int32),
        address(prompt_bin_mask_ptr, torch.int32),
        prompt_bin_mask_stride,
        address(output_bin_counts_ptr, torch.int32),
        output_bin_counts_stride,
        expanded_idx_mapping_ptr.numel(),
    )
