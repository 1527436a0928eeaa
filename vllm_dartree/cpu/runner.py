"""Model Runner V2 on a CPU whose Triton has no CPU backend.

`enable_model_runner_v2` makes this process accept that runner and arranges that each worker
launches native kernels instead of Triton placeholders. Until it is called nothing is changed, and
a run that does not ask for Model Runner V2 stays on V1 even afterwards. It has to be called in
every process: where the configuration is validated, and where workers start.
"""

import builtins
import importlib
from collections.abc import Callable, Mapping
from functools import cache, partial, wraps
from typing import Any

from .changes import AppliedChanges, Change
from .left_out import LEFT_OUT_KERNELS, MissingKernel

_applied = AppliedChanges()


def _accept_without_triton(validate: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(validate)
    def validate_with_native_kernels(config: Any) -> None:
        module = importlib.import_module("vllm.config.vllm")
        before = module.HAS_TRITON
        # Set for this check alone: the same flag decides which runner a stock run gets.
        module.HAS_TRITON = True
        try:
            validate(config)
        finally:
            module.HAS_TRITON = before

    return validate_with_native_kernels


def _register_native_kernels_too(stock: Any) -> classmethod:
    @classmethod
    @wraps(stock.__func__)
    def register_triton_kernel_overrides(platform: type) -> None:
        stock.__func__(platform)
        install_native_kernels()

    return register_triton_kernel_overrides


def _vars_of_mapping(value: Any) -> Mapping[str, Any]:
    attributes = builtins.vars(value)
    return attributes if isinstance(attributes, Mapping) else {}


def _next_power_of_2(_: Any) -> Callable[[int], int]:
    from vllm.utils.math_utils import next_power_of_2

    return next_power_of_2


def _module_of(target: str) -> Callable[[], Any]:
    return partial(importlib.import_module, target.rsplit(".", 1)[0])


def _config_class() -> type:
    return importlib.import_module("vllm.config.vllm").VllmConfig


def _platform_class() -> type:
    return importlib.import_module("vllm.platforms.cpu").CpuPlatform


def _triton_placeholder() -> Any:
    return importlib.import_module("vllm.triton_utils").triton


RUNNER_CHANGES: tuple[Change, ...] = (
    Change(
        "vllm.config.vllm.VllmConfig._validate_v2_model_runner",
        "refuses Model Runner V2 without Triton; native kernels take Triton's place",
        _config_class,
        _accept_without_triton,
    ),
    Change(
        "vllm.triton_utils.triton.next_power_of_2",
        "the Triton placeholder lacks it; launches of Model Runner V2 compute block sizes with it",
        _triton_placeholder,
        _next_power_of_2,
    ),
    Change(
        "vllm.triton_utils.dispatcher.vars",
        "the kernel scan expects a dict from vars(), which llvmlite's `lib` (loaded with numba) "
        "is not; a tolerant `vars` of that module lets the scan pass",
        _module_of("vllm.triton_utils.dispatcher.vars"),
        lambda _: _vars_of_mapping,
    ),
    Change(
        "vllm.platforms.cpu.CpuPlatform.register_triton_kernel_overrides",
        "called in each worker before any kernel launch: installs the native kernels as well",
        _platform_class,
        _register_native_kernels_too,
    ),
)
"""What `enable_model_runner_v2` changes at once; `kernel_changes` follow when a worker starts."""


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

    Each name is that of the module that launches the kernel.
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
    """Replace the Triton kernels of Model Runner V2 in this process by native ones."""
    for change in kernel_changes():
        _applied.apply(change)


def enable_model_runner_v2() -> tuple[Change, ...]:
    """Let this process run Model Runner V2 without Triton; returns the changes in force.

    Calling it again changes nothing. With a Triton that works (a GPU, or a CPU backend) nothing
    is changed at all. Whether a run uses Model Runner V2 is decided elsewhere
    (`VLLM_USE_V2_MODEL_RUNNER`).
    """
    from vllm.triton_utils import HAS_TRITON

    if not HAS_TRITON:
        for change in RUNNER_CHANGES:
            _applied.apply(change)
    return _applied.changes


def disable_model_runner_v2() -> None:
    """Undo `enable_model_runner_v2` and the installation of native kernels in this process."""
    _applied.revert()


def applied_changes() -> tuple[Change, ...]:
    """The changes now in force in this process."""
    return _applied.changes
