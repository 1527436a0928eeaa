"""Where the time of a round goes, by stage.

Host time: on a CPU that is the work itself.
"""

from __future__ import annotations

import time
from collections import defaultdict

STAGES = ("draft", "build", "target", "walk", "commit", "rest")


class StageClock:
    """Adds up the seconds between marks; each mark names the stage that ends there."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._last: float | None = None
        self.num_rounds = 0

    def mark(self, stage: str) -> None:
        """The time since the last mark belongs to `stage`, one of `STAGES`."""
        now = time.perf_counter()
        if self._last is not None:
            self._seconds[stage] += now - self._last
        self._last = now

    def seconds(self) -> dict[str, float]:
        """Seconds per stage since the last reset, in the order of `STAGES`."""
        return {stage: self._seconds[stage] for stage in STAGES}
