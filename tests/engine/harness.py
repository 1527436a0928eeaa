"""Runs engines in processes of their own and keeps what their scenarios report.

Starting an engine takes seconds, so a process builds the engines of one group, one after the other,
and runs a list of scenarios on each (`tests.engine.inside`). A test asks for one scenario's report;
the first that needs a group runs it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.engine.checkpoints import write_all
from tests.engine_process import EngineProcessError, run_module

REPORT_FOLDER = "DARTREE_TEST_REPORTS"
TIMEOUT_S = 1500.0  # only so that a hang ends; a busy machine is slow


@dataclass(frozen=True)
class EngineJob:
    """One engine and what is run on it.

    scenarios: ``"module.function"`` below ``tests.engine.scenarios``, or with an argument
    ``"module.function:argument"``.
    trees: the user's ``speculative_config`` without the model, None for a stock engine.
    options: further arguments of ``LLM``.
    drafter, target: names of `tests.engine.checkpoints`.
    """

    name: str
    scenarios: tuple[str, ...]
    trees: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    drafter: str = "tiny"
    target: str = "full"


@dataclass(frozen=True)
class Group:
    """Engines that share a process. with_plugin: whether vLLM may load vllm-dartree there."""

    engines: tuple[EngineJob, ...]
    with_plugin: bool = True
    env: dict[str, str] = field(default_factory=dict)


class Reports:
    """Reports of all scenarios, produced on demand."""

    def __init__(self, groups: dict[str, Group], folder: Path, answers_from: str) -> None:
        self._groups = groups
        self._folder = folder
        self._answers_from = answers_from
        self._done: dict[str, dict[str, dict[str, Any]]] = {}
        self._failures: dict[str, str] = {}

    def __call__(self, engine: str, scenario: str) -> Any:
        """What `scenario` returned on `engine`; fails with the traceback it ended in."""
        group = next(
            name for name, g in self._groups.items() if engine in [job.name for job in g.engines]
        )
        result = self._of(group).get(engine, {}).get(scenario)
        if result is None:
            raise AssertionError(
                f"{scenario} on engine {engine} was not reached: {self._failures.get(group)}"
            )
        if "error" in result:
            raise AssertionError(f"{scenario} on engine {engine} failed:\n{result['error']}")
        return result["value"]

    def _of(self, group: str) -> dict[str, dict[str, Any]]:
        if group not in self._done:
            needs_answers = group != self._answers_from
            self._done[group] = self._run(group, self._answers() if needs_answers else [])
        return self._done[group]

    def _answers(self) -> list[Any]:
        """Stock vLLM's continuations of every prompt, from the engines of the answering group."""
        return [
            {"target": job.target, "answers": self(job.name, "plain.answers")}
            for job in self._groups[self._answers_from].engines
            if "plain.answers" in job.scenarios
        ]

    def _run(self, name: str, answers: list[Any]) -> dict[str, dict[str, Any]]:
        group = self._groups[name]
        folder = self._folder / name
        folder.mkdir()
        job = {
            "engines": [asdict(engine) for engine in group.engines],
            "checkpoints": write_all(
                folder / "checkpoints",
                {e.target for e in group.engines} | {e.drafter for e in group.engines},
            ),
            "answers": answers,
            "report": str(folder / "report.json"),
        }
        (folder / "job.json").write_text(json.dumps(job))
        try:
            run_module(
                "tests.engine.inside",
                str(folder / "job.json"),
                environment={
                    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the cores are shared with others
                    REPORT_FOLDER: str(folder),
                    **group.env,
                    **({} if group.with_plugin else {"VLLM_PLUGINS": ""}),
                },
                timeout_s=TIMEOUT_S,
            )
        except EngineProcessError as error:
            self._failures[name] = str(error)
        report = folder / "report.json"
        return json.loads(report.read_text()) if report.exists() else {}
