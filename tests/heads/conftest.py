"""Heads with random weights, and decoders written straight from the published formulas."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from vllm_dartree.heads import MARKOV_HEADS, CorrectionHead, DominoHead, NullHead
from vllm_dartree.tree import DraftBlock

HIDDEN, GRU, BOTTLENECK, RANK, VOCAB, DRAFT_VOCAB, DEPTHS = 6, 5, 4, 7, 30, 20, 4
KINDS = ["null", "domino", "vanilla", "gated", "rnn"]


@dataclass
class Case:
    """A head, R requests, and what the literal decoder needs: full logits and raw tensors."""

    kind: str
    head: CorrectionHead
    embedding: Tensor
    anchors: Tensor
    hidden: Tensor
    logits: Tensor
    draft_to_target: Tensor
    anchor_first: bool
    prefix_len: int

    def block(self, num_candidates: int = DRAFT_VOCAB, slot_shift: int = 0) -> DraftBlock:
        first = (0 if self.anchor_first else 1) + slot_shift
        return DraftBlock.from_logits(
            self.anchors,
            self.hidden,
            tuple(range(first, first + DEPTHS)),
            self.logits,
            num_candidates,
            self.draft_to_target,
        )

    def literal(self, request: int, path: list[int], warm_up: bool = True) -> list[Tensor]:
        """Full-vocabulary logits of depths 1..len(path)+1 (<= J) along ``path`` of target ids."""
        weights = {name: value.float() for name, value in self.head.state_dict().items()}
        h, u = self.hidden[request].float(), self.logits[request]
        previous = [int(self.anchors[request]), *path]
        depths = range(1, min(len(path) + 1, DEPTHS) + 1)
        slot = {j: j - 1 if self.anchor_first else j for j in depths}
        if self.kind == "null":
            return [u[j - 1] for j in depths]
        if self.kind == "domino":
            return self._literal_domino(weights, h, u, previous, slot)
        w2 = weights["markov_w2.weight"]
        w = [weights["markov_w1.weight"][token] for token in previous]
        if self.kind == "vanilla":
            return [u[j - 1] + w2 @ w[j - 1] for j in depths]
        if self.kind == "gated":
            gate, bias = weights["gate_proj.weight"], weights["gate_proj.bias"]
            gates = [torch.sigmoid(gate @ torch.cat([h[slot[j]], w[j - 1]]) + bias) for j in depths]
            return [u[j - 1] + w2 @ (gates[j - 1] * w[j - 1]) for j in depths]
        joint, bias = weights["joint_proj.weight"], weights["joint_proj.bias"]
        state, scores = torch.zeros(RANK), []
        steps = [(slot[j], w[j - 1]) for j in depths]
        if warm_up and not self.anchor_first:
            steps.insert(0, (0, w[0]))
        for at, embedded in steps:
            g, c, o = (joint @ torch.cat([state, embedded, h[at]]) + bias).split(RANK)
            scores.append(w2 @ torch.tanh(o))
            state = torch.sigmoid(g) * state + (1 - torch.sigmoid(g)) * torch.tanh(c)
        scores = scores[len(steps) - len(slot) :]
        return [u[j - 1] + score for j, score in zip(depths, scores, strict=True)]

    def _literal_domino(self, weights, h, u, previous, slot) -> list[Tensor]:
        w_ih, w_hh = weights["prefix_gru.weight_ih_l0"], weights["prefix_gru.weight_hh_l0"]
        w_1, w_2 = weights["embed_proj.0.weight"], weights["embed_proj.2.weight"]
        state, scores = torch.zeros(GRU), []
        for j, at in slot.items():
            gi = (w_ih @ self.embedding[previous[j - 1]]).split(GRU)
            gh = (w_hh @ state).split(GRU)
            rho, update = torch.sigmoid(gi[0] + gh[0]), torch.sigmoid(gi[1] + gh[1])
            state = (1 - update) * torch.tanh(gi[2] + rho * gh[2]) + update * state
            middle = w_1 @ torch.cat([h[at], state])
            bias = w_2 @ (middle * torch.sigmoid(middle))
            scores.append(u[j - 1] + bias if j > self.prefix_len else u[j - 1])
        return scores


def make_head(kind: str, prefix_len: int = 1, dtype: torch.dtype | None = None) -> CorrectionHead:
    if kind == "null":
        return NullHead()
    if kind == "domino":
        return DominoHead(
            HIDDEN, GRU, BOTTLENECK, DRAFT_VOCAB, pure_draft_prefix_len=prefix_len, dtype=dtype
        )
    return MARKOV_HEADS[kind](HIDDEN, RANK, VOCAB, DRAFT_VOCAB, dtype=dtype)


def make_case(
    kind: str,
    num_requests: int = 3,
    anchor_first: bool = True,
    prefix_len: int = 1,
    seed: int = 0,
    dtype: torch.dtype | None = None,
) -> Case:
    torch.manual_seed(seed)
    head = make_head(kind, prefix_len, dtype)
    for parameter in head.parameters():  # large enough for corrections to change the order
        torch.nn.init.normal_(parameter, std=0.7)
    embedding = torch.randn(VOCAB, HIDDEN)
    if isinstance(head, DominoHead):
        head.bind_embedding(embedding)
    return Case(
        kind=kind,
        head=head,
        embedding=embedding,
        anchors=torch.randint(0, VOCAB, (num_requests,)),
        hidden=torch.randn(num_requests, DEPTHS + 2, HIDDEN),
        logits=torch.randn(num_requests, DEPTHS, DRAFT_VOCAB),
        draft_to_target=torch.randperm(VOCAB)[:DRAFT_VOCAB],
        anchor_first=anchor_first,
        prefix_len=prefix_len,
    )


@pytest.fixture(scope="session")
def cases() -> SimpleNamespace:
    return SimpleNamespace(make=make_case, head=make_head, depths=DEPTHS)


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture(params=[True, False], ids=["anchor_first", "one_plus_n"])
def anchor_first(request) -> bool:
    return request.param
