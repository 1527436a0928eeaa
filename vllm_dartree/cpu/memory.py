"""Tensors as addresses, addresses as arrays: how a native kernel reaches vLLM's buffers.

A Triton kernel receives pointers and strides. A native kernel receives the same, as integers,
because handing a compiled function an address costs a tenth of handing it a numpy view
(0.08 against 0.7 microseconds for each tensor), and a decode step launches about ten kernels
with ten tensors each.
"""

import numpy as np
import torch
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

# A pointer has no length. Kernels stay inside the bounds that vLLM's own kernels respect.
_UNBOUNDED = 1 << 40


def address(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """Address of the first element of `tensor`, which must hold `dtype` on the CPU.

    Raises TypeError for another dtype: a compiled kernel would read the bytes as if they were
    `dtype`.
    """
    if tensor.dtype is not dtype:
        raise TypeError(f"a native kernel expected a {dtype} tensor, got {tensor.dtype}")
    return tensor.data_ptr()


def address_or_null(tensor: torch.Tensor | None, dtype: torch.dtype) -> int:
    """Like `address`, and 0 for an absent tensor."""
    return 0 if tensor is None else address(tensor, dtype)


@intrinsic
def _pointer(typing_context, address):
    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


@njit(inline="always")
def int16_at(address):
    """The int16 (or 16-bit float) array that starts at `address`."""
    return carray(_pointer(address), _UNBOUNDED, np.int16)


@njit(inline="always")
def int32_at(address):
    """The int32 array that starts at `address`."""
    return carray(_pointer(address), _UNBOUNDED, np.int32)


@njit(inline="always")
def int64_at(address):
    """The int64 array that starts at `address`."""
    return carray(_pointer(address), _UNBOUNDED, np.int64)


@njit(inline="always")
def float32_at(address):
    """The float32 array that starts at `address`."""
    return carray(_pointer(address), _UNBOUNDED, np.float32)


@njit(inline="always")
def uint8_at(address):
    """The uint8 (or bool) array that starts at `address`."""
    return carray(_pointer(address), _UNBOUNDED, np.uint8)
