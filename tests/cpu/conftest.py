from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine_process import run_module
from vllm_dartree.cpu import install_native_kernels, remove_native_kernels


@pytest.fixture(scope="session")
def triton_outputs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of `all_launches()` left behind under Triton's interpreter."""
    path = tmp_path_factory.mktemp("oracle") / "outputs.pt"
    run_module("tests.cpu.triton_oracle", str(path), environment={"VLLM_PLUGINS": ""})
    return torch.load(path, weights_only=False)


@pytest.fixture
def native_kernels() -> Iterator[None]:
    install_native_kernels()
    yield
    remove_native_kernels()


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.engine.tiny_pair import write_target

    return write_target(tmp_path_factory.mktemp("tiny") / "target")
