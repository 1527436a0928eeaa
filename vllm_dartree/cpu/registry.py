"""Which native function stands for which Triton kernel of vLLM."""

from collections.abc import Callable
from typing import Any, TypeVar

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

NATIVE_KERNELS: dict[str, Callable[..., Any]] = {}
"""Dotted name of a Triton kernel -> the native function that takes its launch arguments."""


def native(kernel: str) -> Callable[[Kernel], Kernel]:
    """Register the decorated function for the Triton kernel `vllm.v1.worker.<kernel>`.

    The function takes the kernel's arguments by the kernel's own names. It is not told the launch
    grid, and works through all programs of the grid itself.
    """

    def register(function: Kernel) -> Kernel:
        NATIVE_KERNELS[f"vllm.v1.worker.{kernel}"] = function
        return function

    return register
