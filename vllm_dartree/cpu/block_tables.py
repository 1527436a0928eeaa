"""Native versions of the kernels that read block tables and compute KV cache slots."""

import numpy as np
import torch
from numba import njit

from .memory import address, int32_at, int64_at, uint8_at
from .registry import native


@njit(cache=True)
def _gather_rows(
    idx_mapping, sources, targets, strides, num_blocks, num_blocks_stride, num_groups, num_reqs
):
    idx_mapping = int64_at(idx_mapping)
    sources = int64_at(sources)
    targets = int64_at(targets)
    strides = int64_at(strides)
    num_blocks = int32_at(num_blocks)
    for group in range(num_groups):
        source = int32_at(sources[group])
        target = int32_at(targets[group])
        stride = strides[group]
        for batch_row in range(num_reqs):
            slot = idx_mapping[batch_row]
            for block in range(num_blocks[group * num_blocks_stride + slot]):
                target[batch_row * stride + block] = source[slot * stride + block]


@native("gpu.block_table._gather_block_tables_kernel")
def gather_block_tables(
    batch_idx_to_req_idx: torch.Tensor,
    src_block_table_ptrs: torch.Tensor,
    dst_block_table_ptrs: torch.Tensor,
    block_table_strides: torch.Tensor,
    num_blocks_ptr: torch.Tensor,
    num_blocks_stride: int,
    num_reqs: int,
    BLOCK_SIZE: int = 1024,
) -> None:
    """Stands for `_gather_block_tables_kernel`: each request's block ids, in batch order.

    Only CUDA graphs pad a batch with unused requests, so there are no padded rows to clear here.
    """
    _gather_rows(
        address(batch_idx_to_req_idx, torch.int64),
        address(src_block_table_ptrs, torch.uint64),
        address(dst_block_table_ptrs, torch.uint64),
        address(block_table_strides, torch.int64),
        address(num_blocks_ptr, torch.int32),
        num_blocks_stride,
        block_table_strides.numel(),
        num_reqs,
    )


@njit(cache=True)
def _fill_slots(
    max_num_tokens,
    idx_mapping,
    query_start_loc,
    pos,
    block_tables,
    block_table_strides,
    block_sizes,
    enabled,
    slot_mappings,
    slot_mappings_stride,
    pad_id,
    num_groups,
    num_reqs,
):
    idx_mapping = int64_at(idx_mapping)
    query_start_loc = int32_at(query_start_loc)
    pos = int64_at(pos)
    block_tables = int64_at(block_tables)
    block_table_strides = int64_at(block_table_strides)
    block_sizes = int32_at(block_sizes)
    enabled = uint8_at(enabled)
    slot_mappings = int64_at(slot_mappings)
    for group in range(num_groups):
        block_table = int32_at(block_tables[group])
        block_size = block_sizes[group]
        row = group * slot_mappings_stride
        for batch_row in range(num_reqs):
            slot = idx_mapping[batch_row]
            # A slot of -1 is a dummy request: it owns no blocks.
            writable = slot >= 0 and enabled[group] != 0
            for token in range(query_start_loc[batch_row], query_start_loc[batch_row + 1]):
                if not writable:
                    slot_mappings[row + token] = pad_id
                    continue
                block = slot * block_table_strides[group] + pos[token] // block_size
                offset = pos[token] % block_size
                slot_mappings[row + token] = np.int64(block_table[block]) * block_size + offset
        for token in range(query_start_loc[num_reqs], max_num_tokens):
            slot_mappings[row + token] = pad_id


@native("gpu.block_table._compute_slot_mappings_kernel")
def compute_slot_mappings(
    max_num_tokens: int,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    pos: torch.Tensor,
    block_table_ptrs: torch.Tensor,
    block_table_strides: torch.Tensor,
    block_sizes: torch.Tensor,
    slot_mapping_enabled: torch.Tensor,
    dcp_sharded: torch.Tensor,
    slot_mappings_ptr: torch.Tensor,
    slot_mappings_stride: int,
    cp_rank: int,
    CP_SIZE: int = 1,
    CP_INTERLEAVE: int = 1,
    PAD_ID: int = -1,
    TRITON_BLOCK_SIZE: int = 1024,
) -> None:
    """Stands for `_compute_slot_mappings_kernel`; slots past the batch's tokens become `PAD_ID`."""
    if CP_SIZE != 1:
        raise NotImplementedError("context parallelism has no native CPU kernel")
    _fill_slots(
        max_num_tokens,
        address(idx_mapping, torch.int64),
        address(query_start_loc, torch.int32),
        address(pos, torch.int64),
        address(block_table_ptrs, torch.uint64),
        address(block_table_strides, torch.int64),
        address(block_sizes, torch.int32),
        address(slot_mapping_enabled, torch.bool),
        address(slot_mappings_ptr, torch.int64),
        slot_mappings_stride,
        PAD_ID,
        block_sizes.numel(),
        idx_mapping.numel(),
    )
