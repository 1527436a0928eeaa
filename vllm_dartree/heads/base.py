"""The correction heads' common interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from vllm_dartree.tree.block import DraftBlock


class CorrectionHead(nn.Module, ABC):
    """Scores the children of many prefixes at once.

    What a head remembers of a prefix is one tensor [R, P, S], opaque to the builders: they gather
    it along P and hand it back. S may be 0. Depths are 1-based.

    Precision: projections and recurrent states are in the dtype of the parameters, as the heads
    were trained (matmuls accumulate in float32 there too); the last product and its sum with the
    base logits, where near-ties are decided, are float32.
    """

    @abstractmethod
    def root_state(self, block: DraftBlock) -> Tensor:
        """[R, 1, S]: the state of the root, which has consumed the anchor."""

    @abstractmethod
    def score(self, depth: int, block: DraftBlock, state: Tensor) -> Tensor:
        """[R, P, K] float32: corrected logits of the candidates of ``depth`` after each prefix.

        ``state`` [R, P, S] belongs to prefixes of depth ``depth - 1``. May be a view: read only.
        """

    @abstractmethod
    def advance(self, depth: int, block: DraftBlock, state: Tensor, tokens: Tensor) -> Tensor:
        """[R, P, S]: the states of nodes of ``depth`` from those of their parents.

        ``state`` [R, P, S] is the parents', one entry per node; ``tokens`` [R, P] int64 are the
        nodes' target ids.
        """


def base_scores(depth: int, block: DraftBlock, state: Tensor) -> Tensor:
    """[R, P, K]: the uncorrected logits of ``depth``, the same for every prefix (a view)."""
    return block.base_logits[:, depth - 1].unsqueeze(1).expand(-1, state.shape[1], -1)


def add_correction(depth: int, block: DraftBlock, features: Tensor, rows: Tensor) -> Tensor:
    """U_d[C] + W2[C] f in float32, [R, P, K]: ``features`` f [R, P, r], ``rows`` W2 [Vd, r].

    Only the candidates' rows of W2 are read, never the whole vocabulary.
    """
    candidate_rows = F.embedding(block.candidate_ids[:, depth - 1], rows)
    base = block.base_logits[:, depth - 1].unsqueeze(1)
    return torch.baddbmm(base, features.float(), candidate_rows.float().transpose(1, 2))
