"""Native versions of the kernels behind trace replay, prompt embeddings and cache zeroing."""

import torch
from numba import njit

from .memory import address, int32_at, int64_at, uint8_at
from .registry import native


@njit(cache=True)
def _replay(sampled, idx_mapping, trace, trace_stride, trace_len, total_len, prompt_len, num_reqs):
    sampled = int64_at(sampled)
    idx_mapping = int64_at(idx_mapping)
    trace = int32_at(trace)
    trace_len = int32_at(trace_len)
    total_len = int32_at(total_len)
    prompt_len = int32_at(prompt_len)
    for batch_row in range(num_reqs):
        slot = idx_mapping[batch_row]
        if slot >= 0:
            step = total_len[slot] - prompt_len[slot]
            if 0 <= step < trace_len[slot]:
                sampled[batch_row] = trace[slot * trace_stride + step]


@native("gpu.sample.trace_replay._trace_replay_kernel")
def trace_replay(
    sampled_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    trace_token_ids_ptr: torch.Tensor,
    trace_token_ids_stride: int,
    trace_len_ptr: torch.Tensor,
    total_len_ptr: torch.Tensor,
    prompt_len_ptr: torch.Tensor,
) -> None:
    """Stands for `_trace_replay_kernel`: a traced request's token replaces the sampled one."""
    _replay(
        address(sampled_ptr, torch.int64),
        address(idx_mapping_ptr, torch.int64),
        address(trace_token_ids_ptr, torch.int32),
        trace_token_ids_stride,
        address(trace_len_ptr, torch.int32),
        address(total_len_ptr, torch.int32),
        address(prompt_len_ptr, torch.int32),
        idx_mapping_ptr.numel(),
    )


@njit(cache=True)
def _overlay_embeddings(
    inputs_embeds,
    row_stride,
    row_bytes,
    embeds,
    masks,
    embeds_lens,
    idx_mapping,
    query_start_loc,
    num_computed_tokens,
    num_reqs,
):
    inputs_embeds = uint8_at(inputs_embeds)
    embeds = int64_at(embeds)
    masks = int64_at(masks)
    embeds_lens = int32_at(embeds_lens)
    idx_mapping = int64_at(idx_mapping)
    query_start_loc = int32_at(query_start_loc)
    num_computed_tokens = int32_at(num_computed_tokens)
    for batch_row in range(num_reqs):
        slot = idx_mapping[batch_row]
        num_computed = num_computed_tokens[slot]
        start = query_start_loc[batch_row]
        num_rows = min(query_start_loc[batch_row + 1] - start, embeds_lens[slot] - num_computed)
        for i in range(num_rows):
            if masks[slot] != 0 and uint8_at(masks[slot])[num_computed + i] != 0:
                continue  # a token id, embedded by the model
            source = (num_computed + i) * row_bytes
            target = (start + i) * row_stride
            for byte in range(row_bytes):
                inputs_embeds[target + byte] = uint8_at(embeds[slot])[source + byte]


@native("gpu.model_states.prompt_embeds._apply_prompt_embeds_kernel")
def apply_prompt_embeds(
    inputs_embeds_ptr: torch.Tensor,
    inputs_embeds_stride: int,
    embeds_ptrs_ptr: torch.Tensor,
    mask_ptrs_ptr: torch.Tensor,
    embeds_lens_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    hidden_size: int,
    TOKEN_BLOCK: int = 16,
    BLOCK_SIZE: int = 1024,
) -> None:
    """Stands for `_apply_prompt_embeds_kernel`: a request's own embeddings over the model's."""
    element_size = inputs_embeds_ptr.element_size()
    _overlay_embeddings(
        inputs_embeds_ptr.data_ptr(),
        inputs_embeds_stride * element_size,
        hidden_size * element_size,
        address(embeds_ptrs_ptr, torch.uint64),
        address(mask_ptrs_ptr, torch.uint64),
        address(embeds_lens_ptr, torch.int32),
        address(idx_mapping_ptr, torch.int64),
        address(query_start_loc_ptr, torch.int32),
        address(num_computed_tokens_ptr, torch.int32),
        idx_mapping_ptr.numel(),
    )


@njit(cache=True)
def _zero_blocks(segments, block_strides, page_sizes, block_ids, num_segments, num_blocks):
    segments = int64_at(segments)
    block_strides = int64_at(block_strides)
    page_sizes = int64_at(page_sizes)
    block_ids = int64_at(block_ids)
    for segment in range(num_segments):
        words = int32_at(segments[segment])
        for i in range(num_blocks):
            start = block_ids[i] * block_strides[segment]
            for word in range(start, start + page_sizes[segment]):
                words[word] = 0


@native("utils._zero_kv_blocks_kernel")
def zero_kv_blocks(
    seg_addrs_ptr: torch.Tensor,
    seg_block_strides_ptr: torch.Tensor,
    seg_page_sizes_ptr: torch.Tensor,
    block_ids_ptr: torch.Tensor,
    BLOCK_SIZE: int = 1024,
) -> None:
    """Stands for `_zero_kv_blocks_kernel`: clear cache blocks that are about to be reused."""
    _zero_blocks(
        address(seg_addrs_ptr, torch.uint64),
        address(seg_block_strides_ptr, torch.int64),
        address(seg_page_sizes_ptr, torch.int64),
        address(block_ids_ptr, torch.int64),
        seg_addrs_ptr.numel(),
        block_ids_ptr.numel(),
    )
