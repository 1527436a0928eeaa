"""What runs in the engine core's and the workers' processes of a multi-process engine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from tests.engine.harness import REPORT_FOLDER


def process_report() -> dict[str, Any]:
    """Which process this is and what vllm-dartree changed in it."""
    from vllm_dartree.cpu import installed_kernels
    from vllm_dartree.engine.activation import all_patches

    return {
        "pid": os.getpid(),
        "applied": [patch.target for patch in all_patches() if patch.applied],
        "missing": [patch.target for patch in all_patches() if not patch.applied],
        "native_kernels": len(installed_kernels()),
    }


class ReportingScheduler(Scheduler):
    """vLLM's scheduler; it says what was in place when the engine core's process made it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        Path(os.environ[REPORT_FOLDER], "core.json").write_text(json.dumps(process_report()))


def report_worker(worker: Any) -> dict[str, Any]:
    """For ``collective_rpc``."""
    kind = type(_runner(worker))
    return {**process_report(), "runner": f"{kind.__module__}.{kind.__qualname__}"}


def install_oracle(worker: Any, answers: list[tuple[list[int], list[int]]], shape: str) -> None:
    """For ``collective_rpc``: replace the worker's drafter by an oracle."""
    from tests.engine.oracles import SHAPES, Oracle

    runner = _runner(worker)
    oracle = Oracle(runner.speculator, runner.req_states)
    oracle.answers = {tuple(prompt): answer for prompt, answer in answers}
    oracle.shape = SHAPES[shape]
    runner.test_oracle = oracle


def count_rounds(worker: Any) -> dict[str, int]:
    """For ``collective_rpc``: nodes drafted and rounds verified since the oracle came."""
    runner = _runner(worker)
    return {
        "drafted": runner.test_oracle.num_drafted,
        "rounds": runner.speculator.clock.num_rounds,
    }


def _runner(worker: Any) -> Any:
    return getattr(worker, "worker", worker).model_runner
