"""Native versions of the kernels for logprobs, ranks and prompt logprobs."""

import torch
from numba import njit

from .memory import address, int32_at, int64_at, uint8_at
from .registry import native

_ROWS_AT_ONCE = 64
"""Bounds the float32 copies of [rows, V] that a long prompt's logprobs would need."""


@native("gpu.sample.logprob._topk_log_softmax_kernel")
def topk_log_softmax(
    output_ptr: torch.Tensor,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    topk_ids_ptr: torch.Tensor,
    topk_ids_stride: int,
    topk: int,
    vocab_size: int,
    BLOCK_SIZE: int = 1024,
    TOPK_BLOCK_SIZE: int = 1024,
) -> None:
    """Stands for `_topk_log_softmax_kernel`: log-probabilities [rows, topk] of the given tokens."""
    for start in range(0, logits_ptr.shape[0], _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        logits = logits_ptr[rows].float()
        normaliser = torch.logsumexp(logits, dim=-1, keepdim=True)
        output_ptr[rows] = logits.gather(-1, topk_ids_ptr[rows]) - normaliser


@native("gpu.sample.logprob._ranks_kernel")
def ranks(
    output_ptr: torch.Tensor,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    token_ids_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int = 8192,
) -> None:
    """Stands for `_ranks_kernel`: how many tokens are at least as likely as the given one."""
    for start in range(0, logits_ptr.shape[0], _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        logits = logits_ptr[rows]
        chosen = logits.gather(-1, token_ids_ptr[rows].unsqueeze(-1))
        output_ptr[rows] = (logits >= chosen).sum(dim=-1)


@njit(cache=True)
def _fill_token_ids(
    out_token_ids,
    out_token_ids_stride,
    out_valid_mask,
    out_valid_mask_stride,
    sampled_token_ids,
    topk_indices,
    topk_indices_stride,
    expanded_idx_mapping,
    num_per_req_token_ids,
    per_req_token_ids,
    per_req_token_ids_stride,
    num_topk,
    num_rows,
):
    out_token_ids = int64_at(out_token_ids)
    out_valid_mask = uint8_at(out_valid_mask)
    sampled_token_ids = int64_at(sampled_token_ids)
    expanded_idx_mapping = int64_at(expanded_idx_mapping)
    num_per_req_token_ids = int32_at(num_per_req_token_ids)
    for row in range(num_rows):
        out = row * out_token_ids_stride
        valid = row * out_valid_mask_stride
        out_token_ids[out] = sampled_token_ids[row]
        out_valid_mask[valid] = 1
        slot = expanded_idx_mapping[row]
        count = num_per_req_token_ids[slot]
        if count > 0:
            source = int32_at(per_req_token_ids)
            start = slot * per_req_token_ids_stride
        else:
            source = int32_at(topk_indices)
            start = row * topk_indices_stride
            count = num_topk
        for i in range(count):
            out_token_ids[out + 1 + i] = source[start + i]
            out_valid_mask[valid + 1 + i] = 1


@native("gpu.sample.logprob._fill_logprob_token_ids_kernel")
def fill_logprob_token_ids(
    out_token_ids_ptr: torch.Tensor,
    out_token_ids_stride: int,
    out_valid_mask_ptr: torch.Tensor,
    out_valid_mask_stride: int,
    sampled_token_ids_ptr: torch.Tensor,
    topk_indices_ptr: torch.Tensor,
    topk_indices_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    num_per_req_token_ids_ptr: torch.Tensor,
    per_req_token_ids_ptr: torch.Tensor,
    per_req_token_ids_stride: int,
    NUM_TOPK: int = 0,
    PADDED_COLS: int = 1,
) -> None:
    """Stands for `_fill_logprob_token_ids_kernel`: the tokens whose logprobs each row returns.

    The sampled token, then the request's own list, or the top-k tokens where it has none.
    """
    _fill_token_ids(
        address(out_token_ids_ptr, torch.int64),
        out_token_ids_stride,
        address(out_valid_mask_ptr, torch.bool),
        out_valid_mask_stride,
        address(sampled_token_ids_ptr, torch.int64),
        address(topk_indices_ptr, torch.int32),
        topk_indices_stride,
        address(expanded_idx_mapping_ptr, torch.int64),
        address(num_per_req_token_ids_ptr, torch.int32),
        address(per_req_token_ids_ptr, torch.int32),
        per_req_token_ids_stride,
        NUM_TOPK,
        sampled_token_ids_ptr.numel(),
    )


@njit(cache=True)
def _next_tokens(
    token_ids,
    query_start_loc,
    idx_mapping,
    num_computed_tokens,
    all_token_ids,
    all_token_ids_stride,
    num_reqs,
):
    token_ids = int64_at(token_ids)
    query_start_loc = int32_at(query_start_loc)
    idx_mapping = int64_at(idx_mapping)
    num_computed_tokens = int32_at(num_computed_tokens)
    all_token_ids = int32_at(all_token_ids)
    for batch_row in range(num_reqs):
        slot = idx_mapping[batch_row]
        start = query_start_loc[batch_row]
        first = slot * all_token_ids_stride + num_computed_tokens[slot] + 1
        for i in range(query_start_loc[batch_row + 1] - start):
            token_ids[start + i] = all_token_ids[first + i]


@native("gpu.sample.prompt_logprob._prompt_logprobs_token_ids_kernel")
def prompt_logprobs_token_ids(
    prompt_logprobs_token_ids_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    BLOCK_SIZE: int = 1024,
) -> None:
    """Stands for `_prompt_logprobs_token_ids_kernel`: the token after each token of this step."""
    _next_tokens(
        address(prompt_logprobs_token_ids_ptr, torch.int64),
        address(query_start_loc_ptr, torch.int32),
        address(idx_mapping_ptr, torch.int64),
        address(num_computed_tokens_ptr, torch.int32),
        address(all_token_ids_ptr, torch.int32),
        all_token_ids_stride,
        idx_mapping_ptr.numel(),
    )
