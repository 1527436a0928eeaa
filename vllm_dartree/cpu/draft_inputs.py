"""Native versions of the kernels around a DFlash-style draft and its verification."""

import numpy as np
import torch
from numba import njit

from .memory import address, float32_at, int32_at, int64_at
from .registry import native


@njit(cache=True)
def _gather_drafts(
    draft_sampled,
    pos,
    input_ids,
    positions,
    logits_indices,
    expanded_idx_mapping,
    expanded_local_pos,
    prefill_len,
    num_logits,
):
    draft_sampled = int32_at(draft_sampled)
    pos = int64_at(pos)
    input_ids = int32_at(input_ids)
    positions = int64_at(positions)
    logits_indices = int64_at(logits_indices)
    expanded_idx_mapping = int64_at(expanded_idx_mapping)
    expanded_local_pos = int32_at(expanded_local_pos)
    prefill_len = int32_at(prefill_len)
    for row in range(num_logits):
        token_row = logits_indices[row]
        position = positions[token_row]
        local_pos = expanded_local_pos[row]
        # Drafts follow a sampled token. One that starts inside the prompt is a placeholder.
        drafted_in_prompt = position - local_pos < prefill_len[expanded_idx_mapping[row]]
        placeholder = local_pos > 0 and drafted_in_prompt
        draft_sampled[row] = -1 if placeholder else input_ids[token_row]
        pos[row] = position


@native("gpu.spec_decode.rejection_sampler._gather_draft_sampled_kernel")
def gather_draft_sampled(
    draft_sampled_ptr: torch.Tensor,
    pos_ptr: torch.Tensor,
    input_ids_ptr: torch.Tensor,
    positions_ptr: torch.Tensor,
    logits_indices_ptr: torch.Tensor,
    expanded_idx_mapping_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
    prefill_len_ptr: torch.Tensor,
    num_logits: int,
    BLOCK_SIZE: int = 1024,
) -> None:
    """Stands for `_gather_draft_sampled_kernel`: token and position behind each logits row."""
    _gather_drafts(
        address(draft_sampled_ptr, torch.int32),
        address(pos_ptr, torch.int64),
        address(input_ids_ptr, torch.int32),
        address(positions_ptr, torch.int64),
        address(logits_indices_ptr, torch.int64),
        address(expanded_idx_mapping_ptr, torch.int64),
        address(expanded_local_pos_ptr, torch.int32),
        address(prefill_len_ptr, torch.int32),
        num_logits,
    )


@njit(cache=True)
def _flatten_rows(flat_sampled, sampled, sampled_stride, num_sampled, cu_num_logits, num_reqs):
    flat_sampled = int64_at(flat_sampled)
    sampled = int64_at(sampled)
    num_sampled = int32_at(num_sampled)
    cu_num_logits = int32_at(cu_num_logits)
    for batch_row in range(num_reqs):
        for i in range(num_sampled[batch_row]):
            token = sampled[batch_row * sampled_stride + i]
            flat_sampled[cu_num_logits[batch_row] + i] = token


@native("gpu.spec_decode.rejection_sampler._flatten_sampled_kernel")
def flatten_sampled(
    flat_sampled_ptr: torch.Tensor,
    sampled_ptr: torch.Tensor,
    sampled_stride: int,
    num_sampled_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    num_warps: int = 1,
) -> None:
    """Stands for `_flatten_sampled_kernel`: the sampled tokens, one for each logits row."""
    _flatten_rows(
        address(flat_sampled_ptr, torch.int64),
        address(sampled_ptr, torch.int64),
        sampled_stride,
        address(num_sampled_ptr, torch.int32),
        address(cu_num_logits_ptr, torch.int32),
        cu_num_logits_ptr.numel() - 1,
    )


@njit(cache=True)
def _slot_of(position, block_table, row, row_length, block_size, pad_slot_id):
    block = min(position // block_size, row_length - 1)
    block_id = np.int64(block_table[row + block])
    # Block 0 is the null block: what maps there was evicted and must not be written.
    return block_id * block_size + position % block_size if block_id != 0 else pad_slot_id


@njit(cache=True)
def _dflash_inputs(
    out_input_ids,
    out_query_positions,
    out_query_start_loc,
    out_seq_lens,
    out_query_slot_mapping,
    out_context_positions,
    out_context_slot_mapping,
    out_sample_indices,
    out_sample_pos,
    out_sample_idx_mapping,
    out_temperature,
    out_seeds,
    target_positions,
    target_query_start_loc,
    idx_mapping,
    last_sampled,
    next_prefill_tokens,
    num_sampled,
    num_rejected,
    temperature,
    seeds,
    block_table,
    block_table_stride,
    mask_token_id,
    block_size,
    num_query_per_req,
    num_speculative_steps,
    max_num_reqs,
    max_num_tokens,
    max_model_len,
    sample_from_anchor,
    pad_slot_id,
    num_reqs,
):
    out_input_ids = int32_at(out_input_ids)
    out_query_positions = int64_at(out_query_positions)
    out_query_start_loc = int32_at(out_query_start_loc)
    out_seq_lens = int32_at(out_seq_lens)
    out_query_slot_mapping = int64_at(out_query_slot_mapping)
    out_context_positions = int64_at(out_context_positions)
    out_context_slot_mapping = int64_at(out_context_slot_mapping)
    out_sample_indices = int64_at(out_sample_indices)
    out_sample_pos = int64_at(out_sample_pos)
    out_sample_idx_mapping = int64_at(out_sample_idx_mapping)
    target_positions = int64_at(target_positions)
    target_query_start_loc = int32_at(target_query_start_loc)
    idx_mapping = int64_at(idx_mapping)
    num_sampled = int32_at(num_sampled)
    num_rejected = int32_at(num_rejected)
    block_table = int32_at(block_table)
    first_sampled_query = 0 if sample_from_anchor else 1
    for batch_row in range(num_reqs):
        slot = idx_mapping[batch_row]
        table_row = batch_row * block_table_stride
        context_start = target_query_start_loc[batch_row]
        context_end = target_query_start_loc[batch_row + 1]
        valid_end = context_end - num_rejected[batch_row]

        for row in range(context_start, valid_end):
            position = target_positions[row]
            out_context_positions[row] = position
            out_context_slot_mapping[row] = _slot_of(
                position, block_table, table_row, block_table_stride, block_size, pad_slot_id
            )
        for row in range(valid_end, context_end):  # rejected drafts are no context
            out_context_positions[row] = 0
            out_context_slot_mapping[row] = pad_slot_id

        if num_sampled[batch_row] > 0:
            anchor_token = int64_at(last_sampled)[slot]
        else:  # the prompt goes on: its next token stands in for a sampled one
            anchor_token = np.int64(int32_at(next_prefill_tokens)[slot])
        first_position = target_positions[valid_end - 1] + 1
        first_query = batch_row * num_query_per_req
        for i in range(num_query_per_req):
            query = first_query + i
            position = first_position + i
            out_input_ids[query] = anchor_token if i == 0 else mask_token_id
            out_query_positions[query] = min(position, max_model_len - 1)
            out_query_slot_mapping[query] = _slot_of(
                position, block_table, table_row, block_table_stride, block_size, pad_slot_id
            )
            if i >= first_sampled_query:
                sample = batch_row * num_speculative_steps + i - first_sampled_query
                out_sample_indices[sample] = query
                out_sample_pos[sample] = position + 1 - first_sampled_query
                out_sample_idx_mapping[sample] = slot

        out_query_start_loc[batch_row] = first_query
        out_seq_lens[batch_row] = min(first_position + num_query_per_req, max_model_len)
        float32_at(out_temperature)[slot] = float32_at(temperature)[slot]
        int64_at(out_seeds)[slot] = int64_at(seeds)[slot]

    num_queries = num_reqs * num_query_per_req
    for batch_row in range(num_reqs, max_num_reqs + 1):
        out_query_start_loc[batch_row] = num_queries
    for batch_row in range(num_reqs, max_num_reqs):
        out_seq_lens[batch_row] = 0
    for sample in range(num_reqs * num_speculative_steps, max_num_reqs * num_speculative_steps):
        out_sample_indices[sample] = 0
        out_sample_pos[sample] = 0
        out_sample_idx_mapping[sample] = -1
    for query in range(num_queries, max_num_tokens):
        out_query_slot_mapping[query] = pad_slot_id


@native("gpu.spec_decode.dflash.speculator._prepare_dflash_inputs_kernel")
def prepare_dflash_inputs(
    out_input_ids_ptr: torch.Tensor,
    out_query_positions_ptr: torch.Tensor,
    out_query_start_loc_ptr: torch.Tensor,
    out_seq_lens_ptr: torch.Tensor,
    out_query_slot_mapping_ptr: torch.Tensor,
    out_context_positions_ptr: torch.Tensor,
    out_context_slot_mapping_ptr: torch.Tensor,
    out_sample_indices_ptr: torch.Tensor,
    out_sample_pos_ptr: torch.Tensor,
    out_sample_idx_mapping_ptr: torch.Tensor,
    out_temperature_ptr: torch.Tensor,
    out_seeds_ptr: torch.Tensor,
    target_positions_ptr: torch.Tensor,
    target_query_start_loc_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    last_sampled_ptr: torch.Tensor,
    next_prefill_tokens_ptr: torch.Tensor,
    num_sampled_ptr: torch.Tensor,
    num_rejected_ptr: torch.Tensor,
    temperature_ptr: torch.Tensor,
    seeds_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    block_table_stride: int,
    parallel_drafting_token_id: int,
    block_size: int,
    num_query_per_req: int,
    num_speculative_steps: int,
    max_num_reqs: int,
    max_num_tokens: int,
    max_model_len: int,
    cp_rank: int,
    SAMPLE_FROM_ANCHOR: bool = False,
    PAD_SLOT_ID: int = -1,
    CP_SIZE: int = 1,
    CP_INTERLEAVE: int = 1,
    BLOCK_SIZE: int = 256,
) -> None:
    """Stands for `_prepare_dflash_inputs_kernel`: all inputs of one parallel draft."""
    if CP_SIZE != 1:
        raise NotImplementedError("context parallelism has no native CPU kernel")
    _dflash_inputs(
        address(out_input_ids_ptr, torch.int32),
        address(out_query_positions_ptr, torch.int64),
        address(out_query_start_loc_ptr, torch.int32),
        address(out_seq_lens_ptr, torch.int32),
        address(out_query_slot_mapping_ptr, torch.int64),
        address(out_context_positions_ptr, torch.int64),
        address(out_context_slot_mapping_ptr, torch.int64),
        address(out_sample_indices_ptr, torch.int64),
        address(out_sample_pos_ptr, torch.int64),
        address(out_sample_idx_mapping_ptr, torch.int64),
        address(out_temperature_ptr, torch.float32),
        address(out_seeds_ptr, torch.int64),
        address(target_positions_ptr, torch.int64),
        address(target_query_start_loc_ptr, torch.int32),
        address(idx_mapping_ptr, torch.int64),
        address(last_sampled_ptr, torch.int64),
        address(next_prefill_tokens_ptr, torch.int32),
        address(num_sampled_ptr, torch.int32),
        address(num_rejected_ptr, torch.int32),
        address(temperature_ptr, torch.float32),
        address(seeds_ptr, torch.int64),
        address(block_table_ptr, torch.int32),
        block_table_stride,
        parallel_drafting_token_id,
        block_size,
        num_query_per_req,
        num_speculative_steps,
        max_num_reqs,
        max_num_tokens,
        max_model_len,
        SAMPLE_FROM_ANCHOR,
        PAD_SLOT_ID,
        idx_mapping_ptr.numel(),
    )
