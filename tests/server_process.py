"""``vllm-dartree serve`` as a user starts it: the installed command in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sysconfig
import time
import urllib.request
from pathlib import Path
from typing import IO

START_SECONDS = 420  # about 20 s alone on two cores
STOP_SECONDS = 120


class Server:
    """A server on 127.0.0.1; `start` and `stop` may be repeated. log: where it writes."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.arguments = arguments
        self.log = log
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._file: IO[bytes] | None = None

    def start(self) -> None:
        """Start with an empty log and wait until ``/health`` answers.

        Raises AssertionError with the end of the log when it does not.
        """
        command = [Path(sysconfig.get_path("scripts"), "vllm-dartree"), "serve", *self.arguments]
        self._file = self.log.open("wb")
        self._process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(self.port)],
            stdout=self._file,
            stderr=subprocess.STDOUT,
            # Steadier than two spinning threads where other processes want the cores.
            env={**os.environ, "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1"},
            start_new_session=True,
        )
        deadline = time.monotonic() + START_SECONDS
        while not self.healthy():
            assert not self._exited_within(0.3), f"the server ended:\n{self.log_tail()}"
            assert time.monotonic() < deadline, f"the server did not start:\n{self.log_tail()}"

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code once all processes of the server are gone."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(STOP_SECONDS)
        deadline = time.monotonic() + STOP_SECONDS
        while left := self.processes():
            assert time.monotonic() < deadline, f"still running: {left}\n{self.log_tail()}"
            time.sleep(0.1)
        return code

    def kill(self) -> None:
        """End what is left of the server and of the processes it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._file is not None:
            self._file.close()

    def processes(self) -> list[int]:
        """Living processes of the server's session."""
        assert self._process is not None
        return [pid for pid in _process_ids() if _session(pid) == self._process.pid]

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def metric(self, name: str) -> float:
        """Sum of a counter over its labels; 0 when the server has none of that name."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _exited_within(self, seconds: float) -> bool:
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _process_ids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session(pid: int) -> int | None:
    """The session of a process, None when it has ended (a zombie has)."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return None
    return None if state == "Z" else int(session)
