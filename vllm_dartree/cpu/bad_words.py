"""Native version of the kernel for bad words."""

import numpy as np
import torch
from numba import njit

from .memory import address, float32_at, int32_at, int64_at
from .registry import native


@njit(cache=True)
def _forbid_rows(
    logits,
    logits_stride,
    expanded_idx_mapping,
    bad_word_token_ids,
    bad_word_token_ids_stride,
    bad_word_offsets,
    bad_word_offsets_stride,
    num_bad_words,
    all_token_ids,
    all_token_ids_stride,
    prompt_len,
    total_len,
    input_ids,
    expanded_local_pos,
    num_rows,
):
    logits = float32_at(logits)
    expanded_idx_mapping = int64_at(expanded_idx_mapping)
    bad_word_token_ids = int32_at(bad_word_token_ids)
    bad_word_offsets = int32_at(bad_word_offsets)
    num_bad_words = int32_at(num_bad_words)
    all_token_ids = int32_at(all_token_ids)
    prompt_len = int32_at(prompt_len)
    total_len = int32_at(total_len)
    input_ids = int32_at(input_ids)
    expanded_local_pos = int32_at(expanded_local_pos)
    for row in range(num_rows):
        slot = expanded_idx_mapping[row]
        local_pos = expanded_local_pos[row]
        output_start = slot * all_token_ids_stride + prompt_len[slot]
        output_len = total_len[slot] - prompt_len[slot]
        effective_len = output_len + local_pos  # output tokens, then the drafts above this row
        words = slot * bad_word_token_ids_stride
        for word in range(num_bad_words[slot]):
            start = bad_word_offsets[slot * bad_word_offsets_stride + word]
            end = bad_word_offsets[slot * bad_word_offsets_stride + word + 1]
            prefix_len = end - start - 1
            if prefix_len > effective_len:
                continue
            matches = True
            for i in range(prefix_len):
                place = effective_len - prefix_len + i
                if place < output_len:
                    actual = all_token_ids[output_start + place]
                else:  # the request's first row holds its last output token, drafts follow
                    actual = input_ids[row - local_pos + place - output_len + 1]
                if actual != bad_word_token_ids[words + start + i]:
                    matches = False
                    break
            if matches:
                logits[row * logits_stride + bad_word_token_ids[words + end - 1]] = -np.inf


@native("gpu.sample.bad_words._bad_words_kernel")
def apply_bad_words(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    bad_word_token_ids_ptr: torch.Tensor,
    bad_word_token_ids_stride: int,
    bad_word_offsets_ptr: torch.Tensor,
    bad_word_offsets_stride: int,
    num_bad_words_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    prompt_len_ptr: torch.Tensor,
    total_len_ptr: torch.Tensor,
    input_ids_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
) -> None:
    """Stands for `_bad_words_kernel`: -inf for a token that would complete a bad word."""
    _forbid_rows(
        address(logits_ptr, torch.float32),
        logits_stride,
        address(expanded_idx_mapping_ptr, torch.int64),
        address(bad_word_token_ids_ptr, torch.int32),
        bad_word_token_ids_stride,
        address(bad_word_offsets_ptr, torch.int32),
        bad_word_offsets_stride,
        address(num_bad_words_ptr, torch.int32),
        address(all_token_ids_ptr, torch.int32),
        all_token_ids_stride,
        address(prompt_len_ptr, torch.int32),
        address(total_len_ptr, torch.int32),
        address(input_ids_ptr, torch.int32),
        address(expanded_local_pos_ptr, torch.int32),
        expanded_idx_mapping_ptr.numel(),
    )
