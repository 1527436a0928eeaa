"""Native versions of the kernels that lay out a batch's tokens, positions and logits rows."""

import torch
from numba import njit

from .memory import address, int32_at, int64_at
from .registry import native


@njit(cache=True)
def _prefill_inputs(
    input_ids,
    next_prefill_tokens,
    next_prefill_tokens_stride,
    num_lookahead,
    idx_mapping,
    query_start_loc,
    all_token_ids,
    all_token_ids_stride,
    prefill_lens,
    num_computed_tokens,
    num_reqs,
):
    input_ids = int32_at(input_ids)
    next_prefill_tokens = int32_at(next_prefill_tokens)
    idx_mapping = int64_at(idx_mapping)
    query_start_loc = int32_at(query_start_loc)
    all_token_ids = int32_at(all_token_ids)
    prefill_lens = int32_at(prefill_lens)
    num_computed_tokens = int32_at(num_computed_tokens)
    for batch_row in range(num_reqs):
        slot = idx_mapping[batch_row]
        prefill_len = prefill_lens[slot]
        num_computed = num_computed_tokens[slot]
        if num_computed >= prefill_len:
            continue  # a decoding request: its tokens come from the sampler
        start = query_start_loc[batch_row]
        query_len = query_start_loc[batch_row + 1] - start
        row = slot * all_token_ids_stride
        for i in range(query_len):
            input_ids[start + i] = all_token_ids[row + num_computed + i]
        for ahead in range(num_lookahead):
            position = num_computed + query_len + ahead
            token = all_token_ids[row + position] if position < prefill_len else 0
            next_prefill_tokens[ahead * next_prefill_tokens_stride + slot] = token


@native("gpu.input_batch._prepare_prefill_inputs_kernel")
def prepare_prefill_inputs(
    input_ids_ptr: torch.Tensor,
    next_prefill_tokens_ptr: torch.Tensor,
    next_prefill_tokens_stride: int,
    num_lookahead: int,
    idx_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    prefill_lens_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    BLOCK_SIZE: int = 1024,
    LOOKAHEAD_BLOCK: int = 1,
) -> None:
    """Stands for `_prepare_prefill_inputs_kernel`: the prompt tokens of this step, and the next."""
    _prefill_inputs(
        address(input_ids_ptr, torch.int32),
        address(next_prefill_tokens_ptr, torch.int32),
        next_prefill_tokens_stride,
        num_lookahead,
        address(idx_mapping_ptr, torch.int64),
        address(query_start_loc_ptr, torch.int32),
        address(all_token_ids_ptr, torch.int32),
        all_token_ids_stride,
        address(prefill_lens_ptr, torch.int32),
        address(num_computed_tokens_ptr, torch.int32),
        idx_mapping_ptr.numel(),
    )


@njit(cache=True)
def _positions_and_lengths(
    pos, seq_lens, idx_mapping, query_start_loc, num_computed_tokens, max_num_reqs, num_reqs
):
    pos = int64_at(pos)
    seq_lens = int32_at(seq_lens)
    idx_mapping = int64_at(idx_mapping)
    query_start_loc = int32_at(query_start_loc)
    num_computed_tokens = int32_at(num_computed_tokens)
    for batch_row in range(num_reqs):
        num_computed = num_computed_tokens[idx_mapping[batch_row]]
        start = query_start_loc[batch_row]
        query_len = query_start_loc[batch_row + 1] - start
        seq_lens[batch_row] = num_computed + query_len
        for i in range(query_len):
            pos[start + i] = num_computed + i
    for batch_row in range(num_reqs, max_num_reqs):
        seq_lens[batch_row] = 0


@native("gpu.input_batch._prepare_pos_seq_lens_kernel")
def prepare_pos_seq_lens(
    pos_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    max_num_reqs: int,
    BLOCK_SIZE: int = 1024,
) -> None:
    """Stands for `_prepare_pos_seq_lens_kernel`; unused rows of `seq_lens` become 0."""
    _positions_and_lengths(
        address(pos_ptr, torch.int64),
        address(seq_lens_ptr, torch.int32),
        address(idx_mapping_ptr, torch.int64),
        address(query_start_loc_ptr, torch.int32),
        address(num_computed_tokens_ptr, torch.int32),
        max_num_reqs,
        idx_mapping_ptr.numel(),
    )


@njit(cache=True)
def _combine_tokens(
    input_ids,
    idx_mapping,
    last_sampled_tokens,
    query_start_loc,
    seq_lens,
    prefill_len,
    draft_tokens,
    draft_tokens_stride,
    cu_num_logits,
    logits_indices,
    num_new_sampled_tokens,
    num_reqs,
):
    input_ids = int32_at(input_ids)
    idx_mapping = int64_at(idx_mapping)
    last_sampled_tokens = int64_at(last_sampled_tokens)
    query_start_loc = int32_at(query_start_loc)
    seq_lens = int32_at(seq_lens)
    prefill_len = int32_at(prefill_len)
    draft_tokens = int64_at(draft_tokens)
    cu_num_logits = int32_at(cu_num_logits)
    logits_indices = int64_at(logits_indices)
    for batch_row in range(num_reqs):
        slot = idx_mapping[batch_row]
        first_row = cu_num_logits[batch_row]
        num_logits = cu_num_logits[batch_row + 1] - first_row
        query_end = query_start_loc[batch_row + 1]
        for i in range(num_logits):
            logits_indices[first_row + i] = query_end - num_logits + i
        seq_len = seq_lens[batch_row]
        if seq_len <= prefill_len[slot]:
            continue  # only prompt tokens: nothing sampled or drafted yet
        if num_new_sampled_tokens > 0 and seq_len - num_logits >= prefill_len[slot]:
            input_ids[query_end - num_logits] = last_sampled_tokens[slot]
        num_drafts = num_logits - num_new_sampled_tokens
        for i in range(num_drafts):
            input_ids[query_end - num_drafts + i] = draft_tokens[slot * draft_tokens_stride + i]


@native("gpu.input_batch._combine_sampled_and_draft_tokens_kernel")
def combine_sampled_and_draft_tokens(
    input_ids_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    last_sampled_tokens_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    prefill_len_ptr: torch.Tensor,
    draft_tokens_ptr: torch.Tensor,
    draft_tokens_stride: int,
    cu_num_logits_ptr: torch.Tensor,
    logits_indices_ptr: torch.Tensor,
    BLOCK_SIZE: int = 1,
    NUM_NEW_SAMPLED_TOKENS: int = 1,
) -> None:
    """Stands for `_combine_sampled_and_draft_tokens_kernel`.

    Writes the last sampled token and the draft tokens of each decoding request into `input_ids`,
    and the rows whose logits are wanted into `logits_indices`.
    """
    _combine_tokens(
        address(input_ids_ptr, torch.int32),
        address(idx_mapping_ptr, torch.int64),
        address(last_sampled_tokens_ptr, torch.int64),
        address(query_start_loc_ptr, torch.int32),
        address(seq_lens_ptr, torch.int32),
        address(prefill_len_ptr, torch.int32),
        address(draft_tokens_ptr, torch.int64),
        draft_tokens_stride,
        address(cu_num_logits_ptr, torch.int32),
        address(logits_indices_ptr, torch.int64),
        NUM_NEW_SAMPLED_TOKENS,
        idx_mapping_ptr.numel(),
    )


@njit(cache=True)
def _expand_mapping(idx_mapping, expanded_idx_mapping, expanded_local_pos, cu_num_logits, num_reqs):
    idx_mapping = int64_at(idx_mapping)
    expanded_idx_mapping = int64_at(expanded_idx_mapping)
    expanded_local_pos = int32_at(expanded_local_pos)
    cu_num_logits = int32_at(cu_num_logits)
    for batch_row in range(num_reqs):
        first_row = cu_num_logits[batch_row]
        for i in range(cu_num_logits[batch_row + 1] - first_row):
            expanded_idx_mapping[first_row + i] = idx_mapping[batch_row]
            expanded_local_pos[first_row + i] = i


@native("gpu.input_batch._expand_idx_mapping_kernel")
def expand_idx_mapping(
    idx_mapping_ptr: torch.Tensor,
    expanded_idx_mapping_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    BLOCK_SIZE: int = 1,
) -> None:
    """Stands for `_expand_idx_mapping_kernel`: request slot and local place of each logits row."""
    _expand_mapping(
        address(idx_mapping_ptr, torch.int64),
        address(expanded_idx_mapping_ptr, torch.int64),
        address(expanded_local_pos_ptr, torch.int32),
        address(cu_num_logits_ptr, torch.int32),
        idx_mapping_ptr.numel(),
    )
