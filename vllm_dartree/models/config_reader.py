"""Typed access to a drafter's config.json: a wrong file is a ValueError that says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def read_config(folder: Path) -> dict[str, Any]:
    """The JSON object in `folder`/config.json. Raises ValueError if there is none."""
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(
            f"model: {folder} has no config.json; expected a folder with config.json and "
            "*.safetensors. Download the checkpoint and give the folder's path."
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # covers JSONDecodeError and UnicodeDecodeError
        raise ValueError(f"{path}: not valid JSON ({error}). Download the file again.") from error
    if not isinstance(config, dict):
        raise ValueError(
            f"{path}: expected a JSON object, got {type(config).__name__}. Download it again."
        )
    return config


class ConfigReader:
    """Looks a key up in the nested section first, then at top level.

    Exporters disagree on the place of a key (SpecForge nests what DeepSpec keeps at top level, and
    serving converters copy some of it), so both places are read and a conflict is an error. A null
    counts as absent.
    """

    def __init__(self, config: Mapping[str, Any], section: str | None = None):
        self._places: list[tuple[str, Mapping[str, Any]]] = [("", config)]
        nested = config.get(section) if section is not None else None
        if nested is not None:
            if not isinstance(nested, Mapping):
                raise ValueError(
                    f"{section}: expected a JSON object, got {nested!r}. Correct config.json."
                )
            self._places.insert(0, (f"{section}.", nested))

    def get(self, key: str) -> Any:
        """The raw value, or None. Raises ValueError if the two places disagree."""
        found = [(f"{prefix}{key}", place.get(key)) for prefix, place in self._places]
        found = [(name, value) for name, value in found if value is not None]
        if not found:
            return None
        name, value = found[0]
        for other_name, other in found[1:]:
            if other != value:
                raise ValueError(
                    f"{name} is {value!r} but {other_name} is {other!r} in config.json. "
                    "Keep the value that the drafter was trained with and remove the other."
                )
        return value

    def integer(self, key: str, minimum: int = 1) -> int | None:
        value = self.get(key)
        if value is not None and (not _is_int(value) or value < minimum):
            raise _wrong(key, value, f"an integer >= {minimum}")
        return value

    def positive(self, key: str) -> float | None:
        """A finite number above 0."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(key, value, "a number > 0")
        # The upper limit also keeps huge JSON integers away from float().
        if not 0 < value < 1e30:
            raise _wrong(key, value, "a finite number > 0")
        return float(value)

    def boolean(self, key: str) -> bool | None:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise _wrong(key, value, "true or false")
        return value

    def text(self, key: str) -> str | None:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise _wrong(key, value, "a string")
        return value

    def integers(self, key: str) -> tuple[int, ...] | None:
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not value or not all(_is_int(v) for v in value):
            raise _wrong(key, value, "a non-empty list of integers")
        return tuple(value)

    def texts(self, key: str) -> tuple[str, ...] | None:
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise _wrong(key, value, "a list of strings")
        return tuple(value)

    def mapping(self, key: str) -> dict[str, Any] | None:
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise _wrong(key, value, "a JSON object")
        return value


def missing(key: str) -> ValueError:
    """The error for a key without which the drafter is not defined."""
    return ValueError(
        f"{key}: missing from config.json (or null), expected a value. "
        "Add the value that the drafter was trained with."
    )


def required(value: T | None, key: str) -> T:
    """`value`, or a ValueError saying that config.json lacks `key`."""
    if value is None:
        raise missing(key)
    return value


def agree(key: str, in_config: int | None, in_tensors: int | None, tensor: str) -> int | None:
    """The one value that config.json and the tensor shapes give; ValueError if they differ."""
    if in_config is not None and in_tensors is not None and in_config != in_tensors:
        raise ValueError(
            f"{key}: config.json says {in_config}, the shape of {tensor} says {in_tensors}. "
            "Use the config.json of this checkpoint."
        )
    return in_tensors if in_config is None else in_config


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong(key: str, value: Any, expected: str) -> ValueError:
    return ValueError(f"{key}: got {value!r}, expected {expected}. Correct it in config.json.")
