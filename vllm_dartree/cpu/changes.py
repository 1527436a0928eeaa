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
        self._undo: list[tuple[Change, Any, Any]] = []

    @property
    def changes(self) -> tuple[Change, ...]:
        return tuple(change for change, _, _ in self._undo)

    def apply(self, change: Change) -> None:
        """Put one change in force; nothing happens when it already is."""
        if change in self.changes:
            return
        holder = change.holder()
        # The attribute's own entry, not an inherited one, so that a class gets its own back.
        before = vars(holder).get(change.attribute, _ABSENT)
        value = change.replacement(None if before is _ABSENT else before)
        setattr(holder, change.attribute, value)
        self._undo.append((change, holder, before))

    def revert(self) -> None:
        """Take all changes back, the last one first."""
        while self._undo:
            change, holder, before = self._undo.pop()
            if before is _ABSENT:
                delattr(holder, change.attribute)
            else:
                setattr(holder, change.attribute, before)
