"""What ``vllm-dartree check`` found, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class PatchRow:
    """One patch of the ledger. found: the installed source's fingerprint, None without a target.

    reason: why it is refused, empty otherwise.
    """

    target: str
    state: Literal["fits", "applied", "refused"]
    expected: str
    found: str | None
    why: str
    until: str
    reason: str = ""


@dataclass(frozen=True)
class CpuReport:
    """The CPU path. attention_isa: the instruction set whose cache layout the trees use.

    native_kernels: Triton kernels with a native version; left_out: those without one, refused by
    name.
    """

    attention_isa: str
    native_kernels: int
    left_out: int


@dataclass(frozen=True)
class PairReport:
    """A drafter and, where one was named, the target it was checked against."""

    drafter: str
    target: str | None
    reason: str = ""

    @property
    def fits(self) -> bool:
        return not self.reason


@dataclass
class Report:
    """problems: one sentence each, with the fix; none means that everything fits."""

    versions: dict[str, str | None] = field(default_factory=dict)
    platform: str | None = None
    path: str | None = None
    entry_point: str | None = None
    patches: list[PatchRow] = field(default_factory=list)
    cpu: CpuReport | None = None
    seams: dict[str, str] = field(default_factory=dict)
    pair: PairReport | None = None
    problems: list[str] = field(default_factory=list)

    def add_pair(self, pair: PairReport) -> None:
        self.pair = pair
        if pair.reason:
            self.problems.append(pair.reason)

    def to_json(self) -> dict[str, Any]:
        report = asdict(self)
        if self.pair is not None:
            report["pair"]["fits"] = self.pair.fits
        return {"fits": not self.problems, **report}
