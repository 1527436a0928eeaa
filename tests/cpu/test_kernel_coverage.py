"""Every Triton kernel that Model Runner V2 launches is either native or refused by name."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from vllm_dartree.cpu import missing_kernels
from vllm_dartree.cpu.kernels import NATIVE_KERNELS

# Outside the runner's own package, yet launched by it.
OUTSIDE = {"vllm.v1.worker.utils._zero_kv_blocks_kernel"}


def launched_kernels() -> set[str]:
    """Dotted names of all `name[grid](...)` calls below vllm.v1.worker.gpu."""
    vllm = find_spec("vllm")
    assert vllm is not None and vllm.origin is not None
    package = Path(vllm.origin).parent
    names = set()
    for path in (package / "v1/worker/gpu").rglob("*.py"):
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                called = node.func.value
                if isinstance(called, ast.Name) and called.id.endswith("_kernel"):
                    names.add(f"{module}.{called.id}")
    return names


def test_all_launched_kernels_are_native_or_left_out() -> None:
    assert launched_kernels() | OUTSIDE == set(NATIVE_KERNELS) | set(missing_kernels())


def test_no_kernel_is_both() -> None:
    assert not set(NATIVE_KERNELS) & set(missing_kernels())


def test_a_left_out_kernel_names_itself_and_its_feature(native_kernels: None) -> None:
    from vllm.v1.worker.gpu.sample.watermark import _philox_gumbel_kernel

    with pytest.raises(NotImplementedError, match=r"watermarks needs .*_philox_gumbel_kernel"):
        _philox_gumbel_kernel[(1,)]()
