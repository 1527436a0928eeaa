"""Targets and drafters of the suite by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.engine import tiny_pair
from tests.models.dialects import DIALECTS, TinySizes, edit

# Head size 32 is the smallest that vLLM's CPU attention takes.
FITTING = TinySizes(
    hidden=tiny_pair.HIDDEN,
    mlp=2 * tiny_pair.HIDDEN,
    heads=tiny_pair.HEADS,
    kv_heads=tiny_pair.KV_HEADS,
    head_dim=tiny_pair.HEAD_SIZE,
    vocab=tiny_pair.VOCAB,
    draft_vocab=tiny_pair.VOCAB - 20,
    block=8,
    target_layers=tiny_pair.LAYERS,
    layer_ids=(0, tiny_pair.LAYERS - 1),
    mask=tiny_pair.MASK_TOKEN,
)
WINDOW = 16

TARGETS: dict[str, Callable[[Path], Path]] = {
    "full": tiny_pair.write_target,
    "windowed": lambda folder: tiny_pair.write_windowed_target(folder, WINDOW),
}


def _dflash_windowed(folder: Path) -> Path:
    """A DFlash drafter whose first layer sees `WINDOW` positions."""

    def window(config: dict[str, Any]) -> None:
        config |= {"use_sliding_window": True, "sliding_window": WINDOW}
        config["layer_types"] = ["sliding_attention", "full_attention"]

    return edit(DIALECTS["dflash"](folder, FITTING), config=window)


DRAFTERS: dict[str, Callable[[Path], Path]] = {
    "tiny": tiny_pair.write_drafter,
    "dflash_windowed": _dflash_windowed,
} | {name: lambda folder, write=write: write(folder, FITTING) for name, write in DIALECTS.items()}


def write_all(folder: Path, names: set[str]) -> dict[str, str]:
    """Write the named checkpoints below `folder`; their paths by name."""
    return {name: str((TARGETS | DRAFTERS)[name](folder / name)) for name in sorted(names)}
