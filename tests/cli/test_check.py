"""``vllm-dartree check``: what it reports, and that it fails with the reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.engine.tiny_pair import write_drafter, write_target
from vllm_dartree.cli.check import patch_row
from vllm_dartree.cli.main import app
from vllm_dartree.cli.report import PatchRow, Report
from vllm_dartree.patches import speculative_config
from vllm_dartree.patches.ledger import ABSENT, Patch

SECONDS = 300  # importing vLLM on a busy machine


@pytest.fixture(autouse=True)
def _own_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command quiets vLLM in its process, which is pytest's in some tests."""
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    monkeypatch.setenv("VLLM_LOGGING_STREAM", "ext://sys.stderr")


def _check(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A fresh process: checking a pair patches it."""
    command = [sys.executable, "-c", "from vllm_dartree.cli.main import main; main()", "check"]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False
    )


def _speculative_config(drafter: Path) -> str:
    return json.dumps({"method": "dartree", "model": str(drafter)})


def test_this_installation_fits_and_the_json_report_stands_alone_on_standard_output() -> None:
    run = _check("--json")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["fits"] and report["problems"] == []
    assert {"python", "torch", "vllm-dartree"} <= report["versions"].keys()
    assert report["platform"] == "cpu"
    assert report["entry_point"] == "vllm_dartree:register"
    targets = [patch["target"] for patch in report["patches"]]
    assert speculative_config.TARGET in targets and len(set(targets)) == len(targets)
    for patch in report["patches"]:
        assert patch["state"] in ("fits", "applied")
        assert patch["found"] == patch["expected"]
        assert patch["why"] and patch["until"] and not patch["reason"]
    assert report["cpu"]["native_kernels"] > 0
    assert report["seams"]


def test_a_fitting_pair_is_described(tmp_path: Path) -> None:
    target, drafter = write_target(tmp_path / "target"), write_drafter(tmp_path / "drafter")
    run = _check(
        "--model", str(target), "--speculative-config", _speculative_config(drafter), "--json"
    )
    assert run.returncode == 0, run.stdout + run.stderr
    pair = json.loads(run.stdout)["pair"]
    assert pair["fits"]
    assert "domino" in pair["drafter"] and "horizon 8" in pair["drafter"]
    assert "Qwen3ForCausalLM" in pair["target"]


def test_a_drafter_for_another_target_is_refused_with_the_difference(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", layers=3)
    drafter = write_drafter(tmp_path / "drafter", target_layers=2)
    run = _check("--model", str(target), "--speculative-config", _speculative_config(drafter))
    assert run.returncode == 1, run.stderr
    words = " ".join(run.stdout.split())
    assert "does not fit:" in words
    assert "num_target_layers: the drafter has 2" in words


def test_a_drafter_alone_is_read(tmp_path: Path) -> None:
    drafter = _speculative_config(write_drafter(tmp_path / "drafter"))
    result = CliRunner().invoke(app, ["check", "--speculative-config", drafter, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["pair"]["target"] is None


def test_another_vllm_version_fails_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.__version__", "0.31.0")
    result = CliRunner().invoke(app, ["check", "--json"])
    assert result.exit_code == 1
    problems = json.loads(result.stdout)["problems"]
    assert any("0.32.0" in problem and "0.31.0" in problem for problem in problems)


def test_a_missing_vllm_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # import vllm raises ImportError
    result = CliRunner().invoke(app, ["check", "--json"])
    assert result.exit_code == 1
    assert "vllm-dartree[cpu]" in " ".join(json.loads(result.stdout)["problems"])


def test_a_changed_fingerprint_is_refused_with_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = _patch(fingerprint="000000000000")
    monkeypatch.setattr("vllm_dartree.engine.activation.all_patches", lambda: [changed])
    result = CliRunner().invoke(app, ["check", "--json"])
    assert result.exit_code == 1
    [row] = json.loads(result.stdout)["patches"]
    assert row["state"] == "refused"
    assert row["expected"] == "000000000000" and row["found"] not in (None, "000000000000")
    assert row["found"] in row["reason"]


def test_the_table_names_what_was_expected_and_found(monkeypatch: pytest.MonkeyPatch) -> None:
    row = PatchRow("m:f", "refused", "aaa", "bbb", "why", "some day", "m:f has changed")
    report = Report(patches=[row], problems=[row.reason])
    monkeypatch.setattr("vllm_dartree.cli.check.collect", lambda: report)
    result = CliRunner().invoke(app, ["check"])
    assert result.exit_code == 1
    for text in ("expected aaa", "found bbb", "until some day", "does not fit: m:f has changed"):
        assert text in result.stdout


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("vllm.engine.arg_utils:EngineArgs.gone", ABSENT),
        ("vllm.engine.gone:EngineArgs", None),
    ],
)
def test_a_vanished_target_is_refused_by_name(target: str, found: str | None) -> None:
    row = patch_row(_patch(target=target))
    assert row.state == "refused" and row.found == found
    assert target in row.reason


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "somewhere"], "needs --speculative-config"),
        (["--speculative-config", "{"], "is not JSON"),
        (["--speculative-config", "[]"], "expected a JSON object"),
    ],
)
def test_a_bad_option_is_named(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["check", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_help_imports_no_vllm() -> None:
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from vllm_dartree.cli.main import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "assert not {'vllm', 'torch'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=SECONDS)


def _patch(**changes: str) -> Patch:
    values = {
        "target": "vllm.engine.arg_utils:EngineArgs.create_engine_config",
        "fingerprint": "111111111111",
        "why": "a test",
        "until": "the test ends",
    }
    return Patch(make=lambda original: original, **(values | changes))
