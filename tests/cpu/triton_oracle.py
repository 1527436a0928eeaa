"""Outputs of vLLM's own Triton kernels, run by Triton's interpreter in a process of its own.

`python -m tests.cpu.triton_oracle FILE` launches every case and saves what it left behind. The
interpreter must be chosen before Triton is imported, and vLLM must take a `cpu` backend for real.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import torch


def _interpret_triton() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.backends

    driver = SimpleNamespace(is_active=lambda: True)
    triton.backends.backends["cpu"] = SimpleNamespace(driver=driver, compiler=None)
    from vllm.triton_utils import HAS_TRITON

    assert HAS_TRITON
    import vllm.v1.worker.cpu.shm  # noqa: F401  (turns barriers into no-ops, as a CPU worker does)


def _accept_integer_masks() -> None:
    """The interpreter widens `block_of_bools & scalar_bool` to int32, then refuses it as a mask."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def as_bool(mask: Any) -> Any:
        return TensorHandle(mask.data.astype(bool), tl.int1)

    InterpreterBuilder.create_masked_load = lambda self, pointers, mask, *rest: load(
        self, pointers, as_bool(mask), *rest
    )
    InterpreterBuilder.create_masked_store = lambda self, pointers, value, mask, *rest: store(
        self, pointers, value, as_bool(mask), *rest
    )


def _supply_isnan() -> None:
    """Inductor's libdevice is absent without a GPU; its `isnan` is all that is used of it."""
    import vllm.v1.worker.gpu.metrics.logits as module

    module.libdevice = SimpleNamespace(isnan=lambda x: x != x)


def main(path: str) -> None:
    _interpret_triton()
    _accept_integer_masks()
    _supply_isnan()
    from tests.cpu.all_launches import all_launches

    torch.save([launch.run() for launch in all_launches()], path)


if __name__ == "__main__":
    main(sys.argv[1])
