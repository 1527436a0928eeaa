"""Native versions of the kernels that record what a step sampled and how far it got."""

import torch
from numba import njit

from .memory import address, address_or_null, int32_at, int64_at
from .registry import native


@njit(cache=True)
def _count_sampled(
    num_sampled, num_rejected, seq_lens, cu_num_logits, idx_mapping, prefill_len, num_reqs
):
    num_sampled = int32_at(num_sampled)
    num_rejected = int32_at(num_rejected)
    seq_lens = int32_at(seq_lens)
    cu_num_logits = int32_at(cu_num_logits)
    idx_mapping = int64_at(idx_mapping)
    prefill_len = int32_at(prefill_len)
    for batch_row in range(num_reqs):
        if seq_lens[batch_row] < prefill_len[idx_mapping[batch_row]]:
            num_sampled[batch_row] = 0  # the prompt goes on in a later step
            num_rejected[batch_row] = 0
            continue
        num_logits = cu_num_logits[batch_row + 1] - cu_num_logits[batch_row]
        num_rejected[batch_row] = num_logits - num_sampled[batch_row]


@native("gpu.input_batch._get_num_sampled_and_rejected_kernel")
def get_num_sampled_and_rejected(
    num_sampled_ptr: torch.Tensor,
    num_rejected_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    prefill_len_ptr: torch.Tensor,
) -> None:
    """Stands for `_get_num_sampled_and_rejected_kernel`; changes `num_sampled` in place."""
    _count_sampled(
        address(num_sampled_ptr, torch.int32),
        address(num_rejected_ptr, torch.int32),
        address(seq_lens_ptr, torch.int32),
        address(cu_num_logits_ptr, torch.int32),
        address(idx_mapping_ptr, torch.int64),
        address(prefill_len_ptr, torch.int32),
        idx_mapping_ptr.numel(),
    )


@njit(cache=True)
def _update_requests(
    idx_mapping,
    num_computed_tokens,
    last_sampled_tokens,
    output_bin_counts_address,
    output_bin_counts_stride,
    sampled_tokens,
    sampled_tokens_stride,
    num_sampled,
    num_rejected,
    query_start_loc_address,
    all_token_ids,
    all_token_ids_stride,
    total_len,
    num_reqs,
):
    idx_mapping = int64_at(idx_mapping)
    num_computed_tokens = int32_at(num_computed_tokens)
    last_sampled_tokens = int64_at(last_sampled_tokens)
    output_bin_counts = int32_at(output_bin_counts_address)
    sampled_tokens = int64_at(sampled_tokens)
    num_sampled = int32_at(num_sampled)
    num_rejected = int32_at(num_rejected)
    query_start_loc = int32_at(query_start_loc_address)
    all_token_ids = int32_at(all_token_ids)
    total_len = int32_at(total_len)
    for batch_row in range(num_reqs):
        slot = idx_mapping[batch_row]
        if slot < 0:
            continue
        sampled_row = batch_row * sampled_tokens_stride
        length = total_len[slot]
        count = num_sampled[batch_row]
        if count > 0:
            last_sampled_tokens[slot] = sampled_tokens[sampled_row + count - 1]
            total_len[slot] = length + count
        for i in range(count):
            token = sampled_tokens[sampled_row + i]
            all_token_ids[slot * all_token_ids_stride + length + i] = token
            if output_bin_counts_address != 0:
                output_bin_counts[slot * output_bin_counts_stride + token] += 1
        query_len = 0
        if query_start_loc_address != 0:
            query_len = query_start_loc[batch_row + 1] - query_start_loc[batch_row]
        num_computed_tokens[slot] += query_len - num_rejected[batch_row]


@native("gpu.input_batch._post_update_kernel")
def post_update(
    idx_mapping_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    last_sampled_tokens_ptr: torch.Tensor,
    output_bin_counts_ptr: torch.Tensor | None,
    output_bin_counts_stride: int,
    sampled_tokens_ptr: torch.Tensor,
    sampled_tokens_stride: int,
    num_sampled_ptr: torch.Tensor,
    num_rejected_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor | None,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    total_len_ptr: torch.Tensor,
    num_warps: int = 1,
) -> None:
    """Stands for `_post_update_kernel`: append the sampled tokens, advance the request."""
    _update_requests(
        address(idx_mapping_ptr, torch.int64),
        address(num_computed_tokens_ptr, torch.int32),
        address(last_sampled_tokens_ptr, torch.int64),
        address_or_null(output_bin_counts_ptr, torch.int32),
        output_bin_counts_stride,
        address(sampled_tokens_ptr, torch.int64),
        sampled_tokens_stride,
        address(num_sampled_ptr, torch.int32),
        address(num_rejected_ptr, torch.int32),
        address_or_null(query_start_loc_ptr, torch.int32),
        address(all_token_ids_ptr, torch.int32),
        all_token_ids_stride,
        address(total_len_ptr, torch.int32),
        idx_mapping_ptr.numel(),
    )


@njit(cache=True)
def _advance_requests(idx_mapping, num_computed_tokens, query_start_loc, num_reqs):
    idx_mapping = int64_at(idx_mapping)
    num_computed_tokens = int32_at(num_computed_tokens)
    query_start_loc = int32_at(query_start_loc)
    for batch_row in range(num_reqs):
        query_len = query_start_loc[batch_row + 1] - query_start_loc[batch_row]
        num_computed_tokens[idx_mapping[batch_row]] += query_len


@native("gpu.input_batch._post_update_num_computed_tokens_kernel")
def post_update_num_computed_tokens(
    idx_mapping_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
) -> None:
    """Stands for `_post_update_num_computed_tokens_kernel`."""
    _advance_requests(
        address(idx_mapping_ptr, torch.int64),
        address(num_computed_tokens_ptr, torch.int32),
        address(query_start_loc_ptr, torch.int32),
        idx_mapping_ptr.numel(),
    )
