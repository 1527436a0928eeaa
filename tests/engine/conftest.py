from __future__ import annotations

import importlib.util

import pytest

from tests.engine.groups import GROUPS
from tests.engine.harness import Reports


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """``reports(engine, scenario)``: what a scenario of `tests.engine.groups` reported."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    return Reports(GROUPS, tmp_path_factory.mktemp("engines"), answers_from="plain")
