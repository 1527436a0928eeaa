"""Native kernels take the place of Triton's only when asked, and leave nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.engine_process import run_engine


def attributes_of_changes() -> dict[str, Any]:
    from vllm_dartree.cpu.install import kernel_changes

    return {
        change.target: vars(change.holder()).get(change.attribute, "absent")
        for change in kernel_changes()
    }


def install_and_remove() -> dict[str, Any]:
    from vllm_dartree.cpu import install_native_kernels, installed_kernels, remove_native_kernels

    before = attributes_of_changes()
    install_native_kernels()
    first = installed_kernels()
    install_native_kernels()
    again = installed_kernels()
    during = attributes_of_changes()
    remove_native_kernels()
    after = attributes_of_changes()
    return {
        "changed": sorted(name for name in before if during[name] is not before[name]),
        "listed": sorted(change.target for change in first),
        "all_say_why": all(change.why for change in first),
        "again": first == again,
        "left_behind": [name for name in before if after[name] is not before[name]],
        "listed_after": len(installed_kernels()),
    }


def test_kernels_are_listed_installed_once_and_removed() -> None:
    outcome = run_engine(install_and_remove)
    assert outcome["changed"] == outcome["listed"]
    assert outcome["all_say_why"] and outcome["again"]
    assert outcome["left_behind"] == [] and outcome["listed_after"] == 0


def validation() -> dict[str, Any]:
    from vllm.config import VllmConfig

    from vllm_dartree.cpu import triton_counts_as_present

    def refusal() -> str:
        try:
            VllmConfig()._validate_v2_model_runner()
        except ValueError as error:
            return str(error)
        return ""

    outcome = {"before": refusal()}
    with triton_counts_as_present():
        outcome["within"] = refusal()
    return outcome | {"after": refusal(), "stock_choice": VllmConfig().use_v2_model_runner}


def test_the_runner_is_accepted_within_one_check_only() -> None:
    outcome = run_engine(validation)
    assert outcome["before"] == outcome["after"] == "Model Runner V2 requires Triton."
    assert outcome["within"] == ""
    assert outcome["stock_choice"] is False


def scan_after_numba() -> bool:
    import numba  # noqa: F401
    from vllm.platforms import current_platform

    from vllm_dartree.patches.cpu_runner import PATCHES

    for patch in PATCHES:
        patch.apply()
    current_platform.register_triton_kernel_overrides()
    from vllm.triton_utils.dispatcher import KernelOverride
    from vllm.v1.worker.gpu.input_batch import _post_update_kernel

    return isinstance(_post_update_kernel, KernelOverride)


def test_the_platform_hook_installs_kernels_even_after_numba() -> None:
    assert run_engine(scan_after_numba)


def imported_by_the_package() -> list[str]:
    import sys

    import vllm_dartree.cpu  # noqa: F401

    return [name for name in ("numba", "vllm") if name in sys.modules]


def test_importing_the_package_loads_neither_numba_nor_vllm() -> None:
    assert run_engine(imported_by_the_package) == []


def test_a_tensor_of_another_dtype_is_refused() -> None:
    from vllm_dartree.cpu.memory import address

    with pytest.raises(TypeError, match=r"expected a torch.int32 tensor, got torch.int64"):
        address(torch.zeros(3, dtype=torch.int64), torch.int32)
