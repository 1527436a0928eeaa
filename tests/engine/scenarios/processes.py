"""Engines whose core and worker have processes of their own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.engine import remote
from tests.engine.engine import Engine
from tests.engine.harness import REPORT_FOLDER
from tests.engine.prompts import MIXED


def drafts(engine: Engine, shape: str) -> dict[str, Any]:
    """Tokens and drafts; the scheduler's own counts come from vLLM's metrics."""
    answers = [(list(p), engine.answer(p, 200)) for p in MIXED]
    engine.llm.collective_rpc(remote.install_oracle, args=(answers, shape))
    before = engine.llm.collective_rpc(remote.count_rounds)[0]
    run = engine.generate(MIXED[:4], 60)
    after = engine.llm.collective_rpc(remote.count_rounds)[0]
    return {
        "wrong": engine.wrong(MIXED[:4], run),
        "drafted": after["drafted"] - before["drafted"],
        "rounds": after["rounds"] - before["rounds"],
        "metrics": {
            metric.name: metric.value
            for metric in engine.llm.get_metrics()
            if metric.name.startswith("vllm:spec_decode_num_") and hasattr(metric, "value")
        },
    }


def patches(engine: Engine) -> dict[str, Any]:
    """What each of the three processes has in place."""
    folder = Path(os.environ[REPORT_FOLDER])
    return {
        "front": {"pid": os.getpid(), **remote.process_report()},
        "core": json.loads((folder / "core.json").read_text()),
        "worker": engine.llm.collective_rpc(remote.report_worker)[0],
    }
