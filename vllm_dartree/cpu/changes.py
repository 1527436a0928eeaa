"""A change to vLLM as a value: applied, listed and taken back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_ABSENT = object()


@dataclass(frozen=True)
class Change:
    """One attribute of one vLLM object that is replaced while Model Runner V2 is enabled."""

    target: str
    """Dotted name of what is replaced."""
    why: str
    holder: Callable[[], Any]
    """Imports and returns the object whose attribute is replaced."""
    replacement: Callable[[Any], Any]
    """Makes the new value from the old one (None where the attribute was absent)."""

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
        """Put one change in force; nothing happens when its target is changed already."""
        if change.target in self._by_target:
            return
        holder = change.holder()
        # The attribute's own entry, not an inherited one, so that a class gets its own back.
        before = vars(holder).get(change.attribute, _ABSENT)
        value = change.replacement(None if before is _ABSENT else before)
        setattr(holder, change.attribute, value)
        self._by_target[change.target] = (change, holder, before)

    def revert(self) -> None:
        """Take all changes back, the last one first."""
        while self._by_target:
            _, (change, holder, before) = self._by_target.popitem()
            if before is _ABSENT:
                delattr(holder, change.attribute)
            else:
                setattr(holder, change.attribute, before)
