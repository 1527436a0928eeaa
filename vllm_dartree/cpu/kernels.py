"""All native kernels: importing this module fills the registry (and loads numba)."""

from . import (  # noqa: F401
    bad_words,
    batch_inputs,
    block_tables,
    draft_inputs,
    grammar,
    gumbel,
    logit_bias,
    logprobs,
    penalties,
    rare_requests,
    request_update,
    sampling_mask,
    staged_write,
    temperature,
    thinking_budget,
)
from .registry import NATIVE_KERNELS

__all__ = ["NATIVE_KERNELS"]
