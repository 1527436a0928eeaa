"""Run a function in a fresh Python process: one engine per process, nothing shared with pytest.

vLLM reads its environment at import, patches torch, and keeps process groups and worker threads;
two engines with different settings belong in two processes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUTPUT_LINES = 60

ENGINE_ENVIRONMENT = {
    # The engine core in the same process: it starts in a few seconds instead of fifteen.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # Two spinning OpenMP threads slow each other down when other processes want the cores.
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


class EngineProcessError(AssertionError):
    """The process failed; the message ends with the tail of its output."""


def run_engine(
    script: Callable[..., Any],
    /,
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 600,
    **arguments: Any,
) -> Any:
    """Return `script(**arguments)` as computed in a fresh process.

    `script` is a module-level function (of a test module, say); it imports vllm inside its body.
    Arguments and result travel as JSON, so tuples come back as lists and keys as strings.
    `environment` is added to this process's environment and to `ENGINE_ENVIRONMENT`.

    Raises EngineProcessError when the function raises, the process dies or `timeout_s` passes.
    """
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        call, result = Path(folder, "call"), Path(folder, "result")
        function = [script.__module__, script.__qualname__, _without_paths(arguments)]
        call.write_text(json.dumps(function))
        run_module(
            "tests.engine_process",
            str(call),
            str(result),
            environment=environment,
            timeout_s=timeout_s,
        )
        return json.loads(result.read_text())


def run_module(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 600,
) -> None:
    """Run `python -m module arguments...` from the repository's root, in `ENGINE_ENVIRONMENT`.

    Raises EngineProcessError when it exits with an error or `timeout_s` passes.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, **ENGINE_ENVIRONMENT, **(environment or {})},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_s)
            failure = f"exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            failure = f"not finished after {timeout_s} s"
        finally:
            _end_group(process)
        if failure:
            output.seek(0)
            tail = output.read().decode(errors="replace").splitlines()[-OUTPUT_LINES:]
            raise EngineProcessError("\n".join([f"{module} {arguments}: {failure}", *tail]))


def _without_paths(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(v) if isinstance(v, Path) else v for name, v in arguments.items()}


def _end_group(process: subprocess.Popen[bytes]) -> None:
    # Workers and their helpers share the process's own session.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _main(call: str, result: str) -> None:
    module, name, arguments = json.loads(Path(call).read_text())
    value = getattr(importlib.import_module(module), name)(**arguments)
    Path(result).write_text(json.dumps(value))


if __name__ == "__main__":
    _main(*sys.argv[1:])
