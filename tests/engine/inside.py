"""The process that runs engines: builds each one, runs its scenarios, writes their reports."""

from __future__ import annotations

import gc
import importlib
import json
import sys
import traceback
from pathlib import Path
from typing import Any


def main(job_file: str) -> None:
    from tests.engine.engine import Engine

    job = json.loads(Path(job_file).read_text())
    report: dict[str, dict[str, Any]] = {}

    def record(engine_name: str, scenario: str, entry: dict[str, Any]) -> None:
        report.setdefault(engine_name, {})[scenario] = entry
        Path(job["report"]).write_text(json.dumps(report))

    for spec in job["engines"]:
        # vLLM collects garbage ten times while it starts, half a second each with all it imports.
        gc.collect()
        gc.freeze()
        try:
            engine = Engine.start(spec, job["checkpoints"], job["answers"])
        except Exception:
            for scenario in spec["scenarios"]:
                record(spec["name"], scenario, {"error": traceback.format_exc()})
            continue
        for scenario in spec["scenarios"]:
            function, *arguments = scenario.split(":")
            module, function = function.split(".")
            run = getattr(importlib.import_module(f"tests.engine.scenarios.{module}"), function)
            try:
                entry = {"value": run(engine, *arguments)}
            except Exception:
                entry = {"error": traceback.format_exc()}
                engine.drain()
            record(spec["name"], scenario, entry)
        engine.stop()
        del engine


if __name__ == "__main__":
    main(sys.argv[1])
