"""Native version of the kernel that applies structured-output bitmasks."""

import torch
from numba import njit

from .memory import address, int16_at, int32_at
from .registry import native

_NEGATIVE_INFINITY_BITS = {
    torch.float32: -0x00800000,
    torch.bfloat16: -0x0080,
    torch.float16: -0x0400,
}
"""The bits of -inf as a signed integer of the element's size."""


@njit(cache=True)
def _mask_rows(
    logits,
    logits_stride,
    logits_indices,
    cu_num_logits,
    bitmask,
    bitmask_stride,
    vocab_size,
    mask_stride,
    num_masks,
    wide,
    negative_infinity,
):
    logits_indices = int32_at(logits_indices)
    cu_num_logits = int32_at(cu_num_logits)
    bitmask = int32_at(bitmask)
    for mask in range(num_masks):
        batch_row = logits_indices[mask] // mask_stride
        local_pos = logits_indices[mask] % mask_stride
        first_row = cu_num_logits[batch_row]
        if local_pos >= cu_num_logits[batch_row + 1] - first_row:
            continue
        start = (first_row + local_pos) * logits_stride
        for word_index in range((vocab_size + 31) // 32):
            word = bitmask[mask * bitmask_stride + word_index]
            if word == -1:
                continue  # all 32 allowed
            for token in range(word_index * 32, min(word_index * 32 + 32, vocab_size)):
                if (word >> (token % 32)) & 1 == 0:
                    if wide:
                        int32_at(logits)[start + token] = negative_infinity
                    else:
                        int16_at(logits)[start + token] = negative_infinity


@native("gpu.structured_outputs._apply_grammar_bitmask_kernel")
def apply_grammar_bitmask(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    logits_indices_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    bitmask_ptr: torch.Tensor,
    bitmask_stride: int,
    vocab_size: int,
    MASK_STRIDE: int = 1,
    BLOCK_SIZE: int = 8192,
) -> None:
    """Stands for `_apply_grammar_bitmask_kernel`: -inf for tokens whose bit is 0.

    The logits may be float32, bfloat16 or float16. Row `i` of the mask belongs to local row
    `logits_indices[i] % MASK_STRIDE` of request `logits_indices[i] // MASK_STRIDE`.
    """
    _mask_rows(
        logits_ptr.data_ptr(),
        logits_stride,
        address(logits_indices_ptr, torch.int32),
        address(cu_num_logits_ptr, torch.int32),
        address(bitmask_ptr, torch.int32),
        bitmask_stride,
        vocab_size,
        MASK_STRIDE,
        logits_indices_ptr.numel(),
        logits_ptr.element_size() == 4,
        _NEGATIVE_INFINITY_BITS[logits_ptr.dtype],
    )
