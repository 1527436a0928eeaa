"""A replaced kernel as a value: applied, listed and taken back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Change:
    """One Triton kernel that is replaced in the module that defines it."""

    target: str
    """Dotted name of what is replaced."""
    why: str
    holder: Callable[[], Any]
    """Imports and returns the object whose attribute is replaced."""
    replacement: Callable[[Any], Any]
    """Makes the new value from the old one."""

    @property
    def attribute(self) -> str:
        return self.target.rsplit(".", 1)[1]


class AppliedChanges:
    """The changes now in force, with what each of them replaced."""

    def __init__(self) -> None:
        self._by_target: dict[str, tuple[Change, Any, Any]] = {}

    @property
    def changes(self) -> tuple[Change, ...]:
        """In the order in which they were applied."""
        return tuple(change for change, _, _ in self._by_target.values())

    def apply(self, change: Change) -> None:
        """Put one change in force; nothing happens when its target is changed already.

        Raises:
            AttributeError: vLLM has no such kernel.
        """
        if change.target in self._by_target:
            return
        holder = change.holder()
        before = getattr(holder, change.attribute)
        setattr(holder, change.attribute, change.replacement(before))
        self._by_target[change.target] = (change, holder, before)

    def revert(self) -> None:
        """Take all changes back, the last one first."""
        while self._by_target:
            _, (change, holder, before) = self._by_target.popitem()
            setattr(holder, change.attribute, before)
