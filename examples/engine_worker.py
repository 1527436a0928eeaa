"""One vLLM engine in a process of its own, kept alive so that configurations can take turns.

Used as a program it is that process: ``engine_worker.py FD`` serves requests from the connection on
file descriptor FD. Used as a module it is the parent's side, `Engine`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

START_SECONDS = 600  # a first start compiles the native kernels
REPLY_SECONDS = 1800


class Engine:
    """A `vllm.LLM` in a child process. Requests block; an idle engine uses no core."""

    def __init__(self, name: str, engine_args: dict[str, Any], *, plugin: bool) -> None:
        """Start the process; `wait_until_ready` collects it, so that several start at once.

        plugin: False hides the plugin from this process, which is then stock vLLM.
        """
        self.name = name
        self._log = tempfile.NamedTemporaryFile(  # noqa: SIM115
            prefix=f"{name}-", suffix=".log", delete=False
        )
        self._connection, theirs = Pipe()
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._process = subprocess.Popen(
            command,
            env=_environment(plugin),
            pass_fds=[theirs.fileno()],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        theirs.close()
        self._connection.send(engine_args)

    def wait_until_ready(self) -> None:
        self._reply(START_SECONDS)

    def call(self, operation: str, **arguments: Any) -> Any:
        """Run one function of this module's `OPERATIONS` in the child.

        Raises:
            RuntimeError: it failed there; the message ends with the engine's log.
        """
        self._connection.send((operation, arguments))
        return self._reply(REPLY_SECONDS)

    def close(self) -> None:
        """End the process; the log is kept only when it failed."""
        self._connection.close()  # the child leaves its loop
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        if self._process.returncode == 0:
            Path(self._log.name).unlink()

    def _reply(self, seconds: float) -> Any:
        try:
            if not self._connection.poll(seconds):
                raise RuntimeError(f"engine {self.name} did not answer in {seconds:.0f} s")
            succeeded, reply = self._connection.recv()
        except EOFError:
            succeeded, reply = False, "the process ended"
        if not succeeded:
            tail = "\n".join(Path(self._log.name).read_text().splitlines()[-30:])
            raise RuntimeError(f"engine {self.name}: {reply}\n{tail}\n(log: {self._log.name})")
        return reply


def start_all(engines: Iterable[Engine]) -> dict[str, Engine]:
    """Engines by name once all are ready; they start at the same time.

    All are closed when one of them fails.
    """
    by_name = {engine.name: engine for engine in engines}
    try:
        for engine in by_name.values():
            engine.wait_until_ready()
    except BaseException:
        for engine in by_name.values():
            engine.close()
        raise
    return by_name


def _environment(plugin: bool) -> dict[str, str]:
    """All engines of a comparison get the same threads on the same cores."""
    cores = sorted(os.sched_getaffinity(0))
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core in the process we time
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(len(cores)),
        "OMP_PLACES": ",".join(f"{{{core}}}" for core in cores),
        "OMP_PROC_BIND": "true",
        **os.environ,
    }
    intel_openmp = Path(sys.prefix, "lib", "libiomp5.so")
    if intel_openmp.exists() and "LD_PRELOAD" not in environment:
        environment["LD_PRELOAD"] = str(intel_openmp)
    if not plugin:
        environment["VLLM_PLUGINS"] = ""
    return environment


def generate(
    llm: Any, prompts: list[list[int]], max_tokens: int, batch_size: int
) -> dict[str, Any]:
    """Greedy answers to token-id prompts, `batch_size` at a time.

    Returns tokens (a list per prompt), seconds, and for a dartree engine drafts, accepted (vLLM's
    counters) and stages (seconds by stage of the round).
    """
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    clock = _stage_clock(llm)
    if clock is not None:
        clock.reset()
    before = _counters(llm)
    tokens: list[list[int]] = []
    started = time.perf_counter()
    for first in range(0, len(prompts), batch_size):
        batch = [{"prompt_token_ids": ids} for ids in prompts[first : first + batch_size]]
        outputs = llm.generate(batch, params, use_tqdm=False)
        tokens += [list(output.outputs[0].token_ids) for output in outputs]
    seconds = time.perf_counter() - started
    after = _counters(llm)
    return {
        "tokens": tokens,
        "seconds": seconds,
        "drafts": after[0] - before[0],
        "accepted": after[1] - before[1],
        "stages": clock.seconds() if clock is not None else {},
    }


def top_logprobs(llm: Any, prompt: list[int], count: int) -> dict[int, float]:
    """Log-probabilities of the `count` likeliest next tokens, likeliest first."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=count, detokenize=False)
    output = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0]
    entries = sorted(output.outputs[0].logprobs[0].items(), key=lambda entry: entry[1].rank)
    return {token: entry.logprob for token, entry in entries}


def step_milliseconds(llm: Any, prompts: list[list[int]], num_tokens: int) -> list[float]:
    """Duration of each decode step of one batch; prompts are decoded for `num_tokens` tokens."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    engine = llm.llm_engine
    started = time.monotonic_ns()  # request ids are unique per engine
    for number, ids in enumerate(prompts):
        engine.add_request(f"step-{started}-{number}", {"prompt_token_ids": ids}, params)
    ends = []
    while engine.has_unfinished_requests():
        outputs = engine.step()
        decoding = len(outputs) == len(prompts) and all(
            len(output.outputs[0].token_ids) > 1 for output in outputs
        )
        ends.append((time.perf_counter(), decoding))
    return [1e3 * (end - start) for (start, _), (end, decoding) in pairwise(ends) if decoding]


OPERATIONS = {
    function.__name__: function for function in (generate, top_logprobs, step_milliseconds)
}


def _stage_clock(llm: Any) -> Any:
    """The dartree speculator's clock, None in a stock engine."""
    if llm.llm_engine.vllm_config.speculative_config is None:
        return None
    from vllm_dartree.engine.inspect import runner_of

    return runner_of(llm).speculator.clock


def _counters(llm: Any) -> tuple[int, int]:
    """vLLM's counters of drafts (rounds summed over requests) and accepted draft tokens."""
    values = {metric.name: metric for metric in llm.get_metrics()}
    drafts = values.get("vllm:spec_decode_num_drafts")
    accepted = values.get("vllm:spec_decode_num_accepted_tokens")
    return (drafts.value, accepted.value) if drafts and accepted else (0, 0)


def serve(connection: Connection) -> None:
    """The child: build the engine, then answer until the parent closes the connection."""
    engine_args = connection.recv()
    try:
        from vllm import LLM

        llm = LLM(disable_log_stats=False, **engine_args)
        connection.send((True, None))
    except Exception as error:
        connection.send((False, repr(error)))
        raise
    while True:
        try:
            operation, arguments = connection.recv()
        except EOFError:
            return
        try:
            reply = OPERATIONS[operation](llm, **arguments)
        except Exception as error:
            connection.send((False, repr(error)))
            raise
        connection.send((True, reply))


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
