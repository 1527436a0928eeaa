"""Where the rows of a step's trees go in the target's KV cache once a path is accepted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vllm_dartree.engine.tree_state import TreeBatch, Verdict

PAD_SLOT = -1


@dataclass
class CachePort:
    """Keeps tree nodes out of the cache during the forward and writes the accepted ones after it.

    slots: per KV-cache group [num_rows] int64, the slot of position root + i for row i of a
    request. The rows of a step are scheduled on consecutive positions, so slot i is also where the
    i-th token of the accepted path belongs.
    layers: the target's layer names per KV-cache group.
    """

    slots: list[Tensor]
    layers: list[list[str]]
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def divert(
        cls,
        batch: TreeBatch,
        slot_mappings: Tensor,
        kv_cache_config: Any,
        draft_layers: frozenset[str],
    ) -> CachePort:
        """Remember the slots of all tree rows and take those of the nodes out of `slot_mappings`.

        slot_mappings: [groups, num_tokens] int64, changed in place: nodes get `PAD_SLOT`. The root
        is a committed token and keeps its slot.
        """
        groups = kv_cache_config.kv_cache_groups
        slots = [mapping[: batch.num_rows].clone() for mapping in slot_mappings[: len(groups)]]
        slot_mappings[:, : batch.num_rows] = PAD_SLOT
        roots = batch.rows[:, 0]
        for mapping, kept in zip(slot_mappings, slots, strict=False):
            mapping[roots] = kept[roots]
        layers = [
            [name for name in group.layer_names if name not in draft_layers] for group in groups
        ]
        return cls(slots, layers)

    def commit(self, vllm_config: Any, verdict: Verdict) -> None:
        """Write K and V of the accepted nodes, in path order, into the slots of their positions.

        Sources are the rows set aside by the attention layers, destinations the cache, so nothing
        is read after it was overwritten.
        """
        on_path = verdict.on_path[:, 1:].reshape(-1)  # the root has been written by the forward
        sources = verdict.sources[:, 1:].reshape(-1)
        targets = verdict.targets[:, 1:].reshape(-1)
        layers = vllm_config.compilation_config.static_forward_context
        for slots, names in zip(self.slots, self.layers, strict=True):
            to = slots[targets].masked_fill(~on_path, PAD_SLOT)
            for name in names:
                keys, values = self.metadata[name].set_aside[name]
                layer = layers[name]
                layer.impl.commit(layer, keys[sources], values[sources], to)
