"""Drafters that know the answer, so that every way of accepting and rejecting is exercised.

A random drafter accepts nothing and hides every fault of the KV cache. An oracle replaces
`TreeSpeculator.build_trees`; it reads each request's history from vLLM's request state and looks up
how the target itself went on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from vllm_dartree.tree import DraftTree

Node = tuple[int, int, float]  # token, parent node index (-1: the root), score
Shape = Callable[["Oracle", list[int], int], list[Node]]


class Oracle:
    """Builds scripted trees.

    answers: prompt token ids -> the target's greedy continuation. shape: what a tree looks like,
    from the right tokens after the root; shape_of: the same for single prompts. strays: prompts
    whose requests may leave the answer.
    """

    def __init__(self, speculator: Any, req_states: Any) -> None:
        self.budget = speculator.options.budget
        self.depth = speculator.options.depth
        self.req_states = req_states
        self.vocab_size = req_states.vocab_size
        self.answers: dict[tuple[int, ...], list[int]] = {}
        self.shape: Shape = never
        self.shape_of: dict[tuple[int, ...], Shape] = {}
        self.strays: set[tuple[int, ...]] = set()
        self.step = 0
        self.num_drafted = 0
        speculator.build_trees = self.build_trees

    def build_trees(self, block: Any, request_slots: torch.Tensor) -> DraftTree:
        self.step += 1
        trees = [self._tree(int(slot)) for slot in request_slots]
        self.num_drafted += sum(map(len, trees))
        return DraftTree.from_nodes(trees, budget=self.budget)

    def wrong(self, token: int, offset: int = 1) -> int:
        return (token + offset) % self.vocab_size

    def _tree(self, slot: int) -> list[Node]:
        states = self.req_states
        total = int(states.total_len.gpu[slot])
        prompt_len = int(states.prompt_len.np[slot])
        history = states.all_token_ids.gpu[slot, :total].tolist()
        prompt = tuple(history[:prompt_len])
        answer = self.answers.get(prompt)
        if answer is None:
            return []
        done = total - prompt_len
        # A last step may accept more than max_tokens; the scheduler cuts that off.
        on_path = history[prompt_len:][: len(answer)] == answer[:done]
        assert on_path or prompt in self.strays, "left the target's own path"
        shape = self.shape_of.get(prompt, self.shape)
        return shape(self, answer[done : done + self.depth], self.step)[: self.budget]


def _spine(right_rank: Callable[[int], int], siblings: int, until: int = 10**9) -> Shape:
    """A right path whose node at depth d (0-based) is child number right_rank(d) of its parent."""

    def shape(oracle: Oracle, future: list[int], step: int) -> list[Node]:
        nodes: list[Node] = []
        parent = -1
        for depth, token in enumerate(future):
            right = right_rank(depth) if depth < until else siblings
            for rank in range(siblings):
                drafted = token if rank == right else oracle.wrong(token, rank + 1)
                nodes.append((drafted, parent, -float(len(nodes))))
            # Under a wrong depth the tree goes on below its last node.
            parent = len(nodes) - siblings + min(right, siblings - 1)
        return nodes

    return shape


def duplicate(oracle: Oracle, future: list[int], step: int) -> list[Node]:
    """The same token twice under each parent; the spine goes on under the first."""
    nodes: list[Node] = []
    parent = -1
    for token in future:
        first = len(nodes)
        nodes += [(token, parent, -float(first)), (token, parent, -float(first) - 0.5)]
        parent = first
    return nodes


def short(oracle: Oracle, future: list[int], step: int) -> list[Node]:
    """Between no node and a full tree, another size every step."""
    size = step * 7 % (oracle.budget + 1)
    return second(oracle, future, step)[:size]


def bushy(oracle: Oracle, future: list[int], step: int) -> list[Node]:
    """A random tree in a random valid order, about half of its tokens right."""
    rng = random.Random(step)
    nodes = random_tree(step, oracle.budget, len(future))
    depths: list[int] = []
    tokens: dict[int, set[int]] = {}
    drafted: list[Node] = []
    for _, parent, score in nodes:
        depths.append(0 if parent < 0 else depths[parent] + 1)
        taken = tokens.setdefault(parent, set())
        token = future[depths[-1]] if rng.random() < 0.5 else rng.randrange(oracle.vocab_size)
        while token in taken:
            token = oracle.wrong(token)
        taken.add(token)
        drafted.append((token, parent, score))
    return drafted


def random_tree(seed: int, num_nodes: int, max_depth: int) -> list[Node]:
    """A random recursive tree: each node hangs below any earlier one; tokens 0, 1, 2, ..."""
    rng = random.Random(seed)
    depths: list[int] = []
    nodes: list[Node] = []
    for node in range(num_nodes if max_depth else 0):
        parent = rng.choice([-1, *(n for n in range(node) if depths[n] + 1 < max_depth)])
        depths.append(0 if parent < 0 else depths[parent] + 1)
        nodes.append((node, parent, -float(node)))
    return nodes


def nothing(oracle: Oracle, future: list[int], step: int) -> list[Node]:
    """The root alone."""
    return []


def single(oracle: Oracle, future: list[int], step: int) -> list[Node]:
    """One node, the right one."""
    return perfect(oracle, future, step)[:1]


def never(oracle: Oracle, future: list[int], step: int) -> list[Node]:
    """Wrong tokens only."""
    return _spine(lambda depth: 2, siblings=2)(oracle, future, step)


def until_depth(depth: int) -> Shape:
    return _spine(lambda d: 0, siblings=2, until=depth)


perfect = _spine(lambda depth: 0, siblings=1)
second = _spine(lambda depth: 1, siblings=2)
zigzag = _spine(lambda depth: depth % 3, siblings=3)

SHAPES: dict[str, Shape] = {
    "perfect": perfect,
    "second": second,
    "zigzag": zigzag,
    "never": never,
    "until_depth": until_depth(2),
    "duplicate": duplicate,
    "short": short,
    "bushy": bushy,
}
"""The oracles of the harness by name."""
