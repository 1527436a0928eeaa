"""`run_engine`: results, arguments and failures of a function in another process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.engine_process import EngineProcessError, run_engine


def describe(folder: str, numbers: list[int]) -> dict[str, Any]:
    return {
        "folder": folder,
        "total": sum(numbers),
        "pid": os.getpid(),
        "setting": os.environ.get("A_SETTING"),
        "in_process_engine": os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0",
    }


def fail() -> None:
    print("something on standard output")
    raise ValueError("the reason")


def die() -> None:
    os._exit(3)


def hang() -> None:
    time.sleep(60)


def test_result_comes_from_another_process() -> None:
    result = run_engine(
        describe, environment={"A_SETTING": "on"}, folder=Path("/somewhere"), numbers=[1, 2, 3]
    )
    assert result.pop("pid") != os.getpid()
    assert result == {
        "folder": "/somewhere",
        "total": 6,
        "setting": "on",
        "in_process_engine": True,
    }


def test_an_exception_is_shown_with_the_output() -> None:
    with pytest.raises(EngineProcessError, match=r"(?s)exit code 1.*ValueError: the reason"):
        run_engine(fail)


def test_a_dead_process_is_a_failure() -> None:
    with pytest.raises(EngineProcessError, match="exit code 3"):
        run_engine(die)


def test_a_hanging_process_is_ended() -> None:
    with pytest.raises(EngineProcessError, match=r"not finished after 0\.5 s"):
        run_engine(hang, timeout_s=0.5)
