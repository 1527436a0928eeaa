"""Native versions of the kernels for temperature and min-p."""

import numpy as np
import torch

from .registry import native


@native("gpu.sample.gumbel._temperature_kernel")
def apply_temperature(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    temperature_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int = 8192,
) -> None:
    """Stands for `_temperature_kernel`: divide each row of float32 logits by its temperature.

    Rows at temperature 0 (greedy) or 1 stay as they are.
    """
    logits = logits_ptr.numpy()
    temperatures = temperature_ptr.numpy()
    for row, slot in enumerate(expanded_idx_mapping_ptr.tolist()):
        temperature = temperatures[slot]
        if temperature != 0.0 and temperature != 1.0:
            np.divide(logits[row], temperature, out=logits[row])


@native("gpu.sample.min_p._min_p_kernel")
def apply_min_p(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    min_p_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int = 1024,
) -> None:
    """Stands for `_min_p_kernel`: -inf for tokens below `min_p` times the likeliest token."""
    logits = logits_ptr.numpy()
    thresholds = min_p_ptr.numpy()
    for row, slot in enumerate(expanded_idx_mapping_ptr.tolist()):
        min_p = thresholds[slot]
        if min_p != 0.0:
            threshold = logits[row].max() + np.log(min_p)
            np.copyto(logits[row], -np.inf, where=logits[row] < threshold)
