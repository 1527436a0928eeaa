"""Puts native kernels in the place of Triton's, in this process, and takes them back."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

from .changes import AppliedChanges, Change
from .left_out import LEFT_OUT_KERNELS, MissingKernel

_applied = AppliedChanges()


@contextlib.contextmanager
def triton_counts_as_present() -> Iterator[None]:
    """vLLM's configuration check asks for Triton; native kernels take its place.

    For one check only: the same flag decides which runner a stock run gets.
    """
    module: Any = importlib.import_module("vllm.config.vllm")
    before = module.HAS_TRITON
    module.HAS_TRITON = True
    try:
        yield
    finally:
        module.HAS_TRITON = before


def _module_of(name: str) -> Callable[[], Any]:
    return partial(importlib.import_module, name.rsplit(".", 1)[0])


def _launcher_of(implementation: Callable[..., Any]) -> Callable[[Any], Any]:
    def launcher(kernel: Any) -> Any:
        from vllm.triton_utils.dispatcher import KernelOverride

        return KernelOverride(kernel, implementation)

    return launcher


def _refusal_of(name: str, feature: str, kernel: Any) -> MissingKernel:
    return MissingKernel(name, feature)


@cache
def kernel_changes() -> tuple[Change, ...]:
    """One change for each Triton kernel that gets a native version, or a refusal by name.

    A kernel is replaced in the module that defines it: no module of vLLM launches another's.
    """
    from .kernels import NATIVE_KERNELS

    native = [
        Change(name, "native version", _module_of(name), _launcher_of(implementation))
        for name, implementation in NATIVE_KERNELS.items()
    ]
    refused = [
        Change(
            name,
            f"no native version: refuses {feature} by name",
            _module_of(name),
            partial(_refusal_of, name, feature),
        )
        for name, feature in LEFT_OUT_KERNELS.items()
    ]
    return (*native, *refused)


def install_native_kernels() -> None:
    """Replace the Triton kernels of Model Runner V2; a second call changes nothing."""
    for change in kernel_changes():
        _applied.apply(change)


def remove_native_kernels() -> None:
    """Undo `install_native_kernels`."""
    _applied.revert()


def installed_kernels() -> tuple[Change, ...]:
    """The kernels now replaced in this process."""
    return _applied.changes
