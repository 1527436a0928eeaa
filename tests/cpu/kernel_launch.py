"""A kernel launch as data, so that the same launch runs in two processes."""

from __future__ import annotations

import copy
import importlib
from dataclasses import dataclass, field
from typing import Any

import torch

GPU = "vllm.v1.worker.gpu."


@dataclass(frozen=True)
class Pointers:
    """Becomes a uint64 tensor with the tensors' addresses when the kernel is launched."""

    tensors: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Launch:
    """One launch of the Triton kernel `vllm.v1.worker.<kernel>`.

    args: the kernel's arguments in order, by its own names; constants: its constexprs.
    tolerance: largest absolute difference allowed in an argument after the launch; all other
    arguments must come out equal bit for bit.
    """

    kernel: str
    grid: tuple[int, ...]
    args: dict[str, Any]
    constants: dict[str, Any] = field(default_factory=dict)
    tolerance: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"vllm.v1.worker.{self.kernel}"

    def run(self) -> dict[str, Any]:
        """Launch the kernel now bound to the name; returns all arguments as they are afterwards."""
        module, attribute = self.name.rsplit(".", 1)
        kernel = getattr(importlib.import_module(module), attribute)
        args = copy.deepcopy(self.args)
        with torch.inference_mode():
            kernel[self.grid](*map(_materialised, args.values()), **self.constants)
        return args


def _materialised(value: Any) -> Any:
    if isinstance(value, Pointers):
        return torch.tensor([t.data_ptr() for t in value.tensors], dtype=torch.uint64)
    return value
