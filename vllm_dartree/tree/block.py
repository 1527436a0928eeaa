"""What one pass of the block-parallel drafter hands to the tree builders."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vllm_dartree.tree.draft_tree import NEG_INF
from vllm_dartree.tree.order import top_candidates


@dataclass(frozen=True)
class DraftBlock:
    """One drafter pass for R requests and J depths, restricted to K candidates per depth.

    Attributes:
        anchors: [R] int64, the root token of each request (target id).
        hidden: [R, Q, H], all Q block slots after the drafter's final norm.
        slots: slot of depth d = 1..J is ``slots[d - 1]``: 0..J-1 for anchor-first drafters,
            1..J for the "1 + N" layout whose slot 0 predicts nothing.
        candidate_ids: [R, J, K] int64, draft-vocabulary ids C_d, best base logit first.
        candidate_tokens: [R, J, K] int64, the same candidates as target-vocabulary ids.
        base_logits: [R, J, K] float32, U_d[C_d].
        base_logsumexp: [R, J] float32, log-sum-exp of U_d over the whole draft vocabulary. Only
            ``ddtree`` reads it; None where the caller asked for none.
    """

    anchors: Tensor
    hidden: Tensor
    slots: tuple[int, ...]
    candidate_ids: Tensor
    candidate_tokens: Tensor
    base_logits: Tensor
    base_logsumexp: Tensor | None = None

    def __post_init__(self) -> None:
        num_depths = self.base_logits.shape[1]
        assert len(self.slots) == num_depths, f"{len(self.slots)} slots for {num_depths} depths"
        assert min(self.slots) >= 0 and max(self.slots) < self.hidden.shape[1], (
            f"slots {self.slots} outside the {self.hidden.shape[1]} block slots"
        )

    @property
    def num_requests(self) -> int:
        return self.base_logits.shape[0]

    @property
    def num_depths(self) -> int:
        return self.base_logits.shape[1]

    @property
    def num_candidates(self) -> int:
        return self.base_logits.shape[2]

    def hidden_at(self, depth: int) -> Tensor:
        """z_d, [R, H]: the drafter's hidden state that predicts ``depth`` (1-based)."""
        return self.hidden[:, self.slots[depth - 1]]

    def request(self, index: int) -> DraftBlock:
        """The block of one request alone (R = 1)."""
        one = slice(index, index + 1)
        lse = self.base_logsumexp
        return DraftBlock(
            self.anchors[one],
            self.hidden[one],
            self.slots,
            self.candidate_ids[one],
            self.candidate_tokens[one],
            self.base_logits[one],
            None if lse is None else lse[one],
        )

    def by_token(self) -> DraftBlock:
        """The same block with each depth's candidates in ascending target id.

        In this order the position of a child among its siblings is its place in the tie rule.
        Should two draft ids stand for one target token, only the better one stays a candidate:
        siblings must be distinct, or the budget would be spent twice on one continuation.

            >>> block = DraftBlock.from_logits(
            ...     torch.tensor([0]), torch.zeros(1, 1, 2), (0,), torch.tensor([[[1., 0., 4.]]]),
            ...     num_candidates=3, draft_to_target=torch.tensor([9, 7, 7]))
            >>> block.candidate_tokens.tolist(), block.by_token().candidate_tokens.tolist()
            ([[[7, 9, 7]]], [[[7, 7, 9]]])
            >>> block.by_token().base_logits.tolist()
            [[[4.0, -inf, 1.0]]]
        """
        tokens, order = self.candidate_tokens.sort(dim=-1, stable=True)
        logits = self.base_logits.gather(-1, order)
        logits[..., 1:].masked_fill_(tokens[..., 1:] == tokens[..., :-1], NEG_INF)
        return replace(
            self,
            candidate_ids=self.candidate_ids.gather(-1, order),
            candidate_tokens=tokens,
            base_logits=logits,
        )

    @staticmethod
    def from_logits(
        anchors: Tensor,
        hidden: Tensor,
        slots: tuple[int, ...],
        logits: Tensor,
        num_candidates: int,
        draft_to_target: Tensor | None = None,
        with_logsumexp: bool = True,
    ) -> DraftBlock:
        """Restrict ``logits`` [R, J, Vd] to the ``num_candidates`` best of each depth.

        Equal logits go to the lower draft id. ``draft_to_target`` [Vd] int64 gives each draft
        id's target id (None: the vocabularies are the same). K is ``num_candidates`` or Vd if
        that is smaller. Logits that are not finite count as -inf: such a token is never drafted.
        """
        logits = logits.to(torch.float32)
        logits = logits.nan_to_num(nan=NEG_INF, posinf=NEG_INF, neginf=NEG_INF)
        values, ids = top_candidates(logits, min(num_candidates, logits.shape[-1]))
        return DraftBlock(
            anchors=anchors,
            hidden=hidden,
            slots=tuple(slots),
            candidate_ids=ids,
            candidate_tokens=ids if draft_to_target is None else draft_to_target[ids],
            base_logits=values,
            base_logsumexp=logits.logsumexp(-1) if with_logsumexp else None,
        )
