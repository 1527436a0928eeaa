"""What Model Runner V2 needs on a CPU whose Triton has no CPU backend."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Mapping
from typing import Any

from vllm_dartree.patches.ledger import ABSENT, Patch

_UNTIL = "the CPU wheel ships a Triton with a CPU backend"


def _make_register(original: Callable[[type], None]) -> Callable[[type], None]:
    @functools.wraps(original)
    def register_triton_kernel_overrides(platform: type) -> None:
        from vllm_dartree.cpu import install_native_kernels

        original(platform)
        install_native_kernels()

    return register_triton_kernel_overrides


def _make_next_power_of_2(_: None) -> Callable[[int], int]:
    from vllm.utils.math_utils import next_power_of_2

    return next_power_of_2


def _make_vars(_: None) -> Callable[[Any], Mapping[str, Any]]:
    def vars_of_mapping(value: Any) -> Mapping[str, Any]:
        attributes = builtins.vars(value)
        return attributes if isinstance(attributes, Mapping) else {}

    return vars_of_mapping


KERNEL_SCAN = Patch(
    target="vllm.triton_utils.dispatcher:vars",
    fingerprint=ABSENT,
    make=_make_vars,
    why="vLLM's scan for kernels takes vars() of every module attribute for a dictionary, which "
    "fails once numba is imported; native kernels need numba",
    until="vLLM's scan accepts any mapping",
)
"""Stays when the others are reverted: numba stays imported, and stock engines scan too."""

PATCHES = [
    Patch(
        target="vllm.platforms.cpu:CpuPlatform.register_triton_kernel_overrides",
        fingerprint="0d191b7f4697",
        make=_make_register,
        why="called in each worker before any kernel is launched: native kernels are put in place",
        until=_UNTIL,
    ),
    Patch(
        target="vllm.triton_utils:triton.next_power_of_2",
        fingerprint=ABSENT,
        make=_make_next_power_of_2,
        why="Triton's placeholder lacks it; Model Runner V2 computes block sizes with it",
        until=_UNTIL,
    ),
    KERNEL_SCAN,
]
