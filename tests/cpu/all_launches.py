"""Every kernel launch that the native kernels are compared on, in a fixed order."""

from __future__ import annotations

from tests.cpu import batch_launches, sampling_launches
from tests.cpu.kernel_launch import Launch


def all_launches() -> list[Launch]:
    return [*batch_launches.launches(), *sampling_launches.launches()]
