"""Model Runner V2 on a CPU without Triton: native versions of the vLLM kernels on our path."""

from .install import (
    install_native_kernels,
    installed_kernels,
    remove_native_kernels,
    triton_counts_as_present,
)
from .left_out import missing_kernels

__all__ = [
    "install_native_kernels",
    "installed_kernels",
    "missing_kernels",
    "remove_native_kernels",
    "triton_counts_as_present",
]
