"""The drafter inside the engine against the same drafter in plain PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.engine import oracles, watch
from tests.engine.engine import Engine
from tests.engine.prompts import MIXED, Prompt
from tests.engine.reference_target import ReferenceTarget
from tests.models.dialects import load_tensors
from tests.models.reference_drafter import ReferenceDrafter
from vllm_dartree.models import read_drafter


class Reference:
    """The reference drafter fed with the reference target's features, for one request at a time."""

    def __init__(self, engine: Engine) -> None:
        directory = Path(engine.spec["directories"]["drafter"])
        self.target = ReferenceTarget(engine.spec["directories"]["target"])
        self.spec, self.weights = read_drafter(directory), load_tensors(directory)
        self.begin_request()

    def begin_request(self) -> None:
        self.drafter = ReferenceDrafter(
            self.spec, self.weights, self.target.embedding, self.target.lm_head
        )

    def base_logits(self, history: tuple[int, ...]) -> torch.Tensor:
        """[J, Vd] after `history`, whose last token is the anchor; histories of a request grow."""
        features = self.target.features(history[:-1], self.spec.target_layer_ids)
        self.drafter.append_context(features[self.drafter.context_len :])
        hidden = self.drafter.block(history[-1], len(history) - 1)
        return self.drafter.base_logits(hidden)[list(self.spec.slots)]

    def combined_hidden_states(self, tokens: Prompt) -> torch.Tensor:
        """[T, H]: what the drafter is handed for each position."""
        return self.drafter.fuse(self.target.features(tokens, self.spec.target_layer_ids))


def parity(engine: Engine) -> dict[str, Any]:
    """Base logits of every block under oracles that accept all, part and nothing."""
    reference = Reference(engine)
    report: dict[str, Any] = {"wrong": [], "blocks": {}}
    for name in ("perfect", "until_depth", "never"):
        with watch.drafted_blocks(engine) as blocks:
            run = engine.generate(MIXED[:2], 30, oracles.SHAPES[name])
        report["wrong"] += engine.wrong(MIXED[:2], run)
        worst, largest = [], 0.0
        for prompt in MIXED[:2]:
            reference.begin_request()
            for block in (b for b in blocks if list(b.history[: len(prompt)]) == prompt):
                expected = reference.base_logits(block.history)[: len(block.logits)]
                worst.append(float((block.logits - expected).abs().max()))
                largest = max(largest, float(expected.abs().max()))
        report["blocks"][name] = {"worst_by_block": worst, "largest": largest}
    return report


def context(engine: Engine) -> dict[str, Any]:
    """The combined hidden states handed to the drafter, against the reference's, by position."""
    assert engine.oracle is not None
    reference = Reference(engine)
    speculator = engine.speculator
    prepare = speculator.prepare_context_anchor
    seen: list[tuple[int, int, torch.Tensor]] = []

    def watching(input_batch: Any, num_rejected: torch.Tensor) -> None:
        prepare(input_batch, num_rejected)
        starts = input_batch.query_start_loc_np
        for i, slot in enumerate(input_batch.idx_mapping.tolist()):
            start, end = int(starts[i]), int(starts[i + 1]) - int(num_rejected[i])
            first = int(input_batch.positions[start])
            seen.append((slot, first, speculator.hidden_states[start:end].clone()))

    prompts = MIXED[:3]
    # One prompt per oracle kind: all accepted, rejected at depth 0, on changing branches.
    shapes = [oracles.perfect, oracles.never, oracles.zigzag]
    engine.oracle.shape_of = {tuple(p): s for p, s in zip(prompts, shapes, strict=True)}
    slot_of: dict[int, Prompt] = {}
    speculator.prepare_context_anchor = watching
    assert engine.llm.reset_prefix_cache()
    for i, prompt in enumerate(prompts):
        engine.add(f"r{i}", prompt, 40)

    def note_slots() -> None:
        for name in engine.running:
            slot_of[engine.request_slot(name)[1]] = prompts[int(name[1:])]

    tokens = engine.finish(note_slots)
    del speculator.prepare_context_anchor
    engine.oracle.shape_of = {}
    worst, largest, rows = 0.0, 0.0, 0
    expected_of = {
        slot: reference.combined_hidden_states(p + engine.answer(p, 60))
        for slot, p in slot_of.items()
    }
    for slot, first, hidden in seen:
        expected = expected_of[slot][first : first + len(hidden)]
        worst = max(worst, float((hidden - expected).abs().max()))
        largest = max(largest, float(expected.abs().max()))
        rows += len(hidden)
    wrong = [i for i, p in enumerate(prompts) if tokens[f"r{i}"] != engine.answer(p, 40)]
    return {"wrong": wrong, "rows": rows, "steps": len(seen), "worst": worst, "largest": largest}


def metadata(engine: Engine) -> dict[str, Any]:
    """Attention metadata of drafter and target layers in steps with trees, by class."""
    speculator, model_state = engine.speculator, engine.runner.model_state
    generate, prepare = speculator._generate_draft, model_state.prepare_attn
    kinds: dict[str, set[str]] = {"draft": set(), "target": set()}
    layers: dict[str, set[str]] = {"draft": set(), "target": set()}

    def note(kind: str, metadata: dict[str, Any]) -> None:
        kinds[kind] |= {type(value).__name__ for value in metadata.values()}
        layers[kind] |= set(metadata)

    def drafting(num_reqs: int, padded: int, metadata: Any, *args: Any, **kwargs: Any) -> None:
        note("draft", metadata)
        generate(num_reqs, padded, metadata, *args, **kwargs)

    def preparing(*args: Any, **kwargs: Any) -> Any:
        metadata = prepare(*args, **kwargs)
        if model_state.trees.batch is not None:
            note("target", metadata)
        return metadata

    speculator._generate_draft, model_state.prepare_attn = drafting, preparing
    run = engine.generate(MIXED[:2], 20, oracles.second)
    del speculator._generate_draft, model_state.prepare_attn
    return {
        "drafted": run.drafted,
        "kinds": {kind: sorted(found) for kind, found in kinds.items()},
        "layers": {kind: sorted(found) for kind, found in layers.items()},
        "draft_layers": watch.draft_layers(engine),
        "target_layers": watch.target_layers(engine),
        "groups": len(engine.runner.kv_cache_config.kv_cache_groups),
    }


def independence(engine: Engine) -> dict[str, Any]:
    """Base logits at the same root under trees of different shapes."""
    by_root: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for name in ("perfect", "second", "bushy", "never"):
        with watch.drafted_blocks(engine) as blocks:
            engine.generate(MIXED[:1], 40, oracles.SHAPES[name])
        for block in blocks:
            by_root.setdefault(block.history, []).append(block.logits)
    pairs = [(first, other) for first, *others in by_root.values() for other in others]
    return {
        "compared": len(pairs),
        "worst": max(float((a - b).abs().max()) for a, b in pairs),
        "largest": max(float(a.abs().max()) for a, _ in pairs),
    }


def own_drafts(engine: Engine) -> dict[str, Any]:
    """The checkpoint's own trees, no oracle."""
    oracle = engine.speculator.build_trees
    del engine.speculator.build_trees
    num_nodes = 0
    store = engine.speculator.trees.store

    def storing(request_slots: torch.Tensor, tree: Any) -> None:
        nonlocal num_nodes
        num_nodes += int(tree.num_nodes.sum())
        store(request_slots, tree)

    engine.speculator.trees.store = storing
    run = engine.generate(MIXED[:4], 40)
    del engine.speculator.trees.store
    engine.speculator.build_trees = oracle
    return {
        "wrong": engine.wrong(MIXED[:4], run),
        "drafted": num_nodes,
        "rounds": run.rounds,
        "budget": engine.speculator.options.budget,
        "max_tree": engine.scheduler.num_spec_tokens,
    }
