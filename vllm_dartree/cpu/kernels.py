"""All native kernels: importing this module fills the registry (and loads numba)."""

from . import (  # noqa: F401
    batch_inputs,
    block_tables,
    draft_inputs,
    gumbel,
    request_update,
    staged_write,
)
from .registry import NATIVE_KERNELS

__all__ = ["NATIVE_KERNELS"]
