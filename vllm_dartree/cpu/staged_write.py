"""Native version of the kernel that applies staged writes to per-request buffers."""

from typing import Any

import torch
from numba import njit

from .memory import address, int32_at, int64_at
from .registry import native


@njit(cache=True)
def _write_rows(output, stride, rows, starts, contents, cumulative_lengths, num_writes, wide):
    rows = int32_at(rows)
    starts = int32_at(starts)
    cumulative_lengths = int32_at(cumulative_lengths)
    begin = 0
    for write in range(num_writes):
        end = cumulative_lengths[write]
        target = rows[write] * stride + starts[write]
        if wide:
            for i in range(begin, end):
                int64_at(output)[target + i - begin] = int64_at(contents)[i]
        else:
            for i in range(begin, end):
                int32_at(output)[target + i - begin] = int32_at(contents)[i]
        begin = end


@njit(cache=True)
def _write_rows_of_groups(
    outputs, strides, rows, starts, contents, cumulative_lengths, groups, num_writes
):
    outputs = int64_at(outputs)
    strides = int64_at(strides)
    rows = int32_at(rows)
    starts = int32_at(starts)
    contents = int32_at(contents)
    cumulative_lengths = int32_at(cumulative_lengths)
    groups = int32_at(groups)
    begin = 0
    for write in range(num_writes):
        end = cumulative_lengths[write]
        group = groups[write]
        output = int32_at(outputs[group])
        target = rows[write] * strides[group] + starts[write]
        for i in range(begin, end):
            output[target + i - begin] = contents[i]
        begin = end


@native("gpu.buffer_utils._apply_write_kernel")
def apply_write(
    output_ptr: torch.Tensor,
    output_stride: Any,
    write_indices_ptr: torch.Tensor,
    write_starts_ptr: torch.Tensor,
    write_contents_ptr: torch.Tensor,
    write_cu_lens_ptr: torch.Tensor,
    write_group_ids_ptr: torch.Tensor | None,
    BLOCK_SIZE: int = 1024,
    MULTI_GROUP: bool = False,
) -> None:
    """Stands for `_apply_write_kernel`: copy each staged run of values into its row.

    With `MULTI_GROUP`, `output_ptr` is a table of addresses of int32 buffers and `output_stride`
    a tensor of their row strides; otherwise both are those of one buffer of 4- or 8-byte elements.
    """
    writes = (
        address(write_indices_ptr, torch.int32),
        address(write_starts_ptr, torch.int32),
        address(write_contents_ptr, torch.int32 if MULTI_GROUP else output_ptr.dtype),
        address(write_cu_lens_ptr, torch.int32),
    )
    num_writes = write_indices_ptr.numel()
    if MULTI_GROUP:
        assert write_group_ids_ptr is not None
        _write_rows_of_groups(
            address(output_ptr, torch.uint64),
            address(output_stride, torch.int64),
            *writes,
            address(write_group_ids_ptr, torch.int32),
            num_writes,
        )
        return
    wide = output_ptr.element_size() == 8
    _write_rows(output_ptr.data_ptr(), output_stride, *writes, num_writes, wide)
