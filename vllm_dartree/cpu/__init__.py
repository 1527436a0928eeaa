"""Model Runner V2 on a CPU without Triton: native versions of the vLLM kernels on our path."""

from .left_out import missing_kernels
from .runner import (
    applied_changes,
    disable_model_runner_v2,
    enable_model_runner_v2,
    install_native_kernels,
)

__all__ = [
    "applied_changes",
    "disable_model_runner_v2",
    "enable_model_runner_v2",
    "install_native_kernels",
    "missing_kernels",
]
