"""Native kernels leave behind what vLLM's Triton kernels leave behind, in every argument."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.cpu.all_launches import all_launches
from tests.cpu.kernel_launch import Launch, Pointers
from vllm_dartree.cpu.kernels import NATIVE_KERNELS

LAUNCHES = all_launches()
KERNELS = sorted({launch.kernel for launch in LAUNCHES})


@pytest.mark.parametrize("kernel", KERNELS)
def test_equals_the_triton_kernel(
    kernel: str, native_kernels: None, triton_outputs: list[dict[str, Any]]
) -> None:
    for number, launch in enumerate(LAUNCHES):
        if launch.kernel == kernel:
            assert_same_outcome(launch, launch.run(), triton_outputs[number])


@pytest.mark.parametrize("kernel", KERNELS)
def test_case_writes_something(kernel: str, triton_outputs: list[dict[str, Any]]) -> None:
    """A case whose arguments all stay as they were would prove nothing."""
    changed = [
        not same(before, after)
        for number, launch in enumerate(LAUNCHES)
        if launch.kernel == kernel
        for before, after in zip(launch.args.values(), triton_outputs[number].values(), strict=True)
    ]
    assert any(changed)


def test_every_native_kernel_is_compared() -> None:
    assert {f"vllm.v1.worker.{kernel}" for kernel in KERNELS} == set(NATIVE_KERNELS)


def assert_same_outcome(launch: Launch, native: dict[str, Any], triton: dict[str, Any]) -> None:
    for name, expected in triton.items():
        found = native[name]
        tolerance = launch.tolerance.get(name, 0.0)
        if tolerance:
            torch.testing.assert_close(found, expected, atol=tolerance, rtol=0, equal_nan=True)
        else:
            assert same(found, expected), f"{name}: {found} instead of {expected}"


def same(found: Any, expected: Any) -> bool:
    """Equal bit for bit, -0.0 and NaN included."""
    if isinstance(expected, Pointers):
        return all(map(same, found.tensors, expected.tensors))
    if not isinstance(expected, torch.Tensor):
        return found == expected
    as_bytes = [tensor.reshape(-1).view(torch.uint8) for tensor in (found, expected)]
    return torch.equal(*as_bytes)
