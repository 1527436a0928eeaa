"""Recorders on a running engine: what was fed to the target, verified, drafted, and written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tests.engine.engine import Engine
from vllm_dartree.engine.cpu_attention import split_cache
from vllm_dartree.engine.rejection_sampler import TreeRejectionSampler


@dataclass(frozen=True)
class VerifiedTree:
    """One request's tree in one step.

    history: committed tokens, the root last. tokens, parents: of the nodes scheduled ([N] each).
    positions, slots: [N + 1], root first; slots are those of the first KV-cache group. logits:
    [N + 1, V].
    """

    history: list[int]
    tokens: list[int]
    parents: list[int]
    positions: list[int]
    slots: list[int]
    logits: Tensor

    def path(self, node: int) -> list[int]:
        """The tokens from the root's child down to `node` (-1: none)."""
        return [] if node < 0 else [*self.path(self.parents[node]), self.tokens[node]]


@contextmanager
def verified_trees(engine: Engine) -> Iterator[list[list[VerifiedTree]]]:
    """The trees of every step from here on."""
    steps: list[list[VerifiedTree]] = []
    original = TreeRejectionSampler.__call__

    def watching(self: Any, logits: Tensor, input_batch: Any, *args: Any) -> Any:
        batch, states = self.trees.batch, engine.runner.req_states
        slots = engine.runner.model_state.cache.slots[0]
        trees = []
        for i in range(batch.num_trees):
            num_nodes = int(batch.tree.num_nodes[i])
            rows = batch.rows[i, : num_nodes + 1]
            request = int(input_batch.idx_mapping[i])
            total = int(states.total_len.gpu[request])
            trees.append(
                VerifiedTree(
                    history=states.all_token_ids.gpu[request, :total].tolist(),
                    tokens=batch.tree.tokens[i, :num_nodes].tolist(),
                    parents=batch.tree.parents[i, :num_nodes].tolist(),
                    positions=batch.positions[rows].tolist(),
                    slots=slots[rows].tolist(),
                    logits=logits[rows].clone(),
                )
            )
        steps.append(trees)
        return original(self, logits, input_batch, *args)

    with mock.patch.object(TreeRejectionSampler, "__call__", watching):
        yield steps


@dataclass(frozen=True)
class Batch:
    """Rows and drafts that the scheduler planned per request, and the nodes of each tree."""

    rows: list[int]
    drafts: list[int]
    nodes: list[int]


@contextmanager
def batches(engine: Engine) -> Iterator[list[Batch]]:
    """The batch of every step from here on."""
    seen: list[Batch] = []
    model_state = engine.runner.model_state
    original = model_state.preprocess_state

    def watching(input_batch: Any, *args: Any) -> None:
        original(input_batch, *args)
        drafts = input_batch.num_draft_tokens_per_req
        trees = model_state.trees.batch
        seen.append(
            Batch(
                rows=input_batch.num_scheduled_tokens.tolist(),
                drafts=[0] * input_batch.num_reqs if drafts is None else drafts.tolist(),
                nodes=[] if trees is None else trees.tree.num_nodes.tolist(),
            )
        )

    model_state.preprocess_state = watching
    try:
        yield seen
    finally:
        del model_state.preprocess_state


@contextmanager
def target_inputs(engine: Engine) -> Iterator[list[dict[str, Tensor]]]:
    """Input ids and positions of every forward of the target from here on."""
    inputs: list[dict[str, Tensor]] = []

    def hook(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        inputs.append({key: kwargs[key].clone() for key in ("input_ids", "positions")})

    handle = engine.runner.model.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield inputs
    finally:
        handle.remove()


@dataclass(frozen=True)
class DraftedBlock:
    """What the drafter saw and said once for one request.

    history: committed tokens, the anchor last. logits: [J, Vd] base logits in draft ids.
    """

    history: tuple[int, ...]
    logits: Tensor


@contextmanager
def drafted_blocks(engine: Engine) -> Iterator[list[DraftedBlock]]:
    """Every block drafted from here on; needs K = Vd, so that no logit is cut off."""
    assert engine.oracle is not None
    blocks: list[DraftedBlock] = []
    build = engine.speculator.build_trees

    def watching(block: Any, request_slots: Tensor) -> Any:
        states = engine.runner.req_states
        dense = torch.full(block.base_logits.shape, float("nan"))
        dense.scatter_(-1, block.candidate_ids, block.base_logits)
        for i, slot in enumerate(request_slots.tolist()):
            total = int(states.total_len.gpu[slot])
            history = states.all_token_ids.gpu[slot, :total].tolist()
            assert int(block.anchors[i]) == history[-1]
            blocks.append(DraftedBlock(tuple(history), dense[i]))
        return build(block, request_slots)

    engine.speculator.build_trees = watching
    try:
        yield blocks
    finally:
        engine.speculator.build_trees = build


@contextmanager
def cache_writes(engine: Engine, on_write: Callable[[list[int]], None]) -> Iterator[None]:
    """Call `on_write` with the slots of each write, target's and drafter's, as it happens."""
    import vllm._custom_ops as ops

    original = ops.cpu_attn_reshape_and_cache

    def watching(*args: Any, **kwargs: Any) -> None:
        on_write([slot for slot in args[4].tolist() if slot >= 0])
        original(*args, **kwargs)

    with mock.patch.object(ops, "cpu_attn_reshape_and_cache", watching):
        yield


Cached = dict[str, tuple[Tensor, Tensor]]


def cached(engine: Engine, name: str, layers: list[str]) -> Cached:
    """K and V [computed tokens, kv heads, head size] of a running request, per layer.

    The scheduler's block ids say where a position lies; the worker's block table must agree. Rows
    of blocks that a sliding window has given back are NaN.
    """
    runner = engine.runner
    request_id, slot = engine.request_slot(name)
    num_tokens = int(runner.req_states.num_computed_tokens.gpu[slot])
    context = runner.compilation_config.static_forward_context
    block_ids = engine.scheduler.kv_cache_manager.get_block_ids(request_id)
    found = {}
    for index, group in enumerate(runner.kv_cache_config.kv_cache_groups):
        size = runner.block_tables.block_sizes[index]
        owned = torch.tensor(block_ids[index])
        table = runner.block_tables.block_tables[index].gpu[slot, : len(owned)]
        assert torch.equal(table[owned != 0], owned[owned != 0].int())
        positions = torch.arange(num_tokens)
        blocks, offsets = owned[positions // size], positions % size
        gone = (blocks == 0)[:, None, None]
        for layer in set(group.layer_names) & set(layers):
            keys, values = split_cache(context[layer].kv_cache)
            found[layer] = (
                keys[blocks, :, :, offsets].masked_fill(gone, torch.nan),
                values[blocks, :, offsets].masked_fill(gone, torch.nan),
            )
    return found


def target_layers(engine: Engine) -> list[str]:
    drafter = engine.speculator.draft_attn_layer_names
    groups = engine.runner.kv_cache_config.kv_cache_groups
    return sorted(name for group in groups for name in group.layer_names if name not in drafter)


def draft_layers(engine: Engine) -> list[str]:
    return sorted(engine.speculator.draft_attn_layer_names)
